"""The differential privacy of every record by itself, as people read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seepage.errors import InputError

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class IndividualPrivacy:
    """Rényi differential privacy of each record, for adding or removing that one.

    It is an estimate along the run that took place: a guarantee before the run needs a filter that
    stops a record when its budget is spent (Feldman and Zrnic 2021).

    Parameters
    ----------
    orders
        The Rényi orders.
    costs
        The cost of each record at each order, ``(n, orders)``.
    errors
        Its standard errors; nan for a record that was in fewer than two batches.
    run_epsilon
        The ε of the whole run as a function of δ, which no record's exceeds.
    """

    orders: tuple[int, ...]
    costs: Numbers
    errors: Numbers
    run_epsilon: Callable[[float], float] | None = None

    def __repr__(self) -> str:
        cost = self.rdp(self.orders[0])
        return (
            f"<individual RDP of {len(cost)} records at order {self.orders[0]}: "
            f"median {np.median(cost):.4g}, largest {cost.max():.4g}>"
        )

    def rdp(self, order: int = 2) -> Numbers:
        """Return the Rényi cost of each record at an order."""
        return self.costs[:, self._place(order)]

    def standard_errors(self, order: int = 2) -> Numbers:
        """Return the standard errors of :meth:`rdp`."""
        return self.errors[:, self._place(order)]

    def epsilon(self, delta: float) -> Numbers:
        """Return the ε of each record at δ, the least over the orders and that of the whole run.

        ``ρ_α + log(1 − 1/α) − log(δα)/(α − 1)`` (Canonne, Kamath and Steinke 2020, proposition 12).
        """
        if not 0 < delta < 1:
            raise InputError(f"delta must lie between 0 and 1, not {delta!r}.")
        order = np.asarray(self.orders, dtype=float)
        every = self.costs + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)
        whole = np.inf if self.run_epsilon is None else self.run_epsilon(delta)
        return np.asarray(np.minimum(np.maximum(every.min(axis=1), 0.0), whole))

    def _place(self, order: int) -> int:
        if order not in self.orders:
            raise InputError(f"order must be one of {', '.join(map(str, self.orders))}.")
        return self.orders.index(order)
