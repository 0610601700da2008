"""The settings of paper 004's private networks: which data, which shapes, which grid (appendix C).

Of Table 3 (MNIST) all settings are run; ``mnist-as-run`` is the same grid with the network of the
authors' code. Of Table 4 (CIFAR-10, 600 settings of up to 37,500 steps of
a larger network) the step size is held at 0.1, thresholds at three of eight, and the runs end where
the time allows.
"""

from __future__ import annotations

from collections.abc import Callable
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


@dataclass(frozen=True)
class Grid:
    """All runs on one data set.

    Parameters
    ----------
    data
        The name of the data set.
    network
        The name of what makes the networks, in :mod:`reproduction.private_sgd.networks`.
    settings
        The hyperparameters.
    steps
        After how many steps each run is measured; longer runs hold the shorter ones.
    batch_size, momentum
        As in the paper.
    centre, scale
        Pixels ``p`` in [0, 1] enter the network as ``(p − centre)/scale``.
    """

    data: str
    network: str
    settings: tuple[Hyperparameters, ...]
    steps: tuple[int, ...]
    batch_size: int
    momentum: float
    centre: float
    scale: float

    def make_network(self) -> Callable[[], Any]:
        """Return what makes one of the networks."""
        from reproduction.private_sgd import networks

        make: Callable[[], Any] = getattr(networks, self.network)
        return make


def _settings(
    noises: tuple[float, ...], rates: tuple[float, ...], thresholds: tuple[float, ...]
) -> tuple[Hyperparameters, ...]:
    return tuple(Hyperparameters(s, r, c) for s, r, c in product(noises, rates, thresholds))


GRIDS = {
    "mnist": Grid(
        "mnist",
        "mnist_cnn",
        _settings((0.2, 0.5, 1, 2, 5, 10), (0.01, 0.03, 0.1), (1, 2, 4, 8, 16, 32)),
        (1000, 2000, 3000, 5000),
        600,
        0.5,
        0.0,
        1.0,
    ),
    "cifar10": Grid(
        "cifar10",
        "cifar_cnn",
        _settings((0.1, 0.2, 0.5, 1, 2), (0.1,), (1, 4, 16)),
        (2500, 5000, 7500, 10_000, 12_500, 18_750, 25_000, 31_250, 37_500),
        200,
        0.5,
        0.473,  # the mean of all pixels and channels, and
        0.2,  # their standard deviation within channels, as the usual constants round to
    ),
}

GRIDS["mnist-as-run"] = replace(GRIDS["mnist"], network="mnist_cnn_as_run")

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
