"""Damped Newton's method for GLM objectives, up to the rounding error of the gradient.

Without L2, a minimum may not exist: there is none if, along some direction, no loss increases and
some loss decreases without end. For the logistic loss, such a direction separates the classes,
possibly with ties. Newton's method then diverges along that direction, so its last step proves that
the classes are separable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device
from scipy.optimize import linprog
from scipy.optimize import minimize as scipy_minimize

from seepage.errors import InputError, NotConvergedError
from seepage.glm.fitting.excerpt import Excerpt, excerpt_of
from seepage.glm.fitting.objective import (
    PERFECT_FIT,
    STEP,
    Asked,
    CholeskyFactor,
    Coordinates,
    Objective,
    Sums,
    check_columns,
    cholesky_factor,
    damped_factor,
    gauge_fixed,
    norm,
)
from seepage.glm.losses import Categorical
from seepage.support.chunks import give_back_memory
from seepage.tables.source import Array, as_numpy

_MOST_STEPS = 200  # damped steps; all families end within some dozens, or never
_MOST_CELLS = 10**6  # of a linear programme
# A Newton step this small, relative to the coefficients and weighed by the curvature, is followed
# by one far smaller, for which the Hessian at hand will do.
_SETTLED = 1e-6
_CONVERGED = 1e-10  # the largest relative gradient accepted in the end
_WITHOUT_HESSIAN: Asked = ("value", "scales", "gain")
_FAR = 0.1  # a step of a margin that distinguishes a diverging fit from a settled one


@dataclass(frozen=True)
class Minimum:
    """The minimiser, the number of Hessians computed, and the relative gradient.

    ``relative_gradient`` is ``‖g‖`` divided by ``Σᵢ |ωᵢ rᵢ| ‖xᵢ‖ + nλ‖w‖``.
    """

    parameters: Array
    steps: int
    relative_gradient: float


def minimise(
    objective: Objective,
    start: Array | None = None,
    names: tuple[str, ...] | None = None,
) -> Minimum:
    """Minimise a GLM objective: Newton's method with a line search, then refinement.

    Steps solve ``H s = −g`` by Cholesky, and are halved until the objective decreases enough
    (Armijo). For a table in memory, once a step is tiny, the factor of ``H`` is reused and only
    gradients are recomputed. When the gradients stop decreasing, because of rounding or an outdated
    Hessian, the Hessian is recomputed. With very many parameters, L-BFGS runs first. Data in chunks
    are read once per step, and the search ends after a tiny step.

    The search starts from zero or from the given parameters; parameters of a similar problem save
    most steps. Data in chunks start from the minimiser on some of them
    (:mod:`seepage.glm.fitting.excerpt`), or from zero if that misleads the search.

    If column names are given, linearly dependent columns raise an error that names them. Otherwise,
    linear dependence is not checked. Data without a minimiser (separable classes, no penalty) raise
    an error, as do data for which rounding prevents convergence.
    """
    given, excerpt = objective, None
    objective, coordinates = objective.conditioned()
    if start is None and objective.rereads:
        excerpt, start = _on_excerpt(objective)
        if excerpt is not None and excerpt.centre is not None:
            objective, coordinates = objective.less(excerpt.centre), Coordinates(excerpt.centre)
            excerpt = excerpt.less(excerpt.centre)
    start = None if start is None else coordinates.into(start)
    theta = objective.zeros() if start is None else _gauge_free(objective, start)
    # With so many parameters a Hessian costs more than many gradients.
    far = start is None and math.prod(objective.shape) >= 1000 and not objective.rereads
    point = objective.at(theta, _WITHOUT_HESSIAN if far and objective.ridge > 0 else STEP)
    if excerpt is not None and not excerpt.represents(point):
        return minimise(given, given.zeros(), names)
    shifted = objective.near_zero(point.hessian) if excerpt is None else None
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
        # Without a penalty, margins that separate the classes strictly have no minimiser
        if objective.ridge == 0 and 0 < point.least_gain < math.inf:
            raise InputError(_divergence(objective.family.name))
        H = gauge_fixed(point.hessian, objective.family)
        factor = cholesky_factor(H)
        flat = factor is None  # to rounding: diverging, or with a negligible penalty
        factor = damped_factor(H) if factor is None else factor
        step = _newton_step(point, factor)
        # A step of 1e-8 leaves an error of about its square: the data need not be read again.
        settled = _relative_step(objective, point, step) <= (
            1e-8 if objective.rereads else _SETTLED
        )
        relative = relative_gradient(objective, point)
        exhausted = relative <= rounding  # and still Newton's step may be long
        if flat or settled or exhausted:
            check_drift(objective, step, point.largest_norm)
        if settled and objective.rereads:
            last = _gauge_free(objective, point.theta + step)
            return Minimum(coordinates.back(last), steps, relative)
        nearer = None
        if not (settled or exhausted):
            if excerpt is not None and not flat:
                step = excerpt.corrected(step, point, factor)
            first = excerpt is not None and steps == 1
            trials, once = 1 if first else 60, objective.rereads
            nearer = _line_search(objective, point, step, once=once, trials=trials)
            if first and nearer is None:  # the excerpt has misled the search
                return minimise(given, given.zeros(), names)
        if nearer is None:
            before = norm(point.gradient)
            point = point if objective.rereads else _polish(objective, point, factor)
            if relative_gradient(objective, point) <= _CONVERGED:
                break
            # Along a direction that hardly counts, the curvature may have changed since: as long as
            # gradients shrink, it was not rounding that ended the polish.
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
        said = (
            f"The fit did not converge in {steps} Newton step{'' if steps == 1 else 's'} (relative "
            f"gradient {relative:.1e}): "
        )
        if _drifts(objective, step, point.largest_norm) or separated(objective):
            raise InputError(f"{said}{weak_penalty_clause(objective)}.")
        raise NotConvergedError(
            f"{said}probably, some columns are nearly collinear; drop redundant columns, or "
            f"{_remedy(objective)}."
        )
    theta = _gauge_free(objective, point.theta)
    return Minimum(coordinates.back(theta), steps, relative)


def relative_gradient(objective: Objective, point: Sums) -> float:
    """Return the norm of the gradient divided by the sum of the norms of its terms."""
    size = norm(point.gradient)
    scale = point.gradient_scale
    if objective.family.name not in ("bernoulli", "categorical"):
        # Where the residuals vanish they are rounding, whose size only the labels give; slopes of
        # classes subtract no large numbers.
        scale += PERFECT_FIT * point.label_scale
    return size / scale if scale > 0 else size


def _newton_step(point: Sums, factor: CholeskyFactor) -> Array:
    xp = array_namespace(point.gradient)
    return -xp.reshape(factor.solve(xp.reshape(point.gradient, (-1,))), point.gradient.shape)


def _relative_step(objective: Objective, point: Sums, step: Array) -> float:
    """Return ``√(sᵀHs / wᵀHw)``, the size of a step relative to the coefficients."""
    xp = array_namespace(step)
    H, s, w = point.hessian, xp.reshape(step, (-1,)), xp.reshape(point.theta, (-1,))
    kept = w.shape[0] - objective.intercept * w.shape[0] // objective.shape[0]
    w = w[:kept]
    size = math.sqrt(max(float(xp.sum(w * (H[:kept, :kept] @ w))), 0.0))
    moved = math.sqrt(max(float(xp.sum(s * (H @ s))), 0.0))
    # Coefficients are zero where nothing can be learnt; the curvature then sets the scale.
    floor = 1e-3 * math.sqrt(max(float(xp.min(xp.linalg.diagonal(H))), 0.0))
    return moved / max(size, floor, 1e-300)


def _at_rest(objective: Objective, theta: Array) -> bool:
    """Return whether Newton's method, stopped by rounding, has reached the minimiser.

    The rounding errors of a margin and its slope are proportional to the terms of the margin's sum,
    even if the sum itself is small. If large terms cancel, in the margins or (in a good fit) in the
    slopes, the gradient cannot fall below that error, which may be large relative to the slopes.
    However, a step is a projection of the margins' errors and, in the norm of the curvature, is no
    longer than these errors. So the length of the step bounds the remaining distance.
    """
    point = objective.at(theta, ("hessian",))
    factor = cholesky_factor(gauge_fixed(point.hessian, objective.family))
    if factor is None:
        return False
    return _relative_step(objective, point, _newton_step(point, factor)) <= 1e-9


def _on_excerpt(objective: Objective) -> tuple[Excerpt | None, Array | None]:
    """Return some of a source's records and the minimiser on them; ``None`` if there is none."""
    excerpt = excerpt_of(objective)
    try:
        start = None if excerpt is None else minimise(excerpt.objective).parameters
    except (InputError, FloatingPointError):
        return None, None
    give_back_memory()  # that of reading, before the passes over all records
    return excerpt, start


