"""How exact the leakage of a GLM is, number by number.

A record's whitened Jacobian is the sum of ``r A_V`` and of ``A x̃`` times its curvature and label
slope. Each of the two has the errors of the slope, the whitener and the rounding of the curvatures;
their sum may be much smaller than either, and its relative error that much larger. Where a bound on
all of them suffices (:class:`~seepage.glm.jacobian.operator.GLMJacobian` tries it first), none of
this is computed.
"""

from __future__ import annotations

from dataclasses import replace

from array_api_compat import array_namespace

from seepage.core.unknowns import Unknowns
from seepage.glm.jacobian.terms import JacobianTerms, paired_sizes
from seepage.support.chunks import by_rows, row_slices
from seepage.tables.source import Array


def row_errors(jacobian: JacobianTerms, squared: Array, unknowns: Unknowns) -> Array:
    """Return the relative errors of η of every record, given its squares, ``(n,)``."""
    return jacobian.relative_errors(squared, *_row_term_sizes(jacobian, unknowns))


def cell_errors(jacobian: JacobianTerms, squared: Array, unknowns: Unknowns) -> Array:
    """Return the relative errors of η of every cell, given its squares, ``(n, t)``."""
    sizes = _term_sizes(jacobian, replace(unknowns, label=False), slice(0, jacobian.rows))
    return jacobian.relative_errors(squared, *sizes)


def error_terms(jacobian: JacobianTerms, unknowns: Unknowns) -> Array:
    """Return the squares of the norms of every record's terms, and of their errors, ``(n, 2)``.

    For a block of records they add up.
    """
    return array_namespace(jacobian.X).stack(_row_term_sizes(jacobian, unknowns), axis=1) ** 2


def column_error_terms(jacobian: JacobianTerms, attributes: list[Unknowns], rows: Array) -> Array:
    """Return the sums of the terms of each attribute over some rows, ``(len(attributes), 2)``."""
    xp = array_namespace(jacobian.X)

    def sums(unknowns: Unknowns) -> Array:
        """Return the sums of the terms of each unknown feature, ``(2, t)``."""
        total: Array = 0.0
        width = jacobian.row_width(unknowns)
        for piece in row_slices(rows.shape[0], width, chunk=jacobian.chunk):
            both = _term_sizes(jacobian, unknowns, rows[piece])
            total = total + xp.stack([xp.sum(sizes**2, axis=0) for sizes in both])
        return total

    every = sums(Unknowns(None, False))
    lines = [sums(u) if u.basis is not None else u.of(every, axis=1) for u in attributes]
    return xp.stack([xp.sum(line, axis=1) for line in lines])


def block_error(jacobian: JacobianTerms, squared: float, terms: Array, from_entries: bool) -> float:
    """Return the relative error of η of a block, given its square and the sums of terms."""
    xp = array_namespace(terms)
    part, error = (xp.reshape(xp.sqrt(term), (1,)) for term in (terms[0], terms[1]))
    one = xp.asarray([squared], dtype=part.dtype, device=part.device)
    return float(jacobian.relative_errors(one, part, error, from_entries=from_entries)[0])


def entry_errors(jacobian: JacobianTerms, squared: Array, unknowns: Unknowns, rows: Array) -> Array:
    """Return the relative errors of the columns of some rows' Jacobians, given their squares."""
    # No share of the largest: an inverse sees the error relative to a column's own size.
    return jacobian.relative_errors(squared, *_term_sizes(jacobian, unknowns, rows), share=0.0)


def _row_term_sizes(jacobian: JacobianTerms, unknowns: Unknowns) -> tuple[Array, Array]:
    """Return the norms of the terms of every record, and their errors, ``(n,)`` both."""
    xp = array_namespace(jacobian.X)
    if jacobian.outputs == 1:
        reach = jacobian.reach(unknowns)
        error = reach * jacobian.slope_errors + _row_curvature_errors(jacobian, unknowns)
        return reach * jacobian.slope_sizes, error

    def sizes(rows: slice) -> Array:
        both = _term_sizes(jacobian, unknowns, rows)
        return xp.stack([xp.sqrt(xp.sum(s * s, axis=1)) for s in both], axis=1)

    width = jacobian.row_width(unknowns)
    both = by_rows(sizes, jacobian.rows, width, chunk=jacobian.chunk)
    return both[:, 0], both[:, 1]


