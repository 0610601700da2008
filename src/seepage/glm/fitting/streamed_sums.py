"""The sums over rows from which a GLM is fitted, each a function of one chunk of the rows.

They are those of :class:`~seepage.glm.fitting.objective.Objective` on the chunk alone, without the
penalty, which is added once at the end. Sums of two chunks add up to that of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.fitting.divergence import gain_range
from seepage.glm.fitting.objective import Objective
from seepage.glm.fitting.stacked_qr import stacked_r
from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family

if TYPE_CHECKING:
    from seepage.tables.source import Chunk

Array = Any


@dataclass(frozen=True)
class Problem:
    """What is minimised, but for the rows.

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
        D = self.features + self.intercept
        return (D, self.family.outputs) if isinstance(self.family, Categorical) else (D,)

    def objective(self, chunk: Chunk) -> Objective:
        """Return the objective of these rows alone, without the penalty."""
        target = self.targets(chunk)
        return Objective(chunk.X, self.family, target, chunk.weight, 0.0, self.intercept)

    def targets(self, chunk: Chunk) -> Array:
        """Return the labels as numbers: (m,), or one-hot for :class:`Categorical`."""
        if self.classes is None:
            if chunk.y.dtype.kind == "O":
                raise InputError("The labels are text, which a regression cannot be fitted to.")
            numbers = np.asarray(chunk.y, dtype=float)
            problem = self.family.problem_with(numbers)  # type: ignore[union-attr]
            if problem is not None:
                raise InputError(
                    f"The labels do not suit the {self.family.name} family: {problem}."
                )
            return numbers
        positions = class_positions(chunk, self.classes)
        if isinstance(self.family, Categorical):
            return np.eye(self.family.outputs)[positions]
        return positions.astype(float)

    def penalised(self, theta: Array) -> Array:
        """Return the parameters that the penalty counts, with zero for the intercept."""
        kept = np.array(theta)
        if self.intercept:
            kept[-1] = 0.0
        return kept


def class_positions(chunk: Chunk, classes: np.ndarray) -> np.ndarray:
    """Return the position of every label among the sorted classes, (m,)."""
    if chunk.y.dtype.kind == "O" or classes.dtype.kind in "OU":
        places = {label: position for position, label in enumerate(classes.tolist())}
        positions = np.asarray([places.get(label, -1) for label in chunk.y.tolist()])
        unknown = positions < 0
    else:
        positions = np.minimum(np.searchsorted(classes, chunk.y), classes.shape[0] - 1)
        unknown = classes[positions] != chunk.y
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(
            f"Row {chunk.start + row:,} has the label {chunk.y[row]!r}, which is none of the "
            f"classes the model was fitted on: {', '.join(map(repr, classes.tolist()[:10]))}."
        )
    return positions


@dataclass(frozen=True)
class NewtonSums:
    """All that a step of Newton's method needs of some rows at given parameters."""

    rows: int
    value: float
    gradient: Array
    hessian: Array  # or None, where it was not asked for
    gradient_scale: float
    label_scale: float
    least_gain: float  # towards which side the margins put the rows, at least

    def __add__(self, other: NewtonSums) -> NewtonSums:
        hessian = None
        if self.hessian is not None and other.hessian is not None:
            hessian = self.hessian + other.hessian
        return NewtonSums(
            self.rows + other.rows,
            self.value + other.value,
            self.gradient + other.gradient,
            hessian,
            self.gradient_scale + other.gradient_scale,
            self.label_scale + other.label_scale,
            min(self.least_gain, other.least_gain),
        )


def newton_sums(chunk: Chunk, problem: Problem, theta: Array, hessian: bool = True) -> NewtonSums:
    """Return value, gradient and Hessian of the unpenalised objective of these rows."""
    objective = problem.objective(chunk)
    with np.errstate(over="ignore", invalid="ignore"):
        margins = objective.margins(theta)
        slopes = objective.slopes(margins)
        return NewtonSums(
            len(chunk) if chunk.weight is None else int(np.count_nonzero(chunk.weight)),
            objective.value(theta, margins),
            objective.gradient(theta, slopes),
            objective.hessian(margins) if hessian else None,
            objective.gradient_scale(theta, slopes),
            objective.label_scale(),
            gain_range(objective, margins)[0],
        )


@dataclass(frozen=True)
class Range:
    """The least and the most of something over some rows, elementwise."""

    least: Array
    most: Array

    def __add__(self, other: Range) -> Range:
        return Range(np.minimum(self.least, other.least), np.maximum(self.most, other.most))


def step_gains(chunk: Chunk, problem: Problem, step: Array) -> Range:
    """Return how far a step moves the rows to the side where their losses fall."""
    objective = problem.objective(chunk)
    return Range(*gain_range(objective, objective.margins(step), counts=True))


def column_range(chunk: Chunk) -> Range:
    """Return the least and the most of every column over the rows that count."""
    X = chunk.X if chunk.weight is None else chunk.X[chunk.weight > 0, :]
    if X.shape[0] == 0:
        none = np.full(X.shape[1], np.inf)
        return Range(none, -none)
    return Range(X.min(axis=0), X.max(axis=0))


@dataclass(frozen=True)
class Triangle:
    """The R of the QR factorisation of some rows; the sum of two is that of all their rows."""

    R: Array

    def __add__(self, other: Triangle) -> Triangle:
        return Triangle(stacked_r([self.R, other.R]))


def triangle(chunk: Chunk, problem: Problem, labels: bool) -> Triangle:
    """Return the R of the rows ``√ω [x, 1]``, or of ``√ω [x, 1, y]`` with the labels.

    Without labels only which rows count matters, and not how much.
    """
    parts = [chunk.X]
    if problem.intercept:
        parts.append(np.ones((len(chunk), 1)))
    if labels:
        parts.append(problem.targets(chunk)[:, None])
    block = np.concatenate(parts, axis=1)
    if chunk.weight is not None:
        block = block * np.sqrt(chunk.weight)[:, None] if labels else block[chunk.weight > 0, :]
    return Triangle(stacked_r([block]))
