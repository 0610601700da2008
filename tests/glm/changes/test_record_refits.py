"""Refits with one record replaced, against fitting the changed table from scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression as SkLinearRegression

import seepage as sp
from cases import BY_NAME, CASES, audit, estimator
from oracle import jacobian_of, problem_of
from recipes import Case
from sampled import sampled
from seepage.glm.adapters.registry import describe
from seepage.glm.changes.changed_records import RecordRefits
from seepage.glm.jacobian.optimum import plain_optimum
from seepage.tables.source import read_table

# Where a case sits on an edge (no penalty and hardly any rows), its changed table may have no fit.
SAMPLE = [case for case in CASES if case.n <= 40 and case.d <= 18]


def changed(case: Case, row: int, features: np.ndarray) -> Case:
    X = case.X.copy()
    X[row] = features
    return Case(
        case.name, case.family, X, case.y, case.l2, case.intercept, case.sample_weight, case.noise
    )


def fitted(case: Case) -> np.ndarray | None:
    """Return the parameters of a fit from scratch, or None where the changed table has none."""
    try:
        model = estimator(case).fit(case.X, case.y, sample_weight=case.sample_weight)
    except sp.InputError:
        return None
    coef = np.atleast_2d(model.coef_).T
    if case.intercept:
        coef = np.concatenate([coef, np.reshape(model.intercept_, (1, -1))])
    return coef.reshape(-1)


def refits(case: Case) -> RecordRefits:
    return audit(case).refits()


@pytest.mark.parametrize("case", sampled(SAMPLE, 40), ids=lambda case: case.name)
def test_refits_agree_with_fits_from_scratch(case: Case) -> None:
    rng = np.random.default_rng(1)
    row = int(rng.integers(case.n))
    steps = np.array([0.0, 1e-3, 0.3, 3.0])[:, None]
    replacements = case.X[row] + steps * rng.standard_normal((4, case.d)) * case.X.std()
    found = refits(case).parameters(row, replacements).reshape(4, -1)
    for got, features in zip(found, replacements, strict=True):
        want = fitted(changed(case, row, features))
        if want is None:
            continue
        scale = np.abs(want).max() + 1e-6
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-7 * scale)


@pytest.mark.parametrize("name", ["logistic-everything", "linear-intercept", "poisson-l2"])
def test_labels_can_be_replaced_too(name: str) -> None:
    case = BY_NAME[name]
    label = 1.0 - case.y[3]
    y = case.y.copy()
    y[3] = label
    if case.family == "poisson":
        y[3] = label = 7.0
    got = refits(case).parameters(3, case.X[3], [label])[0]
    other = Case(case.name, case.family, case.X, y, case.l2, case.intercept, case.sample_weight)
    np.testing.assert_allclose(got, fitted(other), rtol=1e-8)


def test_a_softmax_label_is_replaced_as_a_whole() -> None:
    case = BY_NAME["softmax-3-l2"]
    y = case.y.copy()
    y[5] = (y[5] + 1) % 3
    got = refits(case).parameters(5, case.X[5], np.eye(3)[[y[5]]])[0]
    other = Case(case.name, case.family, case.X, y, case.l2)
    np.testing.assert_allclose(got.reshape(-1), fitted(other), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["logistic-everything", "linear", "softmax-3-weighted-intercept-l2", "laplace-linear"]
)
def test_the_jacobian_of_a_refit_is_that_of_the_changed_table(name: str) -> None:
    case = BY_NAME[name]
    features = case.X[2] + 0.5
    source = refits(case)
    theta = source.parameters(2, features)[0]
    label = source.fit.target[2, ...]
    jacobian = source.jacobian(2, features, label, theta, case.noise)
    unknowns = audit(case).unknowns(None, False)[0]
    got = jacobian.row_information(unknowns)(slice(0, 1))[0]
    dense = jacobian_of(problem_of(changed(case, 2, features)), case.noise)
    block = dense.block([2])
    np.testing.assert_allclose(got, block.T @ block, rtol=1e-7, atol=1e-10 * np.abs(got).max())


def test_without_a_minimiser_there_are_no_parameters() -> None:
    """Two classes that one record keeps from being separable, and no penalty."""
    X = np.array([[-2.0], [-1.0], [1.0], [2.0], [-1.5]])
    y = np.array([0, 0, 1, 1, 1])
    model = sp.glm.LogisticRegression(l2=0.0).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    found = leak.refits().parameters(4, [[1.5], [-1.0]])
    assert np.isnan(found[0, 0])
    assert np.isfinite(found[1, 0])


def test_composed_releases_are_refused() -> None:
    leaks: list[Any] = [audit(BY_NAME["linear"]), audit(BY_NAME["linear-l2"])]
    with pytest.raises(sp.InputError, match="one by one"):
        sp.compose(*leaks).refits()


def test_refits_of_a_linear_model_are_made_together(monkeypatch):
    """One of Newton's steps is all of the way there: none is taken for a fit that runs away."""
    rng = np.random.default_rng(8)
    X, labels = rng.standard_normal((30, 3)), rng.standard_normal(50)
    y = X @ [1.0, 2.0, 3.0] + rng.standard_normal(30)
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    refits = sp.leakage(model, X, y, noise=sp.Gaussian(0.3)).refits()
    monkeypatch.setattr("seepage.glm.changes.batched_refits.BatchedRefits._alone", None)
    found = refits.parameters(0, np.repeat(X[:1], 50, axis=0), labels)
    for label, theta in zip(labels, found, strict=True):
        changed = np.concatenate([[label], y[1:]])
        truth = np.linalg.solve(X.T @ X + 30 * 0.02 * np.eye(3), X.T @ changed)
        np.testing.assert_allclose(np.ravel(theta), truth, rtol=1e-10)


def test_without_a_unique_fit_no_refit_is_one():
    rng = np.random.default_rng(0)
    twice = np.repeat(rng.integers(-3, 4, size=(20, 1)).astype(float), 2, axis=1)
    y = rng.standard_normal(20)
    fit = describe(SkLinearRegression(fit_intercept=False).fit(twice, y), read_table(twice), y)
    with pytest.raises(sp.InputError, match="singular to working precision"):
        plain_optimum(fit, twice)
