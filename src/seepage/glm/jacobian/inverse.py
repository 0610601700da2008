"""The inverse information about every row in closed form, cheaper than a matrix product.

With the label known and the features ``V`` unknown, the information about a row is::

    I = r² B + a² ξ w wᵀ + a r (w zᵀ + z wᵀ),    B = A_VᵀA_V,  z = A_VᵀA x̃,  ξ = ‖A x̃‖²

with ``w`` standing for ``w_V`` and ``B`` the same for all rows. Woodbury's formula, with
``v = B⁻¹w``, ``y = B⁻¹z`` and ``κ = ξ − zᵀB⁻¹z ≥ 0`` (the part of ``A x̃`` that no unknown reaches),
simplifies to::

    I⁻¹ = ( B⁻¹ − [a² κ v vᵀ + a (r + a wᵀy) (v yᵀ + y vᵀ) − a² (wᵀv) y yᵀ] / D ) / r²
    D = (r + a wᵀy)² + a² (wᵀv) κ

Where all features are unknown, ``y`` is ``x`` up to a constant and ``κ`` is a constant (both zero
without an intercept), and no product with a matrix is left. The inverse does not exist, and no
unbiased estimate has a finite error, where ``r = 0`` or ``D = 0``.

Its accuracy follows from two inequalities. With ``D`` known to a relative ``ρ = δ/√D``, where
``δ`` is the error of ``r + a wᵀy``, Cauchy and Schwarz bound each of the terms of a cell by
``P_j = (B⁻¹)_jj + a² (wᵀv) y_j²/D``, so that the cell is off by a few ``ρ P_j``; and ``P_j`` is at
most five times the larger of ``(B⁻¹)_jj`` and the cell. The error of the whitener is the same
``(I + E)A`` wherever it is used, which changes the inverse by ``2‖E‖``, whatever cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from array_api_compat import array_namespace

from seepage.core.unknowns import Unknowns
from seepage.glm.jacobian.terms import JacobianTerms
from seepage.support.chunks import by_rows
from seepage.tables.source import Array

_CLOSER_LOOK = 1e-8  # a stated error above which a closer look is worthwhile
_DOUBTFUL = 1e-7  # and, after that, a decomposition of the row's own


def inverse_traces(
    jacobian: JacobianTerms, unknowns: Unknowns, shared: SharedTerms
) -> tuple[Array, Array]:
    """Return ``Tr(I⁻¹)`` of every row of one output and its relative errors, ``(n,)`` both."""
    xp = array_namespace(jacobian.X)
    trace, v_squared = xp.sum(shared.diagonal), xp.sum(shared.v * shared.v)

    def traces(rows: slice | Array, closely: bool) -> tuple[Array, Array]:
        t = _row_terms(jacobian, unknowns, shared, rows, closely)
        added = t.yy * t.y_squared
        total = trace - t.vv * v_squared - 2 * t.vy * (t.y @ shared.v) + added
        positive = t.regular & (total > 0)
        error = t.error * (trace + added) / xp.where(positive, total, xp.ones_like(total))
        error = _infinite_unless(positive, error + t.apart)
        return _infinite_unless(t.regular, total / t.r_squared), error

    def decomposed(rows: Array) -> tuple[Array, Array]:
        diagonal, errors = jacobian.inverses_of(unknowns, rows)
        return xp.sum(diagonal, axis=1), xp.max(errors, axis=1)

    return _answers(jacobian, traces, decomposed)


def inverse_diagonal(
    jacobian: JacobianTerms, unknowns: Unknowns, shared: SharedTerms
) -> tuple[Array, Array]:
    """Return the diagonal of ``I⁻¹`` of every row, ``(n, t)``, and the rows' relative errors."""
    xp = array_namespace(jacobian.X)
    flat = xp.stack([shared.diagonal, shared.v * shared.v])
    in_units = 1 / shared.diagonal

    def diagonals(rows: slice | Array, closely: bool) -> tuple[Array, Array]:
        t = _row_terms(jacobian, unknowns, shared, rows, closely)
        # (diag B⁻¹ − vv·v² − (2 vy·v − yy·y)·y)/r²: passes over a chunk dominate the cost.
        out = (t.yy / t.r_squared)[:, None] * t.y
        out -= (2 * t.vy / t.r_squared)[:, None] * shared.v[None, :]
        out *= t.y
        out += xp.stack([1 / t.r_squared, -t.vv / t.r_squared], axis=1) @ flat
        # The cell of a row that cancels most gives the error of all of them.
        least = t.r_squared * xp.min(out * in_units[None, :], axis=1)
        positive = t.regular & (least > 0)
        loss = 1 / xp.where(positive & (least < 1), least, xp.ones_like(least))
        error = _infinite_unless(positive, 5 * t.error * loss + t.apart)
        if not bool(xp.all(t.regular)):
            out = _infinite_unless(t.regular[:, None], out)
        return out, error

    def decomposed(rows: Array) -> tuple[Array, Array]:
        diagonal, errors = jacobian.inverses_of(unknowns, rows)
        return diagonal, xp.max(errors, axis=1)

    values, errors = _answers(jacobian, diagonals, decomposed)
    return values, xp.broadcast_to(errors[:, None], values.shape)


