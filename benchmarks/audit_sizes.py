"""How long the whole audit takes, report included, on a wide table and on a long one.

Each runs in a process of its own, as the command `seepage audit` does; its memory is the most that
process ever held, the table and all libraries included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from measuring import show

WIDTHS = (34, 10, 12, 14)


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


TABLES = {
    "5 categories × 1,000 levels": wide,
    "556 categories × 10 levels": many,
    "1,000,000 records × 50": long,
}


def main() -> int:
    """Write, audit and time each table."""
    show("table", "seconds", "most memory", "report", widths=WIDTHS)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in TABLES.items():
            table = Path(folder) / "table.parquet"
            pq.write_table(make(), table)
            program = "import resource\nfrom seepage.cli import app\n"
            program += "app(standalone_mode=False)\n"
            program += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
            arguments = ["audit", str(table), "--target", "y", "--out", f"{folder}/report"]
            start = time.perf_counter()
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-c", program, *arguments], capture_output=True, text=True
            )
            taken = time.perf_counter() - start
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                return 1
            held = int(done.stdout.split()[-1]) * (1 if sys.platform == "darwin" else 1024)
            size = Path(folder, "report", "report.html").stat().st_size
            cells = f"{taken:.0f}", f"{held / 1e9:.2f} GB", f"{size / 1e6:.1f} MB"
            show(name, *cells, widths=WIDTHS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
