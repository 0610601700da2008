"""What is said of single columns: how far a prior narrows, and the badges of rare values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr, ndtri
from sklearn.linear_model import LogisticRegression

import seepage as sp
from seepage.auditing.audit import audit_table
from seepage.auditing.findings import Audit
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report import verdict, words
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.core.finite_changes import Moves


def doses(sigma: float) -> Audit:
    """An audit of a linear model of a dose with one sensitive number."""
    rng = np.random.default_rng(0)
    age, weight = rng.normal(50, 10, 80), rng.normal(70, 9, 80)
    dose = 0.1 * age - 0.05 * weight + rng.normal(0, 1, 80)
    table = TableInMemory(pa.table({"age": age, "weight": weight, "dose": dose}))
    encoded = encode(table, plan_columns(table, "dose", sensitive=["age"]))
    return audit_table(encoded, name="doses", sigma=sigma)


@pytest.mark.parametrize(("ratio", "kept"), [(2.06, 0.90), (1.0, 0.71), (0.5, 0.45), (0.0, 0.0)])
def test_a_release_narrows_a_normal_prior_even_where_unbiased_estimates_are_poor(ratio, kept):
    """By Bayes' rule on a grid: the posterior of a normal prior and a normal estimate."""
    assert words.spread_kept(ratio) == pytest.approx(kept, abs=0.005)
    if ratio:
        x = np.linspace(-12, 12, 20_001)
        posterior = np.exp(-(x**2) / 2 - (x - 0.3) ** 2 / (2 * ratio**2))
        posterior /= posterior.sum()
        spread = np.sqrt(posterior @ x**2 - (posterior @ x) ** 2)
        assert words.spread_kept(ratio) == pytest.approx(spread, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.003, 0.05, 2.0])
def test_what_is_said_of_a_number_is_the_posterior_of_a_normal_prior(sigma: float) -> None:
    audit = doses(sigma)
    (age,) = (a for a in audit.attributes if a.name == "age")
    said = " ".join(answer.text for answer in verdict.judge(audit).answers)
    assert "no more" not in said
    kept = (1 + (age.spread / age.smallest_error) ** 2) ** -0.5
    share = words.number(kept) if sigma < 2 else "more than 0.999"  # never all of it
    assert (
        f"normal prior of that width to ±{words.number(kept * age.spread)}, {share} of it" in said
    )
    kept = (1 + float(audit.eta_label.max()) ** 2) ** -0.5
    share = words.number(kept) if sigma < 2 else "more than 0.999"
    assert f"normal prior of one standard deviation to {share} of its width" in said
    flat = replace(audit, attributes=(replace(age, spread=0.0),))
    told = " ".join(answer.text for answer in verdict.judge(flat).answers)
    assert (
        f"“age” has a standard error of at least ±{words.number(age.smallest_error)} (row" in told
    )


def births() -> pa.Table:
    """189 births, of whose mothers 6 % have a high blood pressure."""
    rng = np.random.default_rng(4)
    age, weight = rng.normal(23, 5, 189), rng.normal(130, 30, 189)
    smoke, ht = rng.random((2, 189)) < [[0.4], [0.06]]
    race = rng.choice(["a", "b", "c"], 189, p=[0.6, 0.36, 0.04])
    low = rng.random(189) < 1 / (1 + np.exp(0.9 + (weight - 130) / 60 - 0.7 * smoke - ht))
    return pa.table({"age": age, "lwt": weight, "smoke": smoke, "ht": ht, "race": race, "low": low})


@pytest.fixture(scope="module")
def rare() -> Audit:
    table = TableInMemory(births())
    plan = plan_columns(table, "low", sensitive=["ht", "race"])
    return audit_table(encode(table, plan), name="births", l2=1e-3, sigma=0.2)


def refitted(features: list[list[float]], sigma: float, places: list[int], row: int) -> float:
    """The largest distance between releases refitted with every pair of levels, in σ."""
    table = births().to_pandas()
    numbers = table[["age", "lwt"]].to_numpy()
    X = np.c_[
        (numbers - numbers.mean(axis=0)) / numbers.std(axis=0),
        table[["smoke", "ht"]].to_numpy(float),
        (table["race"] == "b").to_numpy(float),
        (table["race"] == "c").to_numpy(float),
    ]
    found = []
    for level in features:
        other = X.copy()
        other[row, places] = level
        model = LogisticRegression(C=1 / (189 * 1e-3), tol=1e-12, max_iter=10_000)
        model.fit(other, table["low"])
        found.append(np.r_[model.coef_[0], model.intercept_])
    return max(float(np.linalg.norm(a - b)) for a in found for b in found) / sigma


