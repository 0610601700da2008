"""Confidence intervals for an attack's accuracy, area under the ROC curve, and correlations.

*Accuracy.* All records in one release share its noise, and all releases share the records, so
guesses are not independent. Let ``a_ti = 1`` if the guess about record i of n from release t of T
is correct, and 0 otherwise. The variance of the mean accuracy ``a`` is at most the sum of its
variances over records and over releases::

    V = var_i(mean_t a_ti) / n  +  var_t(mean_i a_ti) / T

(the interaction of records and releases is counted in both terms, so the interval is conservative).
Wilson's interval is then computed with an effective sample size of ``a(1 − a)/V`` independent
guesses. With one release, this is Wilson's interval over the records.

*The area under the ROC curve* is the share of pairs (one record with the property, one without)
that the scores put in the right order, ties counting half. The interval of the area is the union of
two intervals. The first interval contains every θ that a test does not reject: ``(area − θ)² ≤ z²
V(θ)`` (Newcombe 2006), where ``z`` is the normal quantile. The width of this interval is positive
even at an area of 1, and hardly changes just below 1. The variance is::

    V(θ) = (θ(1 − θ) + (n + m − 2)(Q − θ²)) / nm

where n and m count the records with and without the property, and ``Q`` is the probability that
two pairs with a record in common are both in the right order. The distribution of the scores is
unknown, so ``Q`` is the mean of its value for normal scores, ``θ − 2 T(Φ⁻¹(θ), 1/√3)`` with Owen's
T, and for exponential scores, ``(θ/(2 − θ) + 2θ²/(1 + θ))/2`` (Hanley and McNeil 1982).

The second interval is a normal interval on the log-odds scale, with the variance
``var(v_with)/n_with + var(v_without)/n_without``, where ``v`` is a record's share of correctly
ordered pairs. This variance assumes no distribution, but is too small near 1 (DeLong, DeLong and
Clarke-Pearson 1988). The variances ``var`` are divided by n, not n − 1. With n − 1 and five records
of each kind, the union of the intervals would contain the area in up to 99 % of data sets.
``benchmarks/layer_statistics.py`` simulates the union: with six or more records of each kind, it
contains areas of 0.5, 0.8 and 0.98 in 92.7 to 97.9 % of data sets. With three to five of one kind,
it contains them in 90.5 to 98.5 %; the low shares are those of three to five records whose scores
vary twice as much as those of twice or three times as many others.

Scores may be grouped (a batch at several snapshots, or the updates of one client). The deviations
of ``v`` are then summed over each group before they are squared (Obuchowski 1997). If groups have
records of both kinds, a jackknife over groups replaces this variance. In the first interval, n and
m are replaced by the effective numbers ``n / (1 + (k − 1)ρ_v)`` for groups of k records (Kish
1965), where ``ρ_v`` is the correlation of ``v`` within a group. It follows from the intraclass
correlation ρ of the scores' normal ranks, which can be estimated even if all pairs are in the right
order. For normal scores, ``ρ_v = (Q(ρ/2) − θ²) / (Q(1/2) − θ²)``, where ``Q(r) = θ − 2 T(Φ⁻¹(θ),
√((1 − r)/(1 + r)))`` is the probability that two pairs are both in the right order if their
differences have correlation r. Near an area of 1, ``ρ_v`` is far below ρ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtri, owens_t
from scipy.stats import rankdata

from seepage.errors import InputError
from seepage.support.number_check import check_share


class ConfidenceInterval(NamedTuple):
    """The lower and upper ends of a confidence interval."""

    low: float
    high: float


def wilson(accuracy: float, count: float, level: float = 0.95) -> ConfidenceInterval:
    """Return Wilson's interval for a share of ``count`` independent guesses (Wilson 1927).

    For the share ``p`` of n guesses, the interval is ``(p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 +
    z²/n)``. Unlike the Wald interval, it is always within 0 and 1, and has a positive width even if
    all guesses are correct.
    """
    z = _normal_quantile(level)
    shrink = 1 + z * z / count
    middle = (accuracy + z * z / (2 * count)) / shrink
    reach = z * math.sqrt(accuracy * (1 - accuracy) / count + (z / (2 * count)) ** 2) / shrink
    # Rounding must not push an end past the share itself when that is 0 or 1.
    return ConfidenceInterval(
        min(max(0.0, middle - reach), accuracy), max(min(1.0, middle + reach), accuracy)
    )


def accuracy_interval(hits: np.ndarray, level: float = 0.95) -> ConfidenceInterval:
    """Return the confidence interval of the mean of ``hits``, (T, n), by release and record.

    If all guesses are correct, or all wrong, the records are assumed to be independent.
    """
    accuracy = float(hits.mean())
    variance = mean_variance(hits)
    count = accuracy * (1 - accuracy) / variance if variance > 0 else hits.shape[1]
    return wilson(accuracy, count, level)


def mean_variance(hits: np.ndarray) -> float:
    """Return ``V``, the conservative variance of the mean of ``hits``, (T, n)."""
    by_trial, by_row = hits.mean(axis=1), hits.mean(axis=0)
    over_trials = by_trial.var(ddof=1) / len(by_trial) if len(by_trial) > 1 else 0.0
    return float(by_row.var() / len(by_row) + over_trials)


class Contrast(NamedTuple):
    """Means over members and non-members and their difference, each with a standard error."""

    inside: float
    outside: float
    difference: float
    inside_error: float
    outside_error: float
    difference_error: float

    def interval(self, which: str, level: float = 0.95) -> ConfidenceInterval:
        """Return the normal confidence interval of ``inside``, ``outside`` or ``difference``."""
        middle, error = getattr(self, which), getattr(self, f"{which}_error")
        reach = _normal_quantile(level) * error
        return ConfidenceInterval(middle - reach, middle + reach)


def contrast(values: np.ndarray, inside: np.ndarray) -> Contrast:
    """Compare each record's values between models fitted with and without the record.

    ``values`` and ``inside`` are (M, n) arrays: one row per model, one column per record. Let
    ``a_i`` and ``b_i`` be a record's means over the models fitted with and without the record, and
    ``A_m`` and ``B_m`` a model's means over its members and non-members. The variance of the
    difference is at most::

        V = var_i(a_i − b_i) / n  +  var_m(A_m − B_m) / M

    as in :func:`mean_variance`. Each record is compared with itself, so differences in difficulty
    between records cancel out. If the means show no variance, the standard error is the range of
    the values (1 if the range is zero) divided by n.
    """
    sides = []
    for which in (inside, ~inside):
        masked = np.where(which, values, 0.0)
        by_record = masked.sum(axis=0) / np.maximum(which.sum(axis=0), 1)
        by_model = masked.sum(axis=1) / np.maximum(which.sum(axis=1), 1)
        sides.append((by_record, by_model))
    (a, A), (b, B) = sides
    models, records = values.shape
    reach = float(np.ptp(values)) or 1.0

    def error(by_record: np.ndarray, by_model: np.ndarray) -> float:
        over_models = by_model.var(ddof=1) / models if models > 1 else 0.0
        variance = float(by_record.var() / records + over_models)
        return math.sqrt(variance) if variance > 0 else reach / records

    return Contrast(
        float(a.mean()),
        float(b.mean()),
        float((a - b).mean()),
        error(a, A),
        error(b, B),
        error(a - b, A - B),
    )


def stratified_difference(
    strata: Sequence[tuple[float, np.ndarray, np.ndarray]], level: float = 0.95
) -> tuple[float, ConfidenceInterval]:
    """Return ``Σ_s p_s (a_s − b_s)``, the mean difference within strata, and its interval.

    Each stratum consists of a weight ``p_s`` and two arrays of hits, (T, n₁) and (T, n₂), one for
    each side. Both sides were attacked through the same releases, so the variance over releases is
    that of the difference. The two sides' records are treated as independent. The interval is
    normal; if neither side varies, its half-width is the sum of all Wilson intervals' widths,
    weighted by ``p_s``.
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
    return gap, ConfidenceInterval(gap - reach, gap + reach)


