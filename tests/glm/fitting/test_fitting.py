"""Hessians, least squares and Newton's method against dense sums, scipy and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn import linear_model

from seepage.errors import InputError
from seepage.glm.fitting.least_squares import solve_least_squares
from seepage.glm.fitting.newton import minimise, separated
from seepage.glm.fitting.objective import (
    Objective,
    cholesky_factor,
    damped_factor,
    gauge_fixed,
    hessian,
    stacked_r,
    weighted_gram,
)
from seepage.glm.losses import Categorical, bernoulli, gaussian, poisson, squared_hinge

NAMES = tuple("abcdefghij")


def extended(X, intercept):
    return np.column_stack([X, np.ones(len(X))]) if intercept else X


def problem(family, n=60, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    m = X @ rng.normal(size=d) * 0.5
    if family is gaussian:
        return X, m + rng.normal(size=n)
    if family is bernoulli:
        return X, (rng.random(n) < 1 / (1 + np.exp(-m))).astype(float)
    return X, rng.poisson(np.exp(m)).astype(float)


def classes_of(n, k, seed=0):
    return np.eye(k)[np.random.default_rng(seed).integers(0, k, size=n)]


def uneven(n, seed=1):
    weights = np.random.default_rng(seed).uniform(0.1, 3, size=n)
    weights[::7] = 0.0
    return weights


@pytest.mark.parametrize("signs", ["positive", "negative", "mixed"])
@pytest.mark.parametrize("shape", [(1, 1), (9, 3), (3, 9), (5000, 300)])
def test_weighted_gram(shape, signs):
    rng = np.random.default_rng(0)
    X = rng.normal(size=shape)
    weights = {"positive": 1, "negative": -1, "mixed": 0.5}[signs] * rng.random(shape[0])
    if signs == "mixed":
        weights -= 0.25
    gram = weighted_gram(X, weights)
    truth = (X * weights[:, None]).T @ X
    np.testing.assert_allclose(gram, truth, rtol=1e-12, atol=1e-12 * np.abs(truth).max())


@pytest.mark.parametrize("intercept", [False, True])
def test_single_output_hessian(intercept):
    X, _ = problem(gaussian)
    a = np.random.default_rng(1).random(60)
    H = hessian(X, a, ridge=2.5, intercept=intercept)
    Z = extended(X, intercept)
    truth = (Z * a[:, None]).T @ Z
    truth[:4, :4] += 2.5 * np.eye(4)
    np.testing.assert_allclose(H, truth, rtol=1e-13)


@pytest.mark.parametrize("intercept", [False, True])
def test_categorical_hessian_has_feature_slow_and_class_fast(intercept):
    X, _ = problem(gaussian, n=30, d=3)
    rng = np.random.default_rng(2)
    Z = extended(X, intercept)
    family = Categorical(4)
    A = family.curvature(Z @ rng.normal(size=(Z.shape[1], 4)), None) * rng.random((30, 1, 1))
    H = hessian(X, A, ridge=1.5, intercept=intercept)
    truth = sum(np.kron(np.outer(z, z), block) for z, block in zip(Z, A, strict=True))
    truth[:12, :12] += 1.5 * np.eye(12)
    np.testing.assert_allclose(H, truth, atol=1e-13)


def test_gauge_fixing_changes_no_solution_that_sums_to_zero():
    X, _ = problem(gaussian, n=30, d=3)
    A = Categorical(4).curvature(X @ np.random.default_rng(2).normal(size=(3, 4)), None)
    H = hessian(X, A, ridge=0.0, intercept=False)
    assert np.linalg.matrix_rank(H) == 9
    fixed = gauge_fixed(H, Categorical(4))
    assert np.linalg.cond(fixed) < 1e3
    right = np.random.default_rng(3).normal(size=(3, 4))
    right -= right.mean(axis=1, keepdims=True)
    solution = np.linalg.solve(fixed, right.reshape(-1))
    np.testing.assert_allclose(solution, np.linalg.pinv(H) @ right.reshape(-1), atol=1e-12)
    np.testing.assert_allclose(solution.reshape(3, 4).sum(axis=1), 0, atol=1e-12)


def test_stacked_r_of_many_blocks():
    X = np.random.default_rng(0).normal(size=(50, 6))
    R = stacked_r([X[:3], X[3:20], X[20:]])
    np.testing.assert_allclose(R.T @ R, X.T @ X, rtol=1e-12)
    np.testing.assert_allclose(R, np.triu(R))


def test_cholesky_says_when_a_matrix_is_not_definite():
    for convert in (np.asarray, torch.as_tensor):
        singular = convert(np.ones((2, 2)) - 1e-3 * np.eye(2))
        assert cholesky_factor(singular) is None
        damped = damped_factor(singular)
        assert np.all(np.isfinite(np.asarray(damped.solve(convert(np.ones(2))))))
        assert cholesky_factor(convert(np.full((2, 2), np.nan))) is None
    with pytest.raises(FloatingPointError):
        damped_factor(np.full((2, 2), np.nan))


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, uneven(60)], ids=["plain", "weighted"])
@pytest.mark.parametrize("family", [gaussian, bernoulli, poisson], ids=lambda f: f.name)
def test_newton_finds_the_zero_of_the_gradient(family, weights, intercept, ridge):
    X, y = problem(family)
    ω = np.ones(60) if weights is None else weights
    Z = extended(X, intercept)
    penalty = np.r_[np.full(4, ridge), np.zeros(int(intercept))]
    mean = {"gaussian": lambda m: m, "bernoulli": lambda m: 1 / (1 + np.exp(-m)), "poisson": np.exp}

    def gradient(theta):
        return Z.T @ (ω * (mean[family.name](Z @ theta) - y)) + penalty * theta

    truth = scipy.optimize.root(gradient, np.zeros(Z.shape[1]), tol=1e-14).x
    found = minimise(Objective(X, family, y, weights, ridge, intercept))
    np.testing.assert_allclose(found.parameters, truth, rtol=1e-11, atol=1e-13)
    assert found.relative_gradient < 1e-15


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, uneven(60)], ids=["plain", "weighted"])
def test_newton_for_softmax(weights, intercept, ridge):
    X, _ = problem(gaussian)
    Y = classes_of(60, 3)
    found = minimise(Objective(X, Categorical(3), Y, weights, ridge, intercept))
    theirs = linear_model.LogisticRegression(
        C=1 / ridge if ridge else np.inf,
        fit_intercept=intercept,
        tol=1e-14,
        solver="newton-cg",
        max_iter=1000,
    ).fit(X, Y.argmax(axis=1), sample_weight=weights)
    truth = np.column_stack([theirs.coef_, theirs.intercept_] if intercept else [theirs.coef_]).T
    np.testing.assert_allclose(found.parameters, truth, atol=1e-9)
    np.testing.assert_allclose(found.parameters.sum(axis=1), 0, atol=1e-14)
    assert found.relative_gradient < 1e-15


def test_warm_start_saves_steps_and_ends_at_the_same_place():
    X, y = problem(bernoulli)
    objective = Objective(X, bernoulli, y, None, 0.5, True)
    cold = minimise(objective)
    warm = minimise(Objective(X, bernoulli, y, None, 0.51, True), start=cold.parameters)
    again = minimise(objective, start=warm.parameters)
    assert warm.steps < cold.steps
    np.testing.assert_allclose(again.parameters, cold.parameters, atol=1e-15)


def test_warm_start_of_softmax_may_lie_off_the_gauge():
    X, _ = problem(gaussian)
    objective = Objective(X, Categorical(3), classes_of(60, 3), None, 0.0, True)
    cold = minimise(objective)
    warm = minimise(objective, start=cold.parameters + 5.0)
    assert warm.steps == 1
    np.testing.assert_allclose(warm.parameters, cold.parameters, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_poisson_line_search_survives_overflow(scale):
    X, _ = problem(poisson)
    counts = np.random.default_rng(5).poisson(1000.0, size=60).astype(float)
    counts[0] = 1e6
    found = minimise(Objective(scale * X, poisson, counts, None, 0.0, True))
    assert found.relative_gradient < 1e-13


def test_many_parameters_start_from_lbfgs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 1100))
    y = (X[:, 0] > 0).astype(float)
    found = minimise(Objective(X, bernoulli, y, None, 1.5, False))
    assert found.steps <= 3
    assert found.relative_gradient < 1e-14
    r = 1 / (1 + np.exp(-X @ found.parameters)) - y
    np.testing.assert_allclose(X.T @ r + 1.5 * found.parameters, 0, atol=1e-11)


def least_squares_truth(X, y, ω, ridge, intercept):
    Z = extended(X, intercept)
    root = np.sqrt(np.ones(len(y)) if ω is None else ω)
    penalty = np.sqrt(ridge) * np.eye(X.shape[1], Z.shape[1])
    stacked = np.vstack([Z * root[:, None], penalty])
    right = np.r_[y * root, np.zeros(X.shape[1])]
    return np.linalg.lstsq(stacked, right, rcond=None)[0]


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, uneven(60)], ids=["plain", "weighted"])
@pytest.mark.parametrize("d", [1, 4])
def test_least_squares(d, weights, intercept, ridge):
    X, y = problem(gaussian, d=d)
    found = solve_least_squares(Objective(X, gaussian, y, weights, ridge, intercept), NAMES)
    truth = least_squares_truth(X, y, weights, ridge, intercept)
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, uneven(6)], ids=["plain", "weighted"])
def test_least_squares_with_more_columns_than_rows(weights, intercept):
    X, y = problem(gaussian, n=6, d=40)
    found = solve_least_squares(Objective(X, gaussian, y, weights, 0.3, intercept), NAMES)
    truth = least_squares_truth(X, y, weights, 0.3, intercept)
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("intercept", [False, True])
def test_more_columns_than_rows_in_unlike_units(intercept):
    X, y = problem(gaussian, n=6, d=40)
    units = np.where(np.arange(40) % 2, 4096.0, 1.0)
    found = solve_least_squares(Objective(X * units, gaussian, y, None, 50.0, intercept), NAMES)
    truth = least_squares_truth(X * units, y, None, 50.0, intercept)
    np.testing.assert_allclose(found, truth, rtol=1e-9, atol=1e-15)


def test_ill_conditioned_columns_in_unlike_units():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3))
    X[:, 2] = X[:, 1] + 1e-6 * rng.normal(size=200)
    y, units = X @ [1.0, 2.0, -1.0], np.array([1.0, 2.0**30, 2.0**30])
    found = solve_least_squares(Objective(X * units, gaussian, y, None, 1e-8, False), NAMES)
    truth = least_squares_truth(X * units, y, None, 1e-8, False)
    np.testing.assert_allclose(found * units, truth * units, atol=1e-8)


def test_a_kernel_of_equal_rows_is_left_to_qr():
    """What the rows determine is exact; what the penalty alone does, as good as QR allows."""
    X, ridge = np.ones((4, 9)), 1e-25
    equal = Objective(X, gaussian, np.full(4, 2.0), None, ridge, False)
    found = solve_least_squares(equal, NAMES)
    np.testing.assert_allclose(X @ found, 2.0, rtol=1e-14)
    condition = np.linalg.cond(np.vstack([X, ridge**0.5 * np.eye(9)]))
    np.testing.assert_allclose(condition, 6 / ridge**0.5, rtol=1e-2)
    np.testing.assert_allclose(found, 2 / 9, rtol=np.finfo(float).eps * condition)


@pytest.mark.parametrize("labels", [False, True])
def test_the_triangle_of_weighted_rows(labels):
    """Without labels, only whether a record has weight counts."""
    (X, y), weights = problem(gaussian), uneven(60)
    R = Objective(X, gaussian, y, weights, 0.0, True).triangle(labels=labels)
    rows = np.column_stack([X, np.ones(60), y]) if labels else extended(X, True)
    truth = (rows * (weights if labels else weights > 0)[:, None]).T @ rows
    np.testing.assert_allclose(R.T @ R, truth, rtol=1e-12, atol=1e-12)


def test_records_without_weight_have_no_range():
    X, y = problem(bernoulli)
    nobody = Objective(X, bernoulli, y, np.zeros(60), 0.1, True)
    least, most = nobody.column_range()
    assert (least == np.inf).all()
    assert (most == -np.inf).all()
    assert nobody.gains(np.ones(5)) == (np.inf, -np.inf)
    np.testing.assert_array_equal(weighted_gram(X[:0], y[:0]), np.zeros((4, 4)))


@pytest.mark.parametrize("ridge", [0.0, 1e-16])
def test_ill_conditioned_least_squares_is_as_good_as_qr(ridge):
    """Columns that differ by 1e-6: their Gram matrix has a condition number of 1e13."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3))
    X[:, 2] = X[:, 1] + 1e-6 * rng.normal(size=200)
    y = X @ [1.0, 2.0, -1.0]
    found = solve_least_squares(Objective(X, gaussian, y, None, ridge, True), NAMES)
    truth = least_squares_truth(X, y, None, ridge, True)
    np.testing.assert_allclose(found, truth, atol=1e-8)
    normal = np.linalg.solve(X.T @ X, X.T @ y)
    assert np.abs(normal - truth[:3]).max() > 1e-7, "the normal equations would have done"


