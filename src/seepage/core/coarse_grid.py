"""The coarse public grid on which figures that depend on the data may be told.

A figure on the grid does not move with small changes of a record, so its Fisher information is zero
almost everywhere; it takes one of a few values, and the mutual information with the data is at most
the logarithm of their number. It is *not* hidden from finite changes: who knows all other records
learns something for certain where the figure with and without a record are different points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

GRID = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # points of a decade
_ROUNDING = 1e-9  # a number this close above a point is taken for the point


def round_up(value: float, grid: Sequence[float] = GRID) -> float:
    """Return the least point of the grid that is not below a positive number.

    >>> round_up(0.0213), round_up(3.0), round_up(712)
    (0.03, 3.0, 1000.0)
    """
    decade = math.floor(math.log10(value)) - 1
    points = (float(f"{step:g}e{k}") for k in range(decade, decade + 4) for step in grid)
    return next(point for point in points if point >= value * (1 - _ROUNDING))


def round_down(value: float, grid: Sequence[float] = GRID) -> float:
    """Return the largest point of the grid that is not above a positive number.

    >>> round_down(0.0213), round_down(569, (1.0, 2.0, 5.0))
    (0.02, 500.0)
    """
    decade = math.floor(math.log10(value)) + 1
    steps = sorted(grid, reverse=True)
    points = (float(f"{step:g}e{k}") for k in range(decade, decade - 4, -1) for step in steps)
    return next(point for point in points if point <= value * (1 + _ROUNDING))


def round_to_multiple(value: float, step: float) -> float:
    """Return the multiple of a step that is nearest to a number.

    >>> round_to_multiple(28.4, 5.0)
    30.0
    """
    return round(value / step) * step
