"""The inverse information about every row in closed form, for less than a matrix product.

With the label known and the features ``V`` unknown, the information about a row is::

    I = r² B + a² ξ w wᵀ + a r (w zᵀ + z wᵀ),    B = A_VᵀA_V,  z = A_VᵀA x̃,  ξ = ‖A x̃‖²

with ``w`` standing for ``w_V`` and ``B`` the same for all rows. Woodbury's formula, with
``v = B⁻¹w``, ``y = B⁻¹z`` and ``κ = ξ − zᵀB⁻¹z ≥ 0`` (the part of ``A x̃`` that no unknown reaches),
simplifies to::

    I⁻¹ = ( B⁻¹ − [a² κ v vᵀ + a (r + a wᵀy) (v yᵀ + y vᵀ) − a² (wᵀv) y yᵀ] / D ) / r²
    D = (r + a wᵀy)² + a² (wᵀv) κ

Where all features are unknown, ``y`` is ``x`` but for a constant and ``κ`` is a constant (both zero
without an intercept): no product with a matrix is left at all. The inverse does not exist, and no
unbiased estimate has a finite error, where ``r = 0`` or ``D = 0``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from array_api_compat import array_namespace

from seepage.core.unknowns import Unknowns
from seepage.support.chunks import by_rows
from seepage.tables.source import Array

if TYPE_CHECKING:
    from seepage.glm.jacobian.operator import SingleOutputJacobian

_DOUBTFUL = 1e-7  # a stated error beyond which a row is worth a decomposition of its own


def inverse_traces(jacobian: SingleOutputJacobian, unknowns: Unknowns) -> tuple[Array, Array]:
    """Return ``Tr(I⁻¹)`` of every row and its relative errors, ``(n,)`` both."""
    xp = array_namespace(jacobian.X)
    shared = shared_terms(jacobian, unknowns)
    trace, v_squared = xp.sum(shared.diagonal), xp.sum(shared.v * shared.v)

    def traces(rows: slice) -> Array:
        t = _row_terms(jacobian, unknowns, shared, rows)
        y_v, y_squared = t.y @ shared.v, xp.vecdot(t.y, t.y)
        total = trace - t.vv * v_squared - 2 * t.vy * y_v - t.yy * y_squared
        terms = trace + t.vv * v_squared + xp.abs(2 * t.vy * y_v) + xp.abs(t.yy) * y_squared
        values = _infinite_unless(t.regular, total / t.r_squared)
        return xp.stack([values, _error(t, shared, terms, total)], axis=1)

    both = by_rows(traces, jacobian.rows, jacobian.size, chunk=jacobian.chunk)
    values, accuracy = both[:, 0], both[:, 1]
    doubtful = _doubtful(accuracy)
    if doubtful.shape[0]:
        diagonal, errors = jacobian.inverses_of(unknowns, doubtful)
        values[doubtful], accuracy[doubtful] = xp.sum(diagonal, axis=1), xp.max(errors, axis=1)
    return values, accuracy


def inverse_diagonal(jacobian: SingleOutputJacobian, unknowns: Unknowns) -> tuple[Array, Array]:
    """Return the diagonal of ``I⁻¹`` of every row and its relative errors, ``(n, t)`` both."""
    xp = array_namespace(jacobian.X)
    shared = shared_terms(jacobian, unknowns)
    accuracy = []

    def diagonals(rows: slice) -> Array:
        t = _row_terms(jacobian, unknowns, shared, rows)
        # diag B⁻¹ − vv·v² − (2 vy·v + yy·y)·y, in place: a pass over a chunk is what costs here.
        out = t.yy[:, None] * t.y
        out += (2 * t.vy)[:, None] * shared.v[None, :]
        out *= -t.y
        out -= t.vv[:, None] * (shared.v * shared.v)[None, :]
        out += shared.diagonal[None, :]
        # Of all the cells of a row, the one that cancels most says how exact they are.
        least = xp.min(out / shared.diagonal[None, :], axis=1)
        accuracy.append(_error(t, shared, xp.ones_like(least) + xp.abs(least), least))
        out /= t.r_squared[:, None]
        return out if bool(xp.all(t.regular)) else _infinite_unless(t.regular[:, None], out)

    values = by_rows(diagonals, jacobian.rows, jacobian.size, chunk=jacobian.chunk)
    worst = xp.concat(accuracy)
    doubtful = _doubtful(worst)
    errors = xp.zeros_like(values) + worst[:, None]
    if doubtful.shape[0]:
        diagonal, off = jacobian.inverses_of(unknowns, doubtful)
        values[doubtful, :], errors[doubtful, :] = diagonal, off
    return values, errors


class SharedTerms(NamedTuple):
    """What all rows have in common."""

    unknowns: Unknowns
    diagonal: Array  # (t,): that of B⁻¹
    w: Array  # (t,)
    v: Array  # (t,): B⁻¹w
    to_y: Array  # (P, t): x̃ ↦ y
    beyond: Array  # (P, P): x̃ ↦ the part of A x̃ that no unknown reaches
    error: float  # the relative error of B⁻¹


class _RowTerms(NamedTuple):
    """One row's share: ``r² I⁻¹ = B⁻¹ − vv·v vᵀ − vy·(v yᵀ + y vᵀ) − yy·y yᵀ``."""

    y: Array
    vv: Array
    vy: Array
    yy: Array
    r_squared: Array
    doubt: Array  # how many times larger than D the terms are whose sum it is
    slope_error: Array  # of r, relative
    regular: Array


