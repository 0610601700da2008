"""Readers for scikit-learn's linear models; their penalties are converted exactly."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import is_regressor

from seepage.core.result import PENALTY
from seepage.glm.adapters.registry import (
    ModelKind,
    one_output,
    reader,
)
from seepage.glm.losses import (
    Categorical,
    Family,
    bernoulli,
    gamma,
    gaussian,
    poisson,
    squared_hinge,
    tweedie,
)
from seepage.glm.refusals import refuse_setting

# Least squares, and means of losses ---------------------------------------------------------------


def _check_least_squares(model: Any) -> None:
    one_output(model)
    _check_free(model)


def _check_free(model: Any) -> None:
    if getattr(model, "positive", False):
        raise refuse_setting(
            model,
            "positive=True",
            "its coefficients are constrained, so they may not minimise the loss",
            "Fit with positive=False.",
        )


def _alpha(model: Any) -> float:
    """Return the given or selected α, or 0 for a model without α."""
    given = getattr(model, "alpha_", getattr(model, "alpha", 0.0))
    return float(np.ravel(given)[0])  # one output has one value


def _of_sum(model: Any, rows: int, weight: float) -> float:
    return _alpha(model)


def per_weight(model: Any, rows: int, weight: float) -> float:
    """Return ``α Σ ω`` for a penalty that is added to the mean loss."""
    return _alpha(model) * weight


def lasso_ratio(model: Any) -> float:
    """Return the L1 share of a penalty, or 1 if the model has no such setting."""
    return float(getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0)) or 0.0)


def _tweedie_of(model: Any) -> Family:
    power = float(model.power)
    log = model.link == "log" or (model.link == "auto" and power > 0)
    if power == 0 and not log:
        return gaussian
    if not (1 <= power <= 2 and log):
        raise refuse_setting(
            model,
            f"power={power:g} and the {'logarithmic' if log else 'identity'} link",
            "this loss is not implemented in seepage",
            "Use a power from 1 to 2 with the logarithmic link, or 0 with the identity link.",
        )
    return tweedie(power)


# Gradient steps -----------------------------------------------------------------------------------


def _sgd_family(model: Any) -> Family:
    known = {"squared_error": gaussian} if is_regressor(model) else {"log_loss": bernoulli}
    if model.loss not in known:
        raise refuse_setting(
            model,
            f"loss={model.loss!r}",
            "this loss is not twice differentiable",
            f"Fit with loss={next(iter(known))!r}.",
        )
    return known[model.loss]


def _sgd_penalty(model: Any, rows: int, weight: float) -> float:
    """Return nα for the penalty ``(α/2)‖w‖²``, which is added to the mean loss."""
    if model.penalty not in ("l2", None):
        raise refuse_setting(
            model,
            f"penalty={model.penalty!r}",
            "gradient steps bring coefficients close to zero but never exactly to zero, so it is "
            "unclear which columns are kept",
            "Fit with penalty='l2', or fit Lasso or ElasticNet.",
        )
    if getattr(model, "average", False):
        raise refuse_setting(
            model,
            "average=True",
            "the average of many steps is not a minimiser",
            "Use average=False.",
        )
    return 0.0 if model.penalty is None else rows * float(model.alpha)


# Classes ------------------------------------------------------------------------------------------


def _logistic_family(model: Any) -> Family | Categorical:
    classes = len(model.classes_)
    return bernoulli if classes == 2 else Categorical(classes)


def _logistic_penalty(model: Any, rows: int, weight: float) -> float:
    """Return 1/C; raise an error for an L1 penalty (``l1_ratio`` since version 1.8)."""
    penalty = getattr(model, "penalty", "deprecated")
    given: Any = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", None))
    ratio = max((float(r) for r in np.atleast_1d(given) if r is not None), default=0.0)
    absolute = ratio > 0 if penalty == "deprecated" else penalty == "l1"
    mixed = penalty == "elasticnet" and ratio > 0
    if absolute or mixed:
        raise refuse_setting(
            model,
            "an L1 penalty",
            "its objective has no second derivative",
            "Fit with an L2 penalty only, or fit skglm's SparseLogisticRegression.",
        )
    C = np.unique(np.asarray(getattr(model, "C_", getattr(model, "C", np.inf)), dtype=float))
    if not getattr(model, "refit", True) or len(C) != 1:
        raise refuse_setting(
            model,
            "coefficients averaged over folds, or a C for each class",
            "they do not minimise a single objective",
            "Fit with refit=True and the multinomial loss.",
        )
    return 0.0 if penalty is None else 1.0 / float(C[0])


def _check_logistic(model: Any) -> None:
    classes = len(model.classes_)
    scheme = getattr(model, "multi_class", "deprecated")
    if classes > 2 and (scheme == "ovr" or model.solver == "liblinear"):
        raise refuse_setting(
            model,
            "one model per class (one-vs-rest)",
            "it consists of several models",
            "Fit the multinomial model, or audit each binary model separately.",
        )
    if classes == 2 and scheme == "multinomial":
        raise refuse_setting(
            model,
            "multi_class='multinomial' and two classes",
            "it has two redundant sets of coefficients",
            "Omit multi_class.",
        )
    if model.solver == "liblinear" and model.fit_intercept:
        raise refuse_setting(
            model,
            "solver='liblinear' and an intercept",
            "liblinear penalises the intercept",
            "Fit with solver='lbfgs' or 'newton-cholesky'.",
        )


def _check_svc(model: Any) -> None:
    if model.loss != "squared_hinge" or model.penalty != "l2":
        raise refuse_setting(
            model,
            f"loss={model.loss!r} and penalty={model.penalty!r}",
            "its objective is not differentiable",
            "Fit with the squared hinge and the L2 penalty.",
        )
    if model.fit_intercept:
        raise refuse_setting(
            model,
            "an intercept",
            "liblinear penalises the intercept like a coefficient",
            "Centre the columns and fit with fit_intercept=False, or fit LogisticRegression.",
        )


def _svc_penalty(model: Any, rows: int, weight: float) -> float:
    return 1.0 / float(model.C)


_least_squares = reader(gaussian, _of_sum, check=_check_least_squares)
lasso = reader(gaussian, per_weight, ratio_of=lasso_ratio, check=_check_least_squares)
_ridge_classifier = reader(gaussian, _of_sum, check=_check_free, label_unit=2.0)
_logistic = reader(_logistic_family, _logistic_penalty, check=_check_logistic)
_sgd = reader(_sgd_family, _sgd_penalty)
_svc = reader(squared_hinge, _svc_penalty, check=_check_svc)

_EDGES = (
    "Records outside the margin leak nothing to first order; changes that move a record across "
    "the margin are not counted."
)
_CODES = "The two classes are coded −1 and 1, so changing the class changes the label by 2."
_TUNED = (PENALTY,)
_CV = "as without CV, with the selected penalty"
_SQUARES = "Σ ω (wᵀx − y)²"
_LASSO = f"{_SQUARES} / 2Σω + α (ρ‖w‖₁ + (1 − ρ)‖w‖²/2)"
_MEAN = "Σ ω ℓ / Σω + (α/2)‖w‖²"
_STEPS = "(α/2)‖w‖², if converged"
_HINGE = "C Σ ω max(0, 1 − y wᵀx)² + ½‖w‖², no intercept"
_kind = partial(ModelKind, "sklearn")
_selecting = partial(_kind, read=lasso, selects=True)
_mean = partial(_kind, penalty=per_weight)
_stepping = partial(_kind, read=_sgd, penalty=_sgd_penalty)

KINDS = (
    _kind("LinearRegression", _least_squares, _SQUARES),
    _kind("Ridge", _least_squares, f"{_SQUARES} + α‖w‖²"),
    _kind("RidgeCV", _least_squares, _CV, chooses=_TUNED),
    _selecting("Lasso", objective=_LASSO),
    _selecting("ElasticNet", objective=_LASSO),
    _selecting("LassoCV", objective=_CV, chooses=_TUNED),
    _selecting("ElasticNetCV", objective=_CV, chooses=_TUNED),
    _kind("LogisticRegression", _logistic, "C Σ ω ℓ + ½‖w‖², also multinomial"),
    _kind("LogisticRegressionCV", _logistic, _CV, chooses=_TUNED),
    _kind("RidgeClassifier", _ridge_classifier, f"{_SQUARES} + α‖w‖², two classes", _CODES),
    _kind(
        "RidgeClassifierCV",
        _ridge_classifier,
        _CV,
        _CODES,
        chooses=_TUNED,
    ),
    _mean("PoissonRegressor", reader(poisson, per_weight), _MEAN),
    _mean("GammaRegressor", reader(gamma, per_weight), _MEAN),
    _mean("TweedieRegressor", reader(_tweedie_of, per_weight), f"{_MEAN}, powers 0 and 1 to 2"),
    _stepping("SGDRegressor", objective=f"{_SQUARES}/2n + {_STEPS}"),
    _stepping("SGDClassifier", objective=f"Σ ω ℓ/n + {_STEPS}"),
    _kind("LinearSVC", _svc, _HINGE, _EDGES),
)