def _answers(
    jacobian: JacobianTerms,
    answer: Callable[[slice | Array, bool], tuple[Array, Array]],
    decomposed: Callable[[Array], tuple[Array, Array]],
) -> tuple[Array, Array]:
    """Return the answers about all rows and their errors; decompositions replace doubtful ones.

    ``answer`` takes some rows, and whether to examine its accuracy closely.
    """
    xp = array_namespace(jacobian.X)
    pieces = []

    def values_of(rows: slice) -> Array:
        values, error = answer(rows, False)
        pieces.append(error)
        return values

    values = by_rows(values_of, jacobian.rows, jacobian.size, chunk=jacobian.chunk)
    errors = pieces[0] if len(pieces) == 1 else xp.concat(pieces)
    uncertain = xp.nonzero(~(errors <= _CLOSER_LOOK))[0]
    if uncertain.shape[0]:
        errors[uncertain] = answer(uncertain, True)[1]
        doubtful = uncertain[~(errors[uncertain] <= _DOUBTFUL)]
        if doubtful.shape[0]:
            better, off = decomposed(doubtful)
            worse = off > errors[doubtful]
            which, better, off = doubtful[~worse], better[~worse, ...], off[~worse]
            values[which, ...], errors[which] = better, off
    return values, errors


class SharedTerms(NamedTuple):
    """What all rows have in common."""

    unknowns: Unknowns
    diagonal: Array  # (t,): that of B⁻¹
    w: Array  # (t,)
    v: Array  # (t,): B⁻¹w
    to_y: Array  # (P, t): x̃ ↦ y
    beyond: Array  # (P, P): x̃ ↦ the part of A x̃ that no unknown reaches
    scale: Array  # (t,): that gives the columns of A_V the same length
    rounding: float  # the error of orthogonal projections, of vectors of unit length
    condition: float  # by which solving multiplies it


class _RowTerms(NamedTuple):
    """One row's share: ``r² I⁻¹ = B⁻¹ − vv·v vᵀ − vy·(v yᵀ + y vᵀ) + yy·y yᵀ``."""

    y: Array
    y_squared: Array
    vv: Array
    vy: Array
    yy: Array
    r_squared: Array
    error: Array  # of each term, relative to ``B⁻¹ + yy·y yᵀ``
    apart: Array  # relative to ``I⁻¹`` itself
    regular: Array


