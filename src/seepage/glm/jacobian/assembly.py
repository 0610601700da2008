"""From a fitted model, its data and a noise to the whitened Jacobian of its release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.noise import Noise
from seepage.glm.adapters.describe import describe
from seepage.glm.fitting.curvature import hessian, penalised
from seepage.glm.fitting.existence import check_columns
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.fitting.objective import Objective
from seepage.glm.fitting.stationarity import check_stationarity
from seepage.glm.jacobian.closed_form import SingleOutputJacobian
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.losses.categorical import Categorical
from seepage.support.chunks import by_rows, chunk_for, row_slices
from seepage.tables.frames import Table

Array = Any


def glm_jacobian(
    model: Any, table: Table, y: Any, noise: Noise, sample_weight: Any, on_mismatch: str
) -> GLMJacobian:
    """Return the Jacobian of releasing ``model``, fitted on the table, with ``noise`` added.

    Everything that is summed over the rows is summed in float64, whatever the table's type; the
    passes over the rows that follow are made in the table's own type.
    """
    fit = _in_float64(describe(model, table, y, sample_weight))
    X = table.values
    margins = by_rows(
        lambda rows: fit.margins(_wide(X[rows, :])), len(table), X.shape[1], chunk=chunk_for(X)
    )
    H = _hessian(fit, X, margins)
    objective = Objective.of(fit, X)
    check_columns(objective, H, objective.counted, table.names)
    H = objective.definite(H)
    check_stationarity(fit, X, on_mismatch, hessian=H)
    jacobian = jacobian_of_rows(fit, X, margins, whitened_inverse(H, noise))
    jacobian.fit = fit
    return jacobian


def one_row_jacobian(fit: FittedGLM, X: Array, row: int, noise: Noise) -> GLMJacobian:
    """Return the Jacobian about a single row, of a model known to be the minimiser on ``X``.

    It is a Jacobian over a table of that one row, however many rows the model was fitted on.
    """
    margins = fit.margins(X)
    H = Objective.of(fit, X).definite(_hessian(fit, X, margins))
    one = slice(row, row + 1)
    weight = None if fit.sample_weight is None else fit.sample_weight[one]
    alone = replace(fit, sample_weight=weight, target=fit.target[one, ...])
    return jacobian_of_rows(alone, X[one, :], margins[one, ...], whitened_inverse(H, noise))


def jacobian_of_rows(fit: FittedGLM, X: Array, margins: Array, whitener: Array) -> GLMJacobian:
    """Return the Jacobian about rows whose targets and weights are those of ``fit``."""
    build = _categorical if isinstance(fit.family, Categorical) else _single_output
    return build(fit, X, margins, _narrow(whitener, X))


def whitened_inverse(H: Array, noise: Noise) -> Array:
    """Return ``A = Φ^½ H⁻¹``, with ``Φ`` the information of the noise and ``H`` definite."""
    xp = array_namespace(H)
    # Scaled to a unit diagonal first, the inverse does not suffer from the units of the columns.
    scale = 1 / xp.sqrt(xp.linalg.diagonal(H))
    inverse = xp.linalg.inv(H * scale[:, None] * scale[None, :])
    inverse = (inverse + inverse.T) / 2 * scale[:, None] * scale[None, :]
    information = noise.information(H.shape[0])
    if information.ndim == 2:
        root = np.linalg.cholesky(information).T
        return xp.asarray(root, dtype=H.dtype, device=H.device) @ inverse
    root = xp.asarray(np.sqrt(information), dtype=H.dtype, device=H.device)
    return root * inverse if information.ndim == 0 else root[:, None] * inverse


def _single_output(fit: FittedGLM, X: Array, margins: Array, whitener: Array) -> GLMJacobian:
    r, a, b = (_narrow(v, X) for v in weighted_derivatives(fit, margins))
    coef = _narrow(fit.coef, X)
    return SingleOutputJacobian(
        X,
        coef,
        intercept=fit.intercept is not None,
        r=r,
        a=a,
        b=b,
        whitener=whitener,
        target=fit.target,
    )


def weighted_derivatives(fit: FittedGLM, margins: Array) -> tuple[Array, Array, Array]:
    """Return ``r``, ``a`` and ``b`` of rows with these margins, the weights folded in, (n,)."""
    family, y, weight = fit.family, fit.target, fit.sample_weight
    r, a, b = family.slope(margins, y), family.curvature(margins, y), family.label_slope(margins, y)
    return (r, a, b) if weight is None else (weight * r, weight * a, weight * b)


def _categorical(fit: FittedGLM, X: Array, margins: Array, whitener: Array) -> GLMJacobian:
    family, y, weight = fit.family, fit.target, fit.sample_weight

    def derivatives(rows: slice | Array) -> tuple[Array, Array, Array]:
        M, Y = margins[rows, :], y[rows, :]
        r, a, b = family.slope(M, Y), family.curvature(M, Y), family.label_slope(M, Y)
        if weight is not None:
            w = weight[rows]
            r, a, b = w[:, None] * r, w[:, None, None] * a, w[:, None, None] * b
        return _narrow(r, X), _narrow(a, X), _narrow(b, X)

    return GLMJacobian(
        X,
        _narrow(fit.coef, X),
        intercept=fit.intercept is not None,
        derivatives=derivatives,
        whitener=whitener,
        target=y,
        label_size=margins.shape[1] - 1,
    )


def _hessian(fit: FittedGLM, X: Array, margins: Array) -> Array:
    """Return the objective's Hessian in float64."""
    xp = array_namespace(X)
    weight = fit.sample_weight
    # A float64 table goes through whole: the Hessian works in chunks of its own.
    step = 1 << 22 if X.dtype != xp.float64 else X.shape[0] * X.shape[1]
    total: Array = 0.0
    for rows in row_slices(X.shape[0], X.shape[1], chunk=step):
        M = margins[rows, ...]
        curvature = fit.family.curvature(M, fit.target[rows, ...])
        if weight is not None:
            curvature = xp.reshape(weight[rows], (-1, *(1,) * (curvature.ndim - 1))) * curvature
        intercept = fit.intercept is not None
        total = total + hessian(_wide(X[rows, :]), curvature, ridge=0.0, intercept=intercept)
    outputs = fit.family.outputs if isinstance(fit.family, Categorical) else 1
    return penalised(total, fit.ridge, outputs if fit.intercept is not None else 0)


def _in_float64(fit: FittedGLM) -> FittedGLM:
    return replace(
        fit,
        coef=_wide(fit.coef),
        intercept=None if fit.intercept is None else _wide(fit.intercept),
        sample_weight=None if fit.sample_weight is None else _wide(fit.sample_weight),
        target=_wide(fit.target),
    )


def _wide(values: Array) -> Array:
    xp = array_namespace(values)
    return xp.astype(values, xp.float64, copy=False)


def _narrow(values: Array, like: Array) -> Array:
    return array_namespace(values).astype(values, like.dtype, copy=False)
