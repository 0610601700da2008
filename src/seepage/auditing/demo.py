"""The demonstration: an audit of scikit-learn's breast-cancer data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Audit
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report.audit_report import AuditReport, tell_briefly
from seepage.data import load_bundled

SIGMA = 0.1  # enough noise to keep the model useful, too little to hide every patient


def run(out: Path, verbose: bool = False) -> None:
    """Audit a logistic regression on 569 patients; print the findings and write the report."""
    report = AuditReport(measure())
    page = report.write(out)
    if verbose:
        report.tell(page, as_json=False)
    else:
        tell_briefly(report, page)


def measure() -> Audit:
    """Fit the model, and measure what its release leaks about the patients."""
    patients = load_bundled("breast_cancer")
    columns = {name: patients.X[:, j] for j, name in enumerate(patients.names)}
    diagnosis = np.where(np.asarray(patients.y) == 1, "benign", "malignant")
    table = TableInMemory(pa.table({**columns, "diagnosis": diagnosis}))
    plan = plan_columns(table, "diagnosis", sensitive=["worst area"], groups=["diagnosis"])
    return audit_table(encode(table, plan), name="breast_cancer", l2=0.01, sigma=SIGMA)