def area_under_curve(
    scores: np.ndarray, truth: np.ndarray, level: float = 0.95, *, groups: np.ndarray | None = None
) -> tuple[float, ConfidenceInterval]:
    """Return the area under the ROC curve and its confidence interval over records or groups.

    Higher ``scores``, ``(n,)``, must mean that the property is more likely; scores of one group may
    be dependent. The interval is within 0 and 1, with a positive width even at an area of 1.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks.intervals import area_under_curve
    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))[0]
    0.75
    """
    z = _normal_quantile(level)
    truth = truth.astype(bool)
    if truth.all() or not truth.any():
        raise InputError(
            "An area under the ROC curve needs records with and without the property; give both "
            "kinds."
        )
    right = _rightly_ordered(scores, truth)
    area = float(right[truth].mean())
    names = np.arange(len(scores)) if groups is None else groups
    _, group = np.unique(names, return_inverse=True)
    n, m = (_grouped_scores(scores[side], group[side]) for side in (truth, ~truth))
    low, high = _lowest(area, z, n, m), 1 - _lowest(1 - area, z, n, m)  # V(θ) = V(1 − θ)
    if 0 < area < 1:
        error = math.sqrt(_observed_variance(scores, truth, group, right)) / (area * (1 - area))
        ends = expit(logit(area) + np.array([-z, z]) * error).tolist()
        low, high = min(low, ends[0]), max(high, ends[1])
    return area, ConfidenceInterval(low, high)


