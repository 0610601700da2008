"""The largest eigenvalue and the inverse of many information matrices at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace

from seepage.tables.source import Array

DENSE_LIMIT = 48  # up to this size a dense eigenvalue problem is cheaper than an iteration


def largest_eigenvalues(apply: Callable[[Array], Array], like: Array) -> Array:
    """Return the largest eigenvalue of each of a batch of symmetric matrices.

    ``apply`` multiplies each matrix by its own vector, from ``(m, k)`` to ``(m, k)``; ``like`` is
    an array of that shape on the batch's device. Matrices up to :data:`DENSE_LIMIT` in size are
    computed in full and decomposed. For larger matrices, the Lanczos method runs for all of them at
    once, with full reorthogonalisation. It stops when the residual of the leading Ritz pair is
    below ``1e-10`` of its value (whose error is then far smaller), or when the whole space is
    spanned and the result is exact.
    """
    if like.shape[1] <= DENSE_LIMIT:
        return dense_largest(_written_out(apply, like))
    xp = array_namespace(like)
    # One fixed start for all, so that the same question always gets the same answer.
    start = np.random.default_rng(0).standard_normal(like.shape[1])
    start = xp.zeros_like(like) + xp.asarray(start, dtype=like.dtype, device=like.device)
    # Relative, of the residual: a Ritz value is accurate to its square over the gap.
    tolerance = max(1e-10, 8 * float(xp.finfo(like.dtype).eps))
    # A decomposition costs about as much as four steps.
    return leading_ritz_values(apply, start, tolerance, like.shape[1], every=4)[0]


def dense_largest(matrices: Array) -> Array:
    """Return the largest eigenvalue of each symmetric matrix in a batch, or zero if negative."""
    xp = array_namespace(matrices)
    single = matrices.shape[-1] == 1
    values = matrices[..., 0, 0] if single else xp.linalg.eigvalsh(matrices)[..., -1]
    return xp.where(values > 0, values, xp.zeros_like(values))


def _written_out(apply: Callable[[Array], Array], like: Array) -> Array:
    xp = array_namespace(like)
    m, k = like.shape
    columns = []
    for j in range(k):
        unit = xp.zeros_like(like)
        unit[:, j] = 1.0
        columns.append(apply(unit))
    matrices = xp.reshape(xp.concat(columns, axis=1), (m, k, k))
    return (matrices + xp.matrix_transpose(matrices)) / 2


def leading_ritz_values(
    apply: Callable[[Array], Array], start: Array, tolerance: float, most: int, every: int = 1
) -> tuple[Array, Array, Array, int]:
    """Return each matrix's leading Ritz value, its residual, and the Lanczos remainder.

    The Lanczos method runs with full reorthogonalisation from the vectors ``start (m, k)``. It
    stops when every residual, relative to its Ritz value, is at most ``tolerance`` (checked every
    ``every`` steps), or after ``most`` steps. The remainder is the norm of the next direction,
    which is zero once an invariant subspace is spanned. The last return value is the number of
    steps.
    """
    xp = array_namespace(start)
    vector = start / xp.sqrt(xp.vecdot(start, start))[:, None]
    basis = vector[:, None, :]
    diagonal: list[Array] = []
    beside: list[Array] = []
    eps = float(xp.finfo(start.dtype).eps)
    scale = xp.zeros_like(start[:, 0])
    while True:
        image = apply(vector)
        diagonal.append(xp.vecdot(image, vector))
        scale = xp.maximum(scale, diagonal[-1])
        for _ in range(2):  # twice is enough to stay orthogonal to machine precision
            overlaps = basis @ image[:, :, None]
            image = image - (xp.matrix_transpose(basis) @ overlaps)[:, :, 0]
        length = xp.sqrt(xp.vecdot(image, image))
        # What is left after an invariant subspace was found is rounding, and must not go on.
        length = xp.where(length > 16 * eps * scale, length, xp.zeros_like(length))
        beside.append(length)
        steps = len(diagonal)
        if steps % every == 0 or steps >= most:
            values, vectors = xp.linalg.eigh(_tridiagonal(diagonal, beside))
            residual = length * xp.abs(vectors[:, -1, -1])
            leading = values[:, -1]
            leading = xp.where(leading > 0, leading, xp.zeros_like(leading))
            if steps >= most or bool(xp.all(residual <= tolerance * leading)):
                return leading, residual, length, steps
        inverse = xp.where(length > 0, 1 / xp.where(length > 0, length, 1.0), 0.0)
        vector = image * inverse[:, None]
        basis = xp.concat([basis, vector[:, None, :]], axis=1)


def _tridiagonal(diagonal: list[Array], beside: list[Array]) -> Array:
    """Return tridiagonal matrices with these diagonal and off-diagonal entries."""
    xp = array_namespace(diagonal[0])
    like = {"dtype": diagonal[0].dtype, "device": diagonal[0].device}
    middle, side = (xp.stack(entries, axis=1)[:, :, None] for entries in (diagonal, beside))
    above = side * xp.eye(len(diagonal), k=1, **like)
    return middle * xp.eye(len(diagonal), **like) + above + xp.matrix_transpose(above)


def inverse_gram_diagonal(J: Array, accuracy: Array) -> tuple[Array, Array]:
    """Return the diagonal of ``(JᵀJ)⁻¹`` of each matrix and its relative errors, both ``(m, k)``.

    The columns of ``J``, ``(m, P, k)``, are first scaled to equal norm, and ``JᵀJ`` is never
    computed. The diagonal is infinite if the columns' relative errors, ``accuracy (m,)``, cannot
    rule out linear dependence.
    """
    xp = array_namespace(J)
    _, P, k = J.shape
    size = xp.sqrt(xp.sum(J * J, axis=1))
    if k > P:
        infinite = xp.full_like(size, float("inf"))
        return infinite, xp.zeros_like(size)
    scale = 1 / xp.where(size > 0, size, xp.ones_like(size))
    _, values, rows = xp.linalg.svd(J * scale[:, None, :], full_matrices=False)
    rounding = 8 * k * float(xp.finfo(J.dtype).eps)
    off = (accuracy + rounding) * values[:, 0]
    regular = values[:, -1] > 4 * off  # below, a singular value may as well be zero
    safe = xp.where(regular[:, None], values, xp.ones_like(values))
    diagonal = xp.sum((rows / safe[:, :, None]) ** 2, axis=1) * scale * scale
    error = 2 * off / xp.where(regular, values[:, -1], xp.ones_like(off))
    diagonal = xp.where(regular[:, None], diagonal, xp.full_like(diagonal, float("inf")))
    error = xp.where(regular, error, xp.zeros_like(error))
    return diagonal, xp.zeros_like(diagonal) + error[:, None]
