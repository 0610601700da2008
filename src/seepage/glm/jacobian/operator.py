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

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from array_api_compat import array_namespace

from seepage.core.jacobian import WIDE_CHUNK, Refits, ReleaseJacobian
from seepage.core.spectra import dense_largest
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.objective import bordered_gram, hessian, weighted_gram
from seepage.glm.jacobian.inverse import SharedTerms, inverse_diagonal, inverse_traces
from seepage.glm.jacobian.optimum import EPS
from seepage.glm.jacobian.secular import largest_after_update, largest_eigenvalue
from seepage.glm.jacobian.whitening import Whitener
from seepage.support.chunks import CHUNK, by_rows, chunk_for, progress, row_slices
from seepage.support.double_double import Double, product
from seepage.tables.source import Array

if TYPE_CHECKING:
    from seepage.glm.fitting.objective import FittedGLM

LOSSY = 1e6  # what squares may cancel down by before the entries themselves are taken
NEGLIGIBLE = 1e-8  # beside the largest number of a view
MERGED = 1e4  # the condition up to which two whiteners become one without a loss
_KEPT = 1 << 25  # numbers of the release that are kept, where they are dear
_POLE = 1e-6  # how near the largest pole an eigenvalue is looked at again
_POLE_WORK = 1e9
_FEW_CELLS = 1 << 18  # up to which the accuracy of each is stated
_FLAT = 1e-3  # the curvature of a record beside the largest from which on it says little
_SMALL = 12  # up to this many unknowns a row, its information is written out as a matrix


