"""Every model a tabular user comes with, fitted, and how to fit it again by its own library.

A door is a fitted model with the table and labels it was fitted on, and ``refit``: the numbers that
would be released for another table and labels, by the model's own library and nothing of ours.
With ``frozen`` the steps before the model stay as they are; else the whole is fitted again.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn import linear_model as lm
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.svm import LinearSVC

RNG = np.random.default_rng(20)
N = 90
PEOPLE = pd.DataFrame(
    {
        "age": RNG.uniform(20, 80, N),
        "dose": RNG.gamma(3.0, 1.0, N),
        "weight": RNG.normal(70, 12, N),
    }
)
MARGIN = (0.03 * (PEOPLE["age"] - 50) + 0.3 * PEOPLE["dose"] - 0.02 * PEOPLE["weight"]).to_numpy()
TOWNS = RNG.choice(["east", "north", "south"], N)
REAL = pd.Series(MARGIN + RNG.normal(0, 0.5, N), name="outcome")
TWO = pd.Series(np.where(MARGIN + RNG.logistic(0, 1, N) > -0.3, "yes", "no"), name="ill")
THREE = pd.Series(RNG.choice(["a", "b", "c"], N), name="kind")
COUNTS = pd.Series(RNG.poisson(np.exp(0.5 * MARGIN + 1)), name="visits")
POSITIVE = pd.Series(RNG.gamma(2.0, np.exp(0.3 * MARGIN)), name="cost")
TIME = pd.Series(RNG.uniform(0.5, 3.0, N), name="time")
Z = (PEOPLE - PEOPLE.mean()) / PEOPLE.std()
GAPPY = Z.mask(RNG.random(Z.shape) < 0.1)
MIXED = PEOPLE.assign(town=TOWNS, smoker=RNG.random(N) < 0.4)
INNER_KNOTS = PEOPLE.quantile([0.1, 0.4, 0.7, 0.9]).to_numpy()  # some records lie outside
TIGHT = {"tol": 1e-13, "max_iter": 100_000}


@dataclass(frozen=True)
class Door:
    """A fitted model, its table and labels, and how its library fits it again."""

    model: Any
    X: Any
    y: Any
    refit: Callable[[Any, Any, bool], np.ndarray]
    options: tuple[tuple[str, Any], ...] = ()
    labels: bool = True  # whether its labels are numbers, that can be moved


def released(model) -> np.ndarray:
    """Return the numbers of a fitted scikit-learn model that are not held at zero."""
    coef = np.atleast_2d(model.coef_)
    free = np.reshape(model.intercept_, (-1, 1)) if model.fit_intercept else coef[:, :0]
    both = np.hstack([coef, free]).T
    kept = np.append(np.any(coef != 0, axis=0), np.ones(free.shape[1], bool))
    return both[kept].ravel()


def sklearn_door(model, y, X=Z, weights=None, **options) -> Door:
    """A model of scikit-learn's manner, with what it is called with."""
    extra = {} if weights is None else {"sample_weight": weights}
    fitted = clone(model).fit(X, y, **extra)
    told = (("sample_weight", weights),) if weights is not None else ()
    settled = settings_kept(fitted)

    def refit(rows, labels, frozen):
        return released(clone(settled).fit(rows, labels, **extra))

    numbers = np.issubdtype(np.asarray(y).dtype, np.number)
    return Door(fitted, X, y, refit, (*told, *options.items()), labels=numbers)


def settings_kept(model):
    """Return the plain model that a tuned one settled on: the choice is held fixed."""
    twins = {
        "RidgeCV": lambda m: lm.Ridge(alpha=m.alpha_),
        "RidgeClassifierCV": lambda m: lm.RidgeClassifier(alpha=m.alpha_),
        "LassoCV": lambda m: lm.Lasso(alpha=m.alpha_, **TIGHT),
        "ElasticNetCV": lambda m: lm.ElasticNet(alpha=m.alpha_, l1_ratio=m.l1_ratio_, **TIGHT),
        "LogisticRegressionCV": lambda m: lm.LogisticRegression(
            C=float(np.ravel(m.C_)[0]), solver="newton-cholesky", tol=1e-12
        ),
    }
    return twins.get(type(model).__name__, lambda m: m)(model)


