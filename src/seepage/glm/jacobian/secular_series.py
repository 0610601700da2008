"""The secular equation of ``secular.py`` far above all poles, where it is a short power series.

With ``z = ρ δ_max/λ`` and ``δ̂ = δ/δ_max``, the sums of the equation are of the form
``λ Σ p²/(λ − ρδ) = Σ_j z^j Σ p² δ̂^j``. Their coefficients, the same for every ``λ``, are one narrow
product with ``p``, after which a step of Newton's method no longer reads ``p`` at all. Where the
rank-two part dominates, as for nearly all records of standardised columns, ``z`` is a few
hundredths.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any

_SMALL = 0.1  # the largest z for which the series is trusted
# The powers kept in each step of Newton's method: the error relative to λ goes from z over z³ and
# z⁷ to z¹⁵, and with z at most a tenth all beyond the last is below rounding.
_POWERS = (3, 7, 16)


def solve_far_above(
    rho: Array, delta: Array, p: Array, q: Array, c: Array, s: Array
) -> tuple[Array, Array]:
    """Return the largest eigenvalue of every matrix, and whether it is exact to rounding.

    Where it is not, it is a guess at it, or zero for no idea. Arguments as for
    :func:`seepage.glm.jacobian.secular.largest_eigenvalue`, at least two columns.
    """
    xp = array_namespace(p)
    most = delta[-1]
    share = delta / most if float(most) > 0 else delta
    powers = xp.stack([share**j for j in range(_POWERS[-1] + 1)])
    # One row for each power, so that all that follows goes through memory in order.
    p_p, p_q = powers @ (p * p).T, (powers * q[None, :]) @ p.T
    q_q = powers @ (q * q)
    pole = rho * most
    guess, _ = positive_root(
        c * p_p[0, :] + 2 * s * p_q[0, :], _product(s, p_p[0, :], p_q[0, :], q_q[0])
    )
    settled = xp.zeros_like(guess) > 0
    for last in _POWERS:
        known = guess > 2 * pole
        inverse = 1 / xp.where(known, guess, xp.ones_like(guess))
        z = xp.where(known, pole * inverse, xp.zeros_like(pole))
        (k11, d11), (k12, d12), (k22, d22) = (
            _sum(terms[: last + 1, ...], z) for terms in (p_p, p_q, q_q[:, None])
        )
        # K = G(z)/λ, so that −λ² K' = G + zG'.
        d11, d12, d22 = k11 + z * d11, k12 + z * d12, k22 + z * d22
        trace, trace_slope = c * k11 + 2 * s * k12, c * d11 + 2 * s * d12
        root, discriminant = positive_root(trace, _product(s, k11, k12, k22))
        det_slope = s * s * (d11 * k22 + k11 * d22 - 2 * k12 * d12)
        # Newton's method for 1/μ = 1 with μ = root/λ, as in ``secular.py``; falling by its nature.
        fall = root * trace_slope + det_slope
        usable = known & (fall > 0)
        step = xp.where(
            usable,
            root * (root - guess) * discriminant / xp.where(usable, fall, xp.ones_like(fall)),
            xp.zeros_like(guess),
        )
        guess = xp.where(usable, guess + step, xp.zeros_like(guess))
        small = usable & (z <= _SMALL)
        settled = small & (z * step * step <= xp.finfo(p.dtype).eps * guess * guess)
    return guess, settled


def _sum(terms: Array, z: Array) -> tuple[Array, Array]:
    """Return ``Σ_j terms_j z^j`` and its slope, the last term standing for all that follow."""
    tail = 1 / (1 - z)
    total = terms[-1, ...] * tail
    slope = total * tail
    for j in range(terms.shape[0] - 2, -1, -1):
        slope = slope * z + total
        total = total * z + terms[j, ...]
    return total, slope


def _product(s: Array, k11: Array, k12: Array, k22: Array) -> Array:
    """Return ``s² det K``, which is not negative."""
    xp = array_namespace(k11)
    det = k11 * k22 - k12 * k12
    return s * s * xp.where(det > 0, det, xp.zeros_like(det))


def positive_root(trace: Array, minus_det: Array) -> tuple[Array, Array]:
    """Return the larger root of ``μ² − trace·μ − minus_det = 0`` and the discriminant's root.

    ``minus_det`` is not negative, and the form is chosen so that nothing cancels.
    """
    xp = array_namespace(trace)
    root = xp.sqrt(trace * trace + 4 * minus_det)
    helper = root + xp.abs(trace)
    safe = xp.where(helper > 0, helper, xp.ones_like(helper))
    return xp.where(trace >= 0, helper / 2, 2 * minus_det / safe), root
