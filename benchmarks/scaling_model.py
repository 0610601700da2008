"""The cost model behind docs/scaling.md: fitted at three sizes, checked at a fourth, then used.

GLM: every pass over rows costs, per row and on one core, ``read·d + linear·d + square·d²`` seconds
for ``d`` columns. Reading is measured separately, and the other two constants of each pass are
fitted to three sizes. Traffic in a cluster is counted in the bytes of the sums themselves. Neural
networks: a step of the accountant costs ``fixed + slope·(parameters × batch)`` seconds, fitted in
the same way. For an accelerator, the figures of ``accountant.py --device cuda`` in ``results/`` are
interpolated.

Claim: each prediction for the held-out size is within a factor of 1.5 of its measurement.
``--small`` takes toy sizes as a smoke test. All work is pinned to one core, and its CPU time
counts; files come from the page cache. What was measured is kept in ``results/scaling_model.json``,
and ``--kept`` prints the page's figures from it without measuring.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

import seepage.nn as snn
from keeping import keep
from measuring import show
from scaling_passes import NAMES, Passes, PassModel, fit_passes, measure_passes, seconds
from seepage.streams.dask.tasks import FAN_IN

RESULTS = Path(__file__).parent / "results"
KEPT = RESULTS / "scaling_model.json"
CLOSE = 1.5
WIDTHS = (46, 12, 12, 12, 12)


def measure_step(width: int, batch: int, repeats: int) -> tuple[int, float, float]:
    """Return the parameters of a network, and the seconds of an accounted and of a plain step."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(784, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)
    )
    x, y = torch.randn(batch, 784), torch.randint(10, (batch,))
    accountant = snn.FisherAccountant(
        net, "cross_entropy", n=batch, sample_rate=1.0, noise_multiplier=1.0, sampler="other"
    )

    def plain() -> None:
        nn.functional.cross_entropy(net(x), y).backward()

    accountant.observe(range(batch), x, y, update=True)  # the first batch is inspected
    taken = seconds(lambda: accountant.observe(range(batch), x, y, update=True), repeats)
    count = sum(p.numel() for p in net.parameters())
    return count, taken, seconds(plain, repeats)


def told(name: str, size: str, predicted: float, measured: float, good: list[bool]) -> None:
    """Print a prediction beside its measurement."""
    ratio = predicted / measured
    good.append(1 / CLOSE <= ratio <= CLOSE)
    show(name, size, f"{predicted:.4g} s", f"{measured:.4g} s", f"{ratio:.2f}", widths=WIDTHS)


def measure(small: bool, repeats: int) -> dict[str, Any]:
    """Measure four sizes of tables and of networks, the last of each to be held out."""
    rows, columns = (5_000, (10, 30, 60, 90)) if small else (30_000, (50, 150, 450, 800))
    batch, widths = (16, (32, 64, 96, 128)) if small else (64, (256, 512, 1024, 2048))
    accountant = snn.FisherAccountant(
        nn.Linear(2, 2), "cross_entropy", n=1000, sample_rate=1.0, noise_multiplier=1.0
    )
    held = sum(
        t.numel() * t.element_size()
        for name, t in accountant.state_dict().items()
        if name != "facts"
    )
    return {
        "passes": [asdict(measure_passes(rows, d, repeats)) for d in columns],
        "batch": batch,
        "steps": [measure_step(width, batch, repeats) for width in widths],
        "bytes for every record": held / 1000,
    }


def glm(figures: dict[str, Any], good: list[bool]) -> PassModel:
    """Fit and check the model of the passes."""
    *measured, check = (Passes(**one) for one in figures["passes"])
    model = fit_passes(measured)
    print("Passes over a table, one core; fitted to")
    show("", *(f"d = {m.columns}" for m in measured), "", widths=WIDTHS)
    for name in NAMES:
        show(
            f"{name}, ns per row",
            *(f"{1e9 * m.times[name] / m.rows:.0f}" for m in measured),
            "",
            widths=WIDTHS,
        )
    print()
    show("constants of one core", "ns per cell", "ps per cell·d", "", "", widths=WIDTHS)
    show("reading (8 bytes a cell)", f"{1e9 * model.read:.2f}", "", "", "", widths=WIDTHS)
    for name in NAMES[1:]:
        linear, square = 1e9 * model.linear[name], 1e12 * model.square[name]
        show(name, f"{linear:.2f}", f"{square:.1f}", "", "", widths=WIDTHS)
    print()
    show("held out", "size", "predicted", "measured", "ratio", widths=WIDTHS)
    for name in NAMES:
        predicted = check.rows * model.per_row(name, check.columns)
        told(name, f"d = {check.columns}", predicted, check.times[name], good)
    numbers = check.columns * (check.columns + 1)
    print(f"\nsums of one chunk: {check.sums:,} bytes, 8 (d² + d) = {8 * numbers:,}")
    return model


