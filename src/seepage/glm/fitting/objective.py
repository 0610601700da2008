"""The objective of a GLM: its value, gradient, Hessian and other sums over records.

The records are a table, or chunks read from a source; a fit requires only sums over them.

Hessians are summed over chunks of rows, without copying the whole table. A chunk's Gram matrix is
computed as ``S.T @ S`` with ``S = √weight · X``. Since both operands are the same array, BLAS
computes only one triangle, at almost half the cost of a general product. Factorisations are
computed on the arrays' device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, Literal, TypeVar, cast

import numpy as np
import scipy.linalg
from array_api_compat import array_namespace, device, is_numpy_array

from seepage.errors import InputError
from seepage.glm.fitting.balance import ClassBalance
from seepage.glm.losses import Categorical, Family, class_positions, class_targets
from seepage.support.chunks import (
    by_rows,
    chunk_for,
    even_slices,
    row_slices,
    small_on_one_core,
    spread,
)
from seepage.tables.source import Array, Chunk, RowSource, Table, place_like

Answer = TypeVar("Answer")
# What may be asked of a pass beside the gradient; each costs something.
Asked = tuple[Literal["hessian", "value", "scales", "gain", "squares", "extent"], ...]
STEP: Asked = ("hessian", "value", "scales", "gain")  # all that a step of Newton's method needs

PERFECT_FIT = 1e-4  # the share of the labels below which residuals set no scale
_UNLIKE = 1024.0  # how far from one the size of a column must be for columns to be scaled


@dataclass(frozen=True)
class FittedGLM:
    """A generalised linear model and the objective that its coefficients should minimise.

    The objective, with sample weights ``ωᵢ``, is (Hannun et al. 2021, equation 13, weighted)::

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
        """Return a description with all arrays on the table's device.

        For ``Categorical`` the coefficients have shape (K, d), as in scikit-learn; otherwise (d,)
        or (1, d).
        """
        w = place_like(coef, table.values)
        free = None if intercept is None else place_like(intercept, table.values)
        if isinstance(family, Categorical):
            w = w.T
        else:
            xp = array_namespace(w)
            w = xp.reshape(w, (-1,))
            free = None if free is None else xp.reshape(free, ())
        placed = [None if v is None else place_like(v, table.values) for v in (tilt, label_unit)]
        known = (family, w, free, float(ridge), weights, target, table.names, *placed)
        return replace(cls(*known), balance=balance)

    def margins(self, X: Array) -> Array:
        """Return ``Xw + w₀`` in float64, of shape (n,), or (n, K) for :class:`Categorical`."""
        threads, chunk = is_numpy_array(X), chunk_for(X)

        def some(rows: slice) -> Array:
            M = wide(X[rows, :]) @ self.coef
            return M if self.intercept is None else M + self.intercept

        return by_rows(some, *X.shape, chunk=chunk, threads=threads)

    def design(self, X: Array) -> Array:
        """Return ``x̃`` for every row in float64, with a 1 appended for an intercept."""
        X = wide(X)
        if self.intercept is None:
            return X
        xp = array_namespace(X)
        return xp.concat([X, xp.ones_like(X[:, :1])], axis=1)

    @property
    def parameters(self) -> Array:
        """The released parameters as one array, with the intercept last: (D,) or (D, K)."""
        if self.intercept is None:
            return self.coef
        xp = array_namespace(self.coef)
        last = xp.reshape(self.intercept, (1, *self.coef.shape[1:]))
        return xp.concat([self.coef, last], axis=0)

    def at(self, theta: Array) -> FittedGLM:
        """Return the model with different parameters."""
        if self.intercept is None:
            return replace(self, coef=theta)
        xp = array_namespace(theta)
        last = xp.reshape(theta[-1, ...], self.intercept.shape)
        return replace(self, coef=theta[:-1, ...], intercept=last)


