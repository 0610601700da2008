"""The parts of a GLM's whitened Jacobian, and the accuracy of results computed from them.

In the notation of :mod:`seepage.glm.jacobian.operator`, the whitened Jacobian of a record is::

    A G_i = [ r_i A_V + A x̃_i a_i Wᵀ ,  A x̃_i b_i ]

If the Hessian is ill-conditioned, ``A`` is stored in double the working precision, and products
with it are rounded only at the end. This module handles both cases, so callers can use ``A x̃`` and
``A_V`` at either precision.

A record's Jacobian is the sum of ``r A_V`` and a multiple of ``A x̃``, given by the record's
curvature and label slope. Errors of the slope, the whitener and the rounded curvatures affect both
terms. Their sum may be much smaller than either term, which increases the sum's relative error
accordingly (:class:`GLMAccuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from array_api_compat import array_namespace, is_numpy_array

from seepage.core.jacobian import (
    AnswerAccuracy,
    Unknowns,
)
from seepage.glm.fitting.objective import norm
from seepage.glm.jacobian.optimum import Whitener
from seepage.support.chunks import by_rows, chunk_for, row_slices
from seepage.support.double_double import EPS, Double, product
from seepage.tables.source import Array

# The share of its terms' squares that a square must keep to be exact; below it, the entries
# themselves are used.
CANCELLED = 4e-6
FINE = 1e-8  # error up to which one bound for all numbers of a view suffices


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
        # Whether products with the whitener are in double the working precision
        self.precise = whitener.low is not None
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
        for name in ("_products", "_of_all", "squared_lengths", "slope_sizes"):
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
        # A block's norm asks for the same records many times.
        few = isinstance(rows, slice) and self.outputs > 1 and self.rows * self.size <= 1 << 20
        r, a, b = (v[rows, ...] for v in self._of_all) if few else self.derivatives(rows)
        B = a @ unknowns.of(self.coef).T
        return r, xp.concat([B, b], axis=2) if unknowns.label else B

    @cached_property
    def _of_all(self) -> tuple[Array, Array, Array]:
        """The derivatives of all rows; cached if there are few."""
        return self.derivatives(slice(0, self.rows))

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
        if self.precise:
            return M
        return array_namespace(M).reshape(self.whitener.T @ M, (self.size // self.outputs, -1))

    def seen_along(self, rows: slice | Array, lifted: Array) -> Array:
        """Return ``(A x̃)ᵀM`` for rows and every output, ``(m, K, k)``; see :meth:`lifted`."""
        xp = array_namespace(self.X)
        if not self.precise:
            products = self.design_times(rows, lifted)
            return xp.reshape(products, (products.shape[0], self.outputs, -1))
        AX = self.seen(rows)
        products = AX @ xp.astype(lifted, AX.dtype, copy=False)
        return xp.astype(products, self.X.dtype, copy=False)

    def seen(self, rows: slice | Array) -> Array:
        """Return ``A x̃`` for these rows and every output, of shape ``(m, K, P)``."""
        if self.precise:
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

        threads = is_numpy_array(self.X) and not self.precise
        return by_rows(squares, self.rows, self.size, chunk=self.chunk // 4, threads=threads)

    def seen_sum(self, rows: slice | Array, weights: Array) -> Array:
        """Return ``A Σ_i x̃_i ⊗ weights_i`` over these rows, with weights ``(m, K)``: ``(P,)``."""
        xp = array_namespace(self.X)
        if self.precise:
            AX = xp.matrix_transpose(self.seen(rows))
            return xp.sum(AX @ weights[:, :, None], axis=(0, 2))
        total = self.near[rows, :].T @ weights
        if self.intercept:
            total = xp.concat([total, xp.sum(weights, axis=0)[None, :]], axis=0)
        return self.whitener @ xp.reshape(total, (-1,))

    def columns_of(self, unknowns: Unknowns) -> Array:
        """Return ``A_V``: the effect of the unknown features, divided by ``r``, ``(P, t, K)``."""
        if unknowns.basis is not None and self.precise:
            return columns_precisely(self, unknowns).high
        xp, shape = array_namespace(self.X), (self.size, -1, self.outputs)
        columns = xp.reshape(self.whitener, shape)[:, : self.features, :]
        return unknowns.of(columns, axis=1)

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
    parts = (
        xp.reshape(A, (terms.size, -1, terms.outputs)) for A in (terms.whitener, terms.map.low)
    )
    high, low = (picked.of(part[:, : terms.features, :], axis=1) for part in parts)
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


# How exact the answers are ------------------------------------------------------------------------


def least_cell(terms: JacobianTerms, squared: Array, reach: Array) -> Array:
    """Return the smallest ``squared / reach²`` over each record's cells, ``(n,)``."""
    xp = array_namespace(squared)
    units = 1 / xp.where(reach > 0, reach**2, xp.ones_like(reach))
    return by_rows(
        lambda rows: xp.min(squared[rows, :] * units[None, :], axis=1),
        squared.shape[0],
        squared.shape[1],
        chunk=1 << 15,  # what fits into a core's own memory
    )


