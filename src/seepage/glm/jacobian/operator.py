"""The Jacobian of a GLM's minimiser with respect to its training data, as an operator.

Let ``m = Wᵀx̃`` be the margins, where ``x̃`` is ``x`` with a 1 appended for an intercept. Let ``r``
(K), ``a`` (K×K) and ``b`` (K×L) be the slopes, curvatures and label slopes of a record's loss, all
multiplied by the sample weight ω. Let ``H`` be the Hessian of the objective. The implicit function
theorem gives (Hannun et al. 2021, equation 18, for K outputs)::

    J_i = −H⁻¹ G_i,      G_i = [ E ⊗ r_i + x̃_i ⊗ a_i Wᵀ ,  x̃_i ⊗ b_i ]        (P × (d + L))

Here ``E`` selects the parameters that multiply data: all parameters except the intercept. Noise
with Fisher information ``Φ`` whitens the Jacobian to ``A G_i`` with ``AᵀA = H⁻¹ Φ H⁻¹ = C``. The
``J_i`` of all rows are never stored together: the methods compute all measures of leakage in chunks
of rows.

:class:`GLMJacobian` supports any number of outputs. With one output, every measure has a closed
form at about the cost of one matrix product: :mod:`seepage.glm.jacobian.single_output`. If classes
must be compared before rounding, :class:`PairedJacobian` computes results from the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from seepage.core.jacobian import (
    WIDE_CHUNK,
    EntryJacobian,
    ReleaseJacobian,
    Unknowns,
    dense_largest,
    largest_square,
    squared_columns,
    squared_size,
)
from seepage.glm.fitting.objective import hessian
from seepage.glm.jacobian.accuracy import GLMAccuracy, exact_blocks, exact_records
from seepage.glm.jacobian.optimum import Whitener
from seepage.glm.jacobian.terms import JacobianTerms, PairedTerms
from seepage.support.chunks import by_rows, row_slices
from seepage.tables.source import Array


class TermsJacobian(ReleaseJacobian):
    """A Jacobian built from the terms of a GLM."""

    # The table that was fitted on, where ``X`` is a rounded copy of it
    fitted_on: Array | None = None

    def __init__(self, terms: JacobianTerms) -> None:
        self.terms, self.X, self.target = terms, terms.X, terms.target
        self.rows, self.features, self.label_size = terms.rows, terms.features, terms.label_size
        self.size, self.whitener = terms.size, terms.whitener
        self.accuracy: GLMAccuracy = GLMAccuracy(terms)

    def with_label_step(self, step: float) -> TermsJacobian:
        """Return the same Jacobian, with the label in units of this step."""
        if step == 1.0:
            return self
        derivatives = self.terms.derivatives

        def stepped(rows: slice | Array) -> tuple[Array, Array, Array]:
            r, a, b = derivatives(rows)
            return r, a, step * b

        return type(self)(self.terms.changed(derivatives=stepped))


class GLMJacobian(TermsJacobian):
    """The whitened Jacobian of a GLM with K outputs, for the rows of a table ``(n, d)``."""

    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``(A G)ᵀ v`` for a vector of the whitened release: ``(len(rows), q)``."""
        terms = self.terms
        xp = array_namespace(self.X)
        lifted = terms.lifted(v[:, None])
        along_columns = xp.tensordot(v, terms.columns_of(unknowns), axes=1)  # (t, K)

        def one(piece: slice) -> Array:
            here = self._pick(rows, piece)
            r, B = terms.slopes(unknowns, here)
            out = (xp.matrix_transpose(terms.seen_along(here, lifted)) @ B)[:, 0, :]
            out[:, : along_columns.shape[0]] += r @ along_columns.T
            return out

        return by_rows(one, rows.shape[0], self.features + terms.outputs**2, chunk=terms.chunk)

    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``A G z`` for a change ``z (len(rows), q)`` of the block: a vector ``(P,)``."""
        terms = self.terms
        xp = array_namespace(self.X)
        t = unknowns.features(self.features)
        total, direct = terms.zeros(self.size), terms.zeros(t, terms.outputs)
        width = self.features + terms.outputs**2
        for piece in row_slices(rows.shape[0], width, chunk=terms.chunk):
            here = self._pick(rows, piece)
            r, B = terms.slopes(unknowns, here)
            total += terms.seen_sum(here, (B @ z[piece, :, None])[..., 0])
            direct += z[piece, :t].T @ r
        return total + xp.tensordot(terms.columns_of(unknowns), direct, axes=2)

    def _pick(self, rows: Array, piece: slice) -> slice | Array:
        """Return a part of the rows, as a slice without a copy if ``rows`` selects all of them."""
        return piece if rows.shape[0] == self.rows else rows[piece]

    # Rows, one by one -----------------------------------------------------------------------

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the full whitened Jacobians of these rows, ``(m, P, q)``."""
        return self.terms.row_jacobians(unknowns, rows)

    @exact_records(largest_square)
    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²``, the largest eigenvalue of each row's information, ``(n,)``."""
        return super().row_norms(unknowns)

    @exact_records(squared_size)
    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, ``(n,)``."""
        return array_namespace(self.X).sum(self._diagonals(unknowns), axis=1)

    @exact_records(squared_columns, cells=True)
    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each unknown feature alone, of shape ``(n, t)``."""
        return self._diagonals(replace(unknowns, label=False))

    def _diagonals(self, unknowns: Unknowns) -> Array:
        """Return the diagonal of each row's information, ``(n, q)``."""
        xp = array_namespace(self.X)
        terms = _InformationTerms(self.terms, unknowns)
        t = terms.count
        blocks = xp.reshape(xp.linalg.diagonal(terms.blocks), (self.terms.outputs**2, t))

        def diagonal(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            out = xp.sum(B * (Xi @ B), axis=1)
            out[:, :t] += 2 * xp.sum(B[:, :, :t] * R, axis=1) + _pairs(r) @ blocks
            return out

        return by_rows(diagonal, self.rows, terms.width, chunk=WIDE_CHUNK)

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return a function that computes the information matrices of rows, of shape ``(m,q,q)``.

        ``I = Bᵀ Ξ B + [Rᵀ B; 0] + [Rᵀ B; 0]ᵀ + Σ_kl r_k r_l C_kl`` with ``B = [a Wᵀ, b]``,
        ``Ξ_kl = x̃ᵀ C_kl x̃`` and ``R_l = Σ_k r_k C_kl x̃``, all restricted to the unknowns.
        """
        xp = array_namespace(self.X)
        terms = _InformationTerms(self.terms, unknowns)
        t = terms.count
        blocks = xp.reshape(terms.blocks, (self.terms.outputs**2, t * t))

        def matrices(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            information = xp.matrix_transpose(B) @ (Xi @ B)
            half = xp.matrix_transpose(R) @ B
            information[:, :t, :] += half
            information[:, :, :t] += xp.matrix_transpose(half)
            information[:, :t, :t] += xp.reshape(_pairs(r) @ blocks, (r.shape[0], t, t))
            return information

        return matrices

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Array], Array]]:
        """Return a function that computes ``Jᵀ(J v)`` for one vector per row."""
        xp = array_namespace(self.X)
        A_V = self.terms.columns_of(unknowns)
        P, t, K = A_V.shape
        by_feature = xp.reshape(xp.permute_dims(A_V, (1, 0, 2)), (t, P * K))

        def operator(rows: slice) -> Callable[[Array], Array]:
            (r, B), AX = self.terms.slopes(unknowns, rows), self.terms.seen(rows)

            def apply(v: Array) -> Array:
                direct = xp.reshape(v[:, :t] @ by_feature, (-1, P, K)) @ r[:, :, None]
                moved = xp.matrix_transpose(AX) @ (B @ v[:, :, None]) + direct  # (m, P, 1)
                out = (xp.matrix_transpose(B) @ (AX @ moved))[:, :, 0]
                out[:, :t] += xp.reshape(moved * r[:, None, :], (-1, P * K)) @ by_feature.T
                return out

            return apply

        return operator

    # Blocks of the table ----------------------------------------------------------------------

    @exact_blocks
    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute, over all rows."""
        return super().column_norms(attributes, rows)

    def block_sums(self, unknowns: Unknowns, rows: Array) -> Any:
        """Return ``Σ_i G_i G_iᵀ`` over these rows, (P, P), before whitening.

        Let ``V`` be the unknown feature directions and ``B_i = [a_i W_Vᵀ, b_i]``::

            Σ_i G_i G_iᵀ = Σ x̃x̃ᵀ ⊗ B Bᵀ + VVᵀ ⊗ Σ r rᵀ + T + Tᵀ,    T = Σ_i (V ⊗ r)(x̃ ⊗ a W_Vᵀ)ᵀ
        """
        xp, terms = array_namespace(self.X), self.terms
        K, P, D = terms.outputs, self.size, self.size // terms.outputs
        r, a, _ = terms.derivatives(rows)
        _, B = terms.slopes(unknowns, rows)
        total = hessian(
            terms.near[rows, :], B @ xp.matrix_transpose(B), ridge=0.0, intercept=terms.intercept
        )
        W, V = unknowns.of(terms.coef), terms.zeros(D, unknowns.features(self.features))
        eye = xp.eye(self.features, dtype=self.X.dtype, device=self.X.device)
        V[: self.features, :] = unknowns.of(eye, axis=1)
        spread = (V @ V.T)[:, None, :, None] * (r.T @ r)[None, :, None, :]
        # T[(p, k), (q, l)] = Σ_t V_pt Σ_m W_tm Σ_i r_ik a_ilm x̃_iq
        flat, VW, design = xp.reshape(a, (a.shape[0], K * K)), V @ W, terms.design(rows)
        cross = terms.zeros(D, K, D, K)
        for k in range(K):
            seen = xp.reshape(design.T @ (r[:, k : k + 1] * flat), (D * K, K))  # (q l, m)
            cross[:, k, :, :] = xp.reshape(VW @ seen.T, (D, D, K))
        cross = xp.reshape(cross, (P, P))
        return total + xp.reshape(spread, (P, P)) + cross + cross.T

    def norm_of(self, unknowns: Unknowns, sums: Any) -> float:
        """Return the largest eigenvalue of ``A (Σ G Gᵀ) Aᵀ`` and thus of the information."""
        return float(dense_largest((self.whitener @ sums @ self.whitener.T)[None, :, :])[0])


class PairedJacobian(EntryJacobian, TermsJacobian):
    """The Jacobian for several classes, compared with the record's own class before rounding.

    Closed forms would lose precision: they square the part common to all classes before it cancels.
    See :class:`~seepage.glm.jacobian.terms.PairedTerms`.
    """

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the full whitened Jacobians of these rows, ``(m, P, q)``."""
        return PairedTerms(self.terms).row_jacobians(unknowns, rows)


def merged(first: TermsJacobian, other: TermsJacobian) -> TermsJacobian | None:
    """Return one Jacobian for two releases of a model, or ``None`` if they cannot be merged.

    The releases must have the same rows, and differ only in their noise. The information is ``Gᵀ(C
    + C')G``. This is the information of a single release whose whitener is the R factor of both
    whiteners stacked. The result is ``None`` if the merged whitener would lose precision.
    """
    ours, theirs = first.terms, other.terms
    xp = array_namespace(ours.X)
    # Beyond this condition the R of both would lose digits that each whitener has.
    if max(ours.map.condition, theirs.map.condition) > 1e4 or isinstance(first, PairedJacobian):
        return None
    if (ours.coef.shape, ours.intercept) != (theirs.coef.shape, theirs.intercept):
        return None
    every = slice(0, ours.rows)
    mine, yours = ((terms.coef, *terms.derivatives(every)) for terms in (ours, theirs))
    if not all(bool(xp.all(own == same)) for own, same in zip(mine, yours, strict=True)):
        return None
    stack = xp.concat([ours.whitener, theirs.whitener], axis=0)
    accuracy = max(ours.map.accuracy, theirs.map.accuracy)
    whitener = Whitener(xp.linalg.qr(stack, mode="reduced")[1], None, accuracy)
    return type(first)(ours.changed(map=whitener, whitener=whitener.matrix))


class _InformationTerms:
    """The terms of the information about a single row.

    When called with a slice of rows, the object returns ``r (m, K)``, ``B (m, K, q)``, ``Ξ (m, K,
    K)`` and ``R (m, K, t)``. ``blocks (K, K, t, t)`` contains ``C_kl``, which all rows share.
    """

    def __init__(self, terms: JacobianTerms, unknowns: Unknowns) -> None:
        xp = array_namespace(terms.X)
        self.terms, self.unknowns = terms, unknowns
        A_V = terms.columns_of(unknowns)
        P, self.count, K = A_V.shape
        by_output = xp.permute_dims(A_V, (2, 0, 1))  # (K, P, t)
        self.blocks = xp.matrix_transpose(by_output)[:, None] @ by_output[None, :]
        flat = xp.reshape(xp.permute_dims(A_V, (0, 2, 1)), (P, K * self.count))
        self.lifted = terms.lifted(flat)
        self.width = unknowns.count(terms) ** 2 + P * K

    def __call__(self, rows: slice) -> tuple[Array, Array, Array, Array]:
        xp, K = array_namespace(self.terms.X), self.terms.outputs
        r, B = self.terms.slopes(self.unknowns, rows)
        # C_kl x̃ for all outputs k, l
        CX = self.terms.seen_along(rows, self.lifted)
        CX = xp.reshape(CX, (r.shape[0], K, K, self.count))
        return r, B, self.terms.seen_gram(rows), (r[:, None, None, :] @ CX)[:, :, 0, :]


def _pairs(r: Array) -> Array:
    """Return all products ``r_k r_l`` for each row, of shape ``(m, K²)``."""
    return array_namespace(r).reshape(r[:, :, None] * r[:, None, :], (r.shape[0], -1))
