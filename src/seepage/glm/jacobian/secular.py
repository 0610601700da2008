"""The largest eigenvalue of a diagonal plus a rank-two matrix, for many such matrices at once.

The information of a release about one record is, in a fixed basis, such a matrix::

    M = ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)

with ``δ`` and ``q`` the same for all records. With ``U = [p q]``, ``S = [[c, s], [s, 0]]`` and
``K(λ) = Uᵀ(λ − ρ diag δ)⁻¹U``, the eigenvalues are the roots of ``det(I − S K(λ))``. A step of
Newton's method needs a few sums over ``p``, and two to four steps suffice: the cost of a whole
eigenvalue problem shrinks to that of reading ``p`` as many times.

Above the largest pole, ``λ = ρ δ_max + τ`` with ``τ > 0``, the best equation is ``1/μ(λ) = 1`` with
``μ`` the largest eigenvalue of ``S K``: nearly linear where the rank-two part dominates. Near the
pole, and below it, where the largest eigenvalue can lie too because the rank-two part has one
negative eigenvalue, it is the determinant with that pole multiplied out::

    h = τ det(I − S K) = τ (1 − tr S K' − s² det K') − uᵀS u − s² uᵀadj(K')u,    u = (p_k, q_k)

where ``K'`` leaves out the pole. Its sign also keeps a bracket, which no step may leave.

Where the rank-two part dominates by far, as for most records of standardised columns, the answer
comes from a power series instead (``secular_series.py``), and otherwise often a good first guess.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_compat import array_namespace, is_numpy_array

from seepage.glm.jacobian.secular_series import positive_root, solve_far_above
from seepage.support.chunks import by_rows, chunk_for

Array = Any

_STEPS = 200  # far more than needed: a bracket is halved where Newton's method does not do better


class _Secular(NamedTuple):
    """A batch of matrices ``ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)``."""

    rho: Array  # (m,)
    delta: Array  # (k,), shared, rising
    p: Array  # (m, k)
    q: Array  # (k,), shared
    c: Array  # (m,)
    s: Array  # (m,)

    def pick(self, which: Array | slice) -> _Secular:
        return _Secular(
            self.rho[which], self.delta, self.p[which, :], self.q, self.c[which], self.s[which]
        )


def largest_eigenvalue(rho: Array, delta: Array, p: Array, q: Array, c: Array, s: Array) -> Array:
    """Return the largest eigenvalue of ``ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)`` of every row.

    Parameters
    ----------
    rho, c, s
        One number per matrix, ``(m,)``; ``rho`` and ``c`` are not negative.
    delta, q
        Shared by all matrices, ``(k,)``; ``delta`` is not negative and sorted in rising order.
    p
        One vector per matrix, ``(m, k)``.
    """
    if p.shape[1] == 1:
        p = p[:, 0]
        return rho * delta[0] + (c * p + 2 * s * q[0]) * p
    whole = _Secular(rho, delta, p, q, c, s)
    return by_rows(
        lambda rows: _answers(whole.pick(rows)),
        *p.shape,
        chunk=chunk_for(p),
        threads=is_numpy_array(p),
    )


def _answers(batch: _Secular) -> Array:
    """Take the series where it is exact, and Newton's method for the rest."""
    xp = array_namespace(batch.p)
    values, exact = solve_far_above(*batch)
    left = xp.nonzero(~exact)[0]
    if left.shape[0] == values.shape[0]:
        return _solve(batch, values)
    if left.shape[0]:
        values[left] = _solve(batch.pick(left), values[left])
    return values


