"""Estimated results: values with standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from seepage.core.result import Result
from seepage.nn.privacy.randomness import mark_of, marked
from seepage.support.number_check import check_share
from seepage.tables.result_table import PlottedNumbers
from seepage.tables.source import Array, build_frame


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Result):
    """A :class:`~seepage.core.result.Result` in which every value has a standard error.

    Parameters
    ----------
    standard_errors
        The standard errors, in the shape of the values; NaN if unknown.
    conditions
        The assumptions under which the values are valid, in words.
    degrees
        The degrees of freedom of the standard errors, as one number for all values or one for each:
        for example, the number of probes minus one. Infinity for exact values, or if unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.nn.measures.estimate import Estimate
    >>> found = Estimate(
    ...     np.array([0.5, 2.0]), "rows", "dfil", "estimate", standard_errors=np.array([0.1, 0.2])
    ... )
    >>> found.interval()
    (array([0.304..., 1.608...]), array([0.695..., 2.391...]))
    >>> found.mse_bound().standard_errors
    array([1.6 , 0.05])
    """

    standard_errors: Array = None
    conditions: tuple[str, ...] = ()
    degrees: Array = math.inf

    def __repr__(self) -> str:
        return marked(super().__repr__(), (*self.conditions, *self.assumptions))

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of a confidence interval, ``v ± t·error``; the lower end is at least 0.

        ``t`` is the quantile of Student's t distribution with ``degrees`` degrees of freedom, or
        the normal quantile if they are infinite. For a record that leaks in one or two directions,
        estimates from few probes have a skewed distribution. In simulations, 95 % intervals from 4
        or 8 probes covered the true value in 87 to 93 % of cases, and 95 % intervals from 2 probes
        in 84 %. Over finite steps, probes may also miss a kink that only one direction in several
        hundred crosses.
        """
        # Imported here, so that training needs only torch and numpy.
        from scipy.stats import t

        check_share(level, "level")
        reach = t.ppf((1 + level) / 2, self.degrees) * np.asarray(self.standard_errors)
        return np.maximum(np.asarray(self) - reach, 0.0), np.asarray(self) + reach

    def interval_ends(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the ends of the 95 % intervals, or ``None`` for tables of cells."""
        return self.interval() if len(self.shape) < 2 else None

    def select(self, positions: Any) -> Self:
        """Return the entries at the given positions, in that order."""
        order = np.asarray(positions)
        return replace(
            self,
            values=np.asarray(self)[order],
            standard_errors=np.asarray(self.standard_errors)[order],
            degrees=self.degrees if np.ndim(self.degrees) == 0 else self.degrees[order],
            index=self.labels()[order],
        )

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the values with their 95 % intervals."""
        drawn = super().drawing()
        if len(self.shape) != 1:
            return drawn
        low, high = self.sort().interval()
        return replace(drawn, low=low, high=high)

    def mse_bound(self) -> Estimate:
        """Return ``1/η²``, the least mean squared error per unknown of an unbiased estimate.

        The standard error of this bound is ``2/η³`` times the standard error of ``η``.
        """
        bound = super().mse_bound()
        slope = 2 * np.asarray(bound) ** 1.5
        errors = np.asarray(self.standard_errors)
        spread = np.multiply(slope, errors, out=np.full_like(slope, np.nan), where=slope < np.inf)
        assumptions = (*bound.assumptions[:2], *self.conditions)
        return replace(
            self,
            values=np.asarray(bound),
            measure="mse",
            kind="bound",
            standard_errors=spread,
            assumptions=assumptions,
        )

    def std_bound(self) -> Estimate:
        """Return the square root of :meth:`mse_bound`, in the units of the data."""
        bound = self if self.measure == "mse" else self.mse_bound()
        values = np.sqrt(np.asarray(bound))
        errors = np.asarray(bound.standard_errors) / (2 * values)
        return replace(bound, values=values, measure="std", standard_errors=errors)

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with the values and their standard errors.

        If the noise can be regenerated, the column ``condition`` states this.
        """
        numbers, errors = np.asarray(self), np.asarray(self.standard_errors)
        columns: dict[str, Any]
        if numbers.ndim < 2:
            first = {"row": self.labels()} if self.shape else {"view": [self.view]}
            columns = first | {
                self.measure: np.atleast_1d(numbers),
                "standard_error": np.atleast_1d(errors),
            }
        else:
            columns = {"row": self.labels()}
            names = self.names or tuple(str(j) for j in range(numbers.shape[1]))
            columns |= {name: numbers[:, j] for j, name in enumerate(names)}
            columns |= {f"{name} (error)": errors[:, j] for j, name in enumerate(names)}
        if mark := mark_of(self.conditions):
            columns["condition"] = [mark] * len(np.atleast_1d(numbers))
        return build_frame(columns, library or self.library)
