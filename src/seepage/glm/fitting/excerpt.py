"""An excerpt of a table read in chunks, kept in memory, from which a fit starts.

A fit from zero reads the whole table once per Newton step, some six times. The minimiser on ``m``
records is about ``√(P/m)`` away in the margins, for ``P`` parameters, and from there few steps are
left, since each squares the error.

The excerpt also gives third derivatives. With the gradient ``g`` and the Hessian ``H`` of all
records at ``θ``, and ``F̂``, the objective on the excerpt times ``n/m``, a step ``s`` should solve::

    g + Hs + [∇F̂(θ + s) − ∇F̂(θ) − ∇²F̂(θ) s] = 0

Newton's method leaves out the bracket, and with it an error of the order ``‖s‖²``. With the bracket
of the excerpt, only the part of that error remains in which the excerpt differs from the table: a
small share of it (the gradient and the Hessian corrected as in Shamir, Srebro and Zhang, 2014,
*Communication-efficient distributed optimization*, one order higher). The minimiser is that of all
records, whatever the excerpt: where the bracket is useless, the steps are Newton's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from seepage.errors import InputError
from seepage.glm.fitting.objective import CholeskyFactor, Objective, Sums, far_centre
from seepage.glm.losses import Categorical
from seepage.support.chunks import CHUNK
from seepage.tables.source import Array


@dataclass(frozen=True)
class Excerpt:
    """The objective on some records of a table, in memory."""

    objective: Objective
    share: float  # m/n

    @cached_property
    def centre(self) -> Array | None:
        """The shift of columns far from zero, as in :func:`far_centre`.

        A column that is near zero on some records is near zero on all.
        """
        return far_centre(*self.objective.column_range()) if self.objective.intercept else None

    def represents(self, point: Sums) -> bool:
        """Return whether its minimiser is about as good for all records as zero, or better.

        The objective of all records at zero is estimated from the excerpt.
        """
        zero = self.objective.at(self.objective.zeros(), ("value",)).value / self.share
        return math.isfinite(point.value) and point.value <= zero + 0.1 * abs(zero)

    def less(self, centre: Array) -> Excerpt:
        """Return the excerpt with shifted columns."""
        return replace(self, objective=self.objective.less(centre))

    def corrected(self, step: Array, point: Sums, factor: CholeskyFactor) -> Array:
        """Return a Newton step with third derivatives, or the step itself if they are no help.

        ``s ← step − H⁻¹ [∇F̂(θ + s) − ∇F̂(θ) − ∇²F̂(θ) s]`` is repeated three times.
        """
        shape, H = step.shape, point.hessian
        here = self.objective.at(point.theta, ("hessian",))
        correction = np.zeros(shape)
        for _ in range(3):
            move = step + correction
            linear = np.reshape(here.hessian @ np.reshape(move, (-1,)), shape)
            gradient = self.objective.gradient_at(point.theta + move)
            bracket = np.reshape(gradient - here.gradient - linear, (-1,)) / self.share
            if not np.all(np.isfinite(bracket)):
                return step
            correction = -np.reshape(factor.solve(bracket), shape)
        squares = [float(np.vdot(s, H @ np.reshape(s, (-1,)))) for s in (correction, step)]
        # Where third derivatives matter most, those of higher order matter too.
        return step + correction if squares[0] <= squares[1] / 4 else step


def excerpt_of(objective: Objective) -> Excerpt | None:
    """Return an excerpt of a source's records, or ``None`` if there is none that allows a fit.

    Errors in the data are left to the pass over all records, which finds the first of them.
    """
    source, loss = objective.X, objective.target
    try:
        chunks = source.excerpt(8 * CHUNK // len(source.names))  # 32 megabytes
        targets = [loss.targets(chunk) for chunk in chunks]
    except InputError:
        return None
    if sum(map(len, chunks)) < 16 * math.prod(objective.shape):
        return None  # too few records for their minimiser to be near that of all
    X, y = np.concatenate([chunk.X for chunk in chunks]), np.concatenate(targets)
    weight = np.concatenate([chunk.weight for chunk in chunks]) if source.weighted else None
    counted = y if weight is None else y[weight > 0]
    classes = counted if isinstance(loss.family, Categorical) else counted[:, None]
    if not len(counted) or (loss.classes is not None and np.any(np.ptp(classes, axis=0) == 0)):
        return None  # a class is missing
    share = len(X) / len(source)
    inner = Objective(X, loss.family, y, weight, share * loss.ridge, loss.intercept)
    return Excerpt(inner, share)
