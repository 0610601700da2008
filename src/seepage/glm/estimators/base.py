"""What the estimators share: the parameters, the fit, and the margins of new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from seepage.glm.estimators.inputs import place_like, read_features, read_penalty
from seepage.glm.fitting.least_squares import solve_least_squares
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective
from seepage.glm.fitting.streamed import AnyObjective, PenalisedLoss, StreamedObjective
from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family
from seepage.tables.frames import Table

if TYPE_CHECKING:
    from seepage.tables.source import RowSource

Array = Any  # any array of the array API standard


class LinearModel(BaseEstimator):  # type: ignore[misc]
    """A generalized linear model: margins ``Xw + w₀`` that minimise an L2-penalised loss."""

    coef_: Array
    intercept_: Array
    n_iter_: int
    weighted_: bool
    """Whether the fit had sample weights other than one: its leakage then needs the same ones."""
    _start: Array | None = None
    """Where Newton's method starts: set by whoever refits one model to much the same data."""

    def __init__(self, l2: float = 0.0, fit_intercept: bool = False) -> None:
        self.l2 = l2
        self.fit_intercept = fit_intercept

    def _solve(self, objective: AnyObjective, names: tuple[str, ...]) -> Array:
        """Return the parameters of the minimiser, (D,) or (D, K), and note how it was found."""
        if objective.family.name == "gaussian":
            self.n_iter_ = 1
            return solve_least_squares(objective, names)
        minimum = minimise(objective, self._start, names)
        self.n_iter_ = minimum.steps
        return minimum.parameters

    def _solve_in_memory(
        self, table: Table, family: Family | Categorical, target: Array, weights: Array | None
    ) -> Array:
        ridge, intercept = read_penalty(self.l2, len(table)), bool(self.fit_intercept)
        self.weighted_ = weights is not None
        return self._solve(
            Objective(table.values, family, target, weights, ridge, intercept), table.names
        )

    def _solve_streamed(
        self, source: RowSource, family: Family | Categorical, classes: np.ndarray | None
    ) -> Array:
        ridge, intercept = read_penalty(self.l2, len(source)), bool(self.fit_intercept)
        loss = PenalisedLoss(family, classes, ridge, intercept, len(source.names))
        theta = self._solve(StreamedObjective(source, loss), source.names)
        self.weighted_ = source.weighted
        self.n_features_in_ = len(source.names)
        self.feature_names_in_ = np.asarray(source.names, dtype=object)
        return theta

    def _parameters(self) -> Array:
        """Return the fitted parameters in the shape :func:`split_parameters` takes apart."""
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
        xp = array_namespace(values)
        coef = place_like(self.coef_, values)
        intercept = place_like(self.intercept_, values)
        outputs = 1 if len(coef.shape) == 1 else coef.shape[0]
        if outputs == 1:
            coef, intercept = xp.reshape(coef, (-1,)), xp.reshape(intercept, ())
        return values @ coef.T + intercept if outputs > 1 else values @ coef + intercept


def split_parameters(theta: Array, intercept: bool) -> tuple[Array, Array]:
    """Return the coefficients and the intercept (zero where the model has none)."""
    xp = array_namespace(theta)
    if intercept:
        return theta[:-1, ...], theta[-1, ...]
    return theta, xp.zeros_like(theta[0, ...])
