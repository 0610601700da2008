"""Membership and guesses against brute force: every record left out or changed, and refitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from refit_oracle import refit
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.linear_model import Lasso

import seepage as sp
from bayes_oracle import by_lines
from sampled import sampled
from seepage.core.finite_changes import Alternatives
from seepage.core.risk_views import among_levels, changes_of, distinct_rows, guess_among
from seepage.glm.changes.local_model import Whitening
from seepage.glm.changes.outputs import Outputs
from seepage.glm.losses import poisson

FAMILIES = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "categorical": sp.glm.SoftmaxRegression,
}
N, L2 = 40, 0.02


class Problem:
    """A model on random data with weights, an intercept and matrix noise, or without them."""

    def __init__(self, family: str, everything: bool, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.family, self.intercept = family, everything
        self.X = rng.standard_normal((N, 4))
        self.X[:, 3] = rng.integers(0, 3, N)  # three levels
        eta = self.X @ [0.8, -0.6, 0.3, 0.2]
        self.y = {
            "gaussian": eta + rng.standard_normal(N),
            "bernoulli": (eta + rng.logistic(size=N) > 0).astype(float),
            "poisson": rng.poisson(np.exp(0.4 * eta)).astype(float),
            "categorical": rng.integers(0, 3, N).astype(float),
        }[family]
        self.classes = 3 if family == "categorical" else 1
        self.weight = rng.uniform(0.5, 2.0, N) if everything else np.ones(N)
        size = (4 + everything) * self.classes
        root = rng.standard_normal((size, size)) / 20
        self.noise = sp.Gaussian(root @ root.T + 0.01 * np.eye(size) if everything else 0.1)
        options = {"l2": L2, "fit_intercept": everything}
        self.weights = self.weight if everything else None
        model = FAMILIES[family](**options).fit(self.X, self.y, sample_weight=self.weights)
        self.leak = sp.leakage(model, self.X, self.y, noise=self.noise, sample_weight=self.weights)
        self.theta = self.refitted(self.X, self.y, self.weight)

    def refitted(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return refit(self.family, X, y, weight, N * L2, self.intercept, self.classes)

    def without(self, rows: list[int]) -> np.ndarray:
        kept = np.setdiff1d(np.arange(N), rows)
        return self.refitted(self.X[kept], self.y[kept], self.weight[kept])

    def changed(self, row: int, value: float, column: int | None) -> np.ndarray:
        X, y = self.X.copy(), self.y.copy()
        if column is None:
            y[row] = value
        else:
            X[row, column] = value
        return self.refitted(X, y, self.weight)

    def whitened(self, theta: np.ndarray) -> np.ndarray:
        sigma = np.asarray(self.noise.sigma)
        if sigma.ndim == 0:
            return theta / float(sigma)
        return np.linalg.solve(np.linalg.cholesky(sigma), theta)

    def distance(self, theta: np.ndarray) -> float:
        return float(np.linalg.norm(self.whitened(theta - self.theta)))


@pytest.fixture(scope="module", params=[(f, e) for f in FAMILIES for e in (False, True)], ids=str)
def problem(request: pytest.FixtureRequest) -> Problem:
    return Problem(*request.param)


def two(mu: float, p: float) -> float:
    shift = np.log(p / (1 - p)) / mu
    return p * norm.cdf(mu / 2 + shift) + (1 - p) * norm.cdf(mu / 2 - shift)


def bayes(points: np.ndarray, prior: np.ndarray) -> float:
    """Integrate Bayes' rule over the plane that three whitened releases span."""
    centred = points - points.mean(axis=0)
    basis = np.linalg.svd(centred, full_matrices=False)[2][:2]
    return by_lines(centred @ basis.T, prior)


def test_membership_is_the_distance_to_the_refit_without_the_record(problem: Problem) -> None:
    found = problem.leak.membership()
    assert found.mu.kind == "exact"
    truth = [problem.distance(problem.without([i])) for i in range(N)]
    assert np.asarray(found) == pytest.approx(truth, rel=1e-8, abs=1e-10)
    assert np.asarray(found.accuracy()) == pytest.approx(norm.cdf(np.array(truth) / 2), abs=1e-8)


def test_groups_leave_together(problem: Problem) -> None:
    groups = np.array(["abc"[i % 3] for i in range(N)])
    found = problem.leak.membership(groups=groups)
    truth = [problem.distance(problem.without(list(np.flatnonzero(groups == g)))) for g in "abc"]
    assert found.mu.labels().tolist() == ["a", "b", "c"]
    assert np.asarray(found) == pytest.approx(truth, rel=1e-8)


