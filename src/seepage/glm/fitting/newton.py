"""Damped Newton's method for GLM objectives, down to the rounding error of the gradient.

Without L2 there may be no minimum: a direction along which no loss ever rises and some loss always
falls has none on it; for logistic loss a direction that separates the classes (perhaps with ties).
Newton's method on such data walks along it for ever, so its last step is the certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace, device
from scipy.optimize import linprog
from scipy.optimize import minimize as scipy_minimize

from seepage.errors import InputError
from seepage.glm.fitting.objective import (
    CholeskyFactor,
    Coordinates,
    NewtonSums,
    Objective,
    check_columns,
    cholesky_factor,
    conditioned,
    damped_factor,
    norm,
)
from seepage.glm.losses import Categorical
from seepage.tables.source import Array, as_numpy

if TYPE_CHECKING:
    from seepage.glm.fitting.streamed import AnyObjective

_MOST_STEPS = 200
# A Newton step this small, beside the coefficients and weighed by the curvature, is followed by one
# far smaller, for which the Hessian at hand will do.
_SETTLED = 1e-6
_LAST_STEP = 1e-8  # it leaves an error of about its square: nothing needs to be read again
_CONVERGED = 1e-10  # the largest relative gradient that is accepted in the end
_AT_REST = 1e-9  # or else the largest step, as _SETTLED measures it, that may be left
_PERFECT_FIT = 1e-4  # the share of the labels below which a residual is no scale to measure by
_KEEP_DIGITS = ("bernoulli", "categorical")  # whose slopes are no differences of large numbers
_LBFGS_FROM = 1000  # parameters, from which on a Hessian costs more than many gradients
_LBFGS_STEPS = 200
_FAR = 0.1  # a step of a margin that tells a diverging fit from one that has settled
_MOST_CELLS = 10**6  # of a linear programme
_SEPARATED = 1e-6  # the sum of what margins gain along a direction whose entries are one at most
_TIE = 1e-3  # records on the boundary stand this still, compared with the one that moves most


@dataclass(frozen=True)
class Minimum:
    """Where the objective is least, how many Hessians that took, and the gradient near there.

    ``relative_gradient`` is ``‖g‖`` over ``Σᵢ |ωᵢ rᵢ| ‖xᵢ‖ + nλ‖w‖``.
    """

    parameters: Array
    steps: int
    relative_gradient: float


def minimise(
    objective: AnyObjective,
    start: Array | None = None,
    names: tuple[str, ...] | None = None,
) -> Minimum:
    """Minimise a GLM objective: Newton's method with a line search, then a polish.

    Steps solve ``H s = −g`` by Cholesky and are halved until the objective falls enough (Armijo).
    In memory, the factor of ``H`` is kept once a step is tiny and only gradients are recomputed,
    until they shrink no more: by rounding, or with a Hessian that is out of date and made anew.
    Very many parameters are first brought near by L-BFGS.
    Data that are read in chunks are read once for every step, and not again after a tiny one.

    It starts from zero, or from the parameters given: those of a similar problem save most of the
    steps. With the names of the columns, those that depend on one another are refused by name (else
    unchecked). Refused as well are data without a minimiser (separable, and nothing is penalised),
    and those where rounding keeps the method from it.
    """
    coordinates = Coordinates()
    if isinstance(objective, Objective):
        objective, coordinates = conditioned(objective)
        start = None if start is None else coordinates.into(start)
    theta = objective.zeros() if start is None else _gauge_free(objective, start)
    far = start is None and math.prod(objective.shape) >= _LBFGS_FROM and not objective.rereads
    point = objective.at(theta, hessian=not far or objective.ridge == 0)
    shifted = None if isinstance(objective, Objective) else objective.near_zero(point.hessian)
    if shifted is not None:
        objective, coordinates = shifted
        point = objective.at(coordinates.into(theta))
    check_counts(objective, point.label_scale)
    if names is not None:
        check_columns(objective, point.hessian, point.counted, names)
    if far:
        point = objective.at(_lbfgs(objective))
    rounding = 4 * float(array_namespace(point.theta).finfo(point.theta.dtype).eps)
    for steps in range(1, _MOST_STEPS + 1):
        check_overlap(objective, point.least_gain)
        H = objective.definite(point.hessian)
        factor = cholesky_factor(H)
        flat = factor is None  # to rounding: diverging, or a penalty next to nothing
        factor = damped_factor(H) if factor is None else factor
        step = _newton_step(point, factor)
        settled = _relative_step(objective, point, step) <= (
            _LAST_STEP if objective.rereads else _SETTLED
        )
        relative = relative_gradient(objective, point)
        exhausted = relative <= rounding  # and still Newton may want to go far
        if flat or settled or exhausted:
            check_drift(objective, step, point.largest_norm)
        if settled and objective.rereads:
            last = _gauge_free(objective, point.theta + step)
            return Minimum(coordinates.back(last), steps, relative)
        nearer = None if settled or exhausted else _line_search(objective, point, step)
        if nearer is None:
            before = norm(point.gradient)
            point = point if objective.rereads else _polish(objective, point, factor)
            if relative_gradient(objective, point) <= _CONVERGED:
                break
            # Along a direction that hardly counts the curvature may have changed since: it was not
            # rounding that ended the polish for as long as gradients shrink.
            if not norm(point.gradient) < 0.5 * before:
                break
            point = objective.at(point.theta)
            continue
        stuck = nearer.value == point.value and norm(nearer.gradient) >= 0.5 * norm(point.gradient)
        point = nearer
        if stuck:
            break
    relative = relative_gradient(objective, point)
    if not (relative <= _CONVERGED or _at_rest(objective, point.theta)):
        check_drift(objective, step, point.largest_norm)
        why = f"the columns all but repeat one another; drop some of them, or {_held(objective)}."
        if _drifts(objective, step, point.largest_norm) or separated(objective):
            why = f"{hardly_held(objective)}."
        raise InputError(
            f"The fit did not converge in {steps} Newton steps (relative gradient "
            f"{relative:.1e}): {why}"
        )
    found = _gauge_free(objective, point.theta)
    return Minimum(coordinates.back(found), steps, relative)


def relative_gradient(objective: AnyObjective, point: NewtonSums) -> float:
    """Return the norm of the gradient over the sum of the norms that it is a difference of."""
    size = norm(point.gradient)
    scale = point.gradient_scale
    if objective.family.name not in _KEEP_DIGITS:
        # Where the residuals vanish they are rounding, and only labels say how large that is.
        scale += _PERFECT_FIT * point.label_scale
    return size / scale if scale > 0 else size


def _newton_step(point: NewtonSums, factor: CholeskyFactor) -> Array:
    xp = array_namespace(point.gradient)
    return -xp.reshape(factor.solve(xp.reshape(point.gradient, (-1,))), point.gradient.shape)


def _relative_step(objective: AnyObjective, point: NewtonSums, step: Array) -> float:
    """Return ``√(sᵀHs / wᵀHw)``: the size of a step beside the coefficients, as margins see it."""
    xp = array_namespace(step)
    H, s, w = point.hessian, xp.reshape(step, (-1,)), xp.reshape(point.theta, (-1,))
    kept = w.shape[0] - objective.intercept * w.shape[0] // objective.shape[0]
    w = w[:kept]
    size = math.sqrt(max(float(xp.sum(w * (H[:kept, :kept] @ w))), 0.0))
    moved = math.sqrt(max(float(xp.sum(s * (H @ s))), 0.0))
    # Coefficients may be zero, where nothing can be learnt; the curvature then sets the scale.
    floor = 1e-3 * math.sqrt(max(float(xp.min(xp.linalg.diagonal(H))), 0.0))
    return moved / max(size, floor, 1e-300)


def _at_rest(objective: AnyObjective, theta: Array) -> bool:
    """Whether Newton's method, at parameters from which rounding lets it go no further, is there.

    A margin is known to a few ε of the terms that it is a sum of, and so is its slope, whatever is
    left of that. Where coefficients are large and cancel, in margins or (of a good fit) in slopes,
    no gradient falls below what that leaves, large though it may be beside the slopes. But a step
    is a projection of the errors of the margins, and in the norm of the curvature no longer than
    they are: by its length the rest of the way is known.
    """
    point = objective.at(theta)
    factor = cholesky_factor(objective.definite(point.hessian))
    if factor is None:
        return False
    return _relative_step(objective, point, _newton_step(point, factor)) <= _AT_REST


def _line_search(objective: AnyObjective, point: NewtonSums, step: Array) -> NewtonSums | None:
    """Return the first of θ + s, θ + s/2, … at which the objective falls enough, if any does."""
    xp = array_namespace(step)
    slope = float(xp.sum(point.gradient * step))
    # Differences of the objective below this are rounding, and no reason to refuse a step.
    rounding = 1e3 * float(xp.finfo(step.dtype).eps) * abs(point.value)
    length = 1.0
    for _ in range(60):
        there = point.theta + length * step
        # The whole step mostly does, and is to be known whole; after it a value comes first.
        trial = objective.at(there, hessian=objective.rereads or length == 1.0)
        enough = point.value + 1e-4 * length * slope + rounding
        if math.isfinite(trial.value) and trial.value <= enough:
            return objective.at(there) if trial.hessian is None else trial
        length *= 0.5
    return None


def _polish(objective: AnyObjective, point: NewtonSums, factor: CholeskyFactor) -> NewtonSums:
    """Repeat steps with the factor at hand for as long as each halves the gradient."""
    size = relative_gradient(objective, point)
    while size > 0:
        nearer = objective.at(point.theta + _newton_step(point, factor), hessian=False)
        next_size = relative_gradient(objective, nearer)
        if not next_size < 0.5 * size:
            return nearer if next_size < size else point
        point, size = nearer, next_size
    return point


def _gauge_free(objective: AnyObjective, theta: Array) -> Array:
    """Return softmax parameters that sum to zero over the classes; others as they are.

    The losses do not change, and the penalty is least there.
    """
    if not isinstance(objective.family, Categorical):
        return theta
    return theta - array_namespace(theta).mean(theta, axis=1, keepdims=True)


def _lbfgs(objective: AnyObjective) -> Array:
    """Return parameters near the minimiser, by scipy's L-BFGS on gradients computed in place."""
    zeros = objective.zeros()
    xp = array_namespace(zeros)

    def parameters(flat: np.ndarray) -> Array:
        return xp.reshape(xp.asarray(flat, dtype=zeros.dtype, device=device(zeros)), zeros.shape)

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = objective.at(parameters(flat), hessian=False)
        return point.value, as_numpy(point.gradient).reshape(-1).astype(float)

    start = np.zeros(math.prod(objective.shape))
    found = scipy_minimize(
        evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": _LBFGS_STEPS}
    )
    usable = math.isfinite(found.fun) and bool(np.all(np.isfinite(found.x)))
    return parameters(found.x) if usable else zeros


