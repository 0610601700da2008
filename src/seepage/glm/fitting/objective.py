"""The objective of a GLM on one table: its value, gradient, Hessian and whatever else a fit needs.

The answers a minimiser needs (:meth:`Objective.at` and the methods after it) can be summed over
tables: :class:`~seepage.glm.fitting.streamed.StreamedObjective` does so over chunks of a source.

Hessians are summed over chunks of rows that never copy the whole table. A chunk's Gram matrix is
written ``S.T @ S`` with ``S = √weight · X``: one array on both sides lets BLAS compute one triangle
only, close to half the cost of a general product. Factorisations are computed where the arrays
live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import scipy.linalg
from array_api_compat import array_namespace, device, is_numpy_array

from seepage.errors import InputError
from seepage.glm.fitting.balance import ClassBalance
from seepage.glm.losses import Categorical, Family
from seepage.support.chunks import even_slices, row_slices, small_on_one_core, spread
from seepage.tables.source import Array, Table, place_like

Answer = TypeVar("Answer")

_UNLIKE = 1024.0  # how far from one the size of a column must be for columns to be scaled


@dataclass(frozen=True)
class FittedGLM:
    """A generalized linear model and the objective its coefficients are meant to minimise.

    The objective, with ``ωᵢ`` the sample weights (paper 001, equation 13, weighted)::

        Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (ridge/2) ‖w‖² + tiltᵀw        (w₀ is not penalised)
    """

    # The loss: a :class:`Family` of one margin, or :class:`Categorical` with ``outputs`` of them
    family: Family | Categorical
    # ``w``, (d,); for :class:`Categorical` ``W``, (d, K). In float64, in the library and on the
    # device of the table.
    coef: Array
    intercept: Array | None  # ``w₀``, a 0-d array, or (K,); ``None`` when the model has none
    ridge: float  # ``nλ``, with n the number of records
    sample_weight: Array | None  # ``ω``, (n,), class weights included; ``None`` when all are one
    # The labels as numbers: (n,), 0 and 1 for two classes whatever they were called; one-hot, (n,
    # K), for :class:`Categorical`
    target: Array
    feature_names: tuple[str, ...]  # one per column
    # The slope of a linear term of the objective, (d,): an L1 penalty whose signs are known
    tilt: Array | None = None
    # How far ``target`` moves for one unit of the caller's label, (n,); ``None`` where that is one
    label_unit: Array | None = None
    # How the weights follow from the sizes of the classes, where they do
    balance: ClassBalance | None = None

    @classmethod
    def on(
        cls,
        table: Table,
        family: Family | Categorical,
        target: Array,
        weights: Array | None,
        *,
        coef: Any,
        intercept: Any,
        ridge: float,
        tilt: Any = None,
        label_unit: Any = None,
        balance: ClassBalance | None = None,
    ) -> FittedGLM:
        """Return a description with everything on the table's device.

        For ``Categorical`` the coefficients are (K, d), as in scikit-learn; otherwise (d,) or
        (1, d).
        """
        w = place_like(coef, table.values)
        free = None if intercept is None else place_like(intercept, table.values)
        if isinstance(family, Categorical):
            w = w.T
        else:
            family.check_labels(target)
            xp = array_namespace(w)
            w = xp.reshape(w, (-1,))
            free = None if free is None else xp.reshape(free, ())
        placed = [None if v is None else place_like(v, table.values) for v in (tilt, label_unit)]
        known = (family, w, free, float(ridge), weights, target, table.names, *placed)
        return replace(cls(*known), balance=balance)

    def margins(self, X: Array) -> Array:
        """Return ``Xw + w₀``: (n,), or (n, K) for :class:`Categorical`."""
        M = X @ self.coef
        return M if self.intercept is None else M + self.intercept

    @property
    def parameters(self) -> Array:
        """The released parameters in one array, intercept last: (D,), or (D, K)."""
        if self.intercept is None:
            return self.coef
        xp = array_namespace(self.coef)
        last = xp.reshape(self.intercept, (1, *self.coef.shape[1:]))
        return xp.concat([self.coef, last], axis=0)

    def at(self, theta: Array) -> FittedGLM:
        """Return the model with other parameters."""
        if self.intercept is None:
            return replace(self, coef=theta)
        xp = array_namespace(theta)
        last = xp.reshape(theta[-1, ...], self.intercept.shape)
        return replace(self, coef=theta[:-1, ...], intercept=last)


@dataclass(frozen=True)
class Objective:
    """``F(θ) = Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (ridge/2) ‖w‖²`` (paper 001, equation 13, weighted).

    The parameters ``θ`` are (D,) for a :class:`Family` and (D, K) for :class:`Categorical`, with
    D = d, or d + 1 with the intercept in the last row.
    """

    X: Array
    family: Family | Categorical
    target: Array
    sample_weight: Array | None
    ridge: float
    intercept: bool
    units: Array | None = None
    """One unit of each column in the caller's units: the penalty is on ``w/units``."""
    tilt: Array | None = None
    """The slope of a linear term ``tiltᵀw``, in the caller's units; see :class:`FittedGLM`."""

    rereads: ClassVar[bool] = False
    """Whether every question takes a new pass over the data, so that few are asked."""

    @classmethod
    def of(cls, fit: FittedGLM, X: Array) -> Objective:
        """Return the objective that a fitted model is meant to minimise on ``X``."""
        return cls(
            X,
            fit.family,
            fit.target,
            fit.sample_weight,
            fit.ridge,
            fit.intercept is not None,
            tilt=fit.tilt,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters."""
        return parameter_shape(self.X.shape[1], self.family, self.intercept)

    @property
    def counted(self) -> int:
        """The number of records of positive weight."""
        weight = self.sample_weight
        if weight is None:
            return int(self.X.shape[0])
        xp = array_namespace(weight)
        return int(xp.sum(xp.astype(weight > 0, xp.int64)))

    def zeros(self) -> Array:
        """Return parameters that are all zero."""
        xp = array_namespace(self.X)
        return xp.zeros(self.shape, dtype=self.X.dtype, device=device(self.X))

    def margins(self, theta: Array) -> Array:
        """Return ``Xw + w₀``, (n,) or (n, K)."""
        d = self.X.shape[1]
        M = self.X @ theta[:d, ...]
        return M + theta[d, ...] if self.intercept else M

    def value(self, theta: Array, margins: Array) -> float:
        """Return the objective at ``theta``, whose margins are given."""
        xp = array_namespace(margins)
        losses = self.weighted(self.family.loss(margins, self.target))
        w = self._in_callers_units(theta)
        along = 0.0 if self.tilt is None else float(xp.sum(self.tilt * w))
        return float(xp.sum(losses)) + 0.5 * self.ridge * float(xp.sum(w * w)) + along

    def slopes(self, margins: Array) -> Array:
        """Return ``ωᵢ ∂ℓᵢ/∂m``, (n,) or (n, K)."""
        return self.weighted(self.family.slope(margins, self.target))

    def gradient(self, theta: Array, slopes: Array) -> Array:
        """Return the gradient, of the shape of ``theta``, from the slopes at ``theta``."""
        xp = array_namespace(slopes)
        w = self._in_callers_units(self._in_callers_units(theta))
        g = self.X.T @ slopes + self.ridge * w
        if self.tilt is not None:
            g = g + (self.tilt if self.units is None else self.tilt / self.units)
        return xp.concat([g, xp.sum(slopes, axis=0)[None, ...]], axis=0) if self.intercept else g

    def gradient_scale(self, theta: Array, slopes: Array) -> float:
        """Return ``Σᵢ |ωᵢ rᵢ| ‖xᵢ‖ + ridge ‖w‖``: the terms that cancel in the gradient."""
        w = self._in_callers_units(self._in_callers_units(theta))
        return self._absolute_sum(slopes) + self.ridge * norm(w)

    def label_scale(self) -> float:
        """Return ``Σᵢ ωᵢ |yᵢ| ‖xᵢ‖``: the scale of rounding where a fit is perfect."""
        return self._absolute_sum(self.weighted(self.target))

    def hessian(self, margins: Array) -> Array:
        """Return the Hessian, (P, P); for softmax it is singular along unpenalised gauges."""
        curvature = self.weighted(self.family.curvature(margins, self.target))
        ridge = self.ridge if self.units is None else self.ridge / self.units**2
        return hessian(self.X, curvature, ridge=ridge, intercept=self.intercept)

    def definite(self, H: Array) -> Array:
        """Return ``H`` made definite along softmax's gauge; Newton's step stays the same."""
        return gauge_fixed(H, self.family.outputs) if isinstance(self.family, Categorical) else H

    @cached_property
    def row_norms(self) -> Array:
        """``‖xᵢ‖`` of every row, the intercept's 1 included."""
        xp = array_namespace(self.X)
        squares = [
            xp.vecdot(self.X[rows, :], self.X[rows, :]) for rows in row_chunks(*self.X.shape)
        ]
        return xp.sqrt(xp.concat(squares) + float(self.intercept))

    def at(self, theta: Array, hessian: bool = True) -> NewtonSums:
        """Return what Newton's method needs at some parameters."""
        # Poisson's exp may overflow during a line search; infinity is then rejected.
        with np.errstate(over="ignore", invalid="ignore"):
            margins = self.margins(theta)
            slopes = self.slopes(margins)
            return NewtonSums(
                theta,
                self.counted,
                self.value(theta, margins),
                self.gradient(theta, slopes),
                self.hessian(margins) if hessian else None,
                self.gradient_scale(theta, slopes),
                self.label_scale(),
                self._gain_range(margins, counts=False)[0],
                float(array_namespace(theta).max(self.row_norms)) if len(slopes) else 0.0,
            )

    def gradient_at(self, theta: Array) -> Array:
        """Return the gradient alone."""
        return self.gradient(theta, self.slopes(self.margins(theta)))

    def quadratic(self) -> tuple[Array, Array, int]:
        """Return what least squares needs: Hessian, gradient at zero, and number of records."""
        return self.hessian(self.target), self.gradient_at(self.zeros()), self.counted

    def gains(self, step: Array) -> tuple[float, float]:
        """Return how far a step moves records towards the side where their losses fall for ever.

        The minimum and maximum over the records of positive weight (and rival classes); ∞ and −∞
        without records, and for a family whose losses have no such side.
        """
        return self._gain_range(self.margins(step), counts=True)

    def refined(self, theta: Array, factor: CholeskyFactor) -> Array:
        """Return the solution of least squares after a step of iterative refinement."""
        return theta - factor.solve(self.gradient_at(theta))

    def on_table(self) -> Objective | None:
        """Return the objective itself: it is one on a table."""
        return self

    def conditioned(self) -> tuple[Objective, Coordinates]:
        """Return the objective in coordinates that suit it; itself if its own do."""
        X = self.X
        xp = array_namespace(X)
        least, most = xp.min(X, axis=0), xp.max(X, axis=0)
        centre = far_centre(least, most) if self.intercept else None
        near = X
        if centre is not None:
            near, least, most = X - centre[None, :], least - centre, most - centre
        sizes = xp.maximum(xp.abs(least), xp.abs(most))
        sizes = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
        units = None
        if float(xp.max(sizes)) > _UNLIKE or float(xp.min(sizes)) < 1 / _UNLIKE:
            units = 2.0 ** xp.round(xp.log2(sizes))
            near = near / units[None, :]
        if near is X:
            return self, Coordinates()
        return replace(self, X=near, units=units), Coordinates(centre, units)

    def near_zero(self, H: Array) -> None:
        """Return nothing: columns far from zero were shifted when it was conditioned."""

    def constant_columns(self) -> Array:
        """Say for every column whether it is constant over the records of positive weight."""
        least, most = self.column_range()
        return least == most

    def column_range(self) -> tuple[Array, Array]:
        """Return every column's minimum and maximum over records of positive weight, (d,) each."""
        xp = array_namespace(self.X)
        counted = self.X if self.sample_weight is None else self.X[self.sample_weight > 0, :]
        if counted.shape[0] == 0:
            none = xp.full((self.X.shape[1],), math.inf, dtype=self.X.dtype, device=device(self.X))
            return none, -none
        return xp.min(counted, axis=0), xp.max(counted, axis=0)

    def triangle(self, labels: bool) -> Array:
        """Return the R of the QR factorisation of ``√ω [x, 1, y]``, or without the labels.

        Without labels only which records have positive weight matters, not how much.
        """
        return stacked_r(self._bordered_rows(labels))

    def _bordered_rows(self, labels: bool) -> Iterator[Array]:
        xp = array_namespace(self.X)
        for rows in row_chunks(*self.X.shape):
            block = self.X[rows, :]
            parts = [block]
            if self.intercept:
                parts.append(xp.ones_like(block[:, :1]))
            if labels:
                parts.append(self.target[rows, None])
            block = xp.concat(parts, axis=1)
            if self.sample_weight is not None:
                weight = self.sample_weight[rows]
                block = block * xp.sqrt(weight)[:, None] if labels else block[weight > 0, :]
            yield block

    def _gain_range(self, margins: Array, counts: bool) -> tuple[float, float]:
        xp = array_namespace(margins)
        y = self.target
        if isinstance(self.family, Categorical):
            own = xp.sum(margins * y, axis=1)[:, None]
            gains = xp.where(y > 0, xp.max(own - margins, axis=1)[:, None], own - margins)
        elif self.family.name == "bernoulli":
            gains = (2.0 * y - 1.0) * margins
        elif self.family.name == "poisson" and counts:
            # exp(m) − y m falls for ever only towards m = −∞, and only where y = 0.
            gains = xp.where(y == 0, -margins, -xp.abs(margins))
        else:
            return math.inf, -math.inf
        if self.sample_weight is not None:
            gains = gains[self.sample_weight > 0, ...]
        if gains.shape[0] == 0:
            return math.inf, -math.inf
        return float(xp.min(gains)), float(xp.max(gains))

    def _in_callers_units(self, theta: Array) -> Array:
        """Return the coefficients divided by the units of their columns."""
        w = theta[: self.X.shape[1], ...]
        if self.units is None:
            return w
        return w / array_namespace(w).reshape(self.units, (-1, *(1,) * (len(w.shape) - 1)))

    def _absolute_sum(self, values: Array) -> float:
        """Return ``Σᵢ |vᵢ| ‖xᵢ‖``."""
        xp = array_namespace(values)
        sizes = xp.abs(values) if len(values.shape) == 1 else xp.sum(xp.abs(values), axis=1)
        return float(xp.sum(sizes * self.row_norms))

    def weighted(self, values: Array) -> Array:
        """Return per-record numbers times the records' weights."""
        if self.sample_weight is None:
            return values
        xp = array_namespace(values)
        ones = (1,) * (len(values.shape) - 1)
        return values * xp.reshape(self.sample_weight, (-1, *ones))


@dataclass(frozen=True)
class NewtonSums:
    """What a step of Newton's method needs from some records at given parameters."""

    theta: Array
    counted: int  # records of positive weight
    value: float
    gradient: Array
    hessian: Array  # or None if it was not asked for
    gradient_scale: float
    label_scale: float
    least_gain: float  # a lower bound on how far the worst record lies on its own class's side
    largest_norm: float  # of a row

    def __add__(self, other: NewtonSums) -> NewtonSums:
        return NewtonSums(
            self.theta,
            self.counted + other.counted,
            self.value + other.value,
            self.gradient + other.gradient,
            None if self.hessian is None else self.hessian + other.hessian,
            self.gradient_scale + other.gradient_scale,
            self.label_scale + other.label_scale,
            min(self.least_gain, other.least_gain),
            max(self.largest_norm, other.largest_norm),
        )


def parameter_shape(
    features: int, family: Family | Categorical, intercept: bool
) -> tuple[int, ...]:
    """Return the shape of a model's parameters, (D,) or (D, K)."""
    D = features + intercept
    return (D, family.outputs) if isinstance(family, Categorical) else (D,)


def norm(values: Array) -> float:
    """Return the Euclidean norm of an array of any shape."""
    return math.sqrt(float(array_namespace(values).sum(values * values)))


# Hessians ---------------------------------------------------------------------------------------


def row_chunks(n: int, d: int) -> Iterator[slice]:
    """Cut n rows of d entries into slices for summing d×d matrices.

    Each chunk costs d² outside BLAS (mirroring a triangle, adding it up), which only a few
    thousand rows amortise; narrow tables take more rows, to spare the interpreter.
    """
    return row_slices(n, d, chunk=_chunk_of(d))


def _chunk_of(d: int) -> int:
    # 2¹⁸ numbers stay in a processor's cache between scaling and multiplying.
    return max(4096 * d, 1 << 18)


def over_chunks(function: Callable[[slice], Answer], X: Array) -> Iterator[Answer]:
    """Yield a function's answers on chunks of rows; of a large table by several cores at a time."""
    n, d = X.shape
    if not is_numpy_array(X) or n * d <= 1 << 21:
        return map(function, row_chunks(n, d))
    pieces = even_slices(n, d, chunk=_chunk_of(d))
    return spread(function, pieces) if len(pieces) > 1 else map(function, pieces)


def weighted_gram(X: Array, weights: Array) -> Array:
    """Return ``Σᵢ weightᵢ xᵢ xᵢᵀ``, (d, d), for weights of any sign."""
    xp = array_namespace(X)
    one_sign = 1.0 if bool(xp.all(weights >= 0)) else -1.0 if bool(xp.all(weights <= 0)) else 0.0
    factors = xp.sqrt(one_sign * weights) if one_sign else weights

    def part(rows: slice) -> Array:
        scaled = X[rows, :] * factors[rows, None]
        return scaled.T @ (scaled if one_sign else X[rows, :])

    grams = over_chunks(part, X)
    total = next(grams, None)
    if total is None:  # of no rows
        return xp.zeros((X.shape[1], X.shape[1]), dtype=X.dtype, device=device(X))
    for gram in grams:
        total += gram
    return -total if one_sign < 0 else total


def bordered_gram(X: Array, weights: Array, intercept: bool) -> Array:
    """Return the weighted Gram matrix of ``[X, 1]``, or of ``X`` without an intercept."""
    gram = weighted_gram(X, weights)
    if not intercept:
        return gram
    xp = array_namespace(X)
    border = X.T @ weights
    top = xp.concat([gram, border[:, None]], axis=1)
    bottom = xp.concat([border, xp.reshape(xp.sum(weights), (1,))])
    return xp.concat([top, bottom[None, :]], axis=0)


def hessian(X: Array, curvature: Array, *, ridge: float | Array, intercept: bool) -> Array:
    """Return ``H = Σᵢ x̃ᵢ x̃ᵢᵀ ⊗ Aᵢ + ridge·I``, the Hessian of a GLM objective, (P, P).

    ``Aᵢ`` is the curvature of every record's loss times its weight: (n,) for one output; for
    softmax (n, K, K), ``ωᵢ (diag π − ππᵀ)``. ``ridge = nλ`` is the coefficient of ``½‖w‖²``, or one
    for each column, (d,), where their penalties differ. With an intercept ``x`` is extended by a
    last entry 1, whose parameters are not penalised. The feature is the slow index, the class the
    fast one. For softmax H is singular along gauge directions (the same vector added to the
    parameters of every class) that are not penalised; :func:`gauge_fixed` makes it definite.
    """
    if len(curvature.shape) == 1:
        return penalised(bordered_gram(X, curvature, intercept), ridge, int(intercept))
    xp = array_namespace(X)
    classes = curvature.shape[1]
    D = X.shape[1] + intercept
    blocks = xp.zeros((D, classes, D, classes), dtype=X.dtype, device=device(X))
    for j in range(classes):
        for k in range(j, classes):
            block = bordered_gram(X, curvature[:, j, k], intercept)
            blocks[:, j, :, k] = block
            blocks[:, k, :, j] = block
    return penalised(
        xp.reshape(blocks, (D * classes, D * classes)), ridge, classes if intercept else 0
    )


def penalised(H: Array, ridge: float | Array, free: int) -> Array:
    """Return ``H + ridge·I``, except for the last ``free`` parameters: the intercepts."""
    if isinstance(ridge, int | float) and not ridge:
        return H
    xp = array_namespace(H)
    penalty = xp.zeros((H.shape[0],), dtype=H.dtype, device=device(H))
    kept = H.shape[0] - free
    if isinstance(ridge, int | float):
        penalty[:kept] = ridge
    else:
        penalty[:kept] = xp.repeat(ridge, kept // ridge.shape[0])
    out, diagonal = xp.asarray(H, copy=True), xp.arange(H.shape[0], device=device(H))
    out[diagonal, diagonal] += penalty
    return out


def gauge_fixed(H: Array, classes: int) -> Array:
    """Return ``H + diag(c) ⊗ 11ᵀ/K``, definite along the gauge directions of softmax as well.

    The loss does not change when one vector is added to the parameters of every class, so its
    gradients, and their derivatives by the data, sum to zero over the classes. For such right-hand
    sides the solution is the same for every ``c > 0``; taking for each feature the mean of its own
    diagonal of ``H`` preserves the condition number, whatever the units of the features.
    """
    xp = array_namespace(H)
    size = H.shape[0]
    scale = xp.mean(xp.reshape(xp.linalg.diagonal(H), (-1, classes)), axis=1)
    blocks = xp.reshape(xp.asarray(H, copy=True), (size // classes, classes, -1, classes))
    for feature in range(size // classes):
        blocks[feature, :, feature, :] += scale[feature] / classes
    return xp.reshape(blocks, (size, size))


# Factorisations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CholeskyFactor:
    """The lower triangular ``L`` of ``H = D LLᵀ D``, with ``D²`` the diagonal of ``H``.

    Scaled to a unit diagonal, a matrix does not depend on the units of its rows.
    """

    lower: Array
    sizes: Array  # those of D

    def solve(self, right: Array) -> Array:
        """Return ``H⁻¹ right`` for a vector or for the columns of a matrix."""
        L, sizes = self.lower, self.sizes[:, None]
        columns = (right if len(right.shape) == 2 else right[:, None]) / sizes
        if is_numpy_array(L):
            full = scipy.linalg.cho_solve((L, True), columns, check_finite=False)
        else:
            xp = array_namespace(L)
            # The standard has no triangular solve, but torch's namespace carries one.
            half = xp.linalg.solve_triangular(L, columns, upper=False)
            full = xp.linalg.solve_triangular(L.T, half, upper=True)
        full = full / sizes
        return full if len(right.shape) == 2 else full[:, 0]

    def inverse(self) -> Array:
        """Return ``H⁻¹``, symmetric."""
        xp = array_namespace(self.lower)
        if not is_numpy_array(self.lower):
            full = self.solve(
                xp.eye(self.lower.shape[0], dtype=self.lower.dtype, device=device(self.lower))
            )
            return (full + full.T) / 2
        with small_on_one_core(self.lower):
            half, _ = scipy.linalg.lapack.dpotri(self.lower.T)
        half[np.diag_indices(half.shape[0])] /= 2
        return (half + half.T) / (self.sizes[:, None] * self.sizes[None, :])

    @property
    def smallest_pivot(self) -> float:
        """The smallest squared pivot of the scaled matrix: 1 for orthogonal columns."""
        xp = array_namespace(self.lower)
        return float(xp.min(xp.linalg.diagonal(self.lower))) ** 2


def cholesky_factor(H: Array) -> CholeskyFactor | None:
    """Return the Cholesky factor of ``H``, or ``None`` where ``H`` is not positive definite."""
    xp = array_namespace(H)
    sizes = _sizes(H)
    try:
        with small_on_one_core(H):
            lower = xp.linalg.cholesky(H / (sizes[:, None] * sizes[None, :]))
    except (ValueError, RuntimeError) as error:
        # NumPy's LinAlgError is a ValueError, torch's a RuntimeError.
        if type(error).__name__.strip("_") != "LinAlgError":
            raise
        return None
    # Some factorisations pass NaN through without complaint.
    return CholeskyFactor(lower, sizes) if bool(xp.isfinite(xp.sum(lower))) else None


def damped_factor(H: Array) -> CholeskyFactor:
    """Return the factor of ``H``, or of ``H + τD²`` for the first τ that makes it definite."""
    xp = array_namespace(H)
    squares = xp.eye(H.shape[0], dtype=H.dtype, device=device(H)) * _sizes(H)[None, :] ** 2
    damping = 0.0
    for _ in range(20):
        factor = cholesky_factor(H + damping * squares if damping else H)
        if factor is not None:
            return factor
        damping = 10.0 * damping if damping else 1e-14
    raise FloatingPointError("the Hessian holds values that are not finite")


def _sizes(H: Array) -> Array:
    """Return the roots of the diagonal, or one where it is zero."""
    xp = array_namespace(H)
    diagonal = xp.linalg.diagonal(H)
    return xp.sqrt(xp.where(diagonal > 0, diagonal, xp.ones_like(diagonal)))


def stacked_r(blocks: Iterable[Array]) -> Array:
    """Return the R of the QR factorisation of the stacked blocks.

    Each block is stacked under the R so far and factorised again (sequential TSQR: Demmel, Grigori,
    Hoemmen and Langou, 2012), which is as stable as one QR of the whole and holds one block only.
    """
    R: Array = None
    for block in blocks:
        xp = array_namespace(block)
        stack = block if R is None else xp.concat([R, block], axis=0)
        R = xp.linalg.qr(stack, mode="reduced")[1]
    return R


# Coordinates ------------------------------------------------------------------------------------
#
# With an intercept, a model of ``x`` is one of ``x − c`` with another intercept, ``w₀ + wᵀc``; and
# the units of a column are arbitrary. A column far from zero (a time stamp, a serial number) nearly
# repeats the intercept, and columns of very different sizes hide one another's gradients: a table
# with such columns is first shifted and scaled, and the parameters are transformed back at the end.
# Where a column is far from zero the subtraction is free of rounding (Sterbenz), and sizes are
# powers of two: nothing is lost.


@dataclass(frozen=True)
class Coordinates:
    """``x' = (x − centre)/units``, column by column; ``None`` where nothing changes."""

    centre: Array | None = None
    units: Array | None = None

    def into(self, theta: Array) -> Array:
        """Return parameters of the caller's columns as those of the shifted and scaled ones."""
        xp = array_namespace(theta)
        w, last = theta, None
        if self.centre is not None:
            w, last = theta[:-1, ...], theta[-1:, ...] + self.centre[None, :] @ theta[:-1, ...]
        elif self.units is not None:
            d = self.units.shape[0]
            w, last = theta[:d, ...], theta[d:, ...]
        if self.units is not None:
            w = w * _column(self.units, w)
        return w if last is None else xp.concat([w, xp.reshape(last, (-1, *w.shape[1:]))], axis=0)

    def back(self, theta: Array) -> Array:
        """Return parameters of the shifted and scaled columns as those of the caller's."""
        if self.units is not None:
            xp = array_namespace(theta)
            d = self.units.shape[0]
            w = theta[:d, ...] / _column(self.units, theta)
            theta = xp.concat([w, theta[d:, ...]], axis=0)
        return uncentred(theta, self.centre)


def far_centre(least: Array, most: Array) -> Array | None:
    """Return what to subtract from columns of this range; zero for those near zero.

    ``None`` if all are near zero.
    """
    xp = array_namespace(least)
    middle = (least + most) / 2
    far = xp.abs(middle) > 16 * (most - least) / 2
    return xp.where(far, middle, xp.zeros_like(middle)) if bool(xp.any(far)) else None


def uncentred(theta: Array, centre: Array | None) -> Array:
    """Return parameters of columns less their centre as those of the columns: ``w₀ − wᵀc``."""
    if centre is None:
        return theta
    xp = array_namespace(theta)
    w, last = theta[:-1, ...], theta[-1:, ...]
    shift = xp.reshape(centre[None, :] @ w, last.shape)
    return xp.concat([w, last - shift], axis=0)


def _column(values: Array, like: Array) -> Array:
    return array_namespace(values).reshape(values, (-1, *(1,) * (len(like.shape) - 1)))


# Linearly dependent columns ---------------------------------------------------------------------


class PenalisedColumns(Protocol):
    """What an objective over a table, or over chunks of one, tells about its columns."""

    @property
    def family(self) -> Family | Categorical:
        """The loss."""

    @property
    def ridge(self) -> float:
        """``nλ``."""

    @property
    def intercept(self) -> bool:
        """Whether there is an intercept."""

    def constant_columns(self) -> Array:
        """Say for every column whether it is constant over the records of positive weight."""

    def triangle(self, labels: bool) -> Array:
        """Return the R of the QR factorisation of ``√ω [x, 1, y]``, or without the labels."""


def check_columns(
    objective: PenalisedColumns, H: Array, counted: int, names: tuple[str, ...]
) -> None:
    """Raise an :class:`InputError` naming the columns that depend linearly on one another.

    With a penalty the minimiser is unique anyway, and nothing is checked. ``H`` is the Hessian at
    any parameters (not gauge-fixed), which is singular if the columns are dependent; ``counted`` is
    the number of records of positive weight.
    """
    if objective.ridge > 0:
        return
    xp = array_namespace(H)
    # Each diagonal block of softmax's Hessian is a Gram matrix with positive weights.
    step = objective.family.outputs if isinstance(objective.family, Categorical) else 1
    gram = H[::step, ::step]
    P = gram.shape[0]
    sizes = xp.sqrt(xp.linalg.diagonal(gram))
    remedy = "drop it or set l2 to a positive number."
    if bool(xp.any(sizes == 0)):
        name = names[int(xp.argmin(sizes))]
        if objective.intercept:  # by which the column has been shifted
            raise _constant(name, remedy)
        raise InputError(
            f"Column {name!r} is constant (all zeros), so without L2 its coefficient is not "
            f"determined; {remedy}"
        )
    factor = cholesky_factor(gram) if counted >= P else None
    # Cholesky of the correlation-like Gram matrix loses half the digits: a smallest squared pivot
    # above 1e-7 proves independence, one below it only calls for the slower QR.
    if factor is not None and factor.smallest_pivot > 1e-7:
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
    """Return the columns involved in a dependence, from the null space of the unit columns."""
    xp = array_namespace(R)
    unit = R / xp.sqrt(xp.sum(R * R, axis=0))[None, :]
    _, singular, Vt = xp.linalg.svd(unit)
    # Beyond a million rows rounding errors no longer add up.
    tolerance = 10 * max(min(rows, 10**6), R.shape[1]) * float(xp.finfo(R.dtype).eps)
    null = Vt[singular <= tolerance * singular[0], :]
    if null.shape[0] == 0:
        return []
    part = xp.sqrt(xp.sum(null * null, axis=0))
    return [j for j in range(part.shape[0]) if float(part[j]) > 1e-6]  # else rounding


def _listed(columns: list[int], names: tuple[str, ...]) -> str:
    shown = [repr(names[j]) if j < len(names) else "the intercept" for j in columns]
    if len(shown) > 8:
        return f"Columns {', '.join(shown[:7])} and {len(shown) - 7} more"
    return f"Columns {', '.join(shown[:-1])} and {shown[-1]}"
