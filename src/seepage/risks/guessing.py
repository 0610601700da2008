"""Success rates of the best guess, given the distances between the candidates' releases.

**Two candidates.** Let μ be the distance between their releases in units of the noise. At the false
positive rate α, the best test of ``N(0, 1)`` against ``N(μ, 1)`` from one draw has the true
positive rate ``TPR(α) = Φ(Φ⁻¹(α) + μ)``, as in Gaussian differential privacy (Dong, Roth and Su
2022). For independent releases, squared distances add up.

**K candidates.** A release θ is drawn from one of ``N(w_k, I)``, with prior probabilities ``p_k``.
By Bayes' rule, the best guess is the candidate with the largest ``p_k N(θ; w_k, I)``; its success
rate is ``∫ max_k p_k N(θ; w_k, I) dθ``. The success rate depends on the ``w_k`` only through their
inner products (or distances) and grows with every distance. It is never below ``max_k p_k``, the
success rate without the release.

**A number, to within a tolerance.** The number is one of ``v_1 < … < v_G`` with probabilities
``p``; the release is ``w_v`` plus standard normal noise. The best guess is the interval of width
``2t`` with the largest posterior probability. Its success rate is ``E max_a P(v_a ≤ v ≤ v_a + 2t |
release)``: the mean of a bounded quantity over draws of the release, returned with a confidence
interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, owens_t, softmax
from scipy.stats import qmc

from seepage.errors import InputError

_SAME = 1e-12  # squared distance below which two candidates are the same release
_SCRAMBLES = 16  # independent repeats from which the error of an integral is estimated
_FARTHEST = 75.0  # a distance at which nothing is left to doubt in double precision


def advantage(mu: Any) -> np.ndarray:
    """Return the largest difference between true and false positive rates, ``2Φ(μ/2) − 1``.

    >>> advantage([0.0, 1.0]).round(3).tolist()
    [0.0, 0.383]
    """
    return np.asarray(2 * ndtr(np.asarray(mu, dtype=float) / 2) - 1)


def accuracy(mu: Any, prior: Any = 0.5) -> np.ndarray:
    """Return the success rate of the best test if the first candidate has probability ``prior``.

    With the prior p and ``l = log(p/(1 − p))``, the rate is ``pΦ(μ/2 + l/μ) + (1 − p)Φ(μ/2 −
    l/μ)``; at ``p = ½`` it is ``Φ(μ/2)``.

    >>> accuracy([0.0, 1.0]).round(3).tolist()
    [0.5, 0.691]
    """
    mu, p = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(prior, dtype=float))
    if not np.all((p >= 0) & (p <= 1)):
        raise InputError("prior must be a probability between 0 and 1.")
    apart = np.where(mu > 0, mu, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(p) - np.log1p(-p)
        shift = odds / apart
        right = p * ndtr(mu / 2 + shift) + (1 - p) * ndtr(mu / 2 - shift)
    known = (p == 0) | (p == 1)
    right = np.where(np.isinf(mu) | known, 1.0, right)
    return np.asarray(np.where((mu > 0) | known, right, np.maximum(p, 1 - p)))


def accuracy_beside(mu: Any, prior: Any, epsilon: Any, delta: Any = 0.0) -> np.ndarray:
    """Return the success rate when (ε, δ)-differentially private figures are published as well.

    At worst, these figures reveal the truth with probability δ and otherwise the result of
    randomised response, which is correct with probability ``q = e^ε/(1 + e^ε)`` (Kairouz, Oh and
    Viswanath 2015). Given the output of randomised response, the prior ``p`` becomes ``pq/(pq + (1
    − p)(1 − q))``.

    >>> accuracy_beside([0.0, 1.0], 0.5, 0.45).round(3).tolist()
    [0.611, 0.709]
    >>> accuracy_beside([0.0, 1.0], 0.5, 0.45, 0.1).round(3).tolist()
    [0.65, 0.738]
    """
    p, q = np.asarray(prior, dtype=float), 1 / (1 + np.exp(-np.asarray(epsilon, dtype=float)))
    first, second = p * q + (1 - p) * (1 - q), p * (1 - q) + (1 - p) * q
    named_first, named_second = accuracy(mu, p * q / first), accuracy(mu, p * (1 - q) / second)
    right, revealed = first * named_first + second * named_second, np.asarray(delta, dtype=float)
    return np.asarray(revealed + (1 - revealed) * right)


def distance(right: Any, prior: Any, epsilon: float = 0.0, delta: float = 0.0) -> np.ndarray:
    """Return the μ at which the best test has this success rate: the inverse of :func:`accuracy`.

    With ε and δ, the function inverts :func:`accuracy_beside`; the result is zero if the private
    figures alone reach this success rate.

    >>> distance(accuracy(1.5, 0.9), 0.9).round(9).tolist()
    1.5
    >>> distance(accuracy_beside(1.5, 0.5, 0.4), 0.5, 0.4).round(9).tolist()
    1.5
    """
    right, prior = np.broadcast_arrays(np.asarray(right, float), np.asarray(prior, float))
    ends = np.zeros(right.shape), np.full(right.shape, _FARTHEST)

    def found(mu: Any) -> np.ndarray:
        return accuracy_beside(mu, prior, epsilon, delta)

    _, mu = _halved(lambda middle: found(middle) < right, *ends)
    return np.asarray(np.where(found(_FARTHEST) <= right, np.inf, mu))


def _halved(
    below: Callable[[np.ndarray], Any], low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bisect intervals to floating-point precision; ``below`` is true if the root is higher."""
    for _ in range(120):
        middle, before = (low + high) / 2, (low, high)
        up = below(middle)
        low, high = np.where(up, middle, low), np.where(up, high, middle)
        if np.array_equal(before, (low, high)):  # and so for ever
            break
    return low, high