LEVELS = {
    "ht": ([[0.0], [1.0]], [3]),
    "race": ([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [4, 5]),
}


@pytest.mark.parametrize("column", LEVELS)
def test_a_rare_value_that_is_recognised_has_no_strong_badge(rare: Audit, column: str) -> None:
    """The true positive rate at 1 % false positives, by refits with scikit-learn."""
    (found,) = (a for a in AuditReport(rare).summary()["attributes"] if a["name"] == column)
    (guess,) = (g for g in AuditReport(rare).summary()["risks"]["guesses"] if g["name"] == column)
    if column == "ht":
        assert found["gain"] <= 0.05  # hardly guessed more often, and yet:
    mu = refitted(LEVELS[column][0], 0.2, LEVELS[column][1], guess["row"])
    assert ndtr(ndtri(0.01) + mu) > 0.2
    assert found["protection"] != "strong"
    mu = refitted(LEVELS[column][0], 0.2, LEVELS[column][1], guess["tpr_row"])
    tpr = ndtr(ndtri(0.01) + mu)
    assert found["tpr"] == guess["tpr"] == pytest.approx(tpr, abs=2e-4)
    assert guess["looked_at"] == rare.records.count
    told = tell("guesses", rare, None, None, [g for g in rare.risks.guesses if g.name == column])
    assert (
        f"for “{column}” is up to {100 * tpr:.1f} % (row {guess['tpr_row']}, the largest for any "
        in told
    )
    strict, even = ndtr(ndtri(0.001) + mu), ndtr(mu / 2)
    assert found["tpr_strict"] == guess["tpr_strict"] == pytest.approx(strict, abs=2e-4)
    assert guess["even"] == pytest.approx(even, abs=2e-4)
    assert guess["mu"] == pytest.approx(mu, rel=1e-4)
    assert (
        f"at 0.1 % up to {100 * strict:.1f} %; at even odds the value is recognised "
        f"{100 * even:.0f} % of the time" in told
    )


def test_the_report_prints_the_rate_of_the_sensitive_column(rare: Audit) -> None:
    answers = {answer.question: answer.text for answer in verdict.judge(rare).answers}
    sure = answers["How often would an attacker be right, with and without this release?"]
    largest = max(a.tpr for a in rare.attributes if a.sensitive)
    assert f"the true positive rate for “ht” is up to {100 * largest:.1f} % (row" in sure


def test_badges_of_levels_follow_the_worse_of_gain_and_true_positive_rate(rare: Audit) -> None:
    (level,) = (a for a in rare.attributes if a.name == "ht")
    badges = {(0.01, 0.1): "strong", (0.01, 0.11): "partial", (0.01, 0.51): "weak"}
    badges |= {(0.1, 0.01): "partial", (0.3, 0.01): "weak", (0.01, None): "strong"}
    for (gain, tpr), badge in badges.items():
        assert words.protection(replace(level, gain=gain, tpr=tpr)) == badge


def test_levels_that_leave_no_release_are_told_for_certain() -> None:
    """Where a level leaves no unique minimiser, and where only bounds on a move are known."""
    gram = np.array([np.diag([0.0, 4.0, np.inf]), np.diag([0.0, 9.0, 16.0])])
    moves = Moves(gram, np.array([[0.0, 0.0, 0.0], [0.0, 0.5, 0.25]]))
    assert moves.between().max(axis=(1, 2)).tolist() == [np.inf, 5.75]  # √(9 + 16), two radii
    pair = Moves(gram[:, :2, :2], np.array([[0.0, 0.0], [0.0, 0.5]]))
    assert pair.between()[:, 0, 1].tolist() == pair.apart()[1].tolist() == [2.0, 3.5]


def test_a_number_within_a_tolerance_has_no_true_positive_rate() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = sp.glm.LinearRegression(l2=0.1).fit(X, X[:, 0])
    found = sp.leakage(model, X, X[:, 0], noise=sp.Gaussian(1.0)).within(0, 0.25, rows=[1, 2])
    with pytest.raises(sp.InputError, match="no pair of levels"):
        found.tpr()
