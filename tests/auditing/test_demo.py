"""The demo end to end: what it prints and what it writes."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coarse import point_above
from seepage.auditing.demo import SIGMA, measure
from seepage.cli import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit():
    return measure()


def test_the_demo_writes_the_report(audit, tmp_path, monkeypatch):
    monkeypatch.setattr("seepage.auditing.demo.measure", lambda: audit)
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--verbose"])
    assert result.exit_code == 0, result.output
    for words in ("569 records", "What was done", "can estimate best", "What would help"):
        assert words in result.output
    assert f"Report: {tmp_path / 'report.html'}" in result.output
    for name in ("report.html", "leakage.parquet", "summary.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["records"]["count"] == 569
    assert len(summary["attributes"]) == 31
    assert "do not publish" in summary["notice"]
    odds = "3 of 569 records can be recognised as members, up to 88.7 % of the time"
    shown = f"Over the default limit: {odds} (limit 75 %, chance 50 %); guesses gain 37.3 points."
    assert shown in result.output
    assert f"```text\n{shown}\n```" in (ROOT / "README.md").read_text("utf-8")
    # The picture of the report is described in the words that it shows.
    assert odds in " ".join((tmp_path / "report.html").read_text("utf-8").split())
    for page in ("README.md", "docs/index.md"):
        alternative = (
            (ROOT / page).read_text("utf-8").partition("![The first")[2].partition("](")[0]
        )
        assert odds in " ".join(alternative.split())


def test_its_numbers_are_those_of_the_library(audit):
    """The audit of the encoded table is the leakage of the model that anyone can fit."""
    import seepage as sp

    patients = sp.data.load_bundled("breast_cancer")
    X = (patients.X - patients.X.mean(axis=0)) / patients.X.std(axis=0)
    model = sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True).fit(X, patients.y)
    leak = sp.leakage(model, X, patients.y, noise=sp.Gaussian(SIGMA))
    assert np.allclose(audit.eta, leak.rows(), rtol=1e-8)
    column = list(patients.names).index("worst area")
    errors = np.asarray(leak.cells().std_bound())[:, column] * patients.X[:, column].std()
    assert np.allclose(audit.cell_errors["worst area"], errors, rtol=1e-8)


def test_the_advice_holds(audit):
    """With the noise it names, no record leaks more than the target."""
    least = audit.eta.max() * SIGMA / audit.target_eta
    assert audit.calibrated_sigma == point_above(least)


def test_a_record_leaks_at_least_as_much_as_its_parts(audit):
    assert np.all(audit.eta >= audit.eta_features * (1 - 1e-12))
    assert np.all(audit.eta >= audit.eta_label * (1 - 1e-12))