@dataclass(frozen=True)
class PenalisedLoss:
    """The objective without its records; :meth:`targets` reads the labels of a chunk."""

    family: Family | Categorical  # the loss
    # The classes that the labels stand for, sorted; ``None`` where labels are numbers
    classes: np.ndarray | None
    ridge: float  # ``nλ``
    intercept: bool  # whether there is an intercept
    features: int  # the number of columns

    def targets(self, chunk: Chunk) -> Array:
        """Return the labels as numbers, (m,), or one-hot for :class:`Categorical`."""
        if self.classes is None:
            if chunk.y.dtype.kind == "O":
                raise InputError(
                    "The labels are text, but a regression requires numbers; fit a classifier, or "
                    "pass numeric labels."
                )
            numbers = np.asarray(chunk.y, dtype=float)
            self.family.check_labels(numbers)  # type: ignore[union-attr]
            return numbers
        return class_targets(class_positions(chunk.y, self.classes, chunk.start), self.family)


def read_penalty(l2: Any, n: int) -> float:
    """Return ``nλ`` for a finite, non-negative ``l2``."""
    if not isinstance(l2, (int, float, np.integer, np.floating)) or isinstance(l2, bool):
        raise InputError(f"l2 must be a number, not {l2!r}.")
    if not 0 <= l2 < float("inf"):
        raise InputError(f"l2 must be finite and at least 0, but it is {l2!r}.")
    return n * float(l2)


