"""What the estimators share: the parameters, the fit, and the margins of new records."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace, device
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from seepage.glm.estimators.inputs import as_source, is_streamed, read_features, read_penalty
from seepage.glm.fitting.least_squares import solve_least_squares
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective
from seepage.glm.fitting.streamed import AnyObjective, PenalisedLoss, StreamedObjective
from seepage.glm.losses.families import Categorical, Family
from seepage.tables.source import RowSource, Table, place_like

Array = Any  # any array of the array API standard


class LinearModel(BaseEstimator):  # type: ignore[misc]
    """A generalized linear model: margins ``Xw + w₀`` that minimise an L2-penalised loss."""

    coef_: Array
    intercept_: Array
    n_iter_: int
    """The number of Newton steps; 1 for least squares, whose solution is direct."""
    n_features_in_: int
    """The number of columns; ``feature_names_in_`` are their names where ``X`` was a data frame."""
    weighted_: bool
    """Whether the fit had sample weights other than one: its leakage then needs the same ones."""
    _start: Array | None = None
    """Where Newton's method starts: set by whoever refits one model to much the same data."""

    def __init__(self, l2: float = 0.0, fit_intercept: bool = False) -> None:
        self.l2 = l2
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Minimise the objective on a table ``X``, (n, d), labels ``y`` and weights ``ω``, (n,).

        A torch tensor is fitted where it lives, and ``coef_`` is then a tensor there. With
        ``seepage.parquet`` data, or a path with column names for ``y`` and ``sample_weight``, rows
        are read in chunks, once for every Newton step.
        """
        intercept = bool(self.fit_intercept)
        objective: AnyObjective
        if is_streamed(X):
            source = as_source(X, y, sample_weight)
            names, self.weighted_ = source.names, source.weighted
            ridge = read_penalty(self.l2, len(source))
            loss = PenalisedLoss(*self._read_source(source), ridge, intercept, len(names))
            objective = StreamedObjective(source, loss)
            self.n_features_in_ = len(names)
            self.feature_names_in_ = np.asarray(names, dtype=object)
        else:
            table = read_features(self, X, fitting=True)
            family, target, weights = self._read_labels(y, sample_weight, table)
            names, self.weighted_ = table.names, weights is not None
            ridge = read_penalty(self.l2, len(table))
            objective = Objective(table.values, family, target, weights, ridge, intercept)
        if objective.family.name == "gaussian":
            self.n_iter_, theta = 1, solve_least_squares(objective, names)
        else:
            minimum = minimise(objective, self._start, names)
            self.n_iter_, theta = minimum.steps, minimum.parameters
        self._store(theta)
        return self

    def _read_source(self, source: RowSource) -> tuple[Family | Categorical, np.ndarray | None]:
        """Return the loss for the labels of a source, and their classes if they have any."""
        raise NotImplementedError

    def _read_labels(
        self, y: Any, sample_weight: Any, table: Table
    ) -> tuple[Family | Categorical, Array, Array | None]:
        """Return the loss, the labels as numbers where the table lives, and the weights."""
        raise NotImplementedError

    def _store(self, theta: Array) -> None:
        """Keep the parameters as the coefficients and the intercept (zero where there is none)."""
        self.coef_ = theta[:-1, ...] if self.fit_intercept else theta
        last = theta[-1, ...]
        self.intercept_ = last if self.fit_intercept else array_namespace(theta).zeros_like(last)

    def _parameters(self) -> Array:
        """Return the fitted parameters in one array, the intercept last."""
        xp = array_namespace(self.coef_)
        theta = self.coef_ if len(self.coef_.shape) == 1 else self.coef_.T
        theta = theta[:, 0] if theta.shape[1:] == (1,) else theta
        if not self.fit_intercept:
            return theta
        last = xp.asarray(self.intercept_, dtype=theta.dtype, device=device(theta))
        return xp.concat([theta, xp.reshape(last, (1, *theta.shape[1:]))], axis=0)

    def _margins(self, X: Any) -> Array:
        """Return ``Xw + w₀``: (n,), or (n, K) for softmax, in the library of ``X``."""
        check_is_fitted(self)
        values = read_features(self, X, fitting=False).values
        theta, d = place_like(self._parameters(), values), values.shape[1]
        M = values @ theta[:d, ...]
        return M + theta[d, ...] if self.fit_intercept else M
