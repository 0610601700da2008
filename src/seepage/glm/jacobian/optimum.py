"""The exact minimiser near a model's coefficients, its curvature, and their accuracy.

The leakage is computed from the derivative of the exact minimiser on the stored data. A fitted
model is close to this minimiser; Newton steps remove the remaining distance. Bounds on rounding
errors depend on the condition number κ of the Hessian of the centred columns, scaled to a unit
diagonal. If κ is small, the error in ordinary floating-point arithmetic is a few rounding errors
times κ. Otherwise the Hessian, its inverse and the residuals are computed in double the working
precision (:mod:`seepage.glm.jacobian.twice_precise`). The result is then exact up to rounding if κ
is below about 1e15. Whitened by the noise, the inverse Hessian maps records to the release.

The given coefficients are the minimiser if a Newton step would not change them; otherwise the
formula for the leakage does not apply.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from seepage.core.noise import Noise
from seepage.errors import InputError, NotConvergedWarning, NotTheMinimiserError
from seepage.glm.fitting.newton import separated, weak_penalty_clause
from seepage.glm.fitting.objective import (
    Asked,
    CholeskyFactor,
    FittedGLM,
    Objective,
    PenalisedLoss,
    Sums,
    check_columns,
    cholesky_factor,
    damped_factor,
    far_centre,
    gauge_fixed,
    norm,
    sums_at,
    uncentred,
    wide,
)
from seepage.glm.jacobian.twice_precise import (
    SingularCurvatureError,
    free_parameters,
    precise_curvature,
    precise_margins,
    precise_optimum,
    precise_slope,
    refined,
    settled,
    singular,
    slopes_by_gradient,
    whitened_precisely,
)
from seepage.glm.losses import Categorical
from seepage.support.chunks import small_on_one_core
from seepage.support.double_double import EPS, Double
from seepage.tables.source import Array, Chunk

_MOST_STEPS = 30  # near the minimiser each doubles the digits; rounding may take a few more
CHEAP = 1e6  # multiplications up to which more precision and closer errors hardly cost anything
UNLIKE = 1e4  # above this ratio one number nearly hides another
_KEEP_DIGITS = ("gaussian", "bernoulli")  # families whose slopes have all digits if the margins do

# The largest Newton step still to go, relative to the coefficients, that is refused.
# scikit-learn's LogisticRegression at its default tolerance ends at 9e-4 to 9e-3 on standardised
# iris, wine, breast-cancer and digits data. There a C off by 10 % gives 2e-2 to 3e-2, one wrong
# label 4e-2 to 4e-1, half the records 3e-1; but one left out 1e-9 to 2e-3: a warning at most.
_REFUSE = 1e-2
# What tells whether a model is at its minimiser, and whether its columns are far from zero
_JUDGED: Asked = ("hessian", "squares", "extent")


def about(fit: FittedGLM, loss: PenalisedLoss | None, chunk: Chunk) -> FittedGLM:
    """Return the model with a chunk's labels and weights; unchanged for a table in memory."""
    if loss is None:
        return fit
    return replace(fit, target=loss.targets(chunk), sample_weight=chunk.weight)