@dataclass(frozen=True)
class Objective:
    """The objective ``F(θ) = Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (ridge/2) ‖w‖²``.

    The formula is equation 13 of Hannun et al. 2021, with sample weights.

    The parameters ``θ`` have shape (D,) for a :class:`Family` and (D, K) for :class:`Categorical`.
    D is d, or d + 1 with the intercept in the last row.

    The records are a table, or chunks read from a source. A fit requires sums over the records
    (:meth:`total`), for which a table is one chunk. Per-record values exist for tables only.
    """

    X: Array  # the features, (n, d), or the source, whose chunks have labels and weights too
    family: Family | Categorical
    # The labels as numbers; of a source, the :class:`PenalisedLoss` that reads those of a chunk
    target: Array
    sample_weight: Array | None
    ridge: float
    intercept: bool
    # One unit of each column in the caller's units: the penalty is on ``w/units``
    units: Array | None = None
    # The slope of a linear term ``tiltᵀw``, in the caller's units; see :class:`FittedGLM`
    tilt: Array | None = None

    @classmethod
    def of(cls, fit: FittedGLM, X: Array) -> Objective:
        """Return the objective that a fitted model should minimise on a table."""
        free, weight = fit.intercept is not None, fit.sample_weight
        return cls(X, fit.family, fit.target, weight, fit.ridge, free, tilt=fit.tilt)

    @classmethod
    def over(cls, source: RowSource, loss: PenalisedLoss) -> Objective:
        """Return the objective for all records of a source."""
        return cls(source, loss.family, loss, None, loss.ridge, loss.intercept)

    @property
    def table(self) -> Array | None:
        """The features of all records, or ``None`` if they are read from a source."""
        return None if isinstance(self.X, RowSource) else self.X

    @property
    def rereads(self) -> bool:
        """Whether each sum requires a new pass over the data, so that sums should be few."""
        return self.table is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters, (D,) or (D, K)."""
        D = (self.target.features if self.table is None else self.X.shape[1]) + self.intercept
        return (D, self.family.outputs) if isinstance(self.family, Categorical) else (D,)

    def zeros(self) -> Array:
        """Return parameters that are all zero."""
        if self.table is None:
            return np.zeros(self.shape)
        xp = array_namespace(self.X)
        return xp.zeros(self.shape, dtype=self.X.dtype, device=device(self.X))

    # Records of a table ---------------------------------------------------------------------------

    def margins(self, theta: Array) -> Array:
        """Return ``Xw + w₀``, of shape (n,) or (n, K)."""
        d = self.X.shape[1]
        M = self.X @ theta[:d, ...]
        return M + theta[d, ...] if self.intercept else M

    def weighted(self, values: Array) -> Array:
        """Return per-record numbers multiplied by the records' weights."""
        if self.sample_weight is None:
            return values
        xp = array_namespace(values)
        ones = (1,) * (len(values.shape) - 1)
        return values * xp.reshape(self.sample_weight, (-1, *ones))

    def hessian(self, margins: Array) -> Array:
        """Return the Hessian, (P, P); it is singular for softmax with unpenalised parameters."""
        curvature = self.weighted(self.family.curvature(margins, self.target))
        ridge = self.ridge if self.units is None else self.ridge / self.units**2
        return hessian(self.X, curvature, ridge=ridge, intercept=self.intercept)

    def gain_range(self, margins: Array, counts: bool = True) -> tuple[float, float]:
        """Return the range of signed margins, positive where the loss decreases without end.

        The result is the minimum and maximum over the records of positive weight (and rival
        classes). The minimum is ∞ and the maximum −∞ if there are no records, or if the family's
        losses never decrease without end. With ``counts=False``, the result for Poisson losses is
        (∞, −∞) too.
        """
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

    # Sums over all records ------------------------------------------------------------------------

    def total(self, function: Callable[[Objective], Answer], what: str) -> Answer:
        """Return the sum of a function over the chunks' objectives; a table is one chunk.

        The function must leave out the penalty, and must be picklable, so that it can run on other
        machines.
        """
        if not isinstance(self.X, RowSource):
            return function(self)
        ask = partial(_of_chunk, loss=self.target, function=function)
        answer: Answer = self.X.total(ask, what)
        return answer

    def at(self, theta: Array, asked: Asked = STEP, what: str = "fit") -> Sums:
        """Return the gradient and other requested sums at these parameters, in one pass."""
        return self.with_penalty(self.total(partial(sums_at, theta=theta, asked=asked), what))

    def with_penalty(self, sums: Sums) -> Sums:
        """Return sums over all records, including the penalty and the linear term."""
        xp, H = array_namespace(sums.theta), sums.hessian
        w = sums.theta[:-1, ...] if self.intercept else sums.theta
        free = math.prod(w.shape[1:]) if self.intercept else 0
        ridge, tilt = self.ridge, self.tilt
        if self.units is not None:
            ridge = self.ridge / self.units**2
            tilt = None if tilt is None else tilt / self.units
        pull = w * (ridge if self.units is None else _column(ridge, w))
        value, scale = sums.value + 0.5 * float(xp.sum(w * pull)), norm(pull)
        if tilt is not None:
            value, pull = value + float(xp.sum(tilt * w)), pull + tilt
        if self.intercept:
            pull = xp.concat([pull, xp.zeros_like(sums.theta[-1:, ...])], axis=0)
        return replace(
            sums,
            value=value,
            gradient=sums.gradient + pull,
            hessian=None if H is None else penalised(H, ridge, free),
            gradient_scale=sums.gradient_scale + scale,
        )

    def gradient_at(self, theta: Array) -> Array:
        """Return the gradient alone."""
        return self.at(theta, ()).gradient

    def gains(self, step: Array) -> tuple[float, float]:
        """Return the smallest and largest gain of a record's signed margin due to a step.

        See :meth:`gain_range`.
        """
        extent = self.total(partial(_gains, step=step), "looking for separable classes")
        return float(extent.least), float(extent.most)

    def column_range(self, what: str = "looking for constant columns") -> tuple[Array, Array]:
        """Return each column's minimum and maximum over records of positive weight, (d,) each."""
        extent = self.total(_column_range, what)
        return extent.least, extent.most

    def triangle(self, labels: bool) -> Array:
        """Return the R factor of the QR of ``√ω [x, 1, y]``, with or without the labels.

        Without labels, every record with positive weight has weight one.
        """
        what = "fit by QR" if labels else "looking for dependent columns"
        return self.total(partial(_triangle, labels=labels), what).R

    # Coordinates ----------------------------------------------------------------------------------

    def conditioned(self) -> tuple[Objective, Coordinates]:
        """Return the objective in well-conditioned coordinates, and the map to these coordinates.

        Columns of a source are never scaled. They are shifted only after a pass has computed their
        moments; see :meth:`near_zero`.
        """
        X = self.table
        if X is None:
            return self, Coordinates()
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

    def near_zero(self, H: Array) -> tuple[Objective, Coordinates] | None:
        """Return a source's objective with columns far from zero shifted, and the shift.

        Return ``None`` if there are no such columns. The moments in a Hessian show whether there
        may be such columns; only then does a pass over the source look for them. Columns of a table
        are shifted by :meth:`conditioned`.
        """
        if self.table is not None or not self.intercept:
            return None
        step = math.prod(self.shape[1:])
        gram = H[::step, ::step]
        means, squares = gram[-1, :-1] / gram[-1, -1], np.diagonal(gram)[:-1] - self.ridge
        # A column may be far off if nearly all of its squares are due to its mean.
        if not np.any(means**2 * gram[-1, -1] > 0.98 * squares):
            return None
        centre = far_centre(*self.column_range("looking for columns far from zero"))
        if centre is None:
            return None
        return self.less(centre), Coordinates(centre)

    def less(self, centre: Array) -> Objective:
        """Return the objective for the records minus a centre for each column."""
        X = self.table
        return replace(self, X=self.X.less(centre) if X is None else X - centre[None, :])


