"""The μ of everybody in the ledger is that of the procedure, whose penalty is λ for each record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app

L2, SIGMA = 0.05, 0.5


def minimiser(x, y, kind):
    """Return the minimiser of the mean loss with ``λ‖w‖²/2``, the intercept free, by Newton."""
    X, w = np.column_stack([x, np.ones(len(x))]), np.zeros(2)
    for _ in range(50):
        m = X @ w
        p, a = (1 / (1 + np.exp(-m)), None) if kind == "classes" else (m, np.ones(len(m)))
        a = p * (1 - p) if a is None else a
        H = (X * a[:, None]).T @ X / len(X) + np.diag([L2, 0.0])
        w = w - np.linalg.solve(H, X.T @ (p - y) / len(X) + np.array([L2, 0.0]) * w)
    return w


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.parametrize("each", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_nobody_moves_the_release_farther_than_the_ledger_has_it(kind, each, tmp_path, monkeypatch):
    """With nλ held fixed the distances of about every second person would be too small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEEPAGE_LEDGER", raising=False)
    monkeypatch.setattr(AuditReport, "write", lambda report, out, keep=(): Path(out))
    monkeypatch.setattr("seepage.auditing.neighbours.CHECKED", 5)  # all others by the limit
    rng = np.random.default_rng(7)
    age, who = rng.uniform(20, 80, 120), np.arange(120) // each
    age[0] = 99.0
    x = (age - 50) / 25
    y = 1.5 * x + rng.normal(0, 0.6, 120)
    y = (y > 0).astype(float) if kind == "classes" else y
    answer = np.where(y > 0, "yes", "no") if kind == "classes" else y
    pq.write_table(pa.table({"who": who, "age": age, "answer": answer}), "t.parquet")
    ends = ["--domain=age=0:100", *(["--domain=answer=-9:9"] if kind == "numbers" else [])]
    limits = [f"--max-{name}=1" for name in ("membership", "guess-gain", "guess-tpr")]
    people = ["--person=who"] if each > 1 else ["--drop=who"]
    fit = ["--target=answer", f"--sigma={SIGMA}", f"--l2={L2}", "--target-eta=1000"]
    told = CliRunner().invoke(app, ["release", "t.parquet", *fit, *ends, *limits, *people])
    assert told.exit_code == 0, told.output
    (entry,) = json.loads(Path("seepage-ledger.json").read_text("utf-8"))["releases"]
    whole, moved = minimiser(x, y, kind), np.zeros(120)
    for k in range(120):
        rest = who != who[k]
        moved[k] = np.linalg.norm(minimiser(x[rest], y[rest], kind) - whole) / SIGMA
    mu = np.array(entry["mu"])
    assert np.all(mu >= moved * (1 - 1e-6))
    assert np.median(mu / moved) < 4
    most = np.argmax(moved)
    assert mu[most] == pytest.approx(moved[most], rel=1e-4)
