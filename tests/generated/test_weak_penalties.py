"""Moves under weak penalties beside their truth in 60 digits: records left out, and replaced.

Every certified interval and every refit must hold the true distance: of wide, square and narrow
tables, of columns that nearly repeat one another, with offsets, weights and an intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from truth import Digits60, NoMinimiserError, Objective, Truth

import seepage as sp
from sampled import sampled
from seepage.core.finite_changes import (
    Alternatives,
    Moves,
)

KINDS = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "categorical": sp.glm.SoftmaxRegression,
}
SHAPES = {"wide": (8, 13), "square": (8, 8), "narrow": (16, 3), "repeated": (14, 4)}
SIGMA = 0.1
ROWS = np.array([0, 5])
NOTHING = 1e-30  # a distance that no rounding of parameters can tell from zero


@dataclass
class Problem:
    """A drawn table, and its model's refits in 60 digits."""

    family: str
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    intercept: bool
    alpha: float
    ridge: float = 0.0

    @classmethod
    def drawn(cls, seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        family = str(rng.choice(list(KINDS)))
        shape = str(rng.choice(list(SHAPES)))
        n, d = SHAPES[shape]
        X = rng.standard_normal((n, d))
        X[:, 0] = rng.permutation(np.arange(n) % 2)
        if shape == "repeated":
            X[:, 2] = X[:, 1] + 10.0 ** -rng.integers(2, 6) * rng.standard_normal(n)
        intercept = bool(rng.integers(0, 2))
        X[:, 1] *= 10.0 ** rng.integers(-2, 3)
        if intercept:
            X[:, 1] += 10.0 ** rng.integers(0, 4)
        signal = X[:, [0, -1]] @ [1.0, 0.7]
        y = signal + rng.standard_normal(n)
        if family == "bernoulli":
            y = (signal + rng.logistic(size=n) > 0).astype(float)
            y[:4] = [0, 1, 0, 1]
        elif family == "poisson":
            y = rng.poisson(np.exp(np.clip(signal, -3, 2))).astype(float) + (np.arange(n) == 0)
        elif family == "categorical":
            y = np.append(np.arange(6) % 3, rng.integers(0, 3, n - 6))
        weights = rng.uniform(0.3, 3, n) if rng.random() < 0.4 else None
        return cls(family, X, y, weights, intercept, 10.0 ** -rng.uniform(2, 8))

    def changes(self) -> Any:
        model = KINDS[self.family](l2=self.alpha / len(self.X), fit_intercept=self.intercept)
        model.fit(self.X, self.y, sample_weight=self.weights)
        leak = sp.leakage(
            model, self.X, self.y, noise=sp.Gaussian(SIGMA), sample_weight=self.weights
        )
        self.ridge = leak.release.fit.ridge
        return leak.release.finite_changes()

    def parameters(self, kept: Any = slice(None), X: Any = None, y: Any = None) -> Any:
        """Return the minimiser in 60 digits, or ``None`` where there is none."""
        X, y = self.X if X is None else X, self.y if y is None else y
        weights = None if self.weights is None else self.weights[kept]
        classes = 3 if self.family == "categorical" else 1
        told = (self.family, X[kept], y[kept], self.ridge, self.intercept, weights, classes)
        try:
            return Truth(Objective(*told), Digits60()).parameters
        except NoMinimiserError:
            return None

    def labels(self) -> tuple[Any, list[Any]]:
        if self.family == "categorical":
            return np.eye(3), [0, 1, 2]
        values = [0.0, 1.0] if self.family == "bernoulli" else [float(self.y[0]) + 1, 2.0]
        return np.array(values), values


def check(moves: Moves, distances: list[list[float]], every_penalised: bool) -> None:
    least, most = moves.distances()
    for m, row in enumerate(distances):
        for k, truth in enumerate(row):
            if truth < NOTHING:
                continue
            assert least[m, k] <= truth * (1 + 1e-13)
            assert most[m, k] >= truth * (1 - 1e-13)
            off = abs(moves.expected()[m, k] - truth) if np.isfinite(truth) else 0.0
            assert off <= moves.radius[m, k] + 1e-13 * truth
            assert np.isfinite(most[m, k]) or not every_penalised


@pytest.mark.parametrize("seed", sampled(range(60), 6))
def test_moves_under_weak_penalties_hold_the_truth(seed: int) -> None:
    problem = Problem.drawn(seed)
    changes = problem.changes()
    here, n = problem.parameters(), len(problem.X)

    def distance(there: Any) -> float:
        if there is None:
            return float("inf")
        return float(Digits60().sqrt(((there - here) ** 2).sum())) / SIGMA

    left_out = [[distance(problem.parameters(np.arange(n) != i))] for i in ROWS]
    penalised = not problem.intercept
    check(changes.moves(ROWS), left_out, penalised)
    check(changes.moves_exactly(np.asarray(ROWS)), left_out, penalised)

    columns, labels = [], []
    coded, values = problem.labels()
    for i in ROWS:
        columns.append([])
        for value in (0.0, 1.0):
            X = problem.X.copy()
            X[i, 0] = value
            columns[-1].append(distance(problem.parameters(X=X)))
        labels.append([])
        for value in values:
            y = problem.y.copy()
            y[i] = value
            labels[-1].append(distance(problem.parameters(y=y)))
    for others, truth in (
        (Alternatives((0,), np.array([[0.0], [1.0]])), columns),
        (Alternatives(labels=coded), labels),
    ):
        check(changes.moves(ROWS, others), truth, penalised)
        check(changes.moves_exactly(ROWS, others), truth, penalised)
