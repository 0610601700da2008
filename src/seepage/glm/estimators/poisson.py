"""Poisson regression of counts, with the logarithm as the link."""

from __future__ import annotations

from typing import Any

from seepage.glm.estimators.regression import GLMRegressor
from seepage.glm.losses.families import Family, poisson


class PoissonRegression(GLMRegressor):
    """Poisson regression: minimises ``Σᵢ ωᵢ (exp(mᵢ) − yᵢ mᵢ) + (nλ/2) ‖w‖²``, mᵢ = wᵀxᵢ + w₀.

    Here n is the number of rows, λ = ``l2``, ω the sample weights (one where none are given); the
    intercept w₀ is not penalised (paper 001, equation 13). The link is the logarithm.

    Parameters
    ----------
    l2
        λ, at least 0. At 0 the columns must be linearly independent, and the counts must not be
        zero throughout some category.
    fit_intercept
        Whether there is an intercept; it is then part of what is released.

    Attributes
    ----------
    coef_
        ``w``, (d,).
    intercept_
        ``w₀``; 0 where the model has none.
    n_iter_
        The number of Newton steps.
    n_features_in_, feature_names_in_
        The number of columns, and their names where ``X`` was a data frame.
    weighted_
        Whether sample weights other than one took part.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.glm import PoissonRegression
    >>> X = np.asarray([[0.0], [1.0], [2.0], [3.0]])
    >>> PoissonRegression().fit(X, [1, 2, 4, 8]).predict(X).round(6)
    array([1., 2., 4., 8.])
    """

    def _family(self) -> Family:
        return poisson

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        # Without an intercept, counts that are not near 1 at x = 0 are badly predicted.
        tags.regressor_tags.poor_score = not self.fit_intercept
        return tags
