"""Trains the private networks of Guo et al. 2022's Figure 5 and writes their leakage as data.

``python -m reproduction.private_sgd.grid mnist --device cuda --minutes 8 --out FILE`` runs all
settings at once and writes accuracies and leakages after every number of steps that the grid names.
It needs only torch, numpy and tqdm; everything derived from the data (ε, bounds, the figure) is
computed when the figure is drawn. When the time is up it stops, and the file holds the steps
reached; the same command resumes from there, by ``FILE.state.npz``. On a GPU the networks compute
in bfloat16 (or, with ``--precision single``, in single precision); their parameters and all sums
are in single precision or better.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from reproduction.private_sgd.run import CoordinateRun, ImageTensors, Run, load_images
from reproduction.private_sgd.settings import (
    GRIDS,
    SHOWN,
    SHOWN_STEPS,
    Grid,
    Hyperparameters,
    find_grid,
    row_key,
)
from reproduction.provenance import made_by
from seepage.errors import InputError

_MODULE = "reproduction.private_sgd.grid"
_EXTREMES = 8  # records of Figure 6, at either end
PRECISIONS = {"single": torch.float32, "bfloat16": torch.bfloat16}


class Average:
    """Leakage and accuracy after some steps, averaged over runs with different seeds."""

    def __init__(self) -> None:
        self.runs = 0
        self.sums: dict[str, np.ndarray] = {}
        self.accuracies: list[list[float]] = []
        self.single: dict[str, list[np.ndarray]] = {}  # the largest of each single run

    def add(self, run: Run) -> None:
        """Add a run in its present state."""
        for name, sums in run.sums.items():
            now = sums.cpu().numpy().copy()
            self.sums[name] = self.sums[name] + now if name in self.sums else now
            self.single.setdefault(name, []).append(now.max(1))
        self.accuracies.append(run.accuracies())
        self.runs += 1

    def state(self) -> dict[str, np.ndarray]:
        """Return all averages, for :meth:`restore`."""
        if not self.runs:
            return {}
        singles = {f"single {name}": np.stack(values) for name, values in self.single.items()}
        return {"accuracies": np.array(self.accuracies)} | self.sums | singles

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Restore earlier averages."""
        self.accuracies = found["accuracies"].tolist()
        self.runs = len(self.accuracies)
        self.single = {
            name.removeprefix("single "): list(values)
            for name, values in found.items()
            if name.startswith("single ")
        }
        self.sums = {name: found[name] for name in self.single}

    def rows(self, grid: Grid, steps: int, unknowns: int) -> list[dict[str, Any]]:
        """Return a row for every setting; leakages are ``η̄² = Tr I/d``."""
        return [self._row(k, grid.settings[k], steps, unknowns) for k in range(len(grid.settings))]

    def _row(self, k: int, setting: Hyperparameters, steps: int, unknowns: int) -> dict[str, Any]:
        leakages = {name: sums[k] / self.runs / unknowns for name, sums in self.sums.items()}
        accuracy = [round(run[k], 4) for run in self.accuracies]
        row: dict[str, Any] = asdict(setting) | {"steps": steps, "accuracy": accuracy}
        plain = leakages["plain"]
        row["diverged"] = not bool(np.isfinite(plain).all())
        if row["diverged"]:
            return row
        row |= {name: _summary(values) for name, values in leakages.items()}
        for name, singles in self.single.items():
            which = "" if name == "plain" else f", {name}"
            row[f"largest of single runs{which}"] = [_rounded(one[k] / unknowns) for one in singles]
        if setting == SHOWN and steps == SHOWN_STEPS:
            order = np.argsort(plain, kind="stable")
            ends = {"lowest": order[:_EXTREMES], "highest": order[::-1][:_EXTREMES]}
            row |= {
                name: [[int(i), _rounded(plain[i])] for i in which] for name, which in ends.items()
            }
        return row