def _of_chunk(chunk: Chunk, loss: PenalisedLoss, function: Callable[[Objective], Answer]) -> Answer:
    target = loss.targets(chunk)
    return function(Objective(chunk.X, loss.family, target, chunk.weight, 0.0, loss.intercept))


# Sums over records --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Sums over records at given parameters; a sum that is not requested keeps its default value.

    Parameters
    ----------
    theta
        The parameters.
    counted
        The number of records with positive weight.
    gradient, hessian, value
        The gradient, Hessian and value of the objective.
    gradient_scale, label_scale
        ``Σᵢ |ωᵢ rᵢ| ‖x̃ᵢ‖ + ridge ‖w‖``, the total size of the gradient's terms, which may cancel;
        and ``Σᵢ ωᵢ |yᵢ| ‖x̃ᵢ‖``, the scale of rounding errors for a perfect fit.
    largest_norm
        The largest norm of a row.
    least_gain
        The smallest margin by which a record lies on the side of its own class; negative if a
        record lies on the wrong side.
    squares
        ``Σ (ω r ‖x̃‖)²``, plus a small multiple of ``Σ (ω y ‖x̃‖)²``, which matters only for
        perfect fits.
    extent
        The smallest and largest value of each column, if the model has an intercept that can
        absorb a shift.
    """

    theta: Array
    counted: int
    gradient: Array
    hessian: Array = None
    value: float = 0.0
    gradient_scale: float = 0.0
    label_scale: float = 0.0
    largest_norm: float = 0.0
    least_gain: float = math.inf
    squares: float = 0.0
    extent: Extent | None = None

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.theta,
            self.counted + other.counted,
            self.gradient + other.gradient,
            None if self.hessian is None else self.hessian + other.hessian,
            self.value + other.value,
            self.gradient_scale + other.gradient_scale,
            self.label_scale + other.label_scale,
            max(self.largest_norm, other.largest_norm),
            min(self.least_gain, other.least_gain),
            self.squares + other.squares,
            None if self.extent is None else self.extent + cast(Extent, other.extent),
        )


def sums_at(part: Objective, theta: Array, asked: Asked) -> Sums:
    """Return the sums over a table, without the penalty, in float64.

    Single-precision numbers are converted to float64 piece by piece. With one output, the pieces
    fit in the processor's cache and their Hessians are small.
    """
    X = part.X
    some = partial(_sums_of_rows, part, theta, asked)
    if not X.shape[0]:
        return some(slice(0, 0))
    if is_numpy_array(X) and len(theta.shape) == 1:
        return reduce(add, over_chunks(some, X))
    if X.dtype == array_namespace(X).float64:
        return some(slice(0, X.shape[0]))
    return reduce(add, map(some, row_slices(*X.shape, chunk=1 << 22)))


def _sums_of_rows(part: Objective, theta: Array, asked: Asked, rows: slice) -> Sums:
    xp = array_namespace(part.X)
    X = wide(part.X[rows, :])
    y, weight = part.target[rows, ...], part.sample_weight
    weight = None if weight is None else weight[rows]
    some = Objective(X, part.family, y, weight, 0.0, part.intercept)
    more: dict[str, Any] = {}
    # Poisson's exp may overflow during a line search; infinity is then rejected.
    with np.errstate(over="ignore", invalid="ignore"):
        margins = some.margins(theta)
        slopes = some.weighted(some.family.slope(margins, y))
        if "hessian" in asked:
            curvature = some.weighted(some.family.curvature(margins, y))
            more["hessian"] = hessian(X, curvature, ridge=0.0, intercept=part.intercept)
        if "value" in asked:
            more["value"] = float(xp.sum(some.weighted(some.family.loss(margins, y))))
        if "gain" in asked:
            more["least_gain"] = some.gain_range(margins, counts=False)[0]
        if "scales" in asked or "squares" in asked:
            lengths = xp.sqrt(xp.vecdot(X, X) + float(part.intercept))
            lengths = lengths if len(slopes.shape) == 1 else lengths[:, None]
            sizes, labels = slopes * lengths, some.weighted(y) * lengths
            if "squares" in asked:
                more["squares"] = norm(sizes) ** 2 + norm(PERFECT_FIT * labels) ** 2
            if "scales" in asked:
                more["gradient_scale"] = float(xp.sum(xp.abs(sizes)))
                more["label_scale"] = float(xp.sum(xp.abs(labels)))
                more["largest_norm"] = float(xp.max(lengths)) if X.shape[0] else 0.0
        if "extent" in asked and part.intercept:
            own = part.X[rows, :]
            more["extent"] = Extent(xp.min(own, axis=0), xp.max(own, axis=0))
        gradient = X.T @ slopes
        if part.intercept:
            gradient = xp.concat([gradient, xp.sum(slopes, axis=0)[None, ...]], axis=0)
    counted = X.shape[0] if weight is None else int(xp.sum(xp.astype(weight > 0, xp.int64)))
    return Sums(theta, counted, gradient, **more)


@dataclass(frozen=True)
class Extent:
    """The elementwise minimum and maximum over records."""

    least: Array
    most: Array

    def __add__(self, other: Extent) -> Extent:
        xp = array_namespace(self.least)
        return Extent(xp.minimum(self.least, other.least), xp.maximum(self.most, other.most))


def _gains(part: Objective, step: Array) -> Extent:
    return Extent(*map(np.asarray, part.gain_range(part.margins(step))))


def _column_range(part: Objective) -> Extent:
    X, xp = part.X, array_namespace(part.X)
    counted = X if part.sample_weight is None else X[part.sample_weight > 0, :]
    if counted.shape[0] == 0:
        none = xp.full((X.shape[1],), math.inf, dtype=X.dtype, device=device(X))
        return Extent(none, -none)
    return Extent(xp.min(counted, axis=0), xp.max(counted, axis=0))


@dataclass(frozen=True)
class _Triangle:
    """The R factor of the QR factorisation of some rows; two R factors can be combined."""

    R: Array

    def __add__(self, other: _Triangle) -> _Triangle:
        return _Triangle(stacked_r([self.R, other.R]))


def _triangle(part: Objective, labels: bool) -> _Triangle:
    xp = array_namespace(part.X)

    def bordered(rows: slice) -> Array:
        block = part.X[rows, :]
        parts = [block]
        if part.intercept:
            parts.append(xp.ones_like(block[:, :1]))
        if labels:
            parts.append(part.target[rows, None])
        block = xp.concat(parts, axis=1)
        if part.sample_weight is None:
            return block
        weight = part.sample_weight[rows]
        return block * xp.sqrt(weight)[:, None] if labels else block[weight > 0, :]

    return _Triangle(stacked_r(over_chunks(bordered, part.X)))


def wide(values: Array) -> Array:
    """Return numbers in float64, without a copy if they already have this type."""
    xp = array_namespace(values)
    return xp.astype(values, xp.float64, copy=False)


def norm(values: Array) -> float:
    """Return the Euclidean norm of an array of any shape."""
    return math.sqrt(float(array_namespace(values).sum(values * values)))


# Hessians ---------------------------------------------------------------------------------------


def over_chunks(function: Callable[[slice], Answer], X: Array) -> Iterator[Answer]:
    """Yield a function's results for chunks of rows, on several cores for a large table.

    Chunks are used for sums of d×d matrices. Each chunk costs d² operations outside BLAS (mirroring
    and adding a triangle), which is negligible only for chunks of a few thousand rows or more.
    Chunks of narrow tables have more rows, to reduce interpreter overhead.
    """
    n, d = X.shape
    chunk = max(4096 * d, 1 << 18)  # 2¹⁸ numbers stay in a processor's cache between two uses
    if 0 < n * d <= chunk:
        return map(function, [slice(0, n)])
    if not is_numpy_array(X) or n * d <= 1 << 21:
        return map(function, row_slices(n, d, chunk=chunk))
    pieces = even_slices(n, d, chunk=chunk)
    return spread(function, pieces) if len(pieces) > 1 else map(function, pieces)


def weighted_gram(X: Array, weights: Array, intercept: bool = False) -> Array:
    """Return ``Σᵢ weightᵢ x̃ᵢ x̃ᵢᵀ`` for weights of any sign, of shape (D, D)."""
    xp = array_namespace(X)
    one_sign = 1.0 if bool(xp.all(weights >= 0)) else -1.0 if bool(xp.all(weights <= 0)) else 0.0
    factors = xp.sqrt(one_sign * weights) if one_sign else weights

    def part(rows: slice) -> Array:
        scaled = X[rows, :] * factors[rows, None]
        return scaled.T @ (scaled if one_sign else X[rows, :])

    grams = over_chunks(part, X)
    gram = next(grams, None)
    if gram is None:  # of no rows
        gram = xp.zeros((X.shape[1], X.shape[1]), dtype=X.dtype, device=device(X))
    for other in grams:
        gram += other
    gram = -gram if one_sign < 0 else gram
    if not intercept:
        return gram
    border = X.T @ weights
    top = xp.concat([gram, border[:, None]], axis=1)
    bottom = xp.concat([border, xp.reshape(xp.sum(weights), (1,))])
    return xp.concat([top, bottom[None, :]], axis=0)


def hessian(X: Array, curvature: Array, *, ridge: float | Array, intercept: bool) -> Array:
    """Return the Hessian of a GLM objective, ``H = Σᵢ x̃ᵢ x̃ᵢᵀ ⊗ Aᵢ + ridge·I``, (P, P).

    ``Aᵢ`` is the curvature of each record's loss times its weight: of shape (n,) for one output,
    and ``ωᵢ (diag π − ππᵀ)`` of shape (n, K, K) for softmax. ``ridge = nλ`` is the coefficient of
    ``½‖w‖²``, or one coefficient per column, (d,), if their penalties differ. With an intercept, a
    1 is appended to ``x``; the intercept's parameters are not penalised. In the order of the
    parameters, the class varies fastest. For softmax, H is singular along unpenalised gauge
    directions, which add the same vector to the parameters of every class; :func:`gauge_fixed`
    makes H positive definite.
    """
    if len(curvature.shape) == 1:
        return penalised(weighted_gram(X, curvature, intercept), ridge, int(intercept))
    xp = array_namespace(X)
    classes = curvature.shape[1]
    D = X.shape[1] + intercept
    blocks = xp.zeros((D, classes, D, classes), dtype=X.dtype, device=device(X))
    for j in range(classes):
        for k in range(j, classes):
            block = weighted_gram(X, curvature[:, j, k], intercept)
            blocks[:, j, :, k] = block
            blocks[:, k, :, j] = block
    return penalised(
        xp.reshape(blocks, (D * classes, D * classes)), ridge, classes if intercept else 0
    )


def penalised(H: Array, ridge: float | Array, free: int) -> Array:
    """Return ``H + ridge·I``, without a penalty on the last ``free`` parameters, the intercepts."""
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


def gauge_fixed(H: Array, family: Family | Categorical) -> Array:
    """Return the Hessian; for softmax ``H + diag(c) ⊗ 11ᵀ/K``, definite along its gauge directions.

    The loss does not change when one vector is added to the parameters of every class. So the
    gradients of the loss, and their derivatives with respect to the data, sum to zero over the
    classes. For right-hand sides that sum to zero in this way, the solution is the same for every
    ``c > 0``. Using each feature's mean diagonal entry of ``H`` as c preserves the condition
    number, whatever the units of the features.
    """
    if not isinstance(family, Categorical):
        return H
    xp = array_namespace(H)
    size, classes = H.shape[0], family.outputs
    scale = xp.mean(xp.reshape(xp.linalg.diagonal(H), (-1, classes)), axis=1)
    blocks = xp.reshape(xp.asarray(H, copy=True), (size // classes, classes, -1, classes))
    for feature in range(size // classes):
        blocks[feature, :, feature, :] += scale[feature] / classes
    return xp.reshape(blocks, (size, size))


# Factorisations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CholeskyFactor:
    """The lower triangular ``L`` of ``H = D LLᵀ D``, where ``D²`` is the diagonal of ``H``.

    After scaling to a unit diagonal, the matrix does not depend on the units of the columns.
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
        """The smallest squared pivot of the scaled matrix; 1 for orthogonal columns."""
        xp = array_namespace(self.lower)
        return float(xp.min(xp.linalg.diagonal(self.lower))) ** 2


