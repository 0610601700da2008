"""The largest eigenvalue of a diagonal plus a rank-two matrix, for many matrices at once.

In a fixed basis, the information of a release about one record is such a matrix::

    M = ρ diag(δ) + c p pᵀ + s (p qᵀ + q pᵀ)

Here ``δ`` and ``q`` are the same for all records. Let ``U = [p q]``, ``S = [[c, s], [s, 0]]`` and
``K(λ) = Uᵀ(λ − ρ diag δ)⁻¹U``. The eigenvalues are the roots of ``det(I − S K(λ))``. A Newton step
requires a few sums over ``p``. Two to four steps suffice, so an eigenvalue costs no more than
reading ``p`` a few times.

Let ``λ = ρ δ_max + τ`` with ``τ > 0``, above the largest pole. The best equation is then ``1/μ(λ) =
1``, where ``μ`` is the largest eigenvalue of ``S K``: it is nearly linear if the rank-two part
dominates. The largest eigenvalue can also lie below the pole, since the rank-two part has one
negative eigenvalue. Near the pole and below it, the best equation is the determinant with that pole
multiplied out::

    h = τ det(I − S K) = τ (1 − tr S K' − s² det K') − uᵀS u − s² uᵀadj(K')u,    u = (p_k, q_k)

Here ``K'`` excludes the pole. The sign of h also updates a bracket, to which all steps are
confined.

In two extreme cases the sums are short series. Their coefficients do not depend on ``λ``, and
require one product of ``p`` with a narrow matrix. After that, Newton steps no longer read ``p``.
Far above all poles, where the rank-two part dominates, the series is a Chebyshev series about the
middle of the poles. This is the case for nearly all records of standardised columns. With the poles
``δ = δ̄ + h t``, ``|t| ≤ 1``, ``z = ρh/(λ − ρδ̄)``, ``w = √(1 − z²)`` and ``ϱ = z/(1 + w)``::

    (λ − ρδ̄) Σ p²/(λ − ρδ) = Σ p²/(1 − z t) = (2 Σ_j ϱ^j Σ p² T_j(t) − Σ p²)/w

In this case ``ϱ`` is a few hundredths; otherwise the series often provides a good first guess. If
``τ`` is a fraction of the distance ``ρg`` between the two largest poles, ``K'`` is a power series
in ``τ/ρg``. This is the case for records without rare categories. The first few terms of either
series suffice for most records. For the remaining records, Newton's method reads ``p`` at every
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from array_api_compat import array_namespace

from seepage.support.chunks import by_rows, chunk_for
from seepage.tables.source import Array

_NEAR = 0.2  # how far above the largest pole counts as near, in its distance from the next


# How many terms of a series each step of Newton's method takes; far above the poles the error
# relative to λ goes from ϱ over ϱ⁴ and ϱ⁹ to ϱ²⁰. With the one before the first, multiples of eight
# functions: matrix products take them by eight.
_FAR, _NEAR_POLE = (3, 8, 19), (2, 4)


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
    # The moments with all functions are taken in one product, so that p is read once.
    functions = xp.concat([chebyshev(delta), near_powers(delta)], axis=0)

    def largest(rows: slice) -> Array:
        batch = _Secular(rho[rows], delta, coordinates(rows), q, c[rows], s[rows])
        at = moments(functions, batch.p, q)
        values, exact = _by_series(batch.rho, delta, at, batch.c, batch.s)
        left = xp.nonzero(~exact)[0]
        if left.shape[0]:
            values[left] = _solve(batch.pick(left), values[left])
        return values

    # Some thousand rows, of which many short steps are made; on one core no more than it holds.
    chunk = chunk_for(delta)
    size = min(4 * chunk, 6_000 * k) if threads else 4 * chunk
    return by_rows(largest, n, k, chunk=size, threads=threads, what=what)


def _by_series(rho: Array, delta: Array, at: Moments, c: Array, s: Array) -> tuple[Array, Array]:
    """Return the largest eigenvalues and which are exact; the rest are guesses (0: no guess)."""
    xp = array_namespace(rho)
    polynomials = _FAR[-1] + 1
    far = at.with_functions(slice(0, polynomials))
    near = at.with_functions(slice(polynomials, None))
    which = xp.nonzero(_near_pole(rho, delta, near, c, s))[0]
    if which.shape[0] == 0:  # selecting copies, so only if needed
        return solve_far_above(rho, delta, far, c, s)
    values = xp.zeros_like(rho)
    exact = values > 0
    values[which], exact[which] = solve_near_pole(
        rho[which], delta, near.pick(which), c[which], s[which]
    )
    which = xp.nonzero(~exact)[0]
    values[which], exact[which] = solve_far_above(
        rho[which], delta, far.pick(which), c[which], s[which]
    )
    return values, exact


def _solve(batch: _Secular, guess: Array) -> Array:
    """Return the largest eigenvalues, starting from guesses; zero means no guess."""
    xp = array_namespace(batch.p)
    eps = xp.finfo(batch.p.dtype).eps
    top = batch.rho * batch.delta[-1]
    answer = xp.asarray(top, copy=True)
    low, tau, high = _bracket(batch, eps)
    above = guess - top
    tau = xp.where((above > 0) & (above < high) & (tau > 0), above, tau)
    width, floor = -low, eps * (top + high) / 4
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


def _bracket(batch: _Secular, eps: float) -> tuple[Array, Array, Array]:
    """Return bounds on ``τ`` and the starting point.

    No eigenvalue exceeds ``ρ δ_max`` by more than the largest eigenvalue of the rank-two part, at
    which Newton's method starts. The largest eigenvalue can lie below the pole only if ``uᵀS u <
    0``, and never below the second pole. In this case the search starts at the pole.
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


