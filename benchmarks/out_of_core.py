"""Leakage of 20,000,000 rows × 50 columns of Parquet, against reading them and one matrix product.

Claims, each measured in this run:

- η of every row within 4 times, dFIL and the exact Cramér–Rao bound of every row within 2 times the
  time of reading the columns and one product with a 50 × 50 matrix per chunk (by the same reader,
  on the same cores);
- peak memory of the whole process (imports, the fit, rows, groups, the results written to Parquet)
  under 1.5 GB;
- the time of η grows with the rows, from a twentieth of them to all, by an exponent of at most 1.1;
- a fit takes at most 4 readings of the table, of 10,000,000 rows × 50 columns: every cell read from
  the files counts, also those of the labels' classes, of the excerpt from which the fit starts, and
  those that are skipped on the way to it; the same fit from zero is beside it, with peak memory;
- the same answers as in memory to 1e-9, on the first 100,000 rows (for the exact bounds, those up
  to a million times their median: beyond that, a residual that cancels leaves few digits).

The columns have unit variance, as in an audit. If they were far smaller, a record's information
would have no dominant direction, and η would take more steps and time.

The data are written to a temporary folder (8 GB of disk for all rows), in files of a twentieth of
the rows and row groups of 100,000, and removed afterwards. ``--rows`` takes fewer; ``--small`` runs
at a toy size as a smoke test, where the ratios mean little; ``--readings`` counts the readings of
10,000,000 rows and nothing else; ``--kept`` prints what was kept in ``results/out-of-core.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seepage as sp
from measuring import show
from seepage import parquet
from seepage.streams import ParquetRows
from seepage.streams.disk.files import ParquetFiles
from seepage.support.chunks import usable_cores
from seepage.tables.columns import Piece

COLUMNS = 50
FILES = 20
ROW_GROUP = 100_000
GROUPS = 8
SHARES = (1, 2, 5, 10, 20)  # of the files, for the growth
WIDTHS = (52, 10, 9, 11)
RESULTS = Path(__file__).parent / "results"


def write(folder: Path, rows: int, columns: int) -> list[str]:
    """Write made-up people in equal files and return their paths."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(columns) / np.sqrt(columns)
    names = [f"x{j}" for j in range(columns)]
    fields = [pa.field(name, pa.float64()) for name in names]
    schema = pa.schema([*fields, pa.field("y", pa.int8()), pa.field("region", pa.int8())])
    paths = []
    each = rows // FILES
    for k in range(FILES):
        paths.append(str(folder / f"part-{k:02d}.parquet"))
        with pq.ParquetWriter(paths[-1], schema, use_dictionary=["region"]) as file:
            for start in range(0, each, ROW_GROUP):
                m = min(ROW_GROUP, each - start)
                X = rng.standard_normal((columns, m))
                y = (weights @ X + 0.5 * rng.logistic(size=m) > 0).astype(np.int8)
                region = rng.integers(0, GROUPS, m).astype(np.int8)
                file.write_table(pa.table([*X, y, region], schema=schema))
    return paths


def opened(paths: list[str], columns: int) -> ParquetRows:
    """Open some of the files."""
    return parquet(paths, target="y", columns=[f"x{j}" for j in range(columns)])


def exhaust(items: Iterable[object]) -> None:
    """Consume all chunks and keep none."""
    for _ in items:
        pass


def timed(work: Callable[[], object], repeats: int = 1) -> tuple[float, float]:
    """Return the least seconds of several runs, and the number of busy cores in that run."""
    best = (float("inf"), 0.0)
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        work()
        taken = time.perf_counter() - start
        best = min(best, (taken, (time.process_time() - cpu) / taken))
    return best


def read_and_multiply(data: ParquetRows, matrix: np.ndarray) -> None:
    """Read every chunk and multiply it: the baseline of each pass."""
    exhaust(data.each(lambda chunk: (chunk.X @ matrix).shape, "product"))


