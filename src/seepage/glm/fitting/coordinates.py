"""Columns near zero and of like size: the coordinates in which a GLM is fitted.

With an intercept, a model of ``x`` is one of ``x − c`` with another intercept, ``w₀ + wᵀc``; and
one unit of a column may be any. A column far from zero (a time stamp, a serial number) all but
repeats the intercept, and columns of unlike sizes hide one another's gradients: so the table is
shifted and scaled first where it has such columns, and the parameters are taken back in the end.
Where a column is far from zero the subtraction is free of rounding (Sterbenz), and sizes are powers
of two: nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from array_api_compat import array_namespace

from seepage.glm.fitting.objective import Objective
from seepage.tables.source import Array

FAR = 16.0  # times half its range: how far from zero a column must be to be shifted
_UNLIKE = 1024.0  # how far from one the size of a column must be for columns to be scaled


@dataclass(frozen=True)
class Coordinates:
    """``x' = (x − centre)/units``, column by column; ``None`` where nothing is done."""

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
    """Return what to subtract from columns of that range; zero from those near zero.

    ``None`` where all of them are.
    """
    xp = array_namespace(least)
    middle = (least + most) / 2
    far = xp.abs(middle) > FAR * (most - least) / 2
    return xp.where(far, middle, xp.zeros_like(middle)) if bool(xp.any(far)) else None


def uncentred(theta: Array, centre: Array | None) -> Array:
    """Return parameters of columns less their centre as those of the columns: ``w₀ − wᵀc``."""
    if centre is None:
        return theta
    xp = array_namespace(theta)
    w, last = theta[:-1, ...], theta[-1:, ...]
    shift = xp.reshape(centre[None, :] @ w, last.shape)
    return xp.concat([w, last - shift], axis=0)


def conditioned(objective: Objective) -> tuple[Objective, Coordinates]:
    """Return an objective in coordinates that suit it; itself where they do already."""
    X = objective.X
    xp = array_namespace(X)
    least, most = xp.min(X, axis=0), xp.max(X, axis=0)
    centre = far_centre(least, most) if objective.intercept else None
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
        return objective, Coordinates()
    return replace(objective, X=near, units=units), Coordinates(centre, units)


def _column(values: Array, like: Array) -> Array:
    return array_namespace(values).reshape(values, (-1, *(1,) * (len(like.shape) - 1)))
