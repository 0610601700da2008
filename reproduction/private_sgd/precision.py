"""The effect of computing in bfloat16 on the measured leakage of networks.

``python -m reproduction.private_sgd.precision --out FILE`` trains the authors' network for MNIST in
both precisions, with the same start, batches, noise and probes, on the CPU in a minute.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from reproduction.private_sgd.comparison import write_comparison
from reproduction.private_sgd.grid import PRECISIONS
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, Hyperparameters, find_grid

_MODULE = "reproduction.private_sgd.precision"
SETTINGS = (Hyperparameters(1, 0.03, 16), Hyperparameters(2, 0.1, 4))
STEPS = 60


def follow(grid: Grid, images: ImageTensors, precision: str, steps: int) -> dict[str, Any]:
    """Train in one precision; return accuracies, and the sums and maxima of the leakages."""
    run = Run(grid, images, seed=0, dtype=PRECISIONS[precision])
    while run.step < steps:
        run.advance()
    leakages = run.sums["plain"] / images.X[0].numel()
    return {
        "precision": precision,
        "accuracy": [round(accuracy, 4) for accuracy in run.accuracies()],
        "sum": leakages.sum(1).tolist(),
        "largest": leakages.amax(1).tolist(),
    }


def compare(device: str, steps: int) -> dict[str, Any]:
    """Train in both precisions."""
    grid = replace(find_grid("mnist-as-run"), settings=SETTINGS)
    images = load_images(grid).to(device)
    rows = [follow(grid, images, name, steps) for name in PRECISIONS]
    return {"settings": [vars(setting) for setting in SETTINGS], "steps": steps, "rows": rows}


if __name__ == "__main__":
    sys.exit(write_comparison(_MODULE, sys.argv[1:], STEPS, compare))
