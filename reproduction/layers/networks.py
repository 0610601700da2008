"""The three networks of Mo et al. 2021, appendix A.4: AlexNet, VGG11Net and FCNet variants.

Convolutions keep the size of their input (3 × 3, padded by one), and every layer but the last is
followed by a ReLU. Layers are named ``conv1``, ``conv2``, …, ``fc1``, ``fc2``, … in their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

LFW = (62, 47)


def alexnet(classes: int = 2, size: tuple[int, int] = LFW, channels: int = 3) -> nn.Module:
    """Return the AlexNet variant: three convolutions, each with pooling, and two full layers.

    Parameters
    ----------
    classes
        Outputs.
    size
        Height and width of the images.
    channels
        Of the images.

    Examples
    --------
    >>> import torch
    >>> from reproduction.layers.networks import alexnet
    >>> net = alexnet()
    >>> net(torch.zeros(1, 3, 62, 47)).shape
    torch.Size([1, 2])
    >>> net.fc1
    Linear(in_features=2240, out_features=256, bias=True)
    """
    return _convolutional((16, 32, 64), 3, (256,), classes, size, channels)


def vgg11net(classes: int = 2, size: tuple[int, int] = LFW, channels: int = 3) -> nn.Module:
    """Return the VGG11Net variant: eight convolutions, the last three pooled, three full layers.

    Parameters are those of :func:`alexnet`.

    Examples
    --------
    >>> from reproduction.layers.networks import vgg11net
    >>> vgg11net().fc3
    Linear(in_features=128, out_features=2, bias=True)
    """
    widths = (16, 16, 16, 16, 32, 32, 64, 64)
    return _convolutional(widths, 3, (256, 128), classes, size, channels)


def fcnet(classes: int = 2, size: tuple[int, int] = LFW, channels: int = 3) -> nn.Module:
    """Return the fully connected network: eight layers of 32 neurons, and the output.

    Parameters are those of :func:`alexnet`.

    Examples
    --------
    >>> from reproduction.layers.networks import fcnet
    >>> sum(p.numel() for p in fcnet().fc1.parameters())
    279776
    """
    named: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    _full(named, size[0] * size[1] * channels, (32,) * 8, classes)
    return nn.Sequential(named)


def _convolutional(
    widths: Sequence[int],
    pooled: int,
    full: Sequence[int],
    classes: int,
    size: tuple[int, int],
    channels: int,
) -> nn.Module:
    """Return convolutions, the last ``pooled`` of them with max-pooling, and full layers."""
    named: OrderedDict[str, nn.Module] = OrderedDict()
    height, width = size
    before = channels
    for k, after in enumerate(widths, start=1):
        named[f"conv{k}"] = nn.Conv2d(before, after, 3, padding=1)
        named[f"conv{k}_relu"] = nn.ReLU()
        if k > len(widths) - pooled:
            named[f"conv{k}_pool"] = nn.MaxPool2d(2)
            height, width = height // 2, width // 2
        before = after
    named["flatten"] = nn.Flatten()
    _full(named, before * height * width, full, classes)
    return nn.Sequential(named)


def _full(
    named: OrderedDict[str, nn.Module], before: int, widths: Sequence[int], classes: int
) -> None:
    for k, after in enumerate(widths, start=1):
        named[f"fc{k}"] = nn.Linear(before, after)
        named[f"fc{k}_relu"] = nn.ReLU()
        before = after
    named[f"fc{len(widths) + 1}"] = nn.Linear(before, classes)