@dataclass(frozen=True)
class Optimum:
    """The minimiser of a model's objective, and the inverse curvature at the minimiser.

    The inverse, and the parameters for the shifted columns, are in double the working precision if
    necessary.
    """

    fit: FittedGLM  # the model at the minimiser, in the caller's columns
    near: FittedGLM  # the same in columns less their centre
    low: Array | None  # the digits of their parameters beyond the ordinary ones
    centre: Array | None  # what was subtracted, (d,)
    inverse: Array | Double  # ``H⁻¹`` of the shifted columns, (P, P)
    condition: float  # κ, that of ``H`` scaled to a unit diagonal
    accuracy: float  # the relative error of ``H⁻¹x̃``
    # How far unit errors of the curvatures, relative to them, move ``H⁻¹``; where that is cheap
    moves: Array | None = None

    def derivatives(
        self, fit: FittedGLM, X: Array, every: bool
    ) -> tuple[Callable[[slice | Array], tuple[Array, Array, Array]], int, Array | None]:
        """Return the derivatives of shifted rows, the size of a label, and the slopes' error.

        The derivatives are a function of rows that returns weighted ``r (m, K)``, ``a (m, K, K)``
        and ``b (m, K, L)``. ``fit`` contains the labels and weights of the rows; ``every`` is true
        if these are all rows. With several outputs, the error is ``None``, which stands for
        rounding.
        """
        low = self.low
        margins = self.near.margins(X) if low is None else precise_margins(self.near, X, low)
        if not isinstance(fit.family, Categorical):
            r, a, b, error = self._of_one_output(fit, X, margins, every)
            return lambda rows: (r[rows, None], a[rows, None, None], b[rows, None, None]), 1, error
        family, y, weight = fit.family, fit.target, fit.sample_weight
        exact = margins if isinstance(margins, Double) else None
        plain = margins.high if isinstance(margins, Double) else margins

        def some(rows: slice | Array) -> tuple[Array, Array, Array]:
            M, Y = plain[rows, :], y[rows, :]
            r, a, b = family.slope(M, Y), family.curvature(M, Y), family.label_slope(M, Y)
            if exact is not None:
                a = precise_curvature(family, exact[rows, :], Y)
                r = r + (a @ exact.low[rows, :, None])[:, :, 0]
            if weight is not None:
                w = weight[rows]
                r, a, b = w[:, None] * r, w[:, None, None] * a, w[:, None, None] * b
            return r, a, b

        return some, plain.shape[1] - 1, None

    def _of_one_output(
        self, fit: FittedGLM, X: Array, m: Array | Double, every: bool
    ) -> tuple[Array, Array, Array, Array]:
        """Return weighted ``r``, ``a``, ``b`` of shifted rows with one output, and r's error."""
        low = None
        family, y = fit.family, fit.target
        if isinstance(m, Double):
            r, a = precise_slope(family, m, y).high, precise_curvature(family, m, y)
            m, low = m
        else:
            r, a = family.slope(m, y), family.curvature(m, y)
        xp, b = array_namespace(m), family.label_slope(m, y)
        lost = EPS * xp.abs(r)
        kept = family.name in _KEEP_DIGITS or (low is not None and family.name == "poisson")
        if not kept:
            lost = lost + EPS * a  # the loss in the family's own formula
        off = a * _margin_error(self.near, X, m, y)
        if low is not None:
            off = 2.0**-28 * off  # margins in twice the precision
            if family.name in _KEEP_DIGITS:  # a slope that cannot be told from zero leaks nothing
                off = xp.where(xp.abs(r) > off, off, xp.zeros_like(off))
        lost = lost + off
        if fit.label_unit is not None:
            b = b * fit.label_unit
        if fit.sample_weight is not None:
            w = fit.sample_weight
            r, a, b, lost = w * r, w * a, w * b, w * lost
        if every and low is not None and not kept:
            by_gradient = slopes_by_gradient(self.near, X)
            if by_gradient is not None:
                better = by_gradient[1] < lost
                r = xp.where(better, by_gradient[0], r)
                lost = xp.where(better, by_gradient[1], lost)
        return r, a, b, lost


def optimum(fit: FittedGLM, objective: Objective, noise: Noise, on_mismatch: str) -> Optimum:
    """Find the minimiser near the coefficients of a fitted model, in float64.

    If the coefficients are not near a minimiser, a :class:`NotTheMinimiserError` is raised or, with
    ``on_mismatch="warn"``, they are used unchanged, with a warning. An error is also raised if the
    data have no unique minimiser to working precision.
    """
    sums = objective.at(fit.parameters, _JUDGED, "Hessian")
    fit, objective, centre, sums = _centred(fit, objective, sums)
    if fit.ridge == 0:  # with a penalty, the minimiser is unique
        check_columns(objective, sums.hessian, sums.counted, fit.feature_names)
    H = gauge_fixed(sums.hessian, objective.family)
    factor = cholesky_factor(H)
    step = judge_stationarity(fit, sums, H, on_mismatch, factor)
    near = step <= _REFUSE
    length = math.inf if step > 1e-13 else 0.0  # below, a step is only rounding
    # Ordinary Newton's steps, until they no longer shrink
    for _ in range(_MOST_STEPS if near else 0):
        if factor is None:
            break
        move = factor.solve(array_namespace(H).reshape(sums.gradient, (-1,)))
        before, length = length, math.sqrt(max(float(move @ (H @ move)), 0.0))
        if not length < before / 2:
            break
        fit = fit.at(fit.parameters - array_namespace(H).reshape(move, fit.parameters.shape))
        sums = objective.at(fit.parameters, ("hessian",), "polish")
        H = gauge_fixed(sums.hessian, objective.family)
        factor = cholesky_factor(H)
    try:
        return _weighed(fit, objective, centre, H, factor, noise, rows=sums.counted, polish=near)
    except SingularCurvatureError as error:
        if not separated(objective):
            raise
        raise InputError(
            "The Hessian of the objective is singular to working precision: "
            f"{weak_penalty_clause(objective)}."
        ) from error


