"""Computations in double the working precision, for problems where rounding errors are too large.

The Hessian, its inverse and the residuals at the minimiser are computed in this precision, so that
results are exact up to rounding. Problems whose columns are well conditioned after shifting and
scaling never need this precision.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations

from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM, Objective, penalised
from seepage.glm.losses import Categorical, Family
from seepage.support.double_double import EPS, Double, exponential, product
from seepage.tables.source import Array

# The minimiser and the curvature there ------------------------------------------------------------


def precise_optimum(
    fit: FittedGLM, objective: Objective, start: Array, condition: float, *, polish: bool
) -> tuple[FittedGLM, Array, Double, float]:
    """Return the minimiser near a model, its ``H⁻¹``, and their accuracy.

    The minimiser is returned as a model, followed by the extra digits of its parameters.

    Parameters
    ----------
    fit, objective
        A model near the minimiser, and its objective, with columns far from zero already shifted.
    start, condition
        ``H⁻¹`` to ordinary precision, and the condition number of ``H``.
    polish
        Whether to move to the minimiser or use the model unchanged.
    """
    low = array_namespace(fit.coef).zeros_like(fit.parameters)
    moved = math.inf
    while True:
        H = _precise_hessian(fit, objective, low)
        inverse, residual = refined(H, start, condition, fit.ridge)
        if not polish:
            break
        start, before = inverse.high, moved
        fit, low, moved = settled(fit, objective, inverse)
        # The curvature at the last margins but one is the same up to how far they moved.
        if moved <= EPS or not moved < before / 2 or fit.family.name == "gaussian":
            break
    # Two slices of a product lie some 2⁻⁸⁰ apart; κ times that may show.
    return fit, low, inverse, EPS * 8 + residual + 1e-24 * condition


def precise_margins(fit: FittedGLM, X: Array, low: Array) -> Double:
    """Return the margins of rows in double the working precision, of shape (n,) or (n, K).

    For softmax, each row's largest margin is subtracted. Only differences between classes matter,
    and they may be small compared with the large margins that a weak penalty allows.
    """
    xp = array_namespace(X)
    theta = Double(fit.parameters, low).each(lambda part: xp.reshape(part, (part.shape[0], -1)))
    margins = product(Double.of(fit.design(X)), theta)
    if not isinstance(fit.family, Categorical):
        return margins[:, 0]
    rows = xp.arange(margins.high.shape[0], device=device(margins.high))
    largest: Double = margins[rows, xp.argmax(margins.high, axis=1)]
    return margins + -largest[:, None]


def _curved_grams(part: Objective, fit: FittedGLM, low: Array) -> Double:
    """Return the curvature-weighted Gram matrices for every pair of different classes."""
    design, margins = fit.design(part.X), precise_margins(fit, part.X, low)
    xp = array_namespace(design)
    curvature = part.weighted(precise_curvature(fit.family, margins, part.target))
    K = 1 if len(curvature.shape) == 1 else curvature.shape[1]
    weights = [curvature] if K == 1 else [curvature[:, j, k] for j, k in _pairs(K)]
    grams = [product(Double.of(design.T), Double.of(design) * w[:, None]) for w in weights]
    return Double(*(xp.stack(parts) for parts in zip(*grams, strict=True)))


def _pairs(classes: int) -> list[tuple[int, int]]:
    return list(combinations(range(classes), 2))


def _precise_hessian(fit: FittedGLM, objective: Objective, low: Array) -> Double:
    """Return the Hessian in double the working precision; for softmax, it is made definite."""
    xp = array_namespace(fit.coef)
    blocks = objective.total(partial(_curved_grams, fit=fit, low=low), "Hessian, precisely")
    D, *classes = fit.parameters.shape
    K = classes[0] if classes else 1
    total: Double = blocks[0]
    if classes:
        zero = xp.zeros((D, K, D, K), dtype=xp.float64, device=device(fit.coef))
        high, low = zero, xp.asarray(zero, copy=True)
        for pair, block in enumerate(zip(*blocks, strict=True)):
            for first, second in (_pairs(K)[pair], _pairs(K)[pair][::-1]):
                high[:, first, :, second], low[:, first, :, second] = block
                # The curvature of softmax sums to zero over the classes, so the blocks on the
                # diagonal follow from the others, and have all their digits along the gauge too.
                own = Double(high[:, first, :, first], low[:, first, :, first]) + -Double(*block)
                high[:, first, :, first], low[:, first, :, first] = own
        total = Double(high, low).each(lambda part: xp.reshape(part, (D * K, D * K)))
    penalty = penalised(xp.zeros_like(total.high), fit.ridge, free_parameters(fit))
    total = total + Double.of(penalty)
    if classes:
        # Any positive amount along the gauge will do, if it is the same in every entry of a
        # feature's block.
        diagonal = xp.linalg.diagonal(total.high)
        gauge = xp.zeros((D, K, D, K), dtype=xp.float64, device=device(fit.coef))
        for feature in range(D):
            gauge[feature, :, feature, :] = xp.mean(diagonal[feature * K : (feature + 1) * K]) / K
        total = total + Double.of(xp.reshape(gauge, total.high.shape))
    return total


def refined(H: Double, start: Array, condition: float, ridge: float) -> tuple[Double, float]:
    """Return ``H⁻¹`` in double the working precision, by Newton's iteration, and its residual.

    First, H and the given inverse are scaled by powers of two, so that the diagonal of H is near 1.
    """
    xp = array_namespace(H.high)
    scale = 2.0 ** -xp.round(xp.log2(xp.sqrt(xp.linalg.diagonal(H.high))))
    both = scale[:, None] * scale[None, :]
    H = H.each(lambda part: part * both)
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
        inverse = inverse + first @ error
    if not residual <= 0.1:
        raise singular(condition, ridge)
    # ``H X = I − E`` makes ``Xᵀ = (I − Eᵀ)H⁻¹``: the transpose has the relative error E in its
    # results, whatever the condition.
    return inverse.each(lambda part: part.T * both), residual


def settled(
    fit: FittedGLM, objective: Objective, inverse: Double
) -> tuple[FittedGLM, Array, float]:
    """Take Newton steps with residuals in double the working precision, until rounding dominates.

    Return the model, the extra digits of its parameters, and the change of all records' margins in
    the first step. This change bounds the relative change of the curvatures.
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
    lengths, shift = [math.inf], 0.0
    for _ in range(30):
        here = fit.at(exact.high)
        ask = partial(_precise_gradient, fit=here, low=exact.low)
        gradient = objective.total(ask, "residuals")
        gradient = gradient.each(lambda part: xp.reshape(part, shape)) + exact * penalty + tilt
        flat = xp.reshape(gradient.high, (-1,))
        step = inverse.high @ flat
        lengths.append(math.sqrt(max(float(xp.sum(step * flat)), 0.0)))
        if not lengths[-1] < lengths[-2] / 2:
            break
        if len(lengths) == 2:
            shift = math.sqrt(
                objective.total(partial(_shift, fit=fit.at(xp.reshape(step, shape))), "residuals")
            )
        exact = exact + xp.reshape(-step, shape)
        if lengths[-1] == 0.0:
            break
    return fit.at(exact.high), exact.low, shift