class _GroupedScores(NamedTuple):
    """The number of scores of one kind, their mean group size ``Σk²/n``, and ρ."""

    number: float
    group_size: float = 1.0
    correlation: float = 0.0

    def effective_number(self, area: float) -> float:
        """Return the effective number of independent scores, ``n / (1 + (k − 1)ρ_v)``."""
        if self.correlation == 0:
            return self.number
        alone, together = (_both_right(area, r) - area**2 for r in (0.5, self.correlation / 2))
        shared = min(max(together / alone, 0.0), 1.0) if alone > 0 else self.correlation
        return self.number / (1 + (self.group_size - 1) * shared)


def _both_right(area: float, correlation: float) -> float:
    """Return ``Q(r)``, the probability that two pairs of normal scores are rightly ordered."""
    slope = math.sqrt((1 - correlation) / (1 + correlation))
    return area - 2 * float(owens_t(ndtri(area), slope))


def _area_variance(area: float, with_it: _GroupedScores, without: _GroupedScores) -> float:
    """Return ``V(θ)``, the variance of an area from two kinds of scores."""
    n, m = with_it.effective_number(area), without.effective_number(area)
    exponential = (area / (2 - area) + 2 * area**2 / (1 + area)) / 2
    both = (_both_right(area, 0.5) + exponential) / 2
    return (area * (1 - area) + (n + m - 2) * max(both - area**2, 0.0)) / (n * m)


def _lowest(area: float, z: float, n: _GroupedScores, m: _GroupedScores) -> float:
    """Return the smallest θ with ``(area − θ)² ≤ z² V(θ)``."""
    if area <= 0:
        return 0.0
    # Divided by area − θ, so that the end is found where the area is 1 and V is 0 too.
    below = area * (1 - 1e-12)
    return float(
        brentq(lambda θ: area - θ - z * z * _area_variance(θ, n, m) / (area - θ), 0.0, below)
    )