def plain_optimum(fit: FittedGLM, X: Array, sums: Sums | None = None) -> Optimum:
    """Return the optimum of a model known to be the minimiser, without checks.

    ``sums`` are the sums over the records without the penalty, if already computed. The function
    uses ordinary floating-point arithmetic.
    """
    objective = Objective.of(fit, X)
    if sums is None:
        sums = objective.at(fit.parameters, ("hessian", "extent"), "Hessian")
    else:
        sums = objective.with_penalty(sums)
    fit, _, centre, sums = _centred(fit, objective, sums)
    H = gauge_fixed(sums.hessian, objective.family)
    inverse, condition = _inverse(H, cholesky_factor(H), fit.ridge)
    accuracy = EPS * (16 * condition + condition**2 / 8)
    back = fit if centre is None else fit.at(uncentred(fit.parameters, wide(centre)))
    return Optimum(back, fit, None, centre, inverse, condition, accuracy)


def _centred(
    fit: FittedGLM, objective: Objective, sums: Sums
) -> tuple[FittedGLM, Objective, Array | None, Sums]:
    """Return the model, objective and sums with columns shifted near zero, and the shifts."""
    extent = sums.extent
    centre = None if extent is None else far_centre(extent.least, extent.most)
    if centre is None:
        return fit, objective, None, sums
    objective = objective.less(centre)
    xp = array_namespace(fit.coef)
    free: Array = fit.intercept
    free = free + xp.reshape(wide(centre) @ fit.coef, free.shape)
    # The intercept is solved for again: where a column is far from zero, rounding has left little
    # of it.
    for _ in range(_MOST_STEPS):
        fit = replace(fit, intercept=free)
        sums = objective.at(fit.parameters, ("hessian", "squares"), "Hessian")
        K = free_parameters(fit)
        curve = sums.hessian[-K:, -K:]
        if K > 1:  # along the gauge nothing changes: any positive amount makes it definite
            curve = curve + xp.mean(xp.linalg.diagonal(curve))
        slope = xp.reshape(sums.gradient[-1, ...], (-1, 1))
        move = xp.reshape(xp.linalg.solve(curve, slope)[:, 0], free.shape)
        if float(xp.max(xp.abs(move))) <= 4 * EPS * (1 + float(xp.max(xp.abs(free)))):
            break
        free = free - move
    return fit, objective, centre, sums


def _weighed(
    fit: FittedGLM,
    objective: Objective,
    centre: Array | None,
    H: Array,
    factor: CholeskyFactor | None,
    noise: Noise,
    *,
    rows: int,
    polish: bool,
) -> Optimum:
    """Invert the Hessian with the precision required by its condition number and the noise."""
    inverse, condition = _inverse(H, factor, fit.ridge)
    cost = float(rows) * H.shape[0] ** 2
    cheap, affordable = cost <= CHEAP, cost <= 200 * CHEAP
    low: Array | None = None
    exact: Array | Double = inverse
    told: Any = {"outputs": math.prod(fit.coef.shape[1:]), "noise": noise, "centre": centre}
    # Ordinary arithmetic loses half of the digits at 1e7.
    if condition > (300.0 if affordable else 1e7) or (
        cheap and condition * whitened(inverse, 0.0, **told).amplified > 100
    ):
        fit, low, exact, accuracy = precise_optimum(
            fit, objective, inverse, condition, polish=polish
        )
    else:
        # Rounding of the Hessian, and of an inverse that was not refined.
        accuracy = EPS * 16 * condition
        if condition > 3e3:
            exact = refined(Double.of(H), inverse, condition, fit.ridge)[0].high
        else:
            accuracy += EPS * condition**2 / 8
        lost = partial(_residuals_lost, fit=fit)
        polish = polish and affordable and not isinstance(fit.family, Categorical)
        if polish and objective.total(lost, "residuals"):
            fit, low, _ = settled(fit, objective, Double.of(exact))
    back = fit if centre is None else fit.at(uncentred(fit.parameters, wide(centre)))
    found = Optimum(back, fit, low, centre, exact, condition, accuracy)
    if not cheap or fit.family.name == "gaussian":  # whose curvatures are not rounded
        return found
    inverse = exact.high if isinstance(exact, Double) else exact
    moves = objective.total(partial(_moves, fit=fit, inverse=inverse), "errors")
    return replace(found, moves=moves)