def cholesky_factor(H: Array, damping: float = 0.0) -> CholeskyFactor | None:
    """Return the Cholesky factor of ``H + τD²``, or ``None`` if it is not positive definite."""
    xp = array_namespace(H)
    diagonal = xp.linalg.diagonal(H)
    sizes = xp.sqrt(xp.where(diagonal > 0, diagonal, xp.ones_like(diagonal)))
    unit = H / (sizes[:, None] * sizes[None, :])
    if damping:
        unit = unit + damping * xp.eye(H.shape[0], dtype=H.dtype, device=device(H))
    try:
        with small_on_one_core(H):
            lower = xp.linalg.cholesky(unit)
    except (ValueError, RuntimeError) as error:
        # NumPy's LinAlgError is a ValueError, torch's a RuntimeError.
        if type(error).__name__.strip("_") != "LinAlgError":
            raise
        return None
    # Some factorisations pass NaN through without complaint.
    return CholeskyFactor(lower, sizes) if bool(xp.isfinite(xp.sum(lower))) else None


def damped_factor(H: Array) -> CholeskyFactor:
    """Return the Cholesky factor of ``H`` or, if ``H`` is not positive definite, of ``H + τD²``.

    τ is the smallest value tried (10⁻¹⁴ to 10⁴) that makes the sum positive definite.
    """
    for damping in (0.0, *(10.0**k for k in range(-14, 5))):
        factor = cholesky_factor(H, damping)
        if factor is not None:
            return factor
    raise FloatingPointError(
        "The Hessian has values that are not finite; scale the columns to similar sizes."
    )