def test_faint_penalty_with_more_columns_than_rows():
    X, y = problem(gaussian, n=6, d=20)
    X[3] = X[2]  # the kernel is then singular to rounding
    y[3] = y[2]
    found = solve_least_squares(Objective(X, gaussian, y, None, 1e-25, False), NAMES)
    np.testing.assert_allclose(X @ found, y, atol=1e-9)


def test_perfect_fit_is_exact():
    X, _ = problem(gaussian)
    w = np.asarray([1.0, -2.0, 0.5, 3.0])
    found = solve_least_squares(Objective(X, gaussian, X @ w, None, 0.0, False), NAMES)
    np.testing.assert_allclose(found, w, rtol=1e-14)
    newton = minimise(Objective(X, poisson, np.exp(X @ w), None, 0.0, False))
    np.testing.assert_allclose(newton.parameters, w, rtol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
def test_torch_agrees_with_numpy(intercept):
    for family in (gaussian, bernoulli, poisson, Categorical(3)):
        X, y = problem(gaussian if isinstance(family, Categorical) else family)
        y = classes_of(60, 3) if isinstance(family, Categorical) else y
        ω = uneven(60)
        here = minimise(Objective(X, family, y, ω, 0.4, intercept))
        tensors = (torch.as_tensor(a) for a in (X, y, ω))
        TX, ty, tω = tensors
        there = minimise(Objective(TX, family, ty, tω, 0.4, intercept))
        assert there.parameters.dtype == torch.float64
        np.testing.assert_allclose(there.parameters.numpy(), here.parameters, atol=1e-13)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9])
