"""How the models of :mod:`seepage.glm` are read."""

from __future__ import annotations

from typing import Any

from seepage.errors import InputError
from seepage.glm.adapters.kinds import ModelKind
from seepage.glm.estimators import GLMClassifier, GLMRegressor, LinearModel
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.inputs import (
    check_fitted_columns,
    read_known_classes,
    read_penalty,
    read_response,
    read_weights,
)
from seepage.glm.losses import Categorical, Family, class_targets
from seepage.tables.source import Array, Table, place_like


def _classifier(model: GLMClassifier, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    check_fitted_columns(model, table)
    family = model._family_of(len(model.classes_))
    positions = read_known_classes(y, model.classes_, table)
    target = place_like(class_targets(positions, family), table.values)
    return _described(model, table, family, target, sample_weight)


def _regressor(model: GLMRegressor, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    check_fitted_columns(model, table)
    return _described(model, table, model._family(), read_response(y, table), sample_weight)


def _described(
    model: LinearModel,
    table: Table,
    family: Family | Categorical,
    target: Array,
    sample_weight: Any,
) -> FittedGLM:
    weights = read_weights(sample_weight, table)
    if model.weighted_ and sample_weight is None:
        raise InputError(
            f"This {type(model).__name__} was fitted with sample weights: pass the same ones as "
            "sample_weight=."
        )
    return FittedGLM.on(
        table,
        family,
        target,
        weights,
        coef=model.coef_,
        intercept=model.intercept_ if model.fit_intercept else None,
        ridge=read_penalty(model.l2, len(table)),
    )


def _penalty(model: LinearModel, rows: int, weight: float) -> float:
    return read_penalty(model.l2, rows)


_OBJECTIVE = "Σ ω ℓ + (nλ/2)‖w‖²"
# Those derived from these two are known by them.
KINDS = (
    ModelKind("seepage", "GLMClassifier", _classifier, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GLMRegressor", _regressor, _OBJECTIVE, penalty=_penalty),
)
