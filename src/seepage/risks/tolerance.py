"""The success rate of the best guess of a number to within a tolerance, for a prior on a grid.

The number is one of ``v_1 < … < v_G`` with probabilities ``p``; the release is ``w_v`` plus
standard normal noise. The best guess is the interval of width ``2t`` with the largest
posterior probability. Its success rate is ``E max_a P(v_a ≤ v ≤ v_a + 2t | release)``: the mean of
a bounded quantity over draws of the release, returned with a confidence interval.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, softmax


class Within(NamedTuple):
    """The success rates of the best guess, and half the width of their 99 % intervals."""

    right: np.ndarray
    error: np.ndarray


def windows(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the values that each guess covers, ``(G, G)``: guess a covers ``v_a`` to ``v_a + 2t``.

    No other guess covers more values: any guess can be moved up until it starts at a value, without
    losing a covered value.
    """
    slack = 1e-9 * max(1.0, float(np.max(np.abs(values))))
    ahead = values[None, :] - values[:, None]
    return np.asarray((ahead >= 0) & (ahead <= 2 * tolerance + slack))


def best_within(
    gram: np.ndarray,
    prior: np.ndarray,
    covered: np.ndarray,
    *,
    draws: int = 2000,
    rng: np.random.Generator,
) -> Within:
    """Return the success rate of the best guess to within the tolerance.

    Parameters
    ----------
    gram
        Inner products of each record's whitened releases for the values of the grid, ``(m, G, G)``.
    prior
        The probabilities of the values, ``(G,)`` or ``(m, G)``.
    covered
        The result of :func:`windows`.
    draws
        The number of draws of the release for each record.
    rng
        The random generator of the draws.

    Examples
    --------
    >>> import numpy as np
    >>> v = np.linspace(0, 1, 5)
    >>> nothing = np.zeros((1, 5, 5))
    >>> cover = windows(v, 0.25)
    >>> best_within(nothing, np.full(5, 0.2), cover, rng=np.random.default_rng(0)).right.round(6)
    array([0.6])
    """
    prior = np.broadcast_to(prior, gram.shape[:2])
    guesses = [_one(G, p, covered, draws, rng) for G, p in zip(gram, prior, strict=True)]
    right, error = np.array(guesses).reshape(-1, 2).T
    return Within(right, error)


def _one(
    gram: np.ndarray, prior: np.ndarray, covered: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    if not np.isfinite(gram).all():  # a value leaves no release at all: nothing more can be said
        return 1.0, 1.0
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    with np.errstate(divide="ignore"):
        likely = np.log(prior) - np.diag(gram) / 2
    # The truth of each draw, spread evenly over the prior: less noisy than drawing it.
    ranks = (np.arange(draws) + rng.uniform(size=draws)) / draws
    truth = np.minimum(np.searchsorted(np.cumsum(prior), ranks), len(prior) - 1)
    seen = gram[truth] + rng.standard_normal((draws, len(gram))) @ root.T
    scores = likely[None, :] + seen
    best = (softmax(scores, axis=1) @ covered.T.astype(float)).max(axis=1)
    return float(best.mean()), float(ndtri(0.995) * best.std(ddof=1)) / math.sqrt(draws)
