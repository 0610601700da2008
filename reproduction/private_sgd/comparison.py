"""The command line of a small comparison: train for some steps, and write the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from reproduction.private_sgd.grid import write_json
from reproduction.provenance import made_by
from seepage.errors import InputError


def write_comparison(
    module: str,
    arguments: Sequence[str],
    steps: int,
    compare: Callable[[str, int], dict[str, Any]],
) -> int:
    """Run ``compare(device, steps)`` as the command line asks, and return the exit status.

    ``steps`` is the default number of steps. The file names the command, the commit and the machine
    beside the results.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=steps)
    chosen = parser.parse_args(arguments)
    try:
        with torch.inference_mode():
            found = compare(chosen.device, chosen.steps)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(chosen.out, made_by(module, arguments, chosen.out, chosen.device) | found)
    return 0
