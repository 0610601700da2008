"""The objective of a GLM: its value, gradient and Hessian on one table, for one or many outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from array_api_compat import array_namespace, device

from seepage.glm.adapters.fitted import FittedGLM
from seepage.glm.fitting.curvature import (
    categorical_hessian,
    gauge_fixed,
    row_chunks,
    single_output_hessian,
)
from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family

Array = Any  # any array of the array API standard


@dataclass(frozen=True)
class Objective:
    """``F(θ) = Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (ridge/2) ‖w‖²`` (paper 001, equation 13, weighted).

    The parameters ``θ`` are (D,) for a :class:`Family` and (D, K) for :class:`Categorical`, with
    D = d, or d + 1 with the intercept in the last row. Losses are functions of the margins, which
    are linear in ``θ``: whoever walks along a line multiplies by ``X`` once.
    """

    X: Array
    family: Family | Categorical
    target: Array
    sample_weight: Array | None
    ridge: float
    intercept: bool
    _row_norms: list[Array] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, fit: FittedGLM, X: Array) -> Objective:
        """Return the objective that a fitted model is meant to minimise on ``X``."""
        return cls(
            X, fit.family, fit.target, fit.sample_weight, fit.ridge, fit.intercept is not None
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters."""
        D = self.X.shape[1] + self.intercept
        return (D, self.family.outputs) if isinstance(self.family, Categorical) else (D,)

    def margins(self, theta: Array) -> Array:
        """Return ``Xw + w₀``, (n,) or (n, K)."""
        d = self.X.shape[1]
        M = self.X @ theta[:d, ...]
        return M + theta[d, ...] if self.intercept else M

    def value(self, theta: Array, margins: Array) -> float:
        """Return the objective at ``theta``, whose margins are given."""
        xp = array_namespace(margins)
        losses = self.family.loss(margins, self.target)
        if self.sample_weight is not None:
            losses = losses * self.sample_weight
        w = self._penalised(theta)
        return float(xp.sum(losses)) + 0.5 * self.ridge * float(xp.sum(w * w))

    def slopes(self, margins: Array) -> Array:
        """Return ``ωᵢ ∂ℓᵢ/∂m``, (n,) or (n, K)."""
        return self._weighted(self.family.slope(margins, self.target))

    def gradient(self, theta: Array, slopes: Array) -> Array:
        """Return the gradient, of the shape of ``theta``, from the slopes at ``theta``."""
        xp = array_namespace(slopes)
        g = self.X.T @ slopes + self.ridge * self._penalised(theta)
        return xp.concat([g, xp.sum(slopes, axis=0)[None, ...]], axis=0) if self.intercept else g

    def gradient_scale(self, theta: Array, slopes: Array) -> float:
        """Return ``Σᵢ |ωᵢ rᵢ| ‖xᵢ‖ + ridge ‖w‖``: what the gradient is a small difference of."""
        xp = array_namespace(slopes)
        sizes = xp.abs(slopes) if len(slopes.shape) == 1 else xp.sum(xp.abs(slopes), axis=1)
        w = self._penalised(theta)
        penalty = self.ridge * math.sqrt(float(xp.sum(w * w)))
        return float(xp.sum(sizes * self.row_norms())) + penalty

    def label_scale(self) -> float:
        """Return ``Σᵢ ωᵢ |yᵢ| ‖xᵢ‖``: what rounding is relative to where a fit is perfect."""
        xp = array_namespace(self.target)
        sizes = xp.abs(self._weighted(self.target))
        if len(sizes.shape) == 2:
            sizes = xp.sum(sizes, axis=1)
        return float(xp.sum(sizes * self.row_norms()))

    def hessian(self, margins: Array) -> Array:
        """Return the Hessian, (P, P); for softmax it is singular along unpenalised gauges."""
        curvature = self._weighted(self.family.curvature(margins, self.target))
        build = (
            categorical_hessian if isinstance(self.family, Categorical) else single_output_hessian
        )
        return build(self.X, curvature, ridge=self.ridge, intercept=self.intercept)

    def definite(self, H: Array) -> Array:
        """Return ``H`` made definite along softmax's gauge, without a change to Newton's step."""
        if isinstance(self.family, Categorical):
            return gauge_fixed(H, self.family.outputs)
        return H

    def gauge_free(self, theta: Array) -> Array:
        """Return softmax parameters that sum to zero over the classes; others as they are.

        The losses do not change, and the penalty is least there.
        """
        if not isinstance(self.family, Categorical):
            return theta
        xp = array_namespace(theta)
        return theta - xp.mean(theta, axis=1, keepdims=True)

    def row_norms(self) -> Array:
        """Return ``‖xᵢ‖`` of every row, the intercept's 1 included; computed once."""
        if not self._row_norms:
            xp = array_namespace(self.X)
            squares = [
                xp.sum(self.X[rows, :] * self.X[rows, :], axis=1)
                for rows in row_chunks(*self.X.shape)
            ]
            self._row_norms.append(xp.sqrt(xp.concat(squares) + float(self.intercept)))
        return self._row_norms[0]

    def zeros(self) -> Array:
        """Return parameters that are all zero."""
        xp = array_namespace(self.X)
        return xp.zeros(self.shape, dtype=self.X.dtype, device=device(self.X))

    def _penalised(self, theta: Array) -> Array:
        return theta[: self.X.shape[1], ...]

    def _weighted(self, values: Array) -> Array:
        if self.sample_weight is None:
            return values
        xp = array_namespace(values)
        ones = (1,) * (len(values.shape) - 1)
        return values * xp.reshape(self.sample_weight, (-1, *ones))