def right_beside(
    right: Any, baseline: Any, levels: int, epsilon: float, delta: float = 0.0
) -> np.ndarray:
    """Return the largest success rate when (ε, δ)-differentially private figures are published too.

    ``right`` and ``baseline`` are the success rates with the release and without it, among
    ``levels`` candidates. For two levels, these rates determine the distance, and
    :func:`accuracy_beside` is exact. For more levels, the figures multiply the odds of the best
    guess by at most ``e^ε``, and with probability at most δ they reveal the value.

    >>> right_beside(0.8, 0.5, 3, 0.45).round(3).tolist()
    0.863
    """
    right = np.asarray(right, dtype=float)
    if not (epsilon or delta):
        return np.asarray(right)
    if levels == 2:
        return accuracy_beside(distance(right, baseline), baseline, epsilon, delta)
    odds = right / (right + (1 - right) * math.exp(-epsilon))
    return np.asarray(np.minimum(odds + delta, 1.0))


def true_positive_rate(mu: Any, false_positive_rate: Any) -> np.ndarray:
    """Return the largest true positive rate of a test with this false positive rate.

    >>> true_positive_rate([0.0, 1.0], 0.01).round(4).tolist()
    [0.01, 0.0924]
    """
    alpha = np.asarray(false_positive_rate, dtype=float)
    if not np.all((alpha >= 0) & (alpha <= 1)):
        raise InputError("A false positive rate must be between 0 and 1.")
    mu = np.asarray(mu, dtype=float)
    with np.errstate(invalid="ignore"):
        rate = ndtr(ndtri(alpha) + mu)
    return np.asarray(np.where(np.isinf(mu), 1.0, rate))


def rate_beside(rate: float, fpr: float, epsilon: float, delta: float = 0.0) -> float:
    """Return the true positive rate when (ε, δ)-differentially private figures are published too.

    Randomised response moves the threshold of the best test by ``±ε/μ``; bisection finds the
    threshold with the given false positive rate. With probability δ the figures reveal the truth,
    without false positives, so at the false positive rate α the rate is ``δ + (1 − δ) TPR(α/(1 −
    δ))``.

    >>> round(rate_beside(0.38, 0.01, 0.45), 3)
    0.399
    >>> round(rate_beside(0.01, 0.01, 0.0, 0.1), 3)
    0.11
    """
    mu = float(ndtri(rate) - ndtri(fpr))
    if delta and rate < 1:
        left = min(fpr / (1 - delta), 1.0) if delta < 1 else 1.0
        alone = rate_beside(float(true_positive_rate(mu, left)), left, epsilon)
        return delta + (1 - delta) * alone
    if not (epsilon and 0 < fpr < 1 and 0 < rate < 1):
        return rate
    q, shift = 1 / (1 + math.exp(-epsilon)), epsilon / max(mu, _SAME)

    def beyond(threshold: np.ndarray, named: float, centre: float) -> float:
        first, second = ndtr(centre + shift - threshold), ndtr(centre - shift - threshold)
        return float(named * first + (1 - named) * second)

    ends = np.asarray(-_FARTHEST - shift), np.asarray(_FARTHEST + shift)
    threshold, _ = _halved(lambda middle: beyond(middle, 1 - q, 0.0) > fpr, *ends)
    return max(rate, beyond(threshold, q, mu))