class GLMJacobian(ReleaseJacobian):
    """The whitened Jacobian of a GLM with K outputs about the rows of its table, ``(n, d)``.

    ``derivatives`` returns ``r (m, K)``, ``a (m, K, K)`` and ``b (m, K, L)`` of a slice of rows, L
    the ``label_size``, with the sample weights folded in. The whitener is ``A = Φ^½ H⁻¹``, ``(P,
    P)``; the parameters are ordered with the feature as the slow and the output as the fast index,
    the intercept (released too, but multiplied by no data) last. ``near`` is the table as ``A``
    takes it: with columns that are far from zero shifted, and the same table where there are none.
    ``slope_error (n,)`` is the error of every record's slope; its rounding where not given.
    """

    # The model and its objective, where all its rows are here: it can then be refitted
    fit: FittedGLM | None = None
    states_accuracy = True

    def __init__(
        self,
        X: Array,
        coef: Array,
        *,
        intercept: bool,
        derivatives: Callable[[slice | Array], tuple[Array, Array, Array]],
        whitener: Whitener,
        target: Array,
        label_size: int,
        near: Array | None = None,
        slope_error: Array | None = None,
    ) -> None:
        self.X, self.coef, self.intercept = X, coef, intercept
        self.near = X if near is None else near
        self.derivatives, self.label_size = derivatives, label_size
        self.map, self.whitener = whitener, whitener.matrix
        self.target = target
        self.chunk = chunk_for(X)
        self.rows, self.features = int(X.shape[0]), int(X.shape[1])
        self.outputs = int(coef.shape[1])
        self.size = int(self.whitener.shape[1])
        self._slope_error = slope_error
        self._seen: Array | None = None

    def design(self, rows: slice | Array) -> Array:
        """Return the rows ``x̃`` of the design matrix, with the intercept's column of ones."""
        X = self.near[rows, :]
        if not self.intercept:
            return X
        xp = array_namespace(X)
        return xp.concat([X, xp.ones_like(X[:, :1])], axis=1)

    def design_times(self, rows: slice | Array, matrix: Array) -> Array:
        """Return ``X̃ M`` over some rows, for a matrix or a vector, without writing out ``X̃``."""
        out = self.near[rows, :] @ matrix[: self.features, ...]
        if self.intercept:
            out += matrix[self.features :, ...]
        return out

    def seen(self, rows: slice | Array) -> Array:
        """Return ``A x̃`` of some rows, for every output, ``(m, K, P)``."""
        if not self.map.precise:
            AX = self.design_times(rows, self._by_output(self.whitener))
            return array_namespace(AX).reshape(AX, (AX.shape[0], self.outputs, -1))
        if self._seen is not None:
            return self._seen[rows, ...]
        if self.rows * self.outputs * self.size <= _KEPT:
            self._seen = by_rows(self._precisely, self.rows, self.size, chunk=self.chunk)
            return self._seen[rows, ...]
        return self._precisely(rows)

    def _precisely(self, rows: slice | Array) -> Array:
        return self._precise_seen(rows).high

    def _precise_seen(self, rows: slice | Array) -> Double:
        xp = array_namespace(self.X)
        A = Double(self._by_output(self.whitener), self._by_output(self.map.low))
        AX = product(Double.of(self.design(rows)), A)
        return Double(*(xp.reshape(part, (part.shape[0], self.outputs, -1)) for part in AX))

    def _by_output(self, A: Array) -> Array:
        """Return a (P, P) whitener as ``(D, K P)``: from the design to the release."""
        xp = array_namespace(A)
        blocks = xp.reshape(A, (self.size, -1, self.outputs))
        return xp.reshape(xp.permute_dims(blocks, (1, 2, 0)), (blocks.shape[1], -1))

    def release_gram(self, rows: slice) -> Array:
        """Return ``Ξ_kl = x̃ᵀ C_kl x̃`` of some rows, ``(m, K, K)``."""
        AX = self.seen(rows)
        return AX @ array_namespace(AX).matrix_transpose(AX)

    # How exact ------------------------------------------------------------------------------

    @property
    def slope_sizes(self) -> Array:
        """``‖r‖`` of every record, ``(n,)``."""
        xp = array_namespace(self.X)

        def sizes(rows: slice) -> Array:
            r = self.derivatives(rows)[0]
            return xp.sqrt(xp.sum(r * r, axis=1))

        return by_rows(sizes, self.rows, self.outputs**2, chunk=self.chunk)

    @property
    def slope_errors(self) -> Array:
        """The error of ``r`` of every record, ``(n,)``."""
        if self._slope_error is not None:
            return self._slope_error
        return self.rounding * self.slope_sizes

    @property
    def rounding(self) -> float:
        """The rounding of the numbers that are computed with."""
        return float(array_namespace(self.X).finfo(self.X.dtype).eps)

    def columns_of(self, unknowns: Unknowns) -> Array:
        """Return ``A_V``: how unknown features move the release, but for ``r``, ``(P, t, K)``."""
        if unknowns.basis is not None and self.map.precise:
            return self._precise_columns(unknowns).high
        return unknowns.of(self._features_of(self.whitener), axis=1)

    def _features_of(self, A: Array) -> Array:
        xp = array_namespace(A)
        return xp.reshape(A, (self.size, -1, self.outputs))[:, : self.features, :]

    def _precise_columns(self, unknowns: Unknowns) -> Double:
        """Return ``A_V`` to twice the precision: directions may be small differences of columns."""
        xp = array_namespace(self.X)
        picked = replace(unknowns, basis=None)
        high, low = (picked.of(self._features_of(A), axis=1) for A in (self.whitener, self.map.low))
        if unknowns.basis is None:
            return Double(high, low)
        high, low = (xp.permute_dims(part, (0, 2, 1)) for part in (high, low))
        t = high.shape[2]
        basis = xp.asarray(unknowns.basis, dtype=high.dtype, device=high.device)
        found = product(
            Double(xp.reshape(high, (-1, t)), xp.reshape(low, (-1, t))), Double.of(basis)
        )
        shape = (self.size, self.outputs, -1)
        return Double(*(xp.permute_dims(xp.reshape(part, shape), (0, 2, 1)) for part in found))

    def reach(self, unknowns: Unknowns) -> float:
        """Return ``‖A_V‖_F``: how far the unknowns move the release, but for ``r``."""
        A_V = self.columns_of(unknowns)
        return math.sqrt(float(array_namespace(A_V).sum(A_V * A_V)))

    @property
    def exact_row_jacobians(self) -> bool:
        """Whether :meth:`row_jacobians` is more exact than products with the Jacobian."""
        return True

    @property
    def paired(self) -> bool:
        """Whether classes are compared with a record's own, before anything is rounded.

        Slopes sum to zero over the classes of softmax, so what a class and another have in common
        does not count. A weak penalty leaves much of that.
        """
        return self.outputs > 1 and self.map.precise

    def _own_class(self, rows: slice | Array) -> Array:
        return array_namespace(self.target).argmax(self.target[rows, :], axis=1)

    def _beside_own(self, rows: slice | Array) -> Array:
        """Return ``A x̃`` of every class less that of the record's own, ``(m, K, P)``."""
        xp = array_namespace(self.X)
        seen, own = self._precise_seen(rows), self._own_class(rows)
        m = xp.arange(own.shape[0])
        high, low = (part - part[m, own, :][:, None, :] for part in seen)
        return high + low

    def _columns_beside(self, unknowns: Unknowns, own: int) -> Array:
        """Return ``A_V`` of every class less that of one, ``(P, t, K)``."""
        high, low = (part - part[:, :, own : own + 1] for part in self._precise_columns(unknowns))
        return high + low

    def term_sizes(self, unknowns: Unknowns, rows: slice | Array) -> tuple[Array, Array]:
        """Return the norms of the terms that each column of a Jacobian is the sum of, ``(m, q)``.

        And the errors that those of the slopes put into them.
        """
        xp = array_namespace(self.X)
        r, B = self.slopes(unknowns, rows)
        t = unknowns.features(self.features)
        if self.paired:
            own = self._own_class(rows)
            beside = xp.stack(
                [
                    xp.sqrt(xp.sum(self._columns_beside(unknowns, y) ** 2, axis=0))
                    for y in range(self.outputs)
                ]
            )  # (own, t, K)
            direct = xp.sum(xp.abs(r)[:, None, :] * beside[own, :, :], axis=2)
            lengths = xp.sqrt(xp.sum(self._beside_own(rows) ** 2, axis=2))
            curve = xp.sum(xp.abs(B) * lengths[:, :, None], axis=1)
            error = self.rounding * direct
        else:
            direct = self.slope_sizes[rows, None] * self._column_reach(unknowns)[None, :]
            error = self.slope_errors[rows, None] * self._column_reach(unknowns)[None, :]
            curve = xp.zeros_like(B[:, 0, :])
            if self.outputs > 1:
                lengths = xp.sqrt(xp.sum(self.seen(rows) ** 2, axis=(1, 2)))
                curve = lengths[:, None] * xp.sqrt(xp.sum(B * B, axis=1))
        padding = xp.zeros_like(curve[:, t:])
        lost = self.curvature_errors(unknowns, rows)
        return (
            curve + xp.concat([direct, padding], axis=1),
            lost + xp.concat([error, padding], axis=1),
        )

    def curvature_errors(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return by how much the rounding of the records' curvatures may move a Jacobian's columns.

        ``(m, q)``. A relative change ``ε`` of every curvature changes ``v = H⁻¹u`` by at most
        ``ε √(vᵀHv)`` in the norm of ``H``, and each released number by its ``√(H⁻¹)_kk`` times
        that. For the column of a feature ``vᵀHv`` is ``(H⁻¹)_jj``; for ``u = x̃ ⊗ a w`` and a
        label's ``x̃ ⊗ b`` it is ``x̃ᵀH⁻¹x̃`` times the squares of ``a w`` and ``b``.
        """
        xp = array_namespace(self.X)
        r, a, _ = self.derivatives(rows)
        _, B = self.slopes(unknowns, rows)
        chosen = self._deviations(unknowns)
        leverage = self._leverages(xp.sum(xp.linalg.diagonal(a), axis=1), rows)[:, None]
        out = leverage * xp.sqrt(xp.sum(B * B, axis=1))
        slopes = xp.sqrt(xp.sum(r * r, axis=1))
        out[:, : chosen.shape[0]] += slopes[:, None] * chosen[None, :]
        return EPS * self.map.spread * out

    def _deviations(self, unknowns: Unknowns) -> Array:
        """Return ``√(H⁻¹)_jj`` of the unknown features, at most, ``(t,)``."""
        xp = array_namespace(self.X)
        if self.map.deviations is None:
            return self.zeros(unknowns.features(self.features))
        every = xp.reshape(self.map.deviations, (-1, self.outputs))[: self.features, :]
        every = xp.astype(xp.sqrt(xp.sum(every * every, axis=1)), self.X.dtype)
        chosen = replace(unknowns, basis=None).of(every)
        if unknowns.basis is None:
            return chosen
        return chosen @ xp.abs(xp.asarray(unknowns.basis, dtype=chosen.dtype, device=chosen.device))

    def _row_curvature_errors(self, unknowns: Unknowns) -> Array:
        """Return the same for whole rows of one output, ``(n,)``."""
        xp = array_namespace(self.X)
        r, a, b = self.derivatives(slice(0, self.rows))
        r, a, b = r[:, 0], a[:, 0, 0], b[:, 0, 0]
        if not self.map.spread:
            return xp.zeros_like(r)
        W, chosen = unknowns.of(self.coef), self._deviations(unknowns)
        out = xp.abs(r) * xp.sqrt(xp.sum(chosen * chosen))
        own = a * a * xp.sum(W * W) + (b * b if unknowns.label else 0.0)
        return (
            EPS * self.map.spread * (out + xp.sqrt(own) * self._leverages(a, slice(0, self.rows)))
        )

    def _leverages(self, a: Array, rows: slice | Array) -> Array:
        """Return ``√(x̃ᵀH⁻¹x̃)`` of some rows, at most: ``1/√a``, or less where that is much."""
        xp = array_namespace(self.X)
        safe = xp.where(a > 0, a, xp.ones_like(a))
        most = xp.where(a > 0, 1 / xp.sqrt(safe), xp.full_like(a, float("inf")))
        if self.map.deviations is None or bool(xp.all(a > _FLAT * xp.max(a))):
            return most
        every = xp.reshape(self.map.deviations, (-1, self.outputs))
        every = xp.astype(xp.sqrt(xp.sum(every * every, axis=1)), self.X.dtype)
        return xp.minimum(most, xp.abs(self.design(rows)) @ every)

    def row_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η, given the squares of it for every record."""
        part, error = self._row_terms_sizes(unknowns)
        return self._accuracy(squared, part, error)

    def _row_terms_sizes(self, unknowns: Unknowns) -> tuple[Array, Array]:
        xp = array_namespace(self.X)
        if self.outputs == 1:
            reach = self.reach(unknowns)
            error = reach * self.slope_errors + self._row_curvature_errors(unknowns)
            return reach * self.slope_sizes, error

        def sizes(rows: slice) -> Array:
            return xp.stack(
                [xp.sqrt(xp.sum(s * s, axis=1)) for s in self.term_sizes(unknowns, rows)], axis=1
            )

        both = by_rows(sizes, self.rows, self.row_width(unknowns), chunk=self.chunk)
        return both[:, 0], both[:, 1]

    def cell_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η, given the squares of it for every cell."""
        features = replace(unknowns, label=False)
        return self._accuracy(squared, *self.term_sizes(features, slice(0, self.rows)))

    def block_accuracy(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the relative error of η of a block, given the square of it."""
        xp = array_namespace(self.X)
        one = xp.asarray([1.0], dtype=xp.float64)
        part, error = self._row_terms_sizes(unknowns)
        total, off = (math.sqrt(float(xp.sum(sizes[rows] ** 2))) for sizes in (part, error))
        return float(self._accuracy(squared * one, total * one, off * one)[0])

    def _accuracy(
        self, squared: Array, part: Array, error: Array, share: float = NEGLIGIBLE
    ) -> Array:
        """Return the relative error of ``η``, which may be a small difference.

        The Jacobian is the sum of ``r A_V``, of norm ``part`` and off by ``error``, and of another
        term, whose norm is ``η + part`` at most. Squares of its entries lose to rounding the square
        of what cancels; where that is much, it was computed from the entries themselves. Of numbers
        that are next to nothing beside the largest, the error is relative to a share of that.
        """
        xp = array_namespace(squared)
        floor = share**2 * xp.max(squared) if squared.shape[0] else squared
        squared = xp.where(squared > floor, squared, floor + xp.zeros_like(squared))
        ratio = cancellation(squared, part)
        rounds = xp.where(ratio**2 > LOSSY, ratio, ratio**2) * (8 * self.rounding)
        eta = xp.sqrt(xp.where(squared > 0, squared, xp.ones_like(squared)))
        off = xp.where(squared > 0, error / eta, xp.zeros_like(ratio))
        return xp.where(squared > 0, self.map.accuracy * ratio + off + rounds, xp.zeros_like(off))

    def entry_accuracy(self, squared: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return the relative errors of the columns of whitened Jacobians, given their squares.

        Both ``(m, q)``, for some rows.
        """
        xp = array_namespace(self.X)
        part, error = self.term_sizes(unknowns, rows)
        # Each column by itself: its error beside its own size is what an inverse sees.
        columns = [
            self._accuracy(squared[:, j], part[:, j], error[:, j], share=0.0)[:, None]
            for j in range(squared.shape[1])
        ]
        return xp.concat(columns, axis=1)

    def mended(
        self, squared: Array, unknowns: Unknowns, part: Array, take: Callable[[Array], Array]
    ) -> Array:
        """Return answers about rows, those that are small differences computed without squares.

        ``take`` makes the answers of whitened Jacobians, ``(m, P, q)``.
        """
        xp = array_namespace(self.X)
        lossy = cancellation(squared, part) ** 2 > LOSSY if not self.paired else squared == squared
        if len(lossy.shape) == 2:
            lossy = xp.any(lossy, axis=1)
        which = xp.nonzero(lossy)[0]
        width = self.size * self.unknown_count(unknowns)
        for piece in row_slices(int(which.shape[0]), width, chunk=WIDE_CHUNK):
            squared[which[piece], ...] = take(self.row_jacobians(unknowns, which[piece]))
        return squared

    def _from_entries(self, unknowns: Unknowns, take: Callable[[Array], Array]) -> Array:
        """Return what ``take`` makes of the whitened Jacobians of all rows."""
        width = self.size * self.unknown_count(unknowns)
        return by_rows(
            lambda rows: take(self.row_jacobians(unknowns, rows)),
            self.rows,
            width,
            chunk=WIDE_CHUNK,
        )

    def mended_block(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the answer about a block, from the entries where it is a small difference."""
        xp = array_namespace(self.X)
        part = self.reach(unknowns) * math.sqrt(float(xp.sum(self.slope_sizes[rows] ** 2)))
        if not self.paired and squared > 0 and (1 + 2 * part / math.sqrt(squared)) ** 2 <= LOSSY:
            return squared
        total = self.zeros(self.size, self.size)
        width = self.size * self.unknown_count(unknowns)
        for piece in row_slices(rows.shape[0], width, chunk=WIDE_CHUNK):
            J = self.row_jacobians(unknowns, rows[piece])
            total += xp.sum(J @ xp.matrix_transpose(J), axis=0)
        return float(dense_largest(total[None, :, :])[0])

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the whitened Jacobians of some rows in full, ``(m, P, q)``."""
        xp = array_namespace(self.X)
        r, B = self.slopes(unknowns, rows)
        if self.paired:
            J = xp.matrix_transpose(self._beside_own(rows)) @ B
            own = self._own_class(rows)
            for y in range(self.outputs):
                mine = xp.nonzero(own == y)[0]
                beside = self._columns_beside(unknowns, y) @ r[mine, :].T  # (P, t, m)
                J[mine, :, : beside.shape[1]] += xp.permute_dims(beside, (2, 0, 1))
            return J
        A_V = self.columns_of(unknowns)
        J = xp.matrix_transpose(self.seen(rows)) @ B
        t = A_V.shape[1]
        direct = xp.reshape(A_V, (-1, self.outputs)) @ r.T  # (P t, m)
        J[:, :, :t] += xp.permute_dims(xp.reshape(direct, (self.size, t, -1)), (2, 0, 1))
        return J

    def _column_reach(self, unknowns: Unknowns) -> Array:
        xp = array_namespace(self.X)
        return xp.sqrt(xp.sum(self.columns_of(unknowns) ** 2, axis=(0, 2)))

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

        found = by_rows(traces, self.rows, self.row_width(unknowns), chunk=WIDE_CHUNK)
        part = self.reach(unknowns) * self.slope_sizes
        return self.mended(found, unknowns, part, lambda J: xp.sum(J * J, axis=(1, 2)))

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return the largest eigenvalue of the information about each row, ``(n,)``."""
        if self.paired:
            return self._from_entries(unknowns, largest_square)
        found = super().row_norms(unknowns)
        return self.mended(found, unknowns, self.reach(unknowns) * self.slope_sizes, largest_square)

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

        found = by_rows(diagonal, self.rows, self.row_width(unknowns), chunk=WIDE_CHUNK)
        part = self.slope_sizes[:, None] * self._column_reach(unknowns)[None, :]
        return self.mended(
            found, replace(unknowns, label=False), part, lambda J: xp.sum(J * J, axis=1)
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

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of the information about these unknowns of these rows."""
        found = 0.0 if self.paired else super().block_norm(unknowns, rows)
        return self.mended_block(found, unknowns, rows)

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
        both.fit = None  # two releases: a refit would have to change both
        stack = xp.concat([self.whitener, other.whitener], axis=0)
        accuracy = max(self.map.accuracy, other.map.accuracy)
        both.map = Whitener(xp.linalg.qr(stack, mode="reduced")[1], None, accuracy)
        both.whitener = both.map.matrix
        both._forget()
        return both

    def _forget(self) -> None:
        """Drop what was kept of the whitener; called where it changes."""
        self._seen = None

    def _pick(self, rows: Array, piece: slice) -> slice | Array:
        """Return a piece of the rows, as a slice (which copies nothing) where they are all."""
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


class _InformationTerms:
    """The terms from which the information about single rows is put together.

    Calling it with a slice of rows gives ``r (m, K)``, ``B (m, K, q)``, ``Ξ (m, K, K)`` and
    ``R (m, K, t)``; ``blocks (K, K, t, t)`` holds ``C_kl``, which no row changes.
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
    """The eigenvectors of ``A_V A_Vᵀ``, and what a row's ``A x̃`` is in terms of them."""

    unknowns: Unknowns  # which features
    delta: Array  # (k,), the eigenvalues, rising
    vectors: Array  # (P, t)
    coordinates: Array  # (P, t): x̃ ↦ the coordinates of A x̃
    whole: bool  # whether they span all of the release
    q: Array  # (k,): the coordinates of A_V w_V


@dataclass(frozen=True)
class BlockSums:
    """``Σ c Ax̃(Ax̃)ᵀ``, ``Σ a r Ax̃`` and ``Σ r²`` over a block of rows, which add up."""

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
    ``Σ c Ax̃(Ax̃)ᵀ``, ``Σ a r Ax̃`` and ``Σ r²``, so rows may come in any pieces, and nothing is
    larger than P×P. ``coef`` is of shape ``(d,)`` here.
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
        self.inverse_terms: SharedTerms | None = None

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
        """Return the Jacobian of the same release about other rows, with what was kept of it."""
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
        other._kept, other.inverse_terms = self._kept, self.inverse_terms
        return other

    @property
    def slope_sizes(self) -> Array:
        """``|r|`` of every record, ``(n,)``."""
        return array_namespace(self.X).abs(self.r)

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
            if self.map.precise:
                seen = self.seen(rows)[:, 0, :]
                p = seen @ xp.astype(basis.vectors, seen.dtype, copy=False)
                p = xp.astype(p, self.X.dtype, copy=False)
            else:
                p = self.design_times(rows, basis.coordinates)
            if not basis.whole:
                # An eigenvalue is even in this length, so that its cancellation does no harm.
                rest = lengths[rows] - xp.vecdot(p, p)
                rest = xp.sqrt(xp.where(rest > 0, rest, xp.zeros_like(rest)))
                p = xp.concat([rest[:, None], p], axis=1)
            return largest_eigenvalue(rho[rows], basis.delta, p, basis.q, c[rows], s[rows])

        found = by_rows(norms, self.rows, self.size, chunk=max(8 * CHUNK, self.chunk), what="rows")
        found = self._off_the_pole(found, rho * basis.delta[-1], unknowns)
        return self.mended(found, unknowns, self.reach(unknowns) * self.slope_sizes, largest_square)

    def _off_the_pole(self, found: Array, pole: Array, unknowns: Unknowns) -> Array:
        """Return norms, those next to the largest pole from the entries where that is cheap.

        Poles may lie so close together that the secular equation has lost half its digits there.
        """
        xp = array_namespace(self.X)
        which = xp.nonzero((found > 0) & (found <= (1 + _POLE) * pole))[0]
        count = self.unknown_count(unknowns)
        cost = float(which.shape[0]) * self.size * count * min(self.size, count)
        if which.shape[0] == 0 or cost > _POLE_WORK:
            return found
        for piece in row_slices(int(which.shape[0]), self.size * count, chunk=WIDE_CHUNK):
            found[which[piece]] = largest_square(self.row_jacobians(unknowns, which[piece]))
        return found

    def release_gram(self, rows: slice) -> Array:
        """Return ``‖A x̃‖²`` of some rows, ``(m, 1, 1)``."""
        return self._release_lengths()[rows, None, None]

    def _release_lengths(self) -> Array:
        """Return ``‖A x̃‖²`` of every row; kept, since every question about a row asks for it."""
        if self._lengths is None:
            xp = array_namespace(self.X)

            def squares(rows: slice) -> Array:
                AX = self.seen(rows)[:, 0, :]
                return xp.vecdot(AX, AX)

            self._lengths = by_rows(squares, self.rows, self.size, chunk=self.chunk)
        return self._lengths

    def _forget(self) -> None:
        super()._forget()
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
        self._kept = _Eigenbasis(unknowns, delta, U, A.T @ U, whole, q)
        return self._kept

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return ``r² tr(A_V A_Vᵀ) + c ‖Ax̃‖² + 2 a r (A_V w_V)·Ax̃`` for each row."""
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        c, s = self.rank_two(unknowns)
        every, Aw = slice(0, self.rows), A_V @ w_V
        if self.map.precise:
            slopes = self.seen(every)[:, 0, :] @ Aw
        else:
            slopes = self.design_times(every, A.T @ Aw)
        found = self.r**2 * xp.sum(A_V * A_V) + c * self._release_lengths() + 2 * s * slopes
        part = self.reach(unknowns) * self.slope_sizes
        return self.mended(found, unknowns, part, lambda J: xp.sum(J * J, axis=(1, 2)))

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return ``a²‖Ax̃‖² w_j² + 2 a r w_j z_j + r² C_jj`` with ``z = C x̃``, ``(n, t)``."""
        xp = array_namespace(self.X)
        A, A_V, w_V = self.restricted(unknowns)
        lengths, to_z = self._release_lengths(), None if self.map.precise else A.T @ A_V
        diagonal = xp.sum(A_V * A_V, axis=0)

        def cells(rows: slice) -> Array:
            precise = to_z is None
            z = self.seen(rows)[:, 0, :] @ A_V if precise else self.design_times(rows, to_z)
            slope = (self.a[rows] ** 2 * lengths[rows])[:, None] * (w_V * w_V)[None, :]
            slope += (2 * self.a[rows] * self.r[rows])[:, None] * w_V[None, :] * z
            slope += (self.r[rows] ** 2)[:, None] * diagonal[None, :]
            return xp.where(slope > 0, slope, xp.zeros_like(slope))

        found = by_rows(cells, self.rows, self.size, chunk=self.chunk)
        part = (4 / LOSSY * self.r**2)[:, None] * diagonal[None, :]
        if not bool(xp.any(found < part)):
            return found
        # Where the terms of the square cancel, the entries of J's column are squared instead.
        part = self.slope_sizes[:, None] * xp.sqrt(diagonal)[None, :]
        return self.mended(
            found, replace(unknowns, label=False), part, lambda J: xp.sum(J * J, axis=1)
        )

    def cell_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η of every cell; of many, of each row's smallest."""
        features = replace(unknowns, label=False)
        if self.rows * squared.shape[1] <= _FEW_CELLS:
            return super().cell_accuracy(squared, unknowns)
        xp = array_namespace(self.X)
        least = NEGLIGIBLE**2 * xp.max(squared) + xp.min(squared, axis=1)
        return self._accuracy(least, *self._row_terms_sizes(features))[:, None] + 0 * squared[:1, :]

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

    def inverses(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the diagonal of the inverse information about each row, and its errors."""
        if unknowns.label or self.unknown_count(unknowns) == 1 or self.map.precise:
            return super().inverses(unknowns)
        return inverse_diagonal(self, unknowns)

    def traces_of_inverses(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the trace of the inverse information about each row, and its errors, ``(n,)``."""
        if unknowns.label or self.unknown_count(unknowns) == 1 or self.map.precise:
            return super().traces_of_inverses(unknowns)
        return inverse_traces(self, unknowns)

    def inverse_work(self, unknowns: Unknowns) -> float:
        """Return about how many multiplications a row's inverse information takes."""
        if unknowns.label or self.map.precise:
            return super().inverse_work(unknowns)
        return float(self.size) * self.unknown_count(unknowns)

    # Blocks of the table ----------------------------------------------------------------------

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of ``Σ_i A G_i G_iᵀ Aᵀ`` over the rows: a P×P matrix."""
        found = self.norm_of(unknowns, self.block_sums(unknowns, rows))
        return self.mended_block(found, unknowns, rows)

    def block_sums(self, unknowns: Unknowns, rows: Array) -> BlockSums:
        """Return the three sums over the rows with ``c`` for these unknowns."""
        return self._sums(self.rank_two(unknowns)[0], rows)

    def norm_of(self, unknowns: Unknowns, sums: BlockSums) -> float:
        """Return the largest eigenvalue of what the release sees of a block with these sums."""
        _, A_V, w_V = self.restricted(unknowns)
        Aw, Ah = A_V @ w_V, sums.along
        total = sums.gram + Ah[:, None] * Aw[None, :] + Aw[:, None] * Ah[None, :]
        total += sums.spread * (A_V @ A_V.T)
        return float(dense_largest(total[None, :, :])[0])

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        xp = array_namespace(self.X)
        found = self.column_norms_of(attributes, self.column_sums(attributes, rows))
        part = math.sqrt(float(xp.sum(self.r[rows] ** 2))) * self._reaches(attributes)
        for k in xp.nonzero(cancellation(found, part) ** 2 > LOSSY)[0]:
            found[int(k)] = self.mended_block(float(found[k]), attributes[int(k)], rows)
        return found

    def column_accuracy(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the relative errors of η of each attribute over the rows."""
        xp = array_namespace(self.X)
        slopes, errors = self.slope_sizes[rows], self.slope_errors[rows]
        size, off = (math.sqrt(float(xp.sum(s * s))) for s in (slopes, errors))
        own = self.a[rows] * self._leverages(self.a, slice(0, self.rows))[rows]
        own = xp.sqrt(xp.sum(own * own))
        reach, wide = (
            self._reaches(attributes),
            xp.stack([xp.sum(self._deviations(u)) for u in attributes]),
        )
        W = xp.stack([xp.sqrt(xp.sum(u.of(self.w) ** 2)) for u in attributes])
        lost = EPS * self.map.spread * (size * wide + own * W)
        # Each by itself: what is little beside another column may be much in its own unit.
        return xp.concat(
            [
                self._accuracy(
                    squared[k : k + 1],
                    size * reach[k : k + 1],
                    off * reach[k : k + 1] + lost[k : k + 1],
                )
                for k in range(len(attributes))
            ]
        )

    def _reaches(self, attributes: list[Unknowns]) -> Array:
        """Return ``‖A_V‖_F`` of every attribute."""
        xp = array_namespace(self.X)
        squares = xp.sum(self.whitener[:, : self.features] ** 2, axis=0)
        plain = [u.basis is None for u in attributes]
        return xp.stack(
            [
                xp.sqrt(xp.sum(u.of(squares)))
                if simple
                else xp.asarray(self.reach(u), dtype=squares.dtype)
                for u, simple in zip(attributes, plain, strict=True)
            ]
        )

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
        delta, Q = xp.linalg.eigh((sums.gram + sums.gram.T) / 2)
        delta, h = xp.where(delta > 0, delta, xp.zeros_like(delta)), sums.along @ Q
        whitener = Q.T @ A
        out = self.zeros(len(attributes))
        single = {
            k: u.columns[0]
            for k, u in enumerate(attributes)
            if u.columns is not None and len(u.columns) == 1 and u.basis is None
        }
        for k in progress([k for k in range(len(attributes)) if k not in single], "attributes"):
            w = attributes[k].of(self.w)
            U = Q.T @ self.columns_of(attributes[k])[:, :, 0]
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
        _, A_V, w_V = self.restricted(unknowns)
        constant = xp.sum(xp.linalg.diagonal(sums.gram)) * w_V**2
        spread = sums.spread * xp.sum(A_V**2, axis=0)
        found = constant + 2 * w_V * (A_V.T @ sums.along) + spread
        part = math.sqrt(float(sums.spread)) * self._column_reach(unknowns)
        if bool(xp.any(cancellation(found, part) ** 2 > LOSSY)):
            return super()._cell_sums(unknowns, rows)
        return found

    def _sums(self, c: Array, rows: Array) -> BlockSums:
        """Return the sums over some rows with ``c`` of every row of the table.

        No more than a chunk of the rows is copied; all of them are read in place.
        """
        xp = array_namespace(self.X)
        s = self.a * self.r
        gram: Array = 0.0
        along: Array = 0.0
        whole = rows.shape[0] == self.rows
        if self.map.precise:
            for piece in row_slices(rows.shape[0], self.size, chunk=self.chunk):
                here = piece if whole else rows[piece]
                AX = self.seen(here)[:, 0, :]
                gram, along = gram + weighted_gram(AX, c[here]), along + AX.T @ s[here]
            return BlockSums(gram, along, xp.sum(self.r[rows] ** 2))
        if whole:
            gram, along = bordered_gram(self.near, c, self.intercept), self.near.T @ s
        else:
            for piece in row_slices(rows.shape[0], self.size, chunk=self.chunk):
                here = rows[piece]
                X = self.near[here, :]
                gram = gram + bordered_gram(X, c[here], self.intercept)
                along = along + X.T @ s[here]
        if self.intercept:
            along = xp.concat([along, xp.reshape(xp.sum(s[rows]), (1,))])
        A = self.whitener
        return BlockSums(A @ gram @ A.T, A @ along, xp.sum(self.r[rows] ** 2))

    # What the methods above have in common ----------------------------------------------------

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


def cancellation(squared: Array, part: Array) -> Array:
    """Return how many times larger than η the terms are, at most, whose sum it is the norm of."""
    xp = array_namespace(squared)
    eta = xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))
    # Of nothing but zeros nothing cancels.
    safe = xp.where(eta > 0, eta, xp.ones_like(eta))
    ratio = 1 + 2 * part / safe
    return xp.where(
        eta > 0, ratio, xp.where(part > 0, xp.full_like(ratio, 1e8), xp.ones_like(ratio))
    )


def largest_square(J: Array) -> Array:
    """Return the square of the largest singular value of each of some matrices, ``(m,)``."""
    xp = array_namespace(J)
    return xp.linalg.svdvals(J)[:, 0] ** 2