def _inverse(H: Array, factor: CholeskyFactor | None, ridge: float) -> tuple[Array, float]:
    """Return ``H⁻¹`` and the condition number, or raise an error if H is numerically singular."""
    if factor is None:
        raise singular(math.inf, ridge)
    inverse, xp, condition = factor.inverse(), array_namespace(H), 1.0
    sizes = xp.sqrt(xp.linalg.diagonal(H))
    start = np.random.default_rng(0).standard_normal(H.shape[0])
    # The largest eigenvalue of either matrix, scaled to a unit diagonal, by power iteration: the
    # condition number may be larger.
    with small_on_one_core(H):
        for matrix, scale in ((H, 1 / sizes), (inverse, sizes)):
            v = xp.asarray(start, dtype=H.dtype, device=device(H))
            size = 0.0
            for _ in range(16):
                v = scale * (matrix @ (scale * v))
                size = math.sqrt(float(v @ v))
                v = v / size if size > 0 else v
            condition *= size
    if not condition < 1 / EPS:
        raise singular(condition, ridge)
    return inverse, condition


def _residuals_lost(part: Objective, fit: FittedGLM) -> int:
    """Count the records whose residual is affected by rounding of the margin."""
    family, y = fit.family, part.target
    margins = fit.margins(part.X)
    xp = array_namespace(margins)
    error = family.curvature(margins, y) * _margin_error(fit, part.X, margins, y)
    lost = error > 1e-10 * xp.abs(family.slope(margins, y))
    if part.sample_weight is not None:
        lost = lost & (part.sample_weight > 0)
    return int(xp.sum(xp.astype(lost, xp.int64)))


def _margin_error(fit: FittedGLM, X: Array, margins: Array, target: Array) -> Array:
    """Return approximate rounding errors of each margin and label."""
    xp = array_namespace(margins)
    reach = float(xp.max(xp.abs(wide(X)), axis=0) @ xp.abs(fit.coef)) if X.shape[0] <= 4096 else 0.0
    return 4 * EPS * (xp.abs(margins) + xp.abs(target) + reach)


def _moves(part: Objective, fit: FittedGLM, inverse: Array) -> Array:
    """Bound the change of ``H⁻¹u`` for unit relative errors of the curvatures, of shape (P, Q).

    ``H⁻¹ΔH H⁻¹u`` is a sum over the records; the absolute values of its terms are added. With one
    output, ``u`` contains the features, and Q = D. With several outputs, only differences of
    outputs have curvature, and the records' slopes are such differences. The sum then also runs
    over pairs of outputs, and ``u`` contains the differences of all pairs for every feature, so Q =
    D·K·K.
    """
    margins, part = fit.margins(part.X), replace(part, X=wide(part.X))
    xp = array_namespace(margins)
    curvature = xp.abs(part.weighted(fit.family.curvature(margins, part.target)))
    if len(curvature.shape) == 1:
        seen = xp.abs(part.margins(inverse))  # ``X̃ H⁻¹``
        return seen.T @ (curvature[:, None] * seen)
    K = curvature.shape[1]
    blocks = xp.reshape(inverse, (-1, K, inverse.shape[0]))
    total: Array = 0.0
    for j in range(K):
        for k in range(j + 1, K):
            seen = part.margins(blocks[:, j, :] - blocks[:, k, :])
            by_class = xp.reshape(seen, (seen.shape[0], -1, K))
            pairs = xp.abs(by_class[:, :, :, None] - by_class[:, :, None, :])
            pairs = xp.reshape(pairs, (seen.shape[0], -1))
            total = total + xp.abs(seen).T @ (curvature[:, j, k, None] * pairs)
    return total