def _term_sizes(
    jacobian: JacobianTerms, unknowns: Unknowns, rows: slice | Array
) -> tuple[Array, Array]:
    """Return the norms of the terms that make up each column of a Jacobian, ``(m, q)``.

    And the errors they inherit from the slopes.
    """
    xp = array_namespace(jacobian.X)
    _, B = jacobian.slopes(unknowns, rows)
    if jacobian.paired:
        direct, curve = paired_sizes(jacobian, unknowns, rows)
        error = jacobian.rounding * direct
    else:
        reach = jacobian.column_reach(unknowns)[None, :]
        direct = jacobian.slope_sizes[rows, None] * reach
        error = jacobian.slope_errors[rows, None] * reach
        curve = xp.zeros_like(B[:, 0, :])
        if jacobian.outputs > 1:
            lengths = xp.sqrt(xp.sum(jacobian.seen(rows) ** 2, axis=(1, 2)))
            curve = lengths[:, None] * xp.sqrt(xp.sum(B * B, axis=1))
    padding = xp.zeros_like(curve[:, direct.shape[1] :])
    lost = _curvature_errors(jacobian, unknowns, rows)
    return (
        curve + xp.concat([direct, padding], axis=1),
        lost + xp.concat([error, padding], axis=1),
    )


def _curvature_errors(jacobian: JacobianTerms, unknowns: Unknowns, rows: slice | Array) -> Array:
    """Return how far the rounding of the records' curvatures may move a Jacobian's columns.

    ``(m, q)``. A relative change ``ε`` of every curvature changes ``v = H⁻¹u`` by at most
    ``ε √(vᵀHv)`` in the norm of ``H``, and each released number by its ``√(H⁻¹)_kk`` times that.
    For the column of a feature ``vᵀHv`` is ``(H⁻¹)_jj``; for ``u = x̃ ⊗ a w`` and a label's
    ``x̃ ⊗ b`` it is ``x̃ᵀH⁻¹x̃`` times the squares of ``a w`` and ``b``. And ``w`` is known no better
    than the slopes it follows from.
    """
    xp = array_namespace(jacobian.X)
    r, a, _ = jacobian.derivatives(rows)
    _, B = jacobian.slopes(unknowns, rows)
    leverage = jacobian.leverages(xp.sum(xp.linalg.diagonal(a), axis=1), rows)[:, None]
    out = leverage * xp.sqrt(xp.sum(B * B, axis=1))
    if jacobian.outputs == 1:
        own = leverage * a[:, 0, :] * jacobian.coefficient_errors(unknowns)[None, :]
        out[:, : own.shape[1]] += own
    if jacobian.map.pairs is None:
        direct = xp.sqrt(xp.sum(r * r, axis=1))[:, None] * jacobian.deviations(unknowns)[None, :]
    else:
        # Slopes are differences of the other classes and the record's own.
        own = xp.argmax(jacobian.target[rows, :], axis=1)
        by_own = jacobian.spread_over(jacobian.map.pairs, unknowns)[:, :, own]  # (t, K, m)
        direct = xp.sum(xp.abs(r).T[None, :, :] * by_own, axis=1).T
    out[:, : direct.shape[1]] += direct
    return jacobian.map.curvature_error * out


def _row_curvature_errors(jacobian: JacobianTerms, unknowns: Unknowns) -> Array:
    """Return the same for whole rows of one output, ``(n,)``."""
    xp = array_namespace(jacobian.X)
    every = slice(0, jacobian.rows)
    r, a, b = jacobian.derivatives(every)
    r, a, b = r[:, 0], a[:, 0, 0], b[:, 0, 0]
    if not jacobian.map.spread:
        return xp.zeros_like(r)
    W, chosen = jacobian.coefficient_sizes(unknowns), jacobian.deviations(unknowns)
    out = xp.abs(r) * xp.sqrt(xp.sum(chosen * chosen))
    own = xp.sqrt(a * a * xp.sum(W * W) + (b * b if unknowns.label else 0.0))
    return jacobian.map.curvature_error * (out + own * jacobian.leverages(a, every))
