"""The Jacobian of a GLM's minimiser with respect to its training data, as an operator.

With margins ``m = Wᵀx̃`` (``x̃`` is ``x``, with a 1 appended for an intercept), per-record loss
slopes ``r`` (K), curvatures ``a`` (K×K) and label slopes ``b`` (K×L), sample weights ω folded into
all three, and ``H`` the Hessian of the objective, the implicit function theorem gives (paper 001,
equation 18, for K outputs)::

    J_i = −H⁻¹ G_i,      G_i = [ E ⊗ r_i + x̃_i ⊗ a_i Wᵀ ,  x̃_i ⊗ b_i ]        (P × (d + L))

where ``E`` selects the parameters whose column is data (an intercept's is not). Noise of location
information ``Φ`` whitens it to ``A G_i`` with ``AᵀA = H⁻¹ Φ H⁻¹ = C``. No ``J_i`` is ever stored:
the methods here give what the views of the leakage need, in chunks of rows.

:class:`GLMJacobian` takes any number of outputs. With one output, every view has a closed form at
about the cost of one matrix product: :class:`SingleOutputJacobian`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from array_api_compat import array_namespace, is_numpy_array

from seepage.core.jacobian import WIDE_CHUNK, dense_largest
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.objective import bordered_gram, hessian, norm, weighted_gram
from seepage.glm.jacobian.accuracy import (
    block_error,
    cell_errors,
    column_error_terms,
    entry_errors,
    error_terms,
    row_errors,
)
from seepage.glm.jacobian.inverse import SharedTerms, inverse_diagonal, inverse_traces, shared_terms
from seepage.glm.jacobian.optimum import Whitener
from seepage.glm.jacobian.secular import largest_after_update, largest_eigenvalue, largest_of_rows
from seepage.glm.jacobian.terms import CANCELLED, FEW_CELLS, FLAT, NEGLIGIBLE, JacobianTerms
from seepage.support.chunks import by_rows, progress, row_slices, small_on_one_core
from seepage.tables.source import Array

FINE = 1e-8  # error up to which one bound for all numbers of a view suffices
MERGED = 1e4  # the condition up to which two whiteners become one without a loss
_POLE = 1e-6  # how near the largest pole an eigenvalue is checked again
_POLE_WORK = 1e9
_CLOSE = 0.99  # the share of the largest pole above which the next one counts as close
_SMALL = 12  # up to this many unknowns a row, its information is written out as a matrix


class GLMJacobian(JacobianTerms):
    """The whitened Jacobian of a GLM with K outputs about the rows of its table, ``(n, d)``.

    See :class:`~seepage.glm.jacobian.terms.JacobianTerms` for its parameters.
    """

    # The table that was fitted on, where ``X`` is a rounded copy of it
    fitted_on: Array | None = None
    states_accuracy = True
    _largest: Largest | None = None  # kept, as every view asks for it

    def release_gram(self, rows: slice) -> Array:
        """Return ``Ξ_kl = x̃ᵀ C_kl x̃`` of some rows, ``(m, K, K)``."""
        AX = self.seen(rows)
        return AX @ array_namespace(AX).matrix_transpose(AX)

    # How exact ------------------------------------------------------------------------------

    @property
    def exact_row_jacobians(self) -> bool:
        """Whether :meth:`row_jacobians` are more exact than products with the Jacobian."""
        return True

    def row_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η, given its squares for every record."""
        at_most = self._at_most(squared, unknowns, 1)
        if at_most <= FINE:
            return array_namespace(squared).full((), at_most, dtype=squared.dtype)
        return row_errors(self, squared, unknowns)

    def cell_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η, given its squares for every cell."""
        return cell_errors(self, squared, unknowns)

    def block_accuracy(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the relative error of η of a block, given its square."""
        one = array_namespace(self.X).asarray([squared], dtype=self.X.dtype)
        at_most = self._at_most(one, unknowns, int(rows.shape[0]))
        if at_most <= FINE:
            return at_most
        terms = array_namespace(self.X).sum(error_terms(self, unknowns)[rows, :], axis=0)
        return block_error(self, squared, terms, from_entries=True)

    def error_terms(self, unknowns: Unknowns) -> Array:
        """Return the squares of each record's terms and of their errors, ``(n, 2)``."""
        return error_terms(self, unknowns)

    def column_error_terms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the sums of the terms of each attribute over the rows, one line for each."""
        return column_error_terms(self, attributes, rows)

    def error_of(self, squared: float, terms: Array) -> float:
        """Return the relative error of η of a block read in chunks, from its terms."""
        return block_error(self, squared, terms, from_entries=self.paired)

    def entry_accuracy(self, squared: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return the relative errors of the columns of whitened Jacobians, given their squares.

        Both ``(m, q)``, for some rows.
        """
        return entry_errors(self, squared, unknowns, rows)

    def _at_most(self, squared: Array, unknowns: Unknowns, rows: int) -> float:
        """Return a bound on the relative errors of η of all blocks of this many rows.

        It divides the largest error by the smallest number: little work, and enough to say where
        nothing is lost. See :mod:`seepage.glm.jacobian.accuracy`.
        """
        least = float(array_namespace(squared).min(squared)) if squared.shape[0] else 0.0
        if self.paired or not least > 0:
            return math.inf
        most = self.largest()
        if unknowns.columns is None and unknowns.basis is None:
            reach, wide = self.map.size, self.map.deviation
        else:
            reach, wide = self.reach(unknowns), norm(self.deviations(unknowns))
        part, error = reach * most.slope, reach * most.slope_error
        own = most.curvature * norm(self.coefficient_sizes(unknowns))
        own += most.label * unknowns.label
        if self.outputs > 1:
            part += own * most.row * self.map.size
        if self.map.spread:
            error += self.map.curvature_error * (most.slope * wide + own * most.leverage)
        scale = math.sqrt(rows / least)
        ratio = 1 + 2 * scale * part
        return self.map.accuracy * ratio + scale * error + 8 * self.rounding * ratio * ratio

    def largest(self) -> Largest:
        """Return the largest of each quantity that the errors of records depend on."""
        if self._largest is None:
            xp = array_namespace(self.X)

            def sizes(rows: slice) -> Array:
                r, a, b = self.derivatives(rows)
                X = self.near[rows, :]
                squares = [xp.sum(r * r, axis=1), xp.sum(a * a, axis=(1, 2))]
                squares += [xp.sum(b * b, axis=(1, 2)), xp.sum(X * X, axis=1)]
                leverage = self.leverages(xp.sum(xp.linalg.diagonal(a), axis=1), rows)
                return xp.stack([*map(xp.sqrt, squares), leverage], axis=1)

            every = by_rows(sizes, self.rows, self.outputs**2 + self.features, chunk=self.chunk)
            slope, curvature, label, row, leverage = map(float, xp.max(every, axis=0))
            row = math.hypot(row, 1.0) if self.intercept else row
            error = float(xp.max(self.slope_errors))
            self._largest = Largest(slope, error, curvature, label, row, leverage)
        return self._largest

    def recompute_cancelled(
        self, squared: Array, unknowns: Unknowns, part: Array, take: Callable[[Array], Array]
    ) -> Array:
        """Return answers about rows, computing small differences without squares.

        ``part`` are the squares of the terms that may cancel; ``take`` gives the answers from
        whitened Jacobians, ``(m, P, q)``.
        """
        xp = array_namespace(self.X)
        lossy = squared < CANCELLED * part
        if len(lossy.shape) == 2:
            lossy = xp.any(lossy, axis=1)
        which = xp.nonzero(lossy)[0]
        width = self.size * self.unknown_count(unknowns)
        for piece in row_slices(int(which.shape[0]), width, chunk=WIDE_CHUNK):
            squared[which[piece], ...] = take(self.row_jacobians(unknowns, which[piece]))
        return squared

    def _from_entries(self, unknowns: Unknowns, take: Callable[[Array], Array]) -> Array:
        """Return ``take`` of the whitened Jacobians of all rows."""
        width = self.size * self.unknown_count(unknowns)
        return by_rows(
            lambda rows: take(self.row_jacobians(unknowns, rows)),
            self.rows,
            width,
            chunk=WIDE_CHUNK,
        )

    def recompute_block(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the answer about a block, from the entries if it is a small difference."""
        xp = array_namespace(self.X)
        part = self.reach(unknowns) ** 2 * float(xp.sum(self.slope_sizes[rows] ** 2))
        if not self.paired and squared > 0 and squared >= CANCELLED * part:
            return squared
        return float(dense_largest(self._entry_sums(unknowns, rows)[None, :, :])[0])

    def _entry_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Σ_i J_i J_iᵀ`` over some rows, (P, P), from the entries."""
        xp = array_namespace(self.X)
        total = self.zeros(self.size, self.size)
        width = self.size * self.unknown_count(unknowns)
        for piece in row_slices(rows.shape[0], width, chunk=WIDE_CHUNK):
            J = self.row_jacobians(unknowns, rows[piece])
            total += xp.sum(J @ xp.matrix_transpose(J), axis=0)
        return total

    # Rows, one by one -----------------------------------------------------------------------

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, ``(n,)``."""
        xp = array_namespace(self.X)
        if self.paired:
            return self._from_entries(unknowns, lambda J: xp.sum(J * J, axis=(1, 2)))
        terms = _InformationTerms(self, unknowns)
        blocks = xp.sum(xp.linalg.diagonal(terms.blocks), axis=2)

        def traces(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            quadratic = xp.sum(B * (Xi @ B), axis=(1, 2))
            cross = xp.sum(R * B[:, :, : terms.count], axis=(1, 2))
            return quadratic + 2 * cross + xp.vecdot(r @ blocks, r)

        squared = by_rows(traces, self.rows, self.row_width(unknowns), chunk=WIDE_CHUNK)
        part = (self.reach(unknowns) * self.slope_sizes) ** 2
        return self.recompute_cancelled(
            squared, unknowns, part, lambda J: xp.sum(J * J, axis=(1, 2))
        )

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²`` of each row: the largest eigenvalue of its information, ``(n,)``."""
        if self.paired:
            return self._from_entries(unknowns, largest_square)
        squared, part = super().row_norms(unknowns), (self.reach(unknowns) * self.slope_sizes) ** 2
        return self.recompute_cancelled(squared, unknowns, part, largest_square)

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each unknown feature alone, ``(n, t)``: the diagonal."""
        xp = array_namespace(self.X)
        if self.paired:
            features = replace(unknowns, label=False)
            return self._from_entries(features, lambda J: xp.sum(J * J, axis=1))
        terms = _InformationTerms(self, Unknowns(unknowns.columns, False, unknowns.basis))
        blocks = xp.reshape(xp.linalg.diagonal(terms.blocks), (self.outputs**2, -1))

        def diagonal(rows: slice) -> Array:
            r, B, Xi, R = terms(rows)
            return xp.sum(B * (Xi @ B + 2 * R), axis=1) + _pairs(r) @ blocks

        squared = by_rows(diagonal, self.rows, self.row_width(unknowns), chunk=WIDE_CHUNK)
        part = (self.slope_sizes**2)[:, None] * (self.column_reach(unknowns) ** 2)[None, :]
        return self.recompute_cancelled(
            squared, replace(unknowns, label=False), part, lambda J: xp.sum(J * J, axis=1)
        )

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return the function that gives the information matrix of each of some rows, ``(m,q,q)``.

        ``I = Bᵀ Ξ B + [Rᵀ B; 0] + [Rᵀ B; 0]ᵀ + Σ_kl r_k r_l C_kl`` with ``B = [a Wᵀ, b]``,
        ``Ξ_kl = x̃ᵀ C_kl x̃`` and ``R_l = Σ_k r_k C_kl x̃``, all restricted to the unknowns.
        """
        xp = array_namespace(self.X)
        if self.paired:

            def squares(rows: slice) -> Array:
                J = self.row_jacobians(unknowns, rows)
                return xp.matrix_transpose(J) @ J

            return squares
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

    # Blocks of the table ----------------------------------------------------------------------

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of the information about these unknowns of these rows."""
        squared = 0.0 if self.paired else super().block_norm(unknowns, rows)
        return self.recompute_block(squared, unknowns, rows)

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
        """Return ``Σ_i G_i G_iᵀ`` over some rows, (P, P), before whitening.

        After whitening, where classes are compared with a record's own before anything is rounded.
        With ``V`` the unknown feature directions and ``B_i = [a_i W_Vᵀ, b_i]``::

            Σ_i G_i G_iᵀ = Σ x̃x̃ᵀ ⊗ B Bᵀ + VVᵀ ⊗ Σ r rᵀ + T + Tᵀ,    T = Σ_i V W_V-weighted x̃ᵀ ⊗ r a
        """
        if self.paired:
            return self._entry_sums(unknowns, rows)
        xp = array_namespace(self.X)
        K, P, D = self.outputs, self.size, self.size // self.outputs
        r, a, _ = self.derivatives(rows)
        _, B = self.slopes(unknowns, rows)
        total = hessian(
            self.near[rows, :], B @ xp.matrix_transpose(B), ridge=0.0, intercept=self.intercept
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
        whitened = sums if self.map.precise else self.whitener @ sums @ self.whitener.T
        return float(dense_largest(whitened[None, :, :])[0])

    def with_label_step(self, step: float) -> GLMJacobian:
        """Return the same Jacobian with the label counted in steps of this size."""
        if step == 1.0:
            return self
        other, derivatives = copy(self), self.derivatives

        def stepped(rows: slice | Array) -> tuple[Array, Array, Array]:
            r, a, b = derivatives(rows)
            return r, a, step * b

        other.derivatives, other._largest = stepped, None
        return other

    def merged(self, other: GLMJacobian) -> GLMJacobian | None:
        """Return the Jacobian of both releases where they are the same model with different noise.

        The information is then ``Gᵀ(C + C')G``: one release, whose whitener is the R of both
        whiteners stacked, where that costs no digits. Both are about the same rows.
        """
        xp = array_namespace(self.X)
        if max(self.map.condition, other.map.condition) > MERGED:
            return None
        if (self.coef.shape, self.intercept) != (other.coef.shape, other.intercept):
            return None
        ours, theirs = self.derivatives(slice(0, self.rows)), other.derivatives(slice(0, self.rows))
        same = bool(xp.all(self.coef == other.coef)) and all(
            bool(xp.all(mine == yours)) for mine, yours in zip(ours, theirs, strict=True)
        )
        if not same:
            return None
        both = copy(self)
        stack = xp.concat([self.whitener, other.whitener], axis=0)
        accuracy = max(self.map.accuracy, other.map.accuracy)
        both.map = Whitener(xp.linalg.qr(stack, mode="reduced")[1], None, accuracy)
        both.whitener = both.map.matrix
        both._forget()
        return both

    def _forget(self) -> None:
        """Forget what was kept of the whitener; called when it changes."""
        self._seen = None

    def _pick(self, rows: Array, piece: slice) -> slice | Array:
        """Return a piece of the rows, as a slice (which copies nothing) if these are all rows."""
        return piece if rows.shape[0] == self.rows else rows[piece]

    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``(A G)ᵀ v`` for a vector of the whitened release: ``(len(rows), q)``."""
        xp = array_namespace(self.X)
        Y = xp.reshape(self.whitener.T @ v, (-1, self.outputs))
        Y_unknown = unknowns.of(Y[: self.features, :])
        precise = self.map.precise

        def one(piece: slice) -> Array:
            here = self._pick(rows, piece)
            r, B = self.slopes(unknowns, here)
            along = self.seen(here) @ v if precise else self.design_times(here, Y)
            out = (along[:, None, :] @ B)[:, 0, :]
            out[:, : Y_unknown.shape[0]] += r @ Y_unknown.T
            return out

        return by_rows(one, rows.shape[0], self.features + self.outputs**2, chunk=self.chunk)

    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``A G z`` for a change ``z (len(rows), q)`` of the block: a vector ``(P,)``."""
        xp = array_namespace(self.X)
        t = unknowns.features(self.features)
        total = self.zeros(self.size // self.outputs, self.outputs)
        shown = self.zeros(self.size)
        width = self.features + self.outputs**2
        for piece in row_slices(rows.shape[0], width, chunk=self.chunk):
            here = self._pick(rows, piece)
            r, B = self.slopes(unknowns, here)
            along = (B @ z[piece, :, None])[..., 0]
            if self.map.precise:
                AX = xp.matrix_transpose(self.seen(here))
                shown += xp.sum(AX @ along[:, :, None], axis=(0, 2))
            else:
                total[: self.features, :] += self.near[here, :].T @ along
                if self.intercept:
                    total[self.features, :] += xp.sum(along, axis=0)
            total[: self.features, :] += unknowns.back(z[piece, :t].T @ r, self.features)
        return shown + self.whitener @ xp.reshape(total, (-1,))


class Largest(NamedTuple):
    """The largest of each quantity that the errors of records depend on."""

    slope: float  # ‖r‖
    slope_error: float
    curvature: float  # ‖a‖
    label: float  # ‖b‖
    row: float  # ‖x̃‖
    leverage: float


class _InformationTerms:
    """The terms that make up the information about single rows.

    Calling it with a slice of rows gives ``r (m, K)``, ``B (m, K, q)``, ``Ξ (m, K, K)`` and
    ``R (m, K, t)``; ``blocks (K, K, t, t)`` holds ``C_kl``, the same for all rows.
    """

    def __init__(self, jacobian: GLMJacobian, unknowns: Unknowns) -> None:
        xp = array_namespace(jacobian.X)
        P, K = jacobian.size, jacobian.outputs
        self.jacobian, self.unknowns = jacobian, unknowns
        D = P // K
        A_unknown = jacobian.columns_of(unknowns)
        self.count = t = A_unknown.shape[1]
        by_output = xp.permute_dims(A_unknown, (2, 0, 1))  # (K, P, t)
        self.blocks = xp.matrix_transpose(by_output)[:, None] @ by_output[None, :]
        if jacobian.map.precise:
            self.from_release = xp.reshape(xp.permute_dims(A_unknown, (0, 2, 1)), (P, K * t))
        else:
            C = xp.reshape(jacobian.whitener.T @ xp.reshape(A_unknown, (P, t * K)), (D, K, t, K))
            self.to_unknowns = xp.reshape(xp.permute_dims(C, (0, 1, 3, 2)), (D, K * K * t))

    def __call__(self, rows: slice) -> tuple[Array, Array, Array, Array]:
        xp = array_namespace(self.jacobian.X)
        K = self.jacobian.outputs
        r, B = self.jacobian.slopes(self.unknowns, rows)
        if self.jacobian.map.precise:
            CX = self.jacobian.seen(rows) @ self.from_release
        else:
            CX = self.jacobian.design_times(rows, self.to_unknowns)
        CX = xp.reshape(CX, (CX.shape[0], K, K, self.count))
        return r, B, self.jacobian.release_gram(rows), (r[:, None, None, :] @ CX)[:, :, 0, :]


def _pairs(r: Array) -> Array:
    """Return all products ``r_k r_l`` of each row, ``(m, K²)``."""
    return array_namespace(r).reshape(r[:, :, None] * r[:, None, :], (r.shape[0], -1))


class _Eigenbasis(NamedTuple):
    """The eigenvectors of ``A_V A_Vᵀ``, and the coordinates of a row's ``A x̃`` in them."""

    unknowns: Unknowns  # which features
    delta: Array  # (k,), the eigenvalues, rising
    vectors: Array  # (P, t)
    coordinates: Array  # (P, t): x̃ ↦ the coordinates of A x̃
    whole: bool  # whether they span the whole release
    q: Array  # (k,): the coordinates of A_V w_V


@dataclass(frozen=True)
class BlockSums:
    """``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²`` over a block of rows; blocks add up.

    Or the same with ``A x̃`` in place of ``x̃``, where only that is exact.
    """

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
    ``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²``: rows may come in any pieces, and nothing is larger
    than P×P. ``coef`` is of shape ``(d,)`` here.
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
        whitener: Whitener,
        target: Array,
        near: Array | None = None,
        slope_error: Array | None = None,
    ) -> None:
        super().__init__(
            X,
            coef[:, None],
            intercept=intercept,
            derivatives=lambda rows: (r[rows, None], a[rows, None, None], b[rows, None, None]),
            whitener=whitener,
            target=target,
            label_size=1,
            near=near,
            slope_error=slope_error,
        )
        self.w, self.r, self.a, self.b = coef, r, a, b
        self._kept: _Eigenbasis | None = None
        self._lengths: Array | None = None
        self._inverse_terms: SharedTerms | None = None

    def about(
        self,
        X: Array,
        r: Array,
        a: Array,
        b: Array,
        target: Array,
        near: Array | None = None,
        slope_error: Array | None = None,
    ) -> SingleOutputJacobian:
        """Return the Jacobian of the same release about other rows, sharing what was kept."""
        other = SingleOutputJacobian(
            X,
            self.w,
            intercept=self.intercept,
            r=r,
            a=a,
            b=b,
            whitener=self.map,
            target=target,
            near=near,
            slope_error=slope_error,
        )
        other._kept, other._inverse_terms = self._kept, self._inverse_terms
        return other

    @property
    def slope_sizes(self) -> Array:
        """``|r|`` of every record, ``(n,)``."""
        return array_namespace(self.X).abs(self.r)

    def largest(self) -> Largest:
        """Return the largest of each quantity that the errors of records depend on."""
        if self._largest is None:
            xp = array_namespace(self.X)
            curvature, smallest = float(xp.max(self.a)), float(xp.min(self.a))
            if smallest > FLAT * curvature:
                leverage = 1 / math.sqrt(smallest)
            else:
                leverage = float(xp.max(self.leverages(self.a, slice(0, self.rows))))
            slope, label = (max(float(xp.max(v)), -float(xp.min(v))) for v in (self.r, self.b))
            error = float(xp.max(self.slope_errors))
            # With one output nothing is a sum over classes, and the length of a row is not needed.
            self._largest = Largest(slope, error, curvature, label, math.inf, leverage)
        return self._largest

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²`` of each row, ``(n,)``, by secular equations."""
        if self.unknown_count(unknowns) <= _SMALL:
            return super().row_norms(unknowns)
        xp = array_namespace(self.X)
        with small_on_one_core(self.whitener):
            basis = self._eigenbasis(unknowns)
        c, s = self.rank_two(unknowns)
        rho = self.r * self.r
        lengths = rho if basis.whole else self._release_lengths()

        def coordinates(rows: slice | Array) -> Array:
            if self.map.precise:
                seen = self.seen(rows)[:, 0, :]
                p = seen @ xp.astype(basis.vectors, seen.dtype, copy=False)
                p = xp.astype(p, self.X.dtype, copy=False)
            else:
                p = self.design_times(rows, basis.coordinates)
            if not basis.whole:
                # An eigenvalue is even in this length, so its cancellation does no harm.
                rest = lengths[rows] - xp.vecdot(p, p)
                rest = xp.sqrt(xp.where(rest > 0, rest, xp.zeros_like(rest)))
                p = xp.concat([rest[:, None], p], axis=1)
            return p

        threads = is_numpy_array(self.X) and not self.map.precise
        squared = largest_of_rows(
            rho, basis.delta, coordinates, basis.q, c, s, threads=threads, what="rows"
        )
        squared = self._off_the_pole(squared, basis, unknowns)
        return self.recompute_cancelled(
            squared, unknowns, self.reach(unknowns) ** 2 * rho, largest_square
        )

    def _off_the_pole(self, norms: Array, basis: _Eigenbasis, unknowns: Unknowns) -> Array:
        """Return norms; those next to the largest pole come from the entries where that is cheap.

        The next pole may lie so close that the secular equation has lost half its digits there.
        """
        xp = array_namespace(self.X)
        if float(basis.delta[-2]) < _CLOSE * float(basis.delta[-1]):
            return norms
        pole = self.r * self.r * basis.delta[-1]
        which = xp.nonzero((norms > 0) & (norms <= (1 + _POLE) * pole))[0]
        count = self.unknown_count(unknowns)
        cost = float(which.shape[0]) * self.size * count * min(self.size, count)
        if which.shape[0] == 0 or cost > _POLE_WORK:
            return norms
        for piece in row_slices(int(which.shape[0]), self.size * count, chunk=WIDE_CHUNK):
            norms[which[piece]] = largest_square(self.row_jacobians(unknowns, which[piece]))
        return norms

    def release_gram(self, rows: slice) -> Array:
        """Return ``‖A x̃‖²`` of some rows, ``(m, 1, 1)``."""
        return self._release_lengths()[rows, None, None]

    def _release_lengths(self) -> Array:
        """Return ``‖A x̃‖²`` of every row; kept, since every question about a row needs it."""
        if self._lengths is None:
            xp = array_namespace(self.X)

            def squares(rows: slice) -> Array:
                precise, A = self.map.precise, self.whitener
                AX = self.seen(rows)[:, 0, :] if precise else self.design_times(rows, A.T)
                return xp.vecdot(AX, AX)

            threads = is_numpy_array(self.X) and not self.map.precise
            self._lengths = by_rows(
                squares, self.rows, self.size, chunk=self.chunk // 4, threads=threads
            )
        return self._lengths

    def _forget(self) -> None:
        super()._forget()
        self._kept = self._lengths = self._inverse_terms = None

    def _eigenbasis(self, unknowns: Unknowns) -> _Eigenbasis:
        """Diagonalise ``A_V A_Vᵀ``; kept for the next question about the same features.

        Where the unknown features reach only t of the release's dimensions, a row adds to them only
        the length of one more coordinate.
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
        coordinates = by_rows(
            lambda rows: A.T[rows, :] @ U, *A.shape, chunk=self.chunk, threads=is_numpy_array(A)
        )
        self._kept = _Eigenbasis(unknowns, delta, U, coordinates, whole, q)
        return self._kept

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return ``r² tr(A_V A_Vᵀ) + c ‖Ax̃‖² + 2 a r (A_V w_V)·Ax̃`` for each row."""
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        c, s = self.rank_two(unknowns)
        every, Aw = slice(0, self.rows), 2 * (A_V @ w_V)
        if self.map.precise:
            slopes = self.seen(every)[:, 0, :] @ Aw
        else:
            slopes = self.design_times(every, A.T @ Aw)
        part = self.r * self.r * xp.sum(A_V * A_V)
        traces = part + c * self._release_lengths() + s * slopes
        return self.recompute_cancelled(
            traces, unknowns, part, lambda J: xp.sum(J * J, axis=(1, 2))
        )

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return ``a²‖Ax̃‖² w_j² + 2 a r w_j z_j + r² C_jj`` with ``z = C x̃``, ``(n, t)``."""
        return self._cells(unknowns)[0]

    def cells_and_errors(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the information about each cell, and the relative errors of η."""
        squared, least = self._cells(unknowns)
        return squared, self._cell_errors(squared, least, unknowns)

    def cell_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η of every cell; of many, those of each row's worst."""
        least = _least(squared, self.column_reach(replace(unknowns, label=False)) ** 2)
        return self._cell_errors(squared, least, unknowns)

    def _cells(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the information about each cell, and each row's smallest; see :func:`_least`."""
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        squares = xp.sum(A_V * A_V, axis=0)
        to_z, flat = A_V * w_V[None, :], xp.stack([w_V * w_V, squares])
        to_z = to_z if self.map.precise else A.T @ to_z
        rho, s = self.r * self.r, 2 * self.a * self.r
        weights = xp.stack([self.a**2 * self._release_lengths(), rho], axis=1)
        smallest = []

        def cells(rows: slice) -> Array:
            # Passes over a chunk dominate the cost.
            seen = self.map.precise
            out = self.seen(rows)[:, 0, :] @ to_z if seen else self.design_times(rows, to_z)
            out *= s[rows, None]
            out += weights[rows, :] @ flat
            smallest.append(_least(out, squares))
            return out

        squared = by_rows(cells, self.rows, self.size, chunk=self.chunk)
        least = smallest[0] if len(smallest) == 1 else xp.concat(smallest)
        lossy = least < CANCELLED * rho
        if not bool(xp.any(lossy)):
            return squared, least
        # Where the terms of the square cancel, the entries of J's column are squared instead.
        features, which = replace(unknowns, label=False), xp.nonzero(lossy)[0]
        width = self.size * squares.shape[0]
        for piece in row_slices(int(which.shape[0]), width, chunk=WIDE_CHUNK):
            J = self.row_jacobians(features, which[piece])
            squared[which[piece], :] = xp.sum(J * J, axis=1)
        least[which] = _least(squared[which, :], squares)
        return squared, least

    def _cell_errors(self, squared: Array, least: Array, unknowns: Unknowns) -> Array:
        xp = array_namespace(self.X)
        features = replace(unknowns, label=False)
        reach, W = self.column_reach(features), self.coefficient_sizes(features)[:, 0]
        safe = xp.where(reach > 0, reach, xp.ones_like(reach))
        wide, W = xp.max(self.deviations(features) / safe), xp.max(W / safe)

        def errors(least: Array, own: Array) -> Array:
            lost = self.map.curvature_error * (self.slope_sizes * wide + own * W)
            error = self.slope_errors + lost
            return self.relative_errors(least, self.slope_sizes, error, share=0.0)

        # The leverage of a record is at most 1/√a, and may be much less.
        accuracy = errors(least, xp.sqrt(self.a))
        if not (bool(xp.all(least > 0)) and float(xp.max(accuracy)) <= FINE):
            if self.rows * squared.shape[1] <= FEW_CELLS:
                return super().cell_accuracy(squared, unknowns)
            # Numbers tiny relative to the largest count as a share of it.
            floor = NEGLIGIBLE**2 * xp.max(squared) / xp.max(reach) ** 2
            least = xp.where(least > floor, least, floor + xp.zeros_like(least))
            accuracy = errors(least, self.a * self.leverages(self.a, slice(0, self.rows)))
        return xp.broadcast_to(accuracy[:, None], squared.shape)

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
        """Return how many numbers the work on one row keeps in memory."""
        count = self.unknown_count(unknowns)
        return self.size + (count**2 if count <= _SMALL else count)

    def inverses(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the diagonal of the inverse information about each row, and its errors."""
        if unknowns.label or self.unknown_count(unknowns) == 1 or self.map.precise:
            return super().inverses(unknowns)
        return inverse_diagonal(self, unknowns, self._shared_terms(unknowns))

    def traces_of_inverses(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the trace of the inverse information about each row, and its errors, ``(n,)``."""
        if unknowns.label or self.unknown_count(unknowns) == 1 or self.map.precise:
            return super().traces_of_inverses(unknowns)
        return inverse_traces(self, unknowns, self._shared_terms(unknowns))

    def _shared_terms(self, unknowns: Unknowns) -> SharedTerms:
        """Return what all rows' inverses share; kept for the next question about the features."""
        kept = self._inverse_terms
        if kept is None or not kept.unknowns.same_features(unknowns):
            kept = self._inverse_terms = shared_terms(self, unknowns)
        return kept

    def inverse_work(self, unknowns: Unknowns) -> float:
        """Return about how many multiplications a row's inverse information takes."""
        if unknowns.label or self.map.precise:
            return super().inverse_work(unknowns)
        return float(self.size) * self.unknown_count(unknowns)

    # Blocks of the table ----------------------------------------------------------------------

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of ``Σ_i A G_i G_iᵀ Aᵀ`` over the rows: a P×P matrix."""
        squared = self.norm_of(unknowns, self.block_sums(unknowns, rows))
        return self.recompute_block(squared, unknowns, rows)

    def block_norms(self, unknowns: Unknowns, blocks: Sequence[Array]) -> list[float]:
        """Return :meth:`block_norm` of several blocks, many of them decomposed together."""
        xp = array_namespace(self.X)
        A, part = self.whitener, self.reach(unknowns) ** 2
        all_norms: list[float] = []
        for some in row_slices(len(blocks), self.size**2, chunk=WIDE_CHUNK, what="groups"):
            sums = xp.stack([self.block_sums(unknowns, rows) for rows in blocks[some]])
            norms = dense_largest(sums if self.map.precise else A @ sums @ A.T)
            for rows, squared in zip(blocks[some], map(float, norms), strict=True):
                spread = float(xp.sum(self.r[rows] ** 2))
                sound = squared > 0 and squared >= CANCELLED * part * spread
                all_norms.append(
                    squared if sound else self.recompute_block(squared, unknowns, rows)
                )
        return all_norms

    def block_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Σ_i G_i G_iᵀ`` over some rows, (P, P), from three sums over them.

        Before whitening, or after it where only the product with the whitener is exact.
        """
        xp = array_namespace(self.X)
        w_V = unknowns.of(self.w)
        sums = self._sums(rows, float(xp.sum(w_V * w_V)), unknowns.label)
        if self.map.precise:
            A_V = self.columns_of(unknowns)[:, :, 0]
            cross = (A_V @ w_V)[:, None] * sums.along[None, :]
            return sums.gram + cross + cross.T + sums.spread * (A_V @ A_V.T)
        total, d = sums.gram, self.features
        cross = unknowns.back(w_V, d)[:, None] * sums.along[None, :]
        total[:d, :] += cross
        total[:, :d] += cross.T
        eye = xp.eye(d, dtype=self.X.dtype, device=self.X.device)
        total[:d, :d] += sums.spread * unknowns.back(unknowns.of(eye), d)  # V Vᵀ
        return total

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        xp = array_namespace(self.X)
        norms = self.column_norms_of(attributes, self.column_sums(attributes, rows))
        (reach,) = self._per_attribute(attributes, self.column_reach)
        part = xp.sum(self.r[rows] ** 2) * reach**2
        for k in xp.nonzero(norms < CANCELLED * part)[0]:
            norms[int(k)] = self.recompute_block(float(norms[k]), attributes[int(k)], rows)
        return norms

    def column_accuracy(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the relative errors of η of each attribute over the rows."""
        xp = array_namespace(self.X)
        size, off = (norm(s[rows]) for s in (self.r, self.slope_errors))
        reach, wide, W = self._error_sizes(attributes)

        def errors(own: float) -> Array:
            lost = self.map.curvature_error * (size * wide + own * W)
            # Each by itself: what is small relative to another column may be large in its own unit.
            return self.relative_errors(squared, size * reach, off * reach + lost, share=0.0)

        # The leverage of a record is at most 1/√a, and may be much less.
        accuracy = errors(math.sqrt(float(xp.sum(self.a[rows]))))
        if float(xp.max(accuracy)) <= FINE or not self.map.spread:
            return accuracy
        return errors(norm(self.a[rows] * self.leverages(self.a, slice(0, self.rows))[rows]))

    def column_error_terms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the sums of the terms of each attribute over the rows, one line for each."""
        xp = array_namespace(self.X)
        spread, off = (xp.sum(s[rows] ** 2) for s in (self.r, self.slope_errors))
        own = xp.sum((self.a * self.leverages(self.a, slice(0, self.rows)))[rows] ** 2)
        reach, wide, W = self._error_sizes(attributes)
        lost = self.map.curvature_error**2 * (spread * wide**2 + own * W**2)
        # The square of a sum of three is at most three times the sum of their squares.
        return xp.stack([spread * reach**2, 3 * (off * reach**2 + lost)], axis=1)

    def _error_sizes(self, attributes: list[Unknowns]) -> list[Array]:
        """Return ``‖A_V‖_F``, the deviations and ``‖w_V‖`` of every attribute."""
        return self._per_attribute(
            attributes,
            self.column_reach,
            self.deviations,
            lambda u: self.coefficient_sizes(u)[:, 0],
        )

    def _per_attribute(
        self, attributes: list[Unknowns], *sizes: Callable[[Unknowns], Array]
    ) -> list[Array]:
        """Return sizes of every attribute from those of its directions, ``(t,)``."""
        xp = array_namespace(self.X)
        single = single_columns(attributes)
        by_attribute = []
        for size in sizes:
            out = self.zeros(len(attributes))
            if single:
                columns = xp.asarray(list(single.values()), device=self.X.device)
                out[list(single)] = xp.abs(size(Unknowns(None, False))[columns])
            for k, unknowns in enumerate(attributes):
                if k not in single:
                    out[k] = xp.sqrt(xp.sum(size(unknowns) ** 2))
            by_attribute.append(out)
        return by_attribute

    def column_sums(self, attributes: list[Unknowns], rows: Array) -> BlockSums:
        """Return the three sums over the rows with ``c = a²``: the same for all attributes."""
        return self._sums(rows)

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
        # In double precision, whatever the table's type: fourth powers of such numbers leave the
        # range of single.
        gram, along, spread, A, coef = (
            xp.astype(v, xp.float64, copy=False)
            for v in (sums.gram, sums.along, sums.spread, self.whitener, self.w)
        )
        if not self.map.precise:
            gram, along = A @ gram @ A.T, A @ along
        delta, Q = xp.linalg.eigh((gram + gram.T) / 2)
        delta, h = xp.where(delta > 0, delta, xp.zeros_like(delta)), along @ Q
        whitener = Q.T @ A
        out = self.zeros(len(attributes))
        single = single_columns(attributes)
        for k in progress([k for k in range(len(attributes)) if k not in single], "attributes"):
            w = attributes[k].of(coef)
            U = Q.T @ xp.astype(self.columns_of(attributes[k])[:, :, 0], w.dtype, copy=False)
            S = xp.zeros((w.shape[0] + 1, w.shape[0] + 1), dtype=w.dtype, device=w.device)
            S[:-1, :-1] = spread * xp.eye(w.shape[0], dtype=w.dtype, device=w.device)
            S[:-1, -1] = S[-1, :-1] = w
            U = xp.concat([U, h[:, None]], axis=1)
            out[k] = largest_after_update(xp.sum(w * w) * delta, U, S)
        if single:
            columns = xp.asarray(list(single.values()), device=self.X.device)
            w = coef[columns]
            values = largest_eigenvalue(
                w**2, delta, whitener[:, columns].T, h, spread * xp.ones_like(w), w
            )
            values = xp.where(values > 0, values, xp.zeros_like(values))
            out[list(single)] = xp.astype(values, out.dtype, copy=False)
        return out

    def _cell_sums(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``w_j² Σa²‖Ax̃‖² + 2 w_j (A_Vᵀ A X̃ᵀ(a r))_j + C_jj Σr²``, ``(t,)``."""
        xp = array_namespace(self.X)
        sums = self._sums(rows)
        A, A_V, w_V = self.restricted(unknowns)
        if self.map.precise:
            lengths, along = xp.sum(xp.linalg.diagonal(sums.gram)), sums.along
        else:
            lengths, along = xp.sum((A @ sums.gram) * A), A @ sums.along
        spread = sums.spread * xp.sum(A_V**2, axis=0)
        sums_of_cells = lengths * w_V**2 + 2 * w_V * (A_V.T @ along) + spread
        if bool(xp.any(sums_of_cells < CANCELLED * spread)):
            return super()._cell_sums(unknowns, rows)
        return sums_of_cells

    def _sums(self, rows: Array, squared: float = 1.0, label: bool = False) -> BlockSums:
        """Return the sums over some rows with ``c = a² ‖w_V‖²``, and ``+ b²`` with the label.

        At most a chunk of the rows is copied; all of them are read in place.
        """
        xp = array_namespace(self.X)
        whole = rows.shape[0] == self.rows
        of_all = slice(None) if whole else rows
        a, r = self.a[of_all], self.r[of_all]
        c, s, spread = a * a * squared, a * r, xp.sum(r**2)
        if label:
            c = c + self.b[of_all] * self.b[of_all]
        gram: Array = 0.0
        along: Array = 0.0
        if self.map.precise:
            for piece in row_slices(rows.shape[0], self.size, chunk=self.chunk):
                AX = self.seen(piece if whole else rows[piece])[:, 0, :]
                gram, along = gram + weighted_gram(AX, c[piece]), along + AX.T @ s[piece]
            return BlockSums(gram, along, spread)
        if whole:
            gram, along = bordered_gram(self.near, c, self.intercept), self.near.T @ s
        else:
            for piece in row_slices(rows.shape[0], self.size, chunk=self.chunk):
                X = self.near[rows[piece], :]
                gram = gram + bordered_gram(X, c[piece], self.intercept)
                along = along + X.T @ s[piece]
        if self.intercept:
            along = xp.concat([along, xp.reshape(xp.sum(s), (1,))])
        return BlockSums(gram, along, spread)

    # Shared by the methods above --------------------------------------------------------------

    def with_label_step(self, step: float) -> SingleOutputJacobian:
        """Return the same Jacobian with the label counted in steps of this size."""
        if step == 1.0:
            return self
        return self.about(
            self.X, self.r, self.a, step * self.b, self.target, self.near, self._slope_error
        )

    def restricted(self, unknowns: Unknowns) -> tuple[Array, Array, Array]:
        """Return ``A``, ``A_V`` and ``w_V``."""
        return self.whitener, self.columns_of(unknowns)[:, :, 0], unknowns.of(self.w)

    def rank_two(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return ``c`` and ``s = a r`` of every row."""
        xp = array_namespace(self.X)
        w_V = unknowns.of(self.w)
        c = self.a * self.a * xp.sum(w_V * w_V)
        return (c + self.b * self.b if unknowns.label else c), self.a * self.r


def _least(cells: Array, squares: Array) -> Array:
    """Return the smallest of each record's cells, in units of the columns' reach, ``(m,)``."""
    xp = array_namespace(cells)
    units = 1 / xp.where(squares > 0, squares, xp.ones_like(squares))
    return xp.min(cells * units[None, :], axis=1)


def single_columns(attributes: list[Unknowns]) -> dict[int, int]:
    """Return which of the attributes are a single column, and which column."""
    return {
        k: u.columns[0]
        for k, u in enumerate(attributes)
        if u.columns is not None and len(u.columns) == 1 and u.basis is None
    }


def largest_square(J: Array) -> Array:
    """Return the squared largest singular value of each matrix, ``(m,)``."""
    xp = array_namespace(J)
    return xp.linalg.svdvals(J)[:, 0] ** 2
