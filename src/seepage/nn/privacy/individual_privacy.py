"""Estimates each record's Rényi differential privacy from the norms of its own gradients.

A record whose clipped gradient has the norm ``c`` shifts the mean of a step's release by ``c``, not
by the whole sensitivity. The record's privacy loss in the step is therefore the Rényi divergence of
a sampled Gaussian with noise multiplier ``s/c``, where ``s`` is the standard deviation of the noise
(Feldman and Zrnic 2021; Yu et al. 2023). The norm is observed only in the steps in which the record
takes part. All other steps are charged the average cost of those steps, so the total is an estimate
with a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.privacy.randomness import marked
from seepage.nn.privacy.run_membership import RunMembership, ShiftGroup, own_membership
from seepage.nn.privacy.run_privacy import Ledger, conditions_of_relation
from seepage.support.number_check import check_share
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, RecordResult
from seepage.tables.source import build_frame

Numbers = NDArray[np.float64]

# The last four are those of dp-accounting: they give the ε of a run with much noise.
ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256, 512, 1024)


def sampled_gaussian_renyi(
    sample_rate: float, shifts: Tensor, orders: Sequence[int] = ORDERS
) -> Tensor:
    """Return the Rényi DP of a Poisson-sampled Gaussian step, ``(B, orders)``.

    The result is ``(1/(α − 1)) log Σ_k C(α, k)(1 − q)^{α−k} q^k e^{(k² − k)μ²/2}`` for integer
    orders α (Mironov, Talwar and Zhang 2019, section 3.3), or ``αμ²/2`` for q = 1. Here, q is the
    sampling rate, and μ is the shift divided by the standard deviation of the noise. Orders above
    256 are useful only for small μ. At these orders, a result from an exponent above 30 is replaced
    by its upper bound ``αμ²/2``, the cost without sampling.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn.privacy.individual_privacy import sampled_gaussian_renyi
    >>> sampled_gaussian_renyi(1.0, torch.tensor([2.0]), (2, 3))
    tensor([[4., 6.]], dtype=torch.float64)
    """
    squares = shifts.double()[:, None] ** 2
    columns = []
    for order in orders:
        if sample_rate == 1.0:
            columns.append(order * squares[:, 0] / 2)
            continue
        # The terms k = 0 and 1 have no exponential; together with the other weights they sum to
        # one.
        k = torch.arange(2, order + 1, dtype=torch.float64, device=shifts.device)
        weights = (
            math.lgamma(order + 1)
            - torch.lgamma(k + 1)
            - torch.lgamma(order - k + 1)
            + k * math.log(sample_rate)
            + (order - k) * math.log1p(-sample_rate)
        )
        growth = (k * k - k) / 2
        # Above this exponent the one in log(1 + …) no longer matters. As long as none exceeds it,
        # weights below e⁻⁹⁰ of the first add nothing.
        large = growth[-1] * squares[:, 0] > 30.0
        cost = order * squares[:, 0] / 2
        heavy = weights > weights[0] - 90.0
        small = torch.expm1(growth[heavy] * squares[~large]) @ weights[heavy].exp()
        cost[~large] = torch.log1p(small) / (order - 1)
        if order <= 256:
            rest = math.log1p(-sample_rate) * (order - 1) + math.log1p((order - 1) * sample_rate)
            terms = torch.logsumexp(weights + growth * squares[large], 1)
            total = torch.logaddexp(terms, torch.full_like(terms, rest))
            cost[large] = total / (order - 1)
        columns.append(cost)
    return torch.stack(columns, 1)


class _Sum:
    """One of the sums of :class:`IndividualCosts`, which includes every step once it is read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, costs: IndividualCosts, owner: type) -> Tensor:
        costs.settle()
        return cast(Tensor, getattr(costs, self.name))

    def __set__(self, costs: IndividualCosts, value: Tensor) -> None:
        costs.settle()
        setattr(costs, self.name, value)