def test_a_guess_of_the_label_is_bayes_rule_over_the_refits(problem: Problem) -> None:
    if problem.family == "bernoulli":
        prior = np.array([0.3, 0.7])
        found = problem.leak.guess(prior=prior)
        mu = [problem.distance(problem.changed(i, 1 - problem.y[i], None)) for i in range(N)]
        assert np.asarray(found) == pytest.approx([two(m, 0.3) for m in mu], abs=1e-8)
        assert found.baseline == pytest.approx(np.full(N, 0.7))
        assert np.asarray(found.gain()) == pytest.approx(np.asarray(found) - 0.7, abs=1e-12)
    elif problem.family == "categorical":
        prior = np.array([0.2, 0.5, 0.3])
        found = problem.leak.guess(prior=prior, rows=[0, 5, 9])
        for k, i in enumerate([0, 5, 9]):
            points = np.stack([problem.whitened(problem.changed(i, c, None)) for c in range(3)])
            assert float(np.asarray(found)[k]) == pytest.approx(bayes(points, prior), abs=1e-8)
    else:
        with pytest.raises(sp.InputError, match=r"not a class; use leak\.within"):
            problem.leak.guess()


def test_a_guess_of_a_category_is_bayes_rule_over_the_refits(problem: Problem) -> None:
    found = problem.leak.guess("x3", rows=[2, 7])
    shares = np.bincount(problem.X[:, 3].astype(int)) / N
    assert found.levels == (0.0, 1.0, 2.0)
    assert found.baseline == pytest.approx(np.full(2, shares.max()))
    for k, i in enumerate([2, 7]):
        points = np.stack([problem.whitened(problem.changed(i, v, 3)) for v in range(3)])
        assert float(np.asarray(found)[k]) == pytest.approx(bayes(points, shares), abs=1e-8)


def test_intervals_hold_the_refits_and_radii_the_moves(problem: Problem) -> None:
    changes = problem.leak.release.finite_changes()
    rows = np.arange(N)
    least, most = changes.moves(rows).distances()
    truth = np.array([problem.distance(problem.without([i])) for i in range(N)])
    assert np.all(least[:, 0] <= truth * (1 + 1e-9) + 1e-12)
    assert np.all(truth <= most[:, 0] * (1 + 1e-9) + 1e-12)
    others = Alternatives((3,), np.array([[0.0], [1.0], [2.0]]))
    least, most = changes.moves(rows[:8], others).distances()
    truth2 = np.array(
        [[problem.distance(problem.changed(i, v, 3)) for v in range(3)] for i in range(8)]
    )
    assert np.all(least <= truth2 * (1 + 1e-9) + 1e-10)
    assert np.all(truth2 <= most * (1 + 1e-9) + 1e-10)


def test_the_models_own_prior_is_its_prediction_without_the_record() -> None:
    problem = Problem("bernoulli", everything=True)
    found = problem.leak.guess(prior="model", rows=[0, 3])
    for k, i in enumerate([0, 3]):
        theta = problem.without([i])
        p = 1 / (1 + np.exp(-(problem.X[i] @ theta[:4] + theta[4])))
        mu = problem.distance(problem.changed(i, 1 - problem.y[i], None))
        assert found.baseline[k] == pytest.approx(max(p, 1 - p), abs=1e-8)
        assert float(np.asarray(found)[k]) == pytest.approx(two(mu, 1 - p), abs=1e-8)


def test_a_prior_from_the_expansion_says_how_far_off_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem("bernoulli", everything=True)
    exact = problem.leak.guess(prior="model")
    assert exact.right.kind == "exact"
    monkeypatch.setattr("seepage.glm.changes.changed_records.REFIT_WORK", 10 * 40.0 * 4 * N)
    found = problem.leak.guess(prior="model")
    assert found.right.kind == "bound"
    assert np.all(found.lower <= np.asarray(exact) + 1e-9)
    assert np.all(np.asarray(found) >= np.asarray(exact) - 1e-9)
    sure = np.asarray(found) - found.lower <= 1e-6
    assert 10 <= sure.sum() < N
    assert found.baseline[sure] == pytest.approx(exact.baseline[sure], abs=1e-6)


def test_within_lies_in_the_interval_of_a_simulation() -> None:
    problem = Problem("bernoulli", everything=True)
    values = np.linspace(-2, 2, 9)
    found = problem.leak.within("x0", 0.5, "equal", values=values, rows=[1])
    points = np.stack([problem.whitened(problem.changed(1, v, 0)) for v in values])
    rng = np.random.default_rng(3)
    draws = 40_000
    truth = rng.integers(0, 9, draws)
    scores = (points[truth] + rng.standard_normal((draws, 5))) @ points.T
    scores -= np.sum(points**2, axis=1) / 2
    mass = np.exp(scores - scores.max(axis=1, keepdims=True))
    guesses = np.linspace(-2, 2, 33)
    covered = np.abs(values[:, None] - guesses[None, :]) <= 0.5 + 1e-9
    right = covered[truth, (mass @ covered).argmax(axis=1)].mean()
    slack = 2.6 * 0.5 / np.sqrt(draws)
    assert found.right.kind == "estimate"
    assert found.lower[0] - slack <= right <= float(np.asarray(found)[0]) + slack
    assert found.baseline[0] == pytest.approx(3 / 9)


