"""Bad input is answered with one sentence that says what is wrong, where, and what to do."""

import numpy as np
import pandas as pd
import pytest
import torch

import seepage as sp
from seepage.errors import InputError
from seepage.glm import (
    GeneralizedLinearRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)

ALL = [LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression]
each = pytest.mark.parametrize("estimator", ALL, ids=lambda e: e.__name__)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
Y = RNG.integers(0, 2, size=30)


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_nan_and_infinity(estimator, bad, convert):
    broken = X.copy()
    broken[4, 1] = bad
    with pytest.raises(InputError, match=r"NaN or infinity in 'x1' \(first in row 4\)"):
        estimator(l2=0.1).fit(convert(broken), Y)


@each
def test_nan_in_a_data_frame_names_its_column(estimator):
    frame = pd.DataFrame(X.copy(), columns=["age", "dose", "weight"])
    frame.loc[7, "dose"] = np.nan
    with pytest.raises(InputError, match="'dose'"):
        estimator(l2=0.1).fit(frame, Y)


@each
def test_nan_in_labels(estimator):
    y = Y.astype(float)
    y[3] = np.nan
    with pytest.raises(InputError, match="y contains NaN"):
        estimator(l2=0.1).fit(X, y)


@each
def test_different_lengths(estimator):
    with pytest.raises(InputError, match="X has 30 rows but y has 29 entries"):
        estimator(l2=0.1).fit(X, Y[:-1])
    with pytest.raises(InputError, match="X has 30 rows but sample_weight has 4 entries"):
        estimator(l2=0.1).fit(X, Y, sample_weight=np.ones(4))
    with pytest.raises(InputError, match="sample_weight must contain numbers, not <U1 value"):
        estimator(l2=0.1).fit(X, Y, sample_weight=np.full(30, "a"))


@each
def test_empty_table(estimator):
    with pytest.raises(InputError, match="X is empty"):
        estimator(l2=0.1).fit(np.empty((0, 3)), np.empty(0))
    with pytest.raises(InputError, match="X is empty: 0 feature"):
        estimator(l2=0.1).fit(np.empty((30, 0)), Y)


@each
def test_object_columns(estimator):
    frame = pd.DataFrame({"age": X[:, 0], "drug": np.where(Y, "a", "b")})
    with pytest.raises(InputError, match="not numeric: 'drug'"):
        estimator(l2=0.1).fit(frame, Y)
    boxed = X.astype(object)
    boxed[2, 1] = "high"
    with pytest.raises(InputError, match="'x1' of X contains objects that are not numbers"):
        estimator(l2=0.1).fit(boxed, Y)


@each
def test_sample_weights(estimator):
    negative = np.ones(30)
    negative[11] = -0.5
    with pytest.raises(InputError, match=r"must not be negative, but row 11 has the weight -0.5"):
        estimator(l2=0.1).fit(X, Y, negative)
    with pytest.raises(InputError, match="zero for every row"):
        estimator(l2=0.1).fit(X, Y, np.zeros(30))


@each
@pytest.mark.parametrize(
    ("l2", "sentence"),
    [
        (-1e-9, "at least 0"),
        (np.nan, "finite"),
        (np.inf, "finite"),
        ("much", "must be a number"),
        (True, "must be a number"),
    ],
)
def test_penalty(estimator, l2, sentence):
    with pytest.raises(InputError, match=sentence):
        estimator(l2=l2).fit(X, Y)


@each
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_collinear_columns_are_named(estimator, convert):
    wide = np.column_stack([X, X[:, 0] - 2 * X[:, 2], RNG.normal(size=30)])
    with pytest.raises(
        InputError, match=r"^Columns 'x0', 'x2' and 'x3' are linearly dependent.* set l2"
    ):
        estimator(l2=0.0).fit(convert(wide), Y)
    estimator(l2=0.1).fit(convert(wide), Y)


def test_many_collinear_columns_are_counted():
    wide = np.column_stack([RNG.normal(size=(30, 9)), np.zeros(30)])
    wide[:, 9] = wide[:, :9].sum(axis=1)
    with pytest.raises(
        InputError, match=r"Columns 'x0', .* 'x6' and 3 more are linearly dependent"
    ):
        LinearRegression().fit(wide, Y)


@each
def test_one_hot_columns_and_an_intercept(estimator):
    groups = np.eye(3)[np.arange(30) % 3]
    with pytest.raises(
        InputError, match="'x0', 'x1', 'x2' and the intercept are linearly dependent"
    ):
        estimator(l2=0.0, fit_intercept=True).fit(groups, Y)


@each
def test_constant_columns(estimator):
    zero, one = X.copy(), X.copy()
    zero[:, 1], one[:, 1] = 0.0, 0.1
    with pytest.raises(InputError, match=r"Column 'x1' is constant \(all zeros\).* set l2"):
        estimator(l2=0.0).fit(zero, Y)
    with pytest.raises(InputError, match="Column 'x1' is constant, and so is the intercept"):
        estimator(l2=0.0, fit_intercept=True).fit(one, Y)


@each
def test_column_constant_where_the_weights_are(estimator):
    weights = np.r_[np.zeros(10), np.ones(20)]
    table = X.copy()
    table[10:, 2] = 5.0
    with pytest.raises(InputError, match="Column 'x2' is constant, and so is the intercept"):
        estimator(l2=0.0, fit_intercept=True).fit(table, Y, weights)


@each
def test_more_columns_than_rows(estimator):
    with pytest.raises(InputError, match=r"more parameters \(12\) than records \(10 samples"):
        estimator(l2=0.0).fit(RNG.normal(size=(10, 12)), np.arange(10) % 2)


