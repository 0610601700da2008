"""The inverse information about every row, by a closed form with few or no matrix products.

If the label is known and the features ``V`` are unknown, the information about a row is::

    I = r² B + a² ξ w wᵀ + a r (w zᵀ + z wᵀ),    B = A_VᵀA_V,  z = A_VᵀA x̃,  ξ = ‖A x̃‖²

Here ``w`` denotes ``w_V``, and ``B`` is the same for all rows. Let ``v = B⁻¹w``, ``y = B⁻¹z`` and
``κ = ξ − zᵀB⁻¹z ≥ 0``, the squared length of the part of ``A x̃`` that no unknown affects. By
Woodbury's formula::

    I⁻¹ = ( B⁻¹ − [a² κ v vᵀ + a (r + a wᵀy) (v yᵀ + y vᵀ) − a² (wᵀv) y yᵀ] / D ) / r²
    D = (r + a wᵀy)² + a² (wᵀv) κ

If all features are unknown, ``y`` equals ``x`` plus a constant vector, and ``κ`` is a constant, so
no matrix product is needed. Both constants are zero without an intercept. If ``r = 0`` or ``D =
0``, the inverse does not exist, and no unbiased estimate has a finite error.

The accuracy of the inverse follows from two inequalities. Let ``ρ = δ/√D`` be the relative error of
``D``, where ``δ`` is the error of ``r + a wᵀy``. The Cauchy–Schwarz inequality then bounds each
term of the entry ``r² (I⁻¹)_jj`` by ``P_j = (B⁻¹)_jj + a² (wᵀv) y_j²/D``. So the error of the entry
is at most a few times ``ρ P_j``, and ``P_j`` is at most five times the larger of ``(B⁻¹)_jj`` and
the entry. An error of the whitener, ``(I + E)A`` instead of ``A``, affects every term in the same
way, and changes the inverse by a relative amount of at most ``2‖E‖``, even if terms cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from array_api_compat import array_namespace

from seepage.core.jacobian import ReleaseJacobian, Unknowns, inverses
from seepage.glm.jacobian.terms import (
    FINE,
    GLMAccuracy,
    JacobianTerms,
)
from seepage.support.chunks import by_rows
from seepage.tables.source import Array

Answer = Callable[[slice | Array, bool], tuple[Array, Array]]


class ClosedInverse:
    """The inverse information about the rows of a single-output release, with known labels.

    Parameters
    ----------
    jacobian, terms, accuracy
        The operator and its parts. The operator inverts single rows where this form is inaccurate.
    unknowns
        The unknown features.
    """

    def __init__(
        self,
        jacobian: ReleaseJacobian,
        terms: JacobianTerms,
        accuracy: GLMAccuracy,
        unknowns: Unknowns,
    ) -> None:
        self.jacobian, self.terms, self.unknowns = jacobian, terms, unknowns
        self.accuracy = accuracy
        self.work = float(terms.size) * unknowns.count(terms)

    def traces(self) -> tuple[Array, Array]:
        """Return ``Tr(I⁻¹)`` of every row and its relative error, of shape ``(n,)`` each."""
        xp, shared = array_namespace(self.terms.X), self._shared()
        trace, v_squared = xp.sum(shared.diagonal), xp.sum(shared.v * shared.v)

        def traces(rows: slice | Array, closely: bool) -> tuple[Array, Array]:
            t = self._row_terms(shared, rows, closely)
            added = t.yy * t.y_squared
            total = trace - t.vv * v_squared - 2 * t.vy * (t.y @ shared.v) + added
            positive = t.regular & (total > 0)
            error = t.error * (trace + added) / xp.where(positive, total, xp.ones_like(total))
            error = _infinite_unless(positive, error + t.apart)
            return _infinite_unless(t.regular, total / t.r_squared), error

        return self._answers(traces, lambda diagonal: xp.sum(diagonal, axis=1))

    def diagonals(self) -> tuple[Array, Array]:
        """Return the diagonal of ``I⁻¹`` for every row, ``(n, t)``, and its relative errors."""
        xp, shared = array_namespace(self.terms.X), self._shared()
        flat = xp.stack([shared.diagonal, shared.v * shared.v])
        in_units = 1 / shared.diagonal

        def diagonals(rows: slice | Array, closely: bool) -> tuple[Array, Array]:
            t = self._row_terms(shared, rows, closely)
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

        values, errors = self._answers(diagonals, lambda diagonal: diagonal)
        return values, xp.broadcast_to(errors[:, None], values.shape)

    def _answers(
        self, answer: Answer, of_diagonal: Callable[[Array], Array]
    ) -> tuple[Array, Array]:
        """Return results and errors for all rows; recompute inaccurate results by decompositions.

        The arguments of ``answer`` are some rows, and whether to bound their errors tightly.
        """
        terms = self.terms
        xp, pieces = array_namespace(terms.X), []

        def values_of(rows: slice) -> Array:
            values, error = answer(rows, False)
            pieces.append(error)
            return values

        values = by_rows(values_of, terms.rows, terms.size, chunk=terms.chunk)
        errors = xp.concat(pieces)
        uncertain = xp.nonzero(~(errors <= FINE))[0]
        if uncertain.shape[0]:
            errors[uncertain] = answer(uncertain, True)[1]
            # A row's own decomposition costs much more: only for what is ten times worse.
            doubtful = uncertain[~(errors[uncertain] <= 10 * FINE)]
            if doubtful.shape[0]:
                diagonal, off = inverses(self.jacobian, self.unknowns, doubtful)
                better, off = of_diagonal(diagonal), xp.max(off, axis=1)
                wins = ~(off > errors[doubtful])
                which = doubtful[wins]
                values[which, ...], errors[which] = better[wins, ...], off[wins]
        return values, errors

    def _shared(self) -> _SharedTerms:
        """Return the terms shared by all rows, which are kept."""
        terms = self.terms
        xp = array_namespace(terms.X)

        def made(unknowns: Unknowns) -> _SharedTerms:
            A, A_V = terms.whitener, terms.columns_of(unknowns)[:, :, 0]
            w = unknowns.of(terms.coef[:, 0])
            # By QR rather than through B itself, which would square the condition number of A_V;
            # scaled first, so that the units of the columns do not matter.
            scale = 1 / xp.sqrt(xp.sum(A_V * A_V, axis=0))
            Q, R = xp.linalg.qr(A_V * scale[None, :])
            eye = xp.eye(R.shape[0], dtype=R.dtype, device=R.device)
            root = scale[:, None] * xp.linalg.solve(R, eye)
            inverse = root @ root.T
            along = Q.T @ A
            # An upper bound on the condition number of R, up to a factor below the root of its
            # size.
            norms = xp.sum(R * R) * xp.sum((root / scale[:, None]) ** 2)
            return _SharedTerms(
                xp.linalg.diagonal(inverse),
                w,
                inverse @ w,
                along.T @ root.T,
                A - Q @ along,
                scale,
                rounding=8 * R.shape[0] * self.accuracy.rounding,
                condition=math.sqrt(float(norms) / R.shape[0]),
            )

        shared: _SharedTerms = terms.keep("inverse", self.unknowns, made)
        return shared

    def _row_terms(self, shared: _SharedTerms, rows: slice | Array, closely: bool) -> _RowTerms:
        terms, unknowns = self.terms, self.unknowns
        xp = array_namespace(terms.X)
        r, a, _ = terms.derivatives(rows)
        r, a = r[:, 0], a[:, 0, 0]
        solved = shared.rounding * shared.condition
        if unknowns.columns is None and unknowns.basis is None:
            y, y_off = terms.near[rows, :], 4 * math.sqrt(len(shared.w)) * self.accuracy.rounding
            kappa = kappa_off = 0.0
            if terms.intercept:
                y, y_off = y + shared.to_y[-1, :][None, :], solved
                kappa = xp.sum(shared.beyond[:, -1] ** 2)
                kappa_off = _square_off(shared, kappa, shared.to_y[-1, :])
        else:
            y, y_off = terms.design_times(rows, shared.to_y), solved
            out_of_reach = terms.design_times(rows, shared.beyond.T)
            kappa = xp.vecdot(out_of_reach, out_of_reach)
            kappa_off = _square_off(shared, kappa, y)
        along = a * (y @ shared.w)
        total = r + along
        bend = a * a * xp.sum(shared.w * shared.v)
        D = total * total + bend * kappa
        eps = float(xp.finfo(D.dtype).eps)
        regular = (r != 0) & (D / (64 * eps) ** 2 > r * r + along * along)
        safe = xp.where(regular, D, xp.ones_like(D))
        scale = xp.where(regular, 1 / safe, xp.zeros_like(D))
        w, y_squared = shared.w, xp.vecdot(y, y)
        # Σ|w_j y_j|, or an upper bound.
        sizes = xp.abs(y) @ xp.abs(w) if closely else xp.sqrt(xp.sum(w**2) * y_squared)
        slope_off = self.accuracy.slope_errors[rows]
        doubt = (slope_off + y_off * a * sizes) * xp.sqrt(scale)
        yy = bend * scale
        safe_r = xp.where(regular, xp.abs(r), xp.ones_like(r))
        return _RowTerms(
            y,
            y_squared,
            vv=a * a * kappa * scale,
            vy=a * total * scale,
            yy=yy,
            r_squared=safe_r**2,
            error=8 * solved + 8 * doubt + 4 * kappa_off * yy,
            apart=2 * terms.map.accuracy + 2 * slope_off / safe_r,
            regular=regular,
        )


class _SharedTerms(NamedTuple):
    """The terms shared by all rows."""

    diagonal: Array  # (t,): that of B⁻¹
    w: Array  # (t,)
    v: Array  # (t,): B⁻¹w
    to_y: Array  # (P, t): x̃ ↦ y
    beyond: Array  # (P, P): x̃ ↦ the part of A x̃ that no unknown reaches
    scale: Array  # (t,): that gives the columns of A_V the same length
    rounding: float  # the error of orthogonal projections, of vectors of unit length
    condition: float  # by which solving multiplies it


class _RowTerms(NamedTuple):
    """The terms of a single row: ``r² I⁻¹ = B⁻¹ − vv·v vᵀ − vy·(v yᵀ + y vᵀ) + yy·y yᵀ``."""

    y: Array
    y_squared: Array
    vv: Array
    vy: Array
    yy: Array
    r_squared: Array
    error: Array  # of each term, relative to ``B⁻¹ + yy·y yᵀ``
    apart: Array  # relative to ``I⁻¹`` itself
    regular: Array


def _square_off(shared: _SharedTerms, kappa: Array, y: Array) -> Array:
    """Return the error of ``κ``, the squared distance between a vector and ``A_V y``.

    The columns of ``A_V`` may nearly cancel in ``A_V y``, but their errors do not.
    """
    xp = array_namespace(shared.v)
    rest, reached = xp.sqrt(kappa), y / shared.scale
    seen = xp.sqrt(kappa + shared.w.shape[0] * xp.vecdot(reached, reached))
    off = shared.rounding * (seen + shared.condition * rest)
    return off * (2 * rest + off)


def _infinite_unless(regular: Array, values: Array) -> Array:
    xp = array_namespace(values)
    return xp.where(regular, values, xp.full_like(values, float("inf")))