class IndividualCosts:
    """Sums each record's privacy cost over the steps, at every Rényi order."""

    kept: ClassVar[tuple[str, ...]] = ("costs", "squares", "weights", "norms")
    costs, squares, weights, norms = _Sum(), _Sum(), _Sum(), _Sum()

    def __init__(self, records: int, orders: Sequence[int] = ORDERS) -> None:
        self.orders = tuple(orders)
        # Steps that are not added yet: (sampling rate, index, shifts)
        self._waiting: list[tuple[float, Tensor, Tensor]] = []
        self.costs = torch.zeros(records, len(self.orders), dtype=torch.float64)
        self.squares = torch.zeros_like(self.costs)
        self.weights = torch.zeros(records, dtype=torch.float64)
        # For each record and half octave of its shifts μ, from 2⁻⁷ to 2³ (smaller and larger ones
        # join the ends): how many, and the sums of μ² and μ⁴. They determine its curve.
        self.norms = torch.zeros(records, 20, 3, dtype=torch.float32)

    def add(self, index: Tensor, sample_rate: float, shifts: Tensor) -> None:
        """Add a step for the records of a batch, whose ``shifts`` are ``‖g̃‖/s``.

        The sums take hundreds of small operations, so many steps are added at once.
        """
        if self._waiting and (self._waiting[0][0] != sample_rate or len(self._waiting) >= 100):
            self.settle()
        self._waiting.append((sample_rate, index.clone(), shifts))

    def settle(self) -> None:
        """Add the steps that are waiting, as reading any of the sums does."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        index, shifts = (torch.cat([step[k] for step in waiting]) for k in (1, 2))
        for some in torch.arange(len(index), device=index.device).split(8192):
            self._add(index[some], waiting[0][0], shifts[some])

    def _add(self, index: Tensor, sample_rate: float, shifts: Tensor) -> None:
        values, places = shifts.unique(return_inverse=True)  # clipped gradients have equal norms
        costs = sampled_gaussian_renyi(sample_rate, values, self.orders)[places]
        costs, index = costs.to(self.costs.device), index.to(self.costs.device)
        weight = 1 / sample_rate
        self.costs.index_add_(0, index, weight * costs)
        self.squares.index_add_(0, index, weight * costs**2)
        self.weights.index_add_(0, index, torch.full_like(self.weights[index], weight))
        square = shifts.to(self.norms) ** 2
        octaves = torch.log2(square.clamp(min=1e-30)) + 14
        place = octaves.floor().long().clamp(0, self.norms.shape[1] - 1)
        powers = torch.stack((torch.ones_like(square), square, square**2), 1)
        flat = self.norms.view(-1, 3)
        flat.index_add_(0, index * self.norms.shape[1] + place, powers)

    def totals(self, steps: int, uses: Tensor, worst: Tensor) -> tuple[Tensor, Tensor]:
        """Return the costs of all ``steps`` steps at every order, and their standard errors.

        A record that was never in a batch is charged ``worst``, the costs of the whole run at the
        full sensitivity. The standard error is nan for a record in fewer than two batches.
        """
        seen = (self.weights > 0)[:, None]
        weights = torch.where(seen, self.weights[:, None], 1.0)
        mean = self.costs / weights
        spread = (self.squares / weights - mean**2).clamp(min=0.0)
        count = uses.double()[:, None]
        error = torch.sqrt(spread / (count - 1).clamp(min=0.0))
        error = torch.where(count > 1, error, float("nan"))
        return torch.where(seen, steps * mean, worst), steps * error


@dataclass(frozen=True, eq=False, repr=False)
class IndividualPrivacy(RecordResult):
    """The Rényi differential privacy of each record, for adding or removing the record.

    If the number of records counts as public, the record is not removed but replaced by a record
    with zero gradient. The result is an estimate for the run that took place. A guarantee in
    advance requires a filter that excludes a record once its budget is spent (Feldman and Zrnic
    2021).

    Parameters
    ----------
    orders
        The Rényi orders.
    costs
        The cost of each record at each order, ``(n, orders)``.
    errors
        The standard errors of the costs; NaN for a record that was in fewer than two batches.
    run_epsilon
        The ε of the whole run as a function of δ; no record's ε exceeds it.
    ledger
        The steps of the run, needed for the trade-off curves of single records.
    norms
        For every record and every group of similar shifts ``μ = ‖g̃‖/s``: the number of shifts, and
        the sums of μ² and μ⁴, ``(n, groups, 3)``.
    rows
        The records' positions, if only some records are included.
    """

    orders: tuple[int, ...]
    costs: Numbers
    errors: Numbers
    run_epsilon: Callable[[float], float] | None = None
    ledger: Ledger | None = None
    norms: NDArray[np.float32] | None = None
    rows: NDArray[np.int64] | None = None

    def table(  # type: ignore[override]
        self, delta: float = 1e-5, library: str | None = None
    ) -> Any:
        """Return a data frame of each record's Rényi cost, its standard error, and ε at δ."""
        order = self.orders[0]
        columns = {
            "row": self.labels(),
            f"rdp_{order}": self.rdp(order),
            "standard_error": self.standard_errors(order),
            "epsilon": self.epsilon(delta),
        }
        return build_frame(columns, library or "pyarrow")

    def to_numpy(self) -> Numbers:
        """Return the Rényi cost of every record at the first order."""
        return self.rdp(self.orders[0])

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: every record's Rényi cost, in descending order."""
        worst, name = self.sort(), f"Rényi cost at order {self.orders[0]}"
        return PlottedNumbers(worst.to_numpy(), worst.labels(), name)

    def html_notes(self) -> tuple[str, ...]:
        """Return the conditions, for display in a notebook."""
        return self.conditions

    def __repr__(self) -> str:
        cost = self.rdp(self.orders[0])
        words = (
            f"<individual RDP of {counted(len(cost), 'record')} at order {self.orders[0]}: "
            f"median {np.median(cost):.4g}, largest {cost.max():.4g}>"
        )
        return marked(words, self.conditions)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions on the sampling of batches and on the origin of the noise."""
        if self.ledger is None:
            return ()
        return (*conditions_of_relation(self.ledger), *self.ledger.conditions)

    def rdp(self, order: int = 2) -> Numbers:
        """Return the Rényi cost of each record at an order."""
        return self.costs[:, self._place(order)]

    def standard_errors(self, order: int = 2) -> Numbers:
        """Return the standard errors of :meth:`rdp`."""
        return self.errors[:, self._place(order)]

    def epsilon(self, delta: float) -> Numbers:
        """Return each record's ε at δ, the smallest over the orders and at most the run's ε.

        A cost ``ρ_α`` at order α gives ε = ``ρ_α + log(1 − 1/α) − log(δα)/(α − 1)`` (Canonne,
        Kamath and Steinke 2020, proposition 12).
        """
        check_share(delta, "delta")
        order = np.asarray(self.orders, dtype=float)
        every = self.costs + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)
        whole = np.inf if self.run_epsilon is None else self.run_epsilon(delta)
        return np.asarray(np.minimum(np.maximum(every.min(axis=1), 0.0), whole))

    def membership(self, record: int) -> RunMembership:
        """Return the trade-off curve of membership inference for one record.

        The curve is composed from the norms of the record's own gradients, so it is an estimate.
        For a record that was in no batch, the curve is the guarantee for all records, which follows
        from clipping (``accountant.membership()``).
        """
        if self.ledger is None or self.norms is None:
            raise InputError(
                "Trade-off curves require the steps of the run; use the individual privacy from "
                "the run's accountant."
            )
        places = np.flatnonzero(self.labels() == record)
        if not len(places):
            raise InputError(
                f"There is no record {record} among the {counted(len(self.costs), 'record')} of "
                "this result; choose one of the result's labels()."
            )
        held = self.norms[places[0]].astype(float)
        groups = [
            ShiftGroup(count, squares / count, fourths / count - (squares / count) ** 2)
            for count, squares, fourths in held[held[:, 0] > 0].tolist()
        ]
        return own_membership(self.ledger, groups)

    def _place(self, order: int) -> int:
        if order not in self.orders:
            raise InputError(f"order must be one of {', '.join(map(str, self.orders))}.")
        return self.orders.index(order)
