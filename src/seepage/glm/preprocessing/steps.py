"""The protocol of a preprocessing step, and the simplest steps.

A step turns every row of a table into another, ``x ↦ T(x; φ)``, by numbers φ that it may have
learnt from all rows: means, deviations, knots. It answers three questions: how a row's result moves
with the row (φ held fixed), how φ moves with one row, and what the table becomes with another φ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from seepage.glm.adapters.kinds import NoDerivativeError


class FeatureStep(ABC):
    """One step, fitted. Rows are arrays, or frames where a step takes columns by name."""

    name: str
    # What it has learnt from the data, in the words of ``Result.held``, and the part of it
    # that is a choice (a level, a column): no derivative moves it
    held: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """Return ``T(x; φ)`` of every row, (n, q)."""

    @abstractmethod
    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return how far ``T(x; φ)`` moves when each row moves along its own ``dX``, (n, q)."""

    def coded(self, X: Any) -> tuple[str, ...]:
        """Return the columns of numbers that it takes as codes of categories."""
        return ()

    def refitted(self, X: Any) -> FeatureStep:
        """Return the step refitted on other rows."""
        return self

    def learnt(self) -> np.ndarray:
        """Return φ as one vector; empty where nothing was learnt."""
        return np.zeros(0)

    def units(self, X: Any) -> np.ndarray:
        """Return what counts as a large change of each number of φ, for differences, (p,)."""
        return np.ones(len(self.learnt()))

    def with_learnt(self, numbers: np.ndarray) -> FeatureStep:
        """Return the step with other φ."""
        return self

    def influence(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return how far φ moves when one row alone moves along its ``dX``, for every row, (n, p).

        The derivative of :meth:`learnt`.
        """
        return np.zeros((len(dX), 0))

    def response(self, X: Any, first: Any, other: Any) -> np.ndarray:
        """Return how far φ moves, in proportion, when one row is ``other`` instead of ``first``."""
        if not len(self.learnt()):
            return np.zeros((np.shape(X)[0], 0))
        return self.influence(X, dense(other) - dense(first))


class KeptColumns(FeatureStep):
    """The columns that an L1 penalty left in."""

    name = "kept columns"

    def __init__(self, columns: np.ndarray) -> None:
        self.columns = columns

    def transform(self, X: Any) -> np.ndarray:
        """Return those columns."""
        return dense(X)[:, self.columns]

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the moves of those columns."""
        return dX[:, self.columns]


def dense(X: Any) -> np.ndarray:
    """Return rows as an array of floats."""
    values = np.asarray(X.toarray() if scipy.sparse.issparse(X) else X, dtype=float)
    return values if values.ndim == 2 else values.reshape(len(values), -1)


def by_differences(apply: Callable[[float], np.ndarray], what: str) -> np.ndarray:
    """Return the derivative at 0 of ``apply``, by extrapolated differences.

    A move of 1 counts as large. Three steps, each half of the one before, leave an error of their
    sixth power (Richardson); where the extrapolations disagree there is no derivative, and ``what``
    is refused by that name.
    """

    def central(h: float) -> np.ndarray:
        return np.asarray((apply(h) - apply(-h)) / (2 * h))

    # Steps relative to the size of what is moved
    first, second, third = central(1e-3), central(1e-3 / 2), central(1e-3 / 4)
    coarse, fine = (4 * second - first) / 3, (4 * third - second) / 3
    scale = np.max(np.abs(fine), initial=0.0)
    if not np.max(np.abs(fine - coarse), initial=0.0) <= 1e-5 * scale:  # NaN is refused too
        raise NoDerivativeError(
            f"{what} has no derivative at some records (it is cut, ranked or rounded there).",
            "Leave that step out, audit the final model on the transformed table: "
            "sp.audit(pipeline[-1], pipeline[:-1].transform(X), y), or ask for risks by refits: "
            "sp.leakage(pipeline, X, y, …).membership().",
        )
    return np.asarray((16 * fine - coarse) / 15)
