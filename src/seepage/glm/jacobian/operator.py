"""The Jacobian of a GLM's minimiser with respect to its training data, as an operator.

With margins ``m = Wᵀx̃`` (``x̃`` is ``x``, with a 1 appended for an intercept), per-record loss
slopes ``r`` (K), curvatures ``a`` (K×K) and label slopes ``b`` (K×L), sample weights ω folded into
all three, and ``H`` the Hessian of the objective, the implicit function theorem gives (paper 001,
equation 18, for K outputs)::

    J_i = −H⁻¹ G_i,      G_i = [ E ⊗ r_i + x̃_i ⊗ a_i Wᵀ ,  x̃_i ⊗ b_i ]        (P × (d + L))

where ``E`` selects the parameters whose column is data (an intercept's is not). Noise of location
information ``Φ`` whitens it to ``A G_i`` with ``AᵀA = H⁻¹ Φ H⁻¹ = C``. No ``J_i`` is ever stored:
the methods here give what views of the leakage need of it, in chunks of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from seepage.core.jacobian import WIDE_CHUNK, Refits, ReleaseJacobian
from seepage.core.spectra import dense_largest
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.curvature import hessian
from seepage.support.chunks import by_rows, chunk_for, row_slices

if TYPE_CHECKING:
    from seepage.glm.fitting.fitted import FittedGLM

Array = Any


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
        terms = _RowTerms(self, unknowns)
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
        terms = _RowTerms(self, Unknowns(unknowns.columns, False, unknowns.basis))
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
        terms = _RowTerms(self, unknowns)
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


class _RowTerms:
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