def check_counts(objective: AnyObjective, label_scale: float) -> None:
    """Raise for counts that are all zero: no penalty holds the intercept."""
    if objective.family.name == "poisson" and objective.intercept and label_scale == 0:
        raise InputError(
            "Every count (of positive weight) is zero, so the intercept diverges to minus "
            "infinity; fit without an intercept, or leave these data out."
        )


def check_overlap(objective: AnyObjective, least_gain: float) -> None:
    """Raise where the margins put every record strictly on its own side: classes are separable."""
    if objective.ridge == 0 and 0 < least_gain < math.inf:
        raise InputError(_divergence(objective.family.name))


def check_drift(objective: AnyObjective, step: Array, largest_norm: float) -> None:
    """Raise where nothing is penalised and Newton's step still goes far along a separation."""
    if objective.ridge == 0 and _drifts(objective, step, largest_norm):
        raise InputError(_divergence(objective.family.name))


def _drifts(objective: AnyObjective, step: Array, largest_norm: float) -> bool:
    """Whether a step goes far, and moves no record to a wrong side.

    ``largest_norm`` is that of the rows: a step too short to move any margin far needs no look.
    """
    if norm(step) * largest_norm <= _FAR:
        return False
    least, most = objective.gains(step)
    return most > _FAR and least >= -_TIE * most