def test_squares_of_distances_add_over_releases() -> None:
    problem = Problem("bernoulli", everything=False)
    linear = sp.glm.LinearRegression(l2=L2).fit(problem.X, problem.y)
    other = sp.leakage(linear, problem.X, problem.y, noise=sp.Gaussian(0.3))
    alone = [np.asarray(leak.membership()) for leak in (problem.leak, other)]
    both = np.asarray(sp.compose(problem.leak, other).membership())
    assert both == pytest.approx(np.hypot(*alone), rel=1e-8)
    twice = np.asarray(sp.compose(problem.leak, problem.leak).membership())
    assert twice == pytest.approx(np.sqrt(2) * alone[0], rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_told_better_than_its_sensitivity_allows(seed: int) -> None:
    problem = Problem("bernoulli", everything=False, seed=seed)
    norms = np.linalg.norm(problem.X, axis=1)
    # Leaving a record out moves the minimiser by L/(nλ) at most, with L = ‖x‖ for logistic losses.
    assert np.all(np.asarray(problem.leak.membership()) <= norms / (N * L2) / 0.1)


def test_more_noise_tells_less() -> None:
    problem = Problem("poisson", everything=False)
    model = sp.glm.PoissonRegression(l2=L2).fit(problem.X, problem.y)
    noisier = sp.leakage(model, problem.X, problem.y, noise=sp.Gaussian(0.2))
    assert np.asarray(noisier.membership()) == pytest.approx(
        np.asarray(problem.leak.membership()) / 2, rel=1e-8
    )


def test_a_record_without_whom_there_is_no_model_is_told_for_certain() -> None:
    X = np.eye(3)[[0, 0, 1, 1, 2]]
    y = np.array([1.0, 2.0, 0.5, 1.5, 4.0])
    model = sp.glm.LinearRegression().fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).membership()
    assert np.isinf(np.asarray(found)[4])
    assert np.all(np.isfinite(np.asarray(found)[:4]))
    assert float(found.accuracy()[4]) == 1.0
    x = np.array([-2.0, -1.0, 1.0, 2.0, -3.0])[:, None]
    labels = np.array([0, 0, 1, 1, 1])  # the last record keeps the classes from being separable
    model = sp.glm.LogisticRegression(l2=0.0, fit_intercept=True).fit(x, labels)
    found = sp.leakage(model, x, labels, noise=sp.Gaussian(1.0)).membership()
    assert np.isinf(np.asarray(found)[4])


