"""A row that anybody can recognise is never within the target, in a release or an audit."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from release_cases import stays
from scipy.special import ndtr
from typer.testing import CliRunner

from seepage.auditing.release.procedure import Procedure
from seepage.auditing.release.released_model import ColumnCoding
from seepage.cli import app

ROW = 7


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


def distance_of_refits(raw: pa.Table, coded, l2: float, sigma: float, row: int) -> float:
    """Return how far the released numbers move without a row, in units of the noise.

    By normal equations: the scaling and λ stay, and the intercept is not penalised.
    """
    columns = [(np.asarray(raw.column(c.name)) - c.centre) / c.unit for c in coded]
    X, y = np.column_stack([*columns, np.ones(len(raw))]), np.asarray(raw.column("los"))
    penalty = l2 * np.diag([1.0] * len(columns) + [0.0])  # of each record

    def fit(kept):
        return np.linalg.solve(X[kept].T @ X[kept] + len(kept) * penalty, X[kept].T @ y[kept])

    every = np.arange(len(raw))
    return float(np.linalg.norm(fit(every) - fit(np.delete(every, row)))) / sigma


def test_a_patient_whom_anybody_recognises_is_not_within_the_target(run, tmp_path):
    # 2,001 patients: of 2,000, leaving one out would change the published number of records too.
    raw = stays(2001)
    pa_csv.write_csv(raw, tmp_path / "stays.csv")
    result = run("release", "stays.csv", "--target", "los", "--sigma", "0.1")
    assert result.exit_code == 1, result.output
    summary = json.loads((tmp_path / "seepage-audit" / "summary.json").read_text())
    parts = Procedure(target="los", sigma=0.1).fit(raw).table.coding.parts
    coded = [ColumnCoding.of(part, scale=True) for part in parts]
    assert [column.name for column in coded] == ["age", "cost"]
    mu = distance_of_refits(raw, coded, 0.01, 0.1, ROW)
    assert mu > 4.4
    assert summary["risks"]["row"] == ROW
    assert summary["risks"]["mu"] == pytest.approx(mu, rel=1e-9)
    # The share of wrong predictions, with ε = 0.05, can only help the attacker.
    assert summary["risks"]["membership"] >= ndtr(mu / 2) > 0.987
    assert "Over the limit: Do not release" in result.stdout
    assert "Within" not in result.stdout
    assert "over the limit of 75 %" in result.stdout
    assert not (tmp_path / "seepage-release").exists()
    assert not (tmp_path / "seepage-ledger.json").exists()


def test_an_audit_of_that_table_is_not_called_private(run, tmp_path):
    pa_csv.write_csv(stays(400), tmp_path / "stays.csv")
    result = run("audit", "stays.csv", "--target", "los", "--quick")
    assert result.exit_code == 0, result.output
    assert "Over the default limit: Row 7 can be recognised" in result.stdout
    assert any(line.rstrip().endswith("row 7") for line in result.stdout.splitlines())
    assert "Private" not in result.stdout
    assert "Within" not in result.stdout
