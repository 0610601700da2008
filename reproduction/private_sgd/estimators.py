"""What the noise of an estimator of dFIL does to the largest of all records, measured in one run.

Paper 004 estimates a trace from 50 coordinates a step, drawn anew; its public code draws one, as it
uses one random key for all 50. ``python -m reproduction.private_sgd.estimators --device cuda
--out FILE`` trains one network and lets all estimators watch the same steps.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduction.private_sgd.ensemble import EnsembleStep
from reproduction.private_sgd.grid import write_json
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, Hyperparameters, find_grid
from reproduction.provenance import made_by
from seepage.errors import InputError

_MODULE = "reproduction.private_sgd.estimators"
SETTING = Hyperparameters(1, 0.1, 8)
STEPS = 1000
# The reference, what the accountant does, what the paper says, and what its code does.
ESTIMATORS = {
    "reference": ("signs", 24),
    "2 random signs": ("signs", 2),
    "50 coordinates": ("coordinates", 50),
    "1 coordinate": ("coordinates", 1),
}


class ComparedRun(Run):
    """A run of one setting in which several estimators keep sums of their own."""

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
    """Train one network and return what each estimator makes of every record's leakage."""
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


def main(arguments: Sequence[str]) -> int:
    """Read the command line, train, and write."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args(arguments)
    try:
        grid = replace(find_grid("mnist"), settings=(SETTING,))
        images = load_images(grid).to(chosen.device)
        with torch.inference_mode():
            made = made_by(_MODULE, arguments, chosen.out, chosen.device)
            write_json(chosen.out, made | compare(grid, images, chosen.steps))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
