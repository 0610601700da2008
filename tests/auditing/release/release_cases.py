"""Tables to release: the demo's patients, and two hundred with one extreme dose."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import Disclosure
from seepage.auditing.release.disclosure import try_neighbours
from seepage.auditing.release.procedure import Prepared, Procedure
from seepage.data import load_bundled

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import release_attack

patients = release_attack.patients


def find_disclosures(
    procedure: Procedure, raw: pa.Table, prepared: Prepared
) -> tuple[Disclosure, ...]:
    """Rerun the procedure on neighbouring tables, and return the figures that disclose a change."""
    tried = try_neighbours(procedure, raw, prepared)
    return tuple(neighbour.disclosure for neighbour in tried if neighbour.figures)


def demo() -> pa.Table:
    """Return the breast-cancer patients with their diagnosis."""
    patients = load_bundled("breast_cancer")
    columns = {name: patients.X[:, j] for j, name in enumerate(patients.names)}
    diagnosis = np.where(np.asarray(patients.y) == 1, "benign", "malignant")
    return pa.table({**columns, "diagnosis": diagnosis})


def people(rows: int = 120) -> pa.Table:
    """Return people with a job, two of whom are judges, and a number of their own."""
    rng = np.random.default_rng(3)
    age = rng.normal(50, 12, rows)
    job = rng.choice(["baker", "nurse", "smith"], rows).astype(object)
    job[:2] = "judge"
    ill = rng.random(rows) < 1 / (1 + np.exp(-(age - 50) / 10))
    return pa.table(
        {
            "age": age,
            "job": pa.array(job.tolist()),
            "number": [f"P{k:04d}" for k in range(rows - 1)] + ["P0000"],
            "ill": np.where(ill, "yes", "no"),
        }
    )


def stays(rows: int, outlier: bool = True) -> pa.Table:
    """Return the stays of patients, one of whom was ill for 60 days at a cost of 400,000."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, rows)
    cost = np.round(rng.gamma(2, 2000, rows))
    los = np.round(2 + 0.03 * age + 0.0004 * cost + rng.normal(0, 2, rows), 1)
    if outlier:
        cost[7], los[7] = 400_000, 60
    return pa.table({"age": age, "cost": cost, "los": los})
