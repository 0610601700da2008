"""The convolutional networks of Guo et al. 2022, appendix C, smooth in their inputs throughout.

Tables 1 and 2 there list a tanh after the last layer too; outputs that enter a softmax have none
here, as in the networks of Papernot et al. (2020) that the paper adapts. The authors' public code
starts from Glorot's weights, and for MNIST it has larger filters than Table 1: those networks are
here too.
"""

from __future__ import annotations

from torch import nn


def mnist_cnn(channels: tuple[int, int] = (16, 32), side: int = 28, classes: int = 10) -> nn.Module:
    """Return the network of Table 1 for images of one channel, ``side`` by ``side``.

    Examples
    --------
    >>> import torch
    >>> from reproduction.private_sgd.networks import mnist_cnn
    >>> mnist_cnn()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    first, second = channels
    after_one = (side + 4 - 3) // 2 + 1 - 1
    after_two = (after_one - 3) // 2 + 1 - 1
    return nn.Sequential(
        nn.Conv2d(1, first, 3, stride=2, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Conv2d(first, second, 3, stride=2),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(second * after_two**2, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def mnist_cnn_as_run(channels: tuple[int, int] = (16, 32), classes: int = 10) -> nn.Module:
    """Return the network of the authors' code: filters of 8 × 8 and 4 × 4, from Glorot's start.

    Examples
    --------
    >>> import torch
    >>> from reproduction.private_sgd.networks import mnist_cnn_as_run
    >>> mnist_cnn_as_run()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    first, second = channels
    net = nn.Sequential(
        nn.Conv2d(1, first, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Conv2d(first, second, 4, stride=2),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(second * 4**2, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )
    return _from_glorot(net)


def _from_glorot(net: nn.Sequential) -> nn.Sequential:
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def cifar_cnn(
    channels: tuple[int, int, int] = (32, 64, 128),
    side: int = 32,
    hidden: int = 128,
    classes: int = 10,
) -> nn.Sequential:
    """Return the network of Table 2 for images of three channels, ``side`` by ``side``.

    Examples
    --------
    >>> import torch
    >>> from reproduction.private_sgd.networks import cifar_cnn
    >>> cifar_cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    before = 3
    for width in channels:
        for _ in range(2):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.Tanh()]
            before = width
        layers.append(nn.AvgPool2d(2))
    size = before * (side // 8) ** 2
    layers += [nn.Flatten(), nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def cifar_cnn_as_run() -> nn.Module:
    """Return the network of Table 2 as the authors' code starts it, from Glorot's weights."""
    return _from_glorot(cifar_cnn())
