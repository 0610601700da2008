"""Check that a model's coefficients minimise the objective it states on the data it was given."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from seepage.errors import InputError, NotConvergedWarning, NotTheMinimiserError
from seepage.glm.fitting.curvature import penalised, row_chunks
from seepage.glm.fitting.factorisations import cholesky_factor, damped_factor
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.fitting.objective import Objective, norm

Array = Any  # any array of the array API standard

# scikit-learn's LogisticRegression at its default tolerance ends at 9e-4 to 9e-3 on standardised
# iris, wine, breast-cancer and digits data. There a C off by 10 % gives 2e-2 to 3e-2, one wrong
# label 4e-2 to 4e-1, half the rows 3e-1; but one row left out 1e-9 to 2e-3: a warning at most.
_WARN, _REFUSE = 1e-5, 1e-2


def check_stationarity(
    fit: FittedGLM, X: Array, on_mismatch: str = "raise", *, hessian: Array | None = None
) -> float:
    """Return the relative Newton step still to go, and complain unless it is negligible.

    The leakage is the derivative of the minimiser by the data; at other coefficients the formula
    means nothing. The step ``s = H⁻¹g`` is compared with the coefficients w in the norm of the
    curvature, ``√(sᵀHs / wᵀHw)``, which counts what moves the margins and does not depend on the
    units of the columns (an intercept is projected out of wᵀHw: a shift is no size). Below 1e-5
    nothing is said; up to 1e-2 there is a :class:`NotConvergedWarning`; above it the model is
    refused.

    Parameters
    ----------
    fit
        The model, in float64.
    X
        The table it was fitted on, (n, d); its sums are taken in the type of ``fit``.
    on_mismatch
        ``"raise"``, or ``"warn"`` to go on with coefficients that do not minimise the objective.
    hessian
        The Hessian at the coefficients (gauge-fixed for softmax), where it is known already.

    Raises
    ------
    NotTheMinimiserError
        With the norm of the gradient and the relative step.
    """
    _check_choice(on_mismatch)
    gradient, spread = gradient_and_spread(fit, X)
    H = _hessian(fit, X) if hessian is None else hessian
    return judge_stationarity(fit, gradient, spread, H, on_mismatch)


def judge_stationarity(
    fit: FittedGLM, gradient: Array, spread: float, H: Array, on_mismatch: str
) -> float:
    """Do the same with the sums over the rows at hand: see :func:`gradient_and_spread`."""
    _check_choice(on_mismatch)
    xp = array_namespace(gradient)
    factor = cholesky_factor(H) or damped_factor(H)
    g = xp.reshape(gradient, (-1,))
    step = math.sqrt(max(float(xp.sum(g * factor.solve(g))), 0.0))
    # Coefficients may be zero (nothing to learn); a step is then compared with the one that
    # residuals of random sign would ask for.
    random_step = spread * math.sqrt(H.shape[0] / float(xp.sum(xp.linalg.diagonal(H))))
    scale = max(_size(fit, H), random_step)
    relative = step / scale if scale > 0 else step
    if relative <= _WARN:
        return relative
    finding = (
        f"the gradient has norm {norm(gradient):.2g} and Newton's method would still move the "
        f"coefficients by {relative:.2g} of their size (weighed by the curvature)"
    )
    if relative <= _REFUSE:
        _warn(
            f"The coefficients are near the minimiser but have not converged: {finding}. The "
            "leakage is about as accurate as that; refit with a tighter tol for more."
        )
    elif on_mismatch == "warn":
        _warn(f"The coefficients do not minimise the stated objective: {finding}.")
    else:
        raise NotTheMinimiserError(
            f"The coefficients do not minimise the stated objective on these data: {finding}. The "
            "data, the penalty or the sample weights may be others than in the fit, or the fit "
            "did not converge; pass what the model was fitted on (sample_weight= too), refit with "
            'a tighter tol, or go on regardless with on_mismatch="warn".'
        )
    return relative


def _check_choice(on_mismatch: str) -> None:
    if on_mismatch not in ("raise", "warn"):
        raise InputError(f"on_mismatch must be 'raise' or 'warn', not {on_mismatch!r}.")


def _warn(message: str) -> None:
    warnings.warn(message, NotConvergedWarning, stacklevel=4)


def _size(fit: FittedGLM, H: Array) -> float:
    """Return ``√(wᵀHw)``, with the intercept projected out: the spread of the margins."""
    xp = array_namespace(H)
    w = xp.reshape(fit.coef, (-1,))
    kept = w.shape[0]
    image = H[:, :kept] @ w
    square = float(xp.sum(w * image[:kept]))
    if fit.intercept is not None:
        shift = image[kept:]
        square -= float(xp.sum(shift * xp.linalg.solve(H[kept:, kept:], shift[:, None])[:, 0]))
    return math.sqrt(max(square, 0.0))


def gradient_and_spread(fit: FittedGLM, X: Array) -> tuple[Array, float]:
    """Return the gradient at the coefficients, and ``√Σᵢ (ωᵢ rᵢ ‖xᵢ‖)²``, in chunks of rows."""
    theta, squares = fit.parameters, 0.0
    total = fit.ridge * theta
    if fit.intercept is not None:
        total[-1, ...] = 0.0
    for part in _parts(fit, X):
        slopes = part.slopes(part.margins(theta))
        total = total + part.gradient(theta, slopes)
        lengths = part.row_norms if len(slopes.shape) == 1 else part.row_norms[:, None]
        squares += norm(slopes * lengths) ** 2
    return total, math.sqrt(squares)


def _hessian(fit: FittedGLM, X: Array) -> Array:
    whole = Objective.of(fit, X)
    H: Array = 0.0
    for part in _parts(fit, X):
        H = H + part.hessian(part.margins(fit.parameters))
    free = 0 if fit.intercept is None else math.prod(fit.coef.shape[1:])
    return whole.definite(penalised(H, fit.ridge, free))


def _parts(fit: FittedGLM, X: Array) -> Iterator[Objective]:
    """Yield the objectives of chunks of rows, without the penalty and in the type of ``fit``."""
    xp = array_namespace(fit.coef)
    for rows in row_chunks(*X.shape):
        weight = None if fit.sample_weight is None else fit.sample_weight[rows]
        part = replace(fit, target=fit.target[rows, ...], sample_weight=weight, ridge=0.0)
        yield Objective.of(part, xp.astype(X[rows, :], fit.coef.dtype, copy=False))
