"""Models of other libraries: described so exactly that their gradient vanishes."""

from dataclasses import replace
from inspect import signature

import numpy as np
import pandas as pd
import pytest
import skglm
import statsmodels.api as sm
import torch
from sklearn import linear_model
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from seepage.errors import InputError
from seepage.glm import (
    GeneralizedLinearRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from seepage.glm.adapters.registry import describe
from seepage.glm.jacobian.optimum import check_stationarity
from seepage.glm.losses import Categorical
from seepage.tables.source import read_table

RNG = np.random.default_rng(0)
N, D = 80, 3
X = RNG.normal(size=(N, D))
M = X @ [1.0, -0.5, 0.2] + 0.3
REAL = M + RNG.normal(size=N)
TWO = (M + RNG.logistic(size=N) > 0).astype(int)
THREE = RNG.integers(0, 3, size=N)
COUNTS = RNG.poisson(np.exp(M / 2))
WEIGHTS = RNG.uniform(0.2, 2, size=N)
TIGHT = {"tol": 1e-12, "max_iter": 10_000}
# Before 1.8, scikit-learn wants the penalty named beside the ratio, and knows no older attributes.
SINCE_1_8 = "use_legacy_attributes" in signature(linear_model.LogisticRegressionCV).parameters
MIXED = {"solver": "saga", **TIGHT} | ({} if SINCE_1_8 else {"penalty": "elasticnet"})
SETTLED = {"l1_ratios": (0.0,), "use_legacy_attributes": True} if SINCE_1_8 else {}

both_intercepts = pytest.mark.parametrize("intercept", [False, True])
weighted_or_not = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])


def step_of(model, y, weights=None, table=X):
    read = read_table(table)
    return check_stationarity(describe(model, read, y, weights), read.values)


OURS = {
    "linear": (LinearRegression, REAL),
    "logistic": (LogisticRegression, TWO),
    "poisson": (PoissonRegression, COUNTS),
    "softmax": (SoftmaxRegression, THREE),
    "general": (lambda **kw: GeneralizedLinearRegression("poisson", **kw), COUNTS),
}


@both_intercepts
@weighted_or_not
@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("kind", OURS)
def test_own_estimators(kind, l2, weights, intercept):
    estimator, y = OURS[kind]
    model = estimator(l2=l2, fit_intercept=intercept).fit(X, y, weights)
    assert step_of(model, y, weights) < 1e-13
    fit = describe(model, read_table(X), y, weights)
    assert fit.ridge == pytest.approx(N * l2)
    outputs = (3,) if kind == "softmax" else ()
    assert fit.coef.shape == (D, *outputs)
    assert fit.parameters.shape == (D + intercept, *outputs)
    assert fit.target.shape == (N, *outputs)
    assert (fit.intercept is None) is (not intercept)
    assert fit.feature_names == ("x0", "x1", "x2")
    if intercept:
        assert fit.intercept.shape == outputs


@pytest.mark.parametrize("kind", OURS)
def test_own_estimators_across_libraries(kind):
    estimator, y = OURS[kind]
    model = estimator(l2=0.05, fit_intercept=True).fit(X, y)
    assert step_of(model, y, table=torch.as_tensor(X)) < 1e-13
    there = estimator(l2=0.05, fit_intercept=True).fit(torch.as_tensor(X), y)
    assert step_of(there, torch.as_tensor(y), table=X) < 1e-13
    fit = describe(model, read_table(torch.as_tensor(X)), y)
    assert all(isinstance(part, torch.Tensor) for part in (fit.coef, fit.intercept, fit.target))


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_single_precision_tables_do_not_round_the_model(convert):
    model = linear_model.Ridge().fit(X, REAL, WEIGHTS)
    table = read_table(convert(X), dtype="float32")
    fit = describe(model, table, REAL, WEIGHTS)
    np.testing.assert_array_equal(np.asarray(fit.coef), model.coef_)
    np.testing.assert_array_equal(np.asarray(fit.target), REAL)
    np.testing.assert_array_equal(np.asarray(fit.sample_weight), WEIGHTS)
    assert check_stationarity(fit, table.values) < 1e-6


def test_forgotten_weights_are_asked_for():
    model = LogisticRegression().fit(X, TWO, WEIGHTS)
    with pytest.raises(InputError, match="was fitted with sample weights; pass the same weights"):
        describe(model, read_table(X), TWO)


