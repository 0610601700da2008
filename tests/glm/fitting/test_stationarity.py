"""Coefficients that do not minimise the stated objective are noticed, and said to be."""

import warnings

import numpy as np
import pytest
import torch
from sklearn import linear_model
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.preprocessing import scale

from seepage.errors import InputError, NotConvergedWarning, NotTheMinimiserError
from seepage.glm import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression
from seepage.glm.adapters.registry import describe
from seepage.glm.fitting.objective import Objective, gauge_fixed
from seepage.glm.jacobian.optimum import check_stationarity
from seepage.tables.source import read_table

X, Y = load_breast_cancer(return_X_y=True)
X = scale(X)


def check(model, table, y, on_mismatch="raise", **described):
    read = read_table(table)
    return check_stationarity(describe(model, read, y, **described), read.values, on_mismatch)


@pytest.fixture(scope="module")
def model():
    return LogisticRegression(l2=1e-2, fit_intercept=True).fit(X, Y)


@pytest.mark.parametrize("load", [load_breast_cancer, load_iris, load_wine])
def test_scikit_learn_at_its_default_tolerance_is_not_refused(load):
    table, y = load(return_X_y=True)
    table = scale(table)
    theirs = linear_model.LogisticRegression().fit(table, y)
    with pytest.warns(NotConvergedWarning, match="near the minimiser but have not converged"):
        assert 1e-5 < check(theirs, table, y) < 1e-2


def test_wrong_penalty(model):
    theirs = linear_model.LogisticRegression(solver="newton-cg", tol=1e-12).fit(X, Y)
    theirs.C = 2.0
    message = r"gradient has norm .*with sample_weight=.* tighter tol.* on_mismatch=\"warn\""
    with pytest.raises(NotTheMinimiserError, match=message):
        check(theirs, X, Y)
    with pytest.warns(NotConvergedWarning, match="do not minimise the stated objective"):
        assert check(theirs, X, Y, "warn") > 1e-2


@pytest.mark.parametrize(
    "change",
    [
        lambda X, y: (X[::2], y[::2]),
        lambda X, y: (X, 1 - y),
        lambda X, y: (X[:, ::-1], y),
        lambda X, y: (X * 1.5, y),
    ],
    ids=["half the rows", "other labels", "other columns", "other units"],
)
def test_other_data(model, change):
    with pytest.raises(NotTheMinimiserError):
        check(model, *change(X, Y))


def test_other_weights(model):
    weights = np.random.default_rng(0).uniform(0.2, 2, size=len(Y))
    with pytest.raises(NotTheMinimiserError):
        check(model, X, Y, sample_weight=weights)


def test_forgotten_weights_of_scikit_learn():
    weights = np.random.default_rng(0).uniform(0.2, 2, size=len(Y))
    theirs = linear_model.Ridge().fit(X, Y, weights)
    with pytest.raises(NotTheMinimiserError):
        check(theirs, X, Y)
    assert check(theirs, X, Y, sample_weight=weights) < 1e-12


def test_not_converged():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hasty = linear_model.LogisticRegression(max_iter=3).fit(X, Y)
    with pytest.raises(NotTheMinimiserError, match="did not converge"):
        check(hasty, X, Y)


def test_large_intercept_does_not_hide_a_wrong_penalty():
    target = X @ np.linspace(-1, 1, 30) + 1e6
    theirs = linear_model.Ridge(alpha=1.0).fit(X, target)
    assert check(theirs, X, target) < 1e-8
    theirs.alpha = 50.0
    with pytest.raises(NotTheMinimiserError):
        check(theirs, X, target)


@pytest.mark.filterwarnings("ignore::seepage.errors.NotConvergedWarning")
@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (LinearRegression(), Y),
        (PoissonRegression(l2=0.1, fit_intercept=True), Y),
        (SoftmaxRegression(l2=0.1), Y + (X[:, 0] > 1)),
        (SoftmaxRegression(l2=0.1, fit_intercept=True), Y + (X[:, 0] > 1)),
    ],
    ids=["linear", "poisson", "softmax", "softmax-intercept"],
)
def test_given_hessian_gives_the_same_step(estimator, y):
    read = read_table(X)
    fit = describe(estimator.fit(X, y), read, y)
    moved = type(fit)(**{**vars(fit), "coef": fit.coef * 1.001})
    objective = Objective.of(moved, X)
    H = gauge_fixed(objective.hessian(moved.margins(X)), objective.family)
    given = check_stationarity(moved, X, hessian=H)
    np.testing.assert_allclose(given, check_stationarity(moved, X), rtol=1e-12)
    assert 1e-7 < given < 2e-3


@pytest.mark.filterwarnings("ignore::seepage.errors.NotConvergedWarning")
@pytest.mark.parametrize("factor", [1 + 1e-7, 1 + 1e-4, 1.5])
def test_step_is_the_relative_distance(factor):
    """A quadratic's Newton step leads from (1 + ε)w back to w: ε/(1 + ε) of the coefficients."""
    off = linear_model.LinearRegression(fit_intercept=False).fit(X, Y)
    off.coef_ = off.coef_ * factor
    np.testing.assert_allclose(check(off, X, Y, "warn"), (factor - 1) / factor, rtol=1e-6)


def test_units_of_the_columns_do_not_matter():
    units = np.logspace(-1, 1, 30)
    theirs = linear_model.LinearRegression().fit(X, Y)
    theirs.coef_ = theirs.coef_ * 1.001
    scaled = linear_model.LinearRegression().fit(X * units, Y)
    scaled.coef_ = scaled.coef_ * 1.001
    with pytest.warns(NotConvergedWarning):
        one = check(theirs, X, Y)
    with pytest.warns(NotConvergedWarning):
        other = check(scaled, X * units, Y)
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_nothing_to_learn():
    """Labels orthogonal to every column: the coefficients are rounding, and so is the step."""
    table = np.vstack([X, X])
    y = np.r_[np.ones(len(X)), -np.ones(len(X))]
    assert check(LinearRegression(l2=0.1).fit(table, y), table, y) < 1e-10
    assert check(LinearRegression().fit(X, 0 * Y), X, 0 * Y) == 0.0
    balanced = np.repeat([0, 1], len(X))
    assert check(LogisticRegression().fit(table, balanced), table, balanced) < 1e-10


def test_single_precision_table(model):
    read = read_table(X)
    fit = describe(model, read, Y)
    assert check_stationarity(fit, read.values.astype(np.float32)) < 1e-6
    tensors = describe(model, read_table(torch.as_tensor(X)), Y)
    assert check_stationarity(tensors, torch.as_tensor(X).to(torch.float32)) < 1e-6


def test_on_mismatch_is_raise_or_warn(model):
    with pytest.raises(InputError, match="'raise' or 'warn', not 'ignore'"):
        check(model, X, Y, "ignore")
