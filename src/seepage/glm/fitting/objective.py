"""The objective of a GLM on one table: its value, gradient, Hessian and what else a fit asks for.

A minimiser asks an objective a few questions: what is at some parameters (:class:`NewtonPoint`),
what is along a step from there (:class:`NewtonLine`), and what the columns are like. For a table in
memory they are answered here; over a source by sums over its chunks
(:class:`~seepage.glm.fitting.streamed.StreamedObjective`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from array_api_compat import array_namespace, device

from seepage.glm.fitting.curvature import gauge_fixed, hessian, row_chunks
from seepage.glm.fitting.factorisations import stacked_r
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family

Array = Any  # any array of the array API standard

_SETTLED = 1e-6  # a Newton step this small beside the margins is followed by one far smaller


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

    rereads: ClassVar[bool] = False
    """Whether every question is a pass over data that are read anew, so that few are asked."""

    @classmethod
    def of(cls, fit: FittedGLM, X: Array) -> Objective:
        """Return the objective that a fitted model is meant to minimise on ``X``."""
        return cls(
            X, fit.family, fit.target, fit.sample_weight, fit.ridge, fit.intercept is not None
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters."""
        return parameter_shape(self.X.shape[1], self.family, self.intercept)

    @property
    def counted(self) -> int:
        """How many records have a positive weight."""
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
        losses = self._weighted(self.family.loss(margins, self.target))
        w = theta[: self.X.shape[1], ...]
        return float(xp.sum(losses)) + 0.5 * self.ridge * float(xp.sum(w * w))

    def slopes(self, margins: Array) -> Array:
        """Return ``ωᵢ ∂ℓᵢ/∂m``, (n,) or (n, K)."""
        return self._weighted(self.family.slope(margins, self.target))

    def gradient(self, theta: Array, slopes: Array) -> Array:
        """Return the gradient, of the shape of ``theta``, from the slopes at ``theta``."""
        xp = array_namespace(slopes)
        g = self.X.T @ slopes + self.ridge * theta[: self.X.shape[1], ...]
        return xp.concat([g, xp.sum(slopes, axis=0)[None, ...]], axis=0) if self.intercept else g

    def gradient_scale(self, theta: Array, slopes: Array) -> float:
        """Return ``Σᵢ |ωᵢ rᵢ| ‖xᵢ‖ + ridge ‖w‖``: what the gradient is a small difference of."""
        w = theta[: self.X.shape[1], ...]
        return self._absolute_sum(slopes) + self.ridge * norm(w)

    def label_scale(self) -> float:
        """Return ``Σᵢ ωᵢ |yᵢ| ‖xᵢ‖``: what rounding is relative to where a fit is perfect."""
        return self._absolute_sum(self._weighted(self.target))

    def hessian(self, margins: Array) -> Array:
        """Return the Hessian, (P, P); for softmax it is singular along unpenalised gauges."""
        curvature = self._weighted(self.family.curvature(margins, self.target))
        return hessian(self.X, curvature, ridge=self.ridge, intercept=self.intercept)

    def definite(self, H: Array) -> Array:
        """Return ``H`` made definite along softmax's gauge, without a change to Newton's step."""
        return gauge_fixed(H, self.family.outputs) if isinstance(self.family, Categorical) else H

    @cached_property
    def row_norms(self) -> Array:
        """``‖xᵢ‖`` of every row, the intercept's 1 included."""
        xp = array_namespace(self.X)
        squares = [
            xp.sum(self.X[rows, :] * self.X[rows, :], axis=1) for rows in row_chunks(*self.X.shape)
        ]
        return xp.sqrt(xp.concat(squares) + float(self.intercept))

    def at(self, theta: Array) -> NewtonPoint:
        """Return what Newton's method asks about some parameters."""
        return NewtonPoint(self, theta)

    def gradient_at(self, theta: Array) -> Array:
        """Return the gradient alone."""
        return self.at(theta).gradient

    def line(self, point: NewtonPoint, step: Array) -> NewtonLine:
        """Return what Newton's method asks about a step from a point."""
        return NewtonLine(point, step)

    def constant_columns(self) -> Array:
        """Say, for every column, whether it has one value only over the records that count."""
        least, most = self.column_range()
        return least == most

    def column_range(self) -> tuple[Array, Array]:
        """Return the least and the most of every column over the records that count, (d,) each."""
        xp = array_namespace(self.X)
        counted = self.X if self.sample_weight is None else self.X[self.sample_weight > 0, :]
        if counted.shape[0] == 0:
            none = xp.full((self.X.shape[1],), math.inf, dtype=self.X.dtype, device=device(self.X))
            return none, -none
        return xp.min(counted, axis=0), xp.max(counted, axis=0)

    def triangle(self, labels: bool) -> Array:
        """Return the R of the QR factorisation of ``√ω [x, 1, y]``, or without the labels.

        Without labels only which records count matters, and not how much.
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

    def gains(self, margins: Array, counts: bool = True) -> tuple[float, float]:
        """Return how far margins, or a step of them, lie on the side where losses fall for ever.

        The least and the most over the records of positive weight (and rival classes); of no
        records, and for a family whose losses have no such side, from ∞ to −∞. ``counts`` says
        whether Poisson's zeros have one, which is so for steps alone.
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

    def _absolute_sum(self, values: Array) -> float:
        """Return ``Σᵢ |vᵢ| ‖xᵢ‖``."""
        xp = array_namespace(values)
        sizes = xp.abs(values) if len(values.shape) == 1 else xp.sum(xp.abs(values), axis=1)
        return float(xp.sum(sizes * self.row_norms))

    def _weighted(self, values: Array) -> Array:
        if self.sample_weight is None:
            return values
        xp = array_namespace(values)
        ones = (1,) * (len(values.shape) - 1)
        return values * xp.reshape(self.sample_weight, (-1, *ones))


