"""Trains the private networks of paper 004's Figure 5 and writes what they leak, as data.

``python -m reproduction.private_sgd.grid mnist --device cuda --minutes 8 --out FILE`` runs all
settings at once and writes accuracies and leakages after every number of steps that the grid names.
It needs torch, numpy and tqdm only; what follows from the data (ε, bounds, the figure) is computed
when the figure is drawn. When the time is over it stops, and the file holds the steps reached;
the same command goes on from there, by ``FILE.state.npz``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import SHOWN, SHOWN_STEPS, Grid, Hyperparameters, find_grid
from seepage.errors import InputError

_EXTREMES = 8  # records of Figure 6, at either end


class Average:
    """Leakage and accuracy after some steps, averaged over runs with different seeds."""

    def __init__(self, settings: int, records: int) -> None:
        self.runs = 0
        self.plain = torch.zeros(settings, records, dtype=torch.float64)
        self.mixed = torch.zeros_like(self.plain)
        self.accuracies: list[list[float]] = []
        self.single: list[Tensor] = []  # the largest of each run alone

    def add(self, run: Run) -> None:
        """Take a run in, as it now stands."""
        plain = run.plain.cpu()
        self.plain += plain
        self.mixed += run.mixed.cpu()
        self.accuracies.append(run.accuracies())
        self.single.append(plain.amax(1))
        self.runs += 1

    def state(self) -> dict[str, np.ndarray]:
        """Return all that was averaged, for :meth:`restore`."""
        if not self.runs:
            return {}
        return {
            "plain": self.plain.numpy(),
            "mixed": self.mixed.numpy(),
            "accuracies": np.array(self.accuracies),
            "single": torch.stack(self.single).numpy(),
        }

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Take in what was averaged before."""
        self.plain, self.mixed = (torch.from_numpy(found[name]) for name in ("plain", "mixed"))
        self.accuracies = found["accuracies"].tolist()
        self.single = list(torch.from_numpy(found["single"]))
        self.runs = len(self.accuracies)

    def rows(self, grid: Grid, steps: int, unknowns: int) -> list[dict[str, Any]]:
        """Return a row for every setting; leakages are ``η̄² = Tr I/d``."""
        out = []
        for k, setting in enumerate(grid.settings):
            plain = (self.plain[k] / self.runs / unknowns).numpy()
            mixed = (self.mixed[k] / self.runs / unknowns).numpy()
            accuracy = [round(run[k], 4) for run in self.accuracies]
            row: dict[str, Any] = asdict(setting) | {"steps": steps, "accuracy": accuracy}
            row["diverged"] = not bool(np.isfinite(plain).all())
            if not row["diverged"]:
                row["plain"] = _summary(plain)
                row["mixture"] = _summary(mixed)
                row["largest of single runs"] = [
                    _rounded(float(largest[k]) / unknowns) for largest in self.single
                ]
                if setting == SHOWN and steps == SHOWN_STEPS:
                    order = np.argsort(plain, kind="stable")
                    ends = {"lowest": order[:_EXTREMES], "highest": order[::-1][:_EXTREMES]}
                    row |= {
                        name: [[int(i), _rounded(plain[i])] for i in which]
                        for name, which in ends.items()
                    }
            out.append(row)
        return out


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
    probes: int,
    minutes: float,
    write: Callable[[dict[str, Any]], None],
    say: Callable[[str], object] = print,
    state: Path | None = None,
) -> dict[str, Any]:
    """Train every setting ``runs`` times, as far as the time allows; write after each measure.

    Where there is a file ``state``, go on from it; what is not done in time is left there.
    """
    deadline = time.monotonic() + 60 * minutes
    averages = {steps: Average(len(grid.settings), len(images.X)) for steps in grid.steps}
    unknowns = math.prod(images.X.shape[1:])
    found: dict[str, Any] = {}
    held = _held(state, averages)
    for seed in range(int(held.get("seed", 0)), runs):
        run = Run(grid, images, seed, probes)
        if held:
            run.restore(held)
            held = {}
        for steps in grid.steps:
            if averages[steps].runs > seed:
                continue
            what = f"run {seed + 1}, to step {steps}"
            for _ in tqdm(range(run.step, steps), what, disable=None, leave=False):
                if time.monotonic() > deadline:
                    break
                run.advance()
            if run.step < steps:
                say(f"the time is over after {run.step} steps of run {seed + 1}")
                _keep(state, seed, run, averages)
                return found
            averages[steps].add(run)
            rows = [
                row
                for at, average in averages.items()
                if average.runs
                for row in average.rows(grid, at, unknowns)
            ]
            found = _header(grid, images, probes) | {"rows": rows}
            write(found)
            _keep(state, seed, run, averages)
            left = deadline - time.monotonic()
            say(f"run {seed + 1}, {steps} steps; {left:.0f} s left")
    if state is not None:
        state.unlink(missing_ok=True)
    return found


