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
form at about the cost of one matrix product: :class:`SingleOutputJacobian`. If a weak penalty makes
the part common to all classes large, :class:`PairedJacobian` subtracts the record's own class
before rounding, and computes every result from the entries of the Jacobian.

A closed form squares the terms before adding them, so its error grows with the square of the part
that cancels. Only :func:`exact_records` and :func:`exact_blocks` determine which results are
recomputed from the entries of the Jacobian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from seepage.core.jacobian import (
    WIDE_CHUNK,
    EntryJacobian,
    ReleaseJacobian,
    Unknowns,
    block_norms,
    dense_largest,
    from_entries,
    largest_eigenvalues,
    largest_square,
    squared_columns,
    squared_size,
)
from seepage.core.noise import Noise
from seepage.glm.fitting.objective import FittedGLM, Sums, hessian, weighted_gram
from seepage.glm.jacobian.inverse import ClosedInverse
from seepage.glm.jacobian.optimum import Optimum, Whitener, plain_optimum, whitener_of
from seepage.glm.jacobian.secular import largest_of_rows
from seepage.glm.jacobian.terms import (
    CANCELLED,
    GLMAccuracy,
    JacobianTerms,
    PairedTerms,
    least_cell,
    per_attribute,
    single_columns,
)
from seepage.glm.losses import Categorical
from seepage.support.chunks import by_rows, progress, row_slices, small_on_one_core
from seepage.tables.source import Array

_FEW = 50_000  # entries of all rows' matrices up to which dense eigenvalues are the shorter way

Answer = TypeVar("Answer", bound=Callable[..., Array])  # a method of a Jacobian


def exact_records(
    take: Callable[[Array], Array], cells: bool = False
) -> Callable[[Answer], Answer]:
    """Decorate a closed form: where its squares cancel, recompute results from Jacobian entries.

    ``take`` computes the same results from whitened Jacobians, ``(m, P, q)``; ``cells`` marks
    results for each single feature, ``(n, t)``.
    """

    def decorate(closed_form: Answer) -> Answer:
        @wraps(closed_form)
        def exact(jacobian: Any, unknowns: Unknowns) -> Array:
            terms: JacobianTerms = jacobian.terms
            squared, xp = closed_form(jacobian, unknowns), array_namespace(terms.X)
            asked = replace(unknowns, label=False) if cells else unknowns
            reach = terms.column_reach(asked)
            part = terms.slope_sizes**2
            if cells:
                lossy = least_cell(terms, squared, reach) < CANCELLED * part
            else:
                lossy = squared < CANCELLED * part * xp.sum(reach**2)
            which = xp.nonzero(lossy)[0]
            if which.shape[0]:
                squared[which, ...] = from_entries(jacobian, asked, take, which)
            return squared

        return cast(Answer, exact)

    return decorate


