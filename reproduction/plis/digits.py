"""The two networks of paper 002's Figure 2: MNIST with private training, and without.

Batches are disjoint and everybody may know who is in which, so that nothing is claimed from their
being hidden: a record takes part in one step of every epoch, and over the run the Gaussian noise
of those steps alone makes up its (ε, δ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seepage.privacy.gaussian_mechanism import gaussian_mu
from seepage.support.chunks import progress

if TYPE_CHECKING:
    from torch import Tensor, nn

EPSILON, DELTA = 1.0, 1e-5
THRESHOLD, EPOCHS, BATCH, RATE, MOMENTUM = 1.0, 3, 1_500, 1.0, 0.8
PLAIN_EPOCHS, PLAIN_BATCH, PLAIN_RATE = 2, 100, 0.1


@dataclass(frozen=True)
class Trained:
    """A network and its noise multiplier; ``None`` without noise."""

    net: nn.Module
    noise_multiplier: float | None


def train_privately(x: Tensor, y: Tensor, epochs: int = EPOCHS, seed: int = 0) -> Trained:
    """Train with smoothly clipped, noised gradients to (1, 1e-5) in all."""
    import torch

    from reproduction.private_sgd.networks import mnist_cnn
    from seepage.nn import Engine, SmoothClip

    torch.manual_seed(seed)
    net, clip = mnist_cnn(), SmoothClip(THRESHOLD)
    engine = Engine(net, "cross_entropy", clip=clip)
    # A record's shift of one step of every epoch: μ = √epochs · sensitivity/(σC).
    sigma = math.sqrt(epochs) * clip.sensitivity / THRESHOLD / gaussian_mu(EPSILON, DELTA)
    generator = torch.Generator().manual_seed(seed)
    speed = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for rows in progress(list(_batches(len(y), BATCH, epochs, generator)), "private steps"):
        total = engine.clipped_gradient(x[rows], y[rows]).gradient
        for name, p in net.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            mean = (total[name] + sigma * THRESHOLD * noise) / len(rows)
            speed[name].mul_(MOMENTUM).add_(mean)
            p.data.sub_(RATE * speed[name])
    return Trained(net, sigma)


def train_plainly(x: Tensor, y: Tensor, epochs: int = PLAIN_EPOCHS, seed: int = 0) -> Trained:
    """Train the same network as usual, by stochastic gradients with momentum."""
    import torch
    from torch.nn.functional import cross_entropy

    from reproduction.private_sgd.networks import mnist_cnn

    torch.manual_seed(seed)
    net = mnist_cnn()
    optimiser = torch.optim.SGD(net.parameters(), lr=PLAIN_RATE, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    for rows in progress(list(_batches(len(y), PLAIN_BATCH, epochs, generator)), "plain steps"):
        optimiser.zero_grad()
        cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    return Trained(net, None)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of images told right, in percent."""
    import torch

    with torch.no_grad():
        right = [(net(part).argmax(1) == label) for part, label in _pairs(x, y)]
    return 100 * float(torch.cat(right).double().mean())


def _pairs(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(1_000), y.split(1_000), strict=True))


def _batches(count: int, size: int, epochs: int, generator: Any) -> list[Tensor]:
    """Return the rows of every step, shuffled anew in every epoch."""
    import torch

    return [
        rows
        for _ in range(epochs)
        for rows in torch.randperm(count, generator=generator).split(size)
    ]
