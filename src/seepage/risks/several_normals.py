"""The success rate of the best guess among normal distributions with different covariances.

Under candidate v, with prior ``p_v``, the release is ``N(m_v, S_v)``. A guess ``a`` may cover
several candidates. The success rate of the best guess is ``E max_a P(v covered by a | release)``:
the mean of a bounded quantity over draws of the release, returned with a confidence interval. With
a common covariance, :mod:`seepage.risks.guessing` has closed forms or faster methods.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, softmax


class AmongNormals(NamedTuple):
    """The success rate of the best guess, and its error: half the width of the 99 % interval.

    ``told_apart`` is the largest success rate in distinguishing two candidates at even odds,
    computed only if each guess names one candidate (otherwise 0.5).
    """

    right: float
    error: float
    told_apart: float


def best_among(
    means: np.ndarray,
    spreads: np.ndarray,
    prior: np.ndarray,
    covered: np.ndarray,
    *,
    draws: int = 4000,
    rng: np.random.Generator,
) -> AmongNormals:
    """Return the success rate of the best guess among candidates.

    Parameters
    ----------
    means
        The means ``m_v`` of the release, (K, k).
    spreads
        The covariances ``S_v`` of the release, (K, k, k), positive definite.
    prior
        The prior probabilities ``p``, (K,).
    covered
        The candidates that each guess covers, (guesses, K); the identity if each guess names one.
    draws
        The number of draws of the release, split evenly between the candidates, at least 32 for
        each.
    rng
        The random generator of the draws.

    Examples
    --------
    >>> import numpy as np
    >>> spreads = np.array([[[1.0]], [[4.0]]])  # deviations of 1 and of 2
    >>> rng = np.random.default_rng(0)
    >>> best_among(np.zeros((2, 1)), spreads, np.full(2, 0.5), np.eye(2), rng=rng).right > 0.65
    True
    """
    K, k = means.shape
    roots = np.linalg.cholesky(spreads)
    inverses = np.linalg.inv(roots)
    constant = -np.log(np.einsum("vkk->vk", roots)).sum(axis=1)
    with np.errstate(divide="ignore"):
        believed = np.log(prior)
    normals = rng.standard_normal((max(draws // (2 * K), 16), k))
    normals = np.concatenate([normals, -normals])  # in pairs, whose errors cancel in part
    seen = means[:, None, :] + normals @ np.swapaxes(roots, 1, 2)
    likely = np.zeros((K, len(normals), K))
    for w in range(K):  # the draws of all candidates in one product
        white = (seen - means[w]).reshape(-1, k) @ inverses[w].T
        likely[:, :, w] = constant[w] - np.sum(white**2, axis=1).reshape(K, -1) / 2
    best = (softmax(likely + believed, axis=2) @ covered.T.astype(float)).max(axis=2)
    right = float(prior @ best.mean(axis=1))
    errors = prior * best.std(axis=1, ddof=1) / math.sqrt(len(normals))
    apart = 0.5
    for v in range(K if len(covered) == K and np.array_equal(covered, np.eye(K)) else 0):
        # Of v and w, the share of draws from v that v explains better, and the same of w.
        own = likely[v] - likely[v][:, [v]]
        found = np.mean(own < 0, axis=0)
        others = np.mean(likely[:, :, v] < np.einsum("wdw->wd", likely), axis=1)
        pairs = (found + others) / 2
        pairs[v] = 0.5
        apart = max(apart, float(pairs.max()))
    return AmongNormals(right, float(ndtri(0.995) * np.linalg.norm(errors)), apart)
