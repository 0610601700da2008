"""Turn a fitted model, ours or another library's, into one description of its objective.

What is read is a :class:`~seepage.glm.fitting.objective.FittedGLM`; nothing is fitted or measured
here. Of statsmodels the results of a GLM with its canonical link are known, and of scikit-learn
these, by the names of their classes, so that its solvers need not be imported; their penalties are
mapped exactly:

======================  ==============================================  ==================
model                   its objective                                   ridge = nλ
======================  ==============================================  ==================
``LinearRegression``    Σ ω (wᵀx − y)²                                  0
``Ridge``               Σ ω (wᵀx − y)² + α‖w‖²                          α
``LogisticRegression``  C Σ ω ℓ + ½‖w‖²                                 1/C
``PoissonRegressor``    Σ ω ℓ / Σ ω + (α/2)‖w‖²                         α Σ ω
======================  ==============================================  ==================
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.estimators import GLMClassifier, GLMRegressor, LinearModel
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.inputs import (
    check_column_count,
    check_fitted_columns,
    read_known_classes,
    read_penalty,
    read_response,
    read_weights,
)
from seepage.glm.losses import Categorical, Family, bernoulli, class_targets, gaussian, poisson
from seepage.tables.source import Array, Table, as_numpy, place_like

SUPPORTED = (
    "seepage.glm's LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression and "
    "GeneralizedLinearRegression, scikit-learn's LinearRegression, Ridge, LogisticRegression and "
    "PoissonRegressor, and statsmodels' GLM results"
)
_CANONICAL: dict[tuple[str, str], Family] = {
    ("Gaussian", "Identity"): gaussian,
    ("Binomial", "Logit"): bernoulli,
    ("Poisson", "Log"): poisson,
}


def describe(model: Any, table: Table, y: Any, sample_weight: Any = None) -> FittedGLM:
    """Return the family, parameters, penalty, weights and labels of a fitted model.

    The table, the labels, as the model knows them (classes may be strings), and the weights are
    those it was fitted with. Refused are models that are not among those ``SUPPORTED``, not fitted,
    of other columns than the table's, or whose objective is not an L2-penalised GLM with a free
    intercept.
    """
    if getattr(model, "release_", None) is not None:
        raise InputError(
            "This model has been released: its coefficients carry noise and minimise nothing; pass "
            "the original model."
        )
    table = _in_double(table)
    library = type(model).__module__.partition(".")[0]
    if isinstance(model, LinearModel):
        return _describe_own(model, table, y, sample_weight)
    if library == "sklearn":
        found = _describe_sklearn(model, table, y, sample_weight)
    elif library == "statsmodels":
        found = _describe_statsmodels(model, table, y, sample_weight)
    else:
        found = None
    if found is None:
        raise InputError(
            f"A {type(model).__name__} of {library} is not supported; supported are {SUPPORTED}."
        )
    return found


def _in_double(table: Table) -> Table:
    """Return a stand-in for the table, of its shape, library and device but in float64.

    Nothing here looks at the values, and coefficients, labels and weights are not to be rounded to
    the type of a table in single precision.
    """
    xp = array_namespace(table.values)
    zero = xp.zeros((1, 1), dtype=xp.float64, device=device(table.values))
    return replace(table, values=xp.broadcast_to(zero, table.values.shape))


def _describe_own(model: LinearModel, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    check_fitted_columns(model, table)
    weights = read_weights(sample_weight, table)
    if model.weighted_ and sample_weight is None:
        raise InputError(
            f"This {type(model).__name__} was fitted with sample weights: pass the same ones as "
            "sample_weight=."
        )
    family: Family | Categorical
    if isinstance(model, GLMClassifier):
        family = model._family_of(len(model.classes_))
        positions = read_known_classes(y, model.classes_, table)
        target = place_like(class_targets(positions, family), table.values)
    elif isinstance(model, GLMRegressor):
        family, target = model._family(), read_response(y, table)
    else:
        raise InputError(f"A {type(model).__name__} is not supported; supported are {SUPPORTED}.")
    return FittedGLM.on(
        table,
        family,
        target,
        weights,
        coef=model.coef_,
        intercept=model.intercept_ if model.fit_intercept else None,
        ridge=read_penalty(model.l2, len(table)),
    )


def _describe_sklearn(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM | None:
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


def _describe_statsmodels(
    results: Any, table: Table, y: Any, sample_weight: Any
) -> FittedGLM | None:
    """Return the description of statsmodels results, or ``None`` for others than GLM's.

    The table is the model's ``exog``, with or without its column of ones: left out, that column's
    coefficient is the intercept; passed, it counts as data like every other column.
    """
    model = getattr(results, "model", results)
    if type(model).__name__ != "GLM":
        return None
    if not hasattr(results, "params"):
        raise InputError("This statsmodels GLM is not fitted yet: pass the results of its fit().")
    if not type(results).__name__.startswith("GLMResults"):
        raise InputError(
            "Regularised fits of statsmodels are not supported; fit with seepage.glm or "
            "scikit-learn, whose L2 penalty is known."
        )
    _check_plain_glm(results, model)
    params = np.asarray(results.params, dtype=float)
    coef, intercept = _split_constant(params, model, table)
    target = read_response(y, table)
    weights = _own_weights(model, table, sample_weight)
    family = _canonical_family(model)
    return FittedGLM.on(table, family, target, weights, coef=coef, intercept=intercept, ridge=0.0)


def _canonical_family(model: Any) -> Family:
    name, link = type(model.family).__name__, type(model.family.link).__name__
    if (name, link) not in _CANONICAL:
        known = ", ".join(f"{family} with {its}" for family, its in _CANONICAL)
        raise InputError(
            f"A statsmodels GLM of family {name} with link {link} is not supported; supported are "
            f"{known}."
        )
    return _CANONICAL[name, link]


def _check_plain_glm(results: Any, model: Any) -> None:
    for what in ("offset", "exposure"):
        given = getattr(model, what, None)
        if given is not None and np.any(np.asarray(given) != 0):  # the exposure is kept as its log
            raise InputError(
                f"A statsmodels GLM with an {what} is not supported; fit the model without it."
            )
    if getattr(results, "constraints", None) is not None:
        raise InputError(
            "A statsmodels GLM fitted under constraints is not supported: its coefficients do not "
            "minimise the loss; fit it freely."
        )
    if np.any(np.asarray(getattr(model, "n_trials", 1)) != 1):
        raise InputError(
            "A statsmodels GLM of counts of successes and failures is not supported; pass one row "
            "for each trial, or the share of successes with freq_weights."
        )


def _split_constant(
    params: np.ndarray, model: Any, table: Table
) -> tuple[np.ndarray, float | None]:
    """Return the coefficients of the table's columns, and the constant's if that is left out."""
    names = [str(name) for name in model.data.xnames]
    constant = model.data.const_idx
    without = constant is not None and table.values.shape[1] == params.shape[0] - 1
    if without:
        if np.any(np.asarray(model.exog)[:, constant] != 1):
            raise InputError(
                f"Column {names[constant]!r} of the statsmodels GLM is constant but not 1, so it "
                "is no intercept; pass the table with this column."
            )
        names.pop(constant)
    else:
        check_column_count(params.shape[0], table)
    if table.library not in ("numpy", "torch") and tuple(names) != table.names:
        raise InputError(
            f"The columns of X are {', '.join(table.names[:8])}, but the model was fitted on "
            f"{', '.join(names[:8])}; pass them in the order of the fit."
        )
    if not without:
        return params, None
    return np.delete(params, constant), float(params[constant])


def _own_weights(model: Any, table: Table, sample_weight: Any) -> Any:
    """Return freq_weights · var_weights, which the model remembers."""
    own = np.asarray(model.freq_weights, dtype=float) * np.asarray(model.var_weights, dtype=float)
    if sample_weight is not None and not np.array_equal(as_numpy(sample_weight), own):
        raise InputError(
            "The statsmodels GLM carries weights of its own (freq_weights · var_weights), which "
            "differ from sample_weight; leave sample_weight out."
        )
    return read_weights(own, table)
