"""What can be told of two normal distributions at a distance μ: Gaussian differential privacy.

Whoever sees one draw of ``N(0, I)`` or of ``N(μ, I)`` and says which it was has, at best, the
trade-off curve of Dong, Roth and Su (2022), ``TPR(α) = Φ(Φ⁻¹(α) + μ)``. Distances of independent
releases add by their squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from seepage.errors import InputError


def advantage(mu: Any) -> np.ndarray:
    """Return the largest difference between true and false positive rates, ``2Φ(μ/2) − 1``.

    >>> advantage([0.0, 1.0]).round(3).tolist()
    [0.0, 0.383]
    """
    return np.asarray(2 * ndtr(np.asarray(mu, dtype=float) / 2) - 1)


def accuracy(mu: Any, prior: Any = 0.5) -> np.ndarray:
    """Return how often the best test is right when the first alternative has this probability.

    ``pΦ(μ/2 + l/μ) + (1 − p)Φ(μ/2 − l/μ)`` with ``l = log(p/(1 − p))``; ``Φ(μ/2)`` for a coin.

    >>> accuracy([0.0, 1.0]).round(3).tolist()
    [0.5, 0.691]
    """
    mu, p = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(prior, dtype=float))
    if not np.all((p >= 0) & (p <= 1)):
        raise InputError("A prior is a probability, between 0 and 1.")
    apart = np.where(mu > 0, mu, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(p) - np.log1p(-p)
        shift = odds / apart
        right = p * ndtr(mu / 2 + shift) + (1 - p) * ndtr(mu / 2 - shift)
    known = (p == 0) | (p == 1)
    right = np.where(np.isinf(mu) | known, 1.0, right)
    return np.asarray(np.where((mu > 0) | known, right, np.maximum(p, 1 - p)))


def true_positive_rate(mu: Any, false_positive_rate: Any) -> np.ndarray:
    """Return the most true positives that a test with so many false ones can have.

    >>> true_positive_rate([0.0, 1.0], 0.01).round(4).tolist()
    [0.01, 0.0924]
    """
    alpha = np.asarray(false_positive_rate, dtype=float)
    if not np.all((alpha >= 0) & (alpha <= 1)):
        raise InputError("A false positive rate is a share, between 0 and 1.")
    mu = np.asarray(mu, dtype=float)
    with np.errstate(invalid="ignore"):
        rate = ndtr(ndtri(alpha) + mu)
    return np.asarray(np.where(np.isinf(mu), 1.0, rate))
