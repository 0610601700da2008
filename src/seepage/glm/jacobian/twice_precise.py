"""Work done in twice the precision, where ordinary arithmetic would lose too many digits.

The Hessian, its inverse and the residuals at the minimiser, so that the results are exact to
rounding again. Problems whose columns are well conditioned, once shifted and scaled, never need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM, gauge_fixed, penalised
from seepage.glm.losses import Categorical, Family
from seepage.support.double_double import Double, exponential, product
from seepage.tables.source import Array

Answer = TypeVar("Answer")

EPS = float(np.finfo(float).eps)
_MOST_STEPS = 30
_SINGULAR = 0.1
_UNMOVED = EPS  # of a margin


class RecordSums(Protocol):
    """The records that a model was fitted on, asked for sums over them."""

    def total(self, ask: Callable[..., Answer], fit: FittedGLM, what: str, **given: Any) -> Answer:
        """Return the sum of ``ask(fit, X, …)`` over the records, ``fit`` with their labels."""


# The minimiser and the curvature there ------------------------------------------------------------


def precise_optimum(
    fit: FittedGLM, records: RecordSums, start: Array, condition: float, *, polish: bool
) -> tuple[FittedGLM, Array, Double, float]:
    """Return the minimiser near a model, ``H⁻¹`` there, and how exact that is.

    The minimiser is a model, with the digits of its parameters beyond the ordinary ones.

    Parameters
    ----------
    fit, records
        A model near the minimiser, and the (shifted) records.
    start, condition
        ``H⁻¹`` to ordinary precision, and the condition number of ``H``.
    polish
        Whether to go to the minimiser, or to stay where the model is.
    """
    low = array_namespace(fit.coef).zeros_like(fit.parameters)
    moved = math.inf
    while True:
        H = _precise_hessian(fit, records, low)
        inverse, residual = refined(H, start, condition, fit.ridge)
        if not polish:
            break
        start, before = inverse.high, moved
        fit, low, moved = settled(fit, records, inverse)
        # The curvature at the last margins but one is the same up to how far they moved.
        if moved <= _UNMOVED or not moved < before / 2:
            break
    # Two slices of a product lie some 2⁻⁸⁰ apart; κ times that may show.
    return fit, low, inverse, EPS * 8 + residual + 1e-24 * condition


def precise_margins(fit: FittedGLM, X: Array, low: Array) -> Double:
    """Return the margins of rows in twice the precision, (n,) or (n, K).

    For softmax, less the largest of their row: only differences of classes count, which may be
    small beside margins that a weak penalty lets grow.
    """
    xp = array_namespace(X)
    theta = Double(*(xp.reshape(part, (part.shape[0], -1)) for part in (fit.parameters, low)))
    margins = product(Double.of(_design(fit, X)), theta)
    if not isinstance(fit.family, Categorical):
        return Double(margins.high[:, 0], margins.low[:, 0])
    rows = xp.arange(margins.high.shape[0], device=device(margins.high))
    largest = margins[rows, xp.argmax(margins.high, axis=1)]
    return margins.plus(Double(-largest.high[:, None], -largest.low[:, None]))


@dataclass(frozen=True)
class _DoubleSums:
    """Matrices in twice the precision, summed over records."""

    parts: tuple[Double, ...]

    def __add__(self, other: _DoubleSums) -> _DoubleSums:
        pairs = zip(self.parts, other.parts, strict=True)
        return _DoubleSums(tuple(mine.plus(yours) for mine, yours in pairs))


def _curved_grams(fit: FittedGLM, X: Array, low: Array) -> _DoubleSums:
    """Return the Gram matrices weighted by the curvature, of every pair of different classes."""
    design, curvature = _design(fit, X), _curvature(fit, precise_margins(fit, X, low).high)

    def gram(weight: Array) -> Double:
        return product(Double.of(design.T), Double.of(design).times(weight[:, None]))

    if len(curvature.shape) == 1:
        return _DoubleSums((gram(curvature),))
    K = curvature.shape[1]
    return _DoubleSums(tuple(gram(curvature[:, j, k]) for j in range(K) for k in range(j + 1, K)))


def _precise_hessian(fit: FittedGLM, records: RecordSums, low: Array) -> Double:
    """Return the Hessian in twice the precision, definite also along softmax's gauge."""
    xp = array_namespace(fit.coef)
    blocks = iter(records.total(_curved_grams, fit, "Hessian, precisely", low=low).parts)
    K = fit.family.outputs if isinstance(fit.family, Categorical) else 1
    D = fit.parameters.shape[0]
    zero = xp.zeros((D, K, D, K), dtype=xp.float64, device=device(fit.coef))
    high, low = zero, xp.asarray(zero, copy=True)
    if K == 1:
        high[:, 0, :, 0], low[:, 0, :, 0] = next(blocks)
    for j in range(K):
        for k in range(j + 1, K):
            block = next(blocks)
            # The curvature of softmax sums to zero over the classes, so the blocks on the diagonal
            # follow from the others, and have all their digits along the gauge too.
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
        gauge = gauge_fixed(total.high, K) - total.high
        # Any positive amount will do, if it is the same in every entry of a feature's block.
        total = total.plus(_blockwise(gauge, K))
    return total


