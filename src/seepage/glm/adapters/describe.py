"""Turn a fitted model, ours or another library's, into one description of its objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.adapters.sklearn import describe_sklearn
from seepage.glm.adapters.statsmodels import describe_statsmodels
from seepage.glm.estimators.base import LinearModel
from seepage.glm.estimators.classifiers import GLMClassifier
from seepage.glm.estimators.inputs import (
    check_columns,
    read_known_classes,
    read_penalty,
    read_response,
    read_weights,
)
from seepage.glm.estimators.regressors import GLMRegressor
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses.families import Categorical, Family, class_targets
from seepage.tables.source import Table, place_like

Array = Any  # any array of the array API standard

SUPPORTED = (
    "seepage.glm's LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression and "
    "GeneralizedLinearRegression, scikit-learn's LinearRegression, Ridge, LogisticRegression and "
    "PoissonRegressor, and statsmodels' GLM results"
)


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
        found = describe_sklearn(model, table, y, sample_weight)
    elif library == "statsmodels":
        found = describe_statsmodels(model, table, y, sample_weight)
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
    check_columns(model, table)
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