def test_released_model_is_refused():
    model = LogisticRegression().fit(X, TWO)
    model.release_ = "noise"
    with pytest.raises(InputError, match=r"noisy release.* pass the original model"):
        describe(model, read_table(X), TWO)


@both_intercepts
@weighted_or_not
def test_sklearn_linear_regression(weights, intercept):
    model = linear_model.LinearRegression(fit_intercept=intercept).fit(X, REAL, weights)
    assert step_of(model, REAL, weights) < 1e-13


@both_intercepts
@weighted_or_not
@pytest.mark.parametrize("alpha", [0.5, 40.0])
def test_sklearn_ridge(alpha, weights, intercept):
    model = linear_model.Ridge(alpha=alpha, fit_intercept=intercept).fit(X, REAL, weights)
    assert step_of(model, REAL, weights) < 1e-13


@both_intercepts
@weighted_or_not
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_sklearn_poisson(alpha, weights, intercept):
    model = linear_model.PoissonRegressor(
        alpha=alpha, fit_intercept=intercept, solver="newton-cholesky", tol=1e-12
    ).fit(X, COUNTS, weights)
    assert step_of(model, COUNTS, weights) < 1e-9


@both_intercepts
@weighted_or_not
@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 0.5, 1: 3.0}], ids=str)
@pytest.mark.parametrize("C", [0.1, 10.0, np.inf])
@pytest.mark.parametrize("y", [TWO, THREE], ids=["binary", "multinomial"])
def test_sklearn_logistic(y, C, class_weight, weights, intercept):
    model = linear_model.LogisticRegression(
        C=C, class_weight=class_weight, fit_intercept=intercept, solver="newton-cg", **TIGHT
    ).fit(X, y, weights)
    assert step_of(model, y, weights) < 1e-9


def test_sklearn_liblinear_without_an_intercept():
    model = linear_model.LogisticRegression(
        solver="liblinear", fit_intercept=False, C=0.3, tol=1e-10
    ).fit(X, TWO)
    assert step_of(model, TWO) < 1e-7


def test_string_classes_are_mapped():
    names = np.asarray(["no", "yes"])
    model = linear_model.LogisticRegression(solver="newton-cg", **TIGHT).fit(X, names[TWO])
    fit = describe(model, read_table(X), pd.Series(names[TWO]))
    np.testing.assert_array_equal(fit.target, TWO)
    three = np.asarray(["a", "b", "c"])
    model = linear_model.LogisticRegression(solver="newton-cg", **TIGHT).fit(X, three[THREE])
    fit = describe(model, read_table(X), list(three[THREE]))
    assert fit.family == Categorical(3)
    np.testing.assert_array_equal(fit.target, np.eye(3)[THREE])
    with pytest.raises(InputError, match=r"Row 0 has the label 'd'.*'a', 'b', 'c'"):
        describe(model, read_table(X), ["d", *three[THREE][1:]])


def test_labels_in_one_column_are_labels():
    column = pd.DataFrame({"ill": TWO})
    model = linear_model.LogisticRegression().fit(X, TWO)
    np.testing.assert_array_equal(describe(model, read_table(X), column).target, TWO)
    ours = LogisticRegression(l2=0.1).fit(X, TWO, WEIGHTS[:, None])
    np.testing.assert_array_equal(ours.coef_, LogisticRegression(l2=0.1).fit(X, TWO, WEIGHTS).coef_)


def test_sparse_logistic_regression_is_read_as_skglm_states_it():
    """Its objective by scikit-learn's solver: compiling skglm's takes minutes."""
    alpha = 0.001
    twin = linear_model.LogisticRegression(l1_ratio=1, C=1 / (alpha * N), **MIXED).fit(X, TWO)
    model = skglm.SparseLogisticRegression(alpha=alpha, fit_intercept=True)
    model.coef_, model.intercept_, model.classes_ = twin.coef_, twin.intercept_, twin.classes_
    assert np.all(twin.coef_ != 0)
    assert step_of(model, TWO) < 1e-6
    model.alpha = 2 * alpha
    with pytest.raises(InputError, match="minimise"):
        step_of(model, TWO)


