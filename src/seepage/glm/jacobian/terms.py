"""What a GLM's whitened Jacobian is made of, and how exact each part is.

In the notation of :mod:`seepage.glm.jacobian.operator`, the whitened Jacobian of a record is ::

    A G_i = [ r_i A_V + A x̃_i a_i Wᵀ ,  A x̃_i b_i ]

Here are its parts, products of records with the whitener (in twice the precision where that is
known so), their sizes and the errors they inherit: what the operator's answers, the closed form of
the inverse and the statements of accuracy have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from array_api_compat import array_namespace

from seepage.core.jacobian import ReleaseJacobian
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.objective import norm
from seepage.glm.jacobian.optimum import Whitener
from seepage.support.chunks import by_rows, chunk_for
from seepage.support.double_double import Double, product
from seepage.tables.source import Array

# The share of its terms' squares that a square must keep; below it, the entries themselves are
# used.
CANCELLED = 4e-6
NEGLIGIBLE = 1e-8  # relative to the largest number of a view
FEW_CELLS = 1 << 18  # up to which each accuracy is stated and every row examined
FLAT = 1e-3  # a record's curvature, relative to the largest, below which it says little
_KEPT = 1 << 25  # numbers of the release that are kept where they are costly


class JacobianTerms(ReleaseJacobian):
    """The parts of the whitened Jacobian of a GLM with K outputs about its table, ``(n, d)``.

    ``derivatives`` returns ``r (m, K)``, ``a (m, K, K)`` and ``b (m, K, L)`` of a slice of rows, L
    the ``label_size``, with the sample weights folded in. The whitener is ``A = Φ^½ H⁻¹``, ``(P,
    P)``; the parameters are ordered with the feature as the slow and the output as the fast index,
    the intercept (released too, but multiplied by no data) last. ``near`` is the table as ``A``
    takes it: with columns that are far from zero shifted, and the same table where there are none.
    ``slope_error (n,)`` is the error of every record's slope; its rounding if not given.
    """

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
        self.rounding = float(array_namespace(X).finfo(X.dtype).eps)
        self._slope_error = slope_error
        self._seen: Array | None = None
        self._slope_error_size: float | None = None

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
            AX = self.design_times(rows, self.by_output(self.whitener))
            return array_namespace(AX).reshape(AX, (AX.shape[0], self.outputs, -1))
        if self._seen is not None:
            return self._seen[rows, ...]
        if self.rows * self.outputs * self.size <= _KEPT:
            self._seen = by_rows(
                lambda piece: seen_precisely(self, piece).high,
                self.rows,
                self.size,
                chunk=self.chunk,
            )
            return self._seen[rows, ...]
        return seen_precisely(self, rows).high

    def by_output(self, A: Array) -> Array:
        """Return a (P, P) whitener as ``(D, K P)``: from the design to the release."""
        xp = array_namespace(A)
        blocks = xp.reshape(A, (self.size, -1, self.outputs))
        return xp.reshape(xp.permute_dims(blocks, (1, 2, 0)), (blocks.shape[1], -1))

    def columns_of(self, unknowns: Unknowns) -> Array:
        """Return ``A_V``: how unknown features move the release, up to ``r``, ``(P, t, K)``."""
        if unknowns.basis is not None and self.map.precise:
            return columns_precisely(self, unknowns).high
        return unknowns.of(self.features_of(self.whitener), axis=1)

    def features_of(self, A: Array) -> Array:
        """Return the columns of a (P, P) whitener that are data, ``(P, d, K)``."""
        xp = array_namespace(A)
        return xp.reshape(A, (self.size, -1, self.outputs))[:, : self.features, :]

    def reach(self, unknowns: Unknowns) -> float:
        """Return ``‖A_V‖_F``: how far the unknowns move the release, up to ``r``."""
        return norm(self.columns_of(unknowns))

    def column_reach(self, unknowns: Unknowns) -> Array:
        """Return how far each unknown feature moves the release, up to ``r``, ``(t,)``."""
        xp = array_namespace(self.X)
        return xp.sqrt(xp.sum(self.columns_of(unknowns) ** 2, axis=(0, 2)))

    @property
    def paired(self) -> bool:
        """Whether classes are compared with a record's own class before anything is rounded.

        Slopes sum to zero over the classes of softmax, so what two classes have in common does not
        count; with a weak penalty that is much.
        """
        return self.outputs > 1 and self.map.precise

    def slopes(self, unknowns: Unknowns, rows: slice | Array) -> tuple[Array, Array]:
        """Return ``r (m, K)`` and ``B = [a Wᵀ, b] (m, K, q)`` for the unknowns."""
        xp = array_namespace(self.X)
        r, a, b = self.derivatives(rows)
        B = a @ unknowns.of(self.coef).T
        return r, xp.concat([B, b], axis=2) if unknowns.label else B

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the whitened Jacobians of some rows in full, ``(m, P, q)``."""
        if self.paired:
            return paired_jacobians(self, unknowns, rows)
        xp = array_namespace(self.X)
        r, B = self.slopes(unknowns, rows)
        A_V = self.columns_of(unknowns)
        J = xp.matrix_transpose(self.seen(rows)) @ B
        t = A_V.shape[1]
        direct = xp.reshape(A_V, (-1, self.outputs)) @ r.T  # (P t, m)
        J[:, :, :t] += xp.permute_dims(xp.reshape(direct, (self.size, t, -1)), (2, 0, 1))
        return J

    def row_width(self, unknowns: Unknowns) -> int:
        """Return how many numbers the work on one row keeps in memory."""
        return self.unknown_count(unknowns) ** 2 + self.size * self.outputs

    # Sizes and errors ---------------------------------------------------------------------------

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

    def coefficient_sizes(self, unknowns: Unknowns) -> Array:
        """Return ``|w_V|`` and the errors of ``w_V`` in units of ε, for ``a w``, ``(t, K)``."""
        xp = array_namespace(self.X)
        sizes = xp.abs(self.coef)
        return self.spread_over(sizes, unknowns) + self.coefficient_errors(unknowns)[:, None]

    def coefficient_errors(self, unknowns: Unknowns) -> Array:
        """Return upper bounds on the errors of ``w_V`` in units of ε, ``(t,)``; one output only.

        At the minimiser the slopes sum to zero. Their errors ``e`` move ``w_j`` by at most
        ``√(vᵀH'v Σ e²/a)``, ``v = H⁻¹u_j``: the deviation of the feature times a number common to
        all records. A coefficient next to zero may be no more than that.
        """
        if self.outputs > 1 or self.map.coefficient_deviations is None or not self.map.spread:
            return self.zeros(unknowns.features(self.features))
        if self._slope_error_size is None:
            xp = array_namespace(self.X)
            a = self.derivatives(slice(0, self.rows))[1][:, 0, 0]
            safe = xp.where(a > 0, a, xp.ones_like(a))
            # The errors of the slopes when the minimiser was found, not those known since.
            lost = self.slope_errors + self.rounding * a
            errors = xp.where(a > 0, lost**2 / safe, xp.zeros_like(a))
            self._slope_error_size = math.sqrt(float(xp.sum(errors))) / self.rounding
        return self._slope_error_size * self.spread_over(self.map.coefficient_deviations, unknowns)

    def deviations(self, unknowns: Unknowns) -> Array:
        """Return upper bounds on the deviations of the unknown features, ``(t,)``."""
        if self.map.deviations is None:
            return self.zeros(unknowns.features(self.features))
        return self.spread_over(self.map.deviations, unknowns)

    def spread_over(self, sizes: Array, unknowns: Unknowns) -> Array:
        """Return bounds on sizes of the unknown features, from those of all, ``(D, …)``."""
        xp = array_namespace(self.X)
        every = xp.astype(sizes[: self.features, ...], self.X.dtype, copy=False)
        if unknowns.basis is None:
            return unknowns.of(every)
        chosen = replace(unknowns, basis=None).of(every)
        basis = xp.abs(xp.asarray(unknowns.basis, dtype=chosen.dtype, device=chosen.device))
        return xp.tensordot(basis, chosen, axes=((0,), (0,)))

    def leverages(self, a: Array, rows: slice | Array) -> Array:
        """Return upper bounds on ``√(x̃ᵀH⁻¹x̃)`` of some rows: ``1/√a``, or less where that is large.

        ``Σ|x̃_j|`` times the deviations is another bound, small for a row that is small relative to
        others. It is computed for all rows of a small table, and otherwise for the flat ones.
        """
        xp = array_namespace(self.X)
        safe = xp.where(a > 0, a, xp.ones_like(a))
        most = xp.where(a > 0, 1 / xp.sqrt(safe), xp.full_like(a, float("inf")))
        small = self.rows * self.features <= FEW_CELLS
        flat = xp.nonzero(a <= (math.inf if small else FLAT * xp.max(a)))[0]
        if self.map.deviations is None or flat.shape[0] == 0:
            return most
        every = xp.astype(self.map.deviations, self.X.dtype, copy=False)
        where = xp.arange(self.rows, device=self.X.device)[rows][flat]
        most[flat] = xp.minimum(most[flat], xp.abs(self.design(where)) @ every)
        return most

    def relative_errors(
        self,
        squared: Array,
        part: Array,
        error: Array,
        share: float = NEGLIGIBLE,
        from_entries: bool = True,
    ) -> Array:
        """Return the relative error of ``η``, which may be a small difference.

        The Jacobian is the sum of ``r A_V``, of norm ``part`` with the error ``error``, and another
        term of norm at most ``η + part``. Squares of its entries lose to rounding the square of
        what cancels; where that is much, η was computed from the entries themselves, unless these
        were not at hand. For numbers tiny relative to the largest, the error is relative to a share
        of the largest.
        """
        xp = array_namespace(squared)
        floor = share**2 * xp.max(squared) if squared.shape[0] else squared
        squared = xp.where(squared > floor, squared, floor + xp.zeros_like(squared))
        eta = xp.sqrt(xp.where(squared > 0, squared, xp.ones_like(squared)))
        ratio = 1 + 2 * part / eta
        cancelled = from_entries & (squared < CANCELLED * part**2)
        rounds = xp.where(cancelled, ratio, ratio**2) * (8 * self.rounding)
        errors = self.map.accuracy * ratio + error / eta + rounds
        # Among zeros nothing cancels.
        return xp.where(squared > 0, errors, xp.zeros_like(errors))


