"""The best test between two normal distributions with different covariances.

The whitened release is ``N(0, I)`` if the record is in the data and ``N(m, diag(1 + e))`` if it is
not. By the Neyman–Pearson lemma, the best test compares the log-likelihood ratio with a threshold::

    λ(x) = ½ Σ_k [(x_k − m_k)²/(1 + e_k) − x_k² + log(1 + e_k)]

The probability that λ exceeds a threshold is an integral. Over one coordinate, in which λ is
quadratic, the integral is a difference of normal distribution functions. Over the other
coordinates, it is a mean over a fixed set of Sobol points. With ``e = 0``, the result depends only
on ``‖m‖``, as in :mod:`seepage.risks.guessing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from seepage.errors import InputError
from seepage.risks import guessing
from seepage.support.chunks import row_slices

_POINTS = 1024  # over the other coordinates: rates are then within about 1e-3


@dataclass(frozen=True)
class TwoNormals:
    """Pairs of normal distributions, one for each record.

    Parameters
    ----------
    shift
        The shifts ``m`` of the means, (n, k), for n pairs in k dimensions; the first entry of a
        pair is infinite if its test always succeeds.
    spread
        The relative differences ``e`` of the variances, (n, k), above −1.
    """

    shift: np.ndarray
    spread: np.ndarray

    @classmethod
    def apart(cls, mu: np.ndarray) -> TwoNormals:
        """Return pairs with the distances ``mu`` and equal covariances."""
        shift = np.asarray(mu, dtype=float)[:, None]
        return cls(shift, np.zeros_like(shift))

    @classmethod
    def joined(cls, parts: Sequence[TwoNormals]) -> TwoNormals:
        """Return several sets of pairs as one set."""
        size = max(part.shift.shape[1] for part in parts)
        shift = np.concatenate([_padded(part.shift, size) for part in parts])
        return cls(shift, np.concatenate([_padded(part.spread, size) for part in parts]))

    def of(self, which: np.ndarray) -> TwoNormals:
        """Return the pairs at the given positions."""
        return TwoNormals(self.shift[which], self.spread[which])

    def put(self, which: np.ndarray, others: TwoNormals) -> TwoNormals:
        """Return a copy in which some pairs are replaced."""
        size = max(self.shift.shape[1], others.shift.shape[1])
        shift, spread = _padded(self.shift, size), _padded(self.spread, size)
        shift[which], spread[which] = _padded(others.shift, size), _padded(others.spread, size)
        return TwoNormals(shift, spread)

    def accuracy(self, prior: float = 0.5) -> np.ndarray:
        """Return the success rate of the best test if ``prior`` is the probability of membership.

        >>> pairs = TwoNormals(np.array([[0.0]]), np.array([[3.0]]))  # deviations of 1 and of 2
        >>> pairs.accuracy().round(3).tolist()
        [0.661]
        """
        if not 0 <= prior <= 1:
            raise InputError("prior must be a probability between 0 and 1.")
        right = guessing.accuracy(self.distance, prior)
        rows = self._uneven
        if len(rows) and 0 < prior < 1:
            odds = np.log1p(-prior) - np.log(prior)
            for piece, tests in self._tests(rows):
                t = np.full(len(tests.m), odds)
                found, false = tests.members(t), tests.others(t)
                right[rows[piece]] = prior * found + (1 - prior) * (1 - false)
        return np.asarray(np.maximum(right, max(prior, 1 - prior)))

    def true_positive_rate(self, fpr: float) -> np.ndarray:
        """Return the true positive rate at this false positive rate."""
        rate = guessing.true_positive_rate(self.distance, fpr)
        rows = self._uneven
        if len(rows) and 0 < fpr < 1:
            for piece, tests in self._tests(rows):
                # Ratios beyond which nothing is left to doubt.
                low, high = np.full(len(tests.m), -1e3), np.full(len(tests.m), 1e3)
                for _ in range(50):
                    middle = (low + high) / 2
                    many = tests.others(middle) > fpr
                    low, high = np.where(many, middle, low), np.where(many, high, middle)
                rate[rows[piece]] = tests.members(high)
        return np.asarray(np.maximum(rate, fpr))

    def area(self) -> np.ndarray:
        """Return the area under the ROC curve; Φ(μ/√2) for equal covariances."""
        area = ndtr(self.distance / np.sqrt(2))
        rows = self._uneven
        if len(rows):
            # From 1,000 to −1,000, and close together around 0, where most of λ lies.
            thresholds = -np.sinh(np.linspace(-8, 8, 129)) / np.sinh(8) * 1e3
            for piece, tests in self._tests(rows):
                grid = [np.full(len(tests.m), t) for t in thresholds]
                found, false = (
                    np.stack([ask(t) for t in grid], axis=1)
                    for ask in (tests.members, tests.others)
                )
                area[rows[piece]] = np.trapezoid(found, false, axis=1)
        return np.asarray(area)

    @property
    def distance(self) -> np.ndarray:
        """``‖m‖``, which is the distance μ if the covariances are equal."""
        return np.asarray(np.linalg.norm(self.shift, axis=1))

    @property
    def _uneven(self) -> np.ndarray:
        """The pairs with different covariances."""
        differ = np.any(self.spread != 0, axis=1)
        return np.flatnonzero(differ & np.isfinite(self.distance))

    def _tests(self, rows: np.ndarray) -> Iterator[tuple[slice, _Tests]]:
        """Yield the best tests of some pairs, a few at a time."""
        for piece in row_slices(len(rows), _POINTS * self.shift.shape[1]):
            yield piece, _Tests(self.shift[rows[piece]], self.spread[rows[piece]])


class _Tests:
    """The best tests of some pairs; λ's terms in the sampled coordinates are computed once."""

    def __init__(self, shift: np.ndarray, spread: np.ndarray) -> None:
        # The coordinate that says most is integrated exactly.
        order = np.argsort(-(shift**2 + np.log1p(spread) ** 2), axis=1, kind="stable")
        m, e = (np.take_along_axis(one, order, axis=1)[:, None, :] for one in (shift, spread))
        self.m, self.e = m[:, :, 0], e[:, :, 0]
        m, e, z = m[:, :, 1:], e[:, :, 1:], _normal_points(shift.shape[1] - 1)[None]
        self.inside, self.outside = (
            ((x - m) ** 2 / (1 + e) - x**2 + np.log1p(e)).sum(axis=2) / 2
            for x in (z, m + np.sqrt(1 + e) * z)
        )

    def members(self, threshold: np.ndarray) -> np.ndarray:
        """Return ``P(λ > t)`` for the release with the record."""
        need = threshold[:, None] - self.inside
        return np.asarray(_quadratic_above(need, self.m, self.e, 0.0, 1.0).mean(axis=1))

    def others(self, threshold: np.ndarray) -> np.ndarray:
        """Return ``P(λ > t)`` for the release without the record."""
        need = threshold[:, None] - self.outside
        rates = _quadratic_above(need, self.m, self.e, self.m, np.sqrt(1 + self.e))
        return np.asarray(rates.mean(axis=1))


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, size - values.shape[1])))