# From the curvature to the release ----------------------------------------------------------------


@dataclass(frozen=True)
class Whitener:
    """The map to the release, ``x̃ ↦ A x̃``, with ``A = Φ^½ T⁻¹ H⁻¹`` of shape (P, P).

    In the order of the parameters, the output varies fastest. If columns were shifted by a centre
    ``c``, ``x̃`` contains the shifted columns, and ``T⁻¹`` maps the parameters back to the caller's
    columns. With ``T = [[I, 0], [cᵀ, 1]]`` the rows are ``x̃ = Tᵀx̃_c`` and the Hessian is ``H =
    TᵀH_cT``. So ``H⁻¹x̃ = T⁻¹H_c⁻¹x̃_c``, and the data columns do not change, since ``T⁻ᵀe_j =
    e_j``.

    Rounding errors of the records' curvatures change ``A x̃`` by about ``ε spread √(x̃ᵀH⁻¹x̃)``,
    and the column of a feature by ``ε spread`` times its deviation; see :func:`_deviations`.
    """

    matrix: Array  # ``A``, in the type of the table
    # The digits of ``A`` beyond these, where the curvature is so ill-conditioned that ``A x̃`` would
    # drown in the rounding of ``A``
    low: Array | None
    accuracy: float  # the relative error of ``A x̃``
    condition: float = 1.0  # that of the curvature
    # The factor by which the errors of products may grow, because the noise or the units make small
    # numbers of the release count
    amplified: float = 1.0
    spread: float = 0.0
    deviations: Array | None = None  # of the features and the intercept, (D,)
    # How far unit errors of the slopes, beside the roots of their curvatures, move each coefficient
    coefficient_deviations: Array | None = None  # at most, (D,)
    # Those of differences of two outputs at every feature, where they are known, (D, K, K)
    pairs: Array | None = None

    @cached_property
    def deviation(self) -> float:
        """The Euclidean norm of all deviations."""
        return 0.0 if self.deviations is None else norm(self.deviations)


def whitener_of(optimum: Optimum, noise: Noise) -> Whitener:
    """Return the whitener of a release with added noise."""
    fit = optimum.fit
    outputs = math.prod(fit.coef.shape[1:])
    centre, moved = optimum.centre, optimum.moves
    whitener = whitened(
        optimum.inverse, optimum.accuracy, outputs=outputs, noise=noise, centre=centre
    )
    lost = 0.0
    if whitener.low is None:  # what ordinary products ``A x̃`` lose
        lost = 4 * EPS * optimum.condition * whitener.amplified
    # The curvatures of least squares are not rounded.
    spread = 0.0 if fit.family.name == "gaussian" else whitener.spread
    deviations = bounded = _deviations(optimum)
    pairs: Array | None = None
    if moved is not None and spread > 0:
        xp = array_namespace(moved)
        if centre is not None:
            by_feature = xp.reshape(moved, (-1, outputs * moved.shape[1]))
            moved = xp.reshape(uncentred(by_feature, -xp.abs(wide(centre))), moved.shape)
        root = noise.root(moved.shape[0])
        placed = xp.abs(xp.asarray(root, dtype=moved.dtype, device=moved.device))
        moved = placed @ moved if root.ndim == 2 else moved * xp.reshape(placed, (-1, 1))
        # How far unit errors of the curvatures move ``A u``, (Q,): see :func:`_moves`
        moved = xp.sqrt(xp.sum(moved**2, axis=0)) / spread
        if outputs == 1:
            bounded = xp.minimum(deviations, moved)
        else:
            pairs = xp.reshape(moved, (-1, outputs, outputs))
    return replace(
        whitener,
        accuracy=whitener.accuracy + lost,
        condition=optimum.condition,
        spread=spread,
        deviations=bounded,
        coefficient_deviations=deviations,
        pairs=pairs,
    )