def _solve(batch: _Secular, guess: Array) -> Array:
    """Return the largest eigenvalues, given guesses, which may be zero for no idea."""
    xp = array_namespace(batch.p)
    eps = xp.finfo(batch.p.dtype).eps
    top = batch.rho * batch.delta[-1]
    answer = xp.asarray(top, copy=True)
    low, tau, high = _bracket(batch, eps)
    above = guess - top
    tau = xp.where((above > top) & (above < high) & (tau > 0), above, tau)
    width, floor = -low, eps * (top + high) / 4
    active = xp.nonzero(high > 0)[0]
    if active.shape[0] < top.shape[0]:  # picking copies, so not without need
        batch = batch.pick(active)
        low, tau, high, width, top, floor = (v[active] for v in (low, tau, high, width, top, floor))
    for _ in range(_STEPS):
        if active.shape[0] == 0:
            break
        look = _look(batch, tau)
        low = xp.where(look.left_of_root, tau, low)
        high = xp.where(look.left_of_root, high, tau)
        step_to, newton = _next(look, tau, low, high, width, floor)
        # Newton's method about squares the error relative to the distance from the next root, which
        # lies below the pole: above it, a step of half the digits is the last one.
        step = xp.abs(step_to - tau)
        settled = newton & (step_to > 0) & (step * step <= eps * (top + step_to) * step_to)
        rounding = 4 * eps * (top + xp.abs(tau))
        at_root = look.rising & (width > rounding) & (xp.abs(look.by_det - tau) <= rounding)
        at_root = at_root | (look.near_one & (xp.abs(look.by_mu - tau) <= rounding))
        step_to = xp.where(at_root, tau, step_to)
        settled = settled | at_root | (high - low <= rounding) | ((low == 0) & (high <= floor))
        answer[active[settled]] = (top + step_to)[settled]
        going_on = xp.nonzero(~settled)[0]
        tau = step_to
        if going_on.shape[0] < active.shape[0]:
            batch, active = batch.pick(going_on), active[going_on]
            low, tau, high, width, top, floor = (
                v[going_on] for v in (low, tau, high, width, top, floor)
            )
    answer[active] = top + tau
    return answer


def _bracket(batch: _Secular, eps: float) -> tuple[Array, Array, Array]:
    """Return bounds on ``τ`` and where to look first.

    No eigenvalue exceeds ``ρ δ_max`` by more than the largest of the rank-two part, where Newton's
    method starts. Only where ``uᵀS u < 0`` can the largest eigenvalue lie below the pole, though
    not below the second one: there the first look is at the pole itself.
    """
    xp = array_namespace(batch.p)
    p_squared, p_with_q = xp.vecdot(batch.p, batch.p), xp.vecdot(batch.p, batch.q)
    product = p_squared * xp.sum(batch.q * batch.q)
    # The determinant may cancel down to nothing; its rounding error keeps this an upper bound.
    det = xp.abs(product - p_with_q * p_with_q) + 8 * eps * product
    high, _ = positive_root(batch.c * p_squared + 2 * batch.s * p_with_q, batch.s**2 * det)
    width = batch.rho * (batch.delta[-1] - batch.delta[-2])
    u, v = batch.p[:, -1], batch.q[-1]
    doubtful = (u * (batch.c * u + 2 * batch.s * v) < 0) & (width > 0)
    return -width, xp.where(doubtful, xp.zeros_like(high), high), high


def _next(
    look: _Look, tau: Array, low: Array, high: Array, width: Array, floor: Array
) -> tuple[Array, Array]:
    """Choose where to look next, and tell where one of Newton's steps leads there."""
    xp = array_namespace(tau)
    by_mu = (look.by_mu > xp.where(low > 0, low, xp.zeros_like(low))) & (look.by_mu < high)
    by_det = (look.by_det > low) & (look.by_det < high)
    # Nearer to the pole than the next pole is, the determinant is the better guide.
    by_mu = by_mu & ~(by_det & (tau < width))
    # Above the pole it is not, as long as the pole itself has not been looked at.
    by_det = by_det & ((low >= 0) | (tau <= 0))
    # Off the bracket: halve it, on a logarithmic scale above the pole.
    otherwise = xp.where(low > 0, xp.sqrt(xp.abs(low * high)), (low + high) / 2)
    # Look at the pole first; from there go to the upper end. A multiple pole, where nothing can be
    # computed, is only approached.
    otherwise = xp.where((low < 0) & (tau > 0), xp.zeros_like(tau), otherwise)
    otherwise = xp.where(low == 0, xp.where(tau == 0, high, floor), otherwise)
    step_to = xp.where(by_det, look.by_det, otherwise)
    return xp.where(by_mu, look.by_mu, step_to), by_mu | by_det