def search_door(search, y) -> Door:
    fitted = search.fit(Z, y)

    def refit(rows, labels, frozen):
        return released(clone(fitted.best_estimator_).fit(rows, labels))

    return Door(fitted, Z, y, refit)


def sgd_door(model, twin, y) -> Door:
    """A model by stochastic gradients, refined; the twin minimises the same to rounding."""
    import seepage as sp

    rough = model.fit(Z, y)

    def refit(rows, labels, frozen):
        return released(clone(twin).fit(rows, labels))

    numbers = np.issubdtype(np.asarray(y).dtype, np.number)
    return Door(sp.refine(rough, Z, y), Z, y, refit, labels=numbers)


def results_door(fit, y, X=Z, labels=True) -> Door:
    """Results of statsmodels; ``fit`` makes them of the design and the labels."""
    design = sm.add_constant(X)

    def refit(rows, labels, frozen):
        params = np.asarray(fit(labels, sm.add_constant(rows)).params)
        return np.append(params[1:], params[0])  # the intercept is counted last

    return Door(fit(y, design), X, y, refit, labels=labels)


def formula_door(fit, y, X=MIXED) -> Door:
    """Results of a formula; ``fit`` makes them of the caller's data frame."""

    def refit(rows, labels, frozen):
        params = np.asarray(fit(rows.assign(**{y.name: labels})).params)
        return np.append(params[1:], params[0])

    return Door(fit(X.assign(**{y.name: y})), X, y, refit)


def pipeline_door(*steps, y=REAL, X=Z, final=None, **options) -> Door:
    final = lm.Ridge(2.0) if final is None else final
    pipeline = make_pipeline(*steps, final).fit(X, y)

    def refit(rows, labels, frozen):
        if not frozen:
            return released(clone(pipeline).fit(rows, labels)[-1])
        return released(clone(final).fit(deepcopy(pipeline[:-1]).transform(rows), labels))

    return Door(pipeline, X, y, refit, tuple(options.items()), labels=y.dtype.kind in "if")


def towns():
    """Numbers scaled, towns one-hot, the rest as it is: the commonest pipeline of all."""
    return make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "dose", "weight"]),
        (OneHotEncoder(drop="first"), ["town"]),
        ("passthrough", ["smoker"]),
    )


def _glum(**settings):
    import glum

    return glum.GeneralizedLinearRegressor(gradient_tol=1e-12, max_iter=1000, **settings)


def _glum_cv():
    import glum

    fitted = glum.GeneralizedLinearRegressorCV(
        l1_ratio=0.0, n_alphas=3, gradient_tol=1e-12, max_iter=1000
    ).fit(Z, REAL)

    def refit(rows, labels, frozen):
        return released(_glum(alpha=fitted.alpha_, l1_ratio=0.0).fit(rows, labels))

    return Door(fitted, Z, REAL, refit)


def _skglm(name, y, **settings):
    import skglm

    model = getattr(skglm, name)(tol=1e-12, **settings)
    return sklearn_door(model, y)


ALPHAS = (0.5, 3.0, 10.0)
# What scikit-learn asks for since 1.8, and did not know before.
SINCE_1_8 = "use_legacy_attributes" in signature(lm.LogisticRegressionCV).parameters
SETTLED = {"l1_ratios": (0.0,), "use_legacy_attributes": False} if SINCE_1_8 else {}
LOGISTIC = lm.LogisticRegression(C=0.4, solver="newton-cholesky", tol=1e-12)

