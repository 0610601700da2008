"""The largest eigenvalue of a diagonal plus a rank-two matrix, for many such matrices at once.

The information of a release about one record is, in a fixed basis, such a matrix::

    M = ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)

with ``δ`` and ``q`` the same for all records. With ``U = [p q]`` and ``S = [[c, s], [s, 0]]``, a
number λ above ``ρ δ_max`` is an eigenvalue exactly when the largest eigenvalue ``μ(λ)`` of the
2×2 matrix ``S Uᵀ(λ − ρ diag δ)⁻¹U`` is one. ``μ`` falls from the pole at ``ρ δ_max`` to zero, and
``1/μ`` is nearly linear, so that Newton's method on ``1/μ(λ) = 1`` needs about three steps of a
few sums each: the cost of a whole eigenvalue problem shrinks to that of reading ``p`` three times.

The rank-two part has one negative eigenvalue, so the largest eigenvalue can also lie at or below
``ρ δ_max``. It is then enclosed by the two largest entries of ``ρ δ`` and found by bisection on the
inertia of the same 2×2 matrix (Haynsworth's formula).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_compat import array_namespace, is_numpy_array

from seepage.chunks import CACHE, by_rows

Array = Any

_NEWTON_STEPS = 60
_BISECTIONS = 110


class _Secular(NamedTuple):
    """A batch of matrices ``ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)``."""

    rho: Array  # (m,)
    delta: Array  # (k,), shared
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
        lambda rows: _solve(whole.pick(rows)), *p.shape, chunk=CACHE, threads=is_numpy_array(p)
    )


def _solve(batch: _Secular) -> Array:
    xp = array_namespace(batch.p)
    top = batch.rho * batch.delta[-1]
    excess, above = _newton_above_pole(batch, top)
    eigenvalue = top + excess
    below = xp.nonzero(~above & (batch.s != 0))[0]
    if below.shape[0] > 0:
        eigenvalue[below] = _bisect_below_pole(batch.pick(below))
    return eigenvalue


def _positive_root(trace: Array, minus_det: Array) -> tuple[Array, Array]:
    """Return the larger root of ``μ² − trace·μ − minus_det = 0`` and the discriminant's root.

    ``minus_det`` is not negative, and the form is chosen so that nothing cancels.
    """
    xp = array_namespace(trace)
    root = xp.sqrt(trace * trace + 4 * minus_det)
    helper = root + xp.abs(trace)
    safe = xp.where(helper > 0, helper, xp.ones_like(helper))
    return xp.where(trace >= 0, helper / 2, 2 * minus_det / safe), root


def _mu_and_slope(batch: _Secular, tau: Array) -> tuple[Array, Array]:
    """Return ``μ`` and ``dμ/dλ`` at ``λ = ρ δ_max + τ``, with ``τ > 0``.

    The pole of the largest δ is split off, ``K = K_rest + u uᵀ/τ`` with ``u = (p_k, q_k)``, because
    the determinant of the sum would lose all its digits to cancellation close to it.
    """
    xp = array_namespace(tau)
    p, q = batch.p[:, :-1], batch.q[:-1]
    # The resolvent, in place where possible: allocating costs more than computing here.
    resolvent = batch.rho[:, None] * (batch.delta[-1] - batch.delta[:-1])[None, :]
    resolvent += tau[:, None]
    resolvent **= -1
    scaled = p * resolvent
    k11, k12, k22 = xp.vecdot(scaled, p), scaled @ q, resolvent @ (q * q)
    d11 = -xp.vecdot(scaled, scaled)
    scaled *= resolvent
    resolvent *= resolvent
    d12, d22 = -(scaled @ q), -(resolvent @ (q * q))

    u, v = batch.p[:, -1], batch.q[-1]
    pole = u * (batch.c * u + 2 * batch.s * v)
    trace = batch.c * k11 + 2 * batch.s * k12 + pole / tau
    trace_slope = batch.c * d11 + 2 * batch.s * d12 - pole / tau**2
    mixed = u * u * k22 - 2 * u * v * k12 + v * v * k11
    det_k = k11 * k22 - k12 * k12 + mixed / tau
    det_k_slope = d11 * k22 + k11 * d22 - 2 * k12 * d12 - mixed / tau**2
    det_k_slope += (u * u * d22 - 2 * u * v * d12 + v * v * d11) / tau
    s_squared = batch.s * batch.s
    mu, root = _positive_root(trace, s_squared * xp.where(det_k > 0, det_k, xp.zeros_like(det_k)))
    # μ² − tr·μ + det = 0 gives μ' (2μ − tr) = μ tr' − det', and 2μ − tr is the root.
    safe = xp.where(root > 0, root, xp.ones_like(root))
    slope = (mu * trace_slope + s_squared * det_k_slope) / safe
    return mu, xp.where(slope < 0, slope, -xp.ones_like(slope))


def _newton_above_pole(batch: _Secular, top: Array) -> tuple[Array, Array]:
    """Find ``τ > 0`` with ``μ(ρ δ_max + τ) = 1``; report also where there is one."""
    xp = array_namespace(top)
    eps = xp.finfo(top.dtype).eps
    close = eps**0.5
    excess = xp.zeros_like(top)
    above = xp.zeros_like(top, dtype=xp.bool)
    # No eigenvalue exceeds that of the diagonal by more than the rank-two part's largest.
    p_squared, p_with_q = xp.vecdot(batch.p, batch.p), batch.p @ batch.q
    product = p_squared * xp.sum(batch.q * batch.q)
    # The determinant may cancel down to nothing; its rounding error keeps the start an upper bound.
    det = xp.abs(product - p_with_q * p_with_q) + 8 * eps * product
    start, _ = _positive_root(batch.c * p_squared + 2 * batch.s * p_with_q, batch.s**2 * det)
    active = xp.nonzero(start > 0)[0]
    if active.shape[0] < start.shape[0]:  # picking copies, so not without need
        batch = batch.pick(active)
    tau = start[active]
    low, high = xp.zeros_like(tau), tau
    floor = eps * (top[active] + tau) / 4
    for _ in range(_NEWTON_STEPS):
        if active.shape[0] == 0:
            break
        mu, slope = _mu_and_slope(batch, tau)
        left_of_root = mu >= 1
        low = xp.where(left_of_root, tau, low)
        high = xp.where(left_of_root, high, tau)
        proposal = tau + mu * (1 - mu) / slope
        inside = (proposal > low) & (proposal < high)
        # Off the bracket: try next to the pole once, then halve the bracket on a logarithmic scale.
        retreat = xp.where(low > 0, xp.sqrt(low * high), floor)
        step_to = xp.where(inside | (proposal == tau), proposal, retreat)
        none_above = (tau <= floor) & ~left_of_root
        settled = xp.abs(step_to - tau) <= close * step_to
        settled = inside & (settled | (xp.abs(step_to - tau) <= 2 * eps * top[active]))
        settled = settled | (proposal == tau) | (high - low <= eps * (top[active] + high))
        found = settled & ~none_above
        excess[active[found]] = step_to[found]
        above[active[found]] = True
        going_on = xp.nonzero(~(settled | none_above))[0]
        if going_on.shape[0] < active.shape[0]:
            batch, active, floor = batch.pick(going_on), active[going_on], floor[going_on]
            low, high, step_to = low[going_on], high[going_on], step_to[going_on]
        tau = step_to
    excess[active] = tau
    above[active] = True
    return excess, above


def _bisect_below_pole(batch: _Secular) -> Array:
    """Find the largest eigenvalue between the two largest entries of ``ρ δ`` (here ``s ≠ 0``).

    Strictly between them ``diag − λ`` has one positive entry, so by Haynsworth's formula the
    number of eigenvalues above λ is the number of positive eigenvalues of ``−(S + S K S)``, with
    ``K = Uᵀ(ρ diag δ − λ)⁻¹U``.
    """
    xp = array_namespace(batch.p)
    low, high = batch.rho * batch.delta[-2], batch.rho * batch.delta[-1]
    diagonal = batch.rho[:, None] * batch.delta[None, :]
    p, q, c, s = batch.p, batch.q, batch.c, batch.s
    tiny = xp.finfo(p.dtype).smallest_normal
    for _ in range(_BISECTIONS):
        middle = low + (high - low) / 2
        if bool(xp.all((middle <= low) | (middle >= high))):
            break
        gap = diagonal - middle[:, None]
        resolvent = 1.0 / xp.where(gap == 0, xp.full_like(gap, tiny), gap)
        scaled = p * resolvent
        k11, k12, k22 = xp.vecdot(scaled, p), scaled @ q, resolvent @ (q * q)
        # S K S for S = [[c, s], [s, 0]], written out.
        n11 = -(c + c * c * k11 + 2 * c * s * k12 + s * s * k22)
        n12 = -(s + s * (c * k11 + s * k12))
        n22 = -(s * s * k11)
        some_above = (n11 * n22 < n12 * n12) | (n11 > 0) | (n22 > 0)
        low = xp.where(some_above, middle, low)
        high = xp.where(some_above, high, middle)
    return low + (high - low) / 2
