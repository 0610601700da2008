"""The exact minimiser near a model's coefficients, the curvature there, and how exact both are.

The leakage is the derivative of the exact minimiser on the data as they are stored. A fitted model
is near it: Newton's steps lead the rest of the way. What can be lost to rounding is counted by the
condition number κ of the Hessian, its columns shifted away from the intercept and scaled to a unit
diagonal. Where κ is small, ordinary arithmetic is exact to a few roundings times κ. Where it is
not, the Hessian, its inverse and the residuals are computed to twice the precision, and what they
give is exact to rounding again, as long as κ stays below about 1e15.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.fitting.coordinates import far_centre, uncentred
from seepage.glm.fitting.minimiser import (
    REFUSE,
    OptimumSums,
    check_columns,
    judge_stationarity,
    optimum_sums,
)
from seepage.glm.fitting.objective import FittedGLM, Objective, cholesky_factor, penalised
from seepage.glm.losses import Categorical
from seepage.support.chunks import by_rows, chunk_for
from seepage.support.double_double import Double, product
from seepage.tables.source import Array

EPS = float(np.finfo(float).eps)
MINIMAL = 1e-13  # a Newton step that is no more than rounding, beside the coefficients
_MOST_STEPS = 30
_POWERS = 16  # products that estimate the extreme eigenvalues

# Up to how much work, and from which condition number on, it is done to twice the precision: always
# where it is cheap, later where it is not, and always where ordinary arithmetic would lose half its
# digits.
_CHEAP = 1e6
_DEAR, _DEAR_FROM = 2e8, 300.0
_ALWAYS_FROM = 1e7
_REFINED_FROM = 3e3
_KEEP_DIGITS = ("gaussian", "bernoulli")  # whose slopes have all digits where margins have
_LOST = 1e-10  # the share of a residual that rounding may take before it is computed again
_SINGULAR = 0.1
_UNMOVED = 1e-13  # of a margin


@dataclass(frozen=True)
class Optimum:
    """The minimiser of a model's objective and the inverse curvature there.

    Margins and inverse are to twice the precision where that was called for.
    """

    fit: FittedGLM  # the model at the minimiser, in the caller's columns
    X: Array  # the table less its centre, (n, d): the caller's own where no column is far from zero
    centre: Array | None  # what was subtracted, (d,)
    margins: Array | Double
    inverse: Array | Double  # ``H⁻¹`` of the shifted columns, (P, P)
    condition: float  # κ, that of ``H`` scaled to a unit diagonal
    accuracy: float  # the relative error of ``H⁻¹x̃``

    @property
    def derivatives(self) -> tuple[Array, Array, Array, Array]:
        """Weighted ``r``, ``a`` and ``b`` of every record of one output, and the error of ``r``."""
        fit, low = self.fit, None
        m = self.margins
        if isinstance(m, Double):
            m, low = m
        xp = array_namespace(m)
        family, y = fit.family, fit.target
        r, a, b = family.slope(m, y), family.curvature(m, y), family.label_slope(m, y)
        if low is not None:
            r = r + a * low
        lost = EPS * xp.abs(r)
        if family.name not in _KEEP_DIGITS:
            lost = lost + EPS * a  # what the family's own formula may lose
        if low is None:
            lost = lost + a * _margin_error(fit, self.X, m)
        if fit.sample_weight is not None:
            w = fit.sample_weight
            r, a, b, lost = w * r, w * a, w * b, w * lost
        if low is not None and family.name not in _KEEP_DIGITS:
            by_gradient = _slopes_by_gradient(fit, self.X)
            if by_gradient is not None:
                better = by_gradient[1] < lost
                r = xp.where(better, by_gradient[0], r)
                lost = xp.where(better, by_gradient[1], lost)
        return r, a, b, lost


def optimum(fit: FittedGLM, X: Array, names: tuple[str, ...], on_mismatch: str) -> Optimum:
    """Find the minimiser near the coefficients of a model, in float64, fitted on ``X``.

    Where it is not near, the model is refused by a :class:`NotTheMinimiserError`, unless
    ``on_mismatch`` is ``"warn"``: then the coefficients are taken as they are. Refused as well are
    data with no unique minimiser, or none to working precision.
    """
    fit, X, centre = shifted(fit, X)
    objective = Objective.of(fit, X)
    sums = optimum_sums(fit, X)
    H = sums.penalised_hessian(fit)
    check_columns(objective, H, sums.counted, names)
    H = objective.definite(H)
    step = judge_stationarity(fit, sums, H, on_mismatch)
    if MINIMAL < step <= REFUSE:
        fit, H = polished(fit, sums, H, objective.definite, lambda near: optimum_sums(near, X))
    return _weighed(fit, X, centre, margins_of(fit, X), H, polish=step <= REFUSE)


def shifted(fit: FittedGLM, X: Array) -> tuple[FittedGLM, Array, Array | None]:
    """Return a model of columns less their centre, these columns, and the centre.

    The intercept, of which rounding has left little where a column is far from zero, is solved for
    again.
    """
    if fit.intercept is None:
        return fit, X, None
    xp = array_namespace(X)
    centre = far_centre(xp.min(X, axis=0), xp.max(X, axis=0))
    if centre is None:
        return fit, X, None
    X = X - centre[None, :]
    free = fit.intercept + xp.reshape(_wide(centre) @ fit.coef, fit.intercept.shape)
    for _ in range(_MOST_STEPS):
        slope, curve = _intercept_sums(fit, margins_of(replace(fit, intercept=free), X))
        move = xp.reshape(xp.linalg.solve(curve, slope[:, None])[:, 0], free.shape)
        free = free - move
        if float(xp.max(xp.abs(move))) <= 4 * EPS * (1 + float(xp.max(xp.abs(free)))):
            break
    return replace(fit, intercept=free), X, centre


def margins_of(fit: FittedGLM, X: Array) -> Array:
    """Return the margins of every record, in float64."""
    return by_rows(lambda rows: fit.margins(_wide(X[rows, :])), *X.shape, chunk=chunk_for(X))


def condition_number(H: Array, inverse: Array) -> float:
    """Estimate that of a definite matrix scaled to a unit diagonal, from below, by power steps."""
    xp = array_namespace(H)
    sizes = xp.sqrt(xp.linalg.diagonal(H))
    start = np.random.default_rng(0).standard_normal(H.shape[0])
    extremes = 1.0
    for matrix, scale in ((H, 1 / sizes), (inverse, sizes)):
        v = xp.asarray(start, dtype=H.dtype, device=device(H))
        size = 0.0
        for _ in range(_POWERS):
            v = scale * (matrix @ (scale * v))
            size = math.sqrt(float(xp.sum(v * v)))
            v = v / size if size > 0 else v
        extremes *= size
    return extremes


def _weighed(
    fit: FittedGLM, X: Array, centre: Array | None, margins: Array, H: Array, *, polish: bool
) -> Optimum:
    """Invert the curvature, with as much precision as its condition asks for."""
    inverse = _inverse(H)
    condition = math.inf if inverse is None else condition_number(H, inverse)
    if not condition < 1 / EPS:
        raise singular(condition, fit.ridge)
    cost = float(X.shape[0]) * H.shape[0] ** 2
    precise = condition > _ALWAYS_FROM
    precise = precise or cost <= _CHEAP
    precise = precise or (cost <= _DEAR and condition > _DEAR_FROM)
    if precise:
        return _precise(fit, X, centre, margins, inverse, condition, polish=polish)
    # Rounding of the Hessian, and of an inverse that was not refined.
    accuracy = EPS * 16 * condition
    if condition > _REFINED_FROM:
        inverse = _refined(Double.of(H), inverse, condition, fit.ridge)[0].high
    else:
        accuracy += EPS * condition**2 / 8
    exact: Array | Double = margins
    if polish and cost <= _DEAR and _residuals_lost(fit, X, margins):
        fit, exact, _ = _settled(fit, X, Double.of(inverse))
    return Optimum(_back(fit, centre), X, centre, exact, inverse, condition, accuracy)


def _precise(
    fit: FittedGLM,
    X: Array,
    centre: Array | None,
    margins: Array,
    start: Array,
    condition: float,
    *,
    polish: bool,
) -> Optimum:
    exact = Double.of(margins)
    moved = math.inf
    while True:
        H = _precise_hessian(fit, X, exact.high)
        inverse, residual = _refined(H, start, condition, fit.ridge)
        if not polish:
            break
        start, before = inverse.high, moved
        fit, exact, moved = _settled(fit, X, inverse)
        # The curvature at the last margins but one is the same to what they moved.
        if moved <= _UNMOVED or not moved < before / 2:
            break
    # Two slices of a product lie some 2⁻⁸⁰ apart; κ of it may show.
    accuracy = EPS * 8 + residual + 1e-24 * condition
    return Optimum(_back(fit, centre), X, centre, exact, inverse, condition, accuracy)


def _precise_hessian(fit: FittedGLM, X: Array, margins: Array) -> Double:
    """Return the Hessian to twice the precision, definite also along softmax's gauge."""
    xp = array_namespace(X)
    K = fit.family.outputs if isinstance(fit.family, Categorical) else 1
    D = X.shape[1] + (fit.intercept is not None)
    zero = xp.zeros((D, K, D, K), dtype=xp.float64, device=device(X))
    high, low = zero, xp.asarray(zero, copy=True)
    design = _design(fit, X)
    curvature = _curvature(fit, margins, slice(0, X.shape[0]))

    def gram(weight: Array) -> Double:
        return product(Double.of(design.T), Double.of(design).times(weight[:, None]))

    if K == 1:
        high[:, 0, :, 0], low[:, 0, :, 0] = gram(curvature)
    for j in range(K):
        for k in range(j + 1, K):
            block = gram(curvature[:, j, k])
            # The curvature of softmax sums to zero over the classes: so the blocks of the diagonal
            # are those beside it, and have all their digits along the gauge too.
            for first, second in ((j, k), (k, j)):
                high[:, first, :, second], low[:, first, :, second] = block
                diagonal = Double(high[:, first, :, first], low[:, first, :, first])
                diagonal = diagonal.plus(Double(-block.high, -block.low))
                high[:, first, :, first], low[:, first, :, first] = diagonal
    size = D * K
    total = Double(xp.reshape(high, (size, size)), xp.reshape(low, (size, size)))
    penalty = penalised(xp.zeros_like(total.high), fit.ridge, _free(fit))
    total = total.plus(penalty)
    if K > 1:
        whole = Objective.of(fit, X)
        gauge = whole.definite(total.high) - total.high
        # Any positive amount of it will do, but the same in every entry of a feature's block.
        total = total.plus(_blockwise(gauge, K))
    return total