def test_a_refit_of_the_whole_pipeline_moves_more() -> None:
    rng = np.random.default_rng(0)
    raw = rng.gamma(1.0, size=(30, 2))
    y = (raw[:, 0] + 0.3 * rng.standard_normal(30) > 0.8).astype(int)

    def release(kept: np.ndarray) -> np.ndarray:
        X = (raw[kept] - raw[kept].mean(axis=0)) / raw[kept].std(axis=0)
        model = sp.glm.LogisticRegression(l2=0.3 / len(kept), fit_intercept=True).fit(X, y[kept])
        return np.append(model.coef_, model.intercept_)

    X = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    model = sp.glm.LogisticRegression(l2=0.01, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
    found = leak.membership(refit=release)
    here = release(np.arange(30))
    truth = [np.linalg.norm(release(np.delete(np.arange(30), i)) - here) / 0.1 for i in range(30)]
    assert np.asarray(found) == pytest.approx(truth, rel=1e-9)
    assert np.median(np.asarray(found)) > np.median(np.asarray(leak.membership()))
    assert "again" in found.mu.assumptions[1]
    assert "held fixed" in leak.membership().mu.assumptions[1]


@pytest.mark.parametrize("own", sampled([True, False], [False]), ids=["sp.glm", "scikit-learn"])
def test_a_pipeline_is_fitted_anew_without_the_record(own: bool) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    raw = rng.gamma(1.0, size=(30, 2))
    y = (raw[:, 0] + 0.3 * rng.standard_normal(30) > 0.8).astype(int)
    model = sp.glm.LogisticRegression(l2=0.01, fit_intercept=True)
    last = model if own else LogisticRegression(C=1 / 0.3, tol=1e-8)
    pipeline = make_pipeline(StandardScaler(), last).fit(raw, y)
    leak = sp.leakage(pipeline, raw, y, noise=sp.Gaussian(0.1))
    found = leak.membership(refit="pipeline")

    def released(kept: np.ndarray) -> np.ndarray:
        X = (raw[kept] - raw[kept].mean(axis=0)) / raw[kept].std(axis=0)
        return refit("bernoulli", X, y[kept].astype(float), np.ones(len(kept)), 0.3, True)

    every = np.arange(30)
    truth = [np.linalg.norm(released(np.delete(every, i)) - released(every)) for i in range(30)]
    assert np.asarray(found) == pytest.approx(np.array(truth) / 0.1, rel=1e-6)
    assert "again" in found.mu.assumptions[1]
    held = np.median(np.asarray(leak.membership(refit="model")))
    assert np.median(np.asarray(found)) > held
    assert np.array_equal(leak.membership(), found)
    with pytest.raises(sp.InputError, match="refit must be 'pipeline', 'model' or a function"):
        leak.membership(refit="all")


def test_only_a_pipeline_is_fitted_anew_by_name() -> None:
    problem = Problem("bernoulli", everything=False)
    with pytest.raises(sp.InputError, match="this release comes from a model alone"):
        problem.leak.membership(refit="pipeline")


def test_a_category_that_leaves_with_its_only_record_tells_for_certain() -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"kind": ["a", "b"] * 15 + ["c"], "age": rng.standard_normal(31)})
    y = rng.standard_normal(31)
    encode = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    pipeline = make_pipeline(encode, sp.glm.LinearRegression(l2=0.1)).fit(frame, y)
    leak = sp.leakage(pipeline, frame, y, noise=sp.Gaussian(0.1))
    found = np.asarray(leak.membership(rows=[3, 30], refit="pipeline"))
    assert np.isfinite(found[0])
    assert np.isinf(found[1])