# The kind of the registry that a door is for, and the door.
DOORS: dict[str, tuple[str, Callable[[], Door]]] = {
    "LinearRegression": ("sklearn", lambda: sklearn_door(lm.LinearRegression(), REAL)),
    "Ridge": ("sklearn", lambda: sklearn_door(lm.Ridge(2.0), REAL, weights=TIME.to_numpy())),
    "RidgeCV": ("sklearn", lambda: sklearn_door(lm.RidgeCV(ALPHAS), REAL)),
    "Lasso": ("sklearn", lambda: sklearn_door(lm.Lasso(0.2, **TIGHT), REAL)),
    "ElasticNet": (
        "sklearn",
        lambda: sklearn_door(
            lm.ElasticNet(0.2, l1_ratio=0.7, **TIGHT), REAL, weights=TIME.to_numpy()
        ),
    ),
    "LassoCV": ("sklearn", lambda: sklearn_door(lm.LassoCV(**TIGHT), REAL)),
    "ElasticNetCV": ("sklearn", lambda: sklearn_door(lm.ElasticNetCV(**TIGHT), REAL)),
    "LogisticRegression": ("sklearn", lambda: sklearn_door(LOGISTIC, TWO)),
    "LogisticRegressionCV": (
        "sklearn",
        lambda: sklearn_door(
            lm.LogisticRegressionCV(
                Cs=[0.1, 1.0],
                solver="newton-cholesky",
                tol=1e-12,
                scoring="accuracy",
                **SETTLED,
            ),
            TWO,
        ),
    ),
    "RidgeClassifier": ("sklearn", lambda: sklearn_door(lm.RidgeClassifier(2.0), TWO)),
    "RidgeClassifierCV": ("sklearn", lambda: sklearn_door(lm.RidgeClassifierCV(ALPHAS), TWO)),
    "PoissonRegressor": (
        "sklearn",
        lambda: sklearn_door(
            lm.PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12),
            COUNTS,
            weights=TIME.to_numpy(),
        ),
    ),
    "GammaRegressor": (
        "sklearn",
        lambda: sklearn_door(
            lm.GammaRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12), POSITIVE
        ),
    ),
    "TweedieRegressor": (
        "sklearn",
        lambda: sklearn_door(
            lm.TweedieRegressor(power=1.5, alpha=0.1, solver="newton-cholesky", tol=1e-12),
            POSITIVE,
        ),
    ),
    "SGDRegressor": (
        "sklearn",
        lambda: sgd_door(
            lm.SGDRegressor(alpha=0.01, tol=1e-6, random_state=0, max_iter=5000),
            lm.Ridge(0.01 * N),
            REAL,
        ),
    ),
    "SGDClassifier": (
        "sklearn",
        lambda: sgd_door(
            lm.SGDClassifier("log_loss", alpha=0.05, tol=1e-6, random_state=0, max_iter=5000),
            lm.LogisticRegression(C=1 / (0.05 * N), solver="newton-cholesky", tol=1e-12),
            TWO,
        ),
    ),
    "LinearSVC": (
        "sklearn",
        lambda: sklearn_door(
            LinearSVC(C=0.1, fit_intercept=False, dual=False, tol=1e-13, max_iter=100_000), TWO
        ),
    ),
    "OLS": ("statsmodels", lambda: results_door(lambda y, X: sm.OLS(y, X).fit(), REAL)),
    "WLS": ("statsmodels", lambda: results_door(lambda y, X: sm.WLS(y, X, TIME).fit(), REAL)),
    "GLS": (
        "statsmodels",
        lambda: results_door(lambda y, X: sm.GLS(y, X, sigma=np.diag(TIME)).fit(), REAL),
    ),
    "Logit": (
        "statsmodels",
        lambda: results_door(
            lambda y, X: sm.Logit(y, X).fit(disp=0, tol=1e-14),
            (TWO == "yes").astype(float),
            labels=False,
        ),
    ),
    "Poisson": (
        "statsmodels",
        lambda: results_door(
            lambda y, X: sm.Poisson(y, X, exposure=TIME).fit(disp=0, tol=1e-14, method="newton"),
            COUNTS,
        ),
    ),
    "GLM": (
        "statsmodels",
        lambda: results_door(
            # Before 0.15 a series as exposure makes nan of the coefficients.
            lambda y, X: sm.GLM(
                y, X, family=sm.families.Poisson(), offset=TIME / 2, exposure=TIME.to_numpy()
            ).fit(tol=1e-14),
            COUNTS,
        ),
    ),
    "GeneralizedLinearRegressor": (
        "glum",
        lambda: sklearn_door(
            _glum(family="gamma", alpha=0.1, l1_ratio=0.3), POSITIVE, weights=TIME.to_numpy()
        ),
    ),
    "GeneralizedLinearRegressorCV": ("glum", _glum_cv),
    "skglm Lasso": ("skglm", lambda: _skglm("Lasso", REAL, alpha=0.2)),
    "skglm ElasticNet": ("skglm", lambda: _skglm("ElasticNet", REAL, alpha=0.2, l1_ratio=0.7)),
    "skglm SparseLogisticRegression": (
        "skglm",
        lambda: _skglm("SparseLogisticRegression", TWO, alpha=0.02),
    ),
}