def _blockwise(gauge: Array, classes: int) -> Array:
    """Return a block-diagonal matrix whose blocks are constant, from one that is so to rounding."""
    xp = array_namespace(gauge)
    size = gauge.shape[0]
    out = xp.zeros_like(gauge)
    for start in range(0, size, classes):
        block = slice(start, start + classes)
        out[block, block] = gauge[start, start]
    return out


def _refined(H: Double, start: Array, condition: float, ridge: float) -> tuple[Double, float]:
    """Return ``H⁻¹`` to twice the precision by Newton's iteration, and the residual it leaves.

    Both are scaled to a unit diagonal on the way, by powers of two.
    """
    xp = array_namespace(H.high)
    scale = 2.0 ** -xp.round(xp.log2(xp.sqrt(xp.linalg.diagonal(H.high))))
    both = scale[:, None] * scale[None, :]
    H = Double(H.high * both, H.low * both)
    first = start / both
    inverse = Double.of(first)
    identity = xp.eye(first.shape[0], dtype=first.dtype, device=device(first))
    residual = math.inf
    for _ in range(12):
        found = product(H, inverse)
        error = (identity - found.high) - found.low
        size = math.sqrt(float(xp.sum(error * error)))
        if not size < residual / 2:
            residual = min(size, residual)
            break
        residual = size
        if residual <= EPS**1.2:
            break
        step = first @ error
        inverse = inverse.plus(step)
    if not residual <= _SINGULAR:
        raise singular(condition, ridge)
    # ``H X = I − E`` makes ``Xᵀ = (I − Eᵀ)H⁻¹``: transposed, it is off by E of what it gives,
    # whatever the condition.
    return Double(inverse.high.T * both, inverse.low.T * both), residual


