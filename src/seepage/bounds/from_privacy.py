"""Reconstruction bounds that follow from differential privacy.

Rényi differential privacy of order 2 implies ``χ² ≤ e^ε − 1`` between the output distributions of
any two tables that differ in one record. This inequality bounds the variance of unbiased estimates
(Guo et al. 2022, theorem 1, via Hammersley, Chapman and Robbins). Total variation bounds the error
of every estimate: no estimate is accurate at both of two cell values whose releases are almost
indistinguishable (Le Cam's two-point method; for all cells at once, Assouad's lemma).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seepage.core.result import Result
from seepage.errors import InputError
from seepage.privacy.statements import PrivacyStatement

_DOMAIN = "Each unknown may take any value in a domain of the stated diameter."
_PROMISE = "The mechanism has the stated privacy when any one record is replaced by another."


def from_renyi(epsilon: float, diameters: Any, *, slope: Any = 1.0, bias: Any = 0.0) -> Result:
    """Return the lower bound on a record's error from Rényi differential privacy of order 2.

    Let ``D_k`` be the diameter of unknown k's domain, and ``γ_k`` the smallest slope of the mean of
    k's estimate as a function of k's true value. Then, for d unknowns (Guo et al. 2022, theorem
    1)::

        MSE per unknown  ≥  Σ_k γ_k² D_k² / (4d (e^ε − 1)) + ‖bias‖²/d

    Parameters
    ----------
    epsilon
        The ε of Rényi differential privacy at order 2, if one record is replaced.
    diameters
        The largest difference between two records in each unknown: one number, or one per unknown.
    slope
        The slope γ; 1 for an unbiased adversary.
    bias
        The bias at the true record, one number or one per unknown.

    Examples
    --------
    The example of Guo et al. 2022, a number between 0 and 100 at ε = 2:

    >>> import seepage as sp
    >>> round(float(sp.bounds.from_renyi(2.0, 100.0)))
    391
    """
    if not epsilon >= 0:
        raise InputError(f"epsilon must be at least 0, but is {epsilon!r}.")
    widths = _diameters(diameters)
    gamma, offset = (np.broadcast_to(np.asarray(v, float), widths.shape) for v in (slope, bias))
    moved = float(np.mean(gamma**2 * widths**2)) / 4
    if moved == 0 or math.isinf(epsilon):
        variance = 0.0
    elif epsilon == 0:
        variance = math.inf
    else:
        variance = moved * math.exp(-epsilon) / -math.expm1(-epsilon)
    unbiased = bool(np.all(gamma == 1) and np.all(offset == 0))
    return _bound(
        variance + float(np.mean(offset**2)),
        "The adversary's estimate is unbiased at every value within the domain."
        if unbiased
        else (
            "The adversary's estimate has the stated bias, and its mean has at least the "
            "stated slope."
        ),
        _PROMISE,
        _DOMAIN,
    )


def from_privacy(
    statement: PrivacyStatement, diameters: Any, *, slope: Any = 1.0, bias: Any = 0.0
) -> Result:
    """Return the bound of :func:`from_renyi` for a privacy guarantee.

    (ε, δ)-differential privacy with δ > 0 implies no such bound, because it allows full disclosure
    with probability δ. Use :func:`two_point`, or :meth:`seepage.privacy.GaussianDP.meeting` if the
    noise is known to be Gaussian.
    """
    epsilon = statement.renyi()
    if math.isinf(epsilon):
        raise InputError(
            "This guarantee bounds neither the Rényi divergence of order 2 nor the error of an "
            f"unbiased adversary: {statement.words}. Use two_point, which covers every adversary."
        )
    return from_renyi(epsilon, diameters, slope=slope, bias=bias)


def two_point(statement: PrivacyStatement, diameters: Any) -> Result:
    """Return the bound that a privacy guarantee implies for *every* adversary, biased or not.

    Let each unknown be one of two values ``D_k`` apart, with equal probability. If TV is the
    largest total variation distance that the guarantee allows, any estimate has::

        MSE per unknown  ≥  (1 − TV) Σ_k D_k² / (4d)

    on average over these records, and therefore for the worst-case record. Without a release (TV =
    0), this is the error of guessing the midpoint.

    Parameters
    ----------
    statement
        The privacy guarantee, from :mod:`seepage.privacy`.
    diameters
        As for :func:`from_renyi`.

    Examples
    --------
    >>> import seepage as sp
    >>> from seepage.privacy import DifferentialPrivacy
    >>> round(float(sp.bounds.two_point(DifferentialPrivacy(2.0, 1e-5), 100.0)))
    596
    """
    widths = _diameters(diameters)
    value = (1 - statement.total_variation()) * float(np.mean(widths**2)) / 4
    return _bound(
        value,
        "The error is averaged over records whose unknowns take one of two values, as far apart as "
        "the domain allows, independently and with equal probability.",
        _PROMISE,
        _DOMAIN,
    )


def membership_advantage(statement: PrivacyStatement) -> float:
    """Return the largest advantage of membership inference (Humphries et al. 2020).

    The advantage is the true positive rate minus the false positive rate of a test between two data
    sets that differ by the replacement of one record. It is at most the total variation distance,
    which is at most ``(e^ε − 1)/(e^ε + 1)`` for pure ε-differential privacy.

    Examples
    --------
    >>> from seepage.bounds import membership_advantage
    >>> from seepage.privacy import DifferentialPrivacy
    >>> round(membership_advantage(DifferentialPrivacy(2.0)), 2)
    0.76
    """
    return statement.total_variation()


def _diameters(diameters: Any) -> np.ndarray:
    widths = np.atleast_1d(np.asarray(diameters, dtype=float))
    if widths.ndim != 1 or widths.size == 0:
        raise InputError("diameters must be one number, or one number per unknown.")
    if not np.all(np.isfinite(widths)) or np.any(widths < 0):
        raise InputError("diameters must be finite and at least 0.")
    return widths


def _bound(value: float, *assumptions: str) -> Result:
    return Result(np.asarray(value), "subset", "mse", kind="bound", assumptions=assumptions)