def _grouped_scores(scores: np.ndarray, group: np.ndarray) -> _GroupedScores:
    """Describe the scores of one kind.

    The intraclass correlation ρ comes from a one-way analysis of variance of the normal ranks.
    """
    _, place = np.unique(group, return_inverse=True)
    counts, n = np.bincount(place), len(scores)
    if len(counts) == n:
        return _GroupedScores(n)
    size = float(np.sum(counts**2)) / n
    if len(counts) == 1:
        return _GroupedScores(n, size, 1.0)
    ranks = ndtri(rankdata(scores) / (n + 1))
    means = np.bincount(place, ranks) / counts
    between = float(np.sum(counts * (means - ranks.mean()) ** 2)) / (len(counts) - 1)
    within = float(np.sum((ranks - means[place]) ** 2)) / (n - len(counts))
    shared = max(0.0, (between - within) * (len(counts) - 1) / (n - size))
    return _GroupedScores(n, size, shared / (shared + within) if shared + within > 0 else 1.0)


def _observed_variance(
    scores: np.ndarray, truth: np.ndarray, group: np.ndarray, right: np.ndarray
) -> float:
    """Return the estimated variance of the area; 0 if all records of one kind share a group."""
    with_it, without = (np.bincount(group, kind) > 0 for kind in (truth, ~truth))
    if min(with_it.sum(), without.sum()) < 2:
        return 0.0
    if np.any(with_it & without):
        from sklearn.metrics import roc_auc_score

        kept = [group != k for k in range(len(with_it))]
        others = np.array([roc_auc_score(truth[some], scores[some]) for some in kept])
        return float((len(others) - 1) * np.mean((others - others.mean()) ** 2))
    area, sizes = right[truth].mean(), np.where(truth, truth.sum(), (~truth).sum())
    sums = np.bincount(group, (right - area) / sizes)
    return float(np.sum(sums**2))


class RankCorrelation(NamedTuple):
    """Spearman's rank correlation, and its confidence interval."""

    value: float
    interval: ConfidenceInterval

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} ({low:.2f} to {high:.2f})".replace("-", "−")


def rank_correlation(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> RankCorrelation:
    """Return Spearman's correlation of two values per record, with its confidence interval.

    The interval is a percentile bootstrap interval over records (Efron 1979), with a fixed seed. A
    resample in which ``a`` or ``b`` is constant has no correlation and is left out. If ``a`` or
    ``b`` is constant over all records, the correlation and its interval are NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks.intervals import rank_correlation
    >>> rank_correlation(np.arange(30), np.arange(30) ** 2).value
    1.0
    """
    check_share(level, "level")
    rows = np.random.default_rng(0).integers(len(a), size=(5_000, len(a)))
    rows = np.vstack([np.arange(len(a)), rows])
    ranks = [rankdata(values[rows], axis=1) for values in (a, b)]
    centred = [r - r.mean(axis=1, keepdims=True) for r in ranks]
    scale = np.sqrt(np.sum(centred[0] ** 2, axis=1) * np.sum(centred[1] ** 2, axis=1))
    scale[scale == 0] = np.nan
    values = np.sum(centred[0] * centred[1], axis=1) / scale
    if np.isnan(values[0]):
        return RankCorrelation(math.nan, ConfidenceInterval(math.nan, math.nan))
    low, high = np.nanquantile(values[1:], ((1 - level) / 2, (1 + level) / 2))
    return RankCorrelation(float(values[0]), ConfidenceInterval(float(low), float(high)))


def _rightly_ordered(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return each record's share of correctly ranked pairs with records of the other kind.

    Ties count half.
    """
    ranks, n, m = rankdata(scores), int(truth.sum()), int((~truth).sum())
    right = np.empty(len(scores))
    right[truth] = (ranks[truth] - rankdata(scores[truth])) / m
    right[~truth] = 1 - (ranks[~truth] - rankdata(scores[~truth])) / n
    return right


def _normal_quantile(level: float) -> float:
    check_share(level, "level")
    return float(ndtri(0.5 + level / 2))