class Success(NamedTuple):
    """The success rates of the best guess, and their errors.

    For a closed form, the error is zero (up to rounding); otherwise it is the 99.9 % limit of the
    integration error.
    """

    right: np.ndarray
    error: np.ndarray


def best_guess(gram: np.ndarray, prior: np.ndarray, precision: float = 1e-5) -> Success:
    """Return the success rate of the best guess.

    Parameters
    ----------
    gram
        Inner products of the whitened means of the candidates, ``(m, K, K)``; the diagonal is
        infinite for a candidate without a release, which is then always recognised.
    prior
        The probabilities of the candidates, ``(m, K)`` or ``(K,)``.
    precision
        The target error of the integral, which has no closed form for more than three candidates.
        The error may exceed the target, above all for more than six candidates; the actual error is
        returned. For more than six candidates, a target of 0.001 or more selects a method whose
        cost is linear, not quadratic, in their number.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> best_guess((w @ w.T)[None], np.full(3, 1 / 3)).right.round(6).tolist()
    [0.779024]
    """
    gram = np.asarray(gram, dtype=float)
    count, K = gram.shape[:2]
    prior = checked_prior(prior, (count, K))
    lost = np.isinf(np.einsum("mkk->mk", gram))  # no release: guessed for certain
    certain = np.sum(np.where(lost, prior, 0.0), axis=1)
    if lost.any():
        gram = np.where(lost[:, :, None] | lost[:, None, :], 0.0, gram)
        prior = np.where(lost, 0.0, prior)
    # A candidate that has zero probability for every record is none.
    kept = np.flatnonzero(prior.max(axis=0) > 0) if prior.any() else np.array([0])
    gram, prior = gram[:, kept][:, :, kept], prior[:, kept]
    K = gram.shape[1]
    if K == 1:
        return Success(certain + prior[:, 0], np.zeros(count))
    if K == 2:
        total = prior.sum(axis=1)
        share = np.divide(prior[:, 0], total, out=np.ones(count), where=total > 0)
        apart = np.sqrt(np.maximum(gram[:, 0, 0] + gram[:, 1, 1] - 2 * gram[:, 0, 1], 0.0))
        return Success(certain + total * accuracy(apart, share), np.zeros(count))
    if K == 3:
        return Success(certain + _of_three(gram, prior), np.zeros(count))
    # By integration over Sobol points
    integrals = [_one_integral(G, p, precision) for G, p in zip(gram, prior, strict=True)]
    right, error = np.array(integrals).reshape(-1, 2).T
    # The integral is known to lie above the best guess without the release.
    return Success(np.clip(certain + right, certain + prior.max(axis=1), 1.0), error)


