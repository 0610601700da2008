"""The Jacobian of a GLM's minimiser with respect to its training data, as an operator.

With margins ``m = Wᵀx̃`` (``x̃`` is ``x``, with a 1 appended for an intercept), per-record loss
slopes ``r`` (K), curvatures ``a`` (K×K) and label slopes ``b`` (K×L), sample weights ω folded into
all three, and ``H`` the Hessian of the objective, the implicit function theorem gives (paper 001,
equation 18, for K outputs)::

    J_i = −H⁻¹ G_i,      G_i = [ E ⊗ r_i + x̃_i ⊗ a_i Wᵀ ,  x̃_i ⊗ b_i ]        (P × (d + L))

where ``E`` selects the parameters whose column is data (an intercept's is not). Noise of location
information ``Φ`` whitens it to ``A G_i`` with ``AᵀA = H⁻¹ Φ H⁻¹ = C``. No ``J_i`` is ever stored:
the methods here give what views of the leakage need of it, in chunks of rows.

:class:`GLMJacobian` is for any number of outputs. With one output, every view has a closed form at
about the price of one matrix product: :class:`SingleOutputJacobian`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from array_api_compat import array_namespace

from seepage.core.jacobian import WIDE_CHUNK, Refits, ReleaseJacobian
from seepage.core.spectra import dense_largest
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.objective import bordered_gram, hessian
from seepage.glm.jacobian.inverse import SharedTerms, inverse_diagonal, inverse_traces
from seepage.glm.jacobian.secular import largest_after_update, largest_eigenvalue
from seepage.support.chunks import CHUNK, by_rows, chunk_for, progress, row_slices

if TYPE_CHECKING:
    from seepage.glm.fitting.objective import FittedGLM

Array = Any

_SMALL = 12  # up to this many unknowns a row, its information is written out as a matrix


class GLMJacobian(ReleaseJacobian):
    """The whitened Jacobian of a GLM with K outputs about the rows of its table.

    Parameters
    ----------
    X
        The table, ``(n, d)``.
    coef
        The weights of the data columns, ``(d, K)``.
    intercept
        Whether the model has an intercept (released too, but multiplied by no data).
    derivatives
        Returns ``r (m, K)``, ``a (m, K, K)`` and ``b (m, K, L)`` of a slice of rows, with the
        sample weights folded in.
    whitener
        ``A = Φ^½ H⁻¹``, ``(P, P)``; the parameters are ordered with the feature as the slow and
        the output as the fast index, the intercept last.
    target
        The labels as numbers, ``(n,)`` or ``(n, K)``.
    label_size
        ``L``, the number of unknowns in one label.

    Attributes
    ----------
    fit
        The model and its objective, where all its rows are here: it can then be refitted with a
        record changed.
    """

    fit: FittedGLM | None = None

    def __init__(
        self,
        X: Array,
        coef: Array,
        *,
        intercept: bool,
        derivatives: Callable[[slice | Array], tuple[Array, Array, Array]],
        whitener: Array,
        target: Array,
        label_size: int,
    ) -> None:
        self.X, self.coef, self.intercept = X, coef, intercept
        self.derivatives, self.whitener, self.label_size = derivatives, whitener, label_size
        self.target = target
        self.chunk = chunk_for(X)
        self.rows, self.features = int(X.shape[0]), int(X.shape[1])
        self.outputs = int(coef.shape[1])
        self.size = int(whitener.shape[1])

    def design(self, rows: slice | Array) -> Array:
        """Return the rows ``x̃`` of the design matrix, with the intercept's column of ones."""
        X = self.X[rows, :]
        if not self.intercept:
            return X
        xp = array_namespace(X)
        return xp.concat([X, xp.ones_like(X[:, :1])], axis=1)

    def design_times(self, rows: slice | Array, matrix: Array) -> Array:
        """Return ``X̃ M`` over some rows, for a matrix or a vector, without writing out ``X̃``."""
        product = self.X[rows, :] @ matrix[: self.features, ...]
        if self.intercept:
            product += matrix[self.features :, ...]
        return product

    def release_gram(self, rows: slice) -> Array:
        """Return ``Ξ_kl = x̃ᵀ C_kl x̃`` of some rows, ``(m, K, K)``."""
        xp = array_namespace(self.X)
        A = xp.reshape(self.whitener, (self.size, -1, self.outputs))
        to_release = xp.reshape(xp.permute_dims(A, (1, 2, 0)), (A.shape[1], -1))
        AX = self.design_times(rows, to_release)
        AX = xp.reshape(AX, (AX.shape[0], self.outputs, -1))
        return AX @ xp.matrix_transpose(AX)

    # Rows, one by one -----------------------------------------------------------------------

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, ``(n,)``."""
        xp = array_namespace(self.X)
        terms = _InformationTerms(self, unknowns)
        blocks = xp.sum(xp.linalg.diagonal(terms.blocks), axis=2)

        def traces(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            quadratic = xp.sum(B * (Xi @ B), axis=(1, 2))
            cross = xp.sum(R * B[:, :, : terms.count], axis=(1, 2))
            return quadratic + 2 * cross + xp.vecdot(r @ blocks, r)

        return by_rows(traces, self.rows, self.row_width(unknowns), chunk=WIDE_CHUNK)

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each unknown feature alone, ``(n, t)``: the diagonal."""
        xp = array_namespace(self.X)
        terms = _InformationTerms(self, Unknowns(unknowns.columns, False, unknowns.basis))
        blocks = xp.reshape(xp.linalg.diagonal(terms.blocks), (self.outputs**2, -1))

        def diagonal(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            return xp.sum(B * (Xi @ B + 2 * R), axis=1) + _pairs(r) @ blocks

        return by_rows(diagonal, self.rows, self.row_width(unknowns), chunk=WIDE_CHUNK)

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return the function that gives the information matrix of each of some rows, ``(m,q,q)``.

        ``I = Bᵀ Ξ B + [Rᵀ B; 0] + [Rᵀ B; 0]ᵀ + Σ_kl r_k r_l C_kl`` with ``B = [a Wᵀ, b]``,
        ``Ξ_kl = x̃ᵀ C_kl x̃`` and ``R_l = Σ_k r_k C_kl x̃``, all restricted to the unknowns.
        """
        xp = array_namespace(self.X)
        terms = _InformationTerms(self, unknowns)
        t = terms.count
        blocks = xp.reshape(terms.blocks, (self.outputs**2, t * t))

        def matrices(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            information = xp.matrix_transpose(B) @ (Xi @ B)
            half = xp.matrix_transpose(R) @ B
            information[:, :t, :] += half
            information[:, :, :t] += xp.matrix_transpose(half)
            information[:, :t, :t] += xp.reshape(_pairs(r) @ blocks, (r.shape[0], t, t))
            return information

        return matrices

    def row_width(self, unknowns: Unknowns) -> int:
        """Return how many numbers the work on one row holds at a time."""
        return self.unknown_count(unknowns) ** 2 + self.size * self.outputs

    def slopes(self, unknowns: Unknowns, rows: slice | Array) -> tuple[Array, Array]:
        """Return ``r (m, K)`` and ``B = [a Wᵀ, b] (m, K, q)`` for the unknowns."""
        xp = array_namespace(self.X)
        r, a, b = self.derivatives(rows)
        B = a @ unknowns.of(self.coef).T
        return r, xp.concat([B, b], axis=2) if unknowns.label else B

    # Blocks of the table ----------------------------------------------------------------------

    def column_traces(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the trace of the information about each attribute over the rows."""
        xp = array_namespace(self.X)
        every = self._cell_sums(Unknowns(None, False), rows)
        totals = []
        for unknowns in attributes:
            if unknowns.basis is None:
                totals.append(xp.sum(unknowns.of(every)))
            else:
                totals.append(xp.sum(self._cell_sums(unknowns, rows)))
        return xp.stack(totals)

    def _cell_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return the information about each unknown feature alone, summed over the rows."""
        return array_namespace(self.X).sum(self.cell_information(unknowns)[rows, :], axis=0)

    def block_sums(self, unknowns: Unknowns, rows: Array) -> Any:
        """Return ``Σ_i G_i G_iᵀ`` over some rows, (P, P), before it is whitened.

        With ``V`` the unknown feature directions and ``B_i = [a_i W_Vᵀ, b_i]``::

            Σ_i G_i G_iᵀ = Σ x̃x̃ᵀ ⊗ B Bᵀ + VVᵀ ⊗ Σ r rᵀ + T + Tᵀ,    T = Σ_i V W_V-weighted x̃ᵀ ⊗ r a
        """
        xp = array_namespace(self.X)
        K, P, D = self.outputs, self.size, self.size // self.outputs
        r, a, _ = self.derivatives(rows)
        _, B = self.slopes(unknowns, rows)
        total = hessian(
            self.X[rows, :], B @ xp.matrix_transpose(B), ridge=0.0, intercept=self.intercept
        )
        W = unknowns.of(self.coef)  # (t, K)
        V = self.zeros(D, W.shape[0])
        eye = xp.eye(self.features, dtype=self.X.dtype, device=self.X.device)
        V[: self.features, :] = unknowns.of(eye, axis=1)
        spread = (V @ V.T)[:, None, :, None] * (r.T @ r)[None, :, None, :]
        # T[(p, k), (q, l)] = Σ_t V_pt Σ_m W_tm Σ_i r_ik a_ilm x̃_iq
        flat, VW, design = xp.reshape(a, (a.shape[0], K * K)), V @ W, self.design(rows)
        cross = self.zeros(D, K, D, K)
        for k in range(K):
            seen = xp.reshape(design.T @ (r[:, k : k + 1] * flat), (D * K, K))  # (q l, m)
            cross[:, k, :, :] = xp.reshape(VW @ seen.T, (D, D, K))
        cross = xp.reshape(cross, (P, P))
        return total + xp.reshape(spread, (P, P)) + cross + cross.T

    def norm_of(self, unknowns: Unknowns, sums: Any) -> float:
        """Return the largest eigenvalue of ``A (Σ G Gᵀ) Aᵀ``: that of the information."""
        A = self.whitener
        return float(dense_largest((A @ sums @ A.T)[None, :, :])[0])

    def with_label_step(self, step: float) -> GLMJacobian:
        """Return the same Jacobian with the label counted in steps of this size."""
        if step == 1.0:
            return self
        other, derivatives = copy(self), self.derivatives

        def stepped(rows: slice | Array) -> tuple[Array, Array, Array]:
            r, a, b = derivatives(rows)
            return r, a, step * b

        other.derivatives = stepped
        return other

    def refits(self) -> Refits:
        """Return the refits of the model with a record changed, in NumPy."""
        from seepage.glm.jacobian.row_refits import RowRefits

        return super().refits() if self.fit is None else RowRefits.of(self.fit, self.X)

    def merged(self, other: GLMJacobian) -> GLMJacobian | None:
        """Return the Jacobian of both releases where they are the same model with other noise.

        The information is then ``Gᵀ(C + C')G``: one release of whitener ``chol(C + C')ᵀ``. Both are
        about the same rows.
        """
        xp = array_namespace(self.X)
        if (self.coef.shape, self.intercept) != (other.coef.shape, other.intercept):
            return None
        ours, theirs = self.derivatives(slice(0, self.rows)), other.derivatives(slice(0, self.rows))
        same = bool(xp.all(self.coef == other.coef)) and all(
            bool(xp.all(mine == yours)) for mine, yours in zip(ours, theirs, strict=True)
        )
        if not same:
            return None
        both = copy(self)
        both.fit = None  # two releases: a refit would have to change both
        C = self.whitener.T @ self.whitener + other.whitener.T @ other.whitener
        both.whitener = xp.linalg.cholesky(C).T
        both._forget()
        return both

    def _forget(self) -> None:
        """Drop what was kept of the whitener; called where it changes."""

    def _pick(self, rows: Array, piece: slice) -> slice | Array:
        """Return a piece of the rows, as a slice (which copies nothing) where they are all."""
        return piece if rows.shape[0] == self.rows else rows[piece]

    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``(A G)ᵀ v`` for a vector of the whitened release: ``(len(rows), q)``."""
        xp = array_namespace(self.X)
        Y = xp.reshape(self.whitener.T @ v, (-1, self.outputs))
        Y_unknown = unknowns.of(Y[: self.features, :])

        def one(piece: slice) -> Array:
            here = self._pick(rows, piece)
            r, B = self.slopes(unknowns, here)
            along = self.X[here, :] @ Y[: self.features, :]
            if self.intercept:
                along = along + Y[self.features :, :]
            out = (along[:, None, :] @ B)[:, 0, :]
            out[:, : Y_unknown.shape[0]] += r @ Y_unknown.T
            return out

        return by_rows(one, rows.shape[0], self.features + self.outputs**2, chunk=self.chunk)

    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``A G z`` for a change ``z (len(rows), q)`` of the block: a vector ``(P,)``."""
        xp = array_namespace(self.X)
        t = unknowns.features(self.features)
        total = self.zeros(self.size // self.outputs, self.outputs)
        width = self.features + self.outputs**2
        for piece in row_slices(rows.shape[0], width, chunk=self.chunk):
            here = self._pick(rows, piece)
            r, B = self.slopes(unknowns, here)
            along = (B @ z[piece, :, None])[..., 0]
            total[: self.features, :] += self.X[here, :].T @ along
            if self.intercept:
                total[self.features, :] += xp.sum(along, axis=0)
            total[: self.features, :] += unknowns.back(z[piece, :t].T @ r, self.features)
        return self.whitener @ xp.reshape(total, (-1,))


class _InformationTerms:
    """The terms from which the information about single rows is put together.

    Calling it with a slice of rows gives ``r (m, K)``, ``B (m, K, q)``, ``Ξ (m, K, K)`` and
    ``R (m, K, t)``; ``blocks (K, K, t, t)`` holds ``C_kl``, which no row changes.
    """

    def __init__(self, jacobian: GLMJacobian, unknowns: Unknowns) -> None:
        xp = array_namespace(jacobian.X)
        P, K, d = jacobian.size, jacobian.outputs, jacobian.features
        self.jacobian, self.unknowns = jacobian, unknowns
        D = P // K
        A = xp.reshape(jacobian.whitener, (P, D, K))
        A_unknown = unknowns.of(A[:, :d, :], axis=1)
        self.count = t = A_unknown.shape[1]
        by_output = xp.permute_dims(A_unknown, (2, 0, 1))  # (K, P, t)
        self.blocks = xp.matrix_transpose(by_output)[:, None] @ by_output[None, :]
        C = xp.reshape(jacobian.whitener.T @ xp.reshape(A_unknown, (P, t * K)), (D, K, t, K))
        self.to_unknowns = xp.reshape(xp.permute_dims(C, (0, 1, 3, 2)), (D, K * K * t))

    def __call__(self, rows: slice) -> tuple[Array, Array, Array, Array]:
        xp = array_namespace(self.jacobian.X)
        K = self.jacobian.outputs
        r, B = self.jacobian.slopes(self.unknowns, rows)
        CX = self.jacobian.design_times(rows, self.to_unknowns)
        CX = xp.reshape(CX, (CX.shape[0], K, K, self.count))
        return r, B, self.jacobian.release_gram(rows), (r[:, None, None, :] @ CX)[:, :, 0, :]


def _pairs(r: Array) -> Array:
    """Return all products ``r_k r_l`` of each row, ``(m, K²)``."""
    return array_namespace(r).reshape(r[:, :, None] * r[:, None, :], (r.shape[0], -1))


class _Eigenbasis(NamedTuple):
    """The eigenvectors of ``A_V A_Vᵀ``, and what a row's ``A x̃`` is in terms of them."""

    unknowns: Unknowns  # which features
    delta: Array  # (k,), the eigenvalues, rising
    coordinates: Array  # (P, t): x̃ ↦ the coordinates of A x̃
    whole: bool  # whether they span all of the release
    q: Array  # (k,): the coordinates of A_V w_V


@dataclass(frozen=True)
class BlockSums:
    """``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²`` over a block of rows; those of two blocks add up."""

    gram: Array  # (P, P)
    along: Array  # (P,)
    spread: Array  # ()

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(
            self.gram + other.gram, self.along + other.along, self.spread + other.spread
        )


class SingleOutputJacobian(GLMJacobian):
    """The whitened Jacobian of a GLM with one output, in closed forms; see :class:`GLMJacobian`.

    The information about a row, seen from the release, is a fixed matrix plus one of rank two. With
    ``A`` the whitener, ``V`` the unknown feature directions, ``w_V = Vᵀw``, and the sample weights
    folded into ``r``, ``a`` and ``b``::

        A G_i G_iᵀ Aᵀ = r² A_V A_Vᵀ + c (Ax̃)(Ax̃)ᵀ + a r [(Ax̃)(A_V w_V)ᵀ + (A_V w_V)(Ax̃)ᵀ]
        c = a²‖w_V‖² + b²      (without b² where the label is known)

    Diagonalise ``A_V A_Vᵀ`` once, and every row is a secular equation
    (:mod:`seepage.glm.jacobian.secular`). Seen from the columns the same happens once more: the
    information about column j over many rows is ``w_j²`` times a fixed matrix plus one of rank two.
    Whatever block of rows is asked about, the release sees it through three sums over the rows,
    ``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²``, so rows may come in any pieces, and nothing is larger
    than P×P.

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

    def inverse_work(self, unknowns: Unknowns) -> float:
        """Return about how many multiplications a row's inverse information takes."""
        if unknowns.label:
            return super().inverse_work(unknowns)
        return float(self.size) * self.unknown_count(unknowns)

    # Blocks of the table ----------------------------------------------------------------------

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of ``Σ_i A G_i G_iᵀ Aᵀ`` over the rows: a P×P matrix."""
        return self.norm_of(unknowns, self.block_sums(unknowns, rows))

    def block_sums(self, unknowns: Unknowns, rows: Array) -> BlockSums:
        """Return the three sums over the rows with ``c`` for these unknowns."""
        return self._sums(self.rank_two(unknowns)[0], rows)

    def norm_of(self, unknowns: Unknowns, sums: BlockSums) -> float:
        """Return the largest eigenvalue of what the release sees of a block with these sums."""
        A, A_V, w_V = self.restricted(unknowns)
        Aw, Ah = A_V @ w_V, A @ sums.along
        total = A @ sums.gram @ A.T + Ah[:, None] * Aw[None, :] + Aw[:, None] * Ah[None, :]
        total += sums.spread * (A_V @ A_V.T)
        return float(dense_largest(total[None, :, :])[0])

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        return self.column_norms_of(attributes, self.column_sums(attributes, rows))

    def column_sums(self, attributes: list[Unknowns], rows: Array) -> BlockSums:
        """Return the three sums over the rows with ``c = a²``: the same for all attributes."""
        return self._sums(self.a**2, rows)

    @property
    def columns_at_once(self) -> int:
        """How many attributes may be asked about at a time: all of them."""
        return self.features

    def column_norms_of(self, attributes: list[Unknowns], sums: BlockSums) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows.

        With ``N = A X̃ᵀdiag(a²)X̃ Aᵀ`` and ``h = A X̃ᵀ(a r)`` it is that of::

            ‖w_V‖² N + (Σr²) A_V A_Vᵀ + (A_V w_V) hᵀ + h (A_V w_V)ᵀ

        ``N`` is diagonalised once. A single column is then a secular equation, all of them solved
        together; a group of columns an update of a diagonal by as many ranks as it has columns.
        """
        xp = array_namespace(self.X)
        A = self.whitener
        delta, Q = xp.linalg.eigh(A @ sums.gram @ A.T)
        delta, h = xp.where(delta > 0, delta, xp.zeros_like(delta)), (A @ sums.along) @ Q
        whitener = Q.T @ A
        out = self.zeros(len(attributes))
        single = {
            k: u.columns[0]
            for k, u in enumerate(attributes)
            if u.columns is not None and len(u.columns) == 1 and u.basis is None
        }
        for k in progress([k for k in range(len(attributes)) if k not in single], "attributes"):
            w = attributes[k].of(self.w)
            U = attributes[k].of(whitener[:, : self.features], axis=1)
            S = self.zeros(w.shape[0] + 1, w.shape[0] + 1)
            S[:-1, :-1] = sums.spread * xp.eye(w.shape[0], dtype=w.dtype, device=w.device)
            S[:-1, -1] = S[-1, :-1] = w
            U = xp.concat([U, h[:, None]], axis=1)
            out[k] = largest_after_update(xp.sum(w * w) * delta, U, S)
        if single:
            columns = xp.asarray(list(single.values()), device=self.X.device)
            w = self.w[columns]
            values = largest_eigenvalue(
                w**2, delta, whitener[:, columns].T, h, sums.spread * xp.ones_like(w), w
            )
            out[list(single)] = xp.where(values > 0, values, xp.zeros_like(values))
        return out

    def _cell_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``w_j² Σa²‖Ax̃‖² + 2 w_j (A_Vᵀ A X̃ᵀ(a r))_j + C_jj Σr²``, ``(t,)``."""
        xp = array_namespace(self.X)
        sums = self._sums(self.a**2, rows)
        A, A_V, w_V = self.restricted(unknowns)
        constant = xp.sum((A @ sums.gram) * A) * w_V**2
        spread = sums.spread * xp.sum(A_V**2, axis=0)
        return constant + 2 * w_V * (A_V.T @ (A @ sums.along)) + spread

    def _sums(self, c: Array, rows: Array) -> BlockSums:
        """Return the sums over some rows with ``c`` of every row of the table.

        No more than a chunk of the rows is copied; all of them are read in place.
        """
        xp = array_namespace(self.X)
        s = self.a * self.r
        if rows.shape[0] == self.rows:
            gram, along = bordered_gram(self.X, c, self.intercept), self.X.T @ s
        else:
            gram = along = 0.0
            for piece in row_slices(rows.shape[0], self.size, chunk=self.chunk):
                here = rows[piece]
                X = self.X[here, :]
                gram = gram + bordered_gram(X, c[here], self.intercept)
                along = along + X.T @ s[here]
        if self.intercept:
            along = xp.concat([along, xp.reshape(xp.sum(s[rows]), (1,))])
        return BlockSums(gram, along, xp.sum(self.r[rows] ** 2))

    # What the methods above have in common ----------------------------------------------------

    def with_label_step(self, step: float) -> SingleOutputJacobian:
        """Return the same Jacobian with the label counted in steps of this size."""
        if step == 1.0:
            return self
        return self.about(self.X, self.r, self.a, step * self.b, self.target)

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
