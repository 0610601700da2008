"""The exact minimiser of weighted, L2-penalised least squares, by whichever factorisation suits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from array_api_compat import array_namespace, device

from seepage.glm.fitting.cholesky import cholesky_factor
from seepage.glm.fitting.curvature import row_chunks
from seepage.glm.fitting.dependence import check_independent_columns
from seepage.glm.fitting.objective import Objective
from seepage.glm.fitting.stacked_qr import stacked_r

Array = Any  # any array of the array API standard

# Two refined Cholesky solves leave an error of about (ε·condition)² · condition; past this smallest
# squared pivot of the scaled matrix the condition is known to be bad and QR takes over.
_WELL_CONDITIONED = 1e-6


def solve_least_squares(objective: Objective, names: tuple[str, ...]) -> Array:
    """Return the ``θ`` that minimises ``½ Σᵢ ωᵢ (wᵀxᵢ + w₀ − yᵢ)² + (ridge/2) ‖w‖²``.

    Three routes lead there: the normal equations by Cholesky with a step of iterative refinement;
    QR of the rows where those are ill-conditioned; and with more columns than rows (and a penalty)
    the n×n dual ``w = Sᵀ(SSᵀ + ridge·I)⁻¹√ω y``, ``S = √ω X``.

    Parameters
    ----------
    objective
        An objective of the Gaussian family.
    names
        The columns, to name those without which there would be a unique minimiser.
    """
    n, d = objective.X.shape
    if d > n and objective.ridge > 0:
        return _dual(objective)
    xp = array_namespace(objective.X)
    H = objective.hessian(objective.target)  # the same at any margins
    if objective.ridge == 0:
        check_independent_columns(
            objective.X,
            objective.sample_weight,
            intercept=objective.intercept,
            names=names,
            gram=H,
        )
    sizes = xp.sqrt(xp.linalg.diagonal(H))
    sizes = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    factor = cholesky_factor(H / (sizes[:, None] * sizes[None, :]))
    if factor is None or float(xp.min(xp.linalg.diagonal(factor.lower))) ** 2 < _WELL_CONDITIONED:
        return _by_qr(objective)
    theta = objective.zeros()
    for _ in range(2):  # from zero, the first step is the plain solve and the second refines it
        theta = theta - factor.solve(_gradient(objective, theta) / sizes) / sizes
    return theta


def _gradient(objective: Objective, theta: Array) -> Array:
    return objective.gradient(theta, objective.slopes(objective.margins(theta)))


def _by_qr(objective: Objective) -> Array:
    """Solve by the R of ``[√ω [X 1] ; √ridge I]``, with a corrected seminormal step."""
    xp = array_namespace(objective.X)
    R = stacked_r(_augmented_rows(objective))
    size = R.shape[1] - 1
    triangle = R[:size, :size]
    theta = xp.linalg.solve(triangle, R[:size, size][:, None])[:, 0]
    g = _gradient(objective, theta)
    correction = xp.linalg.solve(triangle, xp.linalg.solve(triangle.T, g[:, None]))
    return theta - correction[:, 0]


def _augmented_rows(objective: Objective) -> Iterator[Array]:
    """Yield the rows of ``[√ω x, √ω, √ω y]`` in chunks, then those of the penalty."""
    X, xp = objective.X, array_namespace(objective.X)
    d = X.shape[1]
    for rows in row_chunks(*X.shape):
        parts = [X[rows, :], objective.target[rows, None]]
        if objective.intercept:
            parts.insert(1, xp.ones_like(parts[1]))
        block = xp.concat(parts, axis=1)
        if objective.sample_weight is not None:
            block = block * xp.sqrt(objective.sample_weight[rows])[:, None]
        yield block
    if objective.ridge > 0:
        penalty = xp.eye(d, d + objective.intercept + 1, dtype=X.dtype, device=device(X))
        yield objective.ridge**0.5 * penalty


def _dual(objective: Objective) -> Array:
    """Solve with more columns than rows through the kernel ``SSᵀ + ridge·I``, n×n."""
    X, xp = objective.X, array_namespace(objective.X)
    n = X.shape[0]
    roots = xp.ones((n,), dtype=X.dtype, device=device(X))
    if objective.sample_weight is not None:
        roots = xp.sqrt(objective.sample_weight)
    identity = xp.eye(n, dtype=X.dtype, device=device(X))
    kernel = (X @ X.T) * (roots[:, None] * roots[None, :]) + objective.ridge * identity
    factor = cholesky_factor(kernel)
    if factor is None:  # a penalty too faint for the dual
        return _by_qr(objective)

    def refined(right: Array) -> Array:
        solution = factor.solve(right)
        return solution + factor.solve(right - kernel @ solution)

    alpha = refined(roots * objective.target)
    if not objective.intercept:
        return X.T @ (roots * alpha)
    beta = refined(roots)
    last = xp.sum(roots * alpha) / xp.sum(roots * beta)
    w = X.T @ (roots * (alpha - last * beta))
    return xp.concat([w, xp.reshape(last, (1,))])
