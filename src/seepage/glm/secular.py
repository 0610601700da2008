"""The largest eigenvalue of a diagonal plus a rank-two matrix, for many such matrices at once.

The information of a release about one record is, in a fixed basis, such a matrix::

    M = ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)

with ``δ`` and ``q`` the same for all records. With ``U = [p q]`` and ``S = [[c, s], [s, 0]]``, a
number λ above ``ρ δ_max`` is an eigenvalue exactly when the largest eigenvalue ``μ(λ)`` of the
2×2 matrix ``S Uᵀ(λ − ρ diag δ)⁻¹U`` is one. ``μ`` falls from the pole at ``ρ δ_max`` to zero, and
``1/μ`` is nearly linear, so that Newton's method on ``1/μ(λ) = 1`` needs about three steps of a
few sums each: the cost of a whole eigenvalue problem shrinks to that of reading ``p`` three times.

The rank-two part has one negative eigenvalue, so the largest eigenvalue can also lie at or below
``ρ δ_max``. It is then enclosed by the two largest entries of ``ρ δ``, and Newton's method finds it
on the determinant with that pole multiplied out, in a bracket kept by the inertia of the same 2×2
matrix (Haynsworth's formula).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_compat import array_namespace, is_numpy_array

from seepage.chunks import CACHE, by_rows

Array = Any

_STEPS = 100  # never reached: a bracket is halved where Newton's method does not do better


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
    below = _below_pole(batch)
    if not bool(xp.any(below)):
        return _newton_above_pole(batch)
    eigenvalue = xp.empty_like(batch.rho)
    for where, solver in ((below, _newton_below_pole), (~below, _newton_above_pole)):
        which = xp.nonzero(where)[0]
        if which.shape[0] > 0:
            eigenvalue[which] = solver(batch.pick(which))
    return eigenvalue


def _below_pole(batch: _Secular) -> Array:
    """Tell where the largest eigenvalue lies below ``ρ δ_max``.

    It cannot where ``uᵀS u ≥ 0``, for then ``μ`` rises to infinity at the pole. Elsewhere the sign
    of :func:`_deflated` at the pole decides, provided that the pole is a single one.
    """
    xp = array_namespace(batch.p)
    u, v = batch.p[:, -1], batch.q[-1]
    single = batch.rho * (batch.delta[-1] - batch.delta[-2]) > 0
    below = (u * (batch.c * u + 2 * batch.s * v) < 0) & single
    which = xp.nonzero(below)[0]
    if which.shape[0] > 0:
        doubtful = batch.pick(which)
        below[which] = _deflated(doubtful, xp.zeros_like(doubtful.rho))[0] < 0
    return below


def _positive_root(trace: Array, minus_det: Array) -> tuple[Array, Array]:
    """Return the larger root of ``μ² − trace·μ − minus_det = 0`` and the discriminant's root.

    ``minus_det`` is not negative, and the form is chosen so that nothing cancels.
    """
    xp = array_namespace(trace)
    root = xp.sqrt(trace * trace + 4 * minus_det)
    helper = root + xp.abs(trace)
    safe = xp.where(helper > 0, helper, xp.ones_like(helper))
    return xp.where(trace >= 0, helper / 2, 2 * minus_det / safe), root


class _Rest(NamedTuple):
    """``K_rest = Uᵀ(λ − ρ diag δ)⁻¹U`` without the largest δ, its slope, and that pole's share.

    The pole is kept apart, ``K = K_rest + u uᵀ/τ`` with ``u = (p_k, q_k)`` and ``τ = λ − ρ δ_max``,
    because the determinant of the sum would lose all its digits to cancellation close to it.
    """

    trace: Array  # tr(S K_rest) and its slope
    trace_slope: Array
    det: Array  # det K_rest and its slope
    det_slope: Array
    pole: Array  # uᵀS u
    mixed: Array  # uᵀ adj(K_rest) u and its slope
    mixed_slope: Array
    k: tuple[Array, Array, Array]


def _rest(batch: _Secular, tau: Array) -> _Rest:
    xp = array_namespace(tau)
    p, q, c, s = batch.p[:, :-1], batch.q[:-1], batch.c, batch.s
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
    return _Rest(
        trace=c * k11 + 2 * s * k12,
        trace_slope=c * d11 + 2 * s * d12,
        det=k11 * k22 - k12 * k12,
        det_slope=d11 * k22 + k11 * d22 - 2 * k12 * d12,
        pole=u * (c * u + 2 * s * v),
        mixed=u * u * k22 - 2 * u * v * k12 + v * v * k11,
        mixed_slope=u * u * d22 - 2 * u * v * d12 + v * v * d11,
        k=(k11, k12, k22),
    )


def _mu_and_slope(batch: _Secular, tau: Array) -> tuple[Array, Array]:
    """Return ``μ`` and ``dμ/dλ`` at ``λ = ρ δ_max + τ``, with ``τ > 0``."""
    xp = array_namespace(tau)
    rest = _rest(batch, tau)
    trace = rest.trace + rest.pole / tau
    trace_slope = rest.trace_slope - rest.pole / tau**2
    det = rest.det + rest.mixed / tau
    det_slope = rest.det_slope + rest.mixed_slope / tau - rest.mixed / tau**2
    s_squared = batch.s * batch.s
    mu, root = _positive_root(trace, s_squared * xp.where(det > 0, det, xp.zeros_like(det)))
    # μ² − tr·μ − s² det = 0 gives μ' (2μ − tr) = μ tr' + s² det', and 2μ − tr is the root.
    safe = xp.where(root > 0, root, xp.ones_like(root))
    slope = (mu * trace_slope + s_squared * det_slope) / safe
    return mu, xp.where(slope < 0, slope, -xp.ones_like(slope))


def _newton_above_pole(batch: _Secular) -> Array:
    """Return ``ρ δ_max + τ`` with ``μ = 1`` there, or ``ρ δ_max`` where nothing lies above it."""
    xp = array_namespace(batch.p)
    eps = xp.finfo(batch.p.dtype).eps
    top = batch.rho * batch.delta[-1]
    answer = xp.asarray(top, copy=True)
    # No eigenvalue exceeds that of the diagonal by more than the rank-two part's largest.
    p_squared, p_with_q = xp.vecdot(batch.p, batch.p), batch.p @ batch.q
    product = p_squared * xp.sum(batch.q * batch.q)
    # The determinant may cancel down to nothing; its rounding error keeps the start an upper bound.
    det = xp.abs(product - p_with_q * p_with_q) + 8 * eps * product
    start, _ = _positive_root(batch.c * p_squared + 2 * batch.s * p_with_q, batch.s**2 * det)
    active = xp.nonzero(start > 0)[0]
    if active.shape[0] < start.shape[0]:  # picking copies, so not without need
        batch, top = batch.pick(active), top[active]
    tau = high = start[active]
    low = xp.zeros_like(tau)
    floor = eps * (top + tau) / 4
    for _ in range(_STEPS):
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
        step = xp.abs(step_to - tau)
        # Newton's method squares the error, so a step of half the digits is the last.
        settled = inside & ((step <= eps**0.5 * step_to) | (step <= 2 * eps * top))
        settled = settled | (proposal == tau) | (high - low <= eps * (top + high)) | (high <= floor)
        answer[active[settled]] = (top + step_to)[settled]
        going_on = xp.nonzero(~settled)[0]
        if going_on.shape[0] < active.shape[0]:
            batch, active = batch.pick(going_on), active[going_on]
            top, floor, step_to = top[going_on], floor[going_on], step_to[going_on]
            low, high = low[going_on], high[going_on]
        tau = step_to
    return answer


def _newton_below_pole(batch: _Secular) -> Array:
    """Find the largest eigenvalue where it lies between the two largest entries of ``ρ δ``.

    There, with ``g = ρ δ_max − λ``, it is the largest root of the smooth function::

        h(λ) = g det(I − S K) = g (1 − tr S K_rest − s² det K_rest) + uᵀS u + s² uᵀadj(K_rest) u

    A second eigenvalue may lie in the interval too. The number of eigenvalues above λ, by
    Haynsworth's formula that of the positive eigenvalues of ``−(S − S K S)``, tells them apart.
    """
    xp = array_namespace(batch.p)
    eps = xp.finfo(batch.p.dtype).eps
    top = batch.rho * batch.delta[-1]
    answer = xp.asarray(top, copy=True)
    width = batch.rho * (batch.delta[-1] - batch.delta[-2])
    active = xp.nonzero(width > eps * top)[0]
    batch, low = batch.pick(active), -width[active]
    tau = high = xp.zeros_like(low)
    for _ in range(_STEPS):
        if active.shape[0] == 0:
            break
        h, slope, left_of_root = _deflated(batch, tau)
        low = xp.where(left_of_root, tau, low)
        high = xp.where(left_of_root, high, tau)
        proposal = tau - h / xp.where(slope == 0, xp.ones_like(slope), slope)
        inside = (proposal > low) & (proposal < high)
        step_to = xp.where(inside, proposal, low + (high - low) / 2)
        tolerance = eps * top[active]
        settled = (xp.abs(step_to - tau) <= tolerance) | (high - low <= tolerance) | (h == 0)
        answer[active[settled]] = top[active[settled]] + xp.where(h == 0, tau, step_to)[settled]
        going_on = xp.nonzero(~settled)[0]
        batch, active = batch.pick(going_on), active[going_on]
        low, high, tau = low[going_on], high[going_on], step_to[going_on]
    return answer


def _deflated(batch: _Secular, tau: Array) -> tuple[Array, Array, Array]:
    """Return ``h``, its slope, and whether an eigenvalue lies above ``ρ δ_max + τ``, ``τ ≤ 0``."""
    rest = _rest(batch, tau)
    c, s, s_squared, gap = batch.c, batch.s, batch.s**2, -tau
    smooth = 1 - rest.trace - s_squared * rest.det
    smooth_slope = -rest.trace_slope - s_squared * rest.det_slope
    h = gap * smooth + rest.pole + s_squared * rest.mixed
    slope = -smooth + gap * smooth_slope + s_squared * rest.mixed_slope
    # h is positive between the two largest eigenvalues, and negative above and below them; below
    # them −(S − S K S) is positive definite. Its trace, times the gap:
    u, v = batch.p[:, -1], batch.q[-1]
    k11, k12, k22 = (gap * k - w for k, w in zip(rest.k, (u * u, u * v, v * v), strict=True))
    definite = (c * c + s_squared) * k11 + 2 * c * s * k12 + s_squared * k22 - gap * c
    return h, slope, (h > 0) | ((h < 0) & (definite > 0) & (gap > 0))