class _Sums(NamedTuple):
    """The entries of ``K'`` and their derivatives."""

    k11: Array
    k12: Array
    k22: Array
    d11: Array
    d12: Array
    d22: Array


class _PoleEquation(NamedTuple):
    """The determinant with the largest pole multiplied out, and its parts."""

    trace: Array  # that of S K'
    trace_slope: Array
    det: Array  # that of K'
    det_slope: Array
    pole: Array  # uᵀS u
    mixed: Array  # uᵀadj(K')u
    mixed_slope: Array
    h: Array
    h_slope: Array


def _pole_equation(
    tau: Array, sums: _Sums, u: Array, v: Array, c: Array, s: Array
) -> _PoleEquation:
    """Evaluate ``h`` at ``λ = ρ δ_max + τ`` for a given ``K'``."""
    k11, k12, k22, d11, d12, d22 = sums
    s_squared = s * s
    trace, trace_slope = c * k11 + 2 * s * k12, c * d11 + 2 * s * d12
    det, det_slope = k11 * k22 - k12 * k12, d11 * k22 + k11 * d22 - 2 * k12 * d12
    pole = u * (c * u + 2 * s * v)
    mixed = u * u * k22 - 2 * u * v * k12 + v * v * k11
    mixed_slope = u * u * d22 - 2 * u * v * d12 + v * v * d11
    smooth = 1 - trace - s_squared * det
    h = tau * smooth - pole - s_squared * mixed
    h_slope = smooth - tau * (trace_slope + s_squared * det_slope) - s_squared * mixed_slope
    return _PoleEquation(trace, trace_slope, det, det_slope, pole, mixed, mixed_slope, h, h_slope)


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
    p, q, c, s = batch.p[:, :-1], batch.q[:-1], batch.c, batch.s
    # The resolvent, in place where possible: allocating costs more than computing here.
    resolvent = batch.rho[:, None] * (batch.delta[-1] - batch.delta[:-1])[None, :]
    resolvent += tau[:, None]
    resolvent **= -1
    scaled = p * resolvent
    resolvent *= q
    # Not as matrix products, whose threads would interfere with the caller's.
    k11, k12, k22 = (xp.vecdot(a, b) for a, b in ((scaled, p), (scaled, q), (resolvent, q)))
    d11, d12 = -xp.vecdot(scaled, scaled), -xp.vecdot(scaled, resolvent)
    d22 = -xp.vecdot(resolvent, resolvent)

    u, v, s_squared = batch.p[:, -1], batch.q[-1], s * s
    found = _pole_equation(tau, _Sums(k11, k12, k22, d11, d12, d22), u, v, c, s)
    trace, trace_slope, det, det_slope, pole, mixed, mixed_slope, h, h_slope = found
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


class Moments(NamedTuple):
    """The sums of ``p²``, ``p q`` and ``q²`` over the poles, weighted by functions of the poles.

    Each function has one row, so that later steps read memory sequentially.
    """

    p_p: Array  # (j, m)
    p_q: Array  # (j, m)
    q_q: Array  # (j,)
    # p and q at the largest pole
    u: Array  # (m,)
    v: Array  # ()

    def with_functions(self, which: slice) -> Moments:
        """Return the sums for some functions of the poles."""
        return Moments(self.p_p[which, :], self.p_q[which, :], self.q_q[which], self.u, self.v)

    def pick(self, rows: Array) -> Moments:
        """Return the sums for some of the matrices."""
        return Moments(self.p_p[:, rows], self.p_q[:, rows], self.q_q, self.u[rows], self.v)