@pytest.mark.parametrize("classes", [2, 3])
def test_separable_classes_are_known_from_others(classes, unit):
    X, _ = problem(gaussian, n=24, d=2)
    margin = X @ [1.0, 0.5]
    kinds = np.digitize(margin, [0.0] if classes == 2 else [-0.5, 0.5])
    swapped = np.array(kinds)
    swapped[[np.argmin(margin), np.argmax(margin)]] = kinds[[np.argmax(margin), np.argmin(margin)]]
    apart, mixed = (np.eye(3)[y] if classes == 3 else y.astype(float) for y in (kinds, swapped))
    family = Categorical(3) if classes == 3 else bernoulli

    def known(y, weight=None):
        return separated(Objective(X * [1.0, unit], family, y, weight, 1e-9, intercept=True))

    assert known(apart)
    assert not known(mixed)
    assert known(mixed, (kinds == swapped).astype(float))


def test_where_no_direction_is_known_to_separate(monkeypatch):
    X, _ = problem(bernoulli)
    apart = (X[:, 0] > 0).astype(float)
    known = Objective(X, bernoulli, apart, None, 1e-9, intercept=True)
    assert separated(known)
    for other in (
        replace(known, tilt=np.ones(4)),  # a linear term falls for ever by itself
        replace(known, target=np.full(60, 0.5)),  # between two classes
        replace(known, family=squared_hinge),  # its losses fall to zero and no further
    ):
        assert not separated(other)
    monkeypatch.setattr("seepage.glm.fitting.newton._MOST_CELLS", 100)
    assert not separated(known)  # too large to be looked for