def stacked_r(blocks: Iterable[Array]) -> Array:
    """Return the R factor of the QR factorisation of the stacked blocks.

    Each block is stacked below the current R factor, and the result is factorised again (sequential
    TSQR: Demmel, Grigori, Hoemmen and Langou, 2012). The method is as stable as one QR of all
    blocks, and stores only one block.
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
    """The map ``x' = (x − centre)/units`` of each column; ``None`` means no change."""

    centre: Array | None = None
    units: Array | None = None

    def into(self, theta: Array) -> Array:
        """Convert parameters for the caller's columns to the shifted and scaled columns."""
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
        """Convert parameters for the shifted and scaled columns to the caller's columns."""
        if self.units is not None:
            xp = array_namespace(theta)
            d = self.units.shape[0]
            w = theta[:d, ...] / _column(self.units, theta)
            theta = xp.concat([w, theta[d:, ...]], axis=0)
        return uncentred(theta, self.centre)


def far_centre(least: Array, most: Array) -> Array | None:
    """Return the shift for columns with this range, which is zero for columns near zero.

    Return ``None`` if all columns are near zero.
    """
    xp = array_namespace(least)
    middle = (least + most) / 2
    far = xp.abs(middle) > 16 * (most - least) / 2
    return xp.where(far, middle, xp.zeros_like(middle)) if bool(xp.any(far)) else None


