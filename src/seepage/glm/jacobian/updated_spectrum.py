"""The largest eigenvalue of a diagonal matrix after an update of low rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.linalg import eigvalsh
from scipy.optimize import brentq

from seepage.core.spectra import dense_largest
from seepage.tables.frames import as_numpy

Array = Any

_LOW_RANK = 0.25  # of the size; above, the matrix is written out
_CLOSEST = 256  # roundings from the largest pole at which it is first looked


def largest_after_update(delta: Array, U: Array, S: Array) -> float:
    """Return the largest eigenvalue of ``diag(δ) + U S Uᵀ``, or 0 where that is negative.

    Above all poles δ, with ``K(λ) = Uᵀ(λ − diag δ)⁻¹U = LLᵀ``, no eigenvalue exceeds λ exactly
    where the largest eigenvalue ``μ(λ)`` of ``LᵀS L`` is below one. It falls in λ, so ``1/μ = 1``
    has one root, and each look at it costs P k² operations rather than P³. Where the update has so
    large a negative part that the root lies below the largest pole, the matrix is written out.

    Parameters
    ----------
    delta
        The diagonal, ``(P,)``.
    U, S
        The update: ``(P, k)`` and a symmetric ``(k, k)``.
    """
    xp = array_namespace(delta)
    P, k = U.shape
    top = float(xp.max(delta))
    update = _wide(S)
    reach = _largest_product(update, _wide(U.T @ U))
    close = _CLOSEST * float(xp.finfo(delta.dtype).eps) * max(top, reach)
    low, high = top + close, top + reach
    if reach > 0 and k <= _LOW_RANK * P and high > low:

        def excess(at: float) -> float:
            K = U.T @ (U / (at - delta)[:, None])
            return 1 / max(_largest_product(update, _wide(K)), 1e-300) - 1

        # Rounding may leave either end on the root itself.
        if excess(low) < 0:
            if excess(high) <= 0:
                return high
            return float(brentq(excess, low, high, xtol=1e-15 * high, rtol=1e-15))
    whole = U @ (S @ U.T)
    whole[xp.arange(P), xp.arange(P)] += delta
    return float(dense_largest(whole[None, :, :])[0])


def _wide(values: Array) -> np.ndarray:
    return as_numpy(values).astype(float)


def _largest_product(S: np.ndarray, K: np.ndarray) -> float:
    """Return the largest eigenvalue of ``S K`` for a positive semi-definite ``K``."""
    scale = np.sqrt(np.diagonal(K))
    scale = np.where(scale > 0, scale, 1.0)
    # A unit diagonal first: near a pole one direction is larger than all others by far. The
    # smallest of ridges lets dependent directions through.
    correlation = K / np.outer(scale, scale)
    # By eigenvalues, for which dependent directions are no obstacle.
    values, vectors = np.linalg.eigh(correlation)
    L = scale[:, None] * (vectors * np.sqrt(np.maximum(values, 0.0)))
    last = len(K) - 1
    return float(eigvalsh(L.T @ S @ L, subset_by_index=[last, last])[0])
