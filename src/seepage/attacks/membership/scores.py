"""Membership scores of records: LiRA and RMIA, online and offline.

*LiRA* (Carlini et al. 2022): the log-odds of a record's true class are approximately normal over
reference models, both those trained with the record and those trained without it. LiRA's score is
the log-likelihood ratio. Offline, without models trained on the record, LiRA's score is the number
of standard deviations by which the attacked model's log-odds exceed the mean of the reference
models.

*RMIA* (Zarifzadeh, Liu and Shokri 2024): the ratio ``p(x|θ)/p(x)`` compares the model's confidence
in the record with that of reference models. RMIA's score is the share of other population records
whose ratio is lower by at least a factor γ. Offline, ``½((1 + a)p_out + 1 − a)`` replaces ``p(x)``,
where ``p_out`` is the mean confidence of models trained without the record. The constant ``a`` is
tuned on the reference models alone.

The score is NaN if no reference model of a needed kind (with the record, or without it) exists.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata


def lira(
    target: np.ndarray,
    shadows: np.ndarray,
    inside: np.ndarray,
    *,
    online: bool = True,
    own_variance: np.ndarray | None = None,
) -> np.ndarray:
    """Return LiRA's scores, ``(n,)``; a higher score means that membership is more likely.

    Parameters
    ----------
    target
        The log-odds of every record's true class under the attacked model, ``(n,)``.
    shadows
        The same log-odds under the reference models, ``(M, n)``.
    inside
        Whether each reference model was trained on each record, ``(M, n)``.
    online
        Whether to use reference models trained with the record as well.
    own_variance
        Whether to use each record's own variance over models, ``(2, n)``: first over models trained
        without the record, then over models trained with it. By default, a record's own variance is
        used if there are at least 16 such models.
    """
    own = (None, None) if own_variance is None else own_variance
    mean_out, spread_out = _moments(shadows, ~inside, own[0])
    if not online:
        return np.asarray((target - mean_out) / np.sqrt(spread_out))
    mean_in, spread_in = _moments(shadows, inside, own[1])
    return np.asarray(
        (target - mean_out) ** 2 / (2 * spread_out)
        - (target - mean_in) ** 2 / (2 * spread_in)
        + 0.5 * np.log(spread_out / spread_in)
    )


def rmia(
    target: np.ndarray,
    shadows: np.ndarray,
    inside: np.ndarray,
    *,
    online: bool = True,
    gamma: float = 2.0,
    constant: float = 0.3,
) -> np.ndarray:
    """Return RMIA's scores, ``(n,)``, from probabilities of the records (not log-odds)."""
    out = _mean(shadows, ~inside)
    if online:
        usual = 0.5 * (out + _mean(shadows, inside))
    else:
        usual = 0.5 * ((1 + constant) * out + 1 - constant)
    ratio = target / np.maximum(usual, 1e-12)
    known = np.sort(ratio[np.isfinite(ratio)])
    if not len(known):
        return np.full(len(ratio), np.nan)
    beaten = np.searchsorted(known, ratio / gamma, side="right") / len(known)
    # The share of beaten records has many ties; the ratio itself decides between them.
    return np.where(np.isfinite(ratio), beaten + 1e-9 * ratio / known[-1], np.nan)


def score(
    target: np.ndarray,
    references: np.ndarray,
    inside: np.ndarray,
    *,
    method: str,
    online: bool,
    constant: float = 0.3,
    own_variance: np.ndarray | None = None,
) -> np.ndarray:
    """Return the mean score over the queries, from log-odds ``(n, Q)`` and ``(M, n, Q)``.

    For LiRA, the mean ranks records like the sum of the queries' log-likelihood ratios, which
    Carlini et al. 2022 derive for independent normal queries.
    """
    scores = []
    for query in range(target.shape[1]):
        mine, theirs = target[:, query], references[..., query]
        if method == "rmia":
            probabilities = expit(mine), expit(theirs)
            scores.append(rmia(*probabilities, inside, online=online, constant=constant))
        else:
            scores.append(lira(mine, theirs, inside, online=online, own_variance=own_variance))
    return np.asarray(np.mean(scores, axis=0))


def offline_constant(references: np.ndarray, inside: np.ndarray) -> float:
    """Return the constant ``a`` with which offline RMIA best separates members and non-members.

    Each of at most eight reference models, ``(M, n, Q)``, is attacked offline with the other models
    as references. The attacked model itself is not used. With fewer than two reference models, or
    if none has both members and non-members, ``a`` is 0.3.
    """
    usual = 0.3  # the paper's, for CIFAR-10
    usable = [k for k in range(len(inside)) if inside[k].any() and not inside[k].all()]
    if len(inside) < 2 or not usable:
        return usual
    candidates = np.arange(11) / 10
    totals = np.zeros(len(candidates))
    for k in usable[:8]:
        others, had = np.delete(references, k, axis=0), np.delete(inside, k, axis=0)
        for place, a in enumerate(candidates):
            values = score(
                references[k], others, had, method="rmia", online=False, constant=float(a)
            )
            totals[place] += _area(values, inside[k])
    best = np.flatnonzero(totals >= totals.max() - 1e-9)
    return float(candidates[best[np.argmin(np.abs(candidates[best] - usual))]])


def intervals(
    target: np.ndarray,
    references: np.ndarray,
    inside: np.ndarray,
    *,
    method: str,
    online: bool,
    quantile: float,
    constant: float = 0.3,
) -> np.ndarray:
    """Return the half-width of each score's confidence interval over reference models, ``(n,)``.

    The jackknife gives the half-width ``q √((M − 1)/M Σ_m (s₋ₘ − s̄)²)``, where ``s₋ₘ`` is the
    score without model ``m``, ``s̄`` the mean of these scores and ``q`` the ``quantile``.
    """
    own = np.stack([(~inside).sum(axis=0), inside.sum(axis=0)]) >= 16
    without = np.stack(
        [
            score(
                target,
                np.delete(references, k, axis=0),
                np.delete(inside, k, axis=0),
                method=method,
                online=online,
                constant=constant,
                own_variance=own,
            )
            for k in range(len(inside))
        ]
    )
    count = len(inside)
    squares = np.sum((without - without.mean(axis=0)) ** 2, axis=0)
    return np.asarray(quantile * np.sqrt((count - 1) / count * squares))


def _area(scores: np.ndarray, members: np.ndarray) -> float:
    """Return the area under the ROC curve of the records that have a score."""
    known = np.isfinite(scores)
    ranks, who = rankdata(scores[known]), members[known]
    n, m = int(who.sum()), int((~who).sum())
    return float((ranks[who].sum() - n * (n + 1) / 2) / (n * m)) if n and m else 0.5


def _mean(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    counts = which.sum(axis=0)
    mean = np.where(which, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
    return np.asarray(np.where(counts > 0, mean, np.nan))


def _moments(
    values: np.ndarray, which: np.ndarray, own: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return each record's mean and variance; with few models, all records share one variance."""
    counts = which.sum(axis=0)
    mean = _mean(values, which)
    squares = np.where(which, (values - mean) ** 2, 0.0).sum(axis=0)
    pooled = float(squares.sum()) / max(1, int(np.maximum(counts - 1, 0).sum()))
    apart = squares / np.maximum(counts - 1, 1)
    variance = np.where(counts >= 16 if own is None else own, apart, pooled)
    return mean, np.asarray(np.maximum(variance, max(1e-4 * pooled, 1e-12)))