def test_nearly_collinear_columns_are_not_refused():
    """Columns 1e-9 apart are independent in float64, though their Gram matrix is singular."""
    near = np.column_stack([X, X[:, 0] + 1e-9 * RNG.normal(size=30)])
    y = near @ [1.0, 1.0, 1.0, 0.0]
    assert LinearRegression().fit(near, y).score(near, y) > 1 - 1e-12


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_separable_classes(convert, intercept):
    y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int)
    with pytest.raises(InputError, match=r"separable: .* coefficients diverge; set l2"):
        LogisticRegression(l2=0.0, fit_intercept=intercept).fit(convert(X), y)
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    with pytest.raises(InputError, match="separable"):
        SoftmaxRegression(l2=0.0, fit_intercept=True).fit(convert(X), three)
    LogisticRegression(l2=1e-6, fit_intercept=intercept).fit(convert(X), y)


def test_classes_separable_with_ties():
    """One category has only one class: its coefficient diverges, the others do not."""
    groups = np.eye(3)[np.arange(60) % 3]
    y = np.random.default_rng(1).integers(0, 2, size=60)
    y[groups[:, 1] == 1] = 1
    with pytest.raises(InputError, match="separable"):
        LogisticRegression(l2=0.0).fit(groups, y)
    three = np.random.default_rng(2).integers(0, 3, size=60)
    three[groups[:, 1] == 1] = 2
    with pytest.raises(InputError, match="separable"):
        SoftmaxRegression(l2=0.0).fit(groups, three)


def test_separable_once_the_weights_count():
    y = (X[:, 0] > 0).astype(int)
    y[0] = 1 - y[0]
    y[1] = 1 - y[1]
    weights = np.r_[0.0, 0.0, np.ones(28)]
    with pytest.raises(InputError, match="separable"):
        LogisticRegression(l2=0.0).fit(X, y, weights)


def test_overlap_by_a_hair_is_not_separable():
    """One row of a thousandth of the others' size on the wrong side: the optimum is finite."""
    table = np.r_[np.linspace(1, 50, 40), -np.linspace(1, 50, 40), [1e-3]][:, None]
    y = np.r_[np.ones(40), np.zeros(41)]
    model = LogisticRegression(l2=0.0).fit(table, y)
    r = 1 / (1 + np.exp(-table[:, 0] * model.coef_[0, 0])) - y
    assert abs(r @ table[:, 0]) < 1e-12


def test_separable_classes_whose_penalty_is_lost_are_refused_by_that_name():
    """Eleven records alike but for their labels, and two far off that have one label alone."""
    x = np.r_[np.full(11, 2.0**30), 0.0, 0.0][:, None]
    y = np.r_[np.arange(11) % 2, 0, 0]
    model = SoftmaxRegression(l2=1e-12, fit_intercept=True).fit(x, y)
    with pytest.raises(InputError, match=r"separable, and l2 is negligible .* larger l2"):
        sp.leakage(model, x, y, noise=sp.Gaussian(1.0))


@pytest.mark.parametrize("estimator", [LogisticRegression, SoftmaxRegression])
def test_one_class_only(estimator):
    with pytest.raises(InputError, match="only one class"):
        estimator().fit(X, np.ones(30))
    with pytest.raises(InputError, match="rows with positive weight have only one class"):
        estimator().fit(X, Y, (Y == 1).astype(float))


def test_class_without_weight_and_an_intercept():
    three = np.arange(30) % 3
    with pytest.raises(
        InputError, match=r"class .*2.* has weight zero, so the intercept of this class diverges"
    ):
        SoftmaxRegression(fit_intercept=True).fit(X, three, (three != 2).astype(float))


def test_three_classes_are_sent_to_softmax():
    with pytest.raises(InputError, match=r"3 classes.*use SoftmaxRegression"):
        LogisticRegression().fit(X, np.arange(30) % 3)


def test_negative_counts():
    y = Y.copy()
    y[:2] = -1
    with pytest.raises(InputError, match="PoissonRegression: 2 counts are negative"):
        PoissonRegression(l2=0.1).fit(X, y)


def test_counts_that_are_all_zero():
    with pytest.raises(InputError, match="Every count"):
        PoissonRegression(l2=0.1, fit_intercept=True).fit(X, np.zeros(30))
    assert np.all(PoissonRegression(l2=0.1).fit(X, np.zeros(30)).predict(X) > 0)


def test_counts_that_are_zero_throughout_a_category():
    groups = np.eye(3)[np.arange(30) % 3]
    y = np.random.default_rng(1).poisson(2, size=30) * (groups[:, 0] == 0)
    with pytest.raises(InputError, match="nonzero only in rows with a count of zero"):
        PoissonRegression().fit(groups, y)


def test_logistic_family_wants_labels_between_0_and_1():
    with pytest.raises(InputError, match="between 0 and 1"):
        GeneralizedLinearRegression("bernoulli").fit(X, 3 * Y)


@each
def test_labels_that_are_missing_or_text(estimator):
    with pytest.raises(InputError, match="the target y is None"):
        estimator().fit(X, None)
    if estimator in (LinearRegression, PoissonRegression):
        with pytest.raises(InputError, match="y must contain numbers"):
            estimator().fit(X, np.where(Y, "a", "b"))


@each
def test_one_dimensional_table(estimator):
    with pytest.raises(InputError, match=r"Reshape your data with X.reshape\(-1, 1\)"):
        estimator().fit(X[:, 0], Y)