def separated(objective: AnyObjective) -> bool:
    """Whether along some direction no loss rises and some fall for ever, by a linear programme.

    Of data that are read in chunks, of large tables and of labels between two classes nothing is
    known.
    """
    if not isinstance(objective, Objective) or objective.tilt is not None:
        return False
    objective = conditioned(objective)[0]
    y, design = as_numpy(objective.target), as_numpy(objective.X)
    if design.size * math.prod(y.shape[1:]) ** 2 > _MOST_CELLS:
        return False
    if objective.intercept:
        design = np.hstack([design, np.ones((len(design), 1))])
    if objective.sample_weight is not None:
        counted = as_numpy(objective.sample_weight) > 0
        y, design = y[counted], design[counted]
    still = None
    if objective.family.name == "poisson":
        still, falls = design[y > 0], -design[y == 0]
    elif not np.all((y == 0) | (y == 1)):
        return False
    elif isinstance(objective.family, Categorical):
        rivals = y[:, None, :] - np.eye(y.shape[1])[None, :, :]  # every record's class less others
        falls = design[:, None, :, None] * rivals[:, :, None, :]
        falls = falls.reshape(*y.shape, -1)[y == 0]
    elif objective.family.name == "bernoulli":
        falls = (2 * y - 1)[:, None] * design
    else:
        return False
    found = linprog(
        -falls.sum(axis=0),
        A_ub=-falls,
        b_ub=np.zeros(len(falls)),
        A_eq=still,
        b_eq=None if still is None else np.zeros(len(still)),
        bounds=(-1, 1),
    )
    return found.fun is not None and -float(found.fun) > _SEPARATED


def hardly_held(objective: AnyObjective) -> str:
    """Return the clause on separable data whose penalty does not hold the coefficients."""
    counts = objective.family.name == "poisson"
    what = "the counts are all zero in some direction of X" if counts else "the data are separable"
    return (
        f"{what}, and l2 is next to nothing beside columns of such sizes; scale the columns to "
        f"similar sizes, or {_held(objective)}"
    )


def _held(objective: AnyObjective) -> str:
    return "choose a larger l2" if objective.ridge > 0 else "set l2 to a positive number"


def _divergence(family: str) -> str:
    if family == "poisson":
        return (
            "The counts are all zero in some direction of X (for example in every row of a "
            "category), so without L2 the coefficients diverge; set l2 to a positive number."
        )
    return (
        "The data are separable: some combination of the columns tells the classes apart without "
        "error, so without L2 the coefficients diverge; set l2 to a positive number."
    )