def _line_search(
    objective: Objective, point: Sums, step: Array, *, once: bool, trials: int
) -> Sums | None:
    """Return the first of θ + s, θ + s/2, … that decreases the objective enough, if any.

    ``once`` computes all sums at each trial point, so that the data are not read again.
    """
    xp = array_namespace(step)
    slope = float(xp.sum(point.gradient * step))
    # Differences of the objective below this are rounding, no reason to reject a step.
    rounding = 1e3 * float(xp.finfo(step.dtype).eps) * abs(point.value)
    length = 1.0
    for _ in range(trials):
        there = point.theta + length * step
        # The whole step mostly succeeds, so everything is computed there; later, the value first.
        trial = objective.at(there, STEP if once or length == 1.0 else ("value",))
        enough = point.value + 1e-4 * length * slope + rounding
        if math.isfinite(trial.value) and trial.value <= enough:
            return objective.at(there) if trial.hessian is None else trial
        length *= 0.5
    return None


def _polish(objective: Objective, point: Sums, factor: CholeskyFactor) -> Sums:
    """Repeat steps with the current factor while each step halves the gradient."""
    size = relative_gradient(objective, point)
    while size > 0:
        nearer = objective.at(point.theta + _newton_step(point, factor), ("scales",))
        next_size = relative_gradient(objective, nearer)
        if not next_size < 0.5 * size:
            return nearer if next_size < size else point
        point, size = nearer, next_size
    return point