def _settled(fit: FittedGLM, X: Array, inverse: Double) -> tuple[FittedGLM, Double, float]:
    """Take Newton's steps with residuals to twice the precision, until they are rounding.

    Return also how far the first of them moved a margin.
    """
    xp = array_namespace(X)
    design = Double.of(_design(fit, X))
    theta = fit.parameters
    shape = theta.shape
    exact = Double.of(xp.reshape(theta, (shape[0], -1)))
    penalty = xp.full((shape[0], 1), fit.ridge, dtype=xp.float64, device=device(X))
    if fit.intercept is not None:
        penalty[-1, :] = 0.0
    last, first, margins = math.inf, 0.0, product(design, exact)
    for count in range(_MOST_STEPS):
        r = _precise_slopes(fit, margins)
        gradient = product(design.transposed(), r).plus(exact.times(penalty))
        step = -(inverse.high @ xp.reshape(gradient.high, (-1,)))
        moved = float(xp.max(xp.abs(design.high @ xp.reshape(step, exact.high.shape))))
        first = first if count else moved
        if not moved < last / 2:
            break
        last = moved
        exact = exact.plus(xp.reshape(step, exact.high.shape))
        margins = product(design, exact)
        if moved == 0.0:
            break
    fit = _at(fit, xp.reshape(exact.high, shape))
    if len(shape) == 1:
        margins = margins[:, 0]
    return fit, margins, first


