"""The accuracy of a GLM's leakage; results that lost precision are recomputed.

A record's whitened Jacobian is the sum of ``r A_V`` and a multiple of ``A x̃``, given by the
record's curvature and label slope. Errors of the slope, the whitener and the rounded curvatures
affect both terms. Their sum may be much smaller than either term, which increases its relative
error accordingly.

A closed form squares the terms before adding them, so its error grows with the square of the part
that cancels. Only :func:`exact_records` and :func:`exact_blocks` determine which results are
recomputed from the entries of the Jacobian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial, wraps
from typing import Any

from array_api_compat import array_namespace

from seepage.core.jacobian import (
    AnswerAccuracy,
    ReleaseJacobian,
    Unknowns,
    dense_largest,
    from_entries,
)
from seepage.glm.fitting.objective import norm
from seepage.glm.jacobian.terms import JacobianTerms, PairedTerms
from seepage.support.chunks import by_rows, row_slices
from seepage.tables.source import Array

# The share of its terms' squares that a square must keep to be exact; below it, the entries
# themselves are used.
CANCELLED = 4e-6
FINE = 1e-8  # error up to which one bound for all numbers of a view suffices

Answer = Callable[[Any, Unknowns], Array]


# What a closed form has lost ----------------------------------------------------------------------


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

        return exact

    return decorate


def exact_blocks(
    closed_form: Callable[[Any, list[Unknowns], Array], Array],
) -> Callable[[Any, list[Unknowns], Array], Array]:
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

    return exact


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


# How exact the answers are ------------------------------------------------------------------------


class GLMAccuracy(AnswerAccuracy):
    """Bounds on the relative errors of η, computed from the errors of its terms."""

    stated = True

    def __init__(self, terms: JacobianTerms) -> None:
        self.terms, self.map = terms, terms.map
        self.paired = PairedTerms(terms) if terms.outputs > 1 and terms.map.precise else None
        self.rounding = float(array_namespace(terms.X).finfo(terms.X.dtype).eps)
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
            error = self.slope_errors + self.map.curvature_error * (
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
            wide, W = self.map.curvature_error * wide, self.map.curvature_error * W
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
        lost = self.map.curvature_error
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
            part = reach * terms.slope_sizes[rows] + self.map.size * lengths * own
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

        Also return the errors that these terms inherit from the slopes.
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
        For ``u = x̃ ⊗ a w`` and a label's ``x̃ ⊗ b``, it is ``x̃ᵀH⁻¹x̃`` times the squares of ``a
        w`` and ``b``. The error of ``w`` is at least that of the slopes on which it depends.
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
        return self.map.curvature_error * out

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

        Another bound is ``Σ_j |x̃_j| d_j``, where ``d`` are the deviations of the whitener. It is
        tight for a row that is small compared with the other rows. It is computed for all rows of a
        small table, and otherwise only for rows whose curvature is far below the largest.
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