@lru_cache(maxsize=16)
def _normal_points(size: int) -> np.ndarray:
    """Return Sobol points transformed to standard normal numbers, (points, size)."""
    if size == 0:
        return np.zeros((1, 0))
    return np.asarray(ndtri(qmc.Sobol(size, rng=np.random.default_rng(0)).random(_POINTS)))


def _quadratic_above(
    need: np.ndarray, m: np.ndarray, e: np.ndarray, mean: Any, scale: Any
) -> np.ndarray:
    """Return ``P(½[(x − m)²/(1 + e) − x² + log(1 + e)] > need)`` for a normal x."""
    # a x² + b x + c > 0
    a, b = -e / (1 + e) / 2, -m / (1 + e)
    c = (m**2 / (1 + e) + np.log1p(e)) / 2 - need
    a, b = np.broadcast_to(a, c.shape), np.broadcast_to(b, c.shape)
    straight = np.abs(e) <= 1e-9  # the roots of a quadratic so flat are lost to rounding
    with np.errstate(divide="ignore", invalid="ignore"):
        at = -c / b
        # x < at where b < 0
        line = ndtr(np.where(b < 0, at - mean, mean - at) / scale)
        line = np.where(b == 0, c > 0, line)
        inner = np.sqrt(np.maximum(b * b - 4 * a * c, 0.0))
        half = -(b + np.copysign(inner, b)) / 2
        one, two = half / a, np.where(half == 0, 0.0, c / half)
        low, high = np.minimum(one, two), np.maximum(one, two)
        between = ndtr((high - mean) / scale) - ndtr((low - mean) / scale)
    bent = np.where(a > 0, 1 - between, between)
    bent = np.where(b * b <= 4 * a * c, a > 0, bent)  # no root
    return np.asarray(np.where(straight, line, bent))
