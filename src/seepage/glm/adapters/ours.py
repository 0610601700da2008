"""How the models of :mod:`seepage.glm` are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.adapters.kinds import ModelKind
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
from seepage.glm.losses import Categorical, Family, class_targets
from seepage.tables.source import Array, Table, as_numpy, place_like


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


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A model of another library that was described before, with what predicts from it."""

    fit: FittedGLM
    classes_: np.ndarray | None = None

    @property
    def coef_(self) -> np.ndarray:
        """The coefficients, (d,) or (K, d)."""
        return as_numpy(self.fit.coef).T

    @property
    def intercept_(self) -> np.ndarray:
        """The intercepts, zero where there is none."""
        free = self.fit.intercept
        return np.zeros(np.shape(self.fit.coef)[1:]) if free is None else as_numpy(free)


def _given(model: GivenModel, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    check_column_count(int(model.fit.coef.shape[0]), table)
    return model.fit


def _penalty(model: LinearModel, rows: int, weight: float) -> float:
    return read_penalty(model.l2, rows)


_OBJECTIVE = "Σ ω ℓ + (nλ/2)‖w‖²"
# Those derived from these two are known by them.
KINDS = (
    ModelKind("seepage", "GLMClassifier", _classifier, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GLMRegressor", _regressor, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GivenModel", _given, _OBJECTIVE),
)
