"""The objective of a GLM over a source: the sums of the objectives of its chunks.

The chunks' objectives have no penalty; it is added once at the end. The functions sent to the
chunks are at module level, so that they can be pickled for other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.fitting.objective import (
    CholeskyFactor,
    Coordinates,
    NewtonSums,
    Objective,
    far_centre,
    gauge_fixed,
    norm,
    parameter_shape,
    penalised,
    stacked_r,
)
from seepage.glm.losses import Categorical, Family, class_positions, class_targets
from seepage.tables.source import Array

if TYPE_CHECKING:
    from seepage.tables.source import Chunk, RowSource

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class PenalisedLoss:
    """What is minimised, apart from the records."""

    family: Family | Categorical  # the loss
    # The classes that the labels stand for, sorted; ``None`` where labels are numbers
    classes: np.ndarray | None
    ridge: float  # ``nλ``
    intercept: bool  # whether there is an intercept
    features: int  # the number of columns

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters."""
        return parameter_shape(self.features, self.family, self.intercept)

    def on(self, chunk: Chunk) -> Objective:
        """Return the objective of these records alone, without the penalty."""
        target = self.targets(chunk)
        return Objective(chunk.X, self.family, target, chunk.weight, 0.0, self.intercept)

    def targets(self, chunk: Chunk) -> Array:
        """Return the labels as numbers: (m,), or one-hot for :class:`Categorical`."""
        if self.classes is None:
            if chunk.y.dtype.kind == "O":
                raise InputError("The labels are text, which a regression cannot be fitted to.")
            numbers = np.asarray(chunk.y, dtype=float)
            self.family.check_labels(numbers)  # type: ignore[union-attr]
            return numbers
        return class_targets(class_positions(chunk.y, self.classes, chunk.start), self.family)


@dataclass(frozen=True)
class StreamedObjective:
    """A penalised loss over all records of a source, with the methods of :class:`Objective`."""

    source: RowSource
    loss: PenalisedLoss
    _passes: Iterator[int] = field(default_factory=lambda: count(1), repr=False, compare=False)

    rereads: ClassVar[bool] = True
    units: ClassVar[None] = None  # columns are shifted, and never scaled

    @property
    def family(self) -> Family | Categorical:
        """The loss."""
        return self.loss.family

    @property
    def ridge(self) -> float:
        """``nλ``."""
        return self.loss.ridge

    @property
    def intercept(self) -> bool:
        """Whether there is an intercept."""
        return self.loss.intercept

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters."""
        return self.loss.shape

    def zeros(self) -> Array:
        """Return parameters that are all zero."""
        return np.zeros(self.shape)

    def definite(self, H: Array) -> Array:
        """Return ``H`` made definite along softmax's gauge; Newton's step stays the same."""
        return gauge_fixed(H, self.family.outputs) if isinstance(self.family, Categorical) else H

    def refined(self, theta: Array, factor: CholeskyFactor) -> Array:
        """Return the solution of least squares, refined unless one solve is as good as two."""
        if factor.smallest_pivot >= 1e-3:
            return theta
        return theta - factor.solve(self.gradient_at(theta))

    def on_table(self) -> Objective | None:
        """Return nothing: there is no table."""
        return None

    def conditioned(self) -> tuple[StreamedObjective, Coordinates]:
        """Return itself: a pass says whether columns are far from zero; see :meth:`near_zero`."""
        return self, Coordinates()

    def near_zero(self, H: Array) -> tuple[StreamedObjective, Coordinates] | None:
        """Return the objective with columns far from zero shifted; ``None`` if there are none.

        The moments in a Hessian say whether to look for them, which takes a pass over the source.
        """
        if not self.intercept:
            return None
        step = self.family.outputs if isinstance(self.family, Categorical) else 1
        gram = H[::step, ::step]
        means, squares = gram[-1, :-1] / gram[-1, -1], np.diagonal(gram)[:-1] - self.ridge
        # A column may be far off if nearly all of its squares are due to its mean.
        if not np.any(means**2 * gram[-1, -1] > 0.98 * squares):
            return None
        extent = self._total(_column_range, "looking for columns far from zero")
        centre = far_centre(extent.least, extent.most)
        if centre is None:
            return None
        return replace(self, source=self.source.less(centre)), Coordinates(centre)

    def at(self, theta: Array, hessian: bool = True) -> NewtonSums:
        """Return what Newton's method needs at some parameters, by one pass over the source."""
        what = f"fit, pass {next(self._passes)}"
        sums = self._total(partial(Objective.at, theta=theta, hessian=hessian), what)
        w = np.array(theta)
        if self.intercept:  # which is not penalised
            w[-1] = 0.0
        free = sum(self.shape[1:]) or 1
        return replace(
            sums,
            value=sums.value + 0.5 * self.ridge * float(np.sum(w * w)),
            gradient=sums.gradient + self.ridge * w,
            hessian=penalised(sums.hessian, self.ridge, free * self.intercept) if hessian else None,
            gradient_scale=sums.gradient_scale + self.ridge * norm(w),
        )

    def gradient_at(self, theta: Array) -> Array:
        """Return the gradient alone."""
        return self.at(theta, hessian=False).gradient

    def quadratic(self) -> tuple[Array, Array, int]:
        """Return what least squares needs: Hessian, gradient at zero, and number of records."""
        sums = self.at(self.zeros())
        return sums.hessian, sums.gradient, sums.counted

    def gains(self, step: Array) -> tuple[float, float]:
        """Return how far a step moves records towards the side where losses fall for ever."""
        extent = self._total(partial(_gains, step=step), "looking for separable classes")
        return float(extent.least), float(extent.most)

    def constant_columns(self) -> Array:
        """Say for every column whether it is constant over the records of positive weight."""
        extent = self._total(_column_range, "looking for constant columns")
        return extent.least == extent.most

    def triangle(self, labels: bool) -> Array:
        """Return the R of the QR factorisation of ``√ω [x, 1, y]``, or without the labels."""
        what = "fit by QR" if labels else "looking for dependent columns"
        return self._total(partial(_triangle, labels=labels), what).R

    def _total(self, function: Callable[[Objective], Answer], what: str) -> Answer:
        """Return the sum of a function of the chunks' objectives."""
        return self.source.total(partial(_of_chunk, loss=self.loss, function=function), what)


AnyObjective = Objective | StreamedObjective


def _of_chunk(chunk: Chunk, loss: PenalisedLoss, function: Callable[[Objective], Answer]) -> Answer:
    return function(loss.on(chunk))


@dataclass(frozen=True)
class Extent:
    """The elementwise minimum and maximum of something over some records."""

    least: Array
    most: Array

    def __add__(self, other: Extent) -> Extent:
        xp = array_namespace(self.least)
        return Extent(xp.minimum(self.least, other.least), xp.maximum(self.most, other.most))


def _gains(part: Objective, step: Array) -> Extent:
    return Extent(*map(np.asarray, part.gains(step)))


def _column_range(part: Objective) -> Extent:
    return Extent(*part.column_range())


@dataclass(frozen=True)
class _Triangle:
    """The R of the QR factorisation of some rows; two add up to that of all their rows."""

    R: Array

    def __add__(self, other: _Triangle) -> _Triangle:
        return _Triangle(stacked_r([self.R, other.R]))


def _triangle(part: Objective, labels: bool) -> _Triangle:
    return _Triangle(part.triangle(labels))
