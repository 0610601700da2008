"""Refuse data on which a GLM has no unique minimiser, and coefficients that are not it.

Without L2 there are two reasons why there is none. Columns that depend linearly on one another
leave the coefficients open. And a direction along which no loss ever rises and some loss always
falls has no minimum on it: for logistic loss a direction that separates the classes (perhaps with
ties). Newton's method on such data walks along it for ever, so its last step is the certificate.

Given coefficients are the minimiser where Newton's method would not move them: the leakage is the
derivative of the minimiser by the data, and at other coefficients the formula means nothing.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from seepage.errors import InputError, NotConvergedWarning, NotTheMinimiserError
from seepage.glm.fitting.objective import (
    FittedGLM,
    Objective,
    cholesky_factor,
    damped_factor,
    norm,
    penalised,
)
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices
from seepage.tables.source import Array

if TYPE_CHECKING:
    from seepage.glm.fitting.streamed import AnyObjective

# Cholesky of the correlation-like Gram matrix loses half the digits: a smallest squared pivot above
# this proves independence, one below it only calls for the slower QR.
_CLEARLY_INDEPENDENT = 1e-7
_MANY = 10**6  # rows from which on rounding errors no longer add up to more
_TAKES_PART = 1e-6  # entries of unit null vectors above this are not rounding
_FAR = 0.1  # a step of a margin that tells a diverging fit from one that has settled
_TIE = 1e-3  # records on the boundary stand this still, compared with the one that moves most
# scikit-learn's LogisticRegression at its default tolerance ends at 9e-4 to 9e-3 on standardised
# iris, wine, breast-cancer and digits data. There a C off by 10 % gives 2e-2 to 3e-2, one wrong
# label 4e-2 to 4e-1, half the records 3e-1; but one left out 1e-9 to 2e-3: a warning at most.
_WARN, REFUSE = 1e-5, 1e-2
_PERFECT_FIT = 1e-4  # the share of the labels below which a residual is no scale to measure by
_WIDENED = 1 << 22  # numbers of a table in single precision that are held in double at a time


def check_columns(objective: AnyObjective, H: Array, counted: int, names: tuple[str, ...]) -> None:
    """Raise an :class:`InputError` naming the columns that depend linearly on one another.

    With a penalty there is one minimiser all the same, and nothing is checked. ``H`` is the Hessian
    at any parameters (not gauge-fixed), which is singular where the columns are; ``counted`` says
    how many records have a positive weight.
    """
    if objective.ridge > 0:
        return
    xp = array_namespace(H)
    # Each diagonal block of softmax's is a Gram matrix, weighted by something positive.
    step = objective.family.outputs if isinstance(objective.family, Categorical) else 1
    gram = H[::step, ::step]
    P = gram.shape[0]
    sizes = xp.sqrt(xp.linalg.diagonal(gram))
    remedy = "drop it or set l2 to a positive number."
    if bool(xp.any(sizes == 0)):
        name = names[int(xp.argmin(sizes))]
        if objective.intercept:  # from which the column has been shifted away
            raise _constant(name, remedy)
        raise InputError(
            f"Column {name!r} is constant (all zeros), so without L2 its coefficient is not "
            f"determined; {remedy}"
        )
    factor = cholesky_factor(gram) if counted >= P else None
    if factor is not None and factor.smallest_pivot > _CLEARLY_INDEPENDENT:
        return
    flat = objective.constant_columns() if objective.intercept else None
    if flat is not None and bool(xp.any(flat)):
        raise _constant(names[int(xp.argmax(xp.astype(flat, xp.int64)))], remedy)
    if counted < P:
        samples = "1 sample" if counted == 1 else f"{counted} samples"
        raise InputError(
            f"There are more parameters ({P}) than data ({samples} of positive weight), so without "
            "L2 the coefficients are not determined; set l2 to a positive number or drop columns."
        )
    dependent = _dependent_columns(objective.triangle(labels=False), counted)
    if dependent:
        raise InputError(
            f"{_listed(dependent, names)} depend linearly on one another, so without L2 the "
            "coefficients are not determined; drop one of them or set l2 to a positive number."
        )


def _constant(name: str, remedy: str) -> InputError:
    return InputError(
        f"Column {name!r} is constant, and so is the intercept: without L2 only their sum is "
        f"determined; {remedy}"
    )


def _dependent_columns(R: Array, rows: int) -> list[int]:
    """Return the columns that take part in a dependence, by the null space of the unit columns."""
    xp = array_namespace(R)
    unit = R / xp.sqrt(xp.sum(R * R, axis=0))[None, :]
    _, singular, Vt = xp.linalg.svd(unit)
    tolerance = 10 * max(min(rows, _MANY), R.shape[1]) * float(xp.finfo(R.dtype).eps)
    null = Vt[singular <= tolerance * singular[0], :]
    if null.shape[0] == 0:
        return []
    part = xp.sqrt(xp.sum(null * null, axis=0))
    return [j for j in range(part.shape[0]) if float(part[j]) > _TAKES_PART]


def _listed(columns: list[int], names: tuple[str, ...]) -> str:
    shown = [repr(names[j]) if j < len(names) else "the intercept" for j in columns]
    if len(shown) > 8:
        return f"Columns {', '.join(shown[:7])} and {len(shown) - 7} more"
    return f"Columns {', '.join(shown[:-1])} and {shown[-1]}"


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
    """Raise where Newton's step still goes far, and moves no record to a wrong side.

    ``largest_norm`` is that of the rows: a step too short to move any margin far needs no look.
    """
    if objective.ridge > 0 or norm(step) * largest_norm <= _FAR:
        return
    least, most = objective.gains(step)
    if most > _FAR and least >= -_TIE * most:
        raise InputError(_divergence(objective.family.name))


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


def check_stationarity(
    fit: FittedGLM, X: Array, on_mismatch: str = "raise", *, hessian: Array | None = None
) -> float:
    """Return the relative Newton step still to go, and complain unless it is negligible.

    The leakage is the derivative of the minimiser by the data; at other coefficients the formula
    means nothing. The step ``s = H⁻¹g`` is compared with the coefficients w in the norm of the
    curvature, ``√(sᵀHs / wᵀHw)``, which counts what moves the margins and does not depend on the
    units of the columns (an intercept is projected out of wᵀHw: a shift is no size). Below 1e-5
    nothing is said; up to 1e-2 there is a :class:`NotConvergedWarning`; above it the model is
    refused by a :class:`NotTheMinimiserError`, unless ``on_mismatch`` is ``"warn"``. The Hessian at
    the coefficients (gauge-fixed for softmax) may be given where it is known already.
    """
    sums = optimum_sums(fit, X)
    H = Objective.of(fit, X).definite(sums.penalised_hessian(fit)) if hessian is None else hessian
    return judge_stationarity(fit, sums, H, on_mismatch)


def judge_stationarity(fit: FittedGLM, sums: OptimumSums, H: Array, on_mismatch: str) -> float:
    """Return the step that :func:`check_stationarity` is about from sums over the records.

    For those who have these, and the Hessian, at hand.
    """
    if on_mismatch not in ("raise", "warn"):
        raise InputError(f"on_mismatch must be 'raise' or 'warn', not {on_mismatch!r}.")
    gradient = sums.penalised_gradient(fit)
    xp = array_namespace(gradient)
    factor = cholesky_factor(H) or damped_factor(H)
    g = xp.reshape(gradient, (-1,))
    step = math.sqrt(max(float(xp.sum(g * factor.solve(g))), 0.0))
    # Coefficients may be zero (nothing to learn); a step is then compared with the one that
    # residuals of random sign would ask for.
    random_step = math.sqrt(sums.squares * H.shape[0] / float(xp.sum(xp.linalg.diagonal(H))))
    scale = max(_size(fit, H), random_step)
    relative = step / scale if scale > 0 else step
    if relative <= _WARN:
        return relative
    finding = (
        f"the gradient has norm {norm(gradient):.2g} and Newton's method would still move the "
        f"coefficients by {relative:.2g} of their size (weighed by the curvature)"
    )
    if relative <= REFUSE:
        _warn(
            f"The coefficients are near the minimiser but have not converged: {finding}. The "
            "leakage is that of the minimiser itself; refit with a tighter tol to release that."
        )
    elif on_mismatch == "warn":
        _warn(f"The coefficients do not minimise the stated objective: {finding}.")
    else:
        raise NotTheMinimiserError(
            f"The coefficients do not minimise the stated objective on these data: {finding}. The "
            "data, the penalty or the sample weights may be others than in the fit, or the fit "
            "did not converge; pass what the model was fitted on (sample_weight= too), refit with "
            'a tighter tol, or go on regardless with on_mismatch="warn".'
        )
    return relative


def _warn(message: str) -> None:
    warnings.warn(message, NotConvergedWarning, stacklevel=4)


def _size(fit: FittedGLM, H: Array) -> float:
    """Return ``√(wᵀHw)``, with the intercept projected out: the spread of the margins."""
    xp = array_namespace(H)
    w = xp.reshape(fit.coef, (-1,))
    kept = w.shape[0]
    image = H[:, :kept] @ w
    square = float(xp.sum(w * image[:kept]))
    if fit.intercept is not None:
        shift = image[kept:]
        square -= float(xp.sum(shift * xp.linalg.solve(H[kept:, kept:], shift[:, None])[:, 0]))
    return math.sqrt(max(square, 0.0))


@dataclass(frozen=True)
class OptimumSums:
    """The Hessian and gradient of the unpenalised objective of some records at the coefficients."""

    hessian: Array
    gradient: Array
    squares: float  # Σ (ω r ‖x̃‖)², with a small share of the labels, for where a fit is perfect
    counted: int  # records of positive weight
    weight: float

    def __add__(self, other: OptimumSums) -> OptimumSums:
        return OptimumSums(
            self.hessian + other.hessian,
            self.gradient + other.gradient,
            self.squares + other.squares,
            self.counted + other.counted,
            self.weight + other.weight,
        )

    def penalised_hessian(self, fit: FittedGLM) -> Array:
        """Return the Hessian of the whole objective; not gauge-fixed."""
        free = 0 if fit.intercept is None else math.prod(fit.coef.shape[1:])
        return penalised(self.hessian, fit.ridge, free)

    def penalised_gradient(self, fit: FittedGLM) -> Array:
        """Return the gradient of the whole objective."""
        gradient = self.gradient + fit.ridge * fit.parameters
        if fit.intercept is not None:
            gradient[-1, ...] = self.gradient[-1, ...]
        return gradient


def optimum_sums(fit: FittedGLM, X: Array) -> OptimumSums:
    """Return the sums over a table, one in single precision being widened piece by piece."""
    xp = array_namespace(X)
    step = _WIDENED if X.dtype != xp.float64 else X.shape[0] * X.shape[1]
    found = [_sums_of_rows(fit, X, rows) for rows in row_slices(*X.shape, chunk=step)]
    return sum(found[1:], start=found[0])


def _sums_of_rows(fit: FittedGLM, X: Array, rows: slice) -> OptimumSums:
    xp = array_namespace(X)
    weight = None if fit.sample_weight is None else fit.sample_weight[rows]
    part = replace(fit, target=fit.target[rows, ...], sample_weight=weight, ridge=0.0)
    objective = Objective.of(part, xp.astype(X[rows, :], xp.float64, copy=False))
    margins = fit.margins(objective.X)
    slopes = objective.slopes(margins)
    lengths = objective.row_norms if len(slopes.shape) == 1 else objective.row_norms[:, None]
    labels = _PERFECT_FIT * objective.weighted(objective.target)
    return OptimumSums(
        objective.hessian(margins),
        objective.gradient(fit.parameters, slopes),
        norm(slopes * lengths) ** 2 + norm(labels * lengths) ** 2,
        objective.counted,
        float(objective.counted if weight is None else xp.sum(weight)),
    )
