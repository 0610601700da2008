"""Linear regression: least squares with an L2 penalty, solved exactly."""

from __future__ import annotations

from seepage.glm.estimators.regression import GLMRegressor
from seepage.glm.losses.families import Family, gaussian


class LinearRegression(GLMRegressor):
    """Linear regression: minimises ``½ Σᵢ ωᵢ (wᵀxᵢ + w₀ − yᵢ)² + (nλ/2) ‖w‖²`` exactly.

    Here n is the number of rows, λ = ``l2``, ω the sample weights (one where none are given); the
    intercept w₀ is not penalised (paper 001, equation 13).

    Parameters
    ----------
    l2
        λ, at least 0. At 0 the columns must be linearly independent.
    fit_intercept
        Whether there is an intercept; it is then part of what is released.

    Attributes
    ----------
    coef_
        ``w``, (d,).
    intercept_
        ``w₀``; 0 where the model has none.
    n_iter_
        Always 1: the solution is direct.
    n_features_in_, feature_names_in_
        The number of columns, and their names where ``X`` was a data frame.
    weighted_
        Whether sample weights other than one took part.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from seepage.glm import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(LinearRegression(l2=1e-4, fit_intercept=True).fit(X, y).score(X, y), 2)
    0.51
    """

    def _family(self) -> Family:
        return gaussian