def ask_cluster(model: PassModel) -> None:
    """Print the cost of a billion rows of a thousand columns on sixty-four workers."""
    rows, columns, workers, block, newton = 10**9, 1000, 64, 100_000, 8
    sums = 8 * columns * (columns + 1)
    parts = rows // block
    sent = parts * sums * FAN_IN / (FAN_IN - 1)
    print(f"\n{rows:,} rows × {columns:,} columns, {workers} workers of one core like this one,")
    print(f"partitions of {block:,} rows ({8 * block * columns / 1e9:.1f} GB each):")
    wide = (46, 16, 16)
    show("", "a pass", "per worker", widths=wide)
    show(
        "bytes read",
        f"{8e-12 * rows * columns:.1f} TB",
        f"{8e-9 * rows * columns / workers:.0f} GB",
        widths=wide,
    )
    show(
        "operations of a product",
        f"{2e-15 * rows * columns**2:.1f} Pflop",
        f"{2e-12 * rows * columns**2 / workers:.1f} Tflop",
        widths=wide,
    )
    show(
        "bytes of sums sent, at most",
        f"{sent / 1e9:.0f} GB",
        f"{sent / workers / 1e9:.2f} GB",
        widths=wide,
    )
    show("the same per row and column", f"{sent / rows / columns:.3f} B", "", widths=wide)
    show("bytes that reach the client", f"{sums / 1e6:.0f} MB", "", widths=wide)
    for name in NAMES:
        taken = rows / workers * model.per_row(name, columns)
        show(name, f"{taken / 60:.0f} minutes", "", widths=wide)
    step, row = (rows / workers * model.per_row(name, columns) for name in NAMES[1:3])
    total = (newton + 1) * step + row
    print(
        f"a fit of {newton} Newton steps, the Hessian at its end, and η of every row, written: "
        f"{total / 3600:.1f} hours"
    )


def networks(figures: dict[str, Any], good: list[bool]) -> None:
    """Fit and check the model of a step of the accountant."""
    batch = figures["batch"]
    *found, (count, accounted, plain) = figures["steps"]
    size = np.asarray([fitted * batch for fitted, _, _ in found], dtype=float)
    print(
        "\nA step of the accountant (two probes, exact clipping, the update), one core, batch "
        f"{batch}"
    )
    show("parameters", *(f"{fitted:,}" for fitted, _, _ in found), "", widths=WIDTHS)
    models = {}
    for k, name in ((1, "accounted step"), (2, "plain step")):
        times = np.asarray([entry[k] for entry in found])
        show(f"{name}, ms", *(f"{1e3 * t:.1f}" for t in times), "", widths=WIDTHS)
        terms = np.stack([np.ones_like(size), size], axis=1) / times[:, None]
        models[name] = nnls(terms, np.ones(len(times)))[0]
    print()
    show("held out", "parameters", "predicted", "measured", "ratio", widths=WIDTHS)
    for name, taken in (("accounted step", accounted), ("plain step", plain)):
        fixed, slope = models[name]
        told(name, f"{count:,}", fixed + slope * count * batch, taken, good)
    print(f"\nthere an accounted step costs {accounted / plain:.1f} plain steps on this core")
    held = figures["bytes for every record"]
    print(f"kept for every record, and sent once at the end: {held:.0f} bytes")


def ask_accelerator() -> None:
    """Print what the figures of an accelerator imply for a network of a billion parameters."""
    path = RESULTS / "accountant-cuda.json"
    figures = json.loads(path.read_text(encoding="utf-8"))
    wanted, length = 1e9, 256
    batches = {"124M": 16, "1.3B": 8}
    if not set(batches) <= set(figures):
        print(
            f"\n{path.name} has no figures of the two transformers: run accountant.py there again"
        )
        return
    task = "update + 1 probe, exact clipping"
    print(
        f"\nA network of {wanted:.0e} parameters of GPT-2's shape on {figures['machine']['device']}"
    )
    show("", "parameters", "seconds", "GiB", "plain steps", widths=WIDTHS)
    points = []
    for name, batch in batches.items():
        entry = figures[name]
        plain, taken = entry["times"]["plain training step"], entry["times"][task]
        tokens = batch * length
        points.append((entry["parameters"], taken["seconds"] / tokens))
        show(
            f"measured, {tokens:,} tokens a step",
            f"{entry['parameters']:,}",
            f"{taken['seconds']:.3f}",
            f"{taken['gib']:.1f}",
            f"{taken['seconds'] / plain['seconds']:.2f}",
            widths=WIDTHS,
        )
    (few, low), (many, high) = points
    share = (math.log(wanted) - math.log(few)) / (math.log(many) - math.log(few))
    per_token = math.exp((1 - share) * math.log(low) + share * math.log(high))
    show(
        "between the two, 2,048 tokens a step",
        f"{wanted:,.0f}",
        f"{2048 * per_token:.3f}",
        "",
        "",
        widths=WIDTHS,
    )
    print(
        f"{1e6 * per_token:.0f} µs a token: a run of a billion tokens on one accelerator in "
        f"{1e9 * per_token / 3600:.0f} hours;\n"
        f"several share it, and each sends and receives {8 * wanted / 1e9:.0f} GB of gradients a "
        "step at most, and no record."
    )


def main() -> int:
    """Measure, keep, fit, check at the fourth size, and predict."""
    parser = argparse.ArgumentParser(description="The cost model of docs/scaling.md.")
    parser.add_argument("--small", action="store_true", help="toy sizes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kept", action="store_true", help="print what is kept, measure nothing")
    options = parser.parse_args()
    if options.kept:
        figures = json.loads(KEPT.read_text(encoding="utf-8"))
    else:
        torch.set_num_threads(1)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        figures = measure(options.small, options.repeats)
    good: list[bool] = []
    ask_cluster(glm(figures, good))
    networks(figures, good)
    ask_accelerator()
    met = all(good)
    print(
        f"\npredictions of the held-out sizes within a factor of {CLOSE}: "
        f"{'holds' if met else 'FAILS'}"
    )
    if not (options.kept or options.small):
        keep(figures, KEPT)
    return 0 if met or options.small else 1


if __name__ == "__main__":
    sys.exit(main())