def _gauge_free(objective: Objective, theta: Array) -> Array:
    """Shift softmax parameters to sum to zero over the classes; return other parameters unchanged.

    The shift does not change the losses, and minimises the penalty.
    """
    if not isinstance(objective.family, Categorical):
        return theta
    return theta - array_namespace(theta).mean(theta, axis=1, keepdims=True)


def _lbfgs(objective: Objective) -> Array:
    """Return parameters near the minimiser, by SciPy's L-BFGS, or zeros if it fails."""
    zeros = objective.zeros()
    xp = array_namespace(zeros)

    def parameters(flat: np.ndarray) -> Array:
        return xp.reshape(xp.asarray(flat, dtype=zeros.dtype, device=device(zeros)), zeros.shape)

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = objective.at(parameters(flat), ("value",))
        return point.value, as_numpy(point.gradient).reshape(-1).astype(float)

    start = np.zeros(math.prod(objective.shape))
    answer = scipy_minimize(evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    usable = math.isfinite(answer.fun) and bool(np.all(np.isfinite(answer.x)))
    return parameters(answer.x) if usable else zeros


def check_counts(objective: Objective, label_scale: float) -> None:
    """Raise an error if all counts are zero, since the unpenalised intercept then diverges."""
    if objective.family.name == "poisson" and objective.intercept and label_scale == 0:
        raise InputError(
            "Every count with positive weight is zero, so the intercept diverges to minus "
            "infinity; fit without an intercept, or add records with positive counts."
        )


def check_drift(objective: Objective, step: Array, largest_norm: float) -> None:
    """Raise an error if there is no penalty and Newton's step still separates the classes."""
    if objective.ridge == 0 and _drifts(objective, step, largest_norm):
        raise InputError(_divergence(objective.family.name))


def _drifts(objective: Objective, step: Array, largest_norm: float) -> bool:
    """Return whether a step is long and moves no record towards the wrong side of the boundary.

    ``largest_norm`` is the largest norm of a row. Steps too short to move any margin far are not
    examined.
    """
    if norm(step) * largest_norm <= _FAR:
        return False
    least, most = objective.gains(step)
    # Records on the boundary hardly move, relative to the one that moves most.
    return most > _FAR and least >= -1e-3 * most


def separated(objective: Objective) -> bool:
    """Return whether some direction raises no loss and lowers at least one loss without end.

    The test is a linear program. For data read in chunks, for large tables, for objectives with a
    linear term, and for class labels other than 0 and 1, the test is skipped, and the result is
    ``False``.
    """
    if objective.table is None or objective.tilt is not None:
        return False
    objective = objective.conditioned()[0]
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
    answer = linprog(
        -falls.sum(axis=0),
        A_ub=-falls,
        b_ub=np.zeros(len(falls)),
        A_eq=still,
        b_eq=None if still is None else np.zeros(len(still)),
        bounds=(-1, 1),
    )
    # The total gain of the margins along a direction with entries of at most one
    return answer.fun is not None and -float(answer.fun) > 1e-6


def weak_penalty_clause(objective: Objective) -> str:
    """Return the error text for separable data with too weak a penalty to bound coefficients."""
    counts = objective.family.name == "poisson"
    what = (
        (
            "some combination of the columns is nonzero only in rows with a count of zero, always "
            "with the same sign"
        )
        if counts
        else "the data are separable"
    )
    return (
        f"{what}, and l2 is negligible for columns of these sizes; scale the columns to "
        f"similar sizes, or {_remedy(objective)}"
    )


def _remedy(objective: Objective) -> str:
    return "choose a larger l2" if objective.ridge > 0 else "set l2 to a positive number"


def _divergence(family: str) -> str:
    if family == "poisson":
        return (
            "Some combination of the columns is nonzero only in rows with a count of zero, always "
            "with the same sign (for example, the column of a category without any counts), so "
            "without L2 the coefficients diverge; set l2 to a positive number."
        )
    return (
        "The data are separable: some combination of the columns separates the classes without "
        "error, so without L2 the coefficients diverge; set l2 to a positive number."
    )
