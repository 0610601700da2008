"""The coarse grid written out: the points that figures which depend on the data are told on."""

import numpy as np

POINTS = np.array([float(f"{m}e{k}") for k in range(-12, 13) for m in (1, 1.5, 2, 3, 5, 7)])


def point_above(least: float) -> float:
    """Return the least point that is not below a number."""
    return float(POINTS[least * (1 - 1e-9) <= POINTS][0])


def point_below(value: float) -> float:
    """Return the point before one."""
    return float(POINTS[value * (1 - 1e-9) > POINTS][-1])
