"""Measures from the Jacobian of any release: traces, norms and inverses of the information.

The functions use a closed form of :class:`~seepage.core.jacobian.ReleaseJacobian` if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from array_api_compat import array_namespace

from seepage.core.jacobian import (
    SUMS_HELD,
    WIDE_CHUNK,
    ReleaseJacobian,
    Unknowns,
    every_row,
    inverse_gram_diagonal,
)
from seepage.support.chunks import by_rows, progress
from seepage.tables.source import Array


def block_norms(
    jacobian: ReleaseJacobian, unknowns: Unknowns, blocks: Sequence[Array]
) -> list[float]:
    """Return the largest eigenvalue of the information about these unknowns of each block."""
    every = progress(blocks, "groups")
    return [float(jacobian.column_norms([unknowns], rows)[0]) for rows in every]


def column_traces(jacobian: ReleaseJacobian, attributes: list[Unknowns], rows: Array) -> Array:
    """Return the trace of the information about each attribute, summed over the rows."""
    xp = array_namespace(jacobian.X)

    def cells(unknowns: Unknowns) -> Array:
        return xp.sum(jacobian.cell_information(unknowns)[rows, :], axis=0)

    every = cells(Unknowns(None, False))
    # A trace is a sum over cells, and columns share theirs; a basis needs its own directions.
    each = (u.of(every) if u.basis is None else cells(u) for u in attributes)
    return xp.stack([xp.sum(own) for own in each])


def columns_at_once(jacobian: ReleaseJacobian) -> int:
    """Return the approximate number of attributes to pass to ``column_sums`` at a time."""
    return jacobian.features if jacobian.sums_of_all else max(1, SUMS_HELD // jacobian.size**2)


def inverses(
    jacobian: ReleaseJacobian, unknowns: Unknowns, rows: Array | None = None
) -> tuple[Array, Array]:
    """Return the diagonal of the inverse information about each row, and its relative errors.

    Both have shape ``(n, q)``. For a subset of m rows, both have shape ``(m, q)``, and no closed
    form is used. An entry is infinite if the inverse does not exist: no unbiased estimate then has
    a finite error. The computation uses the singular values of the whitened Jacobian, since
    computing the information matrix would square its condition number.
    """
    form = jacobian.inverse_form(unknowns) if rows is None else None
    if form is not None:
        return form.diagonals()
    xp = array_namespace(jacobian.X)
    chosen = every_row(jacobian) if rows is None else rows

    def invert(piece: slice) -> Array:
        J = jacobian.row_jacobians(unknowns, chosen[piece])
        off = jacobian.accuracy.entries(J, unknowns, chosen[piece])
        return xp.stack(inverse_gram_diagonal(J, xp.max(off, axis=1)), axis=2)

    width = 3 * jacobian.size * unknowns.count(jacobian)
    both = by_rows(invert, int(chosen.shape[0]), width, chunk=WIDE_CHUNK, what="inverting")
    return both[:, :, 0], both[:, :, 1]


def inverse_traces(jacobian: ReleaseJacobian, unknowns: Unknowns) -> tuple[Array, Array]:
    """Return each row's trace of the inverse information, and its relative error, both ``(n,)``."""
    form = jacobian.inverse_form(unknowns)
    if form is not None:
        return form.traces()
    diagonal, errors = inverses(jacobian, unknowns)
    xp = array_namespace(jacobian.X)
    return xp.sum(diagonal, axis=1), xp.max(errors, axis=1)


def inverse_work(jacobian: ReleaseJacobian, unknowns: Unknowns) -> float:
    """Return the approximate number of multiplications for the inverse information of a row."""
    form = jacobian.inverse_form(unknowns)
    return float(unknowns.count(jacobian)) ** 3 if form is None else form.work