def _slopes_by_gradient(fit: FittedGLM, X: Array) -> tuple[Array, Array] | None:
    """Return the slopes that balance the penalty, and their errors, for few records.

    At the minimiser ``X̃ᵀr = −nλ (w, 0)``. Where the rows are independent, that alone determines the
    slopes, and without the difference of a mean and a label that a good fit makes them.
    """
    xp = array_namespace(X)
    design = _design(fit, X)
    if design.shape[0] > design.shape[1] or fit.ridge == 0:
        return None
    right = fit.ridge * fit.coef
    if fit.intercept is not None:
        right = xp.concat([right, xp.zeros_like(right[:1])])
    Q, R = xp.linalg.qr(design.T, mode="reduced")
    values = xp.linalg.svdvals(R)
    if not float(values[-1]) > 1e-6 * float(values[0]):
        return None
    r = -xp.linalg.solve(R, (Q.T @ right)[:, None])[:, 0]
    error = 16 * EPS * float(values[0] / values[-1]) * math.sqrt(float(xp.sum(r * r)))
    return r, error + xp.zeros_like(r)


def _precise_slopes(fit: FittedGLM, margins: Double) -> Double:
    """Return the weighted slopes at margins of twice the precision, (n, K).

    Those of softmax sum to zero over the classes; the one of the record's own class is computed
    from the others, for what is left of their sum would push classes that nothing else holds.
    """
    xp = array_namespace(margins.high)
    if isinstance(fit.family, Categorical):
        m, Y = margins.high, fit.target
        others = fit.family.mean(m) * (1 - Y)
        others = others + (fit.family.curvature(m, Y) @ margins.low[:, :, None])[:, :, 0] * (1 - Y)
        total = Double.of(others[:, 0])
        for k in range(1, others.shape[1]):
            total = total.plus(others[:, k])
        r = Double(others - total.high[:, None] * Y, -total.low[:, None] * Y)
    else:
        m, low = margins.high[:, 0], margins.low[:, 0]
        slope = fit.family.slope(m, fit.target) + fit.family.curvature(m, fit.target) * low
        r = Double.of(slope[:, None])
    return r if fit.sample_weight is None else r.times(xp.reshape(fit.sample_weight, (-1, 1)))


def polished(
    fit: FittedGLM,
    sums: OptimumSums,
    H: Array,
    definite: Callable[[Array], Array],
    sums_at: Callable[[FittedGLM], OptimumSums],
) -> tuple[FittedGLM, Array]:
    """Take ordinary Newton's steps until they no longer shrink; return also the Hessian there.

    ``definite`` is the objective's own, ``sums_at`` gives the sums over all rows at other
    parameters.
    """
    xp = array_namespace(H)
    last = math.inf
    for _ in range(_MOST_STEPS):
        factor = cholesky_factor(H)
        if factor is None:
            break
        step = factor.solve(xp.reshape(sums.penalised_gradient(fit), (-1,)))
        size = math.sqrt(max(float(xp.sum(step * (H @ step))), 0.0))
        if not size < last / 2:
            break
        last = size
        fit = _at(fit, fit.parameters - xp.reshape(step, fit.parameters.shape))
        sums = sums_at(fit)
        H = definite(sums.penalised_hessian(fit))
    return fit, H


def _at(fit: FittedGLM, theta: Array) -> FittedGLM:
    """Return a model with other parameters."""
    if fit.intercept is None:
        return replace(fit, coef=theta)
    xp = array_namespace(theta)
    last = xp.reshape(theta[-1, ...], fit.intercept.shape)
    return replace(fit, coef=theta[:-1, ...], intercept=last)


