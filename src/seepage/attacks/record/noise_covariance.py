"""The covariance of a release's noise, which is not its information where it is not Gaussian."""

from __future__ import annotations

import numpy as np

from seepage.core.noise import Gaussian, Laplace, Noise


def covariance_times(noise: Noise | None, vectors: np.ndarray) -> np.ndarray:
    """Return ``Σ`` times some vectors, (P, k); the identity's where no noise is known."""
    if isinstance(noise, Gaussian):
        sigma = np.asarray(noise.sigma)
        if sigma.ndim == 2:
            return np.asarray(sigma @ vectors)
        return np.asarray(sigma[..., None] ** 2 * vectors)
    if isinstance(noise, Laplace):
        return np.asarray(2 * np.asarray(noise.scale)[..., None] ** 2 * vectors)
    return vectors
