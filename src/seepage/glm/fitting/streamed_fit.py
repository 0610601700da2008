"""Fit a GLM to rows that come in chunks: Newton's method with one pass over the rows per step."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.fitting.cholesky import cholesky_factor, damped_factor
from seepage.glm.fitting.curvature import gauge_fixed
from seepage.glm.fitting.dependence import check_gram
from seepage.glm.fitting.divergence import NO_COUNTS, refuse_drift, refuse_strict
from seepage.glm.fitting.newton import Minimum
from seepage.glm.fitting.streamed_sums import (
    NewtonSums,
    Problem,
    column_range,
    newton_sums,
    step_gains,
    triangle,
)
from seepage.glm.losses.categorical import Categorical

if TYPE_CHECKING:
    from seepage.tables.source import RowSource

Array = Any

_MOST_STEPS = 100
# A Newton step this small, beside the coefficients and weighed by the curvature, leaves an error of
# about its square: it is taken, and nothing needs to be read again.
_LAST_STEP = 1e-8
_CONVERGED = 1e-10  # the largest relative gradient that is accepted where rounding ends the descent
_PERFECT_FIT = 1e-4  # the share of the labels below which a residual is no scale to measure by
_NO_REFINEMENT = 1e-3  # smallest squared pivot with which one solve is as good as two
_WELL_CONDITIONED = 1e-6  # that from which on least squares goes by QR instead


def minimise_streamed(source: RowSource, problem: Problem, start: Array | None = None) -> Minimum:
    """Minimise a GLM objective over the rows of a source.

    Every step reads all rows once, for the value, the gradient and the Hessian at the same
    parameters; a step that does not lower the objective enough is halved. Least squares takes one
    pass, and a second where the columns are correlated. ``start`` are the parameters of a similar
    problem, which save most of the steps.

    Raises
    ------
    InputError
        When the objective has no minimiser, or rounding keeps the method from it.
    """
    if problem.family.name == "gaussian":
        return _least_squares(source, problem)
    theta = np.zeros(problem.shape) if start is None else start
    point = _evaluate(source, problem, theta, "fit, step 1")
    if problem.family.name == "poisson" and problem.intercept and point.label_scale == 0:
        raise InputError(NO_COUNTS)
    check_columns_of(source, problem, point.hessian, point.rows)
    for steps in range(1, _MOST_STEPS + 1):
        step = _newton_step(source, problem, point)
        relative = _relative_step(problem, theta, point, step)
        if relative <= _LAST_STEP:
            return Minimum(_gauge_free(problem, theta + step), steps, _relative_gradient(point))
        found = _descend(source, problem, theta, point, step, f"fit, step {steps + 1}")
        if found is None:
            break
        theta, nearer = found
        settled = nearer.value == point.value and _norm(nearer) >= 0.5 * _norm(point)
        point = nearer
        if settled:
            break
    if not _relative_gradient(point) <= _CONVERGED:
        step = _newton_step(source, problem, point)
        _refuse_divergence(source, problem, step)
        raise InputError(
            f"The fit did not converge in {steps} Newton steps (relative gradient "
            f"{_relative_gradient(point):.1e}); scale the columns to similar sizes, or set l2."
        )
    return Minimum(_gauge_free(problem, theta), steps, _relative_gradient(point))


def check_columns_of(source: RowSource, problem: Problem, gram: Array, rows: int) -> None:
    """Refuse columns that depend on one another where nothing is penalised."""
    if problem.ridge > 0:
        return
    if isinstance(problem.family, Categorical):
        # Softmax's Hessian at zero is the Gram matrix times a fixed one: any block of it will do.
        K = problem.family.outputs
        gram = gram[::K, ::K]

    def constant() -> Array:
        found = source.total(column_range, "looking for constant columns")
        return found.least == found.most

    def factor() -> Array:
        wanted = partial(triangle, problem=problem, labels=False)
        return source.total(wanted, "looking for dependent columns").R

    check_gram(
        gram,
        rows,
        intercept=problem.intercept,
        names=source.names,
        constant=constant,
        triangle=factor,
    )


def _evaluate(
    source: RowSource, problem: Problem, theta: Array, what: str, hessian: bool = True
) -> NewtonSums:
    """Return the sums at these parameters, the penalty counted in."""
    ask = partial(newton_sums, problem=problem, theta=theta, hessian=hessian)
    sums = source.total(ask, what)
    w = problem.penalised(theta)
    penalty = 0.5 * problem.ridge * float(np.sum(w * w))
    H = None
    if sums.hessian is not None:
        per_row = np.full(problem.shape, problem.ridge)
        H = sums.hessian + np.diag(np.ravel(problem.penalised(per_row)))
    if problem.ridge == 0:
        refuse_strict(sums.least_gain, problem.family.name)
    return NewtonSums(
        sums.rows,
        sums.value + penalty,
        sums.gradient + problem.ridge * w,
        H,
        sums.gradient_scale + problem.ridge * float(np.linalg.norm(w)),
        sums.label_scale,
        sums.least_gain,
    )


def _newton_step(source: RowSource, problem: Problem, point: NewtonSums) -> Array:
    H = point.hessian
    if isinstance(problem.family, Categorical):
        H = gauge_fixed(H, problem.family.outputs)
    factor = cholesky_factor(H)
    flat = factor is None  # to rounding: diverging, or a penalty next to nothing
    factor = damped_factor(H) if factor is None else factor
    step = -np.reshape(factor.solve(np.ravel(point.gradient)), point.gradient.shape)
    if flat:
        _refuse_divergence(source, problem, step)
    return step


def _refuse_divergence(source: RowSource, problem: Problem, step: Array) -> None:
    if problem.ridge > 0:
        return
    ask = partial(step_gains, problem=problem, step=step)
    gains = source.total(ask, "looking for separable classes")
    refuse_drift((float(gains.least), float(gains.most)), problem.family.name)


def _descend(
    source: RowSource, problem: Problem, theta: Array, point: NewtonSums, step: Array, what: str
) -> tuple[Array, NewtonSums] | None:
    """Return the first of θ + s, θ + s/2, … at which the objective falls enough, if any does."""
    slope = float(np.sum(point.gradient * step))
    rounding = 1e3 * float(np.finfo(float).eps) * abs(point.value)
    length = 1.0
    for _ in range(40):
        there = theta + length * step
        trial = _evaluate(source, problem, there, what)
        if (
            math.isfinite(trial.value)
            and trial.value <= point.value + 1e-4 * length * slope + rounding
        ):
            return there, trial
        length *= 0.5
    return None


def _relative_step(problem: Problem, theta: Array, point: NewtonSums, step: Array) -> float:
    """Return ``√(sᵀHs / wᵀHw)``: the size of a step beside the coefficients, as margins see it."""
    H, s = point.hessian, np.ravel(step)
    w = np.ravel(problem.penalised(theta))
    size = math.sqrt(max(float(w @ H @ w), 0.0))
    moved = math.sqrt(max(float(s @ H @ s), 0.0))
    # Coefficients may be zero, where nothing can be learnt; the curvature then sets the scale.
    floor = 1e-3 * math.sqrt(float(np.trace(H)) / H.shape[0])
    return moved / max(size, floor, 1e-300)


def _relative_gradient(point: NewtonSums) -> float:
    scale = point.gradient_scale + _PERFECT_FIT * point.label_scale
    return _norm(point) / scale if scale > 0 else _norm(point)


def _norm(point: NewtonSums) -> float:
    return float(np.linalg.norm(point.gradient))


def _gauge_free(problem: Problem, theta: Array) -> Array:
    if not isinstance(problem.family, Categorical):
        return theta
    return theta - theta.mean(axis=1, keepdims=True)


def _least_squares(source: RowSource, problem: Problem) -> Minimum:
    point = _evaluate(source, problem, np.zeros(problem.shape), "fit")
    H = point.hessian
    check_columns_of(source, problem, H, point.rows)
    sizes = np.sqrt(np.diag(H))
    sizes = np.where(sizes > 0, sizes, 1.0)
    factor = cholesky_factor(H / np.outer(sizes, sizes))
    pivot = 0.0 if factor is None else float(np.min(np.diag(factor.lower))) ** 2
    if factor is None or pivot < _WELL_CONDITIONED:
        return Minimum(_by_triangle(source, problem), 1, _relative_gradient(point))
    theta = -factor.solve(point.gradient / sizes) / sizes
    if pivot < _NO_REFINEMENT:
        point = _evaluate(source, problem, theta, "fit, refined", hessian=False)
        theta = theta - factor.solve(point.gradient / sizes) / sizes
    return Minimum(theta, 1, _relative_gradient(point))


def _by_triangle(source: RowSource, problem: Problem) -> Array:
    """Solve ill-conditioned least squares by QR, with a corrected seminormal step."""
    R = source.total(partial(triangle, problem=problem, labels=True), "fit by QR").R
    size = problem.shape[0]
    if problem.ridge > 0:
        penalty = np.eye(problem.features, size + 1) * math.sqrt(problem.ridge)
        R = np.linalg.qr(np.concatenate([R, penalty]), mode="r")
    upper = R[:size, :size]
    theta = np.linalg.solve(upper, R[:size, size])
    gradient = _evaluate(source, problem, theta, "fit, refined", hessian=False).gradient
    return theta - np.linalg.solve(upper, np.linalg.solve(upper.T, gradient))
