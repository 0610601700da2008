"""The effect of an estimator's noise on the largest dFIL of all records, measured in one run.

Guo et al. 2022 estimates a trace from 50 fresh coordinates per step; its public code draws one,
because it uses one random key for all 50.
``python -m reproduction.private_sgd.estimators --device cuda --out FILE`` trains one network and
lets all estimators watch the same steps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reproduction.private_sgd.comparison import write_comparison
from reproduction.private_sgd.ensemble import EnsembleStep
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, Hyperparameters, find_grid

_MODULE = "reproduction.private_sgd.estimators"
SETTING = Hyperparameters(1, 0.1, 8)
STEPS = 1000
# The reference, the accountant's method, the paper's, and its code's.
ESTIMATORS = {
    "reference": ("signs", 24),
    "2 random signs": ("signs", 2),
    "50 coordinates": ("coordinates", 50),
    "1 coordinate": ("coordinates", 1),
}


class ComparedRun(Run):
    """A run of one setting in which several estimators keep their own sums."""

    accounts = tuple(ESTIMATORS)

    def __init__(self, grid: Grid, images: ImageTensors, seed: int) -> None:
        super().__init__(grid, images, seed, probes=sum(count for _, count in ESTIMATORS.values()))

    def directions(self, x: Tensor) -> Tensor:
        """Return the directions of all estimators: signs, or coordinates times ``√d``."""
        draw = {"signs": self.signs, "coordinates": self.coordinates}
        return torch.cat([draw[kind](count, x) for kind, count in ESTIMATORS.values()])

    def account(self, index: Tensor, found: EnsembleStep, standing: Tensor) -> None:
        """Add the step to the sums of every estimator."""
        place = 0
        for name, (_, count) in ESTIMATORS.items():
            share = self.shares(found.traces[place : place + count], standing)
            self.sums[name].index_add_(1, index, share)
            place += count


def compare(
    grid: Grid, images: ImageTensors, steps: int, say: Callable[[str], object] = print
) -> dict[str, Any]:
    """Train one network and return every estimator's leakage of each record."""
    run = ComparedRun(grid, images, seed=0)
    while run.step < steps:
        run.advance()
        if run.step % 100 == 0:
            say(f"{run.step} steps")
    size = math.prod(images.X.shape[1:])
    truth = run.sums["reference"][0] / size
    seen = truth > 0
    rows = []
    for name, sums in run.sums.items():
        values = sums[0] / size
        off = (values[seen] / truth[seen] - 1).square().mean().sqrt()
        rows.append(
            {
                "estimator": name,
                "largest": float(values.max()),
                "median": float(values.median()),
                "relative deviation": float(off),
                "reference of its largest": float(truth[values.argmax()]),
            }
        )
    return {
        "data": grid.data,
        "setting": vars(grid.settings[0]) | {"steps": steps},
        "records": len(images.X),
        "accuracy": run.accuracies()[0],
        "rows": rows,
    }


def compare_on(device: str, steps: int) -> dict[str, Any]:
    """Train the network for MNIST, observed by all estimators."""
    grid = replace(find_grid("mnist"), settings=(SETTING,))
    return compare(grid, load_images(grid).to(device), steps)


if __name__ == "__main__":
    sys.exit(write_comparison(_MODULE, sys.argv[1:], STEPS, compare_on))