def shared_terms(jacobian: JacobianTerms, unknowns: Unknowns) -> SharedTerms:
    """Return what all rows have in common."""
    xp = array_namespace(jacobian.X)
    A, A_V = jacobian.whitener, jacobian.columns_of(unknowns)[:, :, 0]
    w = unknowns.of(jacobian.coef[:, 0])
    # By QR rather than through B itself, which would square the condition number of A_V; scaled
    # first, so that the units of the columns do not matter.
    scale = 1 / xp.sqrt(xp.sum(A_V * A_V, axis=0))
    Q, R = xp.linalg.qr(A_V * scale[None, :])
    root = scale[:, None] * xp.linalg.solve(R, xp.eye(R.shape[0], dtype=R.dtype, device=R.device))
    inverse = root @ root.T
    along = Q.T @ A
    # An upper bound on the condition number of R, up to a factor below the root of its size.
    norms = xp.sum(R * R) * xp.sum((root / scale[:, None]) ** 2)
    return SharedTerms(
        unknowns,
        xp.linalg.diagonal(inverse),
        w,
        inverse @ w,
        along.T @ root.T,
        A - Q @ along,
        scale,
        rounding=8 * R.shape[0] * jacobian.rounding,
        condition=math.sqrt(float(norms) / R.shape[0]),
    )


def _row_terms(
    jacobian: JacobianTerms,
    unknowns: Unknowns,
    shared: SharedTerms,
    rows: slice | Array,
    closely: bool,
) -> _RowTerms:
    xp = array_namespace(jacobian.X)
    r, a, _ = jacobian.derivatives(rows)
    r, a = r[:, 0], a[:, 0, 0]
    solved = shared.rounding * shared.condition
    if unknowns.columns is None and unknowns.basis is None:
        y, y_off = jacobian.near[rows, :], 4 * math.sqrt(shared.w.shape[0]) * jacobian.rounding
        kappa = kappa_off = 0.0
        if jacobian.intercept:
            y, y_off = y + shared.to_y[-1, :][None, :], solved
            kappa = xp.sum(shared.beyond[:, -1] ** 2)
            kappa_off = _square_off(shared, kappa, shared.to_y[-1, :])
    else:
        y, y_off = jacobian.design_times(rows, shared.to_y), solved
        out_of_reach = jacobian.design_times(rows, shared.beyond.T)
        kappa = xp.vecdot(out_of_reach, out_of_reach)
        kappa_off = _square_off(shared, kappa, y)
    y_squared = xp.vecdot(y, y)
    curve = xp.sum(shared.w * shared.v)
    along = a * (y @ shared.w)
    total = r + along
    bend = a * a * curve
    D = total * total + bend * kappa
    eps = float(xp.finfo(D.dtype).eps)
    regular = (r != 0) & (D / (64 * eps) ** 2 > r * r + along * along)
    safe = xp.where(regular, D, xp.ones_like(D))
    scale = xp.where(regular, 1 / safe, xp.zeros_like(D))
    # Σ|w_j y_j|, or an upper bound.
    sizes = xp.abs(y) @ xp.abs(shared.w) if closely else xp.sqrt(xp.sum(shared.w**2) * y_squared)
    slope_off = jacobian.slope_errors[rows]
    doubt = (slope_off + y_off * a * sizes) * xp.sqrt(scale)
    yy = bend * scale
    return _RowTerms(
        y,
        y_squared,
        vv=a * a * kappa * scale,
        vy=a * total * scale,
        yy=yy,
        r_squared=xp.where(regular, r * r, xp.ones_like(r)),
        error=8 * solved + 8 * doubt + 4 * kappa_off * yy,
        apart=2 * jacobian.map.accuracy
        + 2 * slope_off / xp.where(regular, xp.abs(r), xp.ones_like(r)),
        regular=regular,
    )


def _square_off(shared: SharedTerms, kappa: Array, y: Array) -> Array:
    """Return the error of ``κ``, the squared rest of a vector without ``A_V y``.

    The columns of ``A_V`` may nearly cancel in that sum; their errors do not.
    """
    xp = array_namespace(shared.v)
    rest, reached = xp.sqrt(kappa), y / shared.scale
    seen = xp.sqrt(kappa + shared.w.shape[0] * xp.vecdot(reached, reached))
    off = shared.rounding * (seen + shared.condition * rest)
    return off * (2 * rest + off)


def _infinite_unless(regular: Array, values: Array) -> Array:
    xp = array_namespace(values)
    return xp.where(regular, values, xp.full_like(values, float("inf")))