# Products in twice the precision ------------------------------------------------------------------


def seen_precisely(terms: JacobianTerms, rows: slice | Array) -> Double:
    """Return ``A x̃`` of some rows, for every output, ``(m, K, P)``."""
    xp = array_namespace(terms.X)
    A = Double(terms.by_output(terms.whitener), terms.by_output(terms.map.low))
    AX = product(Double.of(terms.design(rows)), A)
    return Double(*(xp.reshape(part, (part.shape[0], terms.outputs, -1)) for part in AX))


def columns_precisely(terms: JacobianTerms, unknowns: Unknowns) -> Double:
    """Return ``A_V``, ``(P, t, K)``: directions may be small differences of columns."""
    xp = array_namespace(terms.X)
    picked = replace(unknowns, basis=None)
    high, low = (picked.of(terms.features_of(A), axis=1) for A in (terms.whitener, terms.map.low))
    if unknowns.basis is None:
        return Double(high, low)
    high, low = (xp.permute_dims(part, (0, 2, 1)) for part in (high, low))
    t = high.shape[2]
    basis = xp.asarray(unknowns.basis, dtype=high.dtype, device=high.device)
    along_basis = product(
        Double(xp.reshape(high, (-1, t)), xp.reshape(low, (-1, t))), Double.of(basis)
    )
    shape = (terms.size, terms.outputs, -1)
    return Double(*(xp.permute_dims(xp.reshape(part, shape), (0, 2, 1)) for part in along_basis))