def whitened(
    inverse: Array | Double,
    accuracy: float,
    *,
    outputs: int,
    noise: Noise,
    centre: Array | None = None,
) -> Whitener:
    """Whiten ``H⁻¹`` by the noise; ``H⁻¹`` is known to the given accuracy.

    The errors of ``H⁻¹x̃`` are proportional to the largest released numbers, while ``A x̃`` of a
    record may be as small as the smallest number. These numbers differ because of the noise and the
    units. Also, the terms of the intercept for shifted columns, ``w₀ − cᵀw``, may cancel; they are
    then large relative to their sum. The relative error grows with the ratio of the largest to the
    smallest number, up to ``UNLIKE``; an inverse in double the working precision is not affected.
    """
    high = inverse.high if isinstance(inverse, Double) else inverse
    xp = array_namespace(high)
    root = noise.root(high.shape[0])
    placed = xp.asarray(root, dtype=high.dtype, device=high.device)
    columns = xp.sqrt(xp.sum(placed * placed, axis=0)) if root.ndim == 2 else xp.abs(placed)
    sizes = xp.sqrt(xp.linalg.diagonal(high))
    smallest = float(xp.min(sizes * columns))
    if centre is not None:
        kept = centre.shape[0] * outputs
        shift = xp.sum(xp.abs(centre) * xp.reshape(sizes[:kept], (-1, outputs))[:, 0])
        sizes = xp.concat([sizes[:kept], sizes[kept:] + shift])
    seen = sizes * columns
    amplified = min(float(xp.max(seen)) / smallest, UNLIKE)
    if not isinstance(inverse, Double):
        accuracy = accuracy * amplified
    if root.ndim == 2:
        skewed = _condition(root)
        amplified, accuracy = amplified * skewed, (accuracy + 8 * EPS) * skewed
    if isinstance(inverse, Double) or centre is not None or root.ndim == 2:
        raw = inverse if isinstance(inverse, Double) else Double.of(high)
        raw = whitened_precisely(raw, placed, centre, outputs)
        matrix, low = raw.high, raw.low if isinstance(inverse, Double) else None
    else:
        matrix, low = high * (placed if root.ndim == 0 else placed[:, None]), None
    return Whitener(
        matrix,
        low,
        accuracy,
        amplified=min(amplified, UNLIKE),
        spread=math.sqrt(float(xp.sum(seen * seen))),
    )


def whitened_inverse(H: Array, noise: Noise) -> Array:
    """Return ``Φ^½ H⁻¹`` of a positive definite matrix by ordinary arithmetic, (P, P)."""
    inverse, _ = _inverse(H, cholesky_factor(H), ridge=0.0)
    return whitened(inverse, 0.0, outputs=1, noise=noise).matrix


def _deviations(optimum: Optimum) -> Array:
    """Return ``√(vᵀH'v)`` with ``v = H⁻¹u``, for unit changes ``u`` of every feature, (D,).

    ``H'`` is the part of ``H`` that the records contribute. The penalty has no rounding error: if
    the penalty alone determines a coefficient, errors of the curvatures have no effect. So ``vᵀH'v
    = uᵀH⁻¹u − nλ‖v‖²``, where the norm excludes the intercept's part of ``v``. With several
    outputs, the slopes and ``u`` sum to zero over the outputs; the squares are added.
    """
    inverse, fit = optimum.inverse, optimum.fit
    high = inverse.high if isinstance(inverse, Double) else inverse
    xp = array_namespace(high)
    sizes = xp.linalg.diagonal(high)
    if len(fit.coef.shape) == 2:
        blocks = xp.reshape(high, (high.shape[0], -1, fit.coef.shape[1]))
        high = xp.reshape(blocks - xp.mean(blocks, axis=2)[:, :, None], high.shape)
    kept = high[: math.prod(fit.coef.shape), :]
    squares = xp.linalg.diagonal(high) - fit.ridge * xp.vecdot(kept, kept, axis=0)
    # A difference is known only up to rounding.
    squares = xp.where(squares > 0, squares, xp.zeros_like(squares)) + optimum.accuracy * sizes
    if len(fit.coef.shape) == 2:
        squares = xp.sum(xp.reshape(squares, (-1, fit.coef.shape[1])), axis=1)
    return xp.sqrt(squares)


