"""What cases are made of: a record of one release, and seeded features, labels and weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

import seepage as sp

# Losses whose label slope is not −1, as a user would add them: one robust, one for waiting times.
OWN_FAMILIES = {
    "pseudo-huber": sp.glm.Family(
        "pseudo-huber",
        loss=lambda m, y: (1 + (m - y) ** 2) ** 0.5 - 1,
        slope=lambda m, y: (m - y) * (1 + (m - y) ** 2) ** -0.5,
        curvature=lambda m, y: (1 + (m - y) ** 2) ** -1.5,
        label_slope=lambda m, y: -((1 + (m - y) ** 2) ** -1.5),
        mean=lambda m: m,
    ),
    "exponential": sp.glm.Family(
        "exponential",
        loss=lambda m, y: y * array_namespace(m).exp(-m) + m,
        slope=lambda m, y: 1 - y * array_namespace(m).exp(-m),
        curvature=lambda m, y: y * array_namespace(m).exp(-m),
        label_slope=lambda m, y: -array_namespace(m).exp(-m),
        mean=lambda m: array_namespace(m).exp(m),
    ),
}


@dataclass(frozen=True, eq=False)
class Case:
    """One release: a family fitted on a table, and the noise added to its parameters."""

    name: str
    family: str
    X: np.ndarray
    y: np.ndarray
    l2: float = 0.0
    intercept: bool = False
    sample_weight: np.ndarray | None = None
    noise: Any = field(default_factory=lambda: sp.Gaussian(1.0))

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def d(self) -> int:
        return self.X.shape[1]


def table(seed: int, n: int, d: int) -> np.ndarray:
    """Standard normal features."""
    return np.random.default_rng(seed).standard_normal((n, d))


def straight(seed: int, X: np.ndarray, spread: float = 0.5) -> np.ndarray:
    """Real labels: a linear signal and noise."""
    rng = np.random.default_rng(seed)
    signal = X @ rng.standard_normal(X.shape[1]) / np.linalg.norm(X, axis=0).max()
    return 3 * signal + spread * rng.standard_normal(len(X)) + 0.7


def binary(seed: int, X: np.ndarray) -> np.ndarray:
    """Labels 0 and 1, both present, with a mild signal."""
    rng = np.random.default_rng(seed)
    signal = X @ rng.standard_normal(X.shape[1]) / np.sqrt(X.shape[1])
    score = signal + 1.5 * rng.logistic(size=len(X))
    return (score > np.median(score)).astype(float)


def counts(seed: int, X: np.ndarray) -> np.ndarray:
    """Counts with some zeros among them."""
    rng = np.random.default_rng(seed)
    signal = X @ rng.standard_normal(X.shape[1]) / np.linalg.norm(X, axis=1).max()
    return rng.poisson(np.exp(0.6 + 0.8 * signal)).astype(float)


def classes(seed: int, X: np.ndarray, outputs: int) -> np.ndarray:
    """Integer classes, all of them present, with a mild signal."""
    rng = np.random.default_rng(seed)
    scores = X @ rng.standard_normal((X.shape[1], outputs)) / np.sqrt(X.shape[1])
    drawn = np.argmax(scores + 1.5 * rng.gumbel(size=scores.shape), axis=1)
    drawn[:outputs] = np.arange(outputs)
    return drawn


def uneven(seed: int, n: int, decades: float = 1.0) -> np.ndarray:
    """Positive sample weights spread over so many powers of ten either side of one."""
    return 10.0 ** np.random.default_rng(seed).uniform(-decades, decades, n)


def covariance(seed: int, size: int) -> np.ndarray:
    """A full covariance matrix with a condition number of about a hundred."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    sigma = (basis * np.geomspace(0.1, 10.0, size)) @ basis.T
    return (sigma + sigma.T) / 2


def hadamard(n: int) -> np.ndarray:
    """Sylvester's matrix of ±1 with exactly orthogonal columns, n a power of two."""
    H = np.ones((1, 1))
    while len(H) < n:
        H = np.block([[H, H], [H, -H]])
    return H
