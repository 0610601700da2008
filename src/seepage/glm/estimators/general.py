"""Regression with any registered family."""

from __future__ import annotations

from seepage.glm.estimators.regression import GLMRegressor
from seepage.glm.losses.families import Family, get_family


class GeneralizedLinearRegression(GLMRegressor):
    """Regression with any loss: minimises ``Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (nλ/2) ‖w‖²``.

    Here ℓ is the loss of the family, n the number of rows, λ = ``l2``, ω the sample weights (one
    where none are given); the intercept w₀ is not penalised (paper 001, equation 13).

    Parameters
    ----------
    family
        The name of a family, built in or registered by :func:`seepage.glm.register_family`, or
        a :class:`seepage.glm.Family` itself.
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
        The number of Newton steps.
    n_features_in_, feature_names_in_
        The number of columns, and their names where ``X`` was a data frame.
    weighted_
        Whether sample weights other than one took part.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from seepage.glm import GeneralizedLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(GeneralizedLinearRegression("poisson", fit_intercept=True).fit(X, y).score(X, y), 2)
    0.52
    """

    def __init__(
        self, family: str | Family = "gaussian", l2: float = 0.0, fit_intercept: bool = False
    ) -> None:
        super().__init__(l2=l2, fit_intercept=fit_intercept)
        self.family = family

    def _family(self) -> Family:
        return get_family(self.family)