def moments(functions: Array, p: Array, q: Array) -> Moments:
    """Return the moments for functions of the poles, of shape ``(j, k)``."""
    xp = array_namespace(p)
    p_p, p_q = functions @ (p * p).T, (functions * q[None, :]) @ p.T
    return Moments(p_p, p_q, functions @ (q * q), xp.asarray(p[:, -1], copy=True), q[-1])


def near_powers(delta: Array) -> Array:
    """Return the powers of ``g/(δ_max − δ)``, with zeros for the largest pole or poles."""
    xp = array_namespace(delta)
    gaps = delta[-1] - delta
    base = xp.where(gaps > 0, gaps[-2] / xp.where(gaps > 0, gaps, xp.ones_like(gaps)), 0 * gaps)
    powers = [base]
    for _ in range(_NEAR_POLE[-1] - 1):
        powers.append(powers[-1] * base)
    return xp.stack(powers)


def _near_pole(rho: Array, delta: Array, at: Moments, c: Array, s: Array) -> Array:
    """Return whether the largest eigenvalue is close to the largest pole, if the pole is simple.

    If the largest eigenvalue of ``S K'`` at the pole is below one, the eigenvalues of the matrix
    without that pole are below the pole, so only one eigenvalue is above. The first step from the
    pole estimates the distance of this eigenvalue from the pole.
    """
    xp = array_namespace(rho)
    width = rho * (delta[-1] - delta[-2])
    p_p, p_q, q_q, u, v = at.p_p[0, :], at.p_q[0, :], at.q_q[0], at.u, at.v
    trace, minus_det = c * p_p + 2 * s * p_q, _product(s, p_p, p_q, q_q)
    smooth = width * (width - trace) - minus_det
    start = u * (c * u + 2 * s * v) * width
    start = start + s * s * (u * u * q_q - 2 * u * v * p_q + v * v * p_p)
    alone = positive_root(trace, minus_det)[0] < 0.9 * width  # below one with room to spare
    return alone & (xp.abs(start) < _NEAR * smooth)


def solve_near_pole(
    rho: Array, delta: Array, at: Moments, c: Array, s: Array
) -> tuple[Array, Array]:
    """Return the largest eigenvalue of every matrix, and whether it is exact up to rounding.

    Newton's method for ``h`` is applied to the matrices that :func:`_near_pole` selects. The
    moments are those of :func:`near_powers`.
    """
    xp = array_namespace(rho)
    top, inverse = rho * delta[-1], 1 / (rho * (delta[-1] - delta[-2]))
    eps = float(xp.finfo(rho.dtype).eps)
    tau = xp.zeros_like(rho)
    settled = tau > 0
    for last in _NEAR_POLE:
        some = (at.p_p[:last, :], at.p_q[:last, :], at.q_q[:last, None])
        found = [_sum(terms, -tau * inverse) for terms in some]
        sums = [total * inverse for total, _ in found]
        sums += [-slope * inverse * inverse for _, slope in found]
        equation = _pole_equation(tau, _Sums(*sums), at.u, at.v, c, s)
        step = equation.h / equation.h_slope
        tau = tau - step
        # Newton's method squares the error, relative to the distance of the poles; the terms left
        # out count relative to all of it.
        share = tau * inverse
        # Far below the pole another eigenvalue may be the largest.
        settled = (step * step * inverse <= eps * top / 4) & (share >= -2e-3) & (share <= _NEAR)
        settled = settled & (xp.abs(share) ** last <= eps)
        if bool(xp.all(settled)):
            break
    return top + tau, settled


def chebyshev(delta: Array) -> Array:
    """Return the Chebyshev polynomials of the poles, mapped to the interval from −1 to 1."""
    xp = array_namespace(delta)
    middle, half = _range(delta)
    share = (delta - middle) / half if float(half) > 0 else xp.zeros_like(delta)
    polynomials = [xp.ones_like(share), share]
    for _ in range(_FAR[-1] - 1):
        polynomials.append(2 * share * polynomials[-1] - polynomials[-2])
    return xp.stack(polynomials)


