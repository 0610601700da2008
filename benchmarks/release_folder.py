"""What the folder of a release tells about the 50 most exposed records of the demo and of IWPC.

Claims: the Fisher information of the unrounded numbers about a record, by finite differences
through the whole procedure from the raw table, stays within the target; a small change moves no
published figure; and of records that are left out or replaced, every figure that would be another
is listed as disclosed. Run with ``python benchmarks/release_folder.py [demo] [iwpc]``.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from seepage.auditing.release.disclosure import find_disclosures
from seepage.auditing.release.procedure import Procedure, rows_of
from seepage.auditing.trained_model import TrainedModel
from seepage.data import load_bundled, load_iwpc

MOST = 50
STEP = 1e-4  # of a column's unit


def demo() -> tuple[pa.Table, Procedure]:
    """Return the breast-cancer patients of ``seepage demo``."""
    patients = load_bundled("breast_cancer")
    columns = {name: patients.X[:, j] for j, name in enumerate(patients.names)}
    diagnosis = np.where(np.asarray(patients.y) == 1, "benign", "malignant")
    return pa.table({**columns, "diagnosis": diagnosis}), Procedure(target="diagnosis")


def iwpc() -> tuple[pa.Table, Procedure]:
    """Return the warfarin patients; rare genotypes are put together."""
    found = load_iwpc()
    columns = {name: found.columns[name] for name in found.columns}
    procedure = Procedure(target="dose", categorical=["cyp2c9"], rare="merge")
    return pa.table(columns), procedure


def numbers(trained: TrainedModel) -> np.ndarray:
    """Return everything that noise is added to."""
    model = trained.model
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])


def moved(raw: pa.Table, row: int, steps: dict[str, float]) -> pa.Table:
    """Return the table with some numbers of a record moved."""
    for name, by in steps.items():
        values = np.array(raw.column(name).to_pylist(), dtype=float)
        values[row] += by
        raw = raw.set_column(raw.column_names.index(name), name, pa.array(values))
    return raw


def report(name: str, raw: pa.Table, procedure: Procedure) -> None:
    """Print what the folder tells."""
    prepared = procedure.prepare(raw)
    trained = prepared.trained
    units = {a.name: a.scale for a in trained.table.attributes if a.kind == "numeric"}
    if trained.table.labels.counts is None:
        units[procedure.target] = trained.table.labels.step
    most = rows_of(trained)[np.argsort(-prepared.eta, kind="stable")[:MOST]].tolist()
    found, followed = [], 0
    for row in most:
        columns = []
        for column, unit in units.items():
            ahead, behind = (
                numbers(procedure.fit(moved(raw, row, {column: s * STEP * unit}))) for s in (1, -1)
            )
            columns.append((ahead - behind) / (2 * STEP))
        found.append(np.linalg.norm(np.stack(columns, axis=1), 2) / prepared.sigma)
        nudged = moved(raw, row, {column: 1e-7 * unit for column, unit in units.items()})
        followed += procedure.prepare(nudged).figures != prepared.figures
    disclosures = find_disclosures(procedure, raw, prepared)
    figures = sorted({figure for d in disclosures for figure in d.figures})
    print(f"{name}: {len(prepared.eta):,} records, σ = {prepared.sigma:g}")
    print(f"  largest η by differences, {len(units)} numbers of a record: {max(found):.3f}")
    print(
        f"  target {procedure.target_eta:g}; closed form, all of a record and all records: "
        f"{prepared.eta.max() / prepared.sigma:.3f}"
    )
    print(f"  records of {MOST} whose small change moved a published figure: {followed}")
    for change in dict.fromkeys(d.change for d in disclosures):
        rows = {d.row for d in disclosures if d.change == change}
        print(f"  disclosed, {change}: {len(rows)} of {MOST} records")
    print(f"  figures disclosed: {', '.join(figures) or 'none'}")


if __name__ == "__main__":
    for which in sys.argv[1:] or ["demo", "iwpc"]:
        report(which, *{"demo": demo, "iwpc": iwpc}[which]())
