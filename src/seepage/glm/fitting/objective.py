"""The objective of a GLM on one table: its value, gradient, Hessian and what else a fit asks for.

What a minimiser asks of it (:meth:`Objective.at` and the methods after it) can be summed over
tables: :class:`~seepage.glm.fitting.streamed.StreamedObjective` does so over chunks of a source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device

from seepage.glm.fitting.curvature import gauge_fixed, hessian, row_chunks
from seepage.glm.fitting.factorisations import stacked_r
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family

Array = Any  # any array of the array API standard


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

    def at(self, theta: Array, hessian: bool = True) -> NewtonSums:
        """Return what Newton's method asks about some parameters."""
        # Poisson's exp may overflow while a line search feels its way; infinity is then rejected.
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

    def gains(self, step: Array) -> tuple[float, float]:
        """Return how far a step moves records to the side where their losses fall for ever.

        The least and the most over the records of positive weight (and rival classes); of no
        records, and for a family whose losses have no such side, from ∞ to −∞.
        """
        return self._gain_range(self.margins(step), counts=True)

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


def parameter_shape(
    features: int, family: Family | Categorical, intercept: bool
) -> tuple[int, ...]:
    """Return the shape of a model's parameters, (D,) or (D, K)."""
    D = features + intercept
    return (D, family.outputs) if isinstance(family, Categorical) else (D,)


def norm(values: Array) -> float:
    """Return the Euclidean norm of an array of any shape."""
    return math.sqrt(float(array_namespace(values).sum(values * values)))
