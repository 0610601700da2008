"""A model is useful if it beats a constant prediction: remedies, verdicts and cards say so."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from typer.testing import CliRunner

from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Audit, Remedy, RemedyKind, UsefulnessFinding
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report import verdict, words
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.verdict import judge
from seepage.auditing.tradeoff import judge_usefulness, split, try_out
from seepage.auditing.trained_model import EncodedTable, FitSettings, TrainedModel
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
    assert noise["compared"] == "worse"
    assert noise["usefulness"]["high"] < 0
    assert noise["text"].endswith(
        "The error on held-out records is worse than that of a constant prediction, 77.2."
    )
    assert (penalty["l2"], penalty["sigma"]) == (0.5, 1.0)
    assert penalty["change"] == "more regularisation (λ = 0.5 instead of 0.001)"
    assert penalty["error"] == pytest.approx(diabetes_errors(1.0, 0.5)[0], rel=0.01)
    assert penalty["constant"] == pytest.approx(constant, rel=1e-6)
    assert penalty["compared"] == "better"
    assert penalty["usefulness"]["low"] > 0
    assert "constant prediction" not in penalty["text"]


def test_what_would_fix_it_names_the_useful_remedy_first(diabetes: Audit) -> None:
    answers = {answer.question: answer.text for answer in judge(diabetes).answers}
    fix, cost = answers["What would help?"], answers["What does protection cost?"]
    assert fix.startswith(
        "Regularisation and noise (λ = 0.3 instead of 0.001, with σ = 1.5), or more regularisation "
        "(λ = 0.5 instead of 0.001): each of these brings"
    )
    assert fix.index("More noise") > fix.index("each of these brings")
    assert fix.endswith("but the model would be no better than a constant prediction.")
    assert "54.2 with regularisation and noise, 54.8 with more regularisation, 180 " in cost
    assert cost.endswith("180 with more noise (worse than a constant prediction).")


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.1, 0.2, "better"), (-0.1, 0.2, "not told apart"), (0.0, 0.0, "not told apart"),
     (0.0, 0.1, "not told apart"), (-0.1, 0.0, "not told apart"), (-0.2, -0.1, "worse")],
)  # fmt: skip
def test_one_of_three_words_follows_from_the_interval(low: float, high: float, word: str) -> None:
    found = UsefulnessFinding((low + high) / 2, low, high, 5)
    assert found.compared == word
    remedy = Remedy(kind=RemedyKind.NOISE, error=0.2, constant=0.3, usefulness=found)
    assert (remedy.compared, remedy.no_better) == (word, word != "better")
    unknown = replace(remedy, usefulness=None)
    assert (unknown.compared, unknown.no_better) == ("not measured", False)


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


def births_encoded() -> EncodedTable:
    table = TableInMemory(births())
    return encode(table, plan_columns(table, "low"))


def births_differences(seed: int) -> np.ndarray:
    """Whether a constant is wrong less whether the model is, for each held-out birth."""
    source = births_encoded().source
    X, y = np.asarray(source.X), np.asarray(source.y)
    fitted, held_out = split(y, classes=True, seed=seed)
    model = LogisticRegression(C=1 / (1e-2 * len(fitted)), tol=1e-12, max_iter=10_000)
    predicted = model.fit(X[fitted], y[fitted]).predict(X[held_out])
    common = max(set(y.tolist()), key=y[fitted].tolist().count)
    return (y[held_out] != common).astype(float) - (y[held_out] != predicted)


def diabetes_squares(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The squared errors of the mean and of a ridge regression, for each held-out patient."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X[:, 1] = X[:, 1] > 0
    fitted, held_out = split(y, classes=False, seed=seed)
    model = Ridge(1e-2 * len(fitted)).fit(X[fitted], y[fitted])
    return (y[held_out] - y[fitted].mean()) ** 2, (y[held_out] - model.predict(X[held_out])) ** 2


def trained(encoded: EncodedTable, kind: str) -> TrainedModel:
    settings = FitSettings(kind, 1e-2, True)
    return TrainedModel(settings.fit(encoded.source), settings, encoded)


def test_over_one_split_the_interval_is_that_of_paired_differences() -> None:
    model = trained(births_encoded(), "logistic")
    trial = try_out(model, model.settings, 3)
    (found,) = judge_usefulness(model, trial, [0.0], 3, 1)
    apart = births_differences(3)
    low, high = stats.t.interval(0.95, len(apart) - 1, apart.mean(), stats.sem(apart))
    assert found.advantage == pytest.approx(apart.mean(), abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    # All records of a person go together: twice as many in a pair, twice the variance.
    pairs = replace(trial, largest=2, _known={}).usefulness(0.0)
    assert pairs.high - pairs.low == pytest.approx(math.sqrt(2) * (high - low))


def test_over_one_split_of_numbers_the_sign_is_that_of_squared_errors(diabetes: Audit) -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    table = TableInMemory(pa.Table.from_pandas(X.assign(progression=y), preserve_index=False))
    model = trained(encode(table, plan_columns(table, "progression")), "linear")
    found = try_out(model, model.settings, 4).usefulness(0.0)
    constant, ridge = diabetes_squares(4)
    apart = constant - ridge
    ends = stats.t.interval(0.95, len(apart) - 1, apart.mean(), stats.sem(apart))
    both = constant.mean() ** 0.5 + ridge.mean() ** 0.5
    assert found.advantage == pytest.approx(constant.mean() ** 0.5 - ridge.mean() ** 0.5, rel=1e-6)
    assert (found.low, found.high) == pytest.approx([end / both for end in ends], rel=1e-6)


def test_over_five_splits_it_is_that_of_nadeau_and_bengio() -> None:
    model = trained(births_encoded(), "logistic")
    (found,) = judge_usefulness(model, try_out(model, model.settings, 0), [0.0], 0, 5)
    splits = [births_differences(seed) for seed in range(5)]
    gains, tested = [apart.mean() for apart in splits], len(splits[0])
    spread = np.std(gains, ddof=1) * (1 / 5 + tested / (189 - tested)) ** 0.5
    low, high = stats.t.interval(0.95, 4, np.mean(gains), spread)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.splits == 5


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(births(), "births.parquet")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_a_release_worse_than_a_constant_prediction_is_not_green(run) -> None:
    # Ten mothers have 'ht', the fewest that may be named: one more or less would show.
    allowed = ("--max-membership", "1", "--max-guess-tpr", "1", "--rare", "merge")
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
    assert verdict["label"] == "Within the limits, but worse than a constant"
    assert summary["release"]["constant_error"] == summary["curve"]["trivial_error"]
    error = 100 * summary["release"]["test_error"]
    said = f"Error rate {error:.1f} %, worse than a constant prediction's {100 * constant:.1f} %."
    assert said in verdict["headline"]
    assert said in " ".join(result.stdout.split())


def test_an_audit_and_a_calibration_say_that_the_noise_leaves_nothing(run) -> None:
    result = run("audit", "births.parquet", "--target", "low", "--quick", "--json")
    verdict = json.loads(result.stdout)["verdict"]
    assert (result.exit_code, verdict["tone"]) == (0, "caution")
    assert verdict["label"] == "Within the default limits, but worse than a constant"
    found = run("calibrate", "births.parquet", "--target", "low", "--target-eta", "1").stdout
    assert "worse than a constant prediction's" in found


def test_a_model_that_never_was_useful_keeps_no_advantage(diabetes: Audit) -> None:
    """Noise may by chance bring a useless model below a constant's error: not green either."""
    curve = replace(diabetes.curve, noiseless_error=diabetes.curve.trivial_error + 1)
    calm = replace(diabetes.risks, membership=0.6, guesses=())
    lucky = replace(diabetes, curve=curve, target_eta=1e9, risks=calm)
    assert verdict.warn_of_constant(lucky) == ""
    assert words.usefulness(lucky, lucky.sigma) == 0
    assert judge(lucky).tone == "caution"
    assert judge(replace(lucky, curve=diabetes.curve)).tone == "good"
    noisy = replace(diabetes, sigma=50.0)
    assert "error 180, worse than a constant prediction's 77.2" in verdict.warn_of_constant(noisy)


def test_the_card_puts_the_error_beside_a_constants_in_readable_numbers(diabetes: Audit) -> None:
    table = TableInMemory(births())
    found = audit_table(encode(table, plan_columns(table, "low")), name="births", sigma=0.5)
    error, constant = (
        AuditReport(found).summary()["release"]["test_error"],
        found.curve.trivial_error,
    )
    said = (
        AuditReport(found)
        .texts()["model-card.md"]
        .partition("**Usefulness.** ")[2]
        .partition("\n")[0]
    )
    rates = (
        f"{float(f'{100 * e:.2g}'):g}%" for e in (error, constant, found.curve.noiseless_error)
    )
    assert said == (
        "The model's error rate on held-out records is {}, and that of a constant prediction is "
        "{}; without noise, the model's would be {}. The model is worse than a constant "
        "prediction (95 % interval of the difference).".format(*rates)
    )
    said = (
        AuditReport(diabetes)
        .texts()["model-card.md"]
        .partition("**Usefulness.** ")[2]
        .partition("\n")[0]
    )
    assert said == (
        "The model's root mean squared error on held-out records is 53, and that of a constant "
        "prediction is 77; without noise, the model's would be 53. The model is better than a "
        "constant prediction (95 % interval of the difference)."
    )
