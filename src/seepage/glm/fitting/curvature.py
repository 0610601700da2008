"""Hessians of weighted GLM objectives, summed over chunks of rows that never copy the whole table.

A chunk's Gram matrix is written ``S.T @ S`` with ``S = √weight · X``: one array on both sides lets
BLAS compute one triangle only, close to half the price of a general product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from array_api_compat import array_namespace, device

from seepage.support.chunks import row_slices

Array = Any  # any array of the array API standard

_CHUNK_ELEMENTS = 1 << 20
_CHUNK_ROWS = 4096


def row_chunks(n: int, d: int) -> Iterator[slice]:
    """Cut n rows of d entries into slices over which to sum d×d matrices.

    Each chunk costs d² outside BLAS (mirroring a triangle, adding it up), which only a few
    thousand rows amortise; narrow tables take more rows, to spare the interpreter.
    """
    return row_slices(n, d, chunk=max(_CHUNK_ROWS * d, _CHUNK_ELEMENTS))


def weighted_gram(X: Array, weights: Array) -> Array:
    """Return ``Σᵢ weightᵢ xᵢ xᵢᵀ``, (d, d), for weights of any sign."""
    xp = array_namespace(X)
    n, d = X.shape
    total = xp.zeros((d, d), dtype=X.dtype, device=device(X))
    one_sign = 1.0 if bool(xp.all(weights >= 0)) else -1.0 if bool(xp.all(weights <= 0)) else 0.0
    factors = xp.sqrt(one_sign * weights) if one_sign else weights
    for rows in row_chunks(n, d):
        scaled = X[rows, :] * factors[rows, None]
        total += scaled.T @ (scaled if one_sign else X[rows, :])
    return -total if one_sign < 0 else total


def bordered_gram(X: Array, weights: Array, intercept: bool) -> Array:
    """Return the weighted Gram matrix of ``[X, 1]``, or of ``X`` without an intercept."""
    gram = weighted_gram(X, weights)
    if not intercept:
        return gram
    xp = array_namespace(X)
    border = X.T @ weights
    top = xp.concat([gram, border[:, None]], axis=1)
    bottom = xp.concat([border, xp.reshape(xp.sum(weights), (1,))])
    return xp.concat([top, bottom[None, :]], axis=0)


def hessian(X: Array, curvature: Array, *, ridge: float, intercept: bool) -> Array:
    """Return ``H = Σᵢ x̃ᵢ x̃ᵢᵀ ⊗ Aᵢ + ridge·I``, the Hessian of a GLM objective.

    For softmax it is singular along the gauge directions (one and the same vector added to the
    parameters of every class) where they are not penalised; :func:`gauge_fixed` makes it definite.

    Parameters
    ----------
    X
        The table, (n, d).
    curvature
        ``Aᵢ``, the curvature of every record's loss times its weight: (n,) for one output; for
        softmax (n, K, K), ``ωᵢ (diag π − ππᵀ)``.
    ridge
        ``nλ``, the coefficient of ``½‖w‖²`` in the objective.
    intercept
        Whether ``x`` is extended by a last entry 1, whose parameters are not penalised.

    Returns
    -------
    Array
        (P, P), P = D or DK, with D = d, or d + 1 with an intercept; the feature is the slow index,
        the class the fast one.
    """
    if len(curvature.shape) == 1:
        return penalised(bordered_gram(X, curvature, intercept), ridge, int(intercept))
    xp = array_namespace(X)
    classes = curvature.shape[1]
    D = X.shape[1] + intercept
    blocks = xp.zeros((D, classes, D, classes), dtype=X.dtype, device=device(X))
    for j in range(classes):
        for k in range(j, classes):
            block = bordered_gram(X, curvature[:, j, k], intercept)
            blocks[:, j, :, k] = block
            blocks[:, k, :, j] = block
    return penalised(
        xp.reshape(blocks, (D * classes, D * classes)), ridge, classes if intercept else 0
    )


def penalised(H: Array, ridge: float, free: int) -> Array:
    """Return ``H + ridge·I``, but for the last ``free`` parameters: the intercepts."""
    if not ridge:
        return H
    xp = array_namespace(H)
    penalty = xp.full((H.shape[0],), ridge, dtype=H.dtype, device=device(H))
    penalty[H.shape[0] - free :] = 0.0
    return H + xp.eye(H.shape[0], dtype=H.dtype, device=device(H)) * penalty[None, :]


def gauge_fixed(H: Array, classes: int) -> Array:
    """Return ``H + c·(I ⊗ 11ᵀ/K)``, definite along the gauge directions of softmax as well.

    The loss does not change when one vector is added to the parameters of every class, so its
    gradients, and the derivatives of its gradients by the data, sum to zero over the classes. For
    such right-hand sides the solution of the system is the same for every ``c > 0``; the mean of
    the diagonal of ``H`` keeps the condition number where it was.
    """
    xp = array_namespace(H)
    size = H.shape[0]
    scale = xp.sum(xp.linalg.diagonal(H)) / size
    blocks = xp.reshape(xp.asarray(H, copy=True), (size // classes, classes, -1, classes))
    for feature in range(size // classes):
        blocks[feature, :, feature, :] += scale / classes
    return xp.reshape(blocks, (size, size))