def guess_limit(apart: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return an upper bound on the success rate of the best guess, given the distances.

    Let ``f_k`` be the density of the release under candidate k, and ``μ_jk`` the distance between j
    and k. For any j, ``max_k p_k f_k ≤ p_j f_j + Σ_{k≠j} (p_k f_k − p_j f_j)₊``. The integral of
    each difference is the gain of a test between k and j over always naming j, so::

        right ≤ min_j  p_j + Σ_{k≠j} [(p_j + p_k) A(μ_jk, p_j/(p_j + p_k)) − p_j]

    with A from :func:`accuracy`. For two candidates, the bound is exact. The bound grows with every
    distance, so upper limits on the distances also give a valid bound.

    Parameters
    ----------
    apart
        Distances between the candidates, or upper limits on these distances, ``(m, K, K)``.
    prior
        The probabilities of the candidates, ``(m, K)``.

    Examples
    --------
    >>> import numpy as np
    >>> apart = 2.0 * (1 - np.eye(3))
    >>> guess_limit(apart[None], np.array([[0.6, 0.3, 0.1]])).round(3).tolist()
    [0.806]
    """
    limits = np.ones(len(prior))
    for j in range(prior.shape[1]):
        own, both = prior[:, j, None], prior[:, j, None] + prior
        share = np.divide(own, both, out=np.ones_like(both), where=both > 0)
        more = both * accuracy(apart[:, j], share) - own
        more[:, j] = 0.0
        limits = np.minimum(limits, prior[:, j] + np.maximum(more, 0.0).sum(axis=1))
    return np.asarray(np.maximum(limits, prior.max(axis=1)))


def checked_prior(prior: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Check the prior and return it as probabilities of this shape, with one row per record."""
    values = np.asarray(prior, dtype=float)
    if values.shape not in (shape, shape[1:]):
        raise InputError(
            f"A prior over {shape[1]} candidates needs one probability per candidate, or one row "
            f"of probabilities per record; this prior has shape {values.shape}."
        )
    if not np.all(values >= 0) or not np.allclose(values.sum(axis=-1), 1.0, atol=1e-6):
        raise InputError("The probabilities of a prior must be at least 0 and add up to 1.")
    values = values / values.sum(axis=-1, keepdims=True)
    return np.asarray(np.broadcast_to(values, shape))


def _competition(gram: np.ndarray, prior: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the condition under which candidate k, if true, wins: ``U_l ≤ b_l`` for all l.

    ``U`` is normal with mean zero and the covariance ``⟨w_k − w_l, w_k − w_m⟩``. Among identical
    candidates, the one with the larger prior wins; if the priors are equal, the first wins.

    Return the limits ``b``, (m, K − 1), and the covariances, (m, K − 1, K − 1).
    """
    others = np.array([j for j in range(gram.shape[1]) if j != k])
    to_k = gram[:, k, others]
    covariance = (
        gram[:, k, k][:, None, None]
        - to_k[:, :, None]
        - to_k[:, None, :]
        + gram[:, others][:, :, others]
    )
    squares = np.einsum("mll->ml", covariance)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(prior[:, k])[:, None] - np.log(prior[:, others])
        limits = odds + squares / 2
    same = squares <= _SAME
    wins = (odds > 0) | ((odds == 0) & (k < others)[None, :])
    limits = np.where(same, np.where(wins, np.inf, -np.inf), limits)
    never = prior[:, k] == 0
    limits[never] = -np.inf
    return limits, covariance


def _of_three(gram: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return the success rate for three candidates; each wins in a wedge of the plane.

    With ρ the correlation of two standard normals, ``P(U₁ ≤ h, U₂ ≤ k)`` is ``½Φ(h) + ½Φ(k) − T(h,
    (k − ρh)/(h√(1−ρ²))) − T(k, …)``, less ½ if h and k have opposite signs, with Owen's function T
    (1956).
    """
    total = np.zeros(len(gram))
    for candidate in range(3):
        limits, covariance = _competition(gram, prior, candidate)
        sizes = np.sqrt(np.maximum(np.einsum("mll->ml", covariance), _SAME))
        correlation = np.clip(covariance[:, 0, 1] / (sizes[:, 0] * sizes[:, 1]), -1.0, 1.0)
        limits = limits / sizes
        h, k = limits[:, 0], limits[:, 1]
        alone = np.minimum(ndtr(h), ndtr(k))  # correct where one limit is infinite, and for ρ = 1
        free = np.sqrt(np.maximum((1 - correlation) * (1 + correlation), 0.0))
        inside = np.isfinite(h) & np.isfinite(k) & (free > 0)
        h, k, free = (np.where(inside, part, 1.0) for part in (h, k, free))
        # A limit of zero makes its ratio infinite, of the sign of the numerator: T(0, ±∞) = ±¼.
        with np.errstate(divide="ignore", invalid="ignore"):
            on_h, on_k = (k - correlation * h) / (h * free), (h - correlation * k) / (k * free)
        quarter = 0.25 + np.arcsin(correlation) / (2 * math.pi)
        opposite = (h * k < 0) | ((h * k == 0) & (h + k < 0))
        wedge = 0.5 * (ndtr(h) + ndtr(k) - opposite) - owens_t(h, on_h) - owens_t(k, on_k)
        wedge = np.where((h == 0) & (k == 0), quarter, wedge)
        against = np.maximum(ndtr(limits[:, 0]) + ndtr(limits[:, 1]) - 1, 0.0)  # for ρ = −1
        finite = np.isfinite(limits).all(axis=1)
        edge = np.where(finite & (correlation < 0), against, alone)
        total += prior[:, candidate] * np.clip(np.where(inside, wedge, edge), 0.0, 1.0)
    return total


def _one_integral(gram: np.ndarray, prior: np.ndarray, precision: float) -> tuple[float, float]:
    kept = np.flatnonzero(prior > 0)
    if len(kept) == 0:  # every candidate of this record is told for certain
        return 0.0, 0.0
    gram, prior = gram[np.ix_(kept, kept)], prior[kept]
    places = _coordinates(gram)
    K, r = places.shape
    enough = precision if K <= 6 else max(precision, 1e-4)  # more directions take too many points
    if r == 1:
        return float(_won_on_lines(places, prior, np.zeros((1, 1, 0)))[0]), 0.0
    directions, most = r - 1, 1 << 17
    points = 1 << 9 if precision < 1e-3 else 1 << 7  # the first try: usually enough
    if K > 6 and precision >= 1e-3:
        # A test of every pair takes K² numbers a point, the posterior K; but it needs more points.
        rule, directions = partial(_posterior, places, prior), r + 1
        points, most = 1 << 5, 1 << 11
    elif r < K - 1:  # the candidates span fewer directions than they could
        rule = partial(_won_on_lines, places, prior)
    else:
        rule = partial(_won_in_turn, [_ordered(places, prior, k) for k in range(K)], prior)
    while True:
        values = rule(_scrambled(directions, points))
        # The limit that Student's t with 15 degrees of freedom keeps 99.9 % of the time.
        error = 4.1 * float(np.std(values, ddof=1)) / math.sqrt(_SCRAMBLES)
        if error <= enough or points >= most:
            return float(np.mean(values)), error
        points *= 4


@lru_cache(8)
def _scrambled(directions: int, points: int) -> np.ndarray:
    """Return scrambled Sobol points, one set for every repeat, (repeats, points, directions).

    The points are cached, since the integrals of many records use the same ones.
    """
    sets = [qmc.Sobol(directions, rng=np.random.default_rng(k)) for k in range(_SCRAMBLES)]
    return np.stack([one.random(points) for one in sets])


def _coordinates(gram: np.ndarray) -> np.ndarray:
    """Return points ``(K, r)`` with the distances that ``gram`` implies, widest direction first."""
    K = len(gram)
    centring = np.eye(K) - 1 / K
    values, vectors = np.linalg.eigh(centring @ gram @ centring)
    order = np.argsort(-values)
    size = max(float(values[order[0]]), 0.0)
    kept = [j for j in order if values[j] > 1e-14 * size and values[j] > _SAME] or [order[0]]
    return np.asarray(vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0.0)))


