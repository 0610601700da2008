"""Closed forms for GLMs with one output: every view of the leakage at about one matrix product.

For one output the information about a row, seen from the release, is a fixed matrix plus one of
rank two. With ``A`` the whitener, ``V`` the unknown feature directions, ``w_V = Vᵀw``, and the
sample weights folded into ``r``, ``a`` and ``b``::

    A G_i G_iᵀ Aᵀ = r² A_V A_Vᵀ + c (Ax̃)(Ax̃)ᵀ + a r [(Ax̃)(A_V w_V)ᵀ + (A_V w_V)(Ax̃)ᵀ]
    c = a²‖w_V‖² + b²      (without b² where the label is known)

Diagonalise ``A_V A_Vᵀ`` once, and every row is a secular equation (:mod:`seepage.glm.jacobian.secular`).
Seen from the columns the same happens once more: the information about column j over many rows is
``w_j²`` times a fixed matrix plus one of rank two. Sums over rows stay P×P.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from array_api_compat import array_namespace

from seepage.core.unknowns import Unknowns
from seepage.glm.jacobian import block_sums
from seepage.glm.jacobian.inverse import SharedTerms, inverse_diagonal, inverse_traces
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.jacobian.secular import largest_eigenvalue
from seepage.support.chunks import CHUNK, by_rows

Array = Any

_SMALL = 12  # up to this many unknowns a row, its information is written out as a matrix


class _Eigenbasis(NamedTuple):
    """The eigenvectors of ``A_V A_Vᵀ``, and what a row's ``A x̃`` is in terms of them."""

    unknowns: Unknowns  # which features
    delta: Array  # (k,), the eigenvalues, rising
    coordinates: Array  # (P, t): x̃ ↦ the coordinates of A x̃
    whole: bool  # whether they span all of the release
    q: Array  # (k,): the coordinates of A_V w_V