def _summary(values: np.ndarray) -> dict[str, float]:
    return {
        "largest": _rounded(values.max()),
        "top 0.1 %": _rounded(np.quantile(values, 0.999)),
        "median": _rounded(np.median(values)),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def run_grid(
    grid: Grid,
    images: ImageTensors,
    *,
    runs: int,
    minutes: float,
    write: Callable[[dict[str, Any]], None],
    first_seed: int = 0,
    make: Callable[[Grid, ImageTensors, int], Run] = Run,
    say: Callable[[str], object] = print,
    state: Path | None = None,
) -> dict[str, Any]:
    """Train every setting ``runs`` times, as far as time allows; write after each measurement.

    An existing file ``state`` is resumed; unfinished work is left in it.
    """
    deadline = time.monotonic() + 60 * minutes
    averages = {steps: Average() for steps in grid.steps}
    unknowns = math.prod(images.X.shape[1:])
    found: dict[str, Any] = {}
    held = _held(state, averages)
    for number in range(int(held.get("run", 0)), runs):
        run = make(grid, images, first_seed + number)
        if held:
            run.restore(held)
            held = {}
        for steps in grid.steps:
            if averages[steps].runs > number:
                continue
            what = f"run {number + 1}, to step {steps}"
            for _ in tqdm(range(run.step, steps), what, disable=None, leave=False):
                if time.monotonic() > deadline:
                    break
                run.advance()
            if run.step < steps:
                say(f"the time is over after {run.step} steps of run {number + 1}")
                _keep(state, number, run, averages)
                return found
            averages[steps].add(run)
            rows = [
                row
                for at, average in averages.items()
                if average.runs
                for row in average.rows(grid, at, unknowns)
            ]
            found = _header(grid, images) | {"rows": rows}
            write(found)
            _keep(state, number, run, averages)
            left = deadline - time.monotonic()
            say(f"run {number + 1}, {steps} steps; {left:.0f} s left")
    if state is not None:
        state.unlink(missing_ok=True)
    return found


def _keep(state: Path | None, number: int, run: Run, averages: dict[int, Average]) -> None:
    """Write the progress atomically."""
    if state is None:
        return
    found = {"run": np.array(number)} | run.state()
    for steps, average in averages.items():
        found |= {f"{steps} {name}": values for name, values in average.state().items()}
    half = state.with_name(f".{state.name}")
    with half.open("wb") as file:
        np.savez(file, **found)  # type: ignore[arg-type]
    half.replace(state)


def _held(state: Path | None, averages: dict[int, Average]) -> dict[str, np.ndarray]:
    """Return the state of an interrupted run, with its averages restored, or ``None``."""
    if state is None or not state.exists():
        return {}
    with np.load(state, allow_pickle=False) as file:
        found = dict(file)
    for steps, average in averages.items():
        own = f"{steps} "
        parts = {n.removeprefix(own): v for n, v in found.items() if n.startswith(own)}
        if parts:
            average.restore(parts)
    return found


def _header(grid: Grid, images: ImageTensors) -> dict[str, Any]:
    where = images.X.device
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "a processor"
    return {
        "data": grid.data,
        "network": grid.network,
        "records": len(images.X),
        "unknowns": math.prod(images.X.shape[1:]),
        "batch_size": grid.batch_size,
        "momentum": grid.momentum,
        "input scale": grid.scale,
        "sampling": "poisson",
        "share probed": grid.probed,
        "machine": name,
        "torch": torch.__version__.partition("+")[0],
    }


def added(held: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """Return results with those of another run added, with their provenance."""
    if held is None:
        return found
    made = {key: found[key] for key in ("machine", "torch")}
    rows = [row | made for row in found["rows"]]
    new = {row_key(row) for row in rows}
    return held | {"rows": [*(row for row in held["rows"] if row_key(row) not in new), *rows]}


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write results atomically, one line per row so that changes are readable."""
    rows = ",\n  ".join(json.dumps(row) for row in found["rows"])
    head = json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1)
    text = f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
    half = path.with_name(f".{path.name}.part")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Read the command line, train, and write."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("data", help=", ".join(GRIDS))
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, help="what the networks compute in")
    parser.add_argument("--minutes", type=float, default=8.0, help="when to stop")
    parser.add_argument("--runs", type=int, default=1, help="runs to average over")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed of the first run")
    parser.add_argument("--probes", type=int, default=1, help="random probes per step")
    parser.add_argument("--share", type=float, help="the share of a batch to be probed")
    parser.add_argument(
        "--coordinate",
        action="store_true",
        help="also by one coordinate a step, as the authors' code",
    )
    parser.add_argument("--settings", type=int, help="only the first so many settings")
    parser.add_argument(
        "--only", nargs="*", type=_setting, metavar="σ,ρ,C", help="these settings instead"
    )
    parser.add_argument("--frontier", action="store_true", help="only the settings that decide")
    parser.add_argument(
        "--shown", action="store_true", help="only the run of Figure 6, added to what FILE holds"
    )
    parser.add_argument("--steps", type=int, nargs="*", help="measure after these steps instead")
    parser.add_argument("--commit", help="of this code, where there is no repository to ask")
    chosen = parser.parse_args(arguments)
    precision = chosen.precision or ("bfloat16" if chosen.device == "cuda" else "single")
    kind = CoordinateRun if chosen.coordinate else Run
    try:
        grid = _chosen_grid(chosen)
        held: dict[str, Any] | None = None
        if chosen.shown and chosen.out.exists():
            held = json.loads(chosen.out.read_text(encoding="utf-8"))
        made = {
            **made_by(_MODULE, arguments, chosen.out, chosen.device, chosen.commit),
            "precision": precision,
            "probes": chosen.probes,
            "first seed": chosen.first_seed,
        }
        # Ten bits per product are enough for leakages that are known to a few per cent.
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        images = load_images(grid).to(chosen.device)
        with torch.inference_mode():
            run_grid(
                grid,
                images,
                runs=chosen.runs,
                minutes=chosen.minutes,
                write=lambda found: write_json(chosen.out, added(held, made | found)),
                first_seed=chosen.first_seed,
                make=partial(kind, probes=chosen.probes, dtype=PRECISIONS[precision]),
                state=chosen.out.with_name(f"{chosen.out.name}.state.npz"),
            )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _setting(words: str) -> Hyperparameters:
    """Read σ, ρ and C separated by commas."""
    return Hyperparameters(*(float(word) for word in words.split(",")))


def _chosen_grid(chosen: argparse.Namespace) -> Grid:
    """Return the grid requested on the command line."""
    grid = find_grid(chosen.data)
    settings = grid.frontier if chosen.frontier else grid.settings[: chosen.settings]
    grid = replace(grid, settings=tuple(chosen.only or settings))
    if chosen.shown:
        grid = replace(grid, settings=(SHOWN,), steps=(SHOWN_STEPS,))
    if chosen.share:
        grid = replace(grid, probed=chosen.share)
    return replace(grid, steps=tuple(sorted(chosen.steps))) if chosen.steps else grid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
