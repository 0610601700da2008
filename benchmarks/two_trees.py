"""The speed of two checkouts of the code, in interleaved pairs of runs on one machine.

``python benchmarks/two_trees.py OTHER`` starts one process for this checkout and one for the
checkout in the folder ``OTHER``, lets them take turns at the same work, and prints the ratio of
their times (this over the other): its median over the pairs, and the second smallest and second
largest of nine, between which the true median lies in 96 cases of 100 whatever the distribution
(binomial: 1 − 2 · (1 + 9) / 2⁹). A ratio whose interval holds 1 is no difference.

The work is that of ``glm_rows.py`` (η of every record, its exact bound), ``accountant.py`` (one
accounted step) and ``out_of_core.py`` (η of every record of Parquet files), at sizes of seconds.
``--device cuda`` takes the accountant's steps on an accelerator, in TF32, and the others not at
all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

HERE = Path(__file__).parents[1]
WIDTHS = (46, 10, 10, 8, 18)


def records(rows: int, columns: int) -> dict[str, Callable[[], object]]:
    """Return what is asked about every record of a logistic model of a table in memory."""
    import numpy as np

    import seepage as sp

    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns)) / np.sqrt(columns)
    y = (X @ rng.standard_normal(columns) + 0.3 * rng.standard_normal(rows) > 0).astype(float)
    model, noise = sp.glm.LogisticRegression(l2=1e-2).fit(X, y), sp.Gaussian(1.0)

    def bound() -> object:
        return sp.bounds.cramer_rao_rows(sp.leakage(model, X, y, noise=noise))

    name = f"{rows:,} × {columns}"
    return {
        f"η of every record, {name}": lambda: sp.leakage(model, X, y, noise=noise).rows(),
        f"exact bound of every record, {name}": bound,
    }


def files(folder: Path) -> dict[str, Callable[[], object]]:
    """Return what is asked about every record of Parquet files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import seepage as sp
    from seepage import parquet

    rng, rows = np.random.default_rng(0), 400_000
    X = rng.standard_normal((50, rows))
    y = (X.sum(axis=0) / 7 + rng.logistic(size=rows) > 0).astype(np.int8)
    names = [f"x{j}" for j in range(50)]
    path = folder / "people.parquet"
    pq.write_table(pa.table([*X, y], names=[*names, "y"]), path, row_group_size=100_000)
    data = parquet([str(path)], target="y", columns=names)
    model = sp.glm.LogisticRegression(l2=1e-3).fit(data)

    def every() -> object:
        leak = sp.leakage(model, data, noise=sp.Gaussian(1.0))
        return sum(len(part) for part in leak.rows().chunks())

    return {"η of every record, 400,000 × 50 of Parquet": every}


def steps(device: str) -> dict[str, Callable[[], object]]:
    """Return accounted steps beside a network."""
    import torch
    from torch import nn

    import seepage as sp

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    width, batch = (64, 1024) if device == "cuda" else (16, 200)
    net = nn.Sequential(
        nn.Conv2d(1, width, 5, 2),
        nn.Tanh(),
        nn.Conv2d(width, 2 * width, 3, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(64),
        nn.Tanh(),
        nn.Linear(64, 10),
    ).to(device)
    x, y = torch.randn(batch, 1, 28, 28, device=device), torch.randint(10, (batch,), device=device)
    net(x)
    settings = {"n": batch, "batch_size": batch // 2, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    accountant = sp.nn.FisherAccountant(net, "cross_entropy", **settings)
    index = torch.arange(0, batch, 2)

    def observe() -> None:
        for _ in range(4):
            accountant.observe(index, x[index], y[index])
        if device == "cuda":
            torch.cuda.synchronize()

    return {f"four steps of the accountant, {device}": observe}


def worker(device: str) -> None:
    """Make the work, print its names, and time one of it for every line that comes in."""
    with tempfile.TemporaryDirectory() as folder:
        work = {}
        if device == "cpu":
            work |= records(12_665, 784) | records(30_162, 86) | records(12_665, 20)
            work |= files(Path(folder))
        work |= steps(device)
        for task in work.values():
            task()  # nothing is made for the first time while it is timed
        print("\t".join(work), flush=True)
        for name in sys.stdin:
            task, repeats, start = work[name.rstrip("\n")], 0, time.perf_counter()
            while time.perf_counter() - start < 0.25:  # short work is repeated
                task()
                repeats += 1
            print((time.perf_counter() - start) / repeats, flush=True)


def started(tree: Path, device: str) -> subprocess.Popen[str]:
    """Start a worker that imports the code of one checkout."""
    paths = [str(tree / "src"), str(tree), os.environ.get("PYTHONPATH", "")]
    words = [sys.executable, "-W", "ignore", __file__, "--worker", "--device", device]
    return subprocess.Popen(  # noqa: S603 - this very file
        words,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def asked(process: subprocess.Popen[str], name: str) -> float:
    """Return the seconds that a worker took for one piece of work."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> int:
    """Print the ratio of the times of every piece of work; return 1 if one is surely above 1.05."""
    from measuring import show

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, nargs="?", help="the folder of the other checkout")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.device)
        return 0
    if options.other is None or not (options.other / "src" / "seepage").is_dir():
        parser.error("name the folder of another checkout, with src/seepage in it")
    pair = [started(tree.resolve(), options.device) for tree in (HERE, options.other)]
    names = [process.stdout.readline().rstrip("\n").split("\t") for process in pair]  # type: ignore[union-attr]
    show("", "this (s)", "other (s)", "ratio", "interval", widths=WIDTHS)
    slower = False
    for name in names[0]:
        times: list[tuple[float, float]] = []
        for k in range(options.pairs):
            order = pair if k % 2 == 0 else pair[::-1]  # who begins takes turns as well
            first, second = (asked(process, name) for process in order)
            times.append((first, second) if k % 2 == 0 else (second, first))
        ratios = sorted(ours / theirs for ours, theirs in times)
        low, high = ratios[min(1, len(ratios) - 1)], ratios[max(-2, -len(ratios))]
        ours, theirs = (median(column) for column in zip(*times, strict=True))
        interval = f"{low:.3f} to {high:.3f}"
        show(name, f"{ours:.4f}", f"{theirs:.4f}", f"{median(ratios):.3f}", interval, widths=WIDTHS)
        slower = slower or low > 1.05
    for process in pair:
        process.stdin.close()  # type: ignore[union-attr]
        process.wait()
    print("SLOWER" if slower else "no work is surely more than 5 % slower")
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