def peak_gigabytes() -> float:
    """Return the peak memory of this process so far."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def counted_readings(data: ParquetRows, work: Callable[[], object]) -> float:
    """Return the cells that some work reads from the files, divided by those of the table."""
    read_groups, cells = ParquetFiles.read_groups, 0

    def counting(
        files: ParquetFiles, k: int, columns: tuple[str, ...], size: int
    ) -> Iterator[Piece]:
        nonlocal cells
        for piece in read_groups(files, k, columns, size):
            cells += piece.batch.num_rows * len(columns)
            yield piece

    with patch.object(ParquetFiles, "read_groups", counting):
        work()
    return cells / (len(data) * len(data.coding.columns))


def readings(folder: Path, rows: int, columns: int) -> dict[str, Any]:
    """Count the readings of a fit from zero and of one from an excerpt, with peak memory."""
    data = opened(write(folder, rows, columns), columns)
    found: dict[str, Any] = {"rows": rows, "columns": columns}
    starts = {"zero": patch.object(ParquetRows, "excerpt", return_value=[]), "excerpt": None}
    for name, change in starts.items():
        model = sp.glm.LogisticRegression(l2=1e-3)
        with change or nullcontext():
            found[f"readings from {name}"] = counted_readings(data, lambda m=model: m.fit(data))  # type: ignore[misc]
        found[f"steps from {name}"] = model.n_iter_
        found[f"peak from {name}"] = peak_gigabytes()
    return found


def difference(paths: list[str], columns: int, rows: int) -> float:
    """Return the largest relative difference from the answers in memory, on the first rows."""
    table = pq.ParquetFile(paths[0]).read().slice(0, rows)
    with tempfile.TemporaryDirectory() as folder:
        some = f"{folder}/some.parquet"
        pq.write_table(table, some, row_group_size=7_000)
        data = opened([some], columns)
        model = sp.glm.LogisticRegression(l2=1e-3).fit(data)
        leak = sp.leakage(model, data, noise=sp.Gaussian(1.0))
        ours = [
            leak.rows(),
            leak.rows(measure="dfil"),
            sp.bounds.cramer_rao_rows(leak),
            leak.columns(),
        ]
        ours = [np.asarray(found) for found in [*ours, leak.groups("region"), leak.dataset()]]
    X = np.stack([table.column(f"x{j}").to_numpy() for j in range(columns)], axis=1)
    y, region = table.column("y").to_numpy(), table.column("region").to_numpy()
    model = sp.glm.LogisticRegression(l2=1e-3).fit(X, y)
    whole = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    theirs = [whole.rows(), whole.rows(measure="dfil"), sp.bounds.cramer_rao_rows(whole)]
    theirs += [whole.columns(), whole.groups(region), whole.dataset()]
    truth = [np.asarray(found) for found in theirs]
    sure = truth[2] <= 1e6 * np.median(truth[2])
    ours[2], truth[2] = ours[2][sure], truth[2][sure]
    pairs = zip(ours, truth, strict=True)
    return max(float(np.max(np.abs(a - b) / np.abs(b))) for a, b in pairs)


def measure(folder: Path, rows: int, columns: int, repeats: int) -> dict[str, float]:
    """Time every pass, print a table and return the figures."""
    start = time.perf_counter()
    paths = write(folder, rows, columns)
    size = sum(Path(path).stat().st_size for path in paths) / 1e9
    print(
        f"{rows:,} rows × {columns} columns, {size:.2f} GB, {usable_cores()} cores; written in "
        f"{time.perf_counter() - start:.0f} s\n"
    )
    data = opened(paths, columns)
    show("", "seconds", "ratio", "cores busy", widths=WIDTHS)
    figures: dict[str, float] = {"rows": rows, "columns": columns}
    matrix = np.random.default_rng(1).standard_normal((columns, columns))
    os.sync()  # pending writes would slow down the baseline, and only that
    read_and_multiply(data, matrix)
    product, busy = timed(lambda: read_and_multiply(data, matrix), repeats)
    figures["product"] = product
    show("reading and one product per chunk", f"{product:.2f}", "1.0", f"{busy:.2f}", widths=WIDTHS)

    def told(name: str, work: Callable[[], object], times: int = 1) -> float:
        taken, busy = timed(work, times)
        figures[name], figures[f"{name}, cores"] = taken, busy
        show_pass(name, taken, product, busy)
        return taken

    model = sp.glm.LogisticRegression(l2=1e-3)
    told("logistic fit", lambda: model.fit(data))
    figures["steps"] = model.n_iter_
    noise = sp.Gaussian(1e-3)
    told("the model checked, its Hessian", lambda: sp.leakage(model, data, noise=noise))
    leak = sp.leakage(model, data, noise=noise)
    told("η of every row", lambda: exhaust(leak.rows().chunks()), repeats)
    told("dFIL of every row", lambda: exhaust(leak.rows(measure="dfil").chunks()), repeats)
    exact = "exact Cramér–Rao bound of every row"
    told(exact, lambda: exhaust(sp.bounds.cramer_rao_rows(leak).chunks()), repeats)
    told("η of the groups", lambda: leak.groups("region"))
    told("η of the columns", leak.columns)
    told("η of the data set", leak.dataset)
    out = folder.parent / f"{folder.name}-rows.parquet"
    try:
        told("all three of every row, written to Parquet", lambda: leak.write_rows(out))
    finally:
        out.unlink(missing_ok=True)
    figures["peak"] = peak_gigabytes()
    figures["exponent"] = growth(paths, columns, model, noise)
    figures["difference"] = difference(paths, columns, min(100_000, rows // FILES))
    return figures


def growth(paths: list[str], columns: int, model: object, noise: sp.Noise) -> float:
    """Print how the time of η grows with the rows, and return the fitted exponent."""
    print()
    show("rows", "seconds", "ns a cell", "", widths=WIDTHS)
    sizes, times = [], []
    for share in SHARES:
        data = opened(paths[: share * FILES // SHARES[-1]], columns)
        refitted = sp.glm.LogisticRegression(l2=1e-3).fit(data)
        leak = sp.leakage(refitted, data, noise=noise)
        taken, _ = timed(lambda leak=leak: exhaust(leak.rows().chunks()))  # type: ignore[misc]
        sizes.append(len(data))
        times.append(taken)
        cell = 1e9 * taken / (len(data) * columns)
        show(f"{len(data):,}", f"{taken:.2f}", f"{cell:.1f}", "", widths=WIDTHS)
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def main() -> int:
    """Measure, print, and compare with the claims."""
    parser = argparse.ArgumentParser(description="Leakage of Parquet data larger than memory.")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each timed pass")
    parser.add_argument("--readings", action="store_true", help="count readings of 10,000,000 rows")
    parser.add_argument("--small", action="store_true", help="100,000 rows × 20 columns")
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary one)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kept", action="store_true", help="print what is kept, measure nothing")
    options = parser.parse_args()
    if options.kept:
        figures = json.loads((RESULTS / "out-of-core.json").read_text(encoding="utf-8"))
        show_kept(figures)
        return 0 if judge(figures) else 1
    rows, columns = (100_000, 20) if options.small else (options.rows, COLUMNS)
    name = "out-of-core-small.json" if options.small else "out-of-core.json"
    figures: dict[str, Any] = {"machine": platform.machine(), "cores": usable_cores()}
    if options.readings:
        figures = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        counted = (rows, columns) if options.small else (min(rows, 10_000_000), columns)
        figures["fit"] = readings(Path(folder), *counted)
    show_readings(figures["fit"])
    if not options.readings:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            figures |= measure(Path(folder), max(rows, 20 * FILES), columns, options.repeats)
    good = judge(figures)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / name).write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if good else 1


def show_readings(fit: dict[str, Any]) -> None:
    """Print how often a fit reads the table, from either start."""
    for start in ("zero", "excerpt"):
        print(
            f"a fit of {fit['rows']:,} rows × {fit['columns']} columns from {start}: "
            f"{fit[f'readings from {start}']:.2f} readings, {fit[f'steps from {start}']} steps, "
            f"peak memory {fit[f'peak from {start}']:.2f} GB"
        )


def show_kept(figures: dict[str, Any]) -> None:
    """Print every pass again."""
    print(f"{figures['rows']:,} rows × {figures['columns']} columns, {figures['cores']} cores\n")
    show("", "seconds", "ratio", "cores busy", widths=WIDTHS)
    product = figures["product"]
    show("reading and one product per chunk", f"{product:.2f}", "1.0", "", widths=WIDTHS)
    for name in figures:
        if f"{name}, cores" in figures:
            show_pass(name, figures[name], product, figures[f"{name}, cores"])
    print()
    show_readings(figures["fit"])


def show_pass(name: str, taken: float, product: float, busy: float) -> None:
    """Print one pass beside the product."""
    show(name, f"{taken:.2f}", f"{taken / product:.1f}", f"{busy:.2f}", widths=WIDTHS)


def judge(figures: dict[str, Any]) -> bool:
    """Print the claims, and say whether all hold."""
    product = figures["product"]
    claims = {
        "η of every row, times the product": (figures["η of every row"] / product, 4.0),
        "dFIL of every row, times the product": (figures["dFIL of every row"] / product, 2.0),
        "exact Cramér–Rao of every row, times the product": (
            figures["exact Cramér–Rao bound of every row"] / product,
            2.0,
        ),
        "peak memory, GB": (figures["peak"], 1.5),
        "readings of the table by a fit": (figures["fit"]["readings from excerpt"], 4.0),
        "exponent of the growth in rows": (figures["exponent"], 1.1),
        "largest difference from the answers in memory": (figures["difference"], 1e-9),
    }
    print()
    good = True
    for claim, (value, limit) in claims.items():
        holds = value <= limit
        good &= holds
        print(f"{claim}: {value:.3g} (claimed {limit:g}): {'holds' if holds else 'FAILS'}")
    return good


if __name__ == "__main__":
    sys.exit(main())
