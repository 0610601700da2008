"""Softmax: intervals for all records hold what brute-force refits find, and refined ones are it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from refit_oracle import refit
from scipy.stats import norm
from sklearn.datasets import load_iris

import seepage as sp
from bayes_oracle import by_lines
from sampled import sampled
from seepage.core.finite_changes import (
    Alternatives,
    Moves,
)

N, SIGMA = 45, 0.1
ROWS = np.arange(0, N, 4)


@dataclass
class Case:
    """A softmax model of random classes, and its refits written out."""

    classes: int
    intercept: bool
    weighted: bool
    l2: float
    noisy: float = 1.0  # near zero the classes are nearly separable

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.classes)
        self.X = rng.standard_normal((N, 3))
        self.X[:, 2] = rng.integers(0, 3, N)
        self.X[0] *= 4.0
        scores = self.X @ rng.standard_normal((3, self.classes)) * 2
        scores += self.noisy * rng.gumbel(size=scores.shape)
        self.y = np.argmax(scores, axis=1).astype(float)
        # Each class at least twice, so that the rest has them all whoever leaves.
        self.y[-2 * self.classes :] = np.tile(np.arange(self.classes), 2)
        self.weight = rng.uniform(0.3, 2.5, N) if self.weighted else np.ones(N)
        given = self.weight if self.weighted else None
        model = sp.glm.SoftmaxRegression(l2=self.l2, fit_intercept=self.intercept)
        model.fit(self.X, self.y, sample_weight=given)
        self.leak = sp.leakage(model, self.X, self.y, noise=sp.Gaussian(SIGMA), sample_weight=given)
        self.here = self.refitted(self.X, self.y, self.weight)

    def refitted(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return refit("categorical", X, y, weight, N * self.l2, self.intercept, self.classes) / SIGMA

    def without(self, row: int) -> np.ndarray:
        kept = np.delete(np.arange(N), row)
        return self.refitted(self.X[kept], self.y[kept], self.weight[kept])

    def labelled(self, row: int, label: int) -> np.ndarray:
        y = self.y.copy()
        y[row] = label
        return self.refitted(self.X, y, self.weight)

    def moved(self, row: int, value: float) -> np.ndarray:
        X = self.X.copy()
        X[row, 2] = value
        return self.refitted(X, self.y, self.weight)

    def far(self, theta: np.ndarray) -> float:
        return float(np.linalg.norm(theta - self.here))


CASES = [
    (classes, intercept, weighted, l2, noisy)
    for classes in (2, 3, 5)
    for intercept, weighted, l2, noisy in [
        (False, False, 1.0, 1.0),
        (True, True, 0.3, 1.0),
        (False, True, 1e-2, 1.0),
        (True, False, 1e-2, 1e-3),
        (False, False, 1e-4, 1e-3),
        (True, True, 1e-4, 1.0),
    ]
]


@pytest.fixture(scope="module", params=sampled(CASES, 4, whole=True), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def holds(moves: Moves, truth: np.ndarray) -> bool:
    least, most = moves.distances()
    above = np.all(least <= truth * (1 + 1e-7) + 1e-9)
    return bool(above and np.all(truth <= most * (1 + 1e-7) + 1e-9))


def test_intervals_hold_every_refit(case: Case) -> None:
    changes = case.leak.release.finite_changes()
    gone = np.array([[case.far(case.without(i))] for i in ROWS])
    assert holds(changes.moves(ROWS), gone)
    labels = Alternatives(labels=changes.class_labels())
    relabelled = np.array(
        [[case.far(case.labelled(i, k)) for k in range(case.classes)] for i in ROWS]
    )
    assert holds(changes.moves(ROWS, labels), relabelled)
    levels = Alternatives((2,), np.array([[0.0], [1.0], [2.0]]))
    moved = np.array([[case.far(case.moved(i, v)) for v in range(3)] for i in ROWS])
    assert holds(changes.moves(ROWS, levels), moved)


def test_intervals_hold_where_a_column_is_far_from_zero() -> None:
    # What the released intercept moves by is then mostly the coefficients' move times that far.
    rng = np.random.default_rng(27)
    far, n, l2 = np.array([100.0, 0.0]), 36, 6.0
    near = rng.standard_normal((n, 2)) * [1.0, 0.3]
    y = rng.integers(0, 4, n).astype(float)
    model = sp.glm.SoftmaxRegression(l2=l2, fit_intercept=True).fit(near + far, y)
    leak = sp.leakage(model, near + far, y, noise=sp.Gaussian(SIGMA))

    def released(labels: np.ndarray) -> np.ndarray:
        theta = refit("categorical", near, labels, np.ones(n), n * l2, True, 4).reshape(3, 4)
        theta[2] -= far @ theta[:2]
        return theta / SIGMA

    here, truth = released(y), np.zeros((n, 4))
    for i in range(n):
        for label in range(4):
            changed = y.copy()
            changed[i] = label
            truth[i, label] = np.linalg.norm(released(changed) - here)
    changes = leak.release.finite_changes()
    assert holds(changes.moves(np.arange(n), Alternatives(labels=np.eye(4))), truth)


def test_refits_are_what_brute_force_finds(case: Case) -> None:
    changes = case.leak.release.finite_changes()
    gone = [case.far(case.without(i)) for i in ROWS]
    found = changes.moves_exactly(np.asarray(ROWS))
    assert found.expected()[:, 0] == pytest.approx(gone, rel=1e-8, abs=1e-9)
    labels = Alternatives(labels=changes.class_labels())
    relabelled = [[case.far(case.labelled(i, k)) for k in range(case.classes)] for i in ROWS]
    found = changes.moves_exactly(ROWS, labels)
    assert found.expected() == pytest.approx(np.array(relabelled), rel=1e-8, abs=1e-9)


def test_ordinary_records_are_certified_without_a_refit() -> None:
    X, y = load_iris(return_X_y=True)
    model = sp.glm.SoftmaxRegression(l2=0.1).fit(X, y)
    changes = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA)).release.finite_changes()
    least, most = changes.moves(np.arange(len(X))).distances()
    assert np.all(most - least <= 0.05 * (most + least))
    model = sp.glm.SoftmaxRegression(l2=10.0).fit(X, y)
    changes = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA)).release.finite_changes()
    moves = changes.moves(np.arange(len(X)), Alternatives(labels=np.eye(3)))
    least, most = moves.distances()
    assert np.all(most - least <= 0.05 * (most + least))


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [1e-3, 0.1, 3.0])
def test_two_classes_are_the_logistic_model(l2: float, intercept: bool) -> None:
    # Of two classes' coefficients ±w/2, which are √½ as long, half the penalty is on w.
    rng = np.random.default_rng(0)
    X, weight = rng.standard_normal((120, 4)), rng.uniform(0.5, 2.0, 120)
    X[:, 3] = rng.integers(0, 2, 120)
    y = (X @ [1.0, -2.0, 0.5, 1.0] + rng.logistic(size=120) > 0).astype(int)
    options = {"fit_intercept": intercept}
    one = sp.glm.LogisticRegression(l2=l2, **options).fit(X, y, sample_weight=weight)
    two = sp.glm.SoftmaxRegression(l2=2 * l2, **options).fit(X, y, sample_weight=weight)
    leaks = [
        sp.leakage(model, X, y, noise=sp.Gaussian(sigma), sample_weight=weight)
        for model, sigma in ((one, SIGMA), (two, SIGMA / np.sqrt(2)))
    ]
    rows = np.arange(120)
    for ask in (
        lambda changes: changes.moves(rows),
        lambda changes: changes.moves(rows, Alternatives(labels=changes.class_labels())),
        lambda changes: changes.moves(rows, Alternatives((3,), np.array([[0.0], [1.0]]))),
    ):
        (low, high), (least, most) = (
            ask(leak.release.finite_changes()).distances() for leak in leaks
        )
        # The logistic model is expanded to a higher order: its intervals are narrower.
        assert np.all(low <= most * (1 + 1e-9))
        assert np.all(least <= high * (1 + 1e-9))
    told = [np.asarray(leak.membership()) for leak in leaks]
    assert told[1] == pytest.approx(told[0], rel=1e-7, abs=1e-9)
    for prior in ("equal", "model"):
        guessed = [np.asarray(leak.guess(prior=prior)) for leak in leaks]
        assert guessed[1] == pytest.approx(guessed[0], abs=1e-7)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_few_refits_leave_honest_intervals_for_the_rest(
    intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(3, intercept, True, 0.1)
    monkeypatch.setattr("seepage.core.risk_views._FREE_WORK", 40.0 * case.X.size * 3 * 12)
    found = case.leak.membership()
    truth = np.array([case.far(case.without(i)) for i in range(N)])
    assert found.mu.kind == "bound"
    assert np.all(found.lower <= truth * (1 + 1e-7))
    assert np.all(truth <= np.asarray(found) * (1 + 1e-7))
    exact = np.flatnonzero(np.asarray(found) - found.lower <= 1e-6 * truth)
    assert 12 <= len(exact) < N
    assert int(np.argmax(truth)) in exact
    assert np.asarray(found)[exact] == pytest.approx(truth[exact], rel=1e-7)


def bayes(case: Case, row: int, prior: np.ndarray) -> float:
    """Integrate Bayes' rule over the plane that the releases under three labels span."""
    points = np.stack([case.labelled(row, label) for label in range(3)])
    centred = points - points.mean(axis=0)
    basis = np.linalg.svd(centred, full_matrices=False)[2][:2]
    return by_lines(centred @ basis.T, prior)


