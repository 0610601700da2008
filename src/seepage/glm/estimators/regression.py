"""What the regressors share: fitting one margin to a numeric target, predicting and scoring it."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from seepage.errors import InputError
from seepage.glm.estimators.base import LinearModel, split_parameters
from seepage.glm.estimators.inputs import read_features, read_response, read_weights
from seepage.glm.losses.families import Family
from seepage.streams.dispatch import as_source, is_streamed
from seepage.tables.frames import as_numpy

Array = Any  # any array of the array API standard


class GLMRegressor(RegressorMixin, LinearModel):  # type: ignore[misc]
    """A generalized linear model of a numeric target, for the family a subclass names."""

    def _family(self) -> Family:
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Minimise the objective on a table ``X``, (n, d), targets ``y`` and weights ``ω``, (n,).

        A torch tensor is fitted where it lives, and ``coef_`` is then a tensor there. With
        ``seepage.parquet`` data, or a path with column names for ``y`` and ``sample_weight``, rows
        are read in chunks, once for every Newton step.
        """
        if is_streamed(X):
            source = as_source(X, y, sample_weight)
            theta = self._solve_streamed(source, self._family(), None)
            self.coef_, self.intercept_ = split_parameters(theta, bool(self.fit_intercept))
            return self
        table = read_features(self, X, fitting=True)
        target = read_response(y, table)
        weights = read_weights(sample_weight, table)
        family = self._family()
        problem = family.problem_with(target)
        if problem is not None:
            raise InputError(f"y does not suit {type(self).__name__}: {problem}.")
        theta = self._solve_in_memory(table, family, target, weights)
        self.coef_, self.intercept_ = split_parameters(theta, bool(self.fit_intercept))
        return self

    def predict(self, X: Any) -> Array:
        """Return the mean ``E[y | x]`` of every row, (n,)."""
        return self._family().mean(self._margins(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R², the share of the variance of ``y`` that the predictions explain."""
        weights = None if sample_weight is None else as_numpy(sample_weight)
        return float(r2_score(as_numpy(y), as_numpy(self.predict(X)), sample_weight=weights))
