"""Find the length of a record whose direction is known: the root nearest the usual length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

_RATIOS = np.geomspace(0.02, 50.0, 121)  # lengths tried, beside the usual one
_HALVINGS = 48

Gap = Callable[[np.ndarray, np.ndarray], np.ndarray]


def nearest_length(
    gap: Gap, shape: tuple[int, ...], usual: float, signs: Sequence[float] = (1.0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Return the length and sign, of many records at once, at which ``gap(length, sign)`` is zero.

    Of several roots the one whose length is nearest the usual one, in ratio; where there is none
    between a fiftieth of it and fifty times it, where the gap is smallest.

    Parameters
    ----------
    gap
        A continuous function of one length and sign per record.
    shape
        The shape of the array of records.
    usual
        The usual length.
    signs
        Which sides of the direction to look on.
    """
    off, smallest = np.full(shape, np.inf), np.full(shape, np.inf)
    low, high, side = (np.full(shape, value) for value in (usual, usual, signs[0]))
    with np.errstate(over="ignore", invalid="ignore"):
        for sign in signs:
            signed = np.full(shape, sign)
            before = gap(np.full(shape, usual * _RATIOS[0]), signed)
            for start, stop in pairwise(_RATIOS):
                here = gap(np.full(shape, usual * stop), signed)
                distance = abs(np.log(start * stop)) / 2
                root = (before * here <= 0) & (distance < off)
                # Kept until a root turns up: the best that can be done without one.
                closest = ~np.isfinite(off) & ~root & (np.abs(here) < smallest)
                smallest = np.where(closest, np.abs(here), smallest)
                off = np.where(root, distance, off)
                low = np.where(root, usual * start, np.where(closest, usual * stop, low))
                high = np.where(root | closest, usual * stop, high)
                side = np.where(root | closest, signed, side)
                before = here
        at_low = gap(low, side)
        for _ in range(_HALVINGS):
            middle = np.sqrt(low * high)
            short = gap(middle, side) * at_low > 0
            low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.sqrt(low * high), side