def exact_blocks(closed_form: Answer) -> Answer:
    """Decorate a closed form for the norms of attributes over rows, like :func:`exact_records`."""

    @wraps(closed_form)
    def exact(jacobian: Any, attributes: list[Unknowns], rows: Array) -> Array:
        terms: JacobianTerms = jacobian.terms
        squared, xp = closed_form(jacobian, attributes, rows), array_namespace(terms.X)
        slopes = xp.sum(terms.slope_sizes[rows] ** 2)
        (reach,) = per_attribute(terms, attributes, terms.column_reach)
        lossy = (squared < CANCELLED * slopes * reach**2) | ~(squared > 0)
        for k in xp.nonzero(lossy)[0]:
            sums = ReleaseJacobian.block_sums(jacobian, attributes[int(k)], rows)
            squared[k] = dense_largest(sums[None, :, :])[0]
        return squared

    return cast(Answer, exact)


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

    row_norms = exact_records(largest_square)(ReleaseJacobian.row_norms)

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
        terms = _information(self.terms, unknowns)
        t = terms.blocks.shape[-1]
        blocks = xp.reshape(xp.linalg.diagonal(terms.blocks), (self.terms.outputs**2, t))

        def diagonal(rows: slice) -> Array:
            r, B, Xi, R = terms.of(rows)
            pairs = xp.reshape(r[:, :, None] * r[:, None, :], (r.shape[0], -1))  # r_k r_l
            out = xp.sum(B * (Xi @ B), axis=1)
            out[:, :t] += 2 * xp.sum(B[:, :, :t] * R, axis=1) + pairs @ blocks
            return out

        return by_rows(diagonal, self.rows, terms.width, chunk=WIDE_CHUNK)

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return a function that computes the information matrices of rows, of shape ``(m,q,q)``.

        ``I = Bᵀ Ξ B + [Rᵀ B; 0] + [Rᵀ B; 0]ᵀ + Σ_kl r_k r_l C_kl`` with ``B = [a Wᵀ, b]``,
        ``Ξ_kl = x̃ᵀ C_kl x̃`` and ``R_l = Σ_k r_k C_kl x̃``, all restricted to the unknowns.
        """
        xp = array_namespace(self.X)
        terms = _information(self.terms, unknowns)
        t = terms.blocks.shape[-1]
        blocks = xp.reshape(terms.blocks, (self.terms.outputs**2, t * t))

        def matrices(rows: slice) -> Array:
            r, B, Xi, R = terms.of(rows)
            pairs = xp.reshape(r[:, :, None] * r[:, None, :], (r.shape[0], -1))  # r_k r_l
            information = xp.matrix_transpose(B) @ (Xi @ B)
            half = xp.matrix_transpose(R) @ B
            information[:, :t, :] += half
            information[:, :, :t] += xp.matrix_transpose(half)
            information[:, :t, :t] += xp.reshape(pairs @ blocks, (r.shape[0], t, t))
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

    column_norms = exact_blocks(ReleaseJacobian.column_norms)

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


@dataclass(frozen=True)
class _Information:
    """The information about single rows, in terms of ``r``, ``B``, ``Ξ`` and ``R``."""

    blocks: Array  # ``C_kl`` restricted to the unknown features, which all rows share, (K, K, t, t)
    width: int  # how many numbers the terms of a row hold
    # ``r (m, K)``, ``B (m, K, q)``, ``Ξ (m, K, K)`` and ``R (m, K, t)`` of a slice of rows
    of: Callable[[slice], tuple[Array, Array, Array, Array]]


def _information(terms: JacobianTerms, unknowns: Unknowns) -> _Information:
    """Return the terms of the information about a single row."""
    xp = array_namespace(terms.X)
    A_V = terms.columns_of(unknowns)
    P, t, K = A_V.shape
    by_output = xp.permute_dims(A_V, (2, 0, 1))  # (K, P, t)
    lifted = terms.lifted(xp.reshape(xp.permute_dims(A_V, (0, 2, 1)), (P, K * t)))

    def of(rows: slice) -> tuple[Array, Array, Array, Array]:
        r, B = terms.slopes(unknowns, rows)
        # C_kl x̃ for all outputs k, l
        CX = xp.reshape(terms.seen_along(rows, lifted), (r.shape[0], K, K, t))
        if K == 1:
            gram = terms.squared_lengths[rows, None, None]
        else:
            AX = terms.seen(rows)
            gram = AX @ xp.matrix_transpose(AX)
        return r, B, gram, (r[:, None, None, :] @ CX)[:, :, 0, :]

    blocks = xp.matrix_transpose(by_output)[:, None] @ by_output[None, :]
    return _Information(blocks, unknowns.count(terms) ** 2 + P * K, of)


# One output ---------------------------------------------------------------------------------------


class SingleOutputJacobian(GLMJacobian):
    """The whitened Jacobian of a GLM with one output, in closed form.

    In the space of the release, the information about a row is a multiple of a fixed matrix plus a
    matrix of rank two. Let ``A`` be the whitener, ``V`` the unknown feature directions and ``w_V =
    Vᵀw``, with the sample weights included in ``r``, ``a`` and ``b``::

        A G_i G_iᵀ Aᵀ = r² A_V A_Vᵀ + c (Ax̃)(Ax̃)ᵀ + a r [(Ax̃)(A_V w_V)ᵀ + (A_V w_V)(Ax̃)ᵀ]
        c = a²‖w_V‖² + b²      (without b² where the label is known)

    Once ``A_V A_Vᵀ`` is diagonalised, every row has a secular equation
    (:mod:`seepage.glm.jacobian.secular`). Columns have the same structure: the information about
    column j over many rows is ``w_j²`` times a fixed matrix plus a matrix of rank two. The
    information about a block of rows depends only on three sums over the rows, ``Σ c x̃x̃ᵀ``, ``Σ a
    r x̃`` and ``Σ r²``. So rows may be read in pieces of any size, and no array is larger than P×P.
    """

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
        if count <= 2 or self.rows * count**2 <= _FEW:
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

        threads = is_numpy_array(self.X) and not terms.precise
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
        if unknowns.label or unknowns.count(self) == 1 or self.terms.precise:
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
        if terms.precise:
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
        if self.terms.precise:
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
        equation; the equations of all columns are solved together. If few numbers are released,
        writing the columns' matrices out is the shorter way. For a group of columns, the matrix is
        a diagonal plus a low-rank update, with which products are fast.
        """
        xp = array_namespace(self.X)
        # In double precision, whatever the table's type: fourth powers of such numbers leave the
        # range of single.
        gram, along, spread, A, coef = (
            xp.astype(v, xp.float64, copy=False)
            for v in (sums.gram, sums.along, sums.spread, self.whitener, self.w)
        )
        if not self.terms.precise:
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
            if self.size <= 24:
                half = p[:, :, None] * (w[:, None] * h + spread / 2 * p)[:, None, :]
                eye = xp.eye(self.size, dtype=w.dtype, device=self.X.device)
                poles = (w**2)[:, None, None] * (eye * delta)
                values = dense_largest(poles + half + xp.matrix_transpose(half))
            else:
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
        whole, precise = rows.shape[0] == self.rows, terms.precise
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


