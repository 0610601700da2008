"""How a model was fitted, so that it can be fitted again on other rows or with another penalty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.adapters.describe import describe
from seepage.glm.estimators.base import LinearModel
from seepage.glm.estimators.classifiers import LogisticRegression, SoftmaxRegression
from seepage.glm.estimators.regressors import LinearRegression, PoissonRegression
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses.families import Categorical
from seepage.tables.frames import read_table

MODELS = {
    "linear": LinearRegression,
    "logistic": LogisticRegression,
    "poisson": PoissonRegression,
    "softmax": SoftmaxRegression,
}
_BY_FAMILY = {"gaussian": "linear", "bernoulli": "logistic", "poisson": "poisson"}
_BY_TARGET = {
    "numeric": "linear",
    "count": "poisson",
    "binary": "logistic",
    "multiclass": "softmax",
}


@dataclass(frozen=True)
class Recipe:
    """A kind of model, its penalty λ, and whether it has an intercept."""

    model: str
    l2: float
    intercept: bool = True

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Any:
        """Fit it on these rows."""
        return self.estimator().fit(X, y, sample_weight=sample_weight)

    def estimator(self) -> Any:
        """Return the model that is to be fitted."""
        return MODELS[self.model](l2=self.l2, fit_intercept=self.intercept)

    def with_penalty(self, l2: float) -> Recipe:
        """Return the same with another λ."""
        return replace(self, l2=l2)

    @property
    def classifies(self) -> bool:
        """Whether it predicts classes."""
        return self.model in ("logistic", "softmax")


def choose_model(model: str | None, target_kind: str, target: str) -> str:
    """Return the kind of model for a target, or say why the one asked for does not suit it."""
    if model is None:
        return _BY_TARGET[target_kind]
    if model not in MODELS:
        raise InputError(f"There is no model {model!r}; choose one of {', '.join(MODELS)}.")
    suits = {
        "linear": ("numeric", "count"),
        "poisson": ("count",),
        "logistic": ("binary",),
        "softmax": ("binary", "multiclass"),
    }
    if target_kind not in suits[model]:
        raise InputError(
            f"The target {target!r} is {_WORDS[target_kind]}, which a {model} model cannot "
            f"predict; use --model {_BY_TARGET[target_kind]}, or leave --model out."
        )
    return model


_WORDS = {
    "numeric": "a number",
    "count": "a count",
    "binary": "one of two classes",
    "multiclass": "one of several classes",
}


def read_recipe(
    model: Any, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None
) -> tuple[Recipe, FittedGLM]:
    """Return how a fitted model would be fitted by us, and its description."""
    fit = describe(model, read_table(X), y, sample_weight)
    return recipe_of(fit, X.shape[0]), fit


def recipe_of(fit: FittedGLM, rows: int) -> Recipe:
    """Return how a described model of so many rows would be fitted by us."""
    if isinstance(fit.family, Categorical):
        kind = "softmax"
    elif fit.family.name in _BY_FAMILY:
        kind = _BY_FAMILY[fit.family.name]
    else:
        raise InputError(
            f"The {fit.family.name} family cannot be audited; audit a linear, logistic, Poisson "
            "or softmax model."
        )
    return Recipe(kind, fit.ridge / rows, fit.intercept is not None)


def as_ours(model: Any, recipe: Recipe, fit: FittedGLM, y: np.ndarray) -> Any:
    """Return a fitted model, ours or another library's, as one of ours.

    Another library's may carry class weights besides the sample weights; the weights of the
    description are the product of both, which ours takes as sample weights.
    """
    if isinstance(model, LinearModel):
        return model
    ours = MODELS[recipe.model](l2=recipe.l2, fit_intercept=recipe.intercept)
    coef = np.asarray(fit.coef, dtype=float)
    outputs = coef.shape[1] if coef.ndim == 2 else 1
    free = np.zeros(outputs) if fit.intercept is None else np.ravel(np.asarray(fit.intercept))
    if recipe.classifies:
        ours.classes_ = np.asarray(getattr(model, "classes_", np.unique(y)))
        ours.coef_, ours.intercept_ = np.atleast_2d(coef.T), free
    else:
        ours.coef_, ours.intercept_ = coef, free[0]
    ours.weighted_ = fit.sample_weight is not None
    ours.n_features_in_ = int(coef.shape[0])
    return ours


def weights_of(fit: FittedGLM) -> np.ndarray | None:
    """Return the weights that took part in a fit, those of the classes included."""
    return None if fit.sample_weight is None else np.asarray(fit.sample_weight)
