"""The area under the ROC curve with DeLong's confidence interval.

The area is the share of pairs (one record with the property, one without) that the scores put in
the right order, ties counting half. DeLong, DeLong and Clarke-Pearson (1988) take its variance from
each record's share of rightly ordered pairs: ``V = var(v_with)/n_with + var(v_without)/n_without``.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, logit, ndtri
from scipy.stats import rankdata

from seepage.attacks.attribute.intervals import Interval, wilson
from seepage.errors import InputError


def area_under_curve(
    scores: np.ndarray, truth: np.ndarray, level: float = 0.95
) -> tuple[float, Interval]:
    """Return the area and its interval.

    The interval is taken on the scale of log-odds, so that it stays within 0 and 1; where all pairs
    are in order, or none, it is Wilson's for as many records as the smaller side has.

    Parameters
    ----------
    scores
        Higher where the property is thought more likely, ``(n,)``.
    truth
        Whether the property is there, ``(n,)``.
    level
        Of confidence.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks.auc import area_under_curve
    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))[0]
    0.75
    """
    if not 0 < level < 1:
        raise InputError(f"A confidence level lies between 0 and 1, but this one is {level!r}.")
    truth = truth.astype(bool)
    with_it, without = scores[truth], scores[~truth]
    if not len(with_it) or not len(without):
        raise InputError("An area under the curve needs records with and without the property.")
    ranks = rankdata(scores)
    n, m = len(with_it), len(without)
    right_with = (ranks[truth] - rankdata(with_it)) / m
    right_without = 1 - (ranks[~truth] - rankdata(without)) / n
    area = float(right_with.mean())
    if min(n, m) < 2:
        return area, wilson(area, min(n, m), level)
    variance = float(right_with.var(ddof=1) / n + right_without.var(ddof=1) / m)
    if variance == 0 or not 0 < area < 1:
        return area, wilson(area, min(n, m), level)
    reach = float(ndtri(0.5 + level / 2)) * math.sqrt(variance) / (area * (1 - area))
    return area, Interval(float(expit(logit(area) - reach)), float(expit(logit(area) + reach)))