class SingleOutputJacobian(GLMJacobian):
    """The whitened Jacobian of a GLM with one output; see :class:`GLMJacobian`.

    Parameters
    ----------
    X, coef, intercept, whitener, target
        As there, with ``coef`` of shape ``(d,)``.
    r, a, b
        Slopes, curvatures and label slopes of all rows, ``(n,)``, sample weights folded in.
    """

    def __init__(
        self,
        X: Array,
        coef: Array,
        *,
        intercept: bool,
        r: Array,
        a: Array,
        b: Array,
        whitener: Array,
        target: Array,
    ) -> None:
        super().__init__(
            X,
            coef[:, None],
            intercept=intercept,
            derivatives=lambda rows: (r[rows, None], a[rows, None, None], b[rows, None, None]),
            whitener=whitener,
            target=target,
            label_size=1,
        )
        self.w, self.r, self.a, self.b = coef, r, a, b
        self._kept: _Eigenbasis | None = None
        self._lengths: Array | None = None
        self.inverse_terms: SharedTerms | None = None

    def about(self, X: Array, r: Array, a: Array, b: Array, target: Array) -> SingleOutputJacobian:
        """Return the Jacobian of the same release about other rows, with what was kept of it."""
        other = SingleOutputJacobian(
            X,
            self.w,
            intercept=self.intercept,
            r=r,
            a=a,
            b=b,
            whitener=self.whitener,
            target=target,
        )
        other._kept, other.inverse_terms = self._kept, self.inverse_terms
        return other

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return the largest eigenvalue of the information about each row, by secular equations."""
        if self.unknown_count(unknowns) <= _SMALL:
            return super().row_norms(unknowns)
        xp = array_namespace(self.X)
        basis = self._eigenbasis(unknowns)
        c, s = self.rank_two(unknowns)
        rho = self.r * self.r
        lengths = rho if basis.whole else self._release_lengths()

        def norms(rows: slice) -> Array:
            p = self.design_times(rows, basis.coordinates)
            if not basis.whole:
                # An eigenvalue is even in this length, so that its cancellation does no harm.
                rest = lengths[rows] - xp.vecdot(p, p)
                rest = xp.sqrt(xp.where(rest > 0, rest, xp.zeros_like(rest)))
                p = xp.concat([rest[:, None], p], axis=1)
            return largest_eigenvalue(rho[rows], basis.delta, p, basis.q, c[rows], s[rows])

        return by_rows(norms, self.rows, self.size, chunk=max(8 * CHUNK, self.chunk), what="rows")

    def release_gram(self, rows: slice) -> Array:
        """Return ``‖A x̃‖²`` of some rows, ``(m, 1, 1)``."""
        return self._release_lengths()[rows, None, None]

    def _release_lengths(self) -> Array:
        """Return ``‖A x̃‖²`` of every row; kept, since every question about a row asks for it."""
        if self._lengths is None:
            A, xp = self.whitener, array_namespace(self.X)

            def squares(rows: slice) -> Array:
                AX = self.design_times(rows, A.T)
                return xp.vecdot(AX, AX)

            self._lengths = by_rows(squares, self.rows, self.size, chunk=self.chunk)
        return self._lengths

    def _forget(self) -> None:
        self._kept = self._lengths = self.inverse_terms = None

    def _eigenbasis(self, unknowns: Unknowns) -> _Eigenbasis:
        """Diagonalise ``A_V A_Vᵀ``; kept for the next question about the same features.

        Where the unknown features reach only t of the release's dimensions, all that a row adds
        beyond them is the length of one more coordinate.
        """
        kept = self._kept
        if kept is not None and kept.unknowns.same_features(unknowns):
            return kept
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        whole = A_V.shape[1] + 1 >= self.size
        if not whole:
            Q, R = xp.linalg.qr(A_V)
            delta, W = xp.linalg.eigh(R @ R.T)
            U = Q @ W
        else:
            delta, U = xp.linalg.eigh(A_V @ A_V.T)
        delta, q = xp.where(delta > 0, delta, xp.zeros_like(delta)), (A_V @ w_V) @ U
        if not whole:
            delta, q = (xp.concat([xp.zeros_like(v[:1]), v]) for v in (delta, q))
        self._kept = _Eigenbasis(unknowns, delta, A.T @ U, whole, q)
        return self._kept

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return ``r² tr(A_V A_Vᵀ) + c ‖Ax̃‖² + 2 a r (A_V w_V)·Ax̃`` for each row."""
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        c, s = self.rank_two(unknowns)
        along_w = A.T @ (A_V @ w_V)
        slopes = self.design_times(slice(0, self.rows), along_w)
        return self.r**2 * xp.sum(A_V * A_V) + c * self._release_lengths() + 2 * s * slopes

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return ``a²‖Ax̃‖² w_j² + 2 a r w_j z_j + r² C_jj`` with ``z = C x̃``, ``(n, t)``."""
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        to_z, lengths = A.T @ A_V, self._release_lengths()
        diagonal = xp.sum(A_V * A_V, axis=0)

        def cells(rows: slice) -> Array:
            z = self.design_times(rows, to_z)
            # Completed to the square of J's column, so that nothing cancels below zero.
            slope = (self.a[rows] ** 2 * lengths[rows])[:, None] * (w_V * w_V)[None, :]
            slope += (2 * self.a[rows] * self.r[rows])[:, None] * w_V[None, :] * z
            slope += (self.r[rows] ** 2)[:, None] * diagonal[None, :]
            return xp.where(slope > 0, slope, xp.zeros_like(slope))

        return by_rows(cells, self.rows, self.size, chunk=self.chunk)

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Array], Array]]:
        """Return, for some rows, the product ``GᵀC G v`` of one vector per row."""
        xp = array_namespace(self.X)
        A, _, w_V = self.restricted(unknowns)
        t = w_V.shape[0]
        C = A.T @ A
        padding = self.size - self.features

        def operator(rows: slice) -> Callable[[Array], Array]:
            X, r, a, b = self.design(rows), self.r[rows, None], self.a[rows], self.b[rows]

            def apply(v: Array) -> Array:
                along = a * (v[:, :t] @ w_V)
                if unknowns.label:
                    along = along + b * v[:, t]
                spread = unknowns.back(v[:, :t].T, self.features).T
                if padding:
                    spread = xp.concat([spread, xp.zeros_like(spread[:, :padding])], axis=1)
                y = (X * along[:, None] + r * spread) @ C
                along_x = xp.vecdot(X, y)
                out = (a * along_x)[:, None] * w_V[None, :]
                out += r * unknowns.of(y[:, : self.features], axis=1)
                return xp.concat([out, (b * along_x)[:, None]], axis=1) if unknowns.label else out

            return apply

        return operator

    def row_width(self, unknowns: Unknowns) -> int:
        """Return how many numbers the work on one row holds at a time."""
        count = self.unknown_count(unknowns)
        return self.size + (count**2 if count <= _SMALL else count)

    def inverse_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the inverse information about each row, ``(n,)``."""
        if unknowns.label:
            return super().inverse_traces(unknowns)
        return inverse_traces(self, unknowns)

    def inverse_diagonal(self, unknowns: Unknowns) -> Array:
        """Return the diagonal of the inverse information about each row, ``(n, q)``."""
        if unknowns.label:
            return super().inverse_diagonal(unknowns)
        return inverse_diagonal(self, unknowns)

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of ``Σ_i A G_i G_iᵀ Aᵀ`` over the rows: a P×P matrix."""
        sums = block_sums.sum_rows(self, self.rank_two(unknowns)[0], rows)
        return block_sums.block_norm(self, unknowns, sums)

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        sums = block_sums.sum_rows(self, self.a**2, rows)
        return block_sums.column_norms(self, attributes, sums)

    def _cell_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return the information about each unknown feature alone, summed over the rows."""
        sums = block_sums.sum_rows(self, self.a**2, rows)
        return block_sums.cell_totals(self, unknowns, sums)

    def restricted(self, unknowns: Unknowns) -> tuple[Array, Array, Array]:
        """Return ``A``, ``A_V`` and ``w_V``."""
        A = self.whitener
        return A, unknowns.of(A[:, : self.features], axis=1), unknowns.of(self.w)

    def rank_two(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return ``c`` and ``s = a r`` of every row."""
        xp = array_namespace(self.X)
        w_V = unknowns.of(self.w)
        c = self.a * self.a * xp.sum(w_V * w_V)
        return (c + self.b * self.b if unknowns.label else c), self.a * self.r
