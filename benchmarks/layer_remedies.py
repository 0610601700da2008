"""What remedies for single layers do to an attack, and their cost: glasses on LFW (paper 003).

``python benchmarks/layer_remedies.py`` trains AlexNet of paper 003 to tell the gender of LFW's
faces (halved to 31×23 pixels), by FedSGD with two clients, once without a remedy and once under
each: noise on the full layers with the norm of their updates, the full layers frozen, sent every 5
rounds, changed only by rank 4; and as controls the first convolution frozen, and noise on every
layer, with the norm of the updates and ten times that. The property is wearing glasses. People are
split afresh for every repetition: 40 % are the adversary's, 40 % the client's, 20 % for testing.
Numbers are means over the repetitions with Student's 95 % intervals, followed by differences from
the run without a remedy, paired by repetition. ``--small`` is a smoke test.

Runs are kept in ``benchmarks/results/layer_remedies.json``, each with the command, the commit and
the machine that made it; the first ones did not record these, and say what is known. The file is
written after every run and extended later: a repetition runs only the remedies that it still lacks,
and what it has is kept. On one core a repetition takes about 13 minutes, the last remedy alone more
than two; 14 at once on an accelerator (``--device cuda --workers 14``) five.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import seepage as sp
from keeping import made_here
from reproduction.layers.image_sets import LabelledImages
from reproduction.layers.measuring import started
from reproduction.layers.networks import alexnet
from seepage.attacks.remedies_compared import QUANTITIES
from seepage.layers.measures.per_layer import Span, mean_interval

SIZE = (31, 23)
FULL = ("fc1", "fc2")
EVERY = ("conv1", "conv2", "conv3", "fc1", "fc2")
TASK, PROPERTY = "Gender", "Glasses"
AMOUNTS = {
    "rounds": 800,
    "lr": 0.05,
    "batch_size": 32,
    "snapshots": 5,
    "known": 30,
    "seen": 30,
    "measured": 100,
}
SMALL = {"rounds": 4, "snapshots": 2, "known": 5, "seen": 5, "measured": 10}
# Noise with the norm of these layers' median update in a run without remedies (0.79 and 1.56), over
# the root of their sizes (99,074 and 122,658).
NOISE = {FULL: 0.0025, EVERY: 0.0045}


def remedies() -> list[sp.layers.UpdateRemedy]:
    """Return the remedies."""
    made = sp.layers.UpdateRemedy
    return [
        made.noise(FULL, NOISE[FULL]),
        made.freeze(FULL),
        made.rarely(FULL, 5),
        made.low_rank(FULL, 4),
        made.freeze("conv1"),
        made.noise(EVERY, NOISE[EVERY]),
        made.noise(EVERY, 10 * NOISE[EVERY]),
    ]


def halved(data: LabelledImages, rows: np.ndarray) -> Tensor:
    """Return some faces at half their size, channels first, from −1 to 1."""
    images = functional.avg_pool2d(data.inputs(rows), 2)
    return images.to(memory_format=torch.channels_last)


def repetition(
    data: LabelledImages, number: int, amounts: dict[str, Any], tried: list[sp.layers.UpdateRemedy]
) -> sp.attacks.RemedyComparison:
    """Split the people, and compare the remedies."""
    known = ~np.isnan(data.labels[TASK]) & ~np.isnan(data.labels[PROPERTY])
    draw = np.random.default_rng(number)
    place = draw.permutation(data.people.max() + 1) / (data.people.max() + 1)
    place = place[data.people]
    parts = [
        np.flatnonzero(known & (place >= low) & (place < high))
        for low, high in ((0.0, 0.4), (0.4, 0.8), (0.8, 1.0))
    ]
    sides = [
        (halved(data, rows), data.labels[TASK][rows].astype(int), data.labels[PROPERTY][rows])
        for rows in parts
    ]
    torch.manual_seed(number)
    net = started(alexnet(size=SIZE)).to(data.images.device)
    return sp.attacks.compare_remedies(
        net,
        "cross_entropy",
        sides[0],
        sides[1],
        sides[2][:2],
        layers=FULL,
        remedies=tried,
        people=(data.people[parts[0]], data.people[parts[1]]),
        seed=number,
        **amounts,
    )


_data: LabelledImages | None = None  # of a worker, read once


def _prepare(device: str) -> None:
    global _data
    torch.set_num_threads(1)
    _data = LabelledImages.load("lfw", None, device)


def _work(number: int, tried: list[str], amounts: dict[str, Any]) -> dict[str, Any]:
    """Return a run of some remedies, as plain numbers."""
    assert _data is not None  # set by the initialiser
    begin = time.monotonic()
    chosen = [remedy for remedy in remedies() if remedy.name in tried]
    found = written(repetition(_data, number, amounts, chosen))
    return {"repetition": number, "seconds": round(time.monotonic() - begin)} | found


def missing(runs: list[dict[str, Any]], repetitions: int) -> dict[int, list[str]]:
    """Return the remedies that each repetition still lacks."""
    numbers = sorted({*range(repetitions), *(run["repetition"] for run in runs)})
    lacking = {
        number: [one.name for one in remedies() if one.name not in known_outcomes(runs, number)]
        for number in numbers
    }
    return {number: names for number, names in lacking.items() if names}


def known_outcomes(runs: list[dict[str, Any]], number: int) -> set[str]:
    """Return the names of a repetition's outcomes."""
    own = [run for run in runs if run["repetition"] == number]
    return {one["name"] for run in own for one in run["outcomes"]}


