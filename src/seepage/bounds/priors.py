"""What an adversary knows of a record before the release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """What an adversary knows beforehand: the unknowns are Gaussian.

    Parameters
    ----------
    std
        The standard deviation of every unknown: one number, one per unknown, or their covariance
        matrix.
    mean
        Their mean: one number, or one per unknown.
    """

    std: Any
    mean: Any = 0.0

    def information(self, size: int) -> np.ndarray:
        """Return the prior's information: ``1/std²`` per unknown, or the inverse covariance."""
        std = np.asarray(self.std, dtype=float)
        if std.ndim == 2:
            return np.asarray(np.linalg.inv(self.covariance(size)))
        return np.asarray(np.diagonal(self.covariance(size)) ** -1.0)

    def covariance(self, size: int) -> np.ndarray:
        """Return the covariance matrix of ``size`` unknowns."""
        std = np.asarray(self.std, dtype=float)
        if std.ndim < 2:
            std = _spread(std, size, "standard deviations")
            if not np.all(std > 0):
                raise InputError("A prior's standard deviations must be above zero.")
            return np.diag(std**2)
        if std.shape != (size, size):
            raise InputError(
                f"The prior's covariance is {std.shape}, but there are {size} unknowns."
            )
        if not np.allclose(std, std.T) or np.linalg.eigvalsh(std)[0] <= 0:
            raise InputError("A prior's covariance must be symmetric and positive definite.")
        return std

    def centre(self, size: int) -> np.ndarray:
        """Return the mean of ``size`` unknowns."""
        return _spread(np.asarray(self.mean, dtype=float), size, "means")

    def draw(self, count: int, size: int, generator: np.random.Generator) -> np.ndarray:
        """Draw ``count`` records of ``size`` unknowns."""
        root = np.linalg.cholesky(self.covariance(size))
        return np.asarray(self.centre(size) + generator.standard_normal((count, size)) @ root.T)

    @property
    def words(self) -> str:
        """What the adversary knows, as a sentence."""
        std = np.asarray(self.std, dtype=float)
        mean = _said(self.mean, "mean")
        spread = "a known covariance" if std.ndim == 2 else _said(self.std, "standard deviation")
        return (
            f"Before the release the adversary takes the unknowns to be Gaussian, with {mean} and "
            f"{spread}."
        )

    def __repr__(self) -> str:
        return f"GaussianPrior(std={_short(self.std)}, mean={_short(self.mean)})"


@dataclass(frozen=True, eq=False)
class BoundedPrior:
    """What an adversary knows beforehand: each unknown lies between two limits.

    Among all densities that vanish at the limits, ``(2/width) cos²(π (z − centre)/width)`` has the
    least Fisher information, ``(2π/width)²``. The bound holds on average over that density, hence
    also for the worst record between the limits.
    """

    lower: Any
    upper: Any

    def information(self, size: int) -> np.ndarray:
        """Return the information of the prior about each unknown, ``(2π/width)²``."""
        lower, upper = self._limits(size)
        return np.asarray((2 * np.pi / (upper - lower)) ** 2)

    def draw(self, count: int, size: int, generator: np.random.Generator) -> np.ndarray:
        """Draw ``count`` records of ``size`` unknowns from the squared cosine."""
        lower, upper = self._limits(size)
        quantiles = generator.random((count, size))
        # The distribution function of the centred density of width 1 is ½ + u + sin(2πu)/(2π).
        low, high = np.full((count, size), -0.5), np.full((count, size), 0.5)
        for _ in range(50):
            u = (low + high) / 2
            below = 0.5 + u + np.sin(2 * np.pi * u) / (2 * np.pi) < quantiles
            low, high = np.where(below, u, low), np.where(below, high, u)
        return np.asarray((lower + upper) / 2 + (low + high) / 2 * (upper - lower))

    def _limits(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        lower = _spread(np.asarray(self.lower, dtype=float), size, "lower limits")
        upper = _spread(np.asarray(self.upper, dtype=float), size, "upper limits")
        if not np.all(upper > lower):
            raise InputError("A bounded prior needs upper limits above its lower ones.")
        return lower, upper

    @property
    def words(self) -> str:
        """What the adversary knows, as a sentence."""
        limits = "limits of its own"
        if np.ndim(self.lower) == np.ndim(self.upper) == 0:
            limits = f"{_short(self.lower)} and {_short(self.upper)}"
        return (
            f"Before the release the adversary knows that each unknown lies between {limits}, "
            "rather in the middle than near an end."
        )

    def __repr__(self) -> str:
        return f"BoundedPrior(lower={_short(self.lower)}, upper={_short(self.upper)})"


@dataclass(frozen=True, eq=False)
class EmpiricalPrior:
    """What an adversary knows beforehand: the record is one of these, with these probabilities.

    It has no density, and so no van Trees bound; :class:`seepage.attacks.LinearisedAdversary` uses
    it.

    Parameters
    ----------
    points
        The records, (m, d): other people's, say, or a public sample.
    weights
        Their probabilities up to a factor; equal where not given.
    """

    points: Any
    weights: Any = None

    def records(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the records, (m, size), and their probabilities, (m,)."""
        points = np.asarray(self.points, dtype=float)
        if points.ndim != 2 or points.shape[1] != size or len(points) == 0:
            raise InputError(
                f"An empirical prior needs records of {size} unknowns, (m, {size}), not an array "
                f"of shape {points.shape}."
            )
        weights = np.ones(len(points)) if self.weights is None else np.asarray(self.weights, float)
        if weights.shape != (len(points),) or np.any(weights < 0) or not weights.sum() > 0:
            raise InputError("An empirical prior needs one weight, not negative, for each record.")
        return points, weights / weights.sum()

    def __repr__(self) -> str:
        return f"EmpiricalPrior({len(np.asarray(self.points))} records)"


def _spread(values: np.ndarray, size: int, what: str) -> np.ndarray:
    if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != size):
        raise InputError(f"The prior's {what} have shape {values.shape} for {size} unknowns.")
    if not np.all(np.isfinite(values)):
        raise InputError(f"The prior's {what} must be finite.")
    return np.broadcast_to(values, (size,))


def _said(value: Any, what: str) -> str:
    return f"{what} {_short(value)}" if np.ndim(value) == 0 else f"{what}s of their own"


def _short(value: Any) -> str:
    numbers = np.asarray(value, dtype=float)
    if numbers.ndim == 0:
        return f"{float(numbers):.4g}"
    return "<covariance>" if numbers.ndim == 2 else f"<{numbers.shape[0]} numbers>"
