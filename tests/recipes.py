"""Ingredients of the case table: seeded features, labels, weights and covariances."""

from __future__ import annotations

import numpy as np


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
