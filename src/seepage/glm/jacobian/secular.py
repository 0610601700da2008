"""The largest eigenvalue of a diagonal plus a rank-two matrix, for many matrices at once.

In a fixed basis, the information of a release about one record is such a matrix::

    M = ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)

Here ``δ`` and ``q`` are the same for all records. Let ``U = [p q]``, ``S = [[c, s], [s, 0]]`` and
``K(λ) = Uᵀ(λ − ρ diag δ)⁻¹U``. The eigenvalues are the roots of ``det(I − S K(λ))``. A Newton step
requires a few sums over ``p``. Two to four steps suffice.

Let ``λ = ρ δ_max + τ`` with ``τ > 0``, above the largest pole. The best equation is then ``1/μ(λ) =
1``, where ``μ`` is the largest eigenvalue of ``S K``: it is nearly linear if the rank-two part
dominates. The largest eigenvalue can also lie below the pole, since the rank-two part has one
negative eigenvalue. Near the pole and below it, the best equation is the determinant with that pole
multiplied out::

    h = τ det(I − S K) = τ (1 − tr S K' − s² det K') − uᵀS u − s² uᵀadj(K')u,    u = (p_k, q_k)

Here ``K'`` excludes the pole. The sign of h also updates a bracket, to which all steps are
confined.

**Points instead of poles.** A few points can replace poles that the eigenvalue is far above. Let
``δ̄`` be the middle of the poles and h half their range, and let ``λ ≥ ρ(δ̄ + h/z)``. With the
Chebyshev points ``x_i`` of the range and their Lagrange polynomials ``ℓ_i``::

    Σ_j p_j²/(λ − ρδ_j) = Σ_i P_i/(λ − ρx_i),    P_i = Σ_j ℓ_i(δ_j) p_j²

With t points, the relative error of each term is at most ``2ϱᵗ``, where ``ϱ = z/(1 + √(1 − z²))``.
The weights P do not depend on λ, so they take one product of ``p²`` with a narrow matrix for all
steps. Nearly all records of standardised columns are far above every pole, since their rank-two
part dominates. For the other records, the lower poles can be replaced if there are rare categories,
whose poles lie far above those of common columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from seepage.support.chunks import blas_on_one_core, by_rows, chunk_for
from seepage.tables.source import Array, as_numpy

_FAR = 0.0168  # the z up to which eight points replace all poles but the largest


class _Secular(NamedTuple):
    """A batch of matrices ``ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)``."""

    rho: Array  # (m,)
    c: Array  # (m,)
    s: Array  # (m,)
    u: Array  # p at the largest pole, (m,)
    p_p: Array  # the weights p² of the other poles, or of the points that replace them, (m, j)
    p_q: Array  # the weights p q, (m, j)
    q_q: Array  # the weights q², shared, (j,)
    v: Array  # q at the largest pole, shared, ()
    beneath: Array  # how far the points and poles lie below the largest pole, shared, (j,)

    def pick(self, which: Array) -> _Secular:
        """Return some of the matrices."""
        rho, c, s, u, p_p, p_q = (part[which, ...] for part in self[:6])
        return _Secular(rho, c, s, u, p_p, p_q, *self[6:])


class _Poles(NamedTuple):
    """The poles, with points that replace the lowest r of them, for eigenvalues above a bound."""

    least: Array  # the bound on λ/ρ, ()
    replaced: int  # r
    shares: Array  # ``ℓ_i(δ_j)`` of the poles that are replaced, and zeros for the others, (t, k)
    beneath: Array  # as in :class:`_Secular`
    q: Array  # (k,)

    def batch(self, p: Array, rho: Array, c: Array, s: Array) -> _Secular:
        """Return the matrices of some records."""
        xp, others, q = array_namespace(p), slice(self.replaced, -1), self.q
        # All columns at once, of which those of poles that are not replaced count for nothing:
        # rows without a gap between them are squared and multiplied much faster.
        squares = p * p
        p_p, p_q, q_q = squares[:, others], p[:, others] * q[others], q[others] ** 2
        if self.replaced:
            p_p = xp.concat([squares @ self.shares.T, p_p], axis=1)
            p_q = xp.concat([p @ (self.shares * q).T, p_q], axis=1)
            q_q = xp.concat([self.shares @ (q * q), q_q])
        u = xp.asarray(p[:, -1], copy=True)
        return _Secular(rho, c, s, u, p_p, p_q, q_q, q[-1], self.beneath)


def largest_eigenvalue(rho: Array, delta: Array, p: Array, q: Array, c: Array, s: Array) -> Array:
    """Return the largest eigenvalue of ``ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)`` for every row.

    ``ρ``, ``c`` and ``s`` have shape ``(m,)``, and ``ρ`` and ``c`` are non-negative. ``p`` has
    shape ``(m, k)``. ``δ`` and ``q``, of shape ``(k,)``, are shared by all matrices; ``δ`` is
    non-negative and in ascending order.
    """
    return largest_of_rows(rho, delta, lambda rows: p[rows, :], q, c, s)


def largest_of_rows(
    rho: Array,
    delta: Array,
    coordinates: Callable[[slice], Array],
    q: Array,
    c: Array,
    s: Array,
    *,
    threads: bool = False,
    what: str = "",
) -> Array:
    """Return what :func:`largest_eigenvalue` returns; ``coordinates`` computes ``p`` for some rows.

    ``threads`` distributes the pieces over the processor's cores; ``what`` labels the progress bar
    of long computations.
    """
    xp = array_namespace(delta)
    n, k = rho.shape[0], delta.shape[0]
    if k == 1:
        p = coordinates(slice(0, n))[:, 0]
        return rho * delta[0] + (c * p + 2 * s * q[0]) * p
    far = (delta[-2] + delta[0]) / 2 + (delta[-2] - delta[0]) / (2 * _FAR)
    kinds = [_poles(delta, q, delta[-2])]  # for all eigenvalues; the next for those above a bound
    for bound in (delta[-1], far):
        poles = _poles(delta, q, bound)
        if 3 * poles.beneath.shape[0] < 2 * kinds[-1].beneath.shape[0]:  # else hardly faster
            kinds.append(poles)

    def largest(rows: slice) -> Array:
        p, own = coordinates(rows), (rho[rows], c[rows], s[rows])
        values, left = xp.zeros_like(own[0]), None  # the rows that no kind has been found for
        for poles in reversed(kinds):
            batch = poles.batch(p, *own)
            *bracket, least = _bracket(delta, batch)
            above = (least >= own[0] * poles.least) | (poles is kinds[0])  # which takes all others
            if left is None and bool(xp.all(above)):  # selecting copies, so only if needed
                return _solve(delta, batch, *bracket)
            left = xp.arange(p.shape[0], device=device(p)) if left is None else left
            here, rest = xp.nonzero(above)[0], xp.nonzero(~above)[0]
            found = _solve(delta, batch.pick(here), *(part[here] for part in bracket))
            values[left[here]] = found
            p, own, left = p[rest, :], tuple(part[rest] for part in own), left[rest]
        return values

    # Some thousand rows, of which many short steps are made; on one core no more than it holds.
    chunk = chunk_for(delta)
    size = min(4 * chunk, 12_000 * k) if threads else 4 * chunk
    return by_rows(largest, n, k, chunk=size, threads=threads, what=what)


def _poles(delta: Array, q: Array, least: Array) -> _Poles:
    """Replace as many poles as leaves the fewest numbers, for eigenvalues of at least ``ρ least``.

    The more of the lowest poles are replaced, the wider is their range, and the more points it
    takes.
    """
    xp = array_namespace(delta)
    below, eps = as_numpy(delta)[:-1].astype(float), float(xp.finfo(delta.dtype).eps)
    middle, half = (below + below[0]) / 2, (below - below[0]) / 2
    # z, and with it the rate ϱ, for every number of replaced poles
    away = np.maximum(float(least) - middle, half)
    z = np.divide(half, away, out=np.zeros_like(half), where=half > 0)
    with np.errstate(divide="ignore"):  # equal poles take one point; for z = 1 no number is enough
        digits = np.abs(np.log(z / (1 + np.sqrt((1 - z) * (1 + z)))))
        points = np.maximum(np.ceil(np.log(8 / eps) / digits), 1.0)
    kept = np.arange(len(below))[::-1]
    last = int(np.argmin(points + kept))
    if points[last] + kept[last] >= len(below):
        return _Poles(least, 0, xp.reshape(delta[:0], (0, 1)), delta[-1] - delta[:-1], q)
    orders = np.arange(int(points[last]))
    angles = np.pi * (orders + 0.5) / len(orders)
    share = (below[: last + 1] - middle[last]) / (half[last] or 1.0)
    # ℓ_i(δ) = (1 + 2 Σ_m T_m(x_i) T_m(δ)) / t, with T_m(cos φ) = cos mφ
    twice = np.where(orders > 0, 2.0, 1.0)
    at_points = np.cos(np.outer(angles, orders)) * twice / len(orders)
    shares = np.zeros((len(orders), len(below) + 1))
    poles = np.arccos(np.clip(share, -1.0, 1.0))
    with blas_on_one_core():
        shares[:, : last + 1] = at_points @ np.cos(np.outer(orders, poles))
    x, shares = (
        xp.asarray(part, dtype=delta.dtype, device=device(delta))
        for part in (middle[last] + half[last] * np.cos(angles), shares)
    )
    beneath = delta[-1] - xp.concat([x, delta[last + 1 : -1]])
    return _Poles(least, last + 1, shares, beneath, q)


def _bracket(delta: Array, batch: _Secular) -> tuple[Array, Array, Array, Array]:
    """Return a bracket of ``τ`` with the start of the search in it, and a lower bound on ``λ``.

    No eigenvalue exceeds ``ρ δ_max`` by more than the largest eigenvalue of the rank-two part.
    Newton's method starts there or, if the next pole is farther away than that, at the pole. By
    Weyl's inequality, the largest eigenvalue is at least that of the rank-two part plus ``ρ
    δ_min``. It can lie below the pole only if ``uᵀS u < 0``, and never below the second pole. If it
    may, the search starts at the pole, too.
    """
    xp = array_namespace(delta)
    rho, c, s, u, p_p, p_q, q_q, v, _ = batch
    eps = xp.finfo(delta.dtype).eps
    # The points' polynomials add up to one, so their weights add up to those of the poles.
    p_squared, p_with_q = xp.sum(p_p, axis=1) + u * u, xp.sum(p_q, axis=1) + u * v
    product = p_squared * (xp.sum(q_q) + v * v)
    # The determinant may cancel down to nothing; its rounding error keeps this an upper bound.
    det, rounding = product - p_with_q * p_with_q, 8 * eps * product
    trace, most = c * p_squared + 2 * s * p_with_q, xp.abs(det) + rounding
    high, _ = positive_root(trace, s * s * most)
    known = xp.where(det > rounding, det - rounding, xp.zeros_like(det))
    least = positive_root(trace, s * s * known)[0] + rho * delta[0]
    width = rho * (delta[-1] - delta[-2])
    doubtful = (u * (c * u + 2 * s * v) < 0) & (width > 0) & (least <= rho * delta[-1])
    least = xp.maximum(least, rho * xp.where(doubtful, delta[-2], delta[-1]))
    start = xp.where(doubtful | (high < width), xp.zeros_like(high), high)
    return -width, start, high, least


def _solve(delta: Array, batch: _Secular, low: Array, tau: Array, high: Array) -> Array:
    """Return the largest eigenvalues, from a bracket and a start for every ``τ``."""
    xp = array_namespace(delta)
    eps = xp.finfo(delta.dtype).eps
    top = batch.rho * delta[-1]
    answer, width, floor = xp.asarray(top, copy=True), -low, eps * (top + high) / 4
    active = xp.nonzero(high > 0)[0]
    if active.shape[0] < top.shape[0]:  # selecting copies, so only if needed
        batch = batch.pick(active)
        low, tau, high, width, top, floor = (v[active] for v in (low, tau, high, width, top, floor))
    # Far more steps than needed: the bracket is halved where Newton's method does not do better.
    for _ in range(200):
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


def _next(
    look: _Look, tau: Array, low: Array, high: Array, width: Array, floor: Array
) -> tuple[Array, Array]:
    """Return the next point, and whether it is reached by a Newton step."""
    xp = array_namespace(tau)
    by_mu = (look.by_mu > xp.where(low > 0, low, xp.zeros_like(low))) & (look.by_mu < high)
    by_det = (look.by_det > low) & (look.by_det < high)
    # Nearer to the pole than the next pole is, the determinant is the better guide.
    by_mu = by_mu & ~(by_det & (tau < width))
    # Above the pole it is not, until the pole itself has been examined.
    by_det = by_det & ((low >= 0) | (tau <= 0))
    # Outside the bracket: halve it, on a logarithmic scale above the pole.
    otherwise = xp.where(low > 0, xp.sqrt(xp.abs(low * high)), (low + high) / 2)
    # Examine the pole first, then the upper end. A multiple pole, where nothing can be
    # computed, is only approached.
    otherwise = xp.where((low < 0) & (tau > 0), xp.zeros_like(tau), otherwise)
    otherwise = xp.where(low == 0, xp.where(tau == 0, high, floor), otherwise)
    step_to = xp.where(by_det, look.by_det, otherwise)
    return xp.where(by_mu, look.by_mu, step_to), by_mu | by_det


class _Look(NamedTuple):
    """The result of one evaluation: the side of the root, and candidates for the next point."""

    left_of_root: Array
    rising: Array  # whether h rises here, as it does at its largest root
    near_one: Array  # whether μ is close to one
    by_mu: Array
    by_det: Array


def _look(batch: _Secular, tau: Array) -> _Look:
    """Evaluate the equations at ``λ = ρ δ_max + τ``."""
    xp = array_namespace(tau)
    c, s, u, v = batch.c, batch.s, batch.u, batch.v
    # In place where possible: allocating costs more than computing here.
    resolvent = batch.rho[:, None] * batch.beneath[None, :]
    resolvent += tau[:, None]
    resolvent **= -1
    weights = batch.p_p, batch.p_q, batch.q_q
    # Not as matrix products, whose threads would interfere with the caller's.
    k11, k12, k22 = (xp.vecdot(each, resolvent) for each in weights)
    resolvent *= resolvent
    d11, d12, d22 = (-xp.vecdot(each, resolvent) for each in weights)

    s_squared = s * s
    trace, trace_slope = c * k11 + 2 * s * k12, c * d11 + 2 * s * d12  # of S K'
    det, det_slope = k11 * k22 - k12 * k12, d11 * k22 + k11 * d22 - 2 * k12 * d12  # of K'
    pole = u * (c * u + 2 * s * v)  # uᵀS u
    mixed = u * u * k22 - 2 * u * v * k12 + v * v * k11  # uᵀadj(K')u
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

    # The pole's share is added only now: before, the determinant would have drowned in it.
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


def positive_root(trace: Array, minus_det: Array) -> tuple[Array, Array]:
    """Return the larger root of ``μ² − trace·μ − minus_det = 0`` and the discriminant's root.

    ``minus_det`` must be non-negative; the formula avoids cancellation.
    """
    xp = array_namespace(trace)
    root = xp.sqrt(trace * trace + 4 * minus_det)
    helper = root + xp.abs(trace)
    safe = xp.where(helper > 0, helper, xp.ones_like(helper))
    return xp.where(trace >= 0, helper / 2, 2 * minus_det / safe), root