def _blockwise(gauge: Array, classes: int) -> Array:
    """Return a matrix of constant diagonal blocks from one that is so up to rounding."""
    xp = array_namespace(gauge)
    size = gauge.shape[0]
    out = xp.zeros_like(gauge)
    for start in range(0, size, classes):
        block = slice(start, start + classes)
        out[block, block] = gauge[start, start]
    return out


def refined(H: Double, start: Array, condition: float, ridge: float) -> tuple[Double, float]:
    """Return ``H⁻¹`` in twice the precision by Newton's iteration, and the residual it leaves.

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
        image = product(H, inverse)
        error = (identity - image.high) - image.low
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
    # ``H X = I − E`` makes ``Xᵀ = (I − Eᵀ)H⁻¹``: the transpose has the relative error E in its
    # results, whatever the condition.
    return Double(inverse.high.T * both, inverse.low.T * both), residual


def settled(fit: FittedGLM, records: RecordSums, inverse: Double) -> tuple[FittedGLM, Array, float]:
    """Take Newton's steps with residuals in twice the precision, until they are rounding.

    Return the model, the further digits of its parameters, and how far the first step moved a
    margin.
    """
    exact = Double.of(fit.parameters)
    xp, shape = array_namespace(exact.high), exact.high.shape
    penalty = xp.full(
        (shape[0], *(1,) * (len(shape) - 1)), fit.ridge, dtype=xp.float64, device=device(exact.high)
    )
    if fit.intercept is not None:
        penalty[-1, ...] = 0.0
    tilt = xp.zeros_like(exact.high)
    if fit.tilt is not None:
        tilt[: fit.tilt.shape[0]] = fit.tilt
    last, first = math.inf, 0.0
    for count in range(_MOST_STEPS):
        here = fit.at(exact.high)
        parts = records.total(_precise_gradient, here, "residuals", low=exact.low).parts[0]
        gradient = Double(*(xp.reshape(part, shape) for part in parts))
        gradient = gradient.plus(exact.times(penalty)).plus(tilt)
        step = -(inverse.high @ xp.reshape(gradient.high, (-1,)))
        step = xp.reshape(step, shape)
        moved = records.total(_moved, fit.at(step), "residuals").size
        first = first if count else moved
        if not moved < last / 2:
            break
        last = moved
        exact = exact.plus(step)
        if moved == 0.0:
            break
    return fit.at(exact.high), exact.low, first


def _precise_gradient(fit: FittedGLM, X: Array, low: Array) -> _DoubleSums:
    """Return the gradient of some records, without the penalty, (D, K)."""
    margins = precise_margins(fit, X, low)
    if len(low.shape) == 1:
        margins = margins[:, None]
    return _DoubleSums((product(Double.of(_design(fit, X).T), _precise_slopes(fit, margins)),))


@dataclass(frozen=True)
class _Moved:
    """The largest of some margins."""

    size: float

    def __add__(self, other: _Moved) -> _Moved:
        return _Moved(max(self.size, other.size))


def _moved(step: FittedGLM, X: Array) -> _Moved:
    """Return how far a step, given as a model, moves the margin of any record."""
    xp = array_namespace(X)
    return _Moved(float(xp.max(xp.abs(_design(step, X) @ step.parameters))))


def slopes_by_gradient(fit: FittedGLM, X: Array) -> tuple[Array, Array] | None:
    """Return the slopes that balance the penalty, and their errors, for few records.

    At the minimiser ``X̃ᵀr = −nλ (w, 0)``. Where the rows are independent, that alone determines the
    slopes, without subtracting a label from a mean that a good fit makes nearly equal.
    """
    xp = array_namespace(X)
    design = _design(fit, X)
    if design.shape[0] > design.shape[1] or fit.ridge == 0 or fit.tilt is not None:
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


def precise_slope(family: Family | Categorical, margins: Double, target: Array) -> Double:
    """Return the slopes of one output at margins in twice the precision, (n,).

    Where a fit is good, a mean less a count is small, so it is taken in twice the precision too.
    """
    if family.name == "poisson":
        return exponential(margins).plus(-target)
    m, low = margins
    return Double.of(family.slope(m, target) + family.curvature(m, target) * low)


def _precise_slopes(fit: FittedGLM, margins: Double) -> Double:
    """Return the weighted slopes at margins in twice the precision, (n, K).

    For softmax they sum to zero over the classes; that of the record's own class is computed from
    the others, since any remainder of the sum would push classes that nothing else holds.
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
        r = precise_slope(fit.family, margins[:, 0], fit.target)[:, None]
    return r if fit.sample_weight is None else r.times(xp.reshape(fit.sample_weight, (-1, 1)))


