"""Rank correlations with bootstrap intervals, of PLIS and what an attack finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reproduction.outcome import Quantity

Array = NDArray[np.float64]
_RESAMPLES = 5_000


@dataclass(frozen=True)
class Correlation:
    """A correlation with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def quantities(self, name: str) -> list[Quantity]:
        """Return it under that name, with its ends."""
        return [
            Quantity(name, self.value),
            Quantity(f"{name}, 95 % interval from", self.low),
            Quantity(f"{name}, 95 % interval to", self.high),
        ]

    @property
    def verdict(self) -> str:
        """Which way it falls, in words."""
        if self.low <= 0 <= self.high:
            return "no clear way"
        return "up" if self.value > 0 else "down"

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})".replace("-", "−")


def rank_correlation(a: Array, b: Array) -> Correlation:
    """Return Spearman's correlation, its interval from records drawn anew (percentiles)."""
    from scipy.stats import rankdata

    rows = np.random.default_rng(0).integers(len(a), size=(_RESAMPLES, len(a)))
    rows = np.vstack([np.arange(len(a)), rows])
    ranks = [rankdata(values[rows], axis=1) for values in (a, b)]
    centred = [r - r.mean(axis=1, keepdims=True) for r in ranks]
    scale = np.sqrt(np.sum(centred[0] ** 2, axis=1) * np.sum(centred[1] ** 2, axis=1))
    # A draw without spread, of ties alone, has no correlation and is left out.
    scale[scale == 0] = np.nan
    found = np.sum(centred[0] * centred[1], axis=1) / scale
    low, high = np.nanquantile(found[1:], (0.025, 0.975))
    return Correlation(float(found[0]), float(low), float(high))


def mean_of(values: Array) -> Correlation:
    """Return the mean of one correlation per record, its interval from records drawn anew."""
    rows = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[rows].mean(axis=1), (0.025, 0.975))
    return Correlation(float(values.mean()), float(low), float(high))
