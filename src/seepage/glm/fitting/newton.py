"""Damped Newton's method for GLM objectives, down to the rounding error of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from scipy.optimize import minimize as scipy_minimize

from seepage.errors import InputError
from seepage.glm.fitting.cholesky import CholeskyFactor, cholesky_factor, damped_factor
from seepage.glm.fitting.divergence import check_divergence
from seepage.glm.fitting.objective import Objective
from seepage.tables.frames import as_numpy

Array = Any  # any array of the array API standard

_MOST_STEPS = 200
_SETTLED = 1e-6  # a Newton step this small beside the margins is followed by one far smaller
_CONVERGED = 1e-10  # the largest relative gradient that is accepted in the end
_PERFECT_FIT = 1e-4  # the share of the labels below which a residual is no scale to measure by
_LBFGS_FROM = 1000  # parameters, from which on a Hessian costs more than many gradients
_LBFGS_STEPS = 200


@dataclass(frozen=True)
class Minimum:
    """Where the objective is least, how many Hessians that took, and the gradient there.

    ``relative_gradient`` is ``‖g‖`` over ``Σᵢ |ωᵢ rᵢ| ‖xᵢ‖ + nλ‖w‖``.
    """

    parameters: Array
    steps: int
    relative_gradient: float


@dataclass(frozen=True)
class _Point:
    """Parameters with what is computed once at them."""

    theta: Array
    margins: Array
    gradient: Array
    relative_gradient: float

    @classmethod
    def at(cls, objective: Objective, theta: Array, margins: Array | None = None) -> _Point:
        xp = array_namespace(theta)
        m = objective.margins(theta) if margins is None else margins
        slopes = objective.slopes(m)
        g = objective.gradient(theta, slopes)
        norm = math.sqrt(float(xp.sum(g * g)))
        # Where the residuals vanish they are rounding, and only labels say how large rounding is.
        scale = objective.gradient_scale(theta, slopes) + _PERFECT_FIT * objective.label_scale()
        return cls(theta, m, g, norm / scale if scale > 0 else norm)

    def newton_step(self, factor: CholeskyFactor) -> Array:
        xp = array_namespace(self.theta)
        return -xp.reshape(factor.solve(xp.reshape(self.gradient, (-1,))), self.theta.shape)


def minimise(objective: Objective, start: Array | None = None) -> Minimum:
    """Minimise a GLM objective: Newton's method with a line search, then a polish.

    Steps solve ``H s = −g`` by Cholesky and are halved until the objective falls enough (Armijo).
    Once a step is tiny the factor of ``H`` is kept and only gradients are recomputed, until
    rounding stops them from shrinking. Very many parameters are first brought near by L-BFGS.

    Parameters
    ----------
    objective
        What to minimise.
    start
        Parameters to start from, of the shape ``objective.shape``: those of a similar problem
        save most of the steps. Zero where none are given.

    Raises
    ------
    InputError
        When the objective has no minimiser (the data are separable and nothing is penalised), or
        rounding keeps the method from it.
    """
    if start is not None:
        theta = objective.gauge_free(start)
    elif math.prod(objective.shape) >= _LBFGS_FROM:
        theta = _lbfgs(objective)
    else:
        theta = objective.zeros()
    # Poisson's exp may overflow while the line search feels its way; infinity is then rejected.
    with np.errstate(over="ignore", invalid="ignore"):
        point, steps = _descend(objective, _Point.at(objective, theta))
        point = _Point.at(objective, objective.gauge_free(point.theta))
    if not point.relative_gradient <= _CONVERGED:
        raise InputError(
            f"The fit did not converge in {steps} Newton steps (relative gradient "
            f"{point.relative_gradient:.1e}); scale the columns of X to similar sizes, or set l2."
        )
    return Minimum(point.theta, steps, point.relative_gradient)


def _descend(objective: Objective, point: _Point) -> tuple[_Point, int]:
    """Take damped Newton steps until they are tiny, then polish; count the Hessians."""
    rounding = 4 * float(array_namespace(point.theta).finfo(point.theta.dtype).eps)
    margin_step = None
    for steps in range(1, _MOST_STEPS + 1):
        H = objective.definite(objective.hessian(point.margins))
        factor = cholesky_factor(H)
        if factor is None:  # flat to rounding: diverging, or a penalty next to nothing
            check_divergence(objective, point.margins, margin_step)
            factor = damped_factor(H)
        step = point.newton_step(factor)
        margin_step = objective.margins(step)
        if _is_small(margin_step, point.margins):
            return _polish(objective, point, factor), steps
        if point.relative_gradient <= rounding:
            # No gradient is left and still Newton wants to go far: there is no minimum to reach,
            # or the problem is so ill-conditioned that rounding alone asks for such a step.
            check_divergence(objective, point.margins, margin_step)
            return point, steps
        length = _line_search(objective, point, step, margin_step)
        if length == 0.0:
            return _polish(objective, point, factor), steps
        margins = point.margins + length * margin_step
        point = _Point.at(objective, point.theta + length * step, margins)
        check_divergence(objective, point.margins, None)
    check_divergence(objective, point.margins, margin_step)
    return point, _MOST_STEPS


def _is_small(margin_step: Array, margins: Array) -> bool:
    xp = array_namespace(margins)
    largest = float(xp.max(xp.abs(margins)))
    return float(xp.max(xp.abs(margin_step))) <= _SETTLED * max(1.0, largest)


def _line_search(objective: Objective, point: _Point, step: Array, margin_step: Array) -> float:
    """Return the first of 1, ½, ¼, … at which the objective falls enough, or 0 if none does."""
    xp = array_namespace(step)
    slope = float(xp.sum(point.gradient * step))
    value = objective.value(point.theta, point.margins)
    # Differences of the objective below this are rounding, and no reason to refuse a step.
    rounding = 1e3 * float(xp.finfo(step.dtype).eps) * abs(value)
    length = 1.0
    for _ in range(60):
        trial = objective.value(point.theta + length * step, point.margins + length * margin_step)
        if math.isfinite(trial) and trial <= value + 1e-4 * length * slope + rounding:
            return length
        length *= 0.5
    return 0.0


def _polish(objective: Objective, point: _Point, factor: CholeskyFactor) -> _Point:
    """Repeat steps with the factor at hand for as long as each halves the gradient."""
    while point.relative_gradient > 0:
        nearer = _Point.at(objective, point.theta + point.newton_step(factor))
        if not nearer.relative_gradient < 0.5 * point.relative_gradient:
            return min(nearer, point, key=lambda end: end.relative_gradient)
        point = nearer
    return point


def _lbfgs(objective: Objective) -> Array:
    """Return parameters near the minimiser, by scipy's L-BFGS on gradients computed in place."""
    zeros = objective.zeros()
    xp = array_namespace(zeros)

    def parameters(flat: np.ndarray) -> Array:
        return xp.reshape(xp.asarray(flat, dtype=zeros.dtype, device=device(zeros)), zeros.shape)

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = parameters(flat)
        margins = objective.margins(theta)
        gradient = objective.gradient(theta, objective.slopes(margins))
        return objective.value(theta, margins), as_numpy(gradient).reshape(-1).astype(float)

    start = np.zeros(math.prod(objective.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        found = scipy_minimize(
            evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": _LBFGS_STEPS}
        )
    usable = math.isfinite(found.fun) and bool(np.all(np.isfinite(found.x)))
    return parameters(found.x) if usable else zeros
