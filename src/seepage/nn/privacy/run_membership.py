"""How well anybody can tell whether a record was in the data of a run: its trade-off curve.

A run of subsampled Gaussian steps has a curve, not one μ (:mod:`seepage.privacy.trade_off`). Both
directions come from the privacy loss distributions of dp-accounting, which round towards more loss,
so every number is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seepage.errors import InputError
from seepage.nn.privacy.randomness import marked
from seepage.nn.sampling.samplers import FIXED, POISSON
from seepage.privacy.trade_off import LossTradeOff, both_ways, gaussian_losses

if TYPE_CHECKING:
    from seepage.nn.privacy.run_privacy import Ledger

GUARANTEED = (
    "Nothing leaves but the noisy gradients of the steps, or results computed from them.",
    "It holds for every record, because the clip bounds the contribution of each to a step.",
)
MEASURED = (
    GUARANTEED[0],
    "It is an estimate along the run that took place: the record's own gradients are charged at "
    "the one norm that costs as much, at Rényi order 2, as the norms they had.",
)
UNSEEN = "The record was in no batch, so it is charged the most that the clip allows."


@dataclass(frozen=True, eq=False, repr=False)
class RunMembership(LossTradeOff):
    """The trade-off curve of telling whether a record was in the data of a run.

    Parameters
    ----------
    removed, added
        The privacy losses of dp-accounting: of the run with the record against the one without it,
        and the other way round.
    kind
        ``guarantee`` if the clip bounds it for every record, ``estimate`` if it comes from the
        norms of one record's own gradients.
    conditions
        The assumptions under which the numbers hold.
    """

    kind: str
    conditions: tuple[str, ...]

    def __repr__(self) -> str:
        most = "at most " if self.kind == "guarantee" else ""
        words = (
            f"<membership in a run, {self.kind}: guessed right {most}{100 * self.accuracy():.1f} "
            f"times in 100 (a coin toss: 50), {most}{100 * float(self.tpr(0.01)):.1f} % of members "
            "found at 1 % false positives>"
        )
        return marked(words, self.conditions)


def run_membership(ledger: Ledger) -> RunMembership:
    """Return the curve that holds for every record of a run."""
    return RunMembership(*_losses(ledger, 1.0), "guarantee", (*GUARANTEED, *ledger.conditions))


def own_membership(ledger: Ledger, cost: float, seen: bool) -> RunMembership:
    """Return the curve of one record, given its Rényi cost at order 2 over the whole run.

    For many steps, ``Σ log(1 + q²(e^{μ²} − 1))``, the cost at order 2, determines the whole curve
    (Bu, Dong, Long and Su 2020, theorem 5); so all steps get the one norm with that cost.
    """
    if not seen:
        worst = run_membership(ledger)
        return replace(worst, conditions=(*worst.conditions, UNSEEN))
    low, high = 0.0, 1.0
    for _ in range(60):  # to the last digit
        middle = (low + high) / 2
        low, high = (middle, high) if _order_two(ledger, middle) < cost else (low, middle)
    return RunMembership(*_losses(ledger, high), "estimate", (*MEASURED, *ledger.conditions))


def _order_two(ledger: Ledger, share: float) -> float:
    """Return the Rényi cost of a run at order 2, for gradients with a share of the largest norm."""
    total = 0.0
    for entry in ledger:
        shift = share * entry.sensitivity / entry.noise
        rate = entry.sample_rate if entry.sampler == POISSON else 1.0
        grown = math.expm1(shift**2) if shift**2 < 700 else math.inf
        total += entry.steps * math.log1p(rate**2 * grown)
    return total


def _losses(ledger: Ledger, share: float) -> tuple[Any, Any]:
    """Return the privacy losses of a run in both directions, composed over its steps."""
    if not len(ledger):
        raise InputError(
            "No step has been taken yet, so nothing was released; observe some steps first."
        )
    total: Any = None
    for entry in ledger:
        if math.isinf(entry.sensitivity):
            raise InputError(
                "Unclipped gradients can have any norm, so nothing bounds how well membership "
                "can be told; clip them (clip='hard' or 'smooth')."
            )
        if entry.sampler == FIXED:
            raise InputError(
                "In batches of a fixed size a record cannot leave without another entering, so "
                "its membership has no curve; draw Poisson batches (sampler='poisson')."
            )
        steps = gaussian_losses(
            entry.noise / max(share * entry.sensitivity, 1e-12),
            entry.sample_rate if entry.sampler == POISSON else 1.0,
            entry.steps,
        )
        total = steps if total is None else total.compose(steps)
    return both_ways(total)
