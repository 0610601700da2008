"""The parts of a GLM's whitened Jacobian: products of records with the whitener.

In the notation of :mod:`seepage.glm.jacobian.operator`, the whitened Jacobian of a record is::

    A G_i = [ r_i A_V + A x̃_i a_i Wᵀ ,  A x̃_i b_i ]

If the Hessian is ill-conditioned, ``A`` is stored in double the working precision, and products
with it are rounded only at the end. This module handles both cases, so callers can use ``A x̃`` and
``A_V`` at either precision.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

from array_api_compat import array_namespace, is_numpy_array

from seepage.core.jacobian import Unknowns
from seepage.glm.jacobian.optimum import Whitener
from seepage.support.chunks import by_rows, chunk_for
from seepage.support.double_double import Double, product
from seepage.tables.source import Array


class JacobianTerms:
    """The parts of the whitened Jacobian of a GLM with K outputs, for a table ``(n, d)``.

    For a slice of rows, ``derivatives`` returns ``r (m, K)``, ``a (m, K, K)`` and ``b (m, K, L)``,
    including the sample weights; L is the ``label_size``. The whitener is ``A = Φ^½ H⁻¹``, ``(P,
    P)``. In the order of the parameters, the output varies fastest. The intercept is last; it is
    released too, but not multiplied by data. ``near`` is the table to which ``A`` applies: columns
    far from zero are shifted. If there are no such columns, it is the original table. ``slope_error
    (n,)`` is the error of every record's slope, by default its rounding error. ``kept`` caches
    results for all records of the release, in memory or in chunks.
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
        kept: dict[str, Any] | None = None,
    ) -> None:
        self.X, self.coef, self.intercept = X, coef, intercept
        self.near = X if near is None else near
        self.derivatives, self.label_size = derivatives, label_size
        self.map, self.whitener = whitener, whitener.matrix
        self.target, self.slope_error = target, slope_error
        self.kept: dict[str, Any] = {} if kept is None else kept
        self.chunk = chunk_for(X)
        self.rows, self.features = int(X.shape[0]), int(X.shape[1])
        self.outputs = int(coef.shape[1])
        self.size = int(self.whitener.shape[1])

    def changed(self, **others: Any) -> JacobianTerms:
        """Return a copy with these attributes replaced, and without cached results."""
        other = copy(self)
        other.__dict__.update(others, kept={})
        other.forget()
        return other

    def forget(self) -> None:
        """Clear the cached results."""
        self.kept.clear()
        for name in ("_products", "squared_lengths", "slope_sizes"):
            self.__dict__.pop(name, None)

    def keep(self, name: str, unknowns: Unknowns, make: Callable[[Unknowns], Any]) -> Any:
        """Return a cached value that depends on the unknown features but not on any record."""
        asked, value = self.kept.get(name, (None, None))
        if asked is None or not asked.same_features(unknowns):
            value = make(unknowns)
            self.kept[name] = unknowns, value
        return value

    # Records ------------------------------------------------------------------------------------

    def design(self, rows: slice | Array) -> Array:
        """Return the rows ``x̃`` of the design matrix, including the intercept's column of ones."""
        X = self.near[rows, :]
        if not self.intercept:
            return X
        xp = array_namespace(X)
        return xp.concat([X, xp.ones_like(X[:, :1])], axis=1)

    def design_times(self, rows: slice | Array, matrix: Array) -> Array:
        """Return ``X̃ M`` for these rows and a matrix or vector ``M``, without forming ``X̃``."""
        out = self.near[rows, :] @ matrix[: self.features, ...]
        if self.intercept:
            out += matrix[self.features :, ...]
        return out

    def slopes(self, unknowns: Unknowns, rows: slice | Array) -> tuple[Array, Array]:
        """Return ``r (m, K)`` and ``B = [a Wᵀ, b] (m, K, q)`` for the unknowns."""
        xp = array_namespace(self.X)
        r, a, b = self.derivatives(rows)
        B = a @ unknowns.of(self.coef).T
        return r, xp.concat([B, b], axis=2) if unknowns.label else B

    @cached_property
    def slope_sizes(self) -> Array:
        """``‖r‖`` of every record, ``(n,)``."""
        xp = array_namespace(self.X)

        def sizes(rows: slice) -> Array:
            r = self.derivatives(rows)[0]
            return xp.abs(r[:, 0]) if self.outputs == 1 else xp.sqrt(xp.sum(r * r, axis=1))

        return by_rows(sizes, self.rows, self.outputs**2, chunk=self.chunk)

    # Products with the whitener -----------------------------------------------------------------

    def lifted(self, M: Array) -> Array:
        """Return ``AᵀM`` for ``M (P, k)``, or ``M`` if ``A`` is in double the working precision."""
        if self.map.precise:
            return M
        return array_namespace(M).reshape(self.whitener.T @ M, (self.size // self.outputs, -1))

    def seen_along(self, rows: slice | Array, lifted: Array) -> Array:
        """Return ``(A x̃)ᵀM`` for rows and every output, ``(m, K, k)``; see :meth:`lifted`."""
        xp = array_namespace(self.X)
        if not self.map.precise:
            products = self.design_times(rows, lifted)
            return xp.reshape(products, (products.shape[0], self.outputs, -1))
        AX = self.seen(rows)
        products = AX @ xp.astype(lifted, AX.dtype, copy=False)
        return xp.astype(products, self.X.dtype, copy=False)

    def seen(self, rows: slice | Array) -> Array:
        """Return ``A x̃`` for these rows and every output, of shape ``(m, K, P)``."""
        if self.map.precise:
            few = self.rows * self.outputs * self.size <= 1 << 25  # numbers worth keeping
            return self._products[rows, ...] if few else seen_precisely(self, rows).high
        xp = array_namespace(self.X)
        AX = self.design_times(rows, xp.reshape(self.whitener.T, (-1, self.outputs * self.size)))
        return xp.reshape(AX, (AX.shape[0], self.outputs, -1))

    @cached_property
    def _products(self) -> Array:
        """``A x̃`` for all rows, each rounded once; cached, since it is costly and often used."""

        def high(piece: slice) -> Array:
            return seen_precisely(self, piece).high

        return by_rows(high, self.rows, self.size, chunk=self.chunk)

    @cached_property
    def squared_lengths(self) -> Array:
        """``‖A x̃‖²`` of every row, for one output; cached, since it is often used."""
        xp = array_namespace(self.X)

        def squares(rows: slice) -> Array:
            AX = self.seen(rows)[:, 0, :]
            return xp.vecdot(AX, AX)

        threads = is_numpy_array(self.X) and not self.map.precise
        return by_rows(squares, self.rows, self.size, chunk=self.chunk // 4, threads=threads)

    def seen_gram(self, rows: slice) -> Array:
        """Return ``Ξ_kl = x̃ᵀ C_kl x̃`` of these rows, ``(m, K, K)``."""
        if self.outputs == 1:
            return self.squared_lengths[rows, None, None]
        AX = self.seen(rows)
        return AX @ array_namespace(AX).matrix_transpose(AX)

    def seen_sum(self, rows: slice | Array, weights: Array) -> Array:
        """Return ``A Σ_i x̃_i ⊗ weights_i`` over these rows, with weights ``(m, K)``: ``(P,)``."""
        xp = array_namespace(self.X)
        if self.map.precise:
            AX = xp.matrix_transpose(self.seen(rows))
            return xp.sum(AX @ weights[:, :, None], axis=(0, 2))
        total = self.near[rows, :].T @ weights
        if self.intercept:
            total = xp.concat([total, xp.sum(weights, axis=0)[None, :]], axis=0)
        return self.whitener @ xp.reshape(total, (-1,))

    def columns_of(self, unknowns: Unknowns) -> Array:
        """Return ``A_V``: the effect of the unknown features, divided by ``r``, ``(P, t, K)``."""
        if unknowns.basis is not None and self.map.precise:
            return columns_precisely(self, unknowns).high
        return unknowns.of(self.features_of(self.whitener), axis=1)

    def features_of(self, A: Array) -> Array:
        """Return the data columns of a (P, P) whitener, of shape ``(P, d, K)``."""
        xp = array_namespace(A)
        return xp.reshape(A, (self.size, -1, self.outputs))[:, : self.features, :]

    def column_reach(self, unknowns: Unknowns) -> Array:
        """Return the norm of each unknown feature's effect, up to the factor ``r``, ``(t,)``."""
        xp = array_namespace(self.X)
        return xp.sqrt(xp.sum(self.columns_of(unknowns) ** 2, axis=(0, 2)))

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the full whitened Jacobians of these rows, ``(m, P, q)``."""
        xp = array_namespace(self.X)
        r, B = self.slopes(unknowns, rows)
        A_V = self.columns_of(unknowns)
        J = xp.matrix_transpose(self.seen(rows)) @ B
        t = A_V.shape[1]
        direct = xp.reshape(A_V, (-1, self.outputs)) @ r.T  # (P t, m)
        J[:, :, :t] += xp.permute_dims(xp.reshape(direct, (self.size, t, -1)), (2, 0, 1))
        return J

    def zeros(self, *shape: int) -> Array:
        """Return zeros of this shape, with the table's data type and device."""
        xp = array_namespace(self.X)
        return xp.zeros(shape, dtype=self.X.dtype, device=self.X.device)


# Products in twice the precision ------------------------------------------------------------------


def seen_precisely(terms: JacobianTerms, rows: slice | Array) -> Double:
    """Return ``A x̃`` of rows and outputs, ``(m, K, P)``, in double the working precision."""
    xp = array_namespace(terms.X)
    wide = (-1, terms.outputs * terms.size)  # from the design to the release of every output
    low: Array = terms.map.low
    A = Double(*(xp.reshape(part.T, wide) for part in (terms.whitener, low)))
    AX = product(Double.of(terms.design(rows)), A)
    return Double(*(xp.reshape(part, (part.shape[0], terms.outputs, -1)) for part in AX))


def columns_precisely(terms: JacobianTerms, unknowns: Unknowns) -> Double:
    """Return ``A_V (P, t, K)`` before rounding: directions may be small differences of columns."""
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


class PairedTerms:
    """Jacobian terms of several classes: differences from the record's own class, before rounding.

    The slopes of softmax sum to zero over the classes, so the common part of the classes cancels.
    With a weak penalty this part is large, and rounding before the subtraction would lose all
    precision.
    """

    def __init__(self, terms: JacobianTerms) -> None:
        self.terms = terms

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the full whitened Jacobians of these rows, ``(m, P, q)``."""
        xp = array_namespace(self.terms.X)
        r, B = self.terms.slopes(unknowns, rows)
        J = xp.matrix_transpose(self._seen(rows)) @ B
        own = self.own_class(rows)
        for y in range(self.terms.outputs):
            mine = xp.nonzero(own == y)[0]
            direct = self._columns(unknowns, y) @ r[mine, :].T  # (P, t, m)
            J[mine, :, : direct.shape[1]] += xp.permute_dims(direct, (2, 0, 1))
        return J

    def sizes(self, unknowns: Unknowns, rows: slice | Array) -> tuple[Array, Array]:
        """Return the norms of both terms for each column, of shape ``(m, t)`` and ``(m, q)``."""
        xp = array_namespace(self.terms.X)
        r, B = self.terms.slopes(unknowns, rows)
        by_class = [self._columns(unknowns, y) for y in range(self.terms.outputs)]
        reach = xp.stack([xp.sqrt(xp.sum(A_V**2, axis=0)) for A_V in by_class])  # (own, t, K)
        direct = xp.sum(xp.abs(r)[:, None, :] * reach[self.own_class(rows), :, :], axis=2)
        lengths = xp.sqrt(xp.sum(self._seen(rows) ** 2, axis=2))
        return direct, xp.sum(xp.abs(B) * lengths[:, :, None], axis=1)

    def own_class(self, rows: slice | Array) -> Array:
        """Return the class position of each record."""
        target = self.terms.target
        return array_namespace(target).argmax(target[rows, :], axis=1)

    def _seen(self, rows: slice | Array) -> Array:
        """Return ``A x̃`` for every class minus that for the record's own class, ``(m, K, P)``."""
        seen, own = seen_precisely(self.terms, rows), self.own_class(rows)
        m = array_namespace(own).arange(own.shape[0])
        high, low = (part - part[m, own, :][:, None, :] for part in seen)
        return high + low

    def _columns(self, unknowns: Unknowns, own: int) -> Array:
        """Return ``A_V`` for every class minus that for one class, of shape ``(P, t, K)``."""
        columns = columns_precisely(self.terms, unknowns)
        high, low = (part - part[:, :, own : own + 1] for part in columns)
        return high + low
