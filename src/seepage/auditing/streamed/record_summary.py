"""What is kept of the records of a chunk: a few of them, the ends, and how the rest is spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seepage.core.order_statistics import Bins, bin_numbers

MOST = 1000  # most leaked records that are kept
LEAST = 100  # least leaked ones


@dataclass(frozen=True, eq=False)
class Ranked:
    """The records that come first by their leakage, ties in the order of the table.

    Parameters
    ----------
    sign
        -1 for the most leaked first, 1 for the least.
    most
        How many are kept.
    place, row
        Their positions, and their numbers in the table.
    numbers
        What is told of them, ``(k, t)``, the leakage first.
    """

    sign: int
    most: int
    place: np.ndarray
    row: np.ndarray
    numbers: np.ndarray

    def __add__(self, other: Ranked) -> Ranked:
        return Ranked(
            self.sign,
            self.most,
            np.concatenate([self.place, other.place]),
            np.concatenate([self.row, other.row]),
            np.concatenate([self.numbers, other.numbers]),
        ).first()

    def first(self) -> Ranked:
        """Return the ones that are kept, in order."""
        which = np.lexsort((self.place, self.sign * self.numbers[:, 0]))[: self.most]
        numbers = self.numbers[which]
        return Ranked(self.sign, self.most, self.place[which], self.row[which], numbers)


@dataclass(frozen=True, eq=False)
class RecordSummary:
    """The single records of some rows, summarised; those of two sets of rows add up.

    Parameters
    ----------
    bins
        How each of the numbers is spread.
    least, most
        The range of each.
    positive
        The range of the leakages that are finite and above zero.
    top, bottom
        The most and the least leaked records.
    """

    bins: Bins
    least: np.ndarray
    most: np.ndarray
    positive: tuple[float, float]
    top: Ranked
    bottom: Ranked

    def __add__(self, other: RecordSummary) -> RecordSummary:
        (low, high), (lower, higher) = self.positive, other.positive
        return RecordSummary(
            self.bins + other.bins,
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
            (min(low, lower), max(high, higher)),
            self.top + other.top,
            self.bottom + other.bottom,
        )


def summarise_records(
    place: np.ndarray, row: np.ndarray, numbers: np.ndarray, told: Sequence[int]
) -> RecordSummary:
    """Summarise some records by their numbers, ``(m, q)``, of which some are told of each."""
    eta = numbers[:, 0]
    positive = eta[np.isfinite(eta) & (eta > 0)]
    kept = numbers[:, list(told)]
    return RecordSummary(
        bin_numbers(numbers),
        numbers.min(axis=0),
        numbers.max(axis=0),
        (float(positive.min(initial=np.inf)), float(positive.max(initial=-np.inf))),
        Ranked(-1, MOST, place, row, kept).first(),
        Ranked(1, LEAST, place, row, kept).first(),
    )
