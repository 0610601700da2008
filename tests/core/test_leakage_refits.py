"""Leakage against finite differences of actual refits: move one number, train again, compare.

Features move both ways (differences of fourth order). Labels may only move inwards from where they
are: a class can be mixed with another one, a count of zero can only grow. A mixed label of a
classifier is two copies of the row, one for each class, with the weight divided between them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import seepage as sp
from cases import BY_NAME, Case, audit, fit
from oracle import dfil, fil, simplex_basis, whitener

STEP = 1e-3
CENTRAL = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
FORWARD = {0: -25 / 12, 1: 48 / 12, 2: -36 / 12, 3: 16 / 12, 4: -3 / 12}
TOLERANCE = 1e-7  # what is left of the differences' own error, relative to the row

NAMES = [
    "linear-everything",
    "logistic",
    "logistic-everything",
    "poisson-intercept",
    "poisson-weighted",
    "softmax-3-l2",
    "softmax-3-weighted-intercept-l2",
    "covariance-linear-intercept",
]
ROWS = [0, 7]


def parameters(case: Case) -> np.ndarray:
    """Train on a case and return what is released, the intercept last."""
    model = fit(case)
    coef, intercept = np.asarray(model.coef_), np.asarray(model.intercept_)
    if case.family == "categorical":  # (K, d) as scikit-learn has it; the class is the fast index
        rows = [coef.T, intercept[None, :]] if case.intercept else [coef.T]
        return np.concatenate(rows).reshape(-1)
    return np.append(coef, intercept) if case.intercept else coef.reshape(-1)


def difference(weights: dict[int, float], moved: dict[int, Case]) -> np.ndarray:
    return sum(weights[k] * parameters(moved[k]) for k in weights) / STEP


def feature_derivative(case: Case, i: int, j: int) -> np.ndarray:
    moved = {}
    for k in CENTRAL:
        X = case.X.copy()
        X[i, j] += k * STEP
        moved[k] = replace(case, X=X)
    return difference(CENTRAL, moved)


def number_derivative(case: Case, i: int) -> np.ndarray:
    """Differentiate by a label that is a number."""
    moved = {}
    for k in FORWARD:
        y = case.y.copy()
        y[i] += k * STEP
        moved[k] = replace(case, y=y)
    return difference(FORWARD, moved)


def mixed(case: Case, i: int, other: float, share: float) -> Case:
    """Give ``share`` of row i's weight to a copy of the row that is labelled ``other``."""
    weight = np.ones(case.n) if case.sample_weight is None else case.sample_weight
    weight = np.append(weight, weight[i] * share)
    weight[i] *= 1 - share
    return replace(
        case,
        X=np.vstack([case.X, case.X[i]]),
        y=np.append(case.y, other),
        sample_weight=weight,
        l2=case.l2 * case.n / (case.n + 1),  # the penalty is nλ/2, and n has grown
    )


def class_derivatives(case: Case, i: int) -> np.ndarray:
    """Differentiate by a label that is a class, along each of its orthonormal coordinates."""
    classes = np.unique(case.y)
    others = [c for c in classes if c != case.y[i]]
    towards = [
        difference(FORWARD, {k: mixed(case, i, other, k * STEP) for k in FORWARD})
        for other in others
    ]
    moves = np.array([(classes == other) * 1.0 - (classes == case.y[i]) for other in others]).T
    if case.family == "bernoulli":  # the label is the probability of the second class
        return np.array(towards).T / moves[1]
    return np.array(towards).T @ np.linalg.pinv(moves) @ simplex_basis(len(classes))


def refitted_jacobian(case: Case, i: int) -> np.ndarray:
    features = np.array([feature_derivative(case, i, j) for j in range(case.d)]).T
    if case.family in ("bernoulli", "categorical"):
        label = class_derivatives(case, i)
    else:
        label = number_derivative(case, i)[:, None]
    full = np.concatenate([features, label], axis=1)
    return whitener(case.noise, len(full)) @ full


@pytest.mark.parametrize("i", ROWS)
@pytest.mark.parametrize("name", NAMES)
def test_leakage_is_what_refits_show(name: str, i: int) -> None:
    case = BY_NAME[name]
    leak, J, d = audit(case), refitted_jacobian(case, i), case.d
    expected = {
        "rows": (leak.rows()[i], fil(J)),
        "features": (leak.rows(label=False)[i], fil(J[:, :d])),
        "label": (leak.rows(columns=[], label=True)[i], fil(J[:, d:])),
        "dfil": (leak.rows(measure="dfil")[i], dfil(J)),
        "two columns": (leak.rows(columns=[0, d - 1])[i], fil(J[:, [0, d - 1]])),
    }
    for j in range(d):
        expected[f"cell {j}"] = (leak.cells()[i, j], fil(J[:, [j]]))
    for what, (got, want) in expected.items():
        assert abs(got - want) <= TOLERANCE * fil(J), f"{what}: {got!r}, refits say {want!r}"


def test_group_leakage_is_what_refits_show() -> None:
    case = BY_NAME["logistic-everything"]
    J = np.concatenate([refitted_jacobian(case, i) for i in (2, 5)], axis=1)
    got = float(audit(case).subset(rows=[2, 5]))
    np.testing.assert_allclose(got, fil(J), rtol=TOLERANCE)


@pytest.mark.slow
def test_column_leakage_is_what_refits_show() -> None:
    case = replace(BY_NAME["poisson-intercept"], noise=sp.Gaussian(0.5))
    J = 2.0 * np.array([feature_derivative(case, i, 1) for i in range(case.n)]).T
    np.testing.assert_allclose(audit(case).rows(columns=[1])[3], fil(J[:, [3]]), rtol=TOLERANCE)
    np.testing.assert_allclose(float(audit(case).subset(columns=[1])), fil(J), rtol=TOLERANCE)
