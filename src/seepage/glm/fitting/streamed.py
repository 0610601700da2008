"""The objective of a GLM over a source: sums over its chunks of what each chunk's objective says.

The chunks' objectives have no penalty, which is added once at the end. What is sent to the chunks
are functions of one chunk each, at module level, so that they can be pickled for other machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from seepage.errors import InputError
from seepage.glm.fitting.objective import (
    NewtonLine,
    NewtonPoint,
    Objective,
    gauge_fixed,
    norm,
    parameter_shape,
    penalised,
    stacked_r,
)
from seepage.glm.losses.families import Categorical, Family, class_positions, class_targets

if TYPE_CHECKING:
    from seepage.tables.source import Chunk, RowSource

Array = Any

_LAST_STEP = 1e-8


@dataclass(frozen=True)
class PenalisedLoss:
    """What is minimised, but for the records.

    Parameters
    ----------
    family
        The loss.
    classes
        The classes that the labels stand for, sorted; ``None`` where labels are numbers.
    ridge
        ``nλ``.
    intercept
        Whether there is an intercept.
    features
        The number of columns.
    """

    family: Family | Categorical
    classes: np.ndarray | None
    ridge: float
    intercept: bool
    features: int

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

    def penalised(self, theta: Array) -> Array:
        """Return the parameters that the penalty counts, with zero for the intercept."""
        kept = np.array(theta)
        if self.intercept:
            kept[-1] = 0.0
        return kept


@dataclass(frozen=True)
class StreamedObjective:
    """A penalised loss over all records of a source; it answers what :class:`Objective` answers."""

    source: RowSource
    loss: PenalisedLoss
    _passes: Iterator[int] = field(default_factory=lambda: count(1), repr=False, compare=False)

    rereads: ClassVar[bool] = True

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
        """Return ``H`` made definite along softmax's gauge, without a change to Newton's step."""
        return gauge_fixed(H, self.family.outputs) if isinstance(self.family, Categorical) else H

    def at(self, theta: Array, hessian: bool = True) -> NewtonSums:
        """Return what Newton's method asks about some parameters, by one pass over the source."""
        ask = partial(newton_sums, loss=self.loss, theta=theta, hessian=hessian)
        sums = self.source.total(ask, f"fit, pass {next(self._passes)}")
        w = self.loss.penalised(theta)
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

    def line(self, point: NewtonSums, step: Array) -> StreamedLine:
        """Return what Newton's method asks about a step from a point."""
        return StreamedLine(self, point, step)

    def gains(self, step: Array) -> tuple[float, float]:
        """Return how far a step moves the records to the side where losses fall for ever."""
        ask = partial(_step_gains, loss=self.loss, step=step)
        found = self.source.total(ask, "looking for separable classes")
        return float(found.least), float(found.most)

    def constant_columns(self) -> Array:
        """Say, for every column, whether it has one value only over the records that count."""
        ask = partial(_column_range, loss=self.loss)
        found = self.source.total(ask, "looking for constant columns")
        return found.least == found.most

    def triangle(self, labels: bool) -> Array:
        """Return the R of the QR factorisation of ``√ω [x, 1, y]``, or without the labels."""
        what = "fit by QR" if labels else "looking for dependent columns"
        return self.source.total(partial(_triangle, loss=self.loss, labels=labels), what).R


@dataclass(frozen=True)
class NewtonSums:
    """All that a step of Newton's method needs of some records at given parameters."""

    theta: Array
    counted: int  # records of positive weight
    value: float
    gradient: Array
    hessian: Array  # or None, where it was not asked for
    gradient_scale: float
    label_scale: float
    least_gain: float  # how far on the side of its own class the worst record is, at least
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


@dataclass(frozen=True)
class StreamedLine:
    """The points ``θ + length·s`` of an objective over a source, each a pass over the source."""

    objective: StreamedObjective
    start: NewtonSums
    step: Array

    @property
    def reach(self) -> float:
        """How far the step moves the margin that it moves most, at most."""
        return norm(self.step) * self.start.largest_norm

    @property
    def settled(self) -> bool:
        """Whether ``√(sᵀHs / wᵀHw)``, the step beside the coefficients as margins see it, is tiny.

        It leaves an error of about its square: nothing needs to be read again.
        """
        H, s = self.start.hessian, np.ravel(self.step)
        w = np.ravel(self.objective.loss.penalised(self.start.theta))
        size = math.sqrt(max(float(w @ H @ w), 0.0))
        moved = math.sqrt(max(float(s @ H @ s), 0.0))
        # Coefficients may be zero, where nothing can be learnt; the curvature then sets the scale.
        floor = 1e-3 * math.sqrt(float(np.trace(H)) / H.shape[0])
        return moved / max(size, floor, 1e-300) <= _LAST_STEP

    def at(self, length: float) -> NewtonSums:
        """Return the point some part of the step away."""
        return self.objective.at(self.start.theta + length * self.step)

    def gains(self) -> tuple[float, float]:
        """Return how far the step moves the records to the side where losses fall for ever."""
        return self.objective.gains(self.step)


AnyObjective = Objective | StreamedObjective
AnyPoint = NewtonPoint | NewtonSums
AnyLine = NewtonLine | StreamedLine


def newton_sums(
    chunk: Chunk, loss: PenalisedLoss, theta: Array, hessian: bool = True
) -> NewtonSums:
    """Return value, gradient and Hessian of the unpenalised objective of these records."""
    with np.errstate(over="ignore", invalid="ignore"):
        point = loss.on(chunk).at(theta)
        return NewtonSums(
            theta,
            point.counted,
            point.value,
            point.gradient,
            point.hessian if hessian else None,
            point.gradient_scale,
            point.label_scale,
            point.least_gain,
            float(np.max(point.objective.row_norms, initial=0.0)),
        )


@dataclass(frozen=True)
class _Extent:
    """The least and the most of something over some records, elementwise."""

    least: Array
    most: Array

    def __add__(self, other: _Extent) -> _Extent:
        return _Extent(np.minimum(self.least, other.least), np.maximum(self.most, other.most))


def _step_gains(chunk: Chunk, loss: PenalisedLoss, step: Array) -> _Extent:
    objective = loss.on(chunk)
    return _Extent(*objective.gains(objective.margins(step)))


def _column_range(chunk: Chunk, loss: PenalisedLoss) -> _Extent:
    return _Extent(*loss.on(chunk).column_range())


@dataclass(frozen=True)
class _Triangle:
    """The R of the QR factorisation of some rows; the sum of two is that of all their rows."""

    R: Array

    def __add__(self, other: _Triangle) -> _Triangle:
        return _Triangle(stacked_r([self.R, other.R]))


def _triangle(chunk: Chunk, loss: PenalisedLoss, labels: bool) -> _Triangle:
    return _Triangle(loss.on(chunk).triangle(labels))