def test_counts_that_are_zero_in_a_direction_are_known_from_others():
    groups = np.eye(3)[np.arange(30) % 3]
    counts = 1.0 + np.arange(30) % 4
    zeros = np.where(groups[:, 1] == 1, 0.0, counts)
    assert separated(Objective(groups, poisson, zeros, None, 1e-9, intercept=False))
    zeros[1] = 2.0
    assert not separated(Objective(groups, poisson, zeros, None, 1e-9, intercept=False))


def test_a_direction_that_a_faint_penalty_holds_is_followed_to_its_end():
    """Where counts are zero the curvature dies away long after all other coefficients stand."""
    X = np.array([[-2.0, 1, 0, 1, 0], [1, 1, -2, -1, 1], [-2, 0, -1, -1, 0]])
    objective = Objective(X, poisson, np.array([0.0, 0.0, 1.0]), None, 5e-11, intercept=True)
    theta = minimise(objective, names=NAMES[:5]).parameters
    left = np.linalg.norm(objective.gradient_at(theta))
    assert left < 1e-5 * objective.ridge * np.linalg.norm(theta[:5])


def test_a_fit_that_runs_out_of_steps_says_what_to_do(monkeypatch):
    monkeypatch.setattr("seepage.glm.fitting.newton._MOST_STEPS", 1)
    X, y = problem(bernoulli)
    with pytest.raises(InputError, match=r"in 1 Newton step .*nearly collinear; drop"):
        minimise(Objective(X, bernoulli, y, None, 0.1, intercept=True))
    apart = (X[:, 0] > 0).astype(float)
    with pytest.raises(InputError, match=r"in 1 Newton step .*the data are separable, and l2 is"):
        minimise(Objective(X, bernoulli, apart, None, 1e-9, intercept=False))


def test_a_table_that_is_no_square_is_not_called_indefinite():
    with pytest.raises(ValueError, match="broadcast"):
        cholesky_factor(np.ones((2, 3)))