def _keep(state: Path | None, seed: int, run: Run, averages: dict[int, Average]) -> None:
    """Write how far it is, whole or not at all."""
    if state is None:
        return
    found = {"seed": np.array(seed)} | run.state()
    for steps, average in averages.items():
        found |= {f"{steps} {name}": values for name, values in average.state().items()}
    half = state.with_name(f".{state.name}")
    with half.open("wb") as file:
        np.savez(file, **found)  # type: ignore[arg-type]
    half.replace(state)


def _held(state: Path | None, averages: dict[int, Average]) -> dict[str, np.ndarray]:
    """Return the state of the run that was broken off, its averages restored; or nothing."""
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


def _header(grid: Grid, images: ImageTensors, probes: int) -> dict[str, Any]:
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
        "probes": probes,
        "machine": name,
        "torch": torch.__version__.partition("+")[0],
    }


def added(held: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """Return results with those of another run added, which say where they were made."""
    if held is None:
        return found
    made = {key: found[key] for key in ("machine", "torch")}
    rows = [row | made for row in found["rows"]]
    new = {_key(row) for row in rows}
    return held | {"rows": [*(row for row in held["rows"] if _key(row) not in new), *rows]}


def _key(row: dict[str, Any]) -> tuple[Hyperparameters, int]:
    hyper = Hyperparameters(row["noise_multiplier"], row["learning_rate"], row["max_grad_norm"])
    return hyper, row["steps"]


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write results whole or not at all, a line for each row so that changes can be read."""
    rows = ",\n  ".join(json.dumps(row) for row in found["rows"])
    head = json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1)
    text = f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
    half = path.with_name(f".{path.name}.part")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Read the command line, train, and write."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.private_sgd.grid")
    parser.add_argument("data", help="mnist, mnist-as-run or cifar10")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="when to stop")
    parser.add_argument("--runs", type=int, default=1, help="runs to average over")
    parser.add_argument("--probes", type=int, default=1, help="random probes per step")
    parser.add_argument("--settings", type=int, help="only the first so many settings")
    parser.add_argument(
        "--shown", action="store_true", help="only the run of Figure 6, added to what FILE holds"
    )
    parser.add_argument("--steps", type=int, nargs="*", help="measure after these steps instead")
    chosen = parser.parse_args(arguments)
    try:
        grid = find_grid(chosen.data)
        grid = replace(grid, settings=grid.settings[: chosen.settings])
        held: dict[str, Any] | None = None
        if chosen.shown:
            grid = replace(grid, settings=(SHOWN,), steps=(SHOWN_STEPS,))
            held = json.loads(chosen.out.read_text(encoding="utf-8"))
        if chosen.steps:
            grid = replace(grid, steps=tuple(sorted(chosen.steps)))
        # Ten bits of a product are enough for leakages that are known to per cents.
        torch.set_float32_matmul_precision("high")
        images = load_images(grid).to(chosen.device)
        with torch.inference_mode():
            run_grid(
                grid,
                images,
                runs=chosen.runs,
                probes=chosen.probes,
                minutes=chosen.minutes,
                write=lambda found: write_json(chosen.out, added(held, found)),
                state=chosen.out.with_name(f"{chosen.out.name}.state.npz"),
            )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