def _ordered(places: np.ndarray, prior: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the Cholesky factor of k's rivals and their limits, the strongest rivals first.

    With standard normal noise Z, k wins over l where ``⟨w_l − w_k, Z⟩ ≤ b_l = log(p_k/p_l) + ‖w_l −
    w_k‖²/2``. The order is that of Genz (1992): the next rival is the one least likely to be
    beaten, given the earlier rivals.
    """
    away = np.delete(places, k, axis=0) - places[k]
    limits = math.log(prior[k]) - np.log(np.delete(prior, k)) + np.sum(away**2, axis=1) / 2
    covariance = away @ away.T
    n = len(limits)
    L, expected = np.zeros((n, n)), np.zeros(n)
    for i in range(n):
        left = np.maximum(np.diag(covariance)[i:] - np.sum(L[i:, :i] ** 2, axis=1), 0.0)
        sizes = np.sqrt(np.maximum(left, 1e-14 * np.diag(covariance)[i:]))
        scaled = (limits[i:] - L[i:, :i] @ expected[:i]) / sizes
        j = i + int(np.argmin(scaled))
        order = np.arange(n)
        order[[i, j]] = j, i
        covariance, limits, L = covariance[np.ix_(order, order)], limits[order], L[order]
        L[i, i], top = sizes[j - i], float(scaled[j - i])
        L[i + 1 :, i] = (covariance[i + 1 :, i] - L[i + 1 :, :i] @ L[i, :i]) / L[i, i]
        # The mean of a standard normal below ``top``, −φ(top)/Φ(top).
        density = math.exp(-min(top * top, 1400) / 2) / math.sqrt(2 * math.pi)
        expected[i] = -density / (ndtr(top) + 1e-300)
    return L, limits


def _won_in_turn(
    rivals: list[tuple[np.ndarray, np.ndarray]], prior: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Return, for each point set, the probability that the truth beats all rivals (Genz 1992)."""
    repeats, count, directions = points.shape
    total = np.zeros(repeats)
    each = np.ascontiguousarray(np.moveaxis(points, -1, 0))
    for p, (L, limits) in zip(prior, rivals, strict=True):
        beaten, seen = np.ones((repeats, count)), np.empty((directions, repeats, count))
        for i in range(len(limits)):
            # The chance to beat the first rival is the same at all points.
            known = np.tensordot(L[i, :i], seen[:i], 1) if i else 0.0
            chance = ndtr((limits[i] - known) / L[i, i])
            beaten *= chance
            if i < directions:
                seen[i] = ndtri(np.clip(chance * each[i], 1e-300, 1 - 1e-16))
        total += p * beaten.mean(axis=1)
    return total


def _posterior(places: np.ndarray, prior: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return, for each point set, the mean over releases of the largest posterior probability.

    ``∫ max_k p_k f_k = E max_k P(k | θ)`` with θ drawn from the release's distribution: the first
    coordinate of a point selects the true candidate, and the others determine the noise. All
    candidates share the draws, so each point needs one product with every ``w_k``.
    """
    repeats, count, directions = points.shape
    flat = points.reshape(repeats * count, directions)
    truth = np.minimum(np.searchsorted(np.cumsum(prior), flat[:, 0], side="right"), len(prior) - 1)
    seen = places[truth] + ndtri(np.clip(flat[:, 1:], 1e-16, 1 - 1e-16))
    scores = seen @ places.T + (np.log(prior) - np.sum(places**2, axis=1) / 2)
    scores -= scores.max(axis=1, keepdims=True)
    best = 1 / np.exp(scores).sum(axis=1)
    return np.asarray(best.reshape(repeats, count).mean(axis=1))


def _won_on_lines(places: np.ndarray, prior: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the success rate for each point set; the first direction is integrated exactly."""
    repeats, count, directions = points.shape
    normals = ndtri(np.clip(points, 1e-16, 1 - 1e-16)).reshape(repeats * count, directions)
    total = np.zeros(repeats)
    for k, p in enumerate(prior):
        total += p * _interval(places, prior, k, normals).reshape(repeats, count).mean(axis=1)
    return total


def _interval(places: np.ndarray, prior: np.ndarray, k: int, normals: np.ndarray) -> np.ndarray:
    """Return the probability that k, if true, wins, given all coordinates except the first.

    In the first coordinate, k beats each rival on one side of a point, and hence all rivals in an
    interval.
    """
    low, high = np.full(len(normals), -np.inf), np.full(len(normals), np.inf)
    for rival in range(len(places)):
        if rival == k:
            continue
        away = places[rival] - places[k]
        room = math.log(prior[k] / prior[rival]) + float(away @ away) / 2 - normals @ away[1:]
        if abs(away[0]) < 1e-9:  # the first coordinate does not decide
            tied = float(away @ away) <= _SAME and prior[k] == prior[rival]
            loses = np.full(len(normals), k > rival) if tied else room < 0
            low = np.where(loses, np.inf, low)
        elif away[0] > 0:
            high = np.minimum(high, room / away[0])
        else:
            low = np.maximum(low, room / away[0])
    return np.asarray(np.maximum(ndtr(high) - ndtr(low), 0.0))


class Within(NamedTuple):
    """The success rates of the best guess, and half the width of their 99 % intervals."""

    right: np.ndarray
    error: np.ndarray


def windows(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Return which values each guess covers, ``(G, G)``: guess a covers ``v_a`` to ``v_a + 2t``.

    With the tolerance t, no other guess covers more values: any guess can be moved up until it
    starts at a value, without losing a covered value.
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
    right, error = np.ones((2, len(gram)))
    for k, p in enumerate(np.broadcast_to(prior, gram.shape[:2])):
        G = gram[k]
        if not np.isfinite(G).all():  # a value leaves no release at all: nothing more can be said
            continue
        values, vectors = np.linalg.eigh((G + G.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        with np.errstate(divide="ignore"):
            likely = np.log(p) - np.diag(G) / 2
        # The truth of each draw, spread evenly over the prior: less noisy than drawing it.
        ranks = (np.arange(draws) + rng.uniform(size=draws)) / draws
        truth = np.minimum(np.searchsorted(np.cumsum(p), ranks), len(p) - 1)
        seen = G[truth] + rng.standard_normal((draws, len(G))) @ root.T
        best = (softmax(likely[None, :] + seen, axis=1) @ covered.T.astype(float)).max(axis=1)
        right[k] = best.mean()
        error[k] = float(ndtri(0.995) * best.std(ddof=1)) / math.sqrt(draws)
    return Within(right, error)
