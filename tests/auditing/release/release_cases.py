"""Tables to release: the demo's patients, and two hundred with one extreme dose."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from seepage.data import load_bundled


def demo() -> pa.Table:
    """Return the breast-cancer patients with their diagnosis."""
    patients = load_bundled("breast_cancer")
    columns = {name: patients.X[:, j] for j, name in enumerate(patients.names)}
    diagnosis = np.where(np.asarray(patients.y) == 1, "benign", "malignant")
    return pa.table({**columns, "diagnosis": diagnosis})


def patients(dose: float = 98.5) -> pa.Table:
    """Return two hundred patients, the first of whom had an extreme dose and responded little."""
    rng = np.random.default_rng(0)
    age, doses = rng.normal(60, 12, 200), rng.normal(30, 6, 200)
    response = 0.04 * doses + 0.01 * age + rng.normal(0, 0.5, 200)
    doses[0], response[0] = dose, 1.0
    return pa.table({"age": age, "dose": doses, "response": response})


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
