"""Describe scikit-learn's fitted linear models, with their penalties mapped exactly.

======================  ==============================================  ==================
model                   its objective                                   ridge = nλ
======================  ==============================================  ==================
``LinearRegression``    Σ ω (wᵀx − y)²                                  0
``Ridge``               Σ ω (wᵀx − y)² + α‖w‖²                          α
``LogisticRegression``  C Σ ω ℓ + ½‖w‖²                                 1/C
``PoissonRegressor``    Σ ω ℓ / Σ ω + (α/2)‖w‖²                         α Σ ω
======================  ==============================================  ==================

Models are known by the name of their class, so that scikit-learn's solvers need not be imported.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.estimators.inputs import (
    check_fitted_columns,
    read_known_classes,
    read_response,
    read_weights,
)
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses.families import (
    Categorical,
    Family,
    bernoulli,
    class_targets,
    gaussian,
    poisson,
)
from seepage.tables.source import Table, as_numpy, place_like

Array = Any  # any array of the array API standard


def describe_sklearn(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM | None:
    """Return the description of a scikit-learn model, or ``None`` for one that has none."""
    kind = type(model).__name__
    if kind == "Pipeline":
        raise InputError(
            "A Pipeline also leaks through its transformers: pass its final estimator and the "
            "transformed table (pipeline[-1] and pipeline[:-1].transform(X))."
        )
    if kind not in ("LinearRegression", "Ridge", "LogisticRegression", "PoissonRegressor"):
        return None
    check_fitted_columns(model, table)
    weights = read_weights(sample_weight, table)
    family: Family | Categorical = poisson if kind == "PoissonRegressor" else gaussian
    if kind == "LogisticRegression":
        classes = as_numpy(model.classes_)
        ridge = _logistic_ridge(model)
        _check_logistic_form(model, len(classes))
        family = bernoulli if len(classes) == 2 else Categorical(len(classes))
        positions = read_known_classes(y, classes, table)
        target = place_like(class_targets(positions, family), table.values)
        weights = _with_class_weights(model, positions, weights, table)
    elif kind == "PoissonRegressor":
        target = read_response(y, table)
        xp = array_namespace(table.values)
        ridge = float(model.alpha) * (len(table) if weights is None else float(xp.sum(weights)))
    else:
        ridge = _linear_ridge(model)
        target = read_response(y, table)
    intercept = model.intercept_ if model.fit_intercept else None
    return FittedGLM.on(
        table, family, target, weights, coef=model.coef_, intercept=intercept, ridge=ridge
    )


def _refuse(model: Any, what: str, instead: str) -> None:
    raise InputError(f"A {type(model).__name__} with {what} is not supported; {instead}.")


def _linear_ridge(model: Any) -> float:
    """Return α, or 0 for ``LinearRegression``; refuse several outputs and constraints."""
    if model.coef_.ndim == 2 and model.coef_.shape[0] > 1:
        _refuse(model, f"{model.coef_.shape[0]} outputs", "fit one model for each output")
    if model.positive:
        _refuse(model, "positive=True", "its coefficients are constrained: fit with positive=False")
    alpha = np.unique(np.asarray(getattr(model, "alpha", 0.0), dtype=float))
    if alpha.shape[0] != 1:
        _refuse(model, "several values of alpha", "fit one model for each output")
    return float(alpha[0])


def _logistic_ridge(model: Any) -> float:
    """Return 1/C; scikit-learn before 1.8 says ``penalty``, since then ``l1_ratio`` and ``C``."""
    penalty = getattr(model, "penalty", "deprecated")
    ratio = getattr(model, "l1_ratio", None) or 0.0
    absolute = ratio > 0 if penalty == "deprecated" else penalty == "l1"
    mixed = penalty == "elasticnet" and ratio > 0
    if absolute or mixed:
        _refuse(model, "an L1 penalty", "its objective has no second derivative: fit with L2 only")
    return 0.0 if penalty is None else 1.0 / float(model.C)


def _check_logistic_form(model: Any, classes: int) -> None:
    scheme = getattr(model, "multi_class", "deprecated")
    if classes > 2 and (scheme == "ovr" or model.solver == "liblinear"):
        _refuse(
            model,
            "one model per class (one-vs-rest)",
            "fit the multinomial model, or audit each binary model by itself",
        )
    if classes == 2 and scheme == "multinomial":
        _refuse(model, "multi_class='multinomial' and two classes", "leave multi_class out")
    if model.solver == "liblinear" and model.fit_intercept:
        _refuse(
            model,
            "solver='liblinear' and an intercept",
            "liblinear penalises the intercept: fit with solver='lbfgs' or 'newton-cholesky'",
        )


def _with_class_weights(
    model: Any, positions: np.ndarray, weights: Array | None, table: Table
) -> Array | None:
    """Return the sample weights times the weight of each record's class, by scikit-learn's rule."""
    if model.class_weight is None:
        return weights
    from sklearn.utils.class_weight import compute_class_weight

    classes = as_numpy(model.classes_)
    # Since 1.7 balanced weights count the sample weights; follow the version that fitted the model.
    counted = "sample_weight" in inspect.signature(compute_class_weight).parameters
    extra = {} if weights is None or not counted else {"sample_weight": as_numpy(weights)}
    of_class = compute_class_weight(
        model.class_weight, classes=classes, y=classes[positions], **extra
    )
    per_row = place_like(of_class[positions], table.values)
    return per_row if weights is None else per_row * weights
