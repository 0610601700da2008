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


def _add_to_diagonal(H: Array, amounts: Array) -> Array:
    xp = array_namespace(H)
    return H + xp.eye(H.shape[0], dtype=H.dtype, device=device(H)) * amounts[None, :]


def _penalty(X: Array, ridge: float, intercept: bool) -> Array:
    """Return the penalty of every row of the parameters: ridge, and 0 for the intercept."""
    xp = array_namespace(X)
    penalty = xp.full((X.shape[1] + intercept,), ridge, dtype=X.dtype, device=device(X))
    if intercept:
        penalty[-1] = 0.0
    return penalty


def single_output_hessian(X: Array, weights: Array, *, ridge: float, intercept: bool) -> Array:
    """Return ``H = Σᵢ weightᵢ xᵢ xᵢᵀ + ridge·I``, the Hessian of a single-output objective.

    Parameters
    ----------
    X
        The rows, (n, d).
    weights
        The curvature of every row times its sample weight, ``ωᵢ aᵢ``, (n,).
    ridge
        ``nλ``, the coefficient of ``½‖w‖²`` in the objective.
    intercept
        Whether ``x`` is extended by a last entry 1, whose parameter is not penalised.

    Returns
    -------
    Array
        (P, P) with P = d, or d + 1 with an intercept (the last parameter).
    """
    H = bordered_gram(X, weights, intercept)
    return _add_to_diagonal(H, _penalty(X, ridge, intercept)) if ridge else H


def categorical_hessian(X: Array, weights: Array, *, ridge: float, intercept: bool) -> Array:
    """Return ``H = Σᵢ xᵢ xᵢᵀ ⊗ Aᵢ + ridge·I``, the Hessian of a softmax objective.

    It is singular along the gauge directions (one and the same vector added to the parameters of
    every class) where they are not penalised; :func:`gauge_fixed` makes it definite.

    Parameters
    ----------
    X
        The rows, (n, d).
    weights
        ``Aᵢ``, (n, K, K): the curvature ``ωᵢ (diag π − ππᵀ)`` of every row, symmetric.
    ridge, intercept
        As for :func:`single_output_hessian`.

    Returns
    -------
    Array
        (DK, DK) with D = d, or d + 1 with an intercept; the feature is the slow index, the class
        the fast one.
    """
    xp = array_namespace(X)
    classes = weights.shape[1]
    D = X.shape[1] + intercept
    blocks = xp.zeros((D, classes, D, classes), dtype=X.dtype, device=device(X))
    for j in range(classes):
        for k in range(j, classes):
            block = bordered_gram(X, weights[:, j, k], intercept)
            blocks[:, j, :, k] = block
            blocks[:, k, :, j] = block
    H = xp.reshape(blocks, (D * classes, D * classes))
    return _add_to_diagonal(H, xp.repeat(_penalty(X, ridge, intercept), classes)) if ridge else H


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
