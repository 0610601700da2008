"""A model is useful if it beats a constant prediction: remedies, verdicts and cards say so."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Advice, Audit
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report import summarise
from seepage.auditing.report.words import judge
from seepage.auditing.tradeoff import split


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
    summary = summarise(diabetes)
    assert [r["name"] for r in summary["remedies"]] == [
        "more regularisation",
        "reweighting",
        "more noise",
    ]
    penalty, _, noise = summary["remedies"]
    assert "σ = 50 instead of 1" in noise["change"]
    error, constant = diabetes_errors(50.0, 1e-3)
    assert noise["error"] == pytest.approx(error, rel=0.15)  # 20 draws of the noise
    assert noise["constant"] == pytest.approx(constant, rel=1e-6)
    assert constant < 80 < 150 < noise["error"]
    assert noise["useless"] is True
    assert noise["text"].endswith("Useless: a constant prediction's is 77.2.")
    assert "λ = 0.5 instead of 0.001" in penalty["change"]
    assert penalty["error"] == pytest.approx(diabetes_errors(1.0, 0.5)[0], rel=0.01)
    assert penalty["constant"] == pytest.approx(constant, rel=1e-6)
    assert penalty["useless"] is False
    assert "useless" not in penalty["text"].lower()


def test_what_would_fix_it_names_the_useful_remedy_first(diabetes: Audit) -> None:
    answers = {answer.question: answer.text for answer in judge(diabetes).answers}
    fix, cost = answers["What would fix it?"], answers["What does protection cost?"]
    assert fix.startswith("More regularisation (λ = 0.5 instead of 0.001): it brings")
    assert fix.index("So would more noise") > fix.index("it brings")
    assert fix.endswith("but with an error no smaller than a constant prediction's.")
    assert "54.8 with more regularisation, 180 with more noise (useless)" in cost


def test_an_error_equal_to_a_constants_up_to_rounding_is_useless() -> None:
    assert Advice("a", "b", error=0.3 * (1 - 1e-12), constant=0.3).useless
    assert not Advice("a", "b", error=0.2999, constant=0.3).useless
    assert not Advice("a", "b", error=0.4).useless
    assert not Advice("a", "b", constant=0.4).useless
