"""Find exact linear dependence between columns: without L2 it leaves no unique minimiser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.cholesky import cholesky_factor
from seepage.glm.curvature import row_chunks, single_output_hessian
from seepage.glm.stacked_qr import stacked_r

Array = Any  # any array of the array API standard

# Cholesky of the correlation-like Gram matrix loses half the digits: a smallest squared pivot above
# this proves independence, one below it only calls for the slower QR.
_CLEARLY_INDEPENDENT = 1e-7
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
    P = X.shape[1] + intercept
    if gram is None:
        weights = sample_weight
        if weights is None:
            weights = xp.ones((X.shape[0],), dtype=X.dtype, device=device(X))
        gram = single_output_hessian(X, weights, ridge=0.0, intercept=intercept)
    sizes = xp.sqrt(xp.linalg.diagonal(gram))
    _refuse_constants(X, sample_weight, sizes, intercept, names)
    if n < P:
        rows = "1 sample" if n == 1 else f"{n} samples"
        raise InputError(
            f"There are more parameters ({P}) than data ({rows} of positive weight), so without L2 "
            "the coefficients are not determined; set l2 to a positive number or drop columns."
        )
    factor = cholesky_factor(gram / (sizes[:, None] * sizes[None, :]))
    if factor is not None:
        pivots = xp.linalg.diagonal(factor.lower)
        if float(xp.min(pivots)) ** 2 > _CLEARLY_INDEPENDENT:
            return
    dependent = _dependent_columns(X, sample_weight, intercept)
    if dependent:
        raise InputError(
            f"{_listed(dependent, names)} depend linearly on one another, so without L2 the "
            "coefficients are not determined; drop one of them or set l2 to a positive number."
        )


def _refuse_constants(
    X: Array, sample_weight: Array | None, sizes: Array, intercept: bool, names: tuple[str, ...]
) -> None:
    xp = array_namespace(X)
    remedy = "drop it or set l2 to a positive number."
    if bool(xp.any(sizes == 0)):
        zero = int(xp.argmin(sizes))
        raise InputError(
            f"Column {names[zero]!r} is constant (all zeros), so without L2 its coefficient is not "
            f"determined; {remedy}"
        )
    if not intercept:
        return
    kept = X if sample_weight is None else X[sample_weight > 0, :]
    constant = xp.max(kept, axis=0) == xp.min(kept, axis=0)
    if bool(xp.any(constant)):
        name = names[int(xp.argmax(xp.astype(constant, xp.int64)))]
        raise InputError(
            f"Column {name!r} is constant, and so is the intercept: without L2 only their sum is "
            f"determined; {remedy}"
        )


def _dependent_columns(X: Array, sample_weight: Array | None, intercept: bool) -> list[int]:
    """Return the columns that take part in a dependence, by the null space of the unit columns."""
    xp = array_namespace(X)
    R = stacked_r(_counted_rows(X, sample_weight, intercept))
    unit = R / xp.sqrt(xp.sum(R * R, axis=0))[None, :]
    _, singular, Vt = xp.linalg.svd(unit)
    tolerance = 10 * max(X.shape) * float(xp.finfo(X.dtype).eps)
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
