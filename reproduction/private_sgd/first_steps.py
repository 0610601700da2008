"""How fast Table 1's network and that of the authors' code learn MNIST, and at what leakage.

``python -m reproduction.private_sgd.first_steps --out FILE`` trains both on the CPU for some
hundred private steps, from a few starts, in minutes.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

from reproduction.private_sgd.comparison import write_comparison
from reproduction.private_sgd.estimators import SETTING
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, find_grid

_MODULE = "reproduction.private_sgd.first_steps"
GRIDS = ("mnist", "mnist-as-run")
STEPS = 100
STARTS = 2


def follow(grid: Grid, images: ImageTensors, steps: int) -> dict[str, Any]:
    """Train the networks of a grid, which differ only in their start; return a row of results."""
    run = Run(grid, images, seed=0, probes=1)
    while run.step < steps:
        run.advance()
    largest = run.sums["plain"].mean(0).max() / math.prod(images.X.shape[1:])
    return {
        "network": grid.network,
        "accuracy": [round(accuracy, 4) for accuracy in run.accuracies()],
        "largest": float(f"{float(largest):.4g}"),
    }


def compare(device: str, steps: int) -> dict[str, Any]:
    """Train both networks."""
    grids = [replace(find_grid(name), settings=(SETTING,) * STARTS) for name in GRIDS]
    images = load_images(grids[0]).to(device)
    rows = [follow(grid, images, steps) for grid in grids]
    return {"setting": vars(SETTING) | {"steps": steps}, "rows": rows}


if __name__ == "__main__":
    sys.exit(write_comparison(_MODULE, sys.argv[1:], STEPS, compare))