def _shift(part: Objective, fit: FittedGLM) -> float:
    """Return the sum of squares of the margin shifts due to a step."""
    margins = fit.margins(part.X)
    return float(array_namespace(margins).sum(margins**2))


def _precise_gradient(part: Objective, fit: FittedGLM, low: Array) -> Double:
    """Return the gradient over these records, without the penalty, of shape (D, K)."""
    margins = precise_margins(fit, part.X, low)
    if len(low.shape) == 1:
        margins = margins[:, None]
    return product(Double.of(fit.design(part.X).T), _precise_slopes(part, margins))


def slopes_by_gradient(fit: FittedGLM, X: Array) -> tuple[Array, Array] | None:
    """Return the slopes that balance the penalty, with errors, or ``None`` if they are not unique.

    At the minimiser ``X̃ᵀr = −nλ (w, 0)``. If the rows are linearly independent, this equation
    alone determines the slopes, without subtracting a label from a nearly equal mean.
    """
    xp = array_namespace(X)
    design = fit.design(X)
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
    """Return the slopes for one output at margins in double the working precision, (n,).

    In a good fit, the difference between a mean and a count is small, so it is also computed in
    double the working precision. The same applies to residuals of least squares: the parameters
    depend on all residuals, and a small residual is sensitive to rounding errors in large ones.
    """
    if family.name == "poisson":
        return exponential(margins) + Double.of(-target)
    if family.name == "gaussian":
        return margins + Double.of(-target)
    m, low = margins
    return Double.of(family.slope(m, target) + family.curvature(m, target) * low)