# Slopes sum to zero over the classes of softmax, so what two classes have in common does not count;
# with a weak penalty that is much, so classes are compared with a record's own before anything is
# rounded.


def paired_jacobians(terms: JacobianTerms, unknowns: Unknowns, rows: slice | Array) -> Array:
    """Return the whitened Jacobians of some rows of several classes in full, ``(m, P, q)``."""
    xp = array_namespace(terms.X)
    r, B = terms.slopes(unknowns, rows)
    J = xp.matrix_transpose(_beside_own(terms, rows)) @ B
    own = _own_class(terms, rows)
    for y in range(terms.outputs):
        mine = xp.nonzero(own == y)[0]
        beside = _columns_beside(terms, unknowns, y) @ r[mine, :].T  # (P, t, m)
        J[mine, :, : beside.shape[1]] += xp.permute_dims(beside, (2, 0, 1))
    return J


def paired_sizes(
    terms: JacobianTerms, unknowns: Unknowns, rows: slice | Array
) -> tuple[Array, Array]:
    """Return the norms of both terms of each column of these Jacobians, ``(m, t)``, ``(m, q)``."""
    xp = array_namespace(terms.X)
    r, B = terms.slopes(unknowns, rows)
    beside = xp.stack(
        [
            xp.sqrt(xp.sum(_columns_beside(terms, unknowns, y) ** 2, axis=0))
            for y in range(terms.outputs)
        ]
    )  # (own, t, K)
    own = _own_class(terms, rows)
    direct = xp.sum(xp.abs(r)[:, None, :] * beside[own, :, :], axis=2)
    lengths = xp.sqrt(xp.sum(_beside_own(terms, rows) ** 2, axis=2))
    return direct, xp.sum(xp.abs(B) * lengths[:, :, None], axis=1)


def _own_class(terms: JacobianTerms, rows: slice | Array) -> Array:
    return array_namespace(terms.target).argmax(terms.target[rows, :], axis=1)


def _beside_own(terms: JacobianTerms, rows: slice | Array) -> Array:
    """Return ``A x̃`` of every class less that of the record's own, ``(m, K, P)``."""
    seen, own = seen_precisely(terms, rows), _own_class(terms, rows)
    m = array_namespace(terms.X).arange(own.shape[0])
    high, low = (part - part[m, own, :][:, None, :] for part in seen)
    return high + low


def _columns_beside(terms: JacobianTerms, unknowns: Unknowns, own: int) -> Array:
    """Return ``A_V`` of every class less that of one, ``(P, t, K)``."""
    high, low = (part - part[:, :, own : own + 1] for part in columns_precisely(terms, unknowns))
    return high + low
