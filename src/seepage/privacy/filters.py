"""Privacy filters: a record whose privacy budget is spent is excluded from further releases.

Each release may depend on earlier releases. Given the earlier releases, release t costs record i
``ρ_t(i)``. If a record takes part only while ``Σ_t ρ_t(i) ≤ ρ``, the whole stream costs no record
more than ρ, however the releases are chosen. This holds for costs in Rényi divergence at one order
fixed in advance (Feldman and Zrnic 2021), and in ``μ²`` with Gaussian noise (Smith and Thakurta
2022; Koskela, Tobaben and Honkela 2022). Without a filter, a record's sum over the actual run is
only an estimate; with a filter, the budget is a guarantee for every record.

The budget that a record has spent is not a guarantee for that record, because it depends on the
record itself and, through the releases, on the other records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from seepage.core.noise import Gaussian
from seepage.errors import InputError, accepts_other_names
from seepage.privacy.statements import GaussianDP, RenyiDP
from seepage.support.number_check import check_count
from seepage.tables.names import counted
from seepage.tables.source import as_numpy

ADD_OR_REMOVE = "add-or-remove"
CONDITIONS = (
    "Whether a record takes part depends only on that record and on earlier releases.",
    "Neither the choice of published results nor the time of the last one depends on which or how "
    "many records take part.",
    "The list of excluded records and the budget that each record has spent remain secret.",
)
_SEEDED = (
    "Some noise was generated from a seed, for an experiment: anybody who knows the seed can "
    "subtract the noise."
)


class PrivacyFilter:
    """The records that may still take part in a stream of releases, and the budget each has spent.

    Parameters
    ----------
    records
        The number of records.
    budget
        The guarantee for each record: ``GaussianDP(mu, "add-or-remove")``, with ``μ²`` as the
        budget, or ``RenyiDP({order: epsilon}, "add-or-remove")`` at one order.

    Attributes
    ----------
    active
        A mask of the records that are not yet excluded. Keep this mask and ``spent`` secret:
        whether a record is excluded reveals information about the record that no budget covers.
    spent
        The budget that each record has spent so far: ``Σ μ²``, or the sum of Rényi divergences.

    Examples
    --------
    This example releases three sums of records between 0 and 1, each with noise of standard
    deviation 1, under a budget of μ = 1.2. The record with value 1 takes part in one sum; the
    record with value 0.6 takes part in all three.

    >>> import numpy as np
    >>> from seepage import Gaussian
    >>> from seepage.privacy import GaussianDP, PrivacyFilter
    >>> budget = PrivacyFilter(3, GaussianDP(1.2, "add-or-remove"))
    >>> table = np.array([[1.0], [0.6], [0.3]])
    >>> sums = [budget.noisy_sum(table, Gaussian(1.0)) for _ in range(3)]
    >>> budget.active.tolist()
    [False, True, True]
    >>> budget.spent.round(2).tolist()
    [1.0, 1.08, 0.27]
    >>> print(budget)
    3 releases under a budget for each record: the Gaussian mechanism with μ = 1.2 (add-or-remove)
    """

    def __init__(self, records: int, budget: GaussianDP | RenyiDP) -> None:
        check_count(records, "records")
        if not isinstance(budget, GaussianDP | RenyiDP):
            raise InputError(
                "budget must be GaussianDP(mu, 'add-or-remove') or RenyiDP({order: epsilon}, "
                f"'add-or-remove') from seepage.privacy, not {type(budget).__name__}."
            )
        if budget.neighbours != ADD_OR_REMOVE:
            raise InputError(
                "A filter's budget must be for adding or removing a record; pass "
                "neighbours='add-or-remove'."
            )
        if isinstance(budget, RenyiDP) and len(budget.points) != 1:
            raise InputError(
                "A filter needs one Rényi order, fixed in advance, because the best order of a "
                "stream is known only at its end; pass RenyiDP({order: epsilon}, 'add-or-remove')."
            )
        self.budget = budget
        # The Rényi order, none for a Gaussian budget, and the most that a record can spend.
        self.order: float | None
        self.order, self.limit = (
            budget.points[0] if isinstance(budget, RenyiDP) else (None, budget.mu**2)
        )
        self.releases = 0
        self.seeded = False
        self.active = np.ones(records, dtype=bool)
        self.spent = np.zeros(records)

    def promise(self) -> GaussianDP | RenyiDP:
        """Return the guarantee for every record, with its conditions."""
        said = (*self.budget.assumptions, *CONDITIONS, *((_SEEDED,) if self.seeded else ()))
        return replace(self.budget, assumptions=said, guarantee=not self.seeded)

    def __str__(self) -> str:
        # Neither the number of records that have stopped nor what they spent: both are secret.
        releases = counted(self.releases, "release")
        return f"{releases} under a budget for each record: {self.budget.words}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def cost(self, shifts: Any) -> np.ndarray:
        """Return each record's cost for a release with Gaussian noise.

        ``shifts`` are the distances μ by which each record moves the release, in standard
        deviations of the noise. The cost is ``μ²``, or ``αμ²/2`` for a Rényi budget of order α.
        """
        squares = np.square(as_numpy(shifts).astype(float))
        return np.asarray(squares if self.order is None else self.order * squares / 2)

    def admit(self, costs: Any, rows: Any = None) -> np.ndarray:
        """Return which records may take part in the next release, and charge their budgets.

        A record that is not admitted is excluded permanently. Call this method once before every
        release, and omit the records that are not admitted from that release.

        Parameters
        ----------
        costs
            The cost of the release to each record; it may depend only on that record and on earlier
            releases.
        rows
            The positions of these records; by default, all records in order.
        """
        costs = as_numpy(costs).astype(float)
        rows = np.arange(len(self.active)) if rows is None else as_numpy(rows)
        if costs.shape != rows.shape or costs.ndim != 1:
            raise InputError(
                f"There must be one cost per record, {len(rows)} in all, not an array of shape "
                f"{costs.shape}."
            )
        if not np.all(costs >= 0):  # nan neither
            raise InputError(
                "A cost is negative or nan; give each record a cost of at least zero, and check "
                "the contributions from which the costs were computed."
            )
        if len(np.unique(rows)) != len(rows):
            raise InputError(
                "A record can take part in a release only once, but some row occurs twice; list "
                "each row only once."
            )
        admitted = np.asarray(self.active[rows] & (self.spent[rows] + costs <= self.limit))
        self.active[rows] = admitted
        self.spent[rows] += np.where(admitted, costs, 0.0)
        self.releases += 1
        return admitted

    @accepts_other_names
    def noisy_sum(self, contributions: Any, noise: Gaussian, seed: int | None = None) -> np.ndarray:
        """Return the sum of the admitted records' contributions, with noise.

        Use this method for a stream of releases, or for a predictor that sums over its records
        (nearest-neighbour votes, kernels). A contribution may depend on its own record, on the
        query and on earlier results, but not on other records.

        Parameters
        ----------
        contributions
            One row of numbers for every record.
        noise
            Gaussian noise with one standard deviation for all numbers.
        seed
            For experiments only: anybody who knows the seed can subtract the noise.
        """
        rows = as_numpy(contributions).astype(float)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or len(rows) != len(self.active) or not np.all(np.isfinite(rows)):
            raise InputError(
                "contributions must have one row of finite numbers for each record, "
                f"{len(self.active)} in all; the given array has the shape {rows.shape}."
            )
        if not isinstance(noise, Gaussian) or np.ndim(noise.sigma) != 0:
            raise InputError(
                "A filter needs Gaussian noise with a single standard deviation; pass, for "
                "example, sp.Gaussian(1.0)."
            )
        admitted = self.admit(self.cost(np.linalg.norm(rows, axis=1) / noise.sigma))
        self.seeded |= seed is not None
        total = rows[admitted].sum(axis=0)
        return np.asarray(noise.rounded(total + noise.draw(total.size, seed)))
