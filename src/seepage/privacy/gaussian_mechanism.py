"""Gaussian noise for (ε, δ)-differential privacy, computed exactly and by the classic formula."""

from __future__ import annotations

import math

from seepage.errors import InputError
from seepage.support.number_check import check_not_negative, check_positive, check_share


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest δ of the Gaussian mechanism at ε, where ``μ = sensitivity/σ``.

    ``δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)`` (Balle and Wang 2018, theorem 8).
    """
    if mu == 0:
        return 0.0
    log_delta = _log_delta(epsilon, mu)
    return math.exp(log_delta) if log_delta > -745 else 0.0


def analytic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest σ at which the Gaussian mechanism is (ε, δ)-differentially private.

    The result is exact for every ε (Balle and Wang 2018); the classic formula is valid only for ε
    below 1 and adds more noise than necessary.

    Parameters
    ----------
    epsilon, delta
        The privacy target: ε ≥ 0 and 0 < δ < 1.
    sensitivity
        The L2 sensitivity of the release.

    Examples
    --------
    >>> from seepage.privacy import analytic_gaussian_sigma, classic_gaussian_sigma
    >>> round(analytic_gaussian_sigma(0.5, 1e-5), 3)
    7.032
    >>> round(classic_gaussian_sigma(0.5, 1e-5), 3)
    9.69
    """
    _check(epsilon, delta, sensitivity)
    return sensitivity / gaussian_mu(epsilon, delta)


def classic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return ``σ = √(2 log(1.25/δ)) · sensitivity/ε`` (Dwork and Roth 2014), for 0 < ε < 1."""
    _check(epsilon, delta, sensitivity)
    if not 0 < epsilon < 1:
        raise InputError(
            f"The classic formula is valid for ε between 0 and 1, not {epsilon:g}; use "
            "analytic_gaussian_sigma."
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest ``μ = sensitivity/σ`` of an (ε, δ)-differentially private mechanism."""
    from scipy.optimize import brentq

    wanted = math.log(delta)
    low = high = 0.0  # of log μ; δ grows with μ
    while _log_delta(epsilon, math.exp(low)) > wanted:
        low -= 2.0
    while _log_delta(epsilon, math.exp(high)) < wanted:
        high += 2.0
    log_mu = brentq(lambda t: _log_delta(epsilon, math.exp(t)) - wanted, low, high, xtol=1e-14)
    return math.exp(log_mu)


def _log_delta(epsilon: float, mu: float) -> float:
    from scipy.special import log_ndtr

    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if second >= first:  # they differ by rounding only: δ is beyond the range of float64
        return -math.inf
    return first + math.log(-math.expm1(second - first))


def _check(epsilon: float, delta: float, sensitivity: float) -> None:
    check_not_negative(epsilon, "epsilon")
    check_share(delta, "delta")
    check_positive(sensitivity, "sensitivity")