class _Look(NamedTuple):
    """What one evaluation tells: on which side of the root it is, and where to go next."""

    left_of_root: Array
    rising: Array  # whether h rises here, as it does at its largest root
    near_one: Array  # whether μ is close to one
    by_mu: Array
    by_det: Array


def _look(batch: _Secular, tau: Array) -> _Look:
    """Evaluate the equations at ``λ = ρ δ_max + τ``."""
    xp = array_namespace(tau)
    p, q, c, s = batch.p[:, :-1], batch.q[:-1], batch.c, batch.s
    # The resolvent, in place where possible: allocating costs more than computing here.
    resolvent = batch.rho[:, None] * (batch.delta[-1] - batch.delta[:-1])[None, :]
    resolvent += tau[:, None]
    resolvent **= -1
    scaled = p * resolvent
    resolvent *= q
    # Not as products with a matrix, whose own threads would get in the way of the caller's.
    k11, k12, k22 = (xp.vecdot(a, b) for a, b in ((scaled, p), (scaled, q), (resolvent, q)))
    d11, d12 = -xp.vecdot(scaled, scaled), -xp.vecdot(scaled, resolvent)
    d22 = -xp.vecdot(resolvent, resolvent)

    u, v, s_squared = batch.p[:, -1], batch.q[-1], s * s
    trace, trace_slope = c * k11 + 2 * s * k12, c * d11 + 2 * s * d12
    det, det_slope = k11 * k22 - k12 * k12, d11 * k22 + k11 * d22 - 2 * k12 * d12
    pole = u * (c * u + 2 * s * v)
    mixed = u * u * k22 - 2 * u * v * k12 + v * v * k11
    mixed_slope = u * u * d22 - 2 * u * v * d12 + v * v * d11

    smooth = 1 - trace - s_squared * det
    h = tau * smooth - pole - s_squared * mixed
    h_slope = smooth - tau * (trace_slope + s_squared * det_slope) - s_squared * mixed_slope
    # Below the pole h changes its sign once more at the second eigenvalue. Left of both, by
    # Haynsworth's formula, −(S − S K S) is positive definite; its trace, times −τ:
    definite = (c * c + s_squared) * (u * u + tau * k11) + 2 * c * s * (u * v + tau * k12)
    definite = definite + s_squared * (v * v + tau * k22) - c * tau
    rising = h_slope > 0
    left = (h < 0) | ((h == 0) & ~rising) | ((tau < 0) & (definite < 0))

    # The pole's share joins only here: before, the determinant would have drowned in it.
    above = tau > 0
    inverse = 1 / xp.where(above, tau, xp.ones_like(tau))
    trace, trace_slope = trace + pole * inverse, trace_slope - pole * inverse**2
    det_slope = det_slope + (mixed_slope - mixed * inverse) * inverse
    det = det + mixed * inverse
    mu, root = positive_root(trace, s_squared * xp.where(det > 0, det, xp.zeros_like(det)))
    # μ² − tr·μ − s² det = 0 gives μ' (2μ − tr) = μ tr' + s² det', and 2μ − tr is the root.
    mu_slope = mu * trace_slope + s_squared * det_slope
    usable = above & (mu_slope < 0)
    by_mu = tau + mu * (1 - mu) * root / xp.where(usable, mu_slope, -xp.ones_like(mu))
    by_det = tau - h / xp.where(h_slope == 0, xp.ones_like(h_slope), h_slope)
    near_one = usable & (xp.abs(mu - 1) < 0.1)
    return _Look(left, rising, near_one, xp.where(usable, by_mu, tau), by_det)
