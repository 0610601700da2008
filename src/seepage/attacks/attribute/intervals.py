"""Confidence intervals of an adversary's accuracy, over the records and over the releases.

All records of one release share its noise, and all releases the records, so the guesses are not
independent of each other. With ``a_ti = 1`` where release t gives record i away, the variance of
the mean accuracy is at most the sum of the two ways in which it could have come out otherwise::

    V = var_i(mean_t a_ti) / n  +  var_t(mean_i a_ti) / T

(what is neither the record's nor the release's own doing is counted in both, so that the interval
is rather too wide than too narrow). Wilson's interval is then taken as if ``a(1 − a)/V`` guesses
had been made independently; with one release this is Wilson's interval over the records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from seepage.errors import InputError


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: float
    high: float


def wilson(accuracy: float, count: float, level: float = 0.95) -> Interval:
    """Return Wilson's interval for a share of ``count`` independent guesses (Wilson 1927).

    ``(p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)``: unlike the textbook interval it keeps
    within 0 and 1, and has a width where all guesses are right.
    """
    z = _normal_quantile(level)
    shrink = 1 + z * z / count
    middle = (accuracy + z * z / (2 * count)) / shrink
    reach = z * math.sqrt(accuracy * (1 - accuracy) / count + (z / (2 * count)) ** 2) / shrink
    # Rounding must not push an end past the share itself where that is 0 or 1.
    return Interval(
        min(max(0.0, middle - reach), accuracy), max(min(1.0, middle + reach), accuracy)
    )


def accuracy_interval(hits: np.ndarray, level: float = 0.95) -> Interval:
    """Return the interval of the mean of ``hits``, (T, n): right or wrong, by release and record.

    Where all guesses are right, or all wrong, the records count as the independent ones.
    """
    accuracy = float(hits.mean())
    variance = mean_variance(hits)
    count = accuracy * (1 - accuracy) / variance if variance > 0 else hits.shape[1]
    return wilson(accuracy, count, level)


def mean_variance(hits: np.ndarray) -> float:
    """Return ``V``, the variance of the mean of ``hits``, (T, n)."""
    by_trial, by_row = hits.mean(axis=1), hits.mean(axis=0)
    over_trials = by_trial.var(ddof=1) / len(by_trial) if len(by_trial) > 1 else 0.0
    return float(by_row.var() / len(by_row) + over_trials)


def stratified_difference(
    strata: Sequence[tuple[float, np.ndarray, np.ndarray]], level: float = 0.95
) -> tuple[float, Interval]:
    """Return ``Σ_s p_s (a_s − b_s)``, like compared with like, and its interval.

    Both sides were attacked through the same releases: the variance over the releases is that of
    the difference, and the records of the two are independent. The interval is normal; where
    neither side has any variance it is as wide as Wilson's two.

    Parameters
    ----------
    strata
        For each the share ``p_s``, and the hits of the two sides, (T, n₁) and (T, n₂).
    level
        The confidence level.
    """
    gaps = sum(share * (a.mean(axis=1) - b.mean(axis=1)) for share, a, b in strata)
    gap = float(np.mean(gaps))
    trials = np.size(gaps)
    over_rows = sum(
        share**2 * float(hits.mean(axis=0).var()) / hits.shape[1]
        for share, *sides in strata
        for hits in sides
    )
    over_trials = float(np.var(gaps, ddof=1)) / trials if trials > 1 else 0.0
    reach = _normal_quantile(level) * math.sqrt(over_rows + over_trials)
    if reach == 0:
        widths = [
            share * (end.high - end.low)
            for share, *sides in strata
            for end in (accuracy_interval(hits, level) for hits in sides)
        ]
        reach = sum(widths)
    return gap, Interval(gap - reach, gap + reach)


def _normal_quantile(level: float) -> float:
    if not 0 < level < 1:
        raise InputError(f"A confidence level lies between 0 and 1, but this one is {level!r}.")
    return float(ndtri(0.5 + level / 2))