# Several releases of one model --------------------------------------------------------------------


def merged(first: TermsJacobian, other: TermsJacobian) -> TermsJacobian | None:
    """Return one Jacobian for two releases of a model, or ``None`` if they cannot be merged.

    The releases must have the same rows, and differ only in their noise. With C and C' of the two
    releases, the joint information is ``Gᵀ(C + C')G``: that of a single release whose whitener is
    the R factor of both whiteners stacked. The result is ``None`` if the merged whitener would lose
    precision.
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
    return type(first)(ours.changed(map=whitener, whitener=whitener.matrix, precise=False))


# At an optimum -----------------------------------------------------------------------------------


def jacobian_at(
    found: Optimum,
    fit: FittedGLM,
    X: Array,
    whitener: Whitener,
    kind: Any = None,
    kept: dict[str, Any] | None = None,
) -> TermsJacobian:
    """Return the Jacobian for rows at an optimum; ``fit`` has their labels and weights.

    ``kind`` is the data type of the result, by default that of the rows, and ``kept`` what other
    rows of the release have in common with these.
    """
    near = X if found.centre is None else X - found.centre[None, :]
    derivatives, label_size, error = found.derivatives(fit, near, every=fit is found.fit)
    if kind is not None:
        xp = array_namespace(X)
        X, near = xp.astype(X, kind, copy=False), xp.astype(near, kind, copy=False)

    def narrow(values: Array) -> Array:
        return array_namespace(values).astype(values, X.dtype, copy=False)

    terms = JacobianTerms(
        X,
        narrow(fit.coef if len(fit.coef.shape) == 2 else fit.coef[:, None]),
        intercept=fit.intercept is not None,
        derivatives=lambda rows: tuple(map(narrow, derivatives(rows))),
        whitener=replace(whitener, matrix=narrow(whitener.matrix)),
        target=fit.target,
        label_size=label_size,
        near=near,
        slope_error=None if error is None else narrow(error),
        kept=kept,
    )
    if not isinstance(fit.family, Categorical):
        return SingleOutputJacobian(terms)
    return PairedJacobian(terms) if terms.precise else GLMJacobian(terms)


@dataclass(frozen=True, eq=False)
class PlainJacobians:
    """The Jacobians of a model known to be the minimiser, in ordinary arithmetic."""

    fit: FittedGLM
    X: Array
    noise: Noise
    sums: Sums | None = None  # over the records, as :func:`plain_optimum` takes them

    @cached_property
    def optimum(self) -> Optimum:
        """The optimum, without checks."""
        return plain_optimum(self.fit, self.X, self.sums)

    @cached_property
    def whitener(self) -> Whitener:
        """The map from the records to the release."""
        return whitener_of(self.optimum, self.noise)

    def __call__(self, rows: slice | Array, features: Array | None = None) -> TermsJacobian:
        """Return the Jacobian of some rows, whose features may be replaced."""
        fit = self.fit
        weight, unit = (None if v is None else v[rows] for v in (fit.sample_weight, fit.label_unit))
        some = replace(
            self.optimum.fit, sample_weight=weight, label_unit=unit, target=fit.target[rows, ...]
        )
        x = self.X[rows, :] if features is None else features
        return jacobian_at(self.optimum, some, x, self.whitener)

    def largest_ratio(
        self,
        unknowns: Unknowns,
        label_step: float,
        allowed: np.ndarray,
        bounds: np.ndarray,
        blocks: Sequence[np.ndarray] | np.ndarray | None = None,
    ) -> float:
        """Return the largest ``η/allowed`` of all records, or of blocks of records as a whole.

        ``bounds`` are upper bounds on these ratios, which may be infinite. Records are processed in
        decreasing order of their bounds until no remaining bound exceeds the largest ratio found.
        """
        left, largest = np.array(bounds), 0.0
        count = 32 if blocks is None else 4  # the records, or blocks, whose turn it is at first
        while len(some := np.flatnonzero(~(left <= largest))):
            if len(some) > count:
                some = some[np.argpartition(-left[some], count)[:count]]
            if blocks is None:
                here = self(some).with_label_step(label_step)
                norms = np.asarray(here.row_norms(unknowns))
            else:
                together = [blocks[k] for k in some.tolist()]
                here = self(np.concatenate(together)).with_label_step(label_step)
                ends = np.cumsum([len(rows) for rows in together])[:-1]
                parts = np.split(np.arange(here.rows), ends)
                norms = np.asarray(block_norms(here, unknowns, parts))
            largest = max(largest, math.sqrt(float(np.max(norms / allowed[some] ** 2))))
            left[some], count = -math.inf, 4 * count
        return largest