class NewtonPoint:
    """Parameters, and what an objective is there; each number is computed when first asked for."""

    def __init__(self, objective: Objective, theta: Array, margins: Array | None = None) -> None:
        self.objective, self.theta = objective, theta
        self.margins = objective.margins(theta) if margins is None else margins

    @cached_property
    def slopes(self) -> Array:
        """``ωᵢ ∂ℓᵢ/∂m``."""
        return self.objective.slopes(self.margins)

    @cached_property
    def value(self) -> float:
        """The objective."""
        return self.objective.value(self.theta, self.margins)

    @cached_property
    def gradient(self) -> Array:
        """The gradient, of the shape of the parameters."""
        return self.objective.gradient(self.theta, self.slopes)

    @cached_property
    def hessian(self) -> Array:
        """The Hessian, (P, P)."""
        return self.objective.hessian(self.margins)

    @cached_property
    def gradient_scale(self) -> float:
        """What the gradient is a small difference of."""
        return self.objective.gradient_scale(self.theta, self.slopes)

    @cached_property
    def label_scale(self) -> float:
        """What rounding is relative to where a fit is perfect."""
        return self.objective.label_scale()

    @cached_property
    def least_gain(self) -> float:
        """How far on the side of its own class the worst record is, at least."""
        return self.objective.gains(self.margins, counts=False)[0]

    @cached_property
    def counted(self) -> int:
        """How many records have a positive weight."""
        return self.objective.counted


class NewtonLine:
    """The points ``θ + length·s``: margins are linear in ``θ``, so ``X`` is multiplied but once."""

    def __init__(self, point: NewtonPoint, step: Array) -> None:
        self.start, self.step = point, step
        self.margin_step = point.objective.margins(step)
        self.reach = float(_largest(self.margin_step))
        """How far the step moves the margin that it moves most, at most."""

    @property
    def settled(self) -> bool:
        """Whether the step is so small that the Hessian need not be computed again after it."""
        return self.reach <= _SETTLED * max(1.0, float(_largest(self.start.margins)))

    def at(self, length: float) -> NewtonPoint:
        """Return the point some part of the step away."""
        margins = self.start.margins + length * self.margin_step
        return NewtonPoint(self.start.objective, self.start.theta + length * self.step, margins)

    def gains(self) -> tuple[float, float]:
        """Return how far the step moves the records to the side where losses fall for ever."""
        return self.start.objective.gains(self.margin_step)


def _largest(values: Array) -> Array:
    xp = array_namespace(values)
    return xp.max(xp.abs(values))


def parameter_shape(
    features: int, family: Family | Categorical, intercept: bool
) -> tuple[int, ...]:
    """Return the shape of a model's parameters, (D,) or (D, K)."""
    D = features + intercept
    return (D, family.outputs) if isinstance(family, Categorical) else (D,)


def norm(values: Array) -> float:
    """Return the Euclidean norm of an array of any shape."""
    return math.sqrt(float(array_namespace(values).sum(values * values)))
