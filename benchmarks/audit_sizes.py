"""Time and memory of whole audits, beside reading with pandas and fitting.

Claims, for CSV tables of 40 columns, everything in separate processes (start-up and imports count,
and memory is the peak of the process):

- an audit of 300,000 records and its report take at most 20 seconds without remedies and repeated
  splits (``--quick``), and at most 45 with everything, on two cores of 2.5 GHz that nothing else
  uses. Before every record's membership and guesses were part of an audit, they took 18 and 54;
- audits of 60,000 and 300,000 records take at most 2 and 1 times the memory of a process that
  reads the table with pandas and fits the same model with scikit-learn, whose time is shown beside
  (0.9 and 0.8 times before).

The times of audits of 1,000 and 2,431 records are in ``risk_times.py``.

``--wide`` also audits two tables with some 5,000 features and one of a million records.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from measuring import show

WIDTHS = (34, 20, 9, 11, 12, 8)
MEMORY = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
AUDIT = "from seepage.cli import app\napp(standalone_mode=False)\n"
USUAL = """
import sys
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

X = pd.read_csv(sys.argv[1])
y = X.pop("y")
make_pipeline(
    make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (OneHotEncoder(drop="first"), make_column_selector(dtype_exclude="number")),
    ),
    LogisticRegression(C=1 / (1e-3 * len(y))),
).fit(X, y)
"""
ASKED: dict[str, list[str]] = {"quick": ["--quick"], "everything": []}


def mixed(rows: int) -> pa.Table:
    """Return 36 numbers, four categories of five levels and a class."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 36))
    y = rng.random(rows) < 1 / (1 + np.exp(-X @ rng.standard_normal(36) / 4))
    columns = {f"x{j}": X[:, j].round(4) for j in range(36)}
    names = np.array([f"level {v}" for v in range(5)])
    columns |= {f"c{k}": names[rng.integers(0, 5, rows)] for k in range(4)}
    return pa.table(columns | {"y": np.where(y, "yes", "no")})


def wide() -> pa.Table:
    """Return 6,000 records of five categories with a thousand levels each: 4,995 features."""
    rng = np.random.default_rng(0)
    levels = np.arange(6_000) % 1_000
    columns = {f"c{k}": pa.array([f"level {v}" for v in rng.permutation(levels)]) for k in range(5)}
    return pa.table(columns | {"y": rng.standard_normal(len(levels))})


def many() -> pa.Table:
    """Return 6,000 records of 556 categories with ten levels each: 5,004 features."""
    rng = np.random.default_rng(0)
    names = np.array([f"level {v}" for v in range(10)])
    columns = {f"c{k}": pa.array(names[rng.integers(0, 10, 6_000)]) for k in range(556)}
    return pa.table(columns | {"y": rng.standard_normal(6_000)})


def long() -> pa.Table:
    """Return a million records of fifty numbers and a class."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_000_000, 50))
    y = rng.random(len(X)) < 1 / (1 + np.exp(-X @ rng.standard_normal(50) / 4))
    columns = {f"x{j}": X[:, j] for j in range(50)}
    return pa.table(columns | {"y": np.where(y, "yes", "no")})


SIZES = (60_000, 300_000)
ALLOWED = {300_000: {"quick": 20, "everything": 45}}  # seconds
MEMORY_RATIOS = {60_000: 2.0, 300_000: 1.0}  # over the process with pandas
WIDE = {
    "5 categories × 1,000 levels": wide,
    "556 categories × 10 levels": many,
    "1,000,000 records × 50": long,
}


def measured(program: str, *arguments: str) -> tuple[float, float]:
    """Return the seconds and the bytes that a program takes in a separate process."""
    # Bytecode is kept, as for every installed package.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program + MEMORY, *arguments],
        capture_output=True,
        text=True,
        env=kept,
    )
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    return taken, float(done.stdout.split()[-1]) * (1 if sys.platform == "darwin" else 1024)


def beside(folder: Path, rows: int) -> bool:
    """Audit a table, and read and fit it the usual way; return whether the claims hold."""
    table, name = folder / "table.csv", f"{rows:,} records × 40"
    pyarrow.csv.write_csv(mixed(rows), table)
    usual, held = measured(USUAL, str(table))
    show(
        name, "pandas, scikit-learn", f"{usual:.1f}", "", f"{held / 1e6:.0f} MB", "", widths=WIDTHS
    )
    kept = True
    for asked, options in ASKED.items():
        out = str(folder / f"report-{asked}")
        words = ["audit", str(table), "--target", "y", "--out", out, *options]
        taken, used = measured(AUDIT, *words)
        if not (Path(out) / "report.html").is_file():
            raise SystemExit(f"the audit of {name} wrote no report")
        allowed = ALLOWED.get(rows, {}).get(asked, math.inf)
        most = f"{allowed}" if rows in ALLOWED else ""
        cells = f"{taken:.1f}", most, f"{used / 1e6:.0f} MB", f"{used / held:.2f}"
        show("", f"audit, {asked}", *cells, widths=WIDTHS)
        kept = kept and taken <= allowed and used <= MEMORY_RATIOS[rows] * held
    return kept


def main() -> int:
    """Write, audit and time each table; return 1 if an audit exceeds its limits."""
    show("table", "what", "seconds", "at most", "most memory", "ratio", widths=WIDTHS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = sum(beside(folder, rows) for rows in SIZES) == len(SIZES)
        for title, make in WIDE.items() if "--wide" in sys.argv else ():
            pq.write_table(make(), folder / "table.parquet")
            words = ["audit", str(folder / "table.parquet"), "--target", "y"]
            taken, used = measured(AUDIT, *words, "--out", str(folder / "report-wide"))
            show(title, "audit", f"{taken:.0f}", "", f"{used / 1e6:.0f} MB", "", widths=WIDTHS)
    print("all within their limits" if kept else "FAILS")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
