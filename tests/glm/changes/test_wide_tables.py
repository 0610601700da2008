"""Membership under weak penalties on more columns than records: right, or wide, never infinite.

The truth is the dual form: with ``G = (XXᵀ + αI)⁻¹`` and ``c = Gy`` the residual of a record left
out is ``c_i/G_ii``, and its leaving moves the coefficients by ``−XᵀGe_i c_i/G_ii``. The matrix XXᵀ
of so wide a table is well conditioned, so that no α is lost in it.
"""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import seepage as sp
from sampled import sampled
from seepage.glm.changes.batched_refits import Change

SIGMA = 0.1


def wide(records, columns):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((records, columns))
    return X, X[:, 0] + rng.standard_normal(records)


def ridge_leakage(X, y, alpha):
    model = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA))


def dual_distances(X, y, alpha):
    K = X @ X.T
    G = np.linalg.inv(K + alpha * np.eye(len(X)))
    return np.abs(G @ y / np.diag(G)) * np.sqrt(np.einsum("ij,jk,ki->i", G, K, G)) / SIGMA


def check_interval(found, truth, rounding=1e-12):
    high, low = np.asarray(found.mu), found.lower
    assert np.all(np.isfinite(high))
    assert np.all(low <= truth * (1 + rounding))
    assert np.all(high >= truth * (1 - rounding))
    if found.mu.kind == "exact":
        stated = np.max(found.mu.accuracy)
        assert np.max(np.abs(high / truth - 1)) <= stated + rounding


@pytest.mark.parametrize("alpha", sampled([1e-4, 1e-5], [1e-5]))
def test_a_wide_ridge_has_the_membership_of_the_dual_form(alpha):
    X, y = wide(300, 900)
    found = ridge_leakage(X, y, alpha).membership()
    truth = dual_distances(X, y, alpha)
    assert found.mu.kind == "exact"
    assert truth.max() == pytest.approx(1.57, rel=0.01)
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-10)
    check_interval(found, truth, 1e-11)


@pytest.mark.parametrize("exact", [False, 0, True])
@pytest.mark.parametrize("alpha", [1e-2, 1e-4, 1e-6, 1e-8])
def test_every_penalty_has_a_right_interval(alpha, exact):
    X, y = wide(40, 200)
    found = ridge_leakage(X, y, alpha).membership(exact=exact)
    truth = dual_distances(X, y, alpha)
    check_interval(found, truth)
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-10)


@pytest.mark.parametrize("alpha", [1e-3, 1e-6])
def test_groups_that_leave_a_wide_table(alpha):
    """By refits: of the table without them, in the dual form as well."""
    X, y = wide(24, 60)
    groups = np.arange(24) // 4
    found = ridge_leakage(X, y, alpha).membership(groups=groups)

    def coefficients(kept):
        K = X[kept] @ X[kept].T + alpha * np.eye(kept.sum())
        return X[kept].T @ np.linalg.solve(K, y[kept])

    whole = coefficients(groups >= 0)
    truth = [np.linalg.norm(coefficients(groups != g) - whole) / SIGMA for g in range(6)]
    check_interval(found, np.array(truth), 1e-10)


@pytest.mark.parametrize("exact", [0, 3])
def test_a_penalty_on_all_leaves_nobody_infinite(exact):
    X, y = wide(30, 80)
    labels = (y > 0).astype(int)
    for model in (
        sp.glm.LogisticRegression(l2=1e-6 / 30),
        sp.glm.SoftmaxRegression(l2=1e-5 / 30),
    ):
        leak = sp.leakage(model.fit(X, labels), X, labels, noise=sp.Gaussian(SIGMA))
        found = leak.membership(exact=exact)
        assert np.all(np.isfinite(np.asarray(found)))
        assert np.all(found.lower <= np.asarray(found))


@pytest.mark.parametrize("alpha", [1e-6, 1e-8])
def test_refits_under_a_penalty_are_not_infinite(alpha):
    """The pivots of a Hessian say nothing about parameters that a penalty determines."""
    X, y = wide(40, 200)
    changes = ridge_leakage(X, y, alpha).release.finite_changes()
    truth = dual_distances(X, y, alpha)
    moves = changes.moves_exactly(np.arange(40))
    least, most = (ends[:, 0] for ends in moves.distances())
    assert np.all((least <= truth) & (truth <= most))
    assert np.max(most / truth) < 1.01
    some = np.arange(3)
    # Newton's method with factorised Hessians, from the parameters as they are.
    alone = [changes.refits._alone(Change(np.array([i])), np.zeros(200))[0] for i in some]
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1) / SIGMA, truth[some], rtol=0.02)


def test_a_column_of_one_record_is_infinite_only_without_a_penalty():
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.standard_normal((30, 2)), np.zeros(30)])
    X[7, 2] = 1.0
    y = X[:, 0] + rng.standard_normal(30)
    for intercept in (False, True):
        free, held = (
            np.asarray(
                sp.leakage(
                    sp.glm.LinearRegression(l2=l2, fit_intercept=intercept).fit(X, y),
                    X,
                    y,
                    noise=sp.Gaussian(SIGMA),
                ).membership()
            )
            for l2 in (0.0, 1e-9)
        )
        assert np.flatnonzero(np.isinf(free)).tolist() == [7]
        assert np.all(np.isfinite(held))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_leverages_and_solutions_are_those_of_the_hessian(shape, intercept):
    """Where ordinary arithmetic is precise; every record and column, a weight of zero too."""
    from seepage.glm.changes.solver import SingularValues, Solver

    rng = np.random.default_rng(3)
    X, d, y = rng.standard_normal(shape), rng.uniform(0.5, 2, shape[0]), rng.normal(size=shape[0])
    d[4], X[5] = 0.0, 1e-6 * X[5]
    full = np.column_stack([X, np.ones(len(X))]) if intercept else X
    penalty = np.append(np.full(shape[1], 0.3), 0.0)[: full.shape[1]]
    H = full.T @ (d[:, None] * full) + np.diag(penalty)
    solved = np.linalg.solve(H, full.T).T
    gram = Solver(X, d[:, None, None], np.linalg.inv(H), 0.3, intercept, lambda v: v)
    found = SingularValues(gram)
    counted = d > 0
    shares = d * np.sum(solved * full, axis=1)
    np.testing.assert_allclose(found.shares, shares, rtol=1e-9)
    np.testing.assert_allclose(found.left, 1 - shares, rtol=1e-9)
    np.testing.assert_allclose(
        found.solved(np.flatnonzero(counted))[:, 0], solved[counted], rtol=1e-9, atol=1e-12
    )
    columns = np.linalg.inv(H)[[0, 7]]
    np.testing.assert_allclose(found.solved_columns([0, 7]), columns, rtol=1e-9, atol=1e-12)
    theta = np.linalg.solve(H, full.T @ (d * y))
    slopes, errors = found.least_squares_slopes(y)
    np.testing.assert_allclose(slopes[counted], (full @ theta - y)[counted], rtol=1e-9)
    assert np.all(errors[counted] < 1e-9)