# More ways to use the same kinds: links, families, several classes.
VARIANTS: dict[str, Callable[[], Door]] = {
    "LogisticRegression, three classes": lambda: sklearn_door(
        lm.LogisticRegression(C=0.4, solver="newton-cg", tol=1e-12, max_iter=1000), THREE
    ),
    "GLM, gamma with exposure": lambda: results_door(
        lambda y, X: sm.GLM(
            y, X, family=sm.families.Gamma(sm.families.links.Log()), offset=np.log(TIME)
        ).fit(tol=1e-14),
        POSITIVE,
    ),
    "GLM, Tweedie with an offset": lambda: results_door(
        lambda y, X: sm.GLM(
            y,
            X,
            family=sm.families.Tweedie(sm.families.links.Log(), var_power=1.4),
            offset=np.log(TIME),
            var_weights=TIME,
        ).fit(tol=1e-14),
        POSITIVE,
    ),
    "GLM, Gaussian with an offset": lambda: results_door(
        lambda y, X: sm.GLM(y, X, offset=TIME).fit(tol=1e-14), REAL
    ),
    "TweedieRegressor, power 0": lambda: sklearn_door(
        lm.TweedieRegressor(power=0, alpha=0.1, solver="newton-cholesky", tol=1e-12), REAL
    ),
}

SEARCHES: dict[str, Callable[[], Door]] = {
    "GridSearchCV": lambda: search_door(GridSearchCV(lm.Ridge(), {"alpha": ALPHAS}), REAL),
    "RandomizedSearchCV": lambda: search_door(
        RandomizedSearchCV(lm.Ridge(), {"alpha": ALPHAS}, n_iter=2, random_state=0), REAL
    ),
    "HalvingGridSearchCV": lambda: search_door(
        HalvingGridSearchCV(lm.Ridge(), {"alpha": ALPHAS}, random_state=0), REAL
    ),
}

FORMULAS: dict[str, Callable[[], Door]] = {
    "ols formula": lambda: formula_door(
        lambda df: smf.ols("outcome ~ age * dose + C(town)", df).fit(), REAL
    ),
    "glm formula": lambda: formula_door(
        lambda df: smf.glm(
            "visits ~ np.log(dose) + weight + C(town)",
            df,
            family=sm.families.Poisson(),
            exposure=TIME,
        ).fit(tol=1e-14),
        COUNTS,
    ),
}

