"""How fast Table 1's network and that of the authors' code learn MNIST, and what that costs.

``python -m reproduction.private_sgd.first_steps --out FILE`` trains both on the processor for some
hundred private steps, from a few starts, in minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reproduction.private_sgd.estimators import SETTING
from reproduction.private_sgd.grid import write_json
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, find_grid
from reproduction.provenance import made_by
from seepage.errors import InputError

_MODULE = "reproduction.private_sgd.first_steps"
GRIDS = ("mnist", "mnist-as-run")
STEPS = 100
STARTS = 2


def follow(grid: Grid, images: ImageTensors, steps: int) -> dict[str, Any]:
    """Train the networks of a grid, which differ in their start alone; return a row of results."""
    run = Run(grid, images, seed=0, probes=1)
    while run.step < steps:
        run.advance()
    largest = run.sums["plain"].mean(0).max() / math.prod(images.X.shape[1:])
    return {
        "network": grid.network,
        "accuracy": [round(accuracy, 4) for accuracy in run.accuracies()],
        "largest": float(f"{float(largest):.4g}"),
    }


def main(arguments: Sequence[str]) -> int:
    """Read the command line, train, and write."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args(arguments)
    try:
        grids = [replace(find_grid(name), settings=(SETTING,) * STARTS) for name in GRIDS]
        images = load_images(grids[0]).to(chosen.device)
        with torch.inference_mode():
            rows = [follow(grid, images, chosen.steps) for grid in grids]
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    setting = vars(SETTING) | {"steps": chosen.steps}
    made = made_by(_MODULE, arguments, chosen.out, chosen.device)
    write_json(chosen.out, made | {"setting": setting, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