@pytest.mark.parametrize("l2", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_labels_that_flip_stay_inside_their_intervals(l2: float, intercept: bool) -> None:
    rng = np.random.default_rng(4)
    n, d = 150, 12
    X = rng.standard_normal((n, d)) * np.geomspace(0.1, 10, d)
    X[:5] *= 4.0
    y = (X @ (rng.standard_normal(d) / 10) + rng.logistic(size=n) > 0).astype(float)
    model = sp.glm.LogisticRegression(l2=l2, fit_intercept=intercept).fit(X, y)
    changes = sp.leakage(model, X, y, noise=sp.Gaussian(0.1)).release.finite_changes()
    moves = changes.moves(np.arange(n), Alternatives(labels=changes.class_labels()))
    least, most = (ends.max(axis=1) for ends in moves.distances())
    here = refit("bernoulli", X, y, np.ones(n), n * l2, intercept)
    for i in range(0, n, 3):
        flipped = y.copy()
        flipped[i] = 1 - y[i]
        theta = refit("bernoulli", X, flipped, np.ones(n), n * l2, intercept)
        truth = np.linalg.norm(theta - here) / 0.1
        assert least[i] <= truth * (1 + 1e-8)
        assert truth <= most[i] * (1 + 1e-8)
    assert np.all(least > 0)  # even where there is no certificate
    if l2 == 100.0 and not intercept:
        assert np.all(most - least <= 0.05 * (most + least))


def test_few_passes_over_pairs_leave_wider_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("bernoulli", everything=True)
    changes = problem.leak.release.finite_changes()
    others = Alternatives((3,), np.array([[0.0], [2.0]]))
    truth = changes.moves_exactly(np.arange(N), others).distances()[1]
    narrow = changes.moves(np.arange(N), others).distances()
    monkeypatch.setattr("seepage.glm.changes.changed_records.PAIR_WORK", 1.0)
    wide = changes.moves(np.arange(N), others).distances()
    for least, most in (narrow, wide):
        assert np.all(least <= truth * (1 + 1e-8) + 1e-9)
        assert np.all(truth <= most * (1 + 1e-8) + 1e-9)
    assert np.all(wide[1] >= narrow[1])


@pytest.mark.parametrize("column", [3, None], ids=["replaced", "left-out"])
def test_intervals_do_not_depend_on_how_many_records_are_asked_at_once(
    column: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, rows = Problem("bernoulli", everything=True), np.arange(N)
    others = Alternatives((3,), np.array([[0.0], [2.0]]))

    def asked() -> tuple[np.ndarray, np.ndarray]:
        changes = problem.leak.release.finite_changes()
        found = changes.moves(rows) if column is None else changes.moves(rows, others)
        return found.distances()

    together = asked()
    monkeypatch.setattr("seepage.glm.changes.changed_records.AT_ONCE", 100)
    np.testing.assert_allclose(asked(), together, rtol=1e-9)


def test_a_few_refits_leave_honest_intervals_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("bernoulli", everything=True)
    truth = np.asarray(problem.leak.membership(exact=True))
    monkeypatch.setattr("seepage.core.risk_views._FREE_WORK", 40.0 * problem.X.size * 10)
    found = problem.leak.membership()
    assert found.mu.kind == "bound"
    assert np.all(found.lower <= truth * (1 + 1e-8))
    assert np.all(truth <= np.asarray(found) * (1 + 1e-8))
    known = np.flatnonzero(np.asarray(found) - found.lower <= 1e-6 * truth)
    assert len(known) >= 10
    assert int(np.argmax(truth)) in known


def test_what_cannot_be_answered_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem("bernoulli", everything=False)
    model = sp.glm.LogisticRegression(l2=L2).fit(problem.X, problem.y)
    laplace = sp.leakage(model, problem.X, problem.y, noise=sp.Laplace(1.0))
    with pytest.raises(sp.InputError, match="only for Gaussian noise"):
        laplace.membership()
    with pytest.raises(sp.InputError, match="There is no prior 'nothing'"):
        problem.leak.guess("x3", prior="nothing")
    with pytest.raises(sp.InputError, match="tolerance must be a number above zero"):
        problem.leak.within("x0", -1.0)
    every = problem.leak.guess("x3")
    # With room for the alternatives of 11 records at a time.
    monkeypatch.setattr("seepage.core.risk_views._PRODUCTS_HELD", 100)
    some = problem.leak.guess("x3")
    # Refits end within 1e-11 of the whole move, in whatever company they are made.
    assert np.asarray(some) == pytest.approx(np.asarray(every), rel=1e-10)
    assert some.mu == pytest.approx(every.mu, rel=1e-10)


def test_two_releases_of_one_label_are_one_with_half_the_variance() -> None:
    problem = Problem("bernoulli", everything=False)
    model = sp.glm.LogisticRegression(l2=L2).fit(problem.X, problem.y)
    loud, quiet = (
        sp.leakage(model, problem.X, problem.y, noise=sp.Gaussian(sigma))
        for sigma in (0.1, 0.1 / np.sqrt(2))
    )
    twice = sp.compose(loud, loud).guess(rows=[2, 7])
    assert np.asarray(twice) == pytest.approx(np.asarray(quiet.guess(rows=[2, 7])), abs=1e-9)


def test_what_has_one_value_or_too_many_is_no_choice() -> None:
    problem = Problem("gaussian", everything=False)
    X = np.column_stack([problem.X[:, :2], np.full(N, 2.0)])
    model = sp.glm.LinearRegression(l2=L2).fit(X, problem.y)
    constant = sp.leakage(model, X, problem.y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="x2 has one value only"):
        constant.guess("x2")
    with pytest.raises(sp.InputError, match="x2 has fewer than two values"):
        constant.within("x2", 1.0)
    twice = np.vstack([X, X + 0.5])
    y = np.concatenate([problem.y, problem.y])
    larger = sp.leakage(
        sp.glm.LinearRegression(l2=L2).fit(twice, y), twice, y, noise=sp.Gaussian(1.0)
    )
    with pytest.raises(
        sp.InputError,
        match="x0 has 80 different values; choose another column or, for a number, use",
    ):
        larger.guess("x0")
    with pytest.raises(sp.InputError, match="This label is a class"):
        Problem("categorical", everything=False).leak.within(None, 1.0)


def test_equal_odds_of_a_number_are_those_of_even_steps_over_its_range() -> None:
    problem = Problem("gaussian", everything=False)
    found = problem.leak.within("x0", 0.4, "equal", rows=[3])
    grid = np.linspace(problem.X[:, 0].min(), problem.X[:, 0].max(), 65)
    most = max(int(np.sum((grid >= low) & (grid <= low + 0.8))) for low in grid)
    assert found.baseline == pytest.approx([most / 65])
    label = problem.leak.within(None, 0.4, rows=[3])
    near = [np.mean((problem.y >= low) & (problem.y <= low + 0.8)) for low in problem.y]
    assert label.baseline == pytest.approx([max(near)])


def test_the_models_prior_of_a_category_is_bayes_rule_without_the_record() -> None:
    problem = Problem("bernoulli", everything=False)
    found = problem.leak.guess("x3", prior="model", rows=[2, 7])
    shares = np.bincount(problem.X[:, 3].astype(int)) / N
    for k, i in enumerate([2, 7]):
        theta, record = problem.without([i]), problem.X[i]
        margins = record[:3] @ theta[:3] + np.arange(3) * theta[3]
        likely = 1 / (1 + np.exp(-(2 * problem.y[i] - 1) * margins))
        believed = shares * likely / np.sum(shares * likely)
        assert found.baseline[k] == pytest.approx(believed.max(), abs=1e-6)


def test_shares_of_a_class_are_not_guessed_as_a_class() -> None:
    problem = Problem("bernoulli", everything=False)
    shares = np.arange(N) % 5 / 4
    fitted = sm.GLM(shares, problem.X, family=sm.families.Binomial()).fit(tol=1e-12)
    leak = sp.leakage(fitted, problem.X, shares, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="Some labels are between classes"):
        leak.guess()


def test_rows_that_only_rounding_makes_alike_are_told_apart() -> None:
    table = np.array([[1.0, 0.0], [1.0, 1e-300], [1.0, 0.0], [0.0, 2.0]])
    values, counts = distinct_rows(table)
    assert values.tolist() == [[0.0, 2.0], [1.0, 0.0], [1.0, 1e-300]]
    assert counts.tolist() == [1, 2, 1]


def test_a_prior_of_its_own_for_every_record_that_is_read_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("gaussian", everything=True)
    leak = streamed(problem, in_parquet, tmp_path)
    prior = np.random.default_rng(3).dirichlet(np.ones(3), size=N)
    found = leak.guess("x3", prior=prior)
    assert found.baseline == pytest.approx(prior.max(axis=1))
    for i in (0, 33):
        points = np.stack([problem.whitened(problem.changed(i, v, 3)) for v in range(3)])
        assert found.right[i] == pytest.approx(bayes(points, prior[i]), abs=1e-6)
    monkeypatch.setattr("seepage.streams.disk.source._CHUNK", 40)
    monkeypatch.setattr("seepage.streams.disk.source._WIDE", 1)
    monkeypatch.setattr("seepage.core.risk_views._MOST_DISTINCT", 20)
    with pytest.raises(sp.InputError, match="more than 20 different values"):
        leak.within("x0", 0.5)
    # The values given are all that is counted.
    values = np.linspace(-1, 1, 9)
    found = leak.within("x0", 0.5, values=values)
    observed = np.asarray(problem.X)[:, 0]
    shares = np.bincount(np.abs(observed[:, None] - values).argmin(axis=1), minlength=9) / N
    covered = (values[None] >= values[:, None]) & (values[None] <= values[:, None] + 1 + 1e-9)
    assert found.baseline == pytest.approx((covered @ shares).max())


def test_a_record_replaced_by_itself_moves_nothing() -> None:
    problem = Problem("gaussian", everything=False)
    changes = problem.leak.release.finite_changes()
    rows, same = np.array([3]), Alternatives((0,), problem.X[3:4, :1])
    least, most = changes.moves_exactly(rows, same).distances()
    assert least.tolist() == most.tolist() == [[0.0]]
    with pytest.raises(sp.InputError, match="gaussian family has no probabilities, so the"):
        changes.log_likelihoods(rows, same)


def test_noises_of_any_shape_add_their_information() -> None:
    full = np.diag([1.0, 2.0, 3.0]) + 0.2
    both = Whitening((sp.Gaussian(full), sp.Gaussian(2.0)), 3)
    information = np.linalg.inv(full) + np.eye(3) / 4
    np.testing.assert_allclose(both.root.T @ both.root, information, rtol=1e-12)
    assert both.largest == pytest.approx(np.linalg.eigvalsh(information)[-1] ** 0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "label"),
    [(2.0, 3.0), (150.0, 3.0), (800.0, 3.0), (0.0, 3e3), (0.0, 1e6), (-900.0, 1e9), (1e5, 0.0)],
)
def test_margins_are_found_however_far_the_first_step_leads(given: float, label: float) -> None:
    """m + w(eᵐ − y) = given; also for records so far out that their mean is infinite."""
    found, solved = Outputs(poisson).own_margin(
        np.full((1, 1, 1), given), np.full((1, 1, 1, 1), 0.5), np.full((1, 1), label)
    )
    assert solved.all()
    truth = brentq(lambda m: m + 0.5 * (np.exp(m) - label) - given, -2e3, 100.0, xtol=1e-14)
    assert found.item() == pytest.approx(truth, rel=1e-9)


def test_half_of_all_records_leave_together() -> None:
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(700, 2)), sp.Gaussian(1.0)
    y = X @ [1.0, 2.0] + rng.normal(size=700)
    halves = np.repeat([0, 1], 350)
    model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    found = np.asarray(sp.leakage(model, X, y, noise=noise).membership(groups=halves))
    for half, distance in enumerate(found):
        # The penalty of the whole stays: nλ, of n records that are no longer there.
        rest = sp.glm.LinearRegression(l2=0.2).fit(X[halves != half], y[halves != half])
        moved = np.append(model.coef_ - rest.coef_, model.intercept_ - rest.intercept_)
        assert distance == pytest.approx(np.linalg.norm(moved), rel=1e-6)


