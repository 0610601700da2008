"""scikit-learn's own checks, and what estimators promise beyond them."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn import linear_model
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks

from seepage.glm import (
    GeneralizedLinearRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)


def known_reasons(estimator):
    """The one check that contradicts what the estimators promise, with the promise."""
    if estimator.l2:
        reason = "the penalty is nλ with n the number of rows, whatever the weights"
    else:
        reason = "the check has more columns than rows, which is refused without L2"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks(
    [
        LinearRegression(),
        LogisticRegression(l2=1e-3, fit_intercept=True),
        PoissonRegression(),
        SoftmaxRegression(l2=1e-3, fit_intercept=True),
        GeneralizedLinearRegression(),
    ],
    expected_failed_checks=known_reasons,
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        LinearRegression(l2=1e-3, fit_intercept=True),
        LogisticRegression(),
        PoissonRegression(l2=1e-3, fit_intercept=True),
        SoftmaxRegression(),
    ],
    expected_failed_checks=known_reasons,
)
def test_scikit_learn_conventions_in_other_settings(estimator, check):
    check(estimator)


def data(kind, n=40, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    m = X @ np.linspace(1, -1, d)
    y = {
        "linear": m + rng.normal(size=n),
        "logistic": (m + rng.logistic(size=n) > 0).astype(int),
        "poisson": rng.poisson(np.exp(m / 2)),
        "softmax": rng.integers(0, 3, size=n),
    }[kind]
    return X, y


ESTIMATORS = {
    "linear": LinearRegression,
    "logistic": LogisticRegression,
    "poisson": PoissonRegression,
    "softmax": SoftmaxRegression,
}
each_kind = pytest.mark.parametrize("kind", ESTIMATORS)


@each_kind
@pytest.mark.parametrize("intercept", [False, True])
def test_integer_weights_are_repetitions_once_the_penalty_is_the_same(kind, intercept):
    X, y = data(kind)
    weights = np.random.default_rng(1).integers(0, 4, size=40)
    repeated = ESTIMATORS[kind](l2=0.1, fit_intercept=intercept)
    repeated.fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    same_penalty = 0.1 * weights.sum() / 40
    weighted = ESTIMATORS[kind](l2=same_penalty, fit_intercept=intercept).fit(X, y, weights)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-13)
    np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, atol=1e-13)


@each_kind
def test_rows_of_weight_zero_do_not_count(kind):
    X, y = data(kind)
    weights = np.r_[np.zeros(5), np.full(35, 2.0)]
    outlier = X.copy()
    outlier[:5] = 1e3
    one = ESTIMATORS[kind](l2=0.1).fit(X, y, weights)
    other = ESTIMATORS[kind](l2=0.1).fit(outlier, y, weights)
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-12)


@each_kind
@pytest.mark.parametrize("shape", [(40, 1), (12, 30)], ids=["one-feature", "wide"])
@pytest.mark.parametrize("intercept", [False, True])
def test_numpy_and_torch_agree(kind, shape, intercept):
    X, y = data(kind, *shape)
    here = ESTIMATORS[kind](l2=0.05, fit_intercept=intercept).fit(X, y)
    there = ESTIMATORS[kind](l2=0.05, fit_intercept=intercept)
    there.fit(torch.as_tensor(X), torch.as_tensor(y))
    assert isinstance(there.coef_, torch.Tensor)
    assert there.coef_.shape == here.coef_.shape
    np.testing.assert_allclose(there.coef_.numpy(), here.coef_, atol=1e-10)
    np.testing.assert_allclose(there.intercept_.numpy(), here.intercept_, atol=1e-10)
    predicted = there.predict(torch.as_tensor(X))
    assert isinstance(predicted, torch.Tensor)
    np.testing.assert_allclose(predicted.numpy(), here.predict(X), atol=1e-9)
    np.testing.assert_allclose(there.predict(X), here.predict(X), atol=1e-9)
    assert there.score(torch.as_tensor(X), torch.as_tensor(y)) == pytest.approx(here.score(X, y))
    if hasattr(here, "predict_proba"):
        proba = there.predict_proba(torch.as_tensor(X)).numpy()
        np.testing.assert_allclose(proba, here.predict_proba(X), atol=1e-10)
        np.testing.assert_allclose(
            there.predict_log_proba(torch.as_tensor(X)).numpy(), np.log(proba), atol=1e-12
        )


@each_kind
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames(kind, library):
    X, y = data(kind)
    columns = {"age": X[:, 0], "dose": X[:, 1], "weight": X[:, 2]}
    frame, column = {
        "pandas": lambda: (pd.DataFrame(columns), pd.Series(y)),
        "polars": lambda: (pl.DataFrame(columns), pl.Series(y)),
        "pyarrow": lambda: (pa.table(columns), pa.array(y)),
    }[library]()
    model = ESTIMATORS[kind](l2=0.1).fit(frame, column)
    assert list(model.feature_names_in_) == ["age", "dose", "weight"]
    assert model.n_features_in_ == 3
    plain = ESTIMATORS[kind](l2=0.1).fit(X, y)
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.predict(frame), plain.predict(X), rtol=1e-12)


@pytest.mark.parametrize(
    "labels", [(0, 1), (-1, 1), (False, True), ("ill", "well"), (2.0, 7.0)], ids=str
)
def test_any_two_classes(labels):
    X, y = data("logistic")
    plain = LogisticRegression().fit(X, y)
    named = LogisticRegression().fit(X, np.asarray(labels)[y])
    assert list(named.classes_) == sorted(labels)
    np.testing.assert_array_equal(named.coef_, plain.coef_)
    np.testing.assert_array_equal(named.predict(X), np.asarray(labels)[plain.predict(X)])


def test_string_classes_with_tensors_come_back_as_strings():
    X, y = data("softmax")
    names = np.asarray(["a", "b", "c"])[y]
    model = SoftmaxRegression().fit(torch.as_tensor(X), names)
    assert set(model.predict(torch.as_tensor(X))) <= {"a", "b", "c"}


def test_shapes_follow_scikit_learn():
    X, y = data("softmax")
    softmax = SoftmaxRegression(fit_intercept=True).fit(X, y)
    assert softmax.coef_.shape == (3, 3)
    assert softmax.intercept_.shape == (3,)
    assert softmax.decision_function(X).shape == (40, 3)
    two = SoftmaxRegression(fit_intercept=True).fit(X, y > 0)
    assert two.coef_.shape == (2, 3)
    assert two.decision_function(X).shape == (40,)
    logistic = LogisticRegression(fit_intercept=True).fit(X, y > 0)
    assert logistic.coef_.shape == (1, 3)
    assert logistic.intercept_.shape == (1,)
    assert logistic.decision_function(X).shape == (40,)
    linear = LinearRegression().fit(X, y)
    assert linear.coef_.shape == (3,)
    assert linear.intercept_ == 0.0


def test_softmax_of_two_classes_is_logistic_with_half_the_penalty():
    """W = (−w/2, w/2) has ‖W‖² = ‖w‖²/2."""
    X, y = data("logistic")
    softmax = SoftmaxRegression(l2=0.1, fit_intercept=True).fit(X, y)
    logistic = LogisticRegression(l2=0.05, fit_intercept=True).fit(X, y)
    np.testing.assert_allclose(softmax.coef_[1] - softmax.coef_[0], logistic.coef_[0], atol=1e-13)
    np.testing.assert_allclose(softmax.predict_proba(X), logistic.predict_proba(X), atol=1e-13)


def test_agrees_with_scikit_learn_on_real_data():
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    ours = LogisticRegression(l2=1e-2, fit_intercept=True).fit(X, y)
    theirs = linear_model.LogisticRegression(C=1 / (len(y) * 1e-2), tol=1e-12, max_iter=5000)
    theirs.fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    assert ours.score(X, y) == theirs.score(X, y)
    r = 1 / (1 + np.exp(-X @ ours.coef_[0] - ours.intercept_)) - y
    gradient = X.T @ r + len(y) * 1e-2 * ours.coef_[0]
    assert np.linalg.norm(gradient) < 1e-13 * np.abs(r) @ np.linalg.norm(X, axis=1)


def test_repeated_rows_change_nothing_but_n():
    X, y = data("logistic")
    once = LogisticRegression(l2=0.1).fit(X, y)
    thrice = LogisticRegression(l2=0.1).fit(np.tile(X, (3, 1)), np.tile(y, 3))
    np.testing.assert_allclose(once.coef_, thrice.coef_, atol=1e-14)


def test_weights_that_are_all_one_are_no_weights():
    X, y = data("linear")
    assert not LinearRegression().fit(X, y, np.ones(40)).weighted_
    assert LinearRegression().fit(X, y, np.full(40, 2.0)).weighted_


def test_constant_column_is_welcome_with_l2_and_without_an_intercept():
    X, y = data("poisson")
    X[:, 1] = 1.0
    PoissonRegression().fit(X, y)
    PoissonRegression(l2=0.1, fit_intercept=True).fit(X, y)


def test_float32_tables_are_fitted_in_float64():
    X, y = data("logistic")
    narrow = LogisticRegression().fit(X.astype(np.float32), y)
    assert narrow.coef_.dtype == np.float64
    np.testing.assert_allclose(narrow.coef_, LogisticRegression().fit(X, y).coef_, rtol=1e-4)