def _write(record: dict[str, Any], path: Path) -> None:
    """Write the file, one run per line."""
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in record["runs"])
    head = json.dumps({"amounts": record["amounts"]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")


def written(found: sp.attacks.RemedyComparison) -> dict[str, Any]:
    """Return a comparison as plain numbers."""
    return {
        "protect": list(found.protect),
        "outcomes": [
            {"name": one.name, "sent": one.sent}
            | {q: [round(float(v), 5) for v in getattr(one, q)] for q in QUANTITIES}
            for one in found.outcomes
        ],
    }


def read(run: dict[str, Any]) -> sp.attacks.RemedyComparison:
    """Return plain numbers as a comparison."""
    outcomes = [
        sp.attacks.RemedyOutcome(
            one["name"], *(Span(*one[quantity]) for quantity in QUANTITIES), one["sent"]
        )
        for one in run["outcomes"]
    ]
    return sp.attacks.RemedyComparison(tuple(outcomes), tuple(run["protect"]))


def by_repetition(runs: list[dict[str, Any]]) -> list[sp.attacks.RemedyComparison]:
    """Return one comparison per repetition, with all its runs joined."""
    found: dict[int, sp.attacks.RemedyComparison] = {}
    for run in runs:
        one, before = read(run), found.get(run["repetition"])
        if before is not None:
            one = replace(before, outcomes=before.outcomes + one.outcomes)
        found[run["repetition"]] = one
    return list(found.values())


def differences(runs: list[sp.attacks.RemedyComparison]) -> None:
    """Print each remedy's difference from the run without one, paired by repetition."""
    print("\nDifferences from the update as it is, paired:")
    names = [remedy.name for remedy in remedies()]
    width = max(map(len, names))
    for name in names:
        pairs = [(one, run.outcomes[0]) for run in runs for one in run.outcomes if one.name == name]
        if len(pairs) < 2:
            continue
        cells = []
        for quantity in QUANTITIES:
            gaps = [
                getattr(one, quantity).value - getattr(none, quantity).value for one, none in pairs
            ]
            mean, low, high = (float(part) for part in mean_interval(np.array(gaps)))
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        print(f"{name:<{width}}  " + "  ".join(f"{cell:<27}" for cell in cells))


def main() -> int:
    """Run the repetitions that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="next to nothing, to see it run")
    parser.add_argument("--kept", action="store_true", help="print what is kept, and run nothing")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="repetitions at a time")
    parser.add_argument("--figure", type=Path, help="where to draw the figure")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    amounts = AMOUNTS | SMALL if options.small else AMOUNTS
    kind = "-small" if options.small else ""
    path = options.out or Path(__file__).parent / "results" / f"layer_remedies{kind}.json"
    record: dict[str, Any] = {"amounts": amounts, "runs": []}
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["amounts"] != amounts:
            sys.exit(f"{path} was made with other amounts; name another file.")
    repetitions = 1 if options.small else options.repetitions
    wanted = {} if options.kept else missing(record["runs"], repetitions)
    if wanted:
        made = made_here(options.device)
        with ProcessPoolExecutor(
            options.workers, get_context("spawn"), initializer=_prepare, initargs=(options.device,)
        ) as workers:
            jobs = [workers.submit(_work, *one, amounts) for one in wanted.items()]
            for job in as_completed(jobs):
                run = {"made": made} | job.result()
                known = known_outcomes(record["runs"], run["repetition"])
                run["outcomes"] = [one for one in run["outcomes"] if one["name"] not in known]
                record["runs"].append(run)
                _write(record, path)
                print(f"repetition {run['repetition']} done", flush=True)
    runs = by_repetition(record["runs"])
    mean = sp.attacks.RemedyComparison.averaged(runs)
    print(f"LFW, {PROPERTY.lower()}, main task {TASK.lower()}, AlexNet at 31×23")
    print(mean)
    if len(runs) > 1:
        differences(runs)
    if options.figure:
        mean.plot()[0].figure.savefig(options.figure, dpi=130)
        print(f"drawn to {options.figure}")
    print(f"\nkept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
