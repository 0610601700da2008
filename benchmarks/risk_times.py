"""Processor time of the risks of every record beside that of η; of releases and of audits.

``python benchmarks/risk_times.py`` measures, on one core, in one run:

- **risks beside η**: ``membership()``, and ``guess()`` of a column with two levels and of the
  label, for all records of two logistic regressions (6,366 × 2 and 200,000 × 30). Claim: at most
  five times the processor time of η;
- **a release**: ``seepage release`` of 20,190 × 9, which finds the model of some 400 neighbouring
  tables. Claim: at most 15 s of processor time;
- **audits**: ``seepage audit --quick`` of 1,000 × 20 (claim: at most 5 s of processor time) and of
  2,431 × 11 with four classes (at most 20 s).

A last line for each part says which claims fail, if any. Bytecode is kept, as for every installed
package.

The tables of 6,366 and 20,190 records are statsmodels' ``fair`` and ``randhie``; all others are
drawn from fixed seeds. Times of risks are the smallest of three runs. Results are written to
``benchmarks/results/risk_times.json``; ``--only risks`` (or ``release``, ``audits``) measures one
part and keeps the others' results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api

import seepage as sp
from keeping import keep, made_by
from measuring import seconds

PACKAGE = Path(sp.__file__).parent
RELEASED = ("--rare", "merge")
CLAIMED = {  # the most processor seconds, or times those of η
    "membership": 5,
    "guess of a column": 5,
    "guess of the label": 5,
    "20,190 × 9": 15,
    "1,000 × 20, 2 classes": 5,
    "2,431 × 11, 4 classes": 20,
}
RESULTS = Path(__file__).parent / "results" / "risk_times.json"


def fair() -> tuple[np.ndarray, np.ndarray]:
    """Return two columns of statsmodels' ``fair``, the first as two levels, and the label."""
    table = statsmodels.api.datasets.fair.load_pandas().data
    two = (table["rate_marriage"] > 3).astype(float)
    return np.column_stack([two, table["religious"]]), (table["affairs"] > 0).to_numpy(float)


def long() -> tuple[np.ndarray, np.ndarray]:
    """Return 200,000 records with 30 columns, the first with two levels, and a label."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200_000, 30))
    X[:, 0] = X[:, 0] > 0
    chance = 1 / (1 + np.exp(-X @ rng.standard_normal(30) / 4))
    return X, (rng.random(len(X)) < chance).astype(float)


def measure_risks() -> dict[str, Any]:
    """Return the processor times of the readings of all records, and their ratios to η's."""
    found: dict[str, Any] = {}
    for make in (fair, long):
        X, y = make()
        frame = pd.DataFrame(X).rename(columns=lambda j: f"x{j}")
        model = sp.glm.LogisticRegression(l2=1e-3, fit_intercept=True).fit(frame, y)

        def leakage(model: Any = model, frame: Any = frame, y: Any = y) -> sp.Leakage:
            return sp.leakage(model, frame, y, noise=sp.Gaussian(0.05))

        asked: dict[str, Callable[[], object]] = {
            "η": lambda: np.asarray(leakage().records()),
            "membership": lambda: np.asarray(leakage().membership().mu),
            "guess of a column": lambda: np.asarray(leakage().guess("x0").right),
            "guess of the label": lambda: np.asarray(leakage().guess().right),
        }
        times = {name: seconds(work, 3, time.process_time) for name, work in asked.items()}
        ratios = {name: taken / times["η"] for name, taken in times.items()}
        found[f"{X.shape[0]:,} × {X.shape[1]}"] = {"seconds": times, "beside η": ratios}
    return found


def of_a_command(*words: str) -> dict[str, float]:
    """Return the processor time and the time of a command of seepage."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "seepage"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(PACKAGE)], env=kept)  # noqa: S603
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(  # noqa: S603
        [*command, *words], capture_output=True, text=True, env=kept
    )
    if done.returncode not in (0, 1):  # 1: a limit is exceeded
        raise SystemExit(done.stdout + done.stderr)
    after, taken = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"processor seconds": used, "seconds": taken}


def measure_release() -> dict[str, Any]:
    """Return the times of a release of ``randhie``."""
    table = statsmodels.api.datasets.randhie.load_pandas().data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "randhie.csv"
        table.to_csv(path, index=False)
        words = ["release", str(path), "--target", "mdvis", "--out", str(Path(folder) / "out")]
        ledger = ["--ledger", str(Path(folder) / "ledger.json")]
        return {"20,190 × 9": of_a_command(*words, *ledger, *RELEASED)}


def drawn(rows: int, columns: int, classes: int) -> pd.DataFrame:
    """Return a table of numbers with a class that depends on them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    scores = X @ rng.standard_normal((columns, classes)) / 2 + rng.gumbel(size=(rows, classes))
    names = np.array([f"class {k}" for k in range(classes)])
    return pd.DataFrame(X).add_prefix("x").assign(y=names[scores.argmax(axis=1)])


def measure_audits() -> dict[str, Any]:
    """Return the times of quick audits of two small tables."""
    found = {}
    for rows, columns, classes in ((1_000, 20, 2), (2_431, 11, 4)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            drawn(rows, columns, classes).to_csv(path, index=False)
            words = ["audit", str(path), "--target", "y", "--quick", "--out"]
            name = f"{rows:,} × {columns}, {classes} classes"
            found[name] = of_a_command(*words, str(Path(folder) / "report"))
    return found


def exceeded(found: dict[str, Any]) -> list[str]:
    """Return what exceeds its claim in the results of a part."""
    over = []
    for table, one in found.items():
        for name, value in one.get("beside η", {table: one.get("processor seconds")}).items():
            if value > CLAIMED.get(name, math.inf):
                over.append(f"{table}, {name}: {value:.1f}, at most {CLAIMED[name]}")
    return over


PARTS = {"risks": measure_risks, "release": measure_release, "audits": measure_audits}


def main() -> None:
    """Measure all parts, or one, print them and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    os.environ["OMP_NUM_THREADS"] = "1"
    found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for name in PARTS if only is None else [only]:
        measured = PARTS[name]()
        found[name] = measured | {"made": made_by()}
        print(name, json.dumps(found[name], indent=1, ensure_ascii=False), flush=True)
        print("; ".join(["FAILS", *over]) if (over := exceeded(measured)) else "all within limits")
    found.pop("made", None)
    keep(found, RESULTS)


if __name__ == "__main__":
    main()
