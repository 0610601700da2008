"""The settings of Guo et al. 2022's private networks: data, shapes and grids (appendix C).

Of Table 3 (MNIST) all settings can be run. Of Table 4 (CIFAR-10, 120 settings at five lengths of up
to 37,500 steps of a larger network) ``cifar10`` has the step size fixed at 0.1 and three of eight
thresholds, with numbers of steps that are not in the table. ``mnist-as-run`` and ``cifar10-as-run``
are about the networks of the authors' code. The frontier of a table is the settings that decide how
accurate a network can be at a bound of 1 or 0.1: they are chosen by what they are known to reach,
and because settings with the same ``σ`` and ``ρC`` behave alike when most gradients are clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from seepage.errors import InputError, nearest


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of one run: σ, ρ and C."""

    noise_multiplier: float
    learning_rate: float
    max_grad_norm: float


def row_key(row: Mapping[str, Any]) -> tuple[Hyperparameters, int]:
    """Return what tells a row of results from the others: its setting, and its steps."""
    hyper = Hyperparameters(row["noise_multiplier"], row["learning_rate"], row["max_grad_norm"])
    return hyper, row["steps"]


@dataclass(frozen=True)
class Grid:
    """All runs on one data set.

    Parameters
    ----------
    data
        The name of the data set.
    network
        The name of the function that makes the networks, in
        :mod:`reproduction.private_sgd.networks`.
    settings
        The hyperparameters.
    steps
        The numbers of steps after which each run is measured; longer runs contain the shorter ones.
    batch_size, momentum
        As in the paper.
    centre, scale
        Pixels ``p`` in [0, 1] enter the network as ``(p − centre)/scale``.
    frontier
        The settings that decide how accurate a network can be at some bound.
    together
        How many networks run through a layer together; by default all.
    probed
        The share of a batch whose leakage is measured at each step.
    """

    data: str
    network: str
    settings: tuple[Hyperparameters, ...]
    steps: tuple[int, ...]
    batch_size: int
    momentum: float
    centre: float
    scale: float
    frontier: tuple[Hyperparameters, ...] = ()
    together: int | None = None
    probed: float = 1.0

    def make_network(self) -> Callable[[], Any]:
        """Return the function that makes one of the networks."""
        from reproduction.private_sgd import networks

        make: Callable[[], Any] = getattr(networks, self.network)
        return make


def _settings(
    noises: tuple[float, ...], rates: tuple[float, ...], thresholds: tuple[float, ...]
) -> tuple[Hyperparameters, ...]:
    return tuple(Hyperparameters(s, r, c) for s, r, c in product(noises, rates, thresholds))


_MNIST_FRONTIER = (
    *_settings((0.2,), (0.1,), (16, 32)),
    *_settings((0.5,), (0.1,), (16, 32)),
    *_settings((1,), (0.03,), (16, 32)),
    *_settings((1,), (0.1,), (4, 8, 16)),
    *_settings((2,), (0.03,), (8, 16, 32)),
    *_settings((2,), (0.1,), (4, 8)),
    *_settings((5,), (0.03,), (8,)),
    *_settings((5,), (0.1,), (2,)),
)
_CIFAR_FRONTIER = (
    *_settings((2,), (0.01,), (1, 2)),
    *_settings((2,), (0.03,), (0.25, 0.5, 1)),
    *_settings((2,), (0.1,), (0.1, 0.25)),
    *_settings((1,), (0.1,), (0.25, 0.5, 1)),
    *_settings((0.5,), (0.1,), (0.25, 0.5, 1)),
    *_settings((0.2,), (0.1,), (1, 2, 4)),
)
_MNIST = Grid(
    "mnist",
    "mnist_cnn",
    _settings((0.2, 0.5, 1, 2, 5, 10), (0.01, 0.03, 0.1), (1, 2, 4, 8, 16, 32)),
    (1000, 2000, 3000, 5000),
    600,
    0.5,
    0.0,
    1.0,
    _MNIST_FRONTIER,
)
_CIFAR = Grid(
    "cifar10",
    "cifar_cnn",
    _settings((0.1, 0.2, 0.5, 1, 2), (0.1,), (1, 4, 16)),
    (2500, 5000, 7500, 10_000, 12_500, 18_750, 25_000, 31_250, 37_500),
    200,
    0.5,
    0.473,  # the mean of all pixels and channels, and
    0.2,  # their standard deviation within channels, as the usual constants round to
    _CIFAR_FRONTIER,
    together=4,
    probed=0.25,
)
GRIDS = {
    "mnist": _MNIST,
    "mnist-as-run": replace(_MNIST, network="mnist_cnn_as_run"),
    "cifar10": _CIFAR,
    "cifar10-as-run": replace(_CIFAR, network="cifar_cnn_as_run"),
}

# The run whose images Figure 6 shows.
SHOWN = Hyperparameters(0.5, 0.1, 1)
SHOWN_STEPS = 5000


def find_grid(data: str) -> Grid:
    """Return the grid of that name."""
    if data not in GRIDS:
        raise InputError(
            f"There is no grid for {data!r}{nearest(data, GRIDS)}; take {', '.join(GRIDS)}."
        )
    return GRIDS[data]