def shared_terms(jacobian: SingleOutputJacobian, unknowns: Unknowns) -> SharedTerms:
    """Return what all rows have in common; kept for the next question about the same features."""
    kept = jacobian.inverse_terms
    if kept is not None and kept.unknowns.same_features(unknowns):
        return kept
    xp = array_namespace(jacobian.X)
    A, A_V, w = jacobian.restricted(unknowns)
    # By QR rather than through B itself, which would square the condition number of A_V; scaled
    # first, so that the units of the columns do not matter.
    scale = 1 / xp.sqrt(xp.sum(A_V * A_V, axis=0))
    Q, R = xp.linalg.qr(A_V * scale[None, :])
    root = scale[:, None] * xp.linalg.solve(R, xp.eye(R.shape[0], dtype=R.dtype, device=R.device))
    inverse = root @ root.T
    to_y = A.T @ (Q @ root.T)
    # The condition number of R, at most, but for a factor that is less than the root of its size.
    norms = xp.sum(R * R) * xp.sum((root / scale[:, None]) ** 2)
    condition = math.sqrt(float(norms) / R.shape[0])
    error = (8 * R.shape[0] * jacobian.rounding + jacobian.map.accuracy) * condition
    jacobian.inverse_terms = SharedTerms(
        unknowns, xp.linalg.diagonal(inverse), w, inverse @ w, to_y, A - A_V @ to_y.T, error
    )
    return jacobian.inverse_terms


def _row_terms(
    jacobian: SingleOutputJacobian, unknowns: Unknowns, shared: SharedTerms, rows: slice
) -> _RowTerms:
    xp = array_namespace(jacobian.X)
    r, a = jacobian.r[rows], jacobian.a[rows]
    if unknowns.columns is None and unknowns.basis is None:
        y = jacobian.near[rows, :]
        kappa = xp.zeros_like(r)
        if jacobian.intercept:
            y = y + shared.to_y[-1, :][None, :]
            kappa = kappa + xp.sum(shared.beyond[:, -1] ** 2)
    else:
        y = jacobian.design_times(rows, shared.to_y)
        out_of_reach = jacobian.design_times(rows, shared.beyond.T)
        kappa = xp.vecdot(out_of_reach, out_of_reach)
    curve = xp.sum(shared.w * shared.v)
    along = a * (y @ shared.w)
    D = (r + along) ** 2 + a * a * curve * kappa
    eps = float(xp.finfo(D.dtype).eps)
    regular = (r != 0) & (D / (64 * eps) ** 2 > r * r + along * along)
    scale = xp.where(regular, 1 / xp.where(regular, D, xp.ones_like(D)), xp.zeros_like(D))
    return _RowTerms(
        y,
        vv=a * a * kappa * scale,
        vy=a * (r + along) * scale,
        yy=-a * a * curve * scale,
        r_squared=xp.where(regular, r * r, xp.ones_like(r)),
        doubt=xp.where(
            regular, ((xp.abs(r) + xp.abs(along)) ** 2 + a * a * curve * kappa) * scale, 1.0
        ),
        slope_error=jacobian.slope_errors[rows] / xp.where(regular, xp.abs(r), xp.ones_like(r)),
        regular=regular,
    )


def _error(t: _RowTerms, shared: SharedTerms, terms: Array, total: Array) -> Array:
    """Return the relative error of a difference ``total`` of ``terms``; infinite where in doubt."""
    xp = array_namespace(total)
    positive = t.regular & (total > 0)
    loss = terms / xp.where(positive, total, xp.ones_like(total))
    found = shared.error * loss * t.doubt + 2 * t.slope_error * loss
    return xp.where(positive, found, xp.full_like(found, float("inf")))


def _doubtful(accuracy: Array) -> Array:
    """Return which rows are to be computed from the entries of their Jacobians instead."""
    return array_namespace(accuracy).nonzero(~(accuracy <= _DOUBTFUL))[0]


def _infinite_unless(regular: Array, values: Array) -> Array:
    xp = array_namespace(values)
    return xp.where(regular, values, xp.full_like(values, float("inf")))
