"""A model is useful if it beats a constant prediction: remedies, verdicts and cards say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from typer.testing import CliRunner

from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Audit, Remedy, RemedyKind
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report import verdict, words
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.verdict import judge
from seepage.auditing.tradeoff import split
from seepage.cli import app


@pytest.fixture(scope="module")
def diabetes() -> Audit:
    """scikit-learn's diabetes in its own units, with noise that protects nobody."""
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    table = TableInMemory(pa.Table.from_pandas(X.assign(progression=y), preserve_index=False))
    encoded = encode(table, plan_columns(table, "progression"))
    return audit_table(encoded, name="diabetes", sigma=1.0)


def diabetes_errors(sigma: float, l2: float) -> tuple[float, float]:
    """The errors of a noisy ridge regression, and of the mean, with scikit-learn."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X[:, 1] = X[:, 1] > 0  # sex, in whole levels
    fitted, held_out = split(y, classes=False, seed=0)
    model = Ridge(l2 * len(fitted)).fit(X[fitted], y[fitted])
    noise = sigma * np.random.default_rng(1).normal(size=(4000, X.shape[1] + 1))
    predicted = model.predict(X[held_out])[:, None] + np.c_[X[held_out], np.ones(88)] @ noise.T
    truth = y[held_out, None]
    noisy, mean = (np.mean((p - truth) ** 2) ** 0.5 for p in (predicted, y[fitted].mean()))
    return float(noisy), float(mean)


def test_a_remedy_worse_than_a_constant_prediction_is_useless_and_last(diabetes: Audit) -> None:
    summary = AuditReport(diabetes).summary()
    kinds = [r["kind"] for r in summary["remedies"]]
    assert kinds == ["combination", "penalty", "weights", "noise"]
    both, penalty, weights, noise = summary["remedies"]
    assert (weights["reason"], weights["error"]) == ("no gain", None)
    assert both["error"] < penalty["error"] < noise["error"]
    assert (both["l2"], both["sigma"]) == (0.3, 1.5)
    assert both["error"] == pytest.approx(diabetes_errors(1.5, 0.3)[0], rel=0.01)
    assert noise["sigma"] == 50
    assert noise["change"] == "more noise (σ = 50 instead of 1)"
    error, constant = diabetes_errors(50.0, 1e-3)
    assert noise["error"] == pytest.approx(error, rel=0.15)  # 20 draws of the noise
    assert noise["constant"] == pytest.approx(constant, rel=1e-6)
    assert constant < 80 < 150 < noise["error"]
    assert noise["useless"] is True
    assert noise["text"].endswith("Useless: a constant prediction's is 77.2.")
    assert (penalty["l2"], penalty["sigma"]) == (0.5, 1.0)
    assert penalty["change"] == "more regularisation (λ = 0.5 instead of 0.001)"
    assert penalty["error"] == pytest.approx(diabetes_errors(1.0, 0.5)[0], rel=0.01)
    assert penalty["constant"] == pytest.approx(constant, rel=1e-6)
    assert penalty["useless"] is False
    assert "useless" not in penalty["text"].lower()


def test_what_would_fix_it_names_the_useful_remedy_first(diabetes: Audit) -> None:
    answers = {answer.question: answer.text for answer in judge(diabetes).answers}
    fix, cost = answers["What would fix it?"], answers["What does protection cost?"]
    assert fix.startswith(
        "Regularisation and noise (λ = 0.3 instead of 0.001, with σ = 1.5), or more regularisation "
        "(λ = 0.5 instead of 0.001): each of these brings"
    )
    assert fix.index("So would more noise") > fix.index("each of these brings")
    assert fix.endswith("but with an error no smaller than a constant prediction's.")
    assert "54.2 with regularisation and noise, 54.8 with more regularisation, 180 " in cost
    assert cost.endswith("180 with more noise (useless).")


def test_an_error_equal_to_a_constants_up_to_rounding_is_useless() -> None:
    assert Remedy(kind=RemedyKind.NOISE, error=0.3 * (1 - 1e-12), constant=0.3).useless
    assert not Remedy(kind=RemedyKind.NOISE, error=0.2999, constant=0.3).useless
    assert not Remedy(kind=RemedyKind.NOISE, error=0.4).useless
    assert not Remedy(kind=RemedyKind.NOISE, constant=0.4).useless


def births() -> pa.Table:
    """A table like MASS::birthwt: 189 births, 31 % of low weight, hardly to be predicted."""
    rng = np.random.default_rng(1)
    age, weight = rng.normal(23, 5, 189), rng.normal(130, 30, 189)
    smoke, pressure = rng.random((2, 189)) < [[0.4], [0.08]]
    low = rng.random(189) < 1 / (1 + np.exp(0.9 + (weight - 130) / 300 - 0.2 * smoke))
    return pa.table({"age": age, "lwt": weight, "smoke": smoke, "ht": pressure, "low": low})


def births_errors(sigma: float) -> tuple[float, float]:
    """The error rates of a noisy logistic regression, and of the commoner class, held out."""
    table = births().to_pandas()
    y = table.pop("low").to_numpy()
    X = table.to_numpy(float)
    X[:, :2] = (X[:, :2] - X[:, :2].mean(axis=0)) / X[:, :2].std(axis=0)
    fitted, held_out = split(y, classes=True, seed=0)
    model = LogisticRegression(C=1 / (1e-2 * len(fitted)), tol=1e-10).fit(X[fitted], y[fitted])
    noise = sigma * np.random.default_rng(1).normal(size=(4000, 5))
    scores = model.decision_function(X[held_out])[:, None]
    scores = scores + np.c_[X[held_out], np.ones(len(held_out))] @ noise.T
    truth = y[held_out, None]
    return float(np.mean((scores > 0) != truth)), float(np.mean(truth))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(births(), "births.parquet")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_a_release_worse_than_a_constant_prediction_is_not_green(run) -> None:
    allowed = ("--max-membership", "1", "--rare", "merge")
    result = run("release", "births.parquet", "--target", "low", "--sigma", "1", *allowed)
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("seepage-audit/summary.json").read_text("utf-8"))
    error, constant = births_errors(1.0)
    assert summary["release"]["test_error"] == pytest.approx(error, abs=0.05)  # 20 draws
    assert summary["curve"]["trivial_error"] == pytest.approx(constant, abs=1e-12)
    assert error > constant + 0.05
    verdict = summary["verdict"]
    assert summary["records"]["over_limit"] == 0
    assert verdict["tone"] == "caution"
    assert verdict["label"] == "Within the limits, but useless"
    assert summary["release"]["constant_error"] == summary["curve"]["trivial_error"]
    error = 100 * summary["release"]["test_error"]
    said = f"is {error:.1f} %, and a constant prediction's {100 * constant:.1f} %."
    assert "no better than a constant prediction" in verdict["headline"]
    assert said in verdict["headline"]
    assert said in result.stdout


def test_an_audit_and_a_calibration_say_that_the_noise_leaves_nothing(run) -> None:
    result = run("audit", "births.parquet", "--target", "low", "--quick", "--json")
    verdict = json.loads(result.stdout)["verdict"]
    assert (result.exit_code, verdict["tone"]) == (0, "caution")
    assert verdict["label"] == "Within the default limits, but useless"
    found = run("calibrate", "births.parquet", "--target", "low", "--target-eta", "1").stdout
    assert "The model is no better than a constant prediction" in found


def test_a_model_that_never_was_useful_keeps_no_advantage(diabetes: Audit) -> None:
    """Noise may by chance bring a useless model below a constant's error: not green either."""
    curve = replace(diabetes.curve, noiseless_error=diabetes.curve.trivial_error + 1)
    calm = replace(diabetes.risks, membership=0.6, guesses=())
    lucky = replace(diabetes, curve=curve, target_eta=1e9, usefulness=None, risks=calm)
    assert verdict.warn_of_constant(lucky) == ""
    assert words.usefulness(lucky, lucky.sigma) == 0
    assert judge(lucky).tone == "caution"
    assert judge(replace(lucky, curve=diabetes.curve)).tone == "good"
    noisy = replace(diabetes, sigma=50.0)
    assert "180, and a constant prediction's 77.2" in verdict.warn_of_constant(noisy)


def test_the_card_puts_the_error_beside_a_constants_in_readable_numbers(diabetes: Audit) -> None:
    table = TableInMemory(births())
    found = audit_table(encode(table, plan_columns(table, "low")), name="births", sigma=0.5)
    error, constant = (
        AuditReport(found).summary()["release"]["test_error"],
        found.curve.trivial_error,
    )
    said = AuditReport(found).card().partition("**Usefulness.** ")[2].partition("\n")[0]
    rates = (
        f"{float(f'{100 * e:.2g}'):g}%" for e in (error, constant, found.curve.noiseless_error)
    )
    assert said == (
        "The model's error rate on held-out records is {}, a constant prediction's {}; without "
        "noise it would be {}. It is no better than a constant prediction.".format(*rates)
    )
    said = AuditReport(diabetes).card().partition("**Usefulness.** ")[2].partition("\n")[0]
    assert said == (
        "The model's root mean squared error on held-out records is 53, a constant prediction's "
        "77; without noise it would be 53."
    )
