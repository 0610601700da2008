"""Cholesky and QR factorisations, computed where the arrays live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import scipy.linalg
from array_api_compat import array_namespace, device, is_numpy_array

Array = Any  # any array of the array API standard


@dataclass(frozen=True)
class CholeskyFactor:
    """The lower triangular ``L`` of ``H = LLᵀ``."""

    lower: Array

    def solve(self, right: Array) -> Array:
        """Return ``H⁻¹ right`` for a vector or for the columns of a matrix."""
        L = self.lower
        if is_numpy_array(L):
            return scipy.linalg.cho_solve((L, True), right, check_finite=False)
        xp = array_namespace(L)
        columns = right if len(right.shape) == 2 else right[:, None]
        # The standard has no triangular solve, but torch's namespace carries one.
        half = xp.linalg.solve_triangular(L, columns, upper=False)
        full = xp.linalg.solve_triangular(L.T, half, upper=True)
        return full if len(right.shape) == 2 else full[:, 0]


def cholesky_factor(H: Array) -> CholeskyFactor | None:
    """Return the Cholesky factor of ``H``, or ``None`` where ``H`` is not positive definite."""
    xp = array_namespace(H)
    try:
        lower = xp.linalg.cholesky(H)
    except (ValueError, RuntimeError) as error:
        # NumPy's LinAlgError is a ValueError and torch's a RuntimeError; nothing else is meant.
        if type(error).__name__.strip("_") != "LinAlgError":
            raise
        return None
    # A NaN passes through some factorisations without complaint.
    return CholeskyFactor(lower) if bool(xp.all(xp.isfinite(xp.sum(lower)))) else None


def damped_factor(H: Array) -> CholeskyFactor:
    """Return the factor of ``H``, or of ``H + τI`` for the first τ tried that makes it definite."""
    xp = array_namespace(H)
    mean = max(float(xp.sum(xp.linalg.diagonal(H))) / H.shape[0], 1e-300)
    identity = xp.eye(H.shape[0], dtype=H.dtype, device=device(H))
    damping = 0.0
    for _ in range(20):
        factor = cholesky_factor(H + damping * identity if damping else H)
        if factor is not None:
            return factor
        damping = 10.0 * damping if damping else 1e-14 * mean
    raise FloatingPointError("the Hessian holds values that are not finite")


def stacked_r(blocks: Iterable[Array]) -> Array:
    """Return the R of the QR factorisation of the blocks stacked on one another.

    Each block is stacked under the R so far and factorised again (sequential TSQR: Demmel, Grigori,
    Hoemmen and Langou, 2012), which is as stable as one QR of the whole and holds one block only.
    """
    R: Array = None
    for block in blocks:
        xp = array_namespace(block)
        stack = block if R is None else xp.concat([R, block], axis=0)
        R = xp.linalg.qr(stack, mode="reduced")[1]
    return R