REFUSED = {
    "liblinear": (
        linear_model.LogisticRegression(solver="liblinear"),
        TWO,
        "liblinear penalises the intercept",
    ),
    "l1": (
        linear_model.LogisticRegression(l1_ratio=1, **MIXED),
        TWO,
        "L1 penalty",
    ),
    "elastic-net": (
        linear_model.LogisticRegression(l1_ratio=0.5, **MIXED),
        TWO,
        "L1 penalty",
    ),
    "positive": (linear_model.LinearRegression(positive=True), REAL, "constrained"),
    "several-outputs": (
        linear_model.Ridge(),
        np.column_stack([REAL, REAL]),
        "Fit one model per output",
    ),
    "lasso": (linear_model.Lasso(), REAL, "sp.leakage and sp.audit do this automatically"),
    "lasso-of-several-outputs": (
        linear_model.Lasso(1e-4),
        np.column_stack([REAL, REAL]),
        "Lasso with 2 outputs is not supported",
    ),
    "averaged-over-folds": (
        linear_model.LogisticRegressionCV(
            Cs=[0.1, 1.0], cv=2, refit=False, scoring="accuracy", **SETTLED
        ),
        TWO,
        "they do not minimise a single objective. Fit with refit=True",
    ),
    "hinge": (
        LinearSVC(loss="hinge", fit_intercept=False, dual=True),
        TWO,
        "loss='hinge' and penalty='l2' is not supported: its objective is not differentiable",
    ),
    "a-model-for-each-class": (
        LinearSVC(fit_intercept=False, dual=False),
        THREE,
        "LinearSVC with 3 classes is not supported: it fits a separate model for each class",
    ),
    "pipeline": (
        make_pipeline(StandardScaler(), linear_model.Ridge()),
        REAL,
        "pass its final model and that model's table",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sklearn_models_that_are_refused(case):
    model, y, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence):
        describe(model.fit(X, y), read_table(X), REAL if y.ndim == 2 else y)


def test_one_versus_rest_is_refused():
    model = linear_model.LogisticRegression().fit(X, THREE)
    model.multi_class = "ovr"  # what versions before 1.8 let people ask for
    with pytest.raises(InputError, match="one-vs-rest"):
        describe(model, read_table(X), THREE)


def test_softmax_of_two_classes_is_refused():
    model = linear_model.LogisticRegression().fit(X, TWO)
    model.multi_class = "multinomial"
    with pytest.raises(InputError, match="two redundant sets of coefficients"):
        describe(model, read_table(X), TWO)


@pytest.mark.parametrize("penalty", [None, "l2", "l1", "elasticnet"])
def test_penalty_as_older_scikit_learn_states_it(penalty):
    model = linear_model.LogisticRegression(C=0.5).fit(X, TWO)
    model.penalty, model.l1_ratio = penalty, 0.5 if penalty == "elasticnet" else None
    if penalty in ("l1", "elasticnet"):
        with pytest.raises(InputError, match="L1 penalty"):
            describe(model, read_table(X), TWO)
    else:
        ridge = describe(model, read_table(X), TWO).ridge
        assert ridge == (2.0 if penalty == "l2" else 0.0)


def test_anything_else_is_refused():
    with pytest.raises(InputError, match=r"dict of builtins is not supported.*sp\.audit\("):
        describe({"w": 1}, read_table(X), TWO)
    with pytest.raises(InputError, match="not fitted yet"):
        describe(linear_model.Ridge(), read_table(X), REAL)
    with pytest.raises(InputError, match="not fitted yet"):
        describe(LogisticRegression(), read_table(X), TWO)


def test_other_columns_are_refused():
    model = linear_model.Ridge().fit(pd.DataFrame(X, columns=["a", "b", "c"]), REAL)
    with pytest.raises(InputError, match="X has 2 columns, but the model was fitted on 3"):
        describe(model, read_table(X[:, :2]), REAL)
    with pytest.raises(InputError, match="Column 0 of X is 'b', but it was 'a' when"):
        describe(model, read_table(pd.DataFrame(X, columns=["b", "a", "c"])), REAL)
    assert step_of(model, REAL) < 1e-13


FAMILIES = {
    "gaussian": (sm.families.Gaussian, REAL),
    "binomial": (sm.families.Binomial, TWO),
    "poisson": (sm.families.Poisson, COUNTS),
}


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_statsmodels(kind, weighted, constant):
    family, y = FAMILIES[kind]
    exog = sm.add_constant(X) if constant else X
    weights = {"freq_weights": np.arange(N) % 3 + 1.0, "var_weights": WEIGHTS} if weighted else {}
    results = sm.GLM(y, exog, family=family(), **weights).fit(tol=1e-14)
    fit = describe(results, read_table(X), y)
    assert (fit.intercept is not None) is constant
    assert check_stationarity(fit, X) < 1e-10
    own = (np.arange(N) % 3 + 1.0) * WEIGHTS if weighted else None
    ours = {
        "gaussian": LinearRegression(fit_intercept=constant),
        "binomial": LogisticRegression(l2=0.0, fit_intercept=constant),
        "poisson": PoissonRegression(fit_intercept=constant),
    }[kind].fit(X, y, own)
    np.testing.assert_allclose(fit.coef, np.reshape(ours.coef_, -1), atol=1e-9)
    assert describe(results, read_table(X), y, own).ridge == 0.0
    if constant:
        assert step_of(results, y, table=exog) < 1e-10


def test_statsmodels_with_data_frames():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    results = sm.GLM(pd.Series(COUNTS), sm.add_constant(frame), family=sm.families.Poisson()).fit()
    assert describe(results, read_table(frame), COUNTS).feature_names == ("a", "b", "c")
    with pytest.raises(InputError, match="The columns of X are b, a, c"):
        describe(results, read_table(frame[["b", "a", "c"]]), COUNTS)
    with pytest.raises(InputError, match="has its own weights"):
        describe(results, read_table(frame), COUNTS, WEIGHTS)
    with pytest.raises(InputError, match="X has 2 columns"):
        describe(results, read_table(frame[["a", "b"]]), COUNTS)


@pytest.mark.parametrize("sigma", [None, WEIGHTS], ids=["none", "of-each-record"])
def test_errors_of_generalised_least_squares(sigma):
    results = sm.GLS(REAL, X, sigma=sigma).fit()
    fit = describe(results, read_table(X), REAL)
    np.testing.assert_allclose(
        1.0 if fit.sample_weight is None else fit.sample_weight,
        1.0 if sigma is None else 1 / WEIGHTS,
    )
    assert check_stationarity(fit, X) < 1e-12


def test_statsmodels_that_are_refused():
    table, poisson = read_table(X), sm.families.Poisson()
    model = sm.GLM(COUNTS, X, family=poisson)
    with pytest.raises(InputError, match="not fitted yet"):
        describe(model, table, COUNTS)
    with pytest.raises(InputError, match="Regularised statsmodels fits"):
        describe(model.fit_regularized(alpha=0.1), table, COUNTS)
    with pytest.raises(InputError, match="fitted under constraints"):
        describe(model.fit_constrained(([1, 0, 0], 0.1)), table, COUNTS)
    probit = sm.families.Binomial(sm.families.links.Probit())
    with pytest.raises(InputError, match="family Binomial with link Probit is not supported"):
        describe(sm.GLM(TWO, X, family=probit).fit(), table, TWO)
    trials = np.column_stack([TWO, 4 - TWO])
    grouped = sm.GLM(trials, X, family=sm.families.Binomial()).fit()
    with pytest.raises(InputError, match="successes and failures"):
        describe(grouped, table, TWO)
    twos = np.column_stack([2 * np.ones(N), X])
    with pytest.raises(InputError, match="constant but not 1"):
        describe(sm.GLM(REAL, twos).fit(), table, REAL)
    with pytest.raises(InputError, match="RecursiveLS of statsmodels is not supported"):
        describe(sm.RecursiveLS(REAL, X).fit(), table, REAL)


def test_labels_that_do_not_suit_the_family():
    model = linear_model.PoissonRegressor().fit(X, COUNTS)
    with pytest.raises(InputError, match="is not valid for the poisson family: 1 count is"):
        describe(model, read_table(X), np.r_[-1, COUNTS[1:]])


def test_descriptions_are_frozen():
    fit = describe(LogisticRegression().fit(X, TWO), read_table(X), TWO)
    with pytest.raises(AttributeError):
        fit.ridge = 1.0
    assert replace(fit, ridge=1.0).ridge == 1.0