def _range(delta: Array) -> tuple[Array, Array]:
    """Return the middle of the poles and half their range."""
    return (delta[-1] + delta[0]) / 2, (delta[-1] - delta[0]) / 2


def solve_far_above(
    rho: Array, delta: Array, at: Moments, c: Array, s: Array
) -> tuple[Array, Array]:
    """Return the largest eigenvalue of every matrix, and whether it is exact up to rounding.

    If it is not exact, it is a guess, or zero if no guess is available. The moments are those of
    :func:`chebyshev`; the other arguments are as for :func:`largest_eigenvalue`.
    """
    xp = array_namespace(rho)
    middle, half = _range(delta)
    pole = rho * half  # relative to the middle, as is the guess
    p_p, p_q, q_q = at.p_p[0, :], at.p_q[0, :], at.q_q[0]
    guess, _ = positive_root(c * p_p + 2 * s * p_q, _product(s, p_p, p_q, q_q))
    guess = guess + pole * at.p_p[1, :] / xp.where(p_p > 0, p_p, 1.0)
    settled = xp.zeros_like(guess) > 0
    for last in _FAR:
        known = guess > 1.25 * pole  # nearer to the outermost pole the series says too little
        inverse = 1 / xp.where(known, guess, xp.ones_like(guess))
        z = xp.where(known, pole * inverse, xp.zeros_like(pole))
        w = xp.sqrt((1 - z) * (1 + z))
        # K = G(z)/λ, so that −λ² K' = G + zG'.
        (k11, d11), (k12, d12), (k22, d22) = (
            _chebyshev_sum(terms[: last + 1, ...], z, w)
            for terms in (at.p_p, at.p_q, at.q_q[:, None])
        )
        d11, d12, d22 = k11 + z * d11, k12 + z * d12, k22 + z * d22
        trace, trace_slope = c * k11 + 2 * s * k12, c * d11 + 2 * s * d12
        root, discriminant = positive_root(trace, _product(s, k11, k12, k22))
        det_slope = s * s * (d11 * k22 + k11 * d22 - 2 * k12 * d12)
        # Newton's method for 1/μ = 1 with μ = root/λ, which falls in λ.
        fall = root * trace_slope + det_slope
        usable = known & (fall > 0)
        step = xp.where(
            usable,
            root * (root - guess) * discriminant / xp.where(usable, fall, xp.ones_like(fall)),
            xp.zeros_like(guess),
        )
        guess = xp.where(usable, guess + step, xp.zeros_like(guess))
        # Up to this z, all terms after ``last`` are below the rounding error
        share = 5e-17 ** (1 / (last + 1))
        small = usable & (z <= 2 * share / (1 + share * share))
        settled = small & (z * step * step <= xp.finfo(rho.dtype).eps * guess * guess)
        if bool(xp.all(settled)):
            break
    return xp.where(guess > 0, guess + rho * middle, xp.zeros_like(guess)), settled


def _chebyshev_sum(terms: Array, z: Array, w: Array) -> tuple[Array, Array]:
    """Return ``(2 Σ_j terms_j ϱ^j − terms_0)/w``, ``w = √(1 − z²)``, and its slope in ``z``."""
    total, slope = _sum(terms, z / (1 + w))
    total = (2 * total - terms[0, ...]) / w
    return total, (2 * slope / (1 + w) + z * total) / (w * w)


def _sum(terms: Array, x: Array) -> tuple[Array, Array]:
    """Return ``Σ_j terms_j x^j`` and its derivative."""
    total = terms[-1, ...] + 0 * x
    slope = 0 * x
    for j in range(terms.shape[0] - 2, -1, -1):
        slope *= x
        slope += total
        total *= x
        total += terms[j, ...]
    return total, slope


def _product(s: Array, k11: Array, k12: Array, k22: Array) -> Array:
    """Return ``s² det K``, which is non-negative."""
    xp = array_namespace(k11)
    det = k11 * k22 - k12 * k12
    return s * s * xp.where(det > 0, det, xp.zeros_like(det))


def positive_root(trace: Array, minus_det: Array) -> tuple[Array, Array]:
    """Return the larger root of ``μ² − trace·μ − minus_det = 0`` and the discriminant's root.

    ``minus_det`` must be non-negative; the formula avoids cancellation.
    """
    xp = array_namespace(trace)
    root = xp.sqrt(trace * trace + 4 * minus_det)
    helper = root + xp.abs(trace)
    safe = xp.where(helper > 0, helper, xp.ones_like(helper))
    return xp.where(trace >= 0, helper / 2, 2 * minus_det / safe), root
