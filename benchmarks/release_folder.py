"""What a release folder tells about the records of the demo and of IWPC.

Claims: a small change of records moves no published figure, so that the Fisher information of
the folder is that of its unrounded numbers; by finite differences (refits with every number of
every record moved a little, its label and levels included) it stays within the target; and if one
of the 50 most exposed records is left out or replaced within its domain, every figure that changes
is listed as disclosed. σ is redrawn in every run. Run with
``python benchmarks/release_folder.py [demo] [iwpc]``; results are kept in
``benchmarks/results/release_folder.json``.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.neighbours import most_exposed
from seepage.auditing.release.disclosure import find_disclosures
from seepage.auditing.release.procedure import Prepared, Procedure
from seepage.auditing.trained_model import ROW
from seepage.data import load_bundled, load_iwpc
from seepage.glm.changes.changed_records import RecordRefits
from seepage.glm.jacobian.optimum import plain_optimum
from seepage.glm.leakage import describe_on, jacobian_of_replaced

STEP = 1e-4  # of a column's unit
KEPT = Path(__file__).parent / "results" / "release_folder.json"


def demo() -> tuple[pa.Table, Procedure]:
    """Return the breast-cancer patients of ``seepage demo``."""
    patients = load_bundled("breast_cancer")
    columns = {name: patients.X[:, j] for j, name in enumerate(patients.names)}
    diagnosis = np.where(np.asarray(patients.y) == 1, "benign", "malignant")
    return pa.table({**columns, "diagnosis": diagnosis}), Procedure(target="diagnosis")


def iwpc() -> tuple[pa.Table, Procedure]:
    """Return the warfarin patients, with rare genotypes merged."""
    found = load_iwpc()
    columns = {name: found.columns[name] for name in found.columns}
    procedure = Procedure(target="dose", categorical=["cyp2c9"], rare="merge")
    return pa.table(columns), procedure


def leakage_by_differences(prepared: Prepared) -> np.ndarray:
    """Return every record's η, from refits with each of its unknowns moved a step up and down."""
    trained, source = prepared.trained, prepared.trained.source
    fit, _ = describe_on(trained.model, source)
    X: np.ndarray = source.X  # type: ignore[attr-defined]
    optimum = plain_optimum(fit, X)
    refits = RecordRefits(optimum, X, jacobian_of_replaced)
    basis = trained.basis()
    steps = np.eye(X.shape[1]) if basis is None else basis.T
    moved = STEP * np.vstack([steps, np.zeros(X.shape[1])])  # the features, and last the label
    label = STEP * trained.table.labels.step * (np.arange(len(moved)) == len(steps))
    found = np.empty(len(X))
    for row in range(len(X)):
        Z, T = np.vstack([X[row] + moved, X[row] - moved]), fit.target[row]
        moves = refits.moves(row, Z, np.concatenate([T + label, T - label]))
        J = (moves[: len(moved)] - moves[len(moved) :]) / (2 * STEP)
        found[row] = np.linalg.norm(J, 2) / prepared.sigma
    return found


def nudged(raw: pa.Table, rows: Any, units: dict[str, float]) -> pa.Table:
    """Return the table with all numbers of some records moved slightly."""
    for name, unit in units.items():
        values = np.asarray(raw.column(name)).astype(float)
        values[rows] += 1e-7 * unit
        raw = raw.set_column(raw.column_names.index(name), name, pa.array(values))
    return raw


def report(name: str, raw: pa.Table, procedure: Procedure) -> dict[str, Any]:
    """Print and return what the folder reveals."""
    prepared = procedure.prepare(raw)
    trained = prepared.trained
    units = {a.name: a.scale for a in trained.table.attributes if a.kind == "numeric"}
    if trained.table.labels.counts is None:
        units[procedure.target] = trained.table.labels.step
    rows = trained.records.beside[ROW]
    # All records at once, and each of the most exposed alone.
    moves = [rows, *rows[most_exposed(prepared.eta)].tolist()]
    followed = sum(
        procedure.figures(nudged(raw, some, units), prepared) != prepared.figures for some in moves
    )
    by_differences, in_closed_form = leakage_by_differences(prepared), prepared.eta / prepared.sigma
    disclosures = find_disclosures(procedure, raw, prepared)
    changes = {
        change: len({d.row for d in disclosures if d.change == change})
        for change in dict.fromkeys(d.change for d in disclosures)
    }
    figures = sorted({figure for d in disclosures for figure in d.figures})
    found = {
        "records": len(rows),
        "numbers released with noise": int(np.size(trained.model.coef_) + 1),
        "sigma": prepared.sigma,
        "least sigma of the grid that meets the target": prepared.least,
        "target eta": procedure.target_eta,
        "largest eta by differences": float(by_differences.max()),
        "largest eta in closed form": float(in_closed_form.max()),
        "largest difference of the two": float(np.max(np.abs(by_differences - in_closed_form))),
        "small changes, of all records and of the most exposed, that move a figure": followed,
        "most exposed records tried": len(most_exposed(prepared.eta)),
        "records with a disclosed change": len({d.row for d in disclosures}),
        "disclosed by change": changes,
        "figures disclosed": figures,
    }
    print(f"{name}:")
    for what, value in found.items():
        print(f"  {what}: {value}")
    return found


if __name__ == "__main__":
    names = sys.argv[1:] or ["demo", "iwpc"]
    git = ["git", "-C", str(KEPT.parent), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True)  # noqa: S603 - nothing foreign
    kept: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/release_folder.py", *names]),
        "commit": commit.stdout.strip(),
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
    }
    for which in names:
        kept[which] = report(which, *{"demo": demo, "iwpc": iwpc}[which]())
    KEPT.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
