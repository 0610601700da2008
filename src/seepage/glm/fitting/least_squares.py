"""The exact minimiser of weighted, L2-penalised least squares, by a suitable factorisation."""

from __future__ import annotations

from dataclasses import replace

from array_api_compat import array_namespace, device

from seepage.glm.fitting.objective import (
    Coordinates,
    Objective,
    check_columns,
    cholesky_factor,
    stacked_r,
)
from seepage.tables.source import Array


def solve_least_squares(objective: Objective, names: tuple[str, ...]) -> Array:
    """Return the ``θ`` that minimises ``½ Σᵢ ωᵢ (wᵀxᵢ + w₀ − yᵢ)² + (ridge/2) ‖w‖²``.

    The method is one of three: Cholesky on the normal equations, with a step of iterative
    refinement; QR of the rows, if the normal equations are ill-conditioned; or, for penalised
    tables in memory with more columns than rows, the n×n dual ``w = Sᵀ(SSᵀ + ridge·I)⁻¹√ω y``, ``S
    = √ω X``. ``names`` are the column names in the error that lists linearly dependent columns.

    The relative error of QR is of order ``ε κ`` if residuals are small, where ``ε = 2⁻⁵²`` and
    ``κ`` is the condition number of ``[√ω [X 1] ; √ridge I]``. The fitted values are exact up to
    rounding (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 20.2).
    """
    inner, coordinates = objective.conditioned()
    X = inner.table
    if X is not None and X.shape[1] > X.shape[0] and inner.ridge > 0:
        return coordinates.back(_dual(inner))
    return coordinates.back(_solve(inner, names))


def _solve(objective: Objective, names: tuple[str, ...]) -> Array:
    sums = objective.at(objective.zeros(), ("hessian",))
    shifted = objective.near_zero(sums.hessian)
    if shifted is not None:
        inner, coordinates = shifted
        return coordinates.back(_solve(inner, names))
    check_columns(objective, sums.hessian, sums.counted, names)
    factor = cholesky_factor(sums.hessian)
    # Two refined Cholesky solves leave an error of about (ε·condition)² · condition; past this
    # smallest squared pivot of the scaled matrix the condition is known to be bad.
    if factor is None or factor.smallest_pivot < 1e-6:
        return _by_qr(objective)
    theta = -factor.solve(sums.gradient)
    if objective.table is None and factor.smallest_pivot >= 1e-3:
        return theta  # another pass would change nothing but rounding
    return theta - factor.solve(objective.gradient_at(theta))


def _by_qr(objective: Objective) -> Array:
    """Solve by the R factor of ``[√ω [X 1 y] ; √ridge I]``, with a corrected seminormal step."""
    R = objective.triangle(labels=True)
    xp = array_namespace(R)
    size = R.shape[1] - 1
    if objective.ridge > 0:
        penalty = xp.eye(size - objective.intercept, size + 1, dtype=R.dtype, device=device(R))
        if objective.units is not None:
            penalty = penalty / objective.units[:, None]
        R = stacked_r([R, objective.ridge**0.5 * penalty])
    upper = R[:size, :size]
    theta = xp.linalg.solve(upper, R[:size, size][:, None])[:, 0]
    g = objective.gradient_at(theta)
    return theta - xp.linalg.solve(upper, xp.linalg.solve(upper.T, g[:, None]))[:, 0]


def _dual(objective: Objective) -> Array:
    """Solve a problem with more columns than rows by the n×n kernel ``SSᵀ + ridge·I``."""
    units = objective.units
    if units is not None:  # in the caller's units the penalty is the same for all columns
        inner = replace(objective, X=objective.X * units[None, :], units=None)
        return Coordinates(units=units).into(_dual(inner))
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