def _curvature(fit: FittedGLM, margins: Array) -> Array:
    curvature = fit.family.curvature(margins, fit.target)
    if fit.sample_weight is None:
        return curvature
    xp = array_namespace(curvature)
    return xp.reshape(fit.sample_weight, (-1, *(1,) * (len(curvature.shape) - 1))) * curvature


def _design(fit: FittedGLM, X: Array) -> Array:
    xp = array_namespace(X)
    wide = xp.astype(X, xp.float64, copy=False)
    if fit.intercept is None:
        return wide
    return xp.concat([wide, xp.ones_like(wide[:, :1])], axis=1)


def _free(fit: FittedGLM) -> int:
    """Return how many parameters are not penalised: the intercepts."""
    if fit.intercept is None:
        return 0
    return fit.family.outputs if isinstance(fit.family, Categorical) else 1


def whitened_precisely(inverse: Double, root: Array, centre: Array | None, outputs: int) -> Double:
    """Return ``Φ^½ T⁻¹ H⁻¹``; see :class:`~seepage.glm.jacobian.optimum.Whitener`.

    ``root`` is ``Φ^½``: a matrix, its diagonal, or one number.
    """
    if centre is not None:
        xp = array_namespace(inverse.high)
        inverse = _unshifted(inverse, xp.astype(centre, inverse.high.dtype), outputs)
    if len(root.shape) == 2:
        return product(Double.of(root), inverse)
    return inverse.times(root if len(root.shape) == 0 else root[:, None])


def _unshifted(inverse: Double, centre: Array, outputs: int) -> Double:
    """Return ``T⁻¹H⁻¹``: the intercepts' rows less the centre times those of the coefficients."""
    xp = array_namespace(centre)
    P = inverse.high.shape[0]
    kept = centre.shape[0] * outputs

    def rows(part: Array) -> Array:
        return xp.reshape(part[:kept, :], (centre.shape[0], outputs * P))

    shift = product(Double.of(centre[None, :]), Double(rows(inverse.high), rows(inverse.low)))
    shift = Double(*(xp.reshape(-part, (outputs, P)) for part in shift))
    last = inverse[kept:, :].plus(shift)
    return Double(
        xp.concat([inverse.high[:kept, :], last.high], axis=0),
        xp.concat([inverse.low[:kept, :], last.low], axis=0),
    )


class SingularCurvatureError(InputError):
    """The curvature at a minimiser has no inverse to working precision."""


def singular(condition: float, ridge: float) -> SingularCurvatureError:
    """Return the refusal of a problem to which rounding leaves no answer."""
    what = f"about {condition:.0e}" if math.isfinite(condition) else "too large to represent"
    remedy = "choose a larger l2" if ridge > 0 else "set l2 to a positive number"
    return SingularCurvatureError(
        f"The curvature of the objective is singular to working precision (condition number {what} "
        f"of columns scaled alike): some columns nearly repeat others; drop them, or {remedy}."
    )
