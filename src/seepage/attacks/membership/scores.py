"""Evidence that a record was in the data: LiRA and RMIA, online and offline.

*LiRA* (Carlini et al. 2022): over shadow models with the record, and over those without, the
log-odds of its own class are approximately normal; the score is the log-likelihood ratio or,
without shadow models that have the record (offline), how far the attacked model lies above those
without it.

*RMIA* (Zarifzadeh, Liu and Shokri 2024): how much better the model knows the record than shadow
models do, ``p(x|θ)/p(x)``, against the same ratio of every other record of the population: the
score is the share of them that it beats by a factor γ.
"""

from __future__ import annotations

import numpy as np


def lira(
    target: np.ndarray, shadows: np.ndarray, inside: np.ndarray, *, online: bool = True
) -> np.ndarray:
    """Return LiRA's scores, ``(n,)``: the higher, the likelier the record is a member.

    Parameters
    ----------
    target
        The log-odds of every record's own class under the attacked model, ``(n,)``.
    shadows
        The same under shadow models, ``(M, n)``.
    inside
        Whether each shadow model had each record, ``(M, n)``.
    online
        Whether shadow models with the record are used as well.
    """
    mean_out, spread_out = _moments(shadows, ~inside)
    if not online:
        return np.asarray((target - mean_out) / np.sqrt(spread_out))
    mean_in, spread_in = _moments(shadows, inside)
    return np.asarray(
        (target - mean_out) ** 2 / (2 * spread_out)
        - (target - mean_in) ** 2 / (2 * spread_in)
        + 0.5 * np.log(spread_out / spread_in)
    )


def rmia(
    target: np.ndarray,
    shadows: np.ndarray,
    inside: np.ndarray,
    *,
    online: bool = True,
    gamma: float = 2.0,
) -> np.ndarray:
    """Return RMIA's scores, ``(n,)``, from probabilities instead of log-odds."""
    out = _mean(shadows, ~inside)
    # Offline, ½((1 + a)p_out + 1 − a) stands for the mean, with RMIA's a = 0.3.
    usual = 0.5 * (out + _mean(shadows, inside) if online else 1.3 * out + 0.7)
    ratio = target / np.maximum(usual, 1e-12)
    beaten = np.searchsorted(np.sort(ratio), ratio / gamma, side="right")
    # The share of beaten records has many ties; the ratio itself decides between them.
    return np.asarray(beaten / len(ratio) + 1e-9 * ratio / ratio.max())


def _mean(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    counts = which.sum(axis=0)
    mean = np.where(which, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
    return np.asarray(np.where(counts > 0, mean, values.mean(axis=0)))


def _moments(values: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each record's mean and variance; with few models, one variance for all."""
    counts = which.sum(axis=0)
    mean = _mean(values, which)
    squares = np.where(which, (values - mean) ** 2, 0.0).sum(axis=0)
    pooled = float(squares.sum()) / max(1, int(np.maximum(counts - 1, 0).sum()))
    own = squares / np.maximum(counts - 1, 1)
    variance = np.where(counts >= 16, own, pooled)
    return mean, np.asarray(np.maximum(variance, max(1e-4 * pooled, 1e-12)))