def uncentred(theta: Array, centre: Array | None) -> Array:
    """Convert parameters for centred columns to the original columns: ``w₀ − wᵀc``."""
    if centre is None:
        return theta
    xp = array_namespace(theta)
    w, last = theta[:-1, ...], theta[-1:, ...]
    shift = xp.reshape(centre[None, :] @ w, last.shape)
    return xp.concat([w, last - shift], axis=0)


def _column(values: Array, like: Array) -> Array:
    return array_namespace(values).reshape(values, (-1, *(1,) * (len(like.shape) - 1)))


# Linearly dependent columns ---------------------------------------------------------------------


def check_columns(objective: Objective, H: Array, counted: int, names: tuple[str, ...]) -> None:
    """Raise an :class:`InputError` if columns are linearly dependent; the error names them.

    With a penalty, the minimiser is unique and nothing is checked. ``H`` is the Hessian at any
    parameters, without gauge fixing; it is singular if the columns are dependent. ``counted`` is
    the number of records with positive weight.
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
            f"Column {name!r} is constant (all zeros), so its coefficient is not determined "
            f"without L2; {remedy}"
        )
    factor = cholesky_factor(gram) if counted >= P else None
    # Cholesky of the correlation-like Gram matrix loses half the digits: a smallest squared pivot
    # above 1e-7 proves independence, one below it only calls for the slower QR.
    if factor is not None and float(xp.min(xp.linalg.diagonal(factor.lower))) ** 2 > 1e-7:
        return
    if objective.intercept:
        least, most = objective.column_range()
        if bool(xp.any(least == most)):
            raise _constant(names[int(xp.argmax(xp.astype(least == most, xp.int64)))], remedy)
    if counted < P:
        samples = "1 sample" if counted == 1 else f"{counted} samples"
        raise InputError(
            f"There are more parameters ({P}) than records ({samples} with positive weight), so "
            "the coefficients are not determined without L2; set l2 to a positive number or drop "
            "columns."
        )
    dependent = _dependent_columns(objective.triangle(labels=False), counted)
    if dependent:
        raise InputError(
            f"{_listed(dependent, names)} are linearly dependent, so the coefficients are not "
            "determined without L2; drop one of them or set l2 to a positive number."
        )


def _constant(name: str, remedy: str) -> InputError:
    return InputError(
        f"Column {name!r} is constant, and so is the intercept: without L2 only their sum is "
        f"determined; {remedy}"
    )


def _dependent_columns(R: Array, rows: int) -> list[int]:
    """Return the linearly dependent columns, from the null space of the scaled columns."""
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