def test_an_l1_penalty_keeps_other_columns_without_a_record() -> None:
    problem = Problem("gaussian", everything=False)
    model = Lasso(1e-3, tol=1e-12).fit(problem.X, problem.y)
    leak = sp.leakage(model, problem.X, problem.y, noise=sp.Gaussian(1.0))
    with pytest.raises(
        sp.InputError, match="The columns that an L1 penalty would select without a"
    ):
        leak.membership(refit="model")
    kept = np.delete(np.arange(N), 3)
    rest = Lasso(1e-3, tol=1e-12).fit(problem.X[kept], problem.y[kept])
    moved = np.append(rest.coef_ - model.coef_, rest.intercept_ - model.intercept_)
    assert float(leak.membership([3]).mu[0]) == pytest.approx(np.linalg.norm(moved), rel=1e-6)


def in_parquet(problem: Problem, folder: Path) -> Any:
    columns = {f"x{j}": problem.X[:, j] for j in range(4)}
    table = pa.table({**columns, "y": problem.y, "weight": problem.weight})
    pq.write_table(table, folder / "people.parquet", row_group_size=7)
    return sp.parquet(folder / "people.parquet", target="y", weight="weight")


def in_dask(problem: Problem, folder: Path) -> Any:
    X, y, weight = (
        da.from_array(array, chunks=(7, 4)[: array.ndim])
        for array in (problem.X, problem.y, problem.weight)
    )
    return sp.dask_rows(X, y, weight=weight)