def per_attribute(
    terms: JacobianTerms, attributes: list[Unknowns], *sizes: Callable[[Unknowns], Array]
) -> list[Array]:
    """Return the norm of every attribute from the norms of its directions, ``(t,)``."""
    xp = array_namespace(terms.X)
    columns = single_columns(attributes)
    which = xp.asarray(list(columns.values()), dtype=xp.int64, device=terms.X.device)
    by_attribute = []
    for size in sizes:
        out = terms.zeros(len(attributes))
        if columns:  # of all columns at once
            out[list(columns)] = xp.abs(size(Unknowns(None, False))[which])
        for k, unknowns in enumerate(attributes):
            if k not in columns:
                out[k] = norm(size(unknowns))
        by_attribute.append(out)
    return by_attribute


def single_columns(attributes: list[Unknowns]) -> dict[int, int]:
    """Map the position of each attribute that is a single column to that column."""
    return {
        k: u.columns[0]
        for k, u in enumerate(attributes)
        if u.columns is not None and len(u.columns) == 1 and u.basis is None and not u.label
    }


class GLMAccuracy(AnswerAccuracy):
    """Bounds on the relative errors of η, computed from the errors of its terms."""

    stated = True

    def __init__(self, terms: JacobianTerms) -> None:
        self.terms, self.map = terms, terms.map
        self.paired = PairedTerms(terms) if terms.outputs > 1 and terms.precise else None
        self.rounding = float(array_namespace(terms.X).finfo(terms.X.dtype).eps)
        self.curvature_error = EPS * terms.map.spread
        # Upper bounds on those of the features and the intercept, (D,)
        bounds = terms.map.deviations
        self.deviations = terms.zeros(terms.size // terms.outputs) if bounds is None else bounds

    def rows(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the errors of all records, or one common bound if it is small."""
        xp = array_namespace(squared)
        for sizes in self._bounds(unknowns):
            errors = self._relative(squared, *sizes)
            if self.paired is None and errors.shape[0]:
                worst = xp.max(errors)
                if float(worst) <= FINE and bool(xp.all(squared > 0)):
                    return worst
        return errors

    def cells(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the errors of all cells, or each record's largest error if it is small."""
        terms, features = self.terms, replace(unknowns, label=False)
        xp = array_namespace(terms.X)
        if terms.outputs == 1:
            # In units of the columns' reach, a record's least cell has the largest error.
            reach = terms.column_reach(features)
            safe = xp.where(reach > 0, reach, xp.ones_like(reach))
            wide = xp.max(self._spread_over(self.deviations, features) / safe)
            W = xp.max(self._coefficient_sizes(features)[:, 0] / safe)
            a = terms.derivatives(slice(0, terms.rows))[1][:, 0, 0]
            # The leverage of a record is at most 1/√a.
            error = self.slope_errors + self.curvature_error * (
                terms.slope_sizes * wide + xp.sqrt(a) * W
            )
            least = least_cell(terms, squared, reach)
            errors = self._relative(least, terms.slope_sizes, error, share=0.0)
            if bool(xp.all(least > 0)) and float(xp.max(errors)) <= FINE:
                return xp.broadcast_to(errors[:, None], squared.shape)
        largest = xp.max(squared)

        def each(rows: slice) -> Array:
            return self._relative(
                squared[rows, :], *self._column_sizes(features, rows), largest=largest
            )

        return by_rows(each, terms.rows, squared.shape[1] + terms.size, chunk=terms.chunk)

    def entries(self, J: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return the relative errors of the columns of these rows' Jacobians, ``(m, q)``."""
        squared = array_namespace(J).sum(J * J, axis=1)
        # No share of the largest: an inverse sees the error relative to a column's own size.
        return self._relative(squared, *self._column_sizes(unknowns, rows), share=0.0)

    def block(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the error for the unknowns of all these records together."""
        xp = array_namespace(self.terms.X)
        for sizes in self._bounds(unknowns):
            sums = xp.stack([xp.sum(size[rows] ** 2) for size in sizes])[None, :]
            one = xp.full((1,), squared, dtype=sums.dtype, device=sums.device)
            error = float(self._of_terms(one, sums)[0])
            if self.paired is None and error <= FINE:
                return error
        return error

    def columns(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the error for each attribute of all these records together."""
        for closely in (False, True):
            terms = self.column_terms(attributes, rows, closely)
            # Each by itself: what is small beside another column may be large in its own unit.
            errors = self._of_terms(squared, terms, share=0.0)
            if bool(array_namespace(errors).all(errors <= FINE)):
                break
        return errors

    def row_terms(self, unknowns: Unknowns) -> Array:
        """Return each record's contribution to the error of a block, ``(n, 2)``."""
        *_, sizes = self._bounds(unknowns)
        return array_namespace(self.terms.X).stack(sizes, axis=1) ** 2

    def column_terms(self, attributes: list[Unknowns], rows: Array, closely: bool = True) -> Array:
        """Return the rows' contributions to the error of each attribute, one row per attribute."""
        terms = self.terms
        xp = array_namespace(terms.X)
        if terms.outputs == 1:
            a = terms.derivatives(slice(0, terms.rows))[1][:, 0, 0]
            own = a * self._leverages(a, slice(0, terms.rows), closely)
            slope, off, own = (
                xp.sum(size[rows] ** 2) for size in (terms.slope_sizes, self.slope_errors, own)
            )
            reach, wide, W = per_attribute(
                terms,
                attributes,
                terms.column_reach,
                partial(self._spread_over, self.deviations),
                lambda u: self._coefficient_sizes(u)[:, 0],
            )
            wide, W = self.curvature_error * wide, self.curvature_error * W
            parts = [slope * reach**2, off * reach**2, slope * wide**2, own * W**2]
            return xp.stack(parts, axis=1)

        def sums(unknowns: Unknowns) -> Array:
            """Return the sums of squares of each unknown feature's norms, of shape ``(2, t)``."""
            total: Array = 0.0
            width = terms.size * terms.outputs + unknowns.features(terms.features)
            for piece in row_slices(rows.shape[0], width, chunk=terms.chunk):
                both = self._column_sizes(unknowns, rows[piece])
                total = total + xp.stack([xp.sum(sizes**2, axis=0) for sizes in both])
            return total

        every = sums(Unknowns(None, False))
        lines = [sums(u) if u.basis is not None else u.of(every, axis=1) for u in attributes]
        both = xp.stack([xp.sum(line, axis=1) for line in lines])
        return xp.concat([both, xp.zeros_like(both)], axis=1)  # as many terms as of one output

    def of_terms(self, squared: float, terms: Array) -> float:
        """Return the error for a block read in chunks, from the sum of its terms."""
        xp = array_namespace(terms)
        one = xp.full((1,), squared, dtype=terms.dtype, device=terms.device)
        # Sums of chunks are not computed once more, but those of pairs are from the entries.
        recomputed = self.paired is not None
        return float(self._of_terms(one, terms[None, :], recomputed=recomputed)[0])

    def _of_terms(self, squared: Array, terms: Array, **how: Any) -> Array:
        xp = array_namespace(terms)
        # The norms of a sum over the records are at most the sums of its parts' norms.
        sizes = xp.sqrt(terms)
        return self._relative(squared, sizes[:, 0], xp.sum(sizes[:, 1:], axis=1), **how)

    def _relative(
        self,
        squared: Array,
        part: Array,
        error: Array,
        share: float = 1e-8,
        largest: Array | None = None,
        recomputed: bool = True,
    ) -> Array:
        """Return the relative error of ``η``, which may be a small difference of large terms.

        The Jacobian is the sum of two terms: ``r A_V``, of norm ``part`` and error ``error``, and
        another term of norm at most ``η + part``. Squaring the entries of the Jacobian loses the
        square of the cancelled part to rounding. If this loss is large, η was computed from the
        entries themselves, where available. For values that are tiny compared with the largest, the
        error is relative to a share of the largest.
        """
        xp = array_namespace(squared)
        if largest is None:
            largest = xp.max(squared) if squared.shape[0] else 0.0
        floor = share**2 * largest
        squared = xp.where(squared > floor, squared, floor)
        something = squared > 0
        every = bool(xp.all(something))
        eta = xp.sqrt(squared if every else xp.where(something, squared, 1.0))
        ratio = 1 + 2 * part / eta
        rounds = ratio**2
        cancelled = squared < CANCELLED * part**2
        if recomputed and bool(xp.any(cancelled)):
            rounds = xp.where(cancelled, ratio, rounds)
        errors = self.map.accuracy * ratio + error / eta + 8 * self.rounding * rounds
        # Among zeros nothing cancels.
        return errors if every else xp.where(something, errors, 0.0)

    # Sizes of the terms and their errors --------------------------------------------------------

    def _bounds(self, unknowns: Unknowns) -> Iterator[tuple[Array, Array]]:
        """Yield bounds on the norms of every record's terms and on their errors, ``(n,)`` each.

        Cheap bounds are yielded first, since they may suffice; tight bounds follow.
        """
        terms = self.terms
        xp = array_namespace(terms.X)
        if self.paired is None:
            yield self._record_sizes(unknowns, closely=False)
        if terms.outputs == 1:
            if self.map.spread:
                yield self._record_sizes(unknowns, closely=True)
            return

        def sizes(rows: slice) -> Array:
            both = self._column_sizes(unknowns, rows)
            return xp.stack([xp.sqrt(xp.sum(s * s, axis=1)) for s in both], axis=1)

        width = unknowns.count(terms) ** 2 + terms.size * terms.outputs
        both = by_rows(sizes, terms.rows, width, chunk=terms.chunk)
        yield both[:, 0], both[:, 1]

    def _record_sizes(self, unknowns: Unknowns, closely: bool) -> tuple[Array, Array]:
        """Return the norms and errors of records' terms (upper bounds for several classes)."""
        terms = self.terms
        xp = array_namespace(terms.X)
        reach, W = norm(terms.columns_of(unknowns)), norm(self._coefficient_sizes(unknowns))
        wide = norm(self._spread_over(self.deviations, unknowns)) if self.map.spread else 0.0
        lost = self.curvature_error
        if terms.outputs == 1:  # a few operations on all records at once
            slope, (_, a, b) = terms.slope_sizes, terms.derivatives(slice(0, terms.rows))
            a, error = a[:, 0, 0], reach * self.slope_errors
            if self.map.spread:
                own = W * xp.abs(a)
                own = xp.sqrt(own**2 + b[:, 0, 0] ** 2) if unknowns.label else own
                own = own * self._leverages(a, slice(0, terms.rows), closely)
                error = error + lost * (wide * slope + own)
            return reach * slope, error

        def sizes(rows: slice) -> Array:
            _, a, b = terms.derivatives(rows)
            own = W**2 * xp.sum(a * a, axis=(1, 2))
            own = own + xp.sum(b * b, axis=(1, 2)) if unknowns.label else own
            own = xp.sqrt(2 * own)  # for the sum of both parts
            X = terms.near[rows, :]  # ``‖A x̃‖ ≤ ‖A‖ ‖x̃‖``
            lengths = xp.sqrt(xp.vecdot(X, X) + float(terms.intercept))
            part = reach * terms.slope_sizes[rows] + norm(self.map.matrix) * lengths * own
            error = reach * self.slope_errors[rows]
            if self.map.spread:
                leverage = self._leverages(xp.sum(xp.linalg.diagonal(a), axis=1), rows, closely)
                error = error + lost * (wide * terms.slope_sizes[rows] + own * leverage)
            return xp.stack([part, error], axis=1)

        width = terms.outputs**2 + terms.features
        both = by_rows(sizes, terms.rows, width, chunk=terms.chunk)
        return both[:, 0], both[:, 1]

    def _column_sizes(self, unknowns: Unknowns, rows: slice | Array) -> tuple[Array, Array]:
        """Return the norms of the terms in each column of a Jacobian, of shape ``(m, q)``.

        Also return the errors that these terms inherit from the slopes and the curvatures.
        """
        terms = self.terms
        xp = array_namespace(terms.X)
        _, B = terms.slopes(unknowns, rows)
        if self.paired is not None:
            direct, curve = self.paired.sizes(unknowns, rows)
            error = self.rounding * direct
        else:
            reach = terms.column_reach(unknowns)[None, :]
            direct = terms.slope_sizes[rows, None] * reach
            error = self.slope_errors[rows, None] * reach
            curve = xp.zeros_like(B[:, 0, :])
            if terms.outputs > 1:
                lengths = xp.sqrt(xp.sum(terms.seen(rows) ** 2, axis=(1, 2)))
                curve = lengths[:, None] * xp.sqrt(xp.sum(B * B, axis=1))
        padding = xp.zeros_like(curve[:, direct.shape[1] :])
        lost = self._curvature_errors(unknowns, rows)
        return (
            curve + xp.concat([direct, padding], axis=1),
            lost + xp.concat([error, padding], axis=1),
        )

    def _curvature_errors(self, unknowns: Unknowns, rows: slice | Array) -> Array:
        """Return the effect of curvature rounding on a Jacobian's columns, of shape ``(m, q)``.

        The result bounds the change of these columns. A relative change ``ε`` of every curvature
        changes ``v = H⁻¹u`` by at most ``ε √(vᵀHv)`` in the norm of ``H``, and each released number
        by ``√(H⁻¹)_kk`` times that amount. For the column of a feature, ``vᵀHv`` is ``(H⁻¹)_jj``.
        For ``u = x̃ ⊗ a w`` and a label's ``x̃ ⊗ b``, ``vᵀHv`` is ``x̃ᵀH⁻¹x̃`` times the squares of
        ``a w`` and ``b``. The error of ``w`` is at least that of the slopes on which it depends.
        """
        terms = self.terms
        xp = array_namespace(terms.X)
        r, a, _ = terms.derivatives(rows)
        _, B = terms.slopes(unknowns, rows)
        leverage = self._leverages(xp.sum(xp.linalg.diagonal(a), axis=1), rows)[:, None]
        out = leverage * xp.sqrt(xp.sum(B * B, axis=1))
        if terms.outputs == 1:
            lost = self._spread_over(self.coefficient_errors, unknowns)[:, 0]
            own = leverage * a[:, 0, :] * lost[None, :]
            out[:, : own.shape[1]] += own
        if self.map.pairs is None:
            direct = (
                terms.slope_sizes[rows, None]
                * self._spread_over(self.deviations, unknowns)[None, :]
            )
        else:
            # Slopes are differences of the other classes and the record's own.
            own = PairedTerms(terms).own_class(rows)
            by_own = self._spread_over(self.map.pairs, unknowns)[:, :, own]  # (t, K, m)
            direct = xp.sum(xp.abs(r).T[None, :, :] * by_own, axis=1).T
        out[:, : direct.shape[1]] += direct
        return self.curvature_error * out

    @cached_property
    def slope_errors(self) -> Array:
        """The error of each record's ``r``, of shape ``(n,)``."""
        given = self.terms.slope_error
        return self.rounding * self.terms.slope_sizes if given is None else given

    @cached_property
    def coefficient_errors(self) -> Array:
        """Upper bounds on the coefficients' errors in units of ε, ``(D, 1)``, for one output.

        At the minimiser the gradient is zero. Errors ``e`` of the slopes change ``w_j`` by at most
        ``√(vᵀH'v Σ e²/a)`` with ``v = H⁻¹u_j``: the feature's deviation times a factor common to
        all features. A coefficient near zero may be no larger than its error.
        """
        terms, deviations = self.terms, self.map.coefficient_deviations
        xp = array_namespace(terms.X)
        if terms.outputs > 1 or deviations is None or not self.map.spread:
            return terms.zeros(terms.features, 1)
        a = terms.derivatives(slice(0, terms.rows))[1][:, 0, 0]
        safe = xp.where(a > 0, a, xp.ones_like(a))
        # Slope errors at the time of the fit, before later refinement.
        lost = self.slope_errors + self.rounding * a
        errors = xp.where(a > 0, lost**2 / safe, xp.zeros_like(a))
        return math.sqrt(float(xp.sum(errors))) / self.rounding * deviations[:, None]

    def _coefficient_sizes(self, unknowns: Unknowns) -> Array:
        """Return ``|w_V|`` plus its error in units of ε, for bounds on ``a w``, ``(t, K)``."""
        sizes = array_namespace(self.terms.X).abs(self.terms.coef)
        both = (self._spread_over(size, unknowns) for size in (sizes, self.coefficient_errors))
        return sum(both)

    def _spread_over(self, sizes: Array, unknowns: Unknowns) -> Array:
        """Return bounds on the norms of the unknown features, given bounds for all, ``(D, …)``."""
        X = self.terms.X
        xp = array_namespace(X)
        every = xp.astype(sizes[: self.terms.features, ...], X.dtype, copy=False)
        if unknowns.basis is None:
            return unknowns.of(every)
        chosen = replace(unknowns, basis=None).of(every)
        basis = xp.abs(xp.asarray(unknowns.basis, dtype=chosen.dtype, device=chosen.device))
        return xp.tensordot(basis, chosen, axes=((0,), (0,)))

    def _leverages(self, a: Array, rows: slice | Array, closely: bool = True) -> Array:
        """Return upper bounds on ``√(x̃ᵀH⁻¹x̃)`` for rows: ``1/√a``, or less if ``a`` is small.

        Another bound is ``Σ_j |x̃_j| d_j``, where ``d`` are the deviations of the whitener. This
        bound is tight for a row that is small compared with the other rows, and is computed for all
        rows of a small table, but otherwise only for rows whose curvature is far below the largest.
        """
        terms = self.terms
        xp = array_namespace(terms.X)
        least = xp.finfo(a.dtype).tiny
        most = 1 / xp.sqrt(xp.where(a > least, a, least))
        if not closely:
            return most
        small = terms.rows * terms.features <= 1 << 18
        flat = xp.nonzero(a <= (math.inf if small else 1e-3 * xp.max(a)))[0]
        if self.map.deviations is None or flat.shape[0] == 0:
            return most
        every = xp.astype(self.map.deviations, terms.X.dtype, copy=False)
        where = xp.arange(terms.rows, device=terms.X.device)[rows][flat]
        most[flat] = xp.minimum(most[flat], xp.abs(terms.design(where)) @ every)
        return most
