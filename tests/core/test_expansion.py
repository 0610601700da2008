"""Moves to third order against refits written out in full, one record at a time."""

from __future__ import annotations

import numpy as np
import pytest
from refit_oracle import refit

import seepage as sp
from seepage.core.finite_changes import Alternatives
from seepage.glm.changes.centres import Centres
from seepage.glm.losses import get_family

MODELS = {"bernoulli": sp.glm.LogisticRegression, "poisson": sp.glm.PoissonRegression}


class Case:
    """A table with a rare level, weights and one record far from the others."""

    def __init__(self, family: str, seed: int, n: int, d: int, l2: float) -> None:
        rng = np.random.default_rng(seed)
        self.family, self.l2, self.intercept = family, l2, bool(seed % 2)
        self.X = rng.normal(size=(n, d)) * rng.uniform(0.3, 3.0, size=d)
        self.X[:, 0] = rng.random(n) < 0.1
        self.X[0] *= 4
        margin = self.X @ rng.normal(size=d) / (2 * np.sqrt(d))
        noisy = rng.random(n) < 1 / (1 + np.exp(-margin))
        counts = rng.poisson(np.exp(np.clip(margin, -2.0, 2.0)))
        self.y = (noisy if family == "bernoulli" else counts).astype(float)
        self.weight = rng.uniform(0.5, 2.0, n) if seed % 3 else np.ones(n)
        model = MODELS[family](l2=l2, fit_intercept=self.intercept)
        model.fit(self.X, self.y, sample_weight=self.weight)
        leak = sp.leakage(model, self.X, self.y, noise=sp.Gaussian(1.0), sample_weight=self.weight)
        self.changes = leak.release.finite_changes()
        self.theta = self.refitted(self.X, self.y, self.weight)

    def refitted(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        ridge = len(self.X) * self.l2
        return refit(self.family, X, y, weight, ridge, self.intercept)

    def moved_without(self, row: int) -> np.ndarray:
        kept = np.delete(np.arange(len(self.X)), row)
        return self.refitted(self.X[kept], self.y[kept], self.weight[kept]) - self.theta

    def moved_with(self, row: int, value: float | None, label: float | None) -> np.ndarray:
        X, y = self.X.copy(), self.y.copy()
        if value is not None:
            X[row, 0] = value
        if label is not None:
            y[row] = label
        return self.refitted(X, y, self.weight) - self.theta


CASES = [
    (family, seed, n, d, l2)
    for family in MODELS
    for seed, (n, d, l2) in enumerate(
        [(60, 2, 1e-2), (60, 3, 1e-4), (200, 5, 1e-3), (400, 2, 1e-6), (300, 12, 1e-2)]
    )
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def rows_of(case: Case) -> np.ndarray:
    return np.r_[0:8, len(case.X) - 4 : len(case.X)]


def test_the_refit_without_a_record_lies_within_the_radius(case: Case) -> None:
    rows, expansion = rows_of(case), case.changes.expansion
    assert expansion.exists
    found = expansion.of(rows, None, Centres.of(case.changes.model, rows[:, None], None))
    moves = expansion.moves(rows, None)
    close = 0
    for k, row in enumerate(rows):
        truth, here = case.moved_without(row), found.moves[k, 0] @ expansion.root.T
        radius = moves.radius[k, 0]
        assert np.linalg.norm(here - truth) <= radius + 1e-9 * np.linalg.norm(truth)
        least, most = (ends[k, 0] for ends in moves.distances())
        slack = 1e-9 * np.linalg.norm(truth)
        assert least - slack <= np.linalg.norm(truth) <= most + slack
        close += radius <= 5e-2 * np.linalg.norm(truth)
    assert close >= len(rows) // 2  # a bound that says nothing would hold, too


@pytest.mark.parametrize("what", ["value", "label"])
def test_a_record_with_another_value_or_label_lies_within_the_radius(case: Case, what: str) -> None:
    rows, expansion = rows_of(case), case.changes.expansion
    values = np.array([0.0, 1.0])
    others = Alternatives((0,), values[:, None]) if what == "value" else Alternatives(labels=values)
    moves = expansion.moves(rows, others)
    for k, row in enumerate(rows):
        truth = [
            case.moved_with(row, *((v, None) if what == "value" else (None, v))) for v in values
        ]
        length = np.array([np.linalg.norm(move) for move in truth])
        least, most = (ends[k] for ends in moves.distances())
        slack = 1e-9 * length.max()
        assert np.all(least - slack <= length)
        assert np.all(length <= most + slack)
        apart = np.linalg.norm(truth[0] - truth[1])
        assert apart <= moves.between()[k, 0, 1] + slack


@pytest.mark.parametrize("family", list(MODELS))
def test_every_order_brings_the_move_closer(family: str) -> None:
    """The centre is off by second powers of the shifts, the expansion by third or fourth ones."""
    case = Case(family, 1, 2000, 2, 1e-4)
    rows, expansion = np.arange(1, 40), case.changes.expansion
    assert expansion.forms.fourth is not None
    centres = Centres.of(case.changes.model, rows[:, None], None)
    truth = np.stack([case.moved_without(row) for row in rows])
    at_centre = centres.moves(case.changes.model, rows[:, None])[:, 0]
    expanded = expansion.of(rows, None, centres).moves[:, 0] @ expansion.root.T
    off = np.linalg.norm(at_centre - truth, axis=1), np.linalg.norm(expanded - truth, axis=1)
    assert np.median(off[1] / off[0]) < 1e-3


@pytest.mark.parametrize("family", list(MODELS))
def test_no_refit_is_needed_where_the_expansion_is_close(family: str) -> None:
    case = Case(family, 1, 3000, 2, 1e-3)
    case.changes.moves_exactly = None  # any refit would fail
    moves = case.changes.moves(np.arange(1, 3000))
    least, most = moves.distances()
    assert np.mean(1 - least / most <= 1e-6) > 0.95


@pytest.mark.parametrize("family", list(MODELS))
def test_higher_derivatives_are_no_larger_than_the_curvature(family: str) -> None:
    """What the radius supposes of the loss, at many margins."""
    loss, M = get_family(family), get_family(family).self_concordance
    m = np.linspace(-30, 5, 20_001)
    y = np.zeros_like(m)
    fourth = np.asarray(loss.curvature_bend(m, y))
    fifth = np.gradient(fourth, m)
    curvature = np.asarray(loss.curvature(m, y))
    assert np.all(np.abs(fourth) <= M**2 * curvature * (1 + 1e-12))
    assert np.all(np.abs(fifth[1:-1]) <= M**3 * curvature[1:-1] * (1 + 1e-3))


def test_likelihoods_of_a_record_agree_with_refits_without_it(case: Case) -> None:
    rows = rows_of(case)
    others = Alternatives(labels=np.array([0.0, 1.0]))
    scores, off = case.changes.log_likelihoods(rows, others, refits=0)
    X = np.hstack([case.X, np.ones((len(case.X), 1))]) if case.intercept else case.X
    for k, row in enumerate(rows):
        m = float(X[row] @ (case.theta + case.moved_without(row)))
        rise = np.logaddexp(0, m) if case.family == "bernoulli" else np.exp(m)
        truth = np.array([-rise, m - rise])
        assert np.all(np.abs(scores[k] - truth) <= off[k] + 1e-9)
