"""The Jacobian of a GLM with one output, in closed form.

In the space of the release, the information about a row is a multiple of a fixed matrix plus a
matrix of rank two. Let ``A`` be the whitener, ``V`` the unknown feature directions and ``w_V =
Vᵀw``, with the sample weights included in ``r``, ``a`` and ``b``::

    A G_i G_iᵀ Aᵀ = r² A_V A_Vᵀ + c (Ax̃)(Ax̃)ᵀ + a r [(Ax̃)(A_V w_V)ᵀ + (A_V w_V)(Ax̃)ᵀ]
    c = a²‖w_V‖² + b²      (without b² where the label is known)

After diagonalising ``A_V A_Vᵀ``, every row has a secular equation
(:mod:`seepage.glm.jacobian.secular`). Columns have the same structure: the information about column
j over many rows is ``w_j²`` times a fixed matrix plus a matrix of rank two. The information about a
block of rows depends only on three sums over the rows, ``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²``. So
rows may be read in pieces of any size, and no array is larger than P×P.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from array_api_compat import array_namespace, is_numpy_array

from seepage.core.jacobian import (
    ReleaseJacobian,
    Unknowns,
    dense_largest,
    largest_eigenvalues,
    largest_square,
    squared_columns,
    squared_size,
)
from seepage.glm.fitting.objective import weighted_gram
from seepage.glm.jacobian.accuracy import exact_blocks, exact_records, single_columns
from seepage.glm.jacobian.inverse import ClosedInverse
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.jacobian.secular import largest_of_rows
from seepage.glm.jacobian.terms import JacobianTerms
from seepage.support.chunks import by_rows, progress, row_slices, small_on_one_core
from seepage.tables.source import Array


class SingleOutputJacobian(GLMJacobian):
    """The whitened Jacobian of a GLM with one output."""

    sums_of_all = True

    def __init__(self, terms: JacobianTerms) -> None:
        super().__init__(terms)
        r, a, b = terms.derivatives(slice(0, terms.rows))
        self.w, self.r, self.a, self.b = terms.coef[:, 0], r[:, 0], a[:, 0, 0], b[:, 0, 0]

    # Rows, one by one -----------------------------------------------------------------------

    @exact_records(largest_square)
    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²`` for each row, of shape ``(n,)``, by secular equations."""
        count = unknowns.count(self)
        if count <= 12:  # so few that a matrix for each row is the shorter way
            return ReleaseJacobian.row_norms(self, unknowns)
        xp, terms = array_namespace(self.X), self.terms
        # All of it: threads that BLAS has woken would compete with those that take the rows next.
        with small_on_one_core(self.whitener):
            basis = terms.keep("eigenbasis", unknowns, self._eigenbasis)
        w_V, rho = unknowns.of(self.w), self.r * self.r
        c = self.a * self.a * xp.sum(w_V * w_V)
        c = c + self.b * self.b if unknowns.label else c
        lengths = rho if basis.whole else terms.squared_lengths

        def coordinates(rows: slice | Array) -> Array:
            p = terms.seen_along(rows, basis.lifted)[:, 0, :]
            if not basis.whole:
                # An eigenvalue is even in this length, so its cancellation does no harm.
                rest = lengths[rows] - xp.vecdot(p, p)
                rest = xp.sqrt(xp.where(rest > 0, rest, xp.zeros_like(rest)))
                p = xp.concat([rest[:, None], p], axis=1)
            return p

        threads = is_numpy_array(self.X) and not terms.map.precise
        norms = largest_of_rows(
            rho, basis.delta, coordinates, basis.q, c, self.a * self.r, threads=threads, what="rows"
        )
        # Next to the largest pole, with the next one hardly apart, the secular equation has lost
        # half its digits: a zero here has the norm computed from the entries (``exact_records``
        # does that with whatever has cancelled), if that is cheap.
        if float(basis.delta[-2]) >= 0.99 * float(basis.delta[-1]):
            near_pole = (norms > 0) & (norms <= (1 + 1e-6) * rho * basis.delta[-1])
            work = float(xp.sum(near_pole)) * self.size * count * min(self.size, count)
            norms = xp.where(near_pole & (work <= 1e9), xp.zeros_like(norms), norms)
        return norms

    def _eigenbasis(self, unknowns: Unknowns) -> _Eigenbasis:
        """Diagonalise ``A_V A_Vᵀ``.

        If the unknown features span only t dimensions of the release, each row adds one more
        coordinate.
        """
        xp = array_namespace(self.X)
        A_V = self.terms.columns_of(unknowns)[:, :, 0]
        whole = A_V.shape[1] + 1 >= self.size
        if whole:
            delta, U = xp.linalg.eigh(A_V @ A_V.T)
        else:
            Q, R = xp.linalg.qr(A_V)
            delta, W = xp.linalg.eigh(R @ R.T)
            U = Q @ W
        delta = xp.where(delta > 0, delta, xp.zeros_like(delta))
        q = (A_V @ unknowns.of(self.w)) @ U
        if not whole:
            delta, q = (xp.concat([xp.zeros_like(v[:1]), v]) for v in (delta, q))
        return _Eigenbasis(delta, self.terms.lifted(U), whole, q)

    @exact_records(squared_size)
    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return ``r² tr(A_V A_Vᵀ) + c ‖Ax̃‖² + 2 a r (A_V w_V)·Ax̃`` for each row."""
        xp = array_namespace(self.X)
        A_V, w_V = self.terms.columns_of(unknowns)[:, :, 0], unknowns.of(self.w)
        c = self.a * self.a * xp.sum(w_V * w_V)
        c = c + self.b * self.b if unknowns.label else c
        lifted = self.terms.lifted((A_V @ w_V)[:, None])
        along = self.terms.seen_along(slice(0, self.rows), lifted)[:, 0, 0]
        direct = self.r * self.r * xp.sum(A_V * A_V)
        return direct + c * self.terms.squared_lengths + 2 * self.a * self.r * along

    @exact_records(squared_columns, cells=True)
    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return ``a²‖Ax̃‖² w_j² + 2 a r w_j z_j + r² C_jj`` with ``z = C x̃``, ``(n, t)``."""
        xp, terms = array_namespace(self.X), self.terms
        A_V, w_V = terms.columns_of(unknowns)[:, :, 0], unknowns.of(self.w)
        lifted = terms.lifted(A_V * w_V[None, :])
        flat = xp.stack([w_V * w_V, xp.sum(A_V * A_V, axis=0)])
        s = 2 * self.a * self.r
        weights = xp.stack([self.a**2 * terms.squared_lengths, self.r * self.r], axis=1)

        def cells(rows: slice) -> Array:
            # In place: passes over a chunk dominate the cost.
            out = terms.seen_along(rows, lifted)[:, 0, :]
            out *= s[rows, None]
            out += weights[rows, :] @ flat
            return out

        return by_rows(cells, self.rows, self.size, chunk=terms.chunk)

    def inverse_form(self, unknowns: Unknowns) -> ClosedInverse | None:
        """Return the closed form of the rows' inverse information, if it applies, or ``None``."""
        if unknowns.label or unknowns.count(self) == 1 or self.terms.map.precise:
            return None
        return ClosedInverse(self, self.terms, self.accuracy, unknowns)

    # Blocks of the table ----------------------------------------------------------------------

    @exact_blocks
    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute, over all rows."""
        if len(attributes) > 1:
            return self.column_norms_of(attributes, self.column_sums(attributes, rows))
        value = self.norm_of(attributes[0], self.block_sums(attributes[0], rows))
        return self.terms.zeros(1) + value

    def block_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Σ_i G_i G_iᵀ`` over these rows, (P, P), computed from three sums.

        The sums are computed before whitening, or after whitening if only the product with the
        whitener is exact.
        """
        xp, terms = array_namespace(self.X), self.terms
        w_V = unknowns.of(self.w)
        sums = self._sums(rows, float(xp.sum(w_V * w_V)), unknowns.label)
        if terms.map.precise:
            A_V = terms.columns_of(unknowns)[:, :, 0]
            cross = (A_V @ w_V)[:, None] * sums.along[None, :]
            return sums.gram + cross + cross.T + sums.spread * (A_V @ A_V.T)
        total, d = sums.gram, self.features
        cross = unknowns.back(w_V, d)[:, None] * sums.along[None, :]
        total[:d, :] += cross
        total[:, :d] += cross.T
        eye = xp.eye(d, dtype=self.X.dtype, device=self.X.device)
        total[:d, :d] += sums.spread * unknowns.back(unknowns.of(eye), d)  # V Vᵀ
        return total

    def norm_of(self, unknowns: Unknowns, sums: Array) -> float:
        """Return the largest eigenvalue of ``A (Σ G Gᵀ) Aᵀ`` and thus of the information."""
        if self.terms.map.precise:
            return float(dense_largest(sums[None, :, :])[0])
        return super().norm_of(unknowns, sums)

    def column_sums(self, attributes: list[Unknowns], rows: Array) -> BlockSums:
        """Return the three sums over the rows with ``c = a²``, which all attributes share."""
        return self._sums(rows)

    def column_norms_of(self, attributes: list[Unknowns], sums: BlockSums) -> Array:
        """Return the largest eigenvalue of the information about each attribute, over all rows.

        Let ``N = A X̃ᵀdiag(a²)X̃ Aᵀ`` and ``h = A X̃ᵀ(a r)``. The result is the largest eigenvalue
        of::

            ‖w_V‖² N + (Σr²) A_V A_Vᵀ + (A_V w_V) hᵀ + h (A_V w_V)ᵀ

        ``N`` is diagonalised once. For a single column, the eigenvalue is the root of a secular
        equation; the equations of all columns are solved together. For a group of columns, the
        matrix is a diagonal plus a low-rank update, with which products are fast.
        """
        xp = array_namespace(self.X)
        # In double precision, whatever the table's type: fourth powers of such numbers leave the
        # range of single.
        gram, along, spread, A, coef = (
            xp.astype(v, xp.float64, copy=False)
            for v in (sums.gram, sums.along, sums.spread, self.whitener, self.w)
        )
        if not self.terms.map.precise:
            gram, along = A @ gram @ A.T, A @ along
        delta, Q = xp.linalg.eigh((gram + gram.T) / 2)
        delta, h = xp.where(delta > 0, delta, xp.zeros_like(delta)), along @ Q
        out, single = self.terms.zeros(len(attributes)), single_columns(attributes)
        for k in progress([k for k in range(len(attributes)) if k not in single], "attributes"):
            w = attributes[k].of(coef)
            U = Q.T @ xp.astype(self.terms.columns_of(attributes[k])[:, :, 0], w.dtype, copy=False)
            poles, Uw = xp.sum(w * w) * delta, U @ w

            def apply(v: Array, poles: Array = poles, U: Array = U, Uw: Array = Uw) -> Array:
                update = spread * (v @ U) @ U.T + (v @ h)[:, None] * Uw + (v @ Uw)[:, None] * h
                return v * poles + update

            out[k] = largest_eigenvalues(apply, h[None, :])[0]
        if single:
            columns = xp.asarray(list(single.values()), device=self.X.device)
            w, p = coef[columns], (Q.T @ A)[:, columns].T
            values = largest_of_rows(
                w**2, delta, lambda rows: p[rows, :], h, spread * xp.ones_like(w), w
            )
            values = xp.where(values > 0, values, xp.zeros_like(values))
            out[list(single)] = xp.astype(values, out.dtype, copy=False)
        return out

    def _sums(self, rows: Array, squared: float = 1.0, label: bool = False) -> BlockSums:
        """Return the sums over these rows with ``c = a² ‖w_V‖²``, plus ``b²`` for the label.

        A selection of rows is copied one chunk at a time; a full table is read in place.
        """
        xp, terms = array_namespace(self.X), self.terms
        whole, precise = rows.shape[0] == self.rows, terms.map.precise
        chosen = slice(None) if whole else rows
        a, r = self.a[chosen], self.r[chosen]
        c, s, spread = a * a * squared, a * r, xp.sum(r**2)
        if label:
            c = c + self.b[chosen] * self.b[chosen]
        pieces = row_slices(rows.shape[0], self.size, chunk=terms.chunk)
        if whole and not precise:
            pieces = iter([slice(0, self.rows)])
        gram: Array = 0.0
        along: Array = 0.0
        for piece in pieces:
            here = piece if whole else rows[piece]
            Z = terms.seen(here)[:, 0, :] if precise else terms.near[here, :]
            gram = gram + weighted_gram(Z, c[piece], terms.intercept and not precise)
            along = along + Z.T @ s[piece]
        if terms.intercept and not precise:
            along = xp.concat([along, xp.reshape(xp.sum(s), (1,))])
        return BlockSums(gram, along, spread)


class _Eigenbasis(NamedTuple):
    """The eigenvectors of ``A_V A_Vᵀ``, in the form in which they are applied to records."""

    delta: Array  # (k,), the eigenvalues, rising
    lifted: Array  # (P, t): from x̃ to the coordinates of A x̃
    whole: bool  # whether they span the whole release
    q: Array  # (k,): the coordinates of A_V w_V


@dataclass(frozen=True)
class BlockSums:
    """``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²`` over a block of rows; sums of blocks can be added.

    If only ``A x̃`` is exact, it replaces ``x̃`` in the sums.
    """

    gram: Array  # (P, P)
    along: Array  # (P,)
    spread: Array  # ()

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(
            self.gram + other.gram, self.along + other.along, self.spread + other.spread
        )
