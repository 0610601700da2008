"""The interface of a preprocessing step, and the simplest steps.

A step maps every row of a table to a new row, ``x ↦ T(x; φ)``. The parameters φ, such as means,
standard deviations or knots, may be learnt from all rows. A step provides the derivative of a row's
output with respect to the row (with φ fixed), the derivative of φ with respect to one row, and the
output for a different φ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from seepage.glm.refusals import NoDerivativeError


class FeatureStep(ABC):
    """One fitted step. Rows are arrays, or data frames if the step selects columns by name."""

    name: str
    # What it has learnt from the data, in the words of ``Result.held``, and the part of it
    # that is a choice (a level, a column): no derivative moves it
    held: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """Return ``T(x; φ)`` for every row, of shape (n, q)."""

    @abstractmethod
    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the change of ``T(x; φ)`` when each row changes along its own ``dX``, (n, q)."""

    def coded(self, X: Any) -> tuple[str, ...]:
        """Return the numeric columns that the step treats as category codes."""
        return ()

    def refitted(self, X: Any) -> FeatureStep:
        """Return the step refitted on new rows."""
        return self

    def learnt(self) -> np.ndarray:
        """Return φ as one vector, which is empty if nothing was learnt."""
        return np.zeros(0)

    def units(self, X: Any) -> np.ndarray:
        """Return the size of a large change of each number in φ, for finite differences, (p,)."""
        return np.ones(len(self.learnt()))

    def with_learnt(self, numbers: np.ndarray) -> FeatureStep:
        """Return the step with a different φ."""
        return self

    def influence(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the change of φ when one row changes along its ``dX``, for each row, (n, p).

        The result is the derivative of :meth:`learnt`.
        """
        return np.zeros((len(dX), 0))

    def response(self, X: Any, first: Any, other: Any) -> np.ndarray:
        """Return the linearised change of φ when row ``first`` is replaced by ``other``."""
        if not len(self.learnt()):
            return np.zeros((np.shape(X)[0], 0))
        return self.influence(X, dense(other) - dense(first))


class KeptColumns(FeatureStep):
    """Selects the columns that have nonzero coefficients under an L1 penalty."""

    name = "kept columns"

    def __init__(self, columns: np.ndarray) -> None:
        self.columns = columns

    def transform(self, X: Any) -> np.ndarray:
        """Return the selected columns."""
        return dense(X)[:, self.columns]

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the changes of the selected columns."""
        return dX[:, self.columns]


def dense(X: Any) -> np.ndarray:
    """Return rows as an array of floats."""
    values = np.asarray(X.toarray() if scipy.sparse.issparse(X) else X, dtype=float)
    return values if values.ndim == 2 else values.reshape(len(values), -1)


def by_differences(apply: Callable[[float], np.ndarray], what: str) -> np.ndarray:
    """Return the derivative of ``apply`` at 0, by extrapolated differences.

    The argument of ``apply`` is scaled so that 1 is a large change. Three steps, each half the
    previous one, leave a sixth-order error (Richardson extrapolation). If the extrapolations
    disagree, there is no derivative, and the error message names ``what``.
    """

    def central(h: float) -> np.ndarray:
        return np.asarray((apply(h) - apply(-h)) / (2 * h))

    # Steps relative to the size of what is moved
    first, second, third = central(1e-3), central(1e-3 / 2), central(1e-3 / 4)
    coarse, fine = (4 * second - first) / 3, (4 * third - second) / 3
    scale = np.max(np.abs(fine), initial=0.0)
    if not np.max(np.abs(fine - coarse), initial=0.0) <= 1e-5 * scale:  # NaN is refused too
        raise NoDerivativeError(
            f"{what} has no derivative for some records, because it bins, ranks or rounds values.",
            "Drop that step, audit the final model on the transformed table with "
            "sp.audit(pipeline[-1], pipeline[:-1].transform(X), y), or measure risks by refits "
            "with sp.leakage(pipeline, X, y, …).membership().",
        )
    return np.asarray((16 * fine - coarse) / 15)