@pytest.fixture(params=[in_parquet, in_dask], ids=["parquet", "dask"])
def door(request: pytest.FixtureRequest) -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield request.param


def streamed(problem: Problem, door: Any, folder: Path) -> Any:
    rows = door(problem, folder)
    model = FAMILIES[problem.family](l2=L2, fit_intercept=True).fit(rows)
    return sp.leakage(model, rows, noise=problem.noise)


@pytest.mark.parametrize("family", sampled(list(FAMILIES), 2))
def test_records_that_are_read_in_chunks_get_upper_ends(
    family: str, tmp_path: Path, door: Any
) -> None:
    problem = Problem(family, everything=True)
    truth = np.asarray(problem.leak.membership())
    leak = streamed(problem, door, tmp_path)
    risk = leak.membership()
    found = np.asarray(risk)
    assert np.all(found >= truth * (1 - 1e-7))
    assert np.all(risk.lower <= truth * (1 + 1e-7))
    if family == "gaussian":
        assert risk.mu.kind == "exact"
        assert found == pytest.approx(truth, rel=1e-7)
        assert np.asarray(risk.top(3)) == pytest.approx(np.sort(truth)[::-1][:3], rel=1e-7)
    written = pq.read_table(risk.write(tmp_path / "risks.parquet"))
    assert written["mu"].to_numpy() == pytest.approx(found, rel=1e-12)
    assert (tmp_path / "risks.parquet").stat().st_mode & 0o777 == 0o600
    some = leak.membership([30, 2, 9])
    assert some.mu.labels().tolist() == [2, 9, 30]
    assert np.asarray(some) == pytest.approx(found[[2, 9, 30]], rel=1e-12)
    for ask in (lambda: leak.membership(exact=True), lambda: leak.guess("x3", exact=3)):
        with pytest.raises(sp.InputError, match="Refits need all records in memory, but these are"):
            ask()


@pytest.mark.parametrize("family", sampled(list(FAMILIES), 1, 4))
@pytest.mark.parametrize(
    "prior", sampled(["frequencies", "equal", (0.2, 0.5, 0.3)], 1, 2, whole=True)
)
def test_guesses_of_records_that_are_read_in_chunks_hold_the_truth(
    family: str, prior: Any, tmp_path: Path, door: Any
) -> None:
    problem = Problem(family, everything=True)
    shares = np.bincount(problem.X[:, 3].astype(int)) / N
    believed = {"frequencies": shares, "equal": np.full(3, 1 / 3)}.get(prior, prior)
    found = streamed(problem, door, tmp_path).guess("x3", prior=prior)
    assert pq.read_table(found.write(tmp_path / "guesses.parquet")).num_rows == N
    with pytest.raises(sp.InputError, match="is a folder; give the path of the Parquet file"):
        found.write(tmp_path)
    assert found.baseline == pytest.approx(np.full(N, max(believed)))
    for i in (0, 7, 30):
        points = np.stack([problem.whitened(problem.changed(i, v, 3)) for v in range(3)])
        truth = bayes(points, np.asarray(believed))
        assert found.lower[i] - 1e-8 <= truth <= found.right[i] + 1e-8
        if family == "gaussian":
            assert (found.lower[i], found.right[i]) == pytest.approx((truth, truth), abs=1e-6)