def singular(condition: float, ridge: float) -> InputError:
    """Return the refusal of a problem that rounding leaves without an answer."""
    what = f"about {condition:.0e}" if math.isfinite(condition) else "beyond all numbers"
    remedy = "choose a larger l2" if ridge > 0 else "set l2 to a positive number"
    return InputError(
        f"The curvature of the objective is singular to working precision (condition number {what} "
        f"of columns scaled alike): some columns all but repeat others; drop them, or {remedy}."
    )


def plain_inverse(H: Array, ridge: float) -> tuple[Array, float]:
    """Return ``H⁻¹`` of a definite matrix by ordinary arithmetic, and its accuracy."""
    inverse = _inverse(H)
    condition = math.inf if inverse is None else condition_number(H, inverse)
    if inverse is None or not condition < 1 / EPS:
        raise singular(condition, ridge)
    return inverse, EPS * (16 * condition + condition**2 / 8)


def _inverse(H: Array) -> Array | None:
    factor = cholesky_factor(H)
    if factor is None:
        return None
    xp = array_namespace(H)
    inverse = factor.solve(xp.eye(H.shape[0], dtype=H.dtype, device=device(H)))
    return (inverse + inverse.T) / 2


def _residuals_lost(fit: FittedGLM, X: Array, margins: Array) -> bool:
    """Say whether rounding of the margins shows in the residual of some record."""
    if isinstance(fit.family, Categorical):
        return False
    xp = array_namespace(margins)
    r, a = fit.family.slope(margins, fit.target), fit.family.curvature(margins, fit.target)
    lost = a * _margin_error(fit, X, margins) > _LOST * xp.abs(r)
    if fit.sample_weight is not None:
        lost = lost & (fit.sample_weight > 0)
    return bool(xp.any(lost))


def _margin_error(fit: FittedGLM, X: Array, margins: Array) -> Array:
    """Return about how far rounding may put each margin off, with the label it is compared to."""
    xp = array_namespace(margins)
    reach = (
        float(xp.max(xp.abs(_wide(X)), axis=0) @ xp.abs(fit.coef)) if X.shape[0] <= 4096 else 0.0
    )
    return 4 * EPS * (xp.abs(margins) + xp.abs(fit.target) + reach)


def _intercept_sums(fit: FittedGLM, margins: Array) -> tuple[Array, Array]:
    """Return the slope and the curvature of the objective along the intercepts, (K,), (K, K)."""
    xp = array_namespace(margins)
    slopes = fit.family.slope(margins, fit.target)
    curves = fit.family.curvature(margins, fit.target)
    if fit.sample_weight is not None:
        w = fit.sample_weight
        slopes = slopes * xp.reshape(w, (-1, *(1,) * (len(slopes.shape) - 1)))
        curves = curves * xp.reshape(w, (-1, *(1,) * (len(curves.shape) - 1)))
    if len(slopes.shape) == 1:
        return xp.reshape(xp.sum(slopes), (1,)), xp.reshape(xp.sum(curves), (1, 1))
    curve = xp.sum(curves, axis=0)
    # Along the gauge nothing changes: any amount makes it definite.
    return xp.sum(slopes, axis=0), curve + xp.mean(xp.linalg.diagonal(curve))


def _curvature(fit: FittedGLM, margins: Array, rows: slice) -> Array:
    curvature = fit.family.curvature(margins[rows, ...], fit.target[rows, ...])
    if fit.sample_weight is None:
        return curvature
    xp = array_namespace(curvature)
    ones = (1,) * (len(curvature.shape) - 1)
    return xp.reshape(fit.sample_weight[rows], (-1, *ones)) * curvature


def _design(fit: FittedGLM, X: Array) -> Array:
    wide = _wide(X)
    if fit.intercept is None:
        return wide
    xp = array_namespace(wide)
    return xp.concat([wide, xp.ones_like(wide[:, :1])], axis=1)


def _free(fit: FittedGLM) -> int:
    """Return how many parameters are not penalised: the intercepts."""
    if fit.intercept is None:
        return 0
    return fit.family.outputs if isinstance(fit.family, Categorical) else 1


def _back(fit: FittedGLM, centre: Array | None) -> FittedGLM:
    """Return a model of shifted columns as one of the caller's."""
    if centre is None:
        return fit
    return _at(fit, uncentred(fit.parameters, _wide(centre)))


def _wide(values: Array) -> Array:
    xp = array_namespace(values)
    return xp.astype(values, xp.float64, copy=False)
