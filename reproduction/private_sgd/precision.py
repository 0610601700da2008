"""What it changes that networks compute in bfloat16 while their leakage is measured.

``python -m reproduction.private_sgd.precision --out FILE`` trains the authors' network for MNIST in
both precisions, with the same start, batches, noise and probes, on the processor in a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reproduction.private_sgd.grid import PRECISIONS, write_json
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, Hyperparameters, find_grid
from reproduction.provenance import made_by
from seepage.errors import InputError

_MODULE = "reproduction.private_sgd.precision"
SETTINGS = (Hyperparameters(1, 0.03, 16), Hyperparameters(2, 0.1, 4))
STEPS = 60


def follow(grid: Grid, images: ImageTensors, precision: str, steps: int) -> dict[str, Any]:
    """Train in one precision; return accuracies, and sums and largest of the leakages."""
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


def main(arguments: Sequence[str]) -> int:
    """Read the command line, train, and write."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args(arguments)
    try:
        grid = replace(find_grid("mnist-as-run"), settings=SETTINGS)
        images = load_images(grid).to(chosen.device)
        with torch.inference_mode():
            rows = [follow(grid, images, name, chosen.steps) for name in PRECISIONS]
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    made = made_by(_MODULE, arguments, chosen.out, chosen.device)
    settings = [vars(setting) for setting in SETTINGS]
    write_json(chosen.out, made | {"settings": settings, "steps": chosen.steps, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