def _condition(root: np.ndarray) -> float:
    """Return the condition number of a matrix after scaling its columns to equal length."""
    sizes = np.sqrt((root**2).sum(axis=0))
    values = np.linalg.svd(root / sizes, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf


# Whether a model is at its minimiser --------------------------------------------------------------


def check_stationarity(
    fit: FittedGLM, X: Array, on_mismatch: str = "raise", *, hessian: Array | None = None
) -> float:
    """Return the relative length of a Newton step; warn or raise an error unless it is negligible.

    The leakage is computed from the derivative of the minimiser with respect to the data, so the
    formula applies only at the minimiser. The step ``s = H⁻¹g`` is compared with the coefficients w
    in the norm of the Hessian, ``√(sᵀHs / wᵀHw)``. This norm measures changes of the margins, and
    does not depend on the units of the columns. An intercept is projected out of wᵀHw, since its
    size depends on the origin of the columns. If the coefficients are nearly zero, the step is
    compared instead with the step for residuals of random sign. Above 1e-5, a
    :class:`NotConvergedWarning` is issued; above 1e-2, a :class:`NotTheMinimiserError` is raised
    instead, unless ``on_mismatch`` is ``"warn"``. The Hessian at the coefficients may be passed, if
    already computed (for softmax, made definite by
    :func:`~seepage.glm.fitting.objective.gauge_fixed`).
    """
    objective = Objective.of(fit, X)
    sums = objective.at(fit.parameters, _JUDGED)
    H = gauge_fixed(sums.hessian, objective.family) if hessian is None else hessian
    return judge_stationarity(fit, sums, H, on_mismatch)


def judge_stationarity(
    fit: FittedGLM,
    sums: Sums,
    H: Array,
    on_mismatch: str,
    factor: CholeskyFactor | None = None,
) -> float:
    """Return the result of :func:`check_stationarity`, computed from sums over the records.

    Callers that already have the sums use this function; they may also pass the Hessian and its
    factor.
    """
    if on_mismatch not in ("raise", "warn"):
        raise InputError(f"on_mismatch must be 'raise' or 'warn', not {on_mismatch!r}.")
    gradient = sums.gradient
    xp = array_namespace(gradient)
    factor = factor or cholesky_factor(H) or damped_factor(H)
    g = xp.reshape(gradient, (-1,))
    step = math.sqrt(max(float(xp.sum(g * factor.solve(g))), 0.0))
    # √(wᵀHw), the spread of the margins, with the intercept projected out
    w = xp.reshape(fit.coef, (-1,))
    kept = w.shape[0]
    image = H[:, :kept] @ w
    square = float(xp.sum(w * image[:kept]))
    if fit.intercept is not None:
        shift = image[kept:]
        square -= float(xp.sum(shift * xp.linalg.solve(H[kept:, kept:], shift[:, None])[:, 0]))
    # Coefficients may be zero (nothing to learn); the step is then compared with the one that
    # residuals of random sign would give.
    random_step = math.sqrt(sums.squares * H.shape[0] / float(xp.sum(xp.linalg.diagonal(H))))
    scale = max(math.sqrt(max(square, 0.0)), random_step)
    relative = step / scale if scale > 0 else step
    if relative <= 1e-5:
        return relative
    finding = (
        f"the gradient has norm {norm(gradient):.2g}, and a Newton step would still change the "
        f"coefficients by {relative:.2g} of their size (in the norm of the Hessian)"
    )
    if relative <= _REFUSE:
        _warn(
            f"The coefficients are near the minimiser but have not converged: {finding}. The "
            "leakage is for the exact minimiser; to release the minimiser, refit with a tighter "
            "tol."
        )
    elif on_mismatch == "warn":
        _warn(
            f"The coefficients do not minimise the stated objective: {finding}. The leakage is "
            "computed at these coefficients, where its formula does not apply; refine the fit with "
            "sp.refine."
        )
    else:
        raise NotTheMinimiserError(
            f"The coefficients do not minimise the stated objective on these data: {finding}. "
            "Either the data, the penalty or the sample weights differ from those of the fit, or "
            "the fit did not converge. Pass the data of the fit (with sample_weight=), refit with "
            "a tighter tol, refine the fit with sp.refine, or ignore the mismatch with "
            'on_mismatch="warn".'
        )
    return relative


def _warn(message: str) -> None:
    warnings.warn(message, NotConvergedWarning, stacklevel=4)


def optimum_sums(fit: FittedGLM, X: Array) -> Sums:
    """Return the sums over a table that :func:`plain_optimum` requires, without the penalty."""
    return sums_at(Objective.of(fit, X), fit.parameters, ("hessian", "extent"))
