"""Exact medians and quantiles of numbers computed chunk by chunk, without storing them.

Numbers that are not negative are ordered like their bits, read as whole numbers. A first pass
counts them by their leading bits. Further passes look into the bins that hold a wanted rank, with
256 finer bins each, until a bin has few enough numbers to list: mostly two or three passes for
millions of rows, and never more than six. A pass keeps at most four kilobytes for every wanted
rank, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_COARSE = 48  # bits that the first pass leaves open: 16 bins from a number to its double
_COLUMN = 64 - _COARSE  # bits of a key below those of the column
_FINER = 8  # bits that each further pass settles
_FEW = 512  # up to this many numbers are listed


@dataclass(frozen=True, eq=False)
class Bins:
    """How many numbers of every column lie in every bin; two sets of rows add up."""

    # The column and the leading bits of the numbers in a bin, sorted; empty bins are left out
    keys: np.ndarray
    counts: np.ndarray  # how many there are

    def __add__(self, other: Bins) -> Bins:
        keys, place = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        counts = np.zeros(len(keys), dtype=np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        return Bins(keys, counts)

    def interval(self, column: int, rank: int) -> Interval:
        """Return the bin of the number that has a rank (from 0) in its column."""
        first, last = np.searchsorted(self.keys, [column << _COLUMN, (column + 1) << _COLUMN])
        upto = np.cumsum(self.counts[first:last])
        place = int(np.searchsorted(upto, rank, side="right"))
        low = int(self.keys[first + place]) - (column << _COLUMN)
        count = int(self.counts[first + place])
        return Interval(column, low << _COARSE, _COARSE, int(upto[place]) - count, count)


@dataclass(frozen=True)
class Interval:
    """The numbers of a column whose bits are ``low`` to ``low + 2**shift - 1``.

    There are ``count`` of them, and ``before`` numbers of the column are smaller.
    """

    column: int
    low: int
    shift: int
    before: int
    count: int

    @property
    def few(self) -> bool:
        """Whether its numbers are few enough to list."""
        return self.count <= _FEW

    @property
    def finer(self) -> int:
        """The bits that are left open in its finer bins."""
        return max(0, self.shift - _FINER)


@dataclass(frozen=True, eq=False)
class Inside:
    """The contents of some intervals: the bits of few numbers, or counts in finer bins."""

    found: tuple[np.ndarray, ...]
    least: np.ndarray
    most: np.ndarray
    few: tuple[bool, ...]

    def __add__(self, other: Inside) -> Inside:
        return Inside(
            tuple(
                np.concatenate([a, b]) if few else a + b
                for a, b, few in zip(self.found, other.found, self.few, strict=True)
            ),
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
            self.few,
        )


def bin_numbers(numbers: np.ndarray) -> Bins:
    """Return the bins of some rows of numbers, ``(m, q)``, none of them negative."""
    keys, counts = [], []
    for column, bits in enumerate((_bits(numbers) >> _COARSE).T):
        least = int(bits.min())
        there = np.bincount(bits - least)
        found = np.flatnonzero(there)
        keys.append(found + least + (column << _COLUMN))
        counts.append(there[found])
    return Bins(np.concatenate(keys), np.concatenate(counts))


def look_into(intervals: Sequence[Interval], columns: Sequence[int], numbers: np.ndarray) -> Inside:
    """Return what some rows have in these intervals; ``numbers`` holds the named columns."""
    bits = _bits(numbers)
    place = {column: k for k, column in enumerate(columns)}
    found, least, most = [], [], []
    for interval in intervals:
        here = bits[:, place[interval.column]] - interval.low
        here = here[(here >= 0) & (here < 1 << interval.shift)]
        least.append(int(here.min(initial=1 << interval.shift)))
        most.append(int(here.max(initial=-1)))
        if not interval.few:
            here = np.bincount(
                here >> interval.finer, minlength=1 << (interval.shift - interval.finer)
            )
        found.append(here)
    few = tuple(interval.few for interval in intervals)
    return Inside(tuple(found), np.asarray(least), np.asarray(most), few)


def select(
    bins: Bins,
    wanted: Sequence[tuple[int, int]],
    look: Callable[[tuple[Interval, ...]], Inside],
) -> list[float]:
    """Return the numbers with the wanted ranks (from 0, the smallest) in their columns.

    ``bins`` are those of all rows, and ``look`` is a pass over them: the sum of what
    :func:`look_into` finds in the chunks.
    """
    settled: dict[tuple[int, int], int] = {}
    open_ = {(column, rank): bins.interval(column, rank) for column, rank in wanted}
    while open_:
        intervals = tuple(dict.fromkeys(open_.values()))
        seen = look(intervals)
        place = {interval: k for k, interval in enumerate(intervals)}
        narrower = {}
        for (column, rank), interval in open_.items():
            k = place[interval]
            nearer = _narrow(interval, rank, seen.found[k], int(seen.least[k]), int(seen.most[k]))
            if isinstance(nearer, int):
                settled[column, rank] = nearer
            else:
                narrower[column, rank] = nearer
        open_ = narrower
    return [float(np.int64(settled[one]).view(np.float64)) for one in wanted]


def _narrow(
    interval: Interval, rank: int, found: np.ndarray, least: int, most: int
) -> Interval | int:
    """Return the bits of the number with this rank, or a narrower interval around it."""
    if interval.few:
        return interval.low + int(np.sort(found)[rank - interval.before])
    if least == most:  # many rows with the same number
        return interval.low + least
    upto = np.cumsum(found)
    place = int(np.searchsorted(upto, rank - interval.before, side="right"))
    shift, count = interval.finer, int(found[place])
    low = interval.low + (place << shift)
    if shift == 0:
        return low
    return Interval(interval.column, low, shift, interval.before + int(upto[place]) - count, count)


def _bits(numbers: np.ndarray) -> np.ndarray:
    # The absolute value only removes the sign of zeros and NaN.
    return np.abs(np.ascontiguousarray(numbers, dtype=np.float64)).view(np.int64)
