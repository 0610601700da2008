"""Regressors: a numeric target from one margin, by least squares, counts, or any loss."""

from __future__ import annotations

from typing import Any

from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from seepage.glm.estimators.base import LinearModel
from seepage.glm.estimators.inputs import read_response, read_weights
from seepage.glm.losses.families import Family, gaussian, get_family, poisson
from seepage.tables.source import RowSource, Table, as_numpy

Array = Any  # any array of the array API standard


class GLMRegressor(RegressorMixin, LinearModel):  # type: ignore[misc]
    """A generalized linear model of a numeric target, for the family a subclass names."""

    def _family(self) -> Family:
        raise NotImplementedError

    def _read_source(self, source: RowSource) -> tuple[Family, None]:
        return self._family(), None

    def _read_labels(
        self, y: Any, sample_weight: Any, table: Table
    ) -> tuple[Family, Array, Array | None]:
        family, target = self._family(), read_response(y, table)
        weights = read_weights(sample_weight, table)
        family.check_labels(target, type(self).__name__)
        return family, target, weights

    def predict(self, X: Any) -> Array:
        """Return the mean ``E[y | x]`` of every record, (n,)."""
        return self._family().mean(self._margins(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R², the share of the variance of ``y`` that the predictions explain."""
        weights = None if sample_weight is None else as_numpy(sample_weight)
        return float(r2_score(as_numpy(y), as_numpy(self.predict(X)), sample_weight=weights))


class LinearRegression(GLMRegressor):
    """Linear regression: minimises ``½ Σᵢ ωᵢ (wᵀxᵢ + w₀ − yᵢ)² + (nλ/2) ‖w‖²`` exactly.

    Here n is the number of records, λ = ``l2``, ω the sample weights (one where none are given);
    the intercept w₀ is not penalised (paper 001, equation 13).

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


class PoissonRegression(GLMRegressor):
    """Poisson regression: minimises ``Σᵢ ωᵢ (exp(mᵢ) − yᵢ mᵢ) + (nλ/2) ‖w‖²``, mᵢ = wᵀxᵢ + w₀.

    Here n is the number of records, λ = ``l2``, ω the sample weights (one where none are given);
    the intercept w₀ is not penalised (paper 001, equation 13). The link is the logarithm.

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


class GeneralizedLinearRegression(GLMRegressor):
    """Regression with any loss: minimises ``Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (nλ/2) ‖w‖²``.

    Here ℓ is the loss of the family, n the number of records, λ = ``l2``, ω the sample weights (one
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