PIPELINES: dict[str, Callable[[], Door]] = {
    "StandardScaler": lambda: pipeline_door(StandardScaler(), X=PEOPLE),
    "MinMaxScaler": lambda: pipeline_door(MinMaxScaler(), X=PEOPLE),
    "MaxAbsScaler": lambda: pipeline_door(MaxAbsScaler(), X=PEOPLE),
    "RobustScaler": lambda: pipeline_door(RobustScaler(), X=PEOPLE),
    "SimpleImputer": lambda: pipeline_door(SimpleImputer(), StandardScaler(), X=GAPPY),
    "SimpleImputer, median": lambda: pipeline_door(
        SimpleImputer(strategy="median", add_indicator=True), X=GAPPY
    ),
    "OneHotEncoder": lambda: pipeline_door(towns(), X=MIXED),
    "OrdinalEncoder": lambda: pipeline_door(
        make_column_transformer((OrdinalEncoder(), ["town"]), remainder="passthrough"),
        StandardScaler(),
        X=MIXED,
    ),
    "SplineTransformer": lambda: pipeline_door(
        SplineTransformer(n_knots=4, include_bias=False), StandardScaler(), X=PEOPLE
    ),
    "SplineTransformer, quantiles": lambda: pipeline_door(
        SplineTransformer(n_knots=4, knots="quantile"), X=PEOPLE
    ),
    "PolynomialFeatures": lambda: pipeline_door(
        StandardScaler(), PolynomialFeatures(2, include_bias=False), StandardScaler(), X=PEOPLE
    ),
    "PCA": lambda: pipeline_door(StandardScaler(), PCA(2), X=PEOPLE),
    "PCA, whitened": lambda: pipeline_door(PCA(2, whiten=True), X=PEOPLE),
    "Lasso after splines": lambda: pipeline_door(
        SplineTransformer(n_knots=4),
        X=PEOPLE,
        final=lm.Lasso(0.01, **TIGHT),
    ),
    "LogisticRegression after towns": lambda: pipeline_door(
        towns(), X=MIXED, y=TWO, final=LOGISTIC
    ),
}

# Settings that few people choose, each for a branch of its own in what a step does.
RARE_STEPS: dict[str, Callable[[], Door]] = {
    "MinMaxScaler, clipped": lambda: pipeline_door(MinMaxScaler(clip=True), X=PEOPLE),
    "StandardScaler, centred only": lambda: pipeline_door(StandardScaler(with_std=False), X=PEOPLE),
    "RobustScaler, centred only": lambda: pipeline_door(RobustScaler(with_scaling=False), X=PEOPLE),
    "RobustScaler, scaled only": lambda: pipeline_door(
        RobustScaler(with_centering=False), X=PEOPLE
    ),
    "SimpleImputer, a marker": lambda: pipeline_door(
        SimpleImputer(missing_values=-9.0), X=GAPPY.fillna(-9.0)
    ),
    "SimpleImputer, a constant": lambda: pipeline_door(
        SimpleImputer(strategy="constant", fill_value=0.5), X=GAPPY
    ),
    "SimpleImputer, text and numbers": lambda: pipeline_door(
        SimpleImputer(strategy="most_frequent"),
        make_column_transformer((OneHotEncoder(drop="first"), [1]), remainder="passthrough"),
        X=MIXED[["age", "town"]],
    ),
    "SplineTransformer, periodic": lambda: pipeline_door(
        SplineTransformer(n_knots=5, extrapolation="periodic"), X=PEOPLE
    ),
    "SplineTransformer, constant outside": lambda: pipeline_door(
        SplineTransformer(knots=INNER_KNOTS, extrapolation="constant"), X=PEOPLE
    ),
    "SplineTransformer, continued outside": lambda: pipeline_door(
        SplineTransformer(knots=INNER_KNOTS, extrapolation="continue"), X=PEOPLE
    ),
    "SplineTransformer, continued to knots": lambda: pipeline_door(
        SplineTransformer(n_knots=4, extrapolation="continue"), X=PEOPLE
    ),
    "FeatureUnion": lambda: pipeline_door(
        FeatureUnion(
            [
                ("scaled", StandardScaler()),
                ("left out", "drop"),
                ("squares", make_pipeline(PCA(2), PolynomialFeatures(2, include_bias=False))),
                ("plain", "passthrough"),
            ]
        ),
    ),
    "a pipeline inside": lambda: pipeline_door(
        StandardScaler(), make_pipeline(PCA(2), StandardScaler()), X=PEOPLE
    ),
    "passthrough, and a part of no columns": lambda: pipeline_door(
        "passthrough",
        make_column_transformer((StandardScaler(), ["age", "dose"]), (RobustScaler(), [])),
        X=PEOPLE,
    ),
}


@cache
def door(name: str) -> Door:
    """Return the door of a name; each is opened once."""
    if name in DOORS:
        return DOORS[name][1]()
    return {**VARIANTS, **SEARCHES, **FORMULAS, **PIPELINES, **RARE_STEPS}[name]()