@pytest.mark.parametrize("prior", sampled(["frequencies", "model"], ["model"]))
def test_labels_and_numbers_of_records_that_are_read_in_chunks(
    prior: str, tmp_path: Path, door: Any
) -> None:
    problem = Problem("bernoulli", everything=True)
    leak = streamed(problem, door, tmp_path)
    found = leak.guess(prior=prior)
    for i in (1, 9, 33):
        p = 1 - problem.y.mean()
        if prior == "model":
            theta = problem.without([i])
            p = 1 - 1 / (1 + np.exp(-(problem.X[i] @ theta[:4] + theta[4])))
        truth = two(problem.distance(problem.changed(i, 1 - problem.y[i], None)), p)
        assert found.lower[i] - 1e-8 <= truth <= found.right[i] + 1e-8
    values = np.linspace(-1, 1, 5)
    near = leak.within("x0", 0.5, "equal", values=values, rows=[4, 20])
    known = problem.leak.within("x0", 0.5, "equal", values=values, rows=[4, 20])
    assert near.right.kind == "estimate"
    assert near.baseline == pytest.approx(known.baseline)
    assert np.all(near.lower <= np.asarray(known) + 1e-12)
    assert np.all(np.asarray(near) >= known.lower - 1e-12)


@pytest.mark.parametrize("prior", sampled(["frequencies", "model"], ["model"]))
def test_classes_of_records_that_are_read_in_chunks(prior: str, tmp_path: Path, door: Any) -> None:
    problem = Problem("categorical", everything=True)
    found = streamed(problem, door, tmp_path).guess(prior=prior)
    believed = np.bincount(problem.y.astype(int)) / N
    for i in (1, 9, 33):
        if prior == "model":
            theta = problem.without([i]).reshape(5, 3)
            powers = np.exp(problem.X[i] @ theta[:4] + theta[4])
            believed = powers / powers.sum()
        points = np.stack([problem.whitened(problem.changed(i, c, None)) for c in range(3)])
        truth = bayes(points, believed)
        assert found.lower[i] - 1e-8 <= truth <= found.right[i] + 1e-8


def test_a_family_without_a_constant_is_refused_in_chunks(tmp_path: Path) -> None:
    problem = Problem("poisson", everything=False)
    table = pa.table({**{f"x{j}": problem.X[:, j] for j in range(4)}, "y": problem.y + 1.0})
    pq.write_table(table, tmp_path / "people.parquet", row_group_size=7)
    rows = sp.parquet(tmp_path / "people.parquet", target="y")
    model = sp.glm.GeneralizedLinearRegression("gamma", l2=L2).fit(rows)
    with pytest.raises(sp.InputError, match="requires refits, which need all records in memory"):
        sp.leakage(model, rows, noise=sp.Gaussian(1.0)).membership()


@pytest.mark.parametrize("levels", [3, 5])
def test_guesses_at_several_scales_are_those_with_other_noise(levels: int) -> None:
    """One pass serves all noises; a gain that is known spares no integral that may exceed it."""
    rng = np.random.default_rng(levels)
    level = rng.integers(0, levels, 60)
    X = np.column_stack([rng.standard_normal(60), np.eye(levels)[level][:, 1:]])
    y = X @ rng.standard_normal(levels) + rng.standard_normal(60)
    model = sp.glm.LinearRegression(l2=0.02, fit_intercept=True).fit(X, y)
    scales, columns = (1.0, 0.3, 4.0), list(range(1, levels))

    def asked(noise, scales, beyond):
        leak = sp.leakage(model, X, y, noise=sp.Gaussian(noise))
        changes = changes_of(leak)
        candidates = among_levels(leak, changes, columns, 1e-3)
        return guess_among(
            leak,
            changes,
            candidates,
            ["frequencies"],
            None,
            False,
            integrals=20,
            scales=scales,
            beyond=beyond,
        )

    together = asked(0.2, scales, (-np.inf,) * 3)
    gains = []
    for scale, guess in zip(scales, together, strict=True):
        (alone,) = asked(0.2 / scale, (1.0,), (-np.inf,))
        np.testing.assert_allclose(np.asarray(guess), np.asarray(alone), rtol=1e-9)
        np.testing.assert_allclose(guess.mu, alone.mu, rtol=1e-9)
        gains.append(float(np.max(np.asarray(guess.gain()))))
    assert gains[1] < gains[0] < gains[2]
    less = asked(0.2, scales, [gain / 2 for gain in gains])
    most = [float(np.max(np.asarray(guess.gain()))) for guess in less]
    assert most == pytest.approx(gains)
