"""Fit and leakage on a Dask cluster of one and of two worker processes, and in memory.

Claims, measured in this run: every number agrees with the table in memory to 1e-9; and two workers
(of one thread each) gain over one at least 0.7 times what two plain processes gain that share the
files, read and multiply, and do not communicate. How much that is depends on the machine: two cores
that are threads of one, or that others use too, gain little. The table is written to a temporary
folder as Parquet, read by the workers with ``dask.dataframe``, and the leakage of every row is
written to Parquet by the workers.

``--rows`` takes fewer or more rows; ``--small`` is a toy size, as a smoke test.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster, wait

import seepage as sp
from measuring import show
from seepage.streams.dask.source import dask_rows
from seepage.support.chunks import usable_cores

COLUMNS, PARTS, L2 = 50, 16, 1e-3
NOISE = sp.Gaussian(1e-2)
SHARE = 0.7  # of the speed-up of two plain processes; scheduling and messages take the rest
WIDTHS = (44, 12, 12, 10)
MEASURES = ("fil", "dfil")


def write(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Write made-up people in equal files, and return them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, COLUMNS))
    y = X @ rng.standard_normal(COLUMNS) / np.sqrt(COLUMNS) + rng.logistic(size=rows) > 0
    each = -(-rows // PARTS)
    for k in range(PARTS):
        some = slice(k * each, (k + 1) * each)
        columns = {f"x{j}": X[some, j] for j in range(COLUMNS)} | {"y": y[some]}
        pq.write_table(pa.table(columns), folder / f"part-{k:02d}.parquet")
    return X, y


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def on_workers(folder: Path, count: int) -> tuple[dict[str, float], np.ndarray, pa.Table]:
    """Return the seconds of every part, the coefficients and the workers' results."""
    with (
        LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(lambda: __import__("seepage.glm.leakage").__name__)  # imports are not timed
        data = dask_rows(dd.read_parquet(folder), "y")
        model = sp.glm.LogisticRegression(l2=L2)
        times = {"logistic fit": timed(lambda: model.fit(data))}
        found: list[Any] = []
        times["the model checked, its Hessian"] = timed(
            lambda: found.append(sp.leakage(model, data, noise=NOISE))
        )
        leak = found[0]
        times["η of every row, kept by the workers"] = timed(
            lambda: wait(leak.rows().to_dask().persist())
        )
        times["η and dFIL of every row, written"] = timed(
            lambda: leak.write_rows(folder.parent / f"rows-{count}", measures=MEASURES)
        )
        times["η of the columns"] = timed(leak.columns)
        return times, model.coef_, pq.read_table(folder.parent / f"rows-{count}")


def read_and_multiply(paths: list[Path]) -> float:
    """Read files and form the Gram matrix of each: work that needs no coordination."""
    total = 0.0
    for path in paths:
        table = pq.read_table(path, columns=[f"x{j}" for j in range(COLUMNS)], use_threads=False)
        X = np.stack([column.to_numpy() for column in table.columns], axis=1)
        for _ in range(5):  # as many as a fit has steps
            total += float((X.T @ X)[0, 0])
    return total


def plain_speed_up(folder: Path) -> float:
    """Return how much faster two processes get through the files than one."""
    paths = sorted(folder.iterdir())
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(read_and_multiply, [paths[:1], paths[:1]]))  # starts both
        one = timed(lambda: list(pool.map(read_and_multiply, [paths])))
        two = timed(lambda: list(pool.map(read_and_multiply, [paths[::2], paths[1::2]])))
    return one / two


def in_memory(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the coefficients and the measures of every row, from the table in memory."""
    model = sp.glm.LogisticRegression(l2=L2).fit(X, y)
    leak = sp.leakage(model, X, y, noise=NOISE)
    return model.coef_, {name: np.asarray(leak.rows(measure=name)) for name in MEASURES}


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest relative difference."""
    return float(np.max(np.abs(found - expected) / np.abs(expected)))


def main() -> int:
    """Measure, print, and compare with the claims."""
    parser = argparse.ArgumentParser(description="Leakage on one and on two Dask workers.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--small", action="store_true", help="20,000 rows")
    options = parser.parse_args()
    rows = 20_000 if options.small else options.rows
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "people"
        data.mkdir()
        X, y = write(data, rows)
        plain = plain_speed_up(data)
        runs = {count: on_workers(data, count) for count in (1, 2)}
        plain = max(plain, plain_speed_up(data))
    print(
        f"{rows:,} rows × {COLUMNS} columns in {PARTS} Parquet files; {usable_cores()} cores, load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    show("", "one worker", "two workers", "speed-up", widths=WIDTHS)
    for name, one in runs[1][0].items():
        two = runs[2][0][name]
        show(name, f"{one:.2f} s", f"{two:.2f} s", f"{one / two:.2f}", widths=WIDTHS)
    totals = {count: sum(times.values()) for count, (times, _, _) in runs.items()}
    speed_up = totals[1] / totals[2]
    show("all", f"{totals[1]:.2f} s", f"{totals[2]:.2f} s", f"{speed_up:.2f}", widths=WIDTHS)
    coef, measures = in_memory(X, y)
    difference = max(
        max(apart(found, coef), *(apart(table[m].to_numpy(), measures[m]) for m in MEASURES))
        for _, found, table in runs.values()
    )
    print(f"\ntwo plain processes: {plain:.2f} times as fast as one")
    print(f"largest difference from memory: {difference:.1e}")
    claims = {
        "the same numbers as in memory, to 1e-9": difference <= 1e-9,
        f"two workers {speed_up:.2f} times as fast as one (claimed {SHARE * plain:.2f})": (
            options.small or speed_up >= SHARE * plain
        ),
    }
    for claim, met in claims.items():
        print(f"{claim}: {'holds' if met else 'FAILS'}")
    return 0 if all(claims.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
