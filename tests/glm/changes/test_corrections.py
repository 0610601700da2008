"""Corrections: the stated distance covers a fit from scratch, from good starts and from none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import seepage as sp
from seepage.glm.changes.batched_refits import Change
from seepage.glm.changes.corrections import _solutions, correct

N, L2 = 600, 0.02


def problem(family: str) -> tuple[Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, 3))
    margin = X @ np.array([1.0, -0.5, 0.3]) + 0.4 * rng.standard_normal(N)
    if family == "softmax":
        return sp.glm.SoftmaxRegression, X, np.digitize(margin, [-0.8, 0.0, 0.8])
    if family == "logistic":
        return sp.glm.LogisticRegression, X, (margin > 0).astype(float)
    return sp.glm.PoissonRegression, X, rng.poisson(np.exp(margin / 3)).astype(float)


def numbers(model: Any) -> np.ndarray:
    """Return coefficients and intercept, less what all classes have in common."""
    both = np.vstack([np.atleast_2d(model.coef_).T, np.reshape(model.intercept_, (1, -1))])
    return (both - both.mean(axis=1, keepdims=True) * (both.shape[1] > 1)).reshape(-1)


@pytest.mark.parametrize("started", [True, False], ids=["centre", "nothing"])
@pytest.mark.parametrize("family", ["softmax", "logistic", "poisson"])
def test_the_distance_covers_a_fit_from_scratch(family: str, started: bool) -> None:
    make, X, y = problem(family)
    model = make(l2=L2).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    changes = leak.release.finite_changes()
    target = changes.model.target
    rows = np.arange(0, N, 60)
    starts, left = changes.starts(rows, None)
    gone = [Change(np.array([row])) for row in rows]
    moved = [
        Change(np.array([row]), changes.model.X[[row]] + 0.2, target[[row - 1]], np.ones(1))
        for row in rows
    ]
    ridge = changes.model.fit.ridge
    lighter = [replace(change, ridge=0.98 * ridge) for change in gone]
    heavier = [replace(change, ridge=1.02 * ridge) for change in moved]
    mixed = [*gone[:5], *heavier[5:]]
    for some in (gone, moved, lighter, heavier, mixed):
        begin = starts[:, 0] if started else np.zeros_like(starts[:, 0])
        found = correct(changes.refits, some, begin, left)
        assert np.isfinite(found.radius).sum() >= 7  # of ten
        for k in np.flatnonzero(np.isfinite(found.radius)):
            keep = np.arange(N) != rows[k]
            Z, t = X[keep], y[keep]
            if some[k].features is not None:
                Z, t = np.vstack([Z, X[rows[k]] + 0.2]), np.append(t, y[rows[k] - 1])
            l2 = (some[k].ridge or ridge) / len(t)
            truth = numbers(make(l2=l2).fit(Z, t)) - numbers(model)
            seen = changes.model.seen(found.moves[k])
            assert np.all(truth[len(seen) :] == 0)  # an intercept that is not fitted
            off = np.linalg.norm(seen - truth[: len(seen)])
            assert off <= found.radius[k] + 1e-8 * np.linalg.norm(truth)
            assert found.radius[k] <= 1e-7 * np.linalg.norm(truth) * (1 + 1e-6)


def test_a_change_beyond_reach_is_not_certified() -> None:
    make, X, y = problem("softmax")
    leak = sp.leakage(make(l2=L2).fit(X, y), X, y, noise=sp.Gaussian(1.0))
    changes = leak.release.finite_changes()
    far = Change(np.array([0]), 40 * changes.model.X[[0]], changes.model.target[[1]], np.ones(1))
    starts, left = changes.starts(np.array([0]), None)
    assert np.isinf(correct(changes.refits, [far], starts[:, 0], left).radius).all()
    both = Change(np.array([0, 1]))
    assert np.isinf(correct(changes.refits, [both], starts[:, 0], left).radius).all()


def test_a_table_whose_hessian_is_singular_or_overflowed_leaves_the_others_solved():
    draw = np.random.default_rng(0)
    Q = draw.standard_normal((5, 3, 3)) + 4 * np.eye(3)
    right = draw.standard_normal((5, 3))
    Q[1], Q[3, 0, 0] = 0.0, np.inf
    found = _solutions(Q, right)
    for k in (0, 2, 4):
        np.testing.assert_allclose(Q[k] @ found[k], right[k], atol=1e-12)
    assert np.isnan(found[1]).all()