def precise_curvature(family: Family | Categorical, margins: Double, target: Array) -> Array:
    """Return the curvatures at margins in double the working precision, (n,) or (n, K, K).

    Rounding a margin m before exponentiation causes a relative error of ``ε|m|`` in the curvature.
    """
    m, low = margins
    a = family.curvature(m, target)
    if not isinstance(family, Categorical):
        slope = family.curvature_slope
        return a if slope is None else a + slope(m, target) * low
    xp = array_namespace(m)
    # π_j π_k (1 + δ_j + δ_k), δ the further digits less their mean; those on the diagonal are the
    # sums of the others.
    delta = low - xp.sum(family.mean(m) * low, axis=1)[:, None]
    a = a * (1 + delta[:, :, None] + delta[:, None, :])
    for k in range(family.outputs):
        a[:, k, k] = 0.0
        a[:, k, k] = -xp.sum(a[:, k, :], axis=1)
    return a


def _precise_slopes(part: Objective, margins: Double) -> Double:
    """Return the weighted slopes at margins in double the working precision, (n, K).

    For softmax, the slopes sum to zero over the classes. The slope of the record's own class is
    computed from the other classes, since any remainder of the sum would affect classes that
    nothing else constrains.
    """
    xp = array_namespace(margins.high)
    if isinstance(part.family, Categorical):
        m, Y = margins.high, part.target
        others = part.family.mean(m) * (1 - Y)
        others = others + (part.family.curvature(m, Y) @ margins.low[:, :, None])[:, :, 0] * (1 - Y)
        total = Double.of(others[:, 0])
        for k in range(1, others.shape[1]):
            total = total + others[:, k]
        r = Double(others - total.high[:, None] * Y, -total.low[:, None] * Y)
    else:
        r = precise_slope(part.family, margins[:, 0], part.target)[:, None]
    return r if part.sample_weight is None else r * xp.reshape(part.sample_weight, (-1, 1))


def free_parameters(fit: FittedGLM) -> int:
    """Return the number of unpenalised parameters, which are the intercepts."""
    return 0 if fit.intercept is None else math.prod(fit.coef.shape[1:])


def whitened_precisely(inverse: Double, root: Array, centre: Array | None, outputs: int) -> Double:
    """Return ``Φ^½ T⁻¹ H⁻¹``; see :class:`~seepage.glm.jacobian.optimum.Whitener`.

    ``root`` is ``Φ^½``: a matrix, its diagonal, or a single number.
    """
    if centre is not None:
        # T⁻¹: the intercepts' rows less the centre times those of the coefficients
        xp, d, P = array_namespace(inverse.high), centre.shape[0], inverse.high.shape[0]
        rows = inverse[: d * outputs, :].each(lambda part: xp.reshape(part, (d, outputs * P)))
        shift = product(Double.of(xp.astype(centre, inverse.high.dtype)[None, :]), rows)
        last = inverse[d * outputs :, :] + -shift.each(lambda part: xp.reshape(part, (outputs, P)))
        parts = zip(inverse[: d * outputs, :], last, strict=True)
        inverse = Double(*(xp.concat(pair, axis=0) for pair in parts))
    if len(root.shape) == 2:
        return product(Double.of(root), inverse)
    return inverse * Double.of(root if len(root.shape) == 0 else root[:, None])


class SingularCurvatureError(InputError):
    """Raised if the Hessian at a minimiser has no inverse to working precision."""


def singular(condition: float, ridge: float) -> SingularCurvatureError:
    """Return the error for a problem that cannot be solved because of rounding."""
    what = f"about {condition:.0e}" if math.isfinite(condition) else "too large to represent"
    remedy = "choose a larger l2" if ridge > 0 else "set l2 to a positive number"
    return SingularCurvatureError(
        f"The Hessian of the objective is singular to working precision (condition number {what} "
        f"after scaling the columns): some columns are nearly collinear; drop redundant columns, "
        f"or {remedy}."
    )
