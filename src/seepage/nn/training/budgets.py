"""Individual privacy budgets in private SGD: a record takes part until its budget is spent.

A record's privacy loss in a step follows from its clipped gradient ``g̃`` and from the noise's
standard deviation ``s``. The gradient is taken at the current parameters, which an earlier step
released. There are two valid ways to charge this loss:

* a Gaussian budget charges ``‖g̃‖²/s²`` to the records that were *drawn*, as if the attacker knew
  the batches; the releases are then a filtered stream of Gaussian mechanisms;
* a Rényi budget charges the divergence of the sampled Gaussian to *every* record, drawn or not,
  at its own gradient norm, so all records' gradients are needed at every step.

Charging the sampled divergence only to the records drawn would understate the privacy loss by a
factor of about ``1/q``, where q is the sampling rate. It would also be wrong to charge a record by
its gradient norm at its last draw and to clip to that norm, because no release reveals when that
draw was.
Without sampling, both budgets charge the same loss, in different units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.privacy.individual_loss import gaussian_epsilon
from seepage.nn.privacy.individual_privacy import ORDERS, sampled_gaussian_renyi
from seepage.privacy.filters import ADD_OR_REMOVE, PrivacyFilter
from seepage.privacy.statements import DifferentialPrivacy, GaussianDP, RenyiDP
from seepage.support.number_check import check_share

Budget = DifferentialPrivacy | GaussianDP | RenyiDP
Lengths = Callable[[Tensor], Tensor]  # the norms of some records' clipped gradients


class RecordBudgets:
    """Selects, before every step, the drawn records that still have budget left.

    Parameters
    ----------
    budget
        ``GaussianDP``, ``RenyiDP`` at one integer order, or ``DifferentialPrivacy``, each for
        adding or removing a record. ``DifferentialPrivacy`` is converted to a Gaussian budget if
        every record is in every step, and otherwise to a Rényi budget at the order that allows the
        most steps if every gradient has the largest norm.
    records
        The number of records.
    sample_rate
        The probability that a record is drawn.
    noise
        The standard deviation of the noise on the sum.
    sensitivity
        The largest norm of a clipped gradient.

    Attributes
    ----------
    filter
        The :class:`~seepage.privacy.PrivacyFilter`, with each record's spent budget. Keep it
        secret.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        records: int,
        sample_rate: float,
        noise: float,
        sensitivity: float,
    ) -> None:
        if math.isinf(sensitivity):
            raise InputError("A budget needs clipped gradients; give clip='hard' or 'smooth'.")
        if isinstance(budget, DifferentialPrivacy):
            budget = equivalent_budget(budget, sample_rate, sensitivity / noise)
        self.sample_rate, self.noise = sample_rate, noise
        self.filter = PrivacyFilter(records, budget)

    def taking_part(self, drawn: Tensor, lengths: Lengths) -> Tensor:
        """Charge the next step to the records, and return the drawn records that may take part."""
        order = self.filter.order
        charged = drawn if order is None else torch.arange(len(self.filter.active))
        # Who has stopped needs no gradient any more. The released gradients come from another pass,
        # which may round up.
        charged = charged[torch.from_numpy(self.filter.active[charged.numpy()])]
        shifts = lengths(charged).double().cpu() * (1 + 1e-5) / self.noise
        if order is None:
            costs = shifts**2
        else:
            costs = sampled_gaussian_renyi(self.sample_rate, shifts, (int(order),))[:, 0]
        self.filter.admit(costs.numpy(), charged.numpy())
        return drawn[torch.from_numpy(self.filter.active[drawn.numpy()])]

    def epsilon(self, delta: float) -> float:
        """Return the ε that the budget implies for every record at this δ."""
        order, limit = self.filter.order, self.filter.limit
        if order is None:
            return float(gaussian_epsilon(np.array([math.sqrt(limit)]), delta)[0])
        check_share(delta, "delta")
        return max(0.0, limit + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))

    def state(self) -> dict[str, Tensor]:
        """Return the state needed to resume a run."""
        kept = self.filter
        return {
            "active": torch.from_numpy(kept.active.copy()),
            "spent": torch.from_numpy(kept.spent.copy()),
            "releases": torch.tensor(kept.releases),
        }

    def go_on(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state returned by :meth:`state`."""
        self.filter.active = state["active"].numpy().copy()
        self.filter.spent = state["spent"].numpy().copy()
        self.filter.releases = int(state["releases"])


def checked_budget(budget: Any) -> Budget:
    """Return the budget; raise an error if a run cannot enforce it."""
    if not isinstance(budget, Budget) or budget.neighbours != ADD_OR_REMOVE:
        raise InputError(
            "budget must be a guarantee for adding or removing a record, such as "
            "sp.privacy.DifferentialPrivacy(8.0, 1e-5, 'add-or-remove'), GaussianDP(1.0, "
            "'add-or-remove') or RenyiDP({order: epsilon}, 'add-or-remove')."
        )
    if isinstance(budget, DifferentialPrivacy) and not budget.delta > 0:
        raise InputError("Gaussian noise has no finite ε at δ = 0; give the budget a δ above 0.")
    if isinstance(budget, RenyiDP):
        orders = [order for order, _ in budget.points]
        if len(orders) != 1 or orders[0] not in ORDERS:
            raise InputError(
                "A Rényi budget for private SGD must have exactly one order, which must be one of "
                f"{', '.join(map(str, ORDERS))}."
            )
    return budget


def equivalent_budget(
    promise: DifferentialPrivacy, sample_rate: float, shift: float
) -> GaussianDP | RenyiDP:
    """Return a Gaussian or Rényi budget that implies (ε, δ), chosen independently of the data.

    At order α, a Rényi divergence of ``ε − log(1 − 1/α) + log(δα)/(α − 1)`` implies (ε, δ)
    (Canonne, Kamath and Steinke 2020, proposition 12). The chosen order allows the most steps if
    every gradient has the largest norm.

    Examples
    --------
    >>> from seepage.nn.training.budgets import equivalent_budget
    >>> from seepage.privacy import DifferentialPrivacy
    >>> promise = DifferentialPrivacy(8.0, 1e-5, "add-or-remove")
    >>> equivalent_budget(promise, 1.0, 0.1).words
    'the Gaussian mechanism with μ = 1.666 (add-or-remove)'
    >>> equivalent_budget(promise, 0.1, 1.0).words
    '(3, 3.198)-Rényi differential privacy (add-or-remove)'
    """
    if sample_rate == 1.0:
        return GaussianDP.meeting(promise.epsilon, promise.delta, ADD_OR_REMOVE)
    orders = np.array(ORDERS, dtype=float)
    limits = promise.epsilon - np.log1p(-1 / orders) + np.log(promise.delta * orders) / (orders - 1)
    costs = sampled_gaussian_renyi(sample_rate, torch.tensor([shift]), ORDERS)[0].numpy()
    best = int(np.argmax(limits / costs))
    if not limits[best] > 0:
        raise InputError(
            f"(ε, δ) = ({promise.epsilon:g}, {promise.delta:g}) is too small for a Rényi budget of "
            "any order; give a larger ε or δ, or use GaussianDP."
        )
    return RenyiDP({float(orders[best]): float(limits[best])}, ADD_OR_REMOVE)