@pytest.mark.parametrize("prior", sampled(["equal", "model"], ["model"]))
def test_guesses_of_a_class_without_refits_hold_bayes_rule(
    prior: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(3, True, True, 10.0)
    monkeypatch.setattr("seepage.core.risk_views._FREE_WORK", 1.0)
    monkeypatch.setattr("seepage.glm.changes.changed_records.REFIT_WORK", 1.0)
    found = case.leak.guess(prior=prior)
    assert found.right.kind == "bound"
    assert np.median(np.asarray(found) - found.lower) < 0.25
    for row in (0, 11, 30):
        believed = np.full(3, 1 / 3)
        if prior == "model":
            theta = SIGMA * case.without(row).reshape(4, 3)
            powers = np.exp(case.X[row] @ theta[:3] + theta[3])
            believed = powers / powers.sum()
        truth = bayes(case, row, believed)
        assert found.lower[row] - 1e-8 <= truth <= float(np.asarray(found)[row]) + 1e-8


def test_a_class_that_leaves_with_its_only_record_tells_for_certain() -> None:
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((40, 2)), rng.integers(0, 3, 40)
    y[7] = 3
    model = sp.glm.SoftmaxRegression(l2=0.1, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).membership()
    assert np.flatnonzero(np.isinf(np.asarray(found))).tolist() == [7]


def test_softmax_with_an_intercept_is_refitted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(*_: object) -> np.ndarray:
        raise AssertionError("a refit was given up")

    monkeypatch.setattr("seepage.glm.changes.batched_refits.BatchedRefits._alone", one_by_one)
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = sp.glm.SoftmaxRegression(l2=0.01, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).membership(exact=True)
    assert np.all(np.isfinite(np.asarray(found)))
    right = np.asarray(found.accuracy())
    assert right == pytest.approx(norm.cdf(np.asarray(found) / 2))
