"""Find exact linear dependence between columns: without L2 it leaves no unique minimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.fitting.cholesky import cholesky_factor
from seepage.glm.fitting.curvature import row_chunks, single_output_hessian
from seepage.glm.fitting.stacked_qr import stacked_r

Array = Any  # any array of the array API standard

# Cholesky of the correlation-like Gram matrix loses half the digits: a smallest squared pivot above
# this proves independence, one below it only calls for the slower QR.
_CLEARLY_INDEPENDENT = 1e-7
_MANY = 10**6  # rows from which on rounding errors no longer add up to more
_TAKES_PART = 1e-6  # entries of unit null vectors above this are not rounding


def check_independent_columns(
    X: Array,
    sample_weight: Array | None,
    *,
    intercept: bool,
    names: tuple[str, ...],
    gram: Array | None = None,
) -> None:
    """Raise an :class:`InputError` naming the columns that depend linearly on one another.

    Rows of weight zero do not count. ``gram`` is the weighted Gram matrix of ``[X, 1]`` (of ``X``
    without an intercept) where the caller has it already.
    """
    xp = array_namespace(X)
    n = X.shape[0] if sample_weight is None else int(xp.sum(xp.astype(sample_weight > 0, xp.int64)))
    if gram is None:
        weights = sample_weight
        if weights is None:
            weights = xp.ones((X.shape[0],), dtype=X.dtype, device=device(X))
        gram = single_output_hessian(X, weights, ridge=0.0, intercept=intercept)

    def constant() -> Array:
        kept = X if sample_weight is None else X[sample_weight > 0, :]
        return xp.max(kept, axis=0) == xp.min(kept, axis=0)

    def triangle() -> Array:
        return stacked_r(_counted_rows(X, sample_weight, intercept))

    check_gram(gram, n, intercept=intercept, names=names, constant=constant, triangle=triangle)


def check_gram(
    gram: Array,
    rows: int,
    *,
    intercept: bool,
    names: tuple[str, ...],
    constant: Callable[[], Array],
    triangle: Callable[[], Array],
) -> None:
    """Do the same for a table that is known by its sums.

    Parameters
    ----------
    gram
        The Gram matrix, weighted by anything that is positive where a row counts.
    rows
        How many rows count.
    intercept, names
        As for :func:`check_independent_columns`.
    constant
        Says, for every column, whether it has one value only; asked where independence is not
        clear from the Gram matrix alone.
    triangle
        Gives the R of the QR factorisation of the rows that count, likewise.
    """
    xp = array_namespace(gram)
    P = gram.shape[0]
    sizes = xp.sqrt(xp.linalg.diagonal(gram))
    remedy = "drop it or set l2 to a positive number."
    if bool(xp.any(sizes == 0)):
        raise InputError(
            f"Column {names[int(xp.argmin(sizes))]!r} is constant (all zeros), so without L2 its "
            f"coefficient is not determined; {remedy}"
        )
    factor = cholesky_factor(gram / (sizes[:, None] * sizes[None, :])) if rows >= P else None
    if factor is not None:
        pivots = xp.linalg.diagonal(factor.lower)
        if float(xp.min(pivots)) ** 2 > _CLEARLY_INDEPENDENT:
            return
    flat = constant() if intercept else None
    if flat is not None and bool(xp.any(flat)):
        name = names[int(xp.argmax(xp.astype(flat, xp.int64)))]
        raise InputError(
            f"Column {name!r} is constant, and so is the intercept: without L2 only their sum is "
            f"determined; {remedy}"
        )
    if rows < P:
        samples = "1 sample" if rows == 1 else f"{rows} samples"
        raise InputError(
            f"There are more parameters ({P}) than data ({samples} of positive weight), so without "
            "L2 the coefficients are not determined; set l2 to a positive number or drop columns."
        )
    dependent = _dependent_columns(triangle(), rows)
    if dependent:
        raise InputError(
            f"{_listed(dependent, names)} depend linearly on one another, so without L2 the "
            "coefficients are not determined; drop one of them or set l2 to a positive number."
        )


def _dependent_columns(R: Array, rows: int) -> list[int]:
    """Return the columns that take part in a dependence, by the null space of the unit columns."""
    xp = array_namespace(R)
    unit = R / xp.sqrt(xp.sum(R * R, axis=0))[None, :]
    _, singular, Vt = xp.linalg.svd(unit)
    tolerance = 10 * max(min(rows, _MANY), R.shape[1]) * float(xp.finfo(R.dtype).eps)
    null = Vt[singular <= tolerance * singular[0], :]
    if null.shape[0] == 0:
        return []
    part = xp.sqrt(xp.sum(null * null, axis=0))
    return [j for j in range(part.shape[0]) if float(part[j]) > _TAKES_PART]


def _counted_rows(X: Array, sample_weight: Array | None, intercept: bool) -> Iterator[Array]:
    xp = array_namespace(X)
    for rows in row_chunks(*X.shape):
        block = X[rows, :]
        if sample_weight is not None:
            block = block[sample_weight[rows] > 0, :]
        if intercept:
            ones = xp.ones((block.shape[0], 1), dtype=X.dtype, device=device(X))
            block = xp.concat([block, ones], axis=1)
        yield block


def _listed(columns: list[int], names: tuple[str, ...]) -> str:
    shown = [repr(names[j]) if j < len(names) else "the intercept" for j in columns]
    if len(shown) > 8:
        return f"Columns {', '.join(shown[:7])} and {len(shown) - 7} more"
    return f"Columns {', '.join(shown[:-1])} and {shown[-1]}"
