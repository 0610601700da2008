"""How well anybody can tell whether a record was in the data of a run: its trade-off curve.

A run of subsampled Gaussian steps has a curve, not one μ. With ``P`` and ``Q`` the distributions of
the release with and without the record, ``δ(ε) = sup_S P(S) − e^ε Q(S)`` for all real ε says
everything: no test has a true positive rate above ``min_ε δ(ε) + e^ε·FPR``, and the best one
reaches it (Dong, Roth and Su 2022, proposition 2.12). Both directions come from the privacy loss
distributions of dp-accounting, which round towards more loss, so every number is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.errors import InputError
from seepage.nn.privacy.randomness import marked
from seepage.nn.sampling.samplers import FIXED, POISSON

if TYPE_CHECKING:
    from collections.abc import Callable

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
class RunMembership:
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

    removed: Any
    added: Any
    kind: str
    conditions: tuple[str, ...]

    def excess(self, epsilon: Any) -> np.ndarray:
        """Return ``δ(ε) = sup_S P(S) − e^ε Q(S)`` at any real ε."""

        def at(one: float) -> float:
            if one >= 0:
                return float(self.removed.get_delta_for_epsilon(one))
            # P(S) − e^ε Q(S) on S is 1 − e^ε + e^ε [Q − e^{−ε} P] on the complement of S.
            return 1 - math.exp(one) * (1 - float(self.added.get_delta_for_epsilon(-one)))

        # One by one: dp-accounting sums at once for a single ε, and loops over the losses for more.
        return np.asarray(np.clip(np.vectorize(at, otypes=[float])(epsilon), 0.0, 1.0))

    def advantage(self) -> float:
        """Return the largest difference between true and false positives."""
        return float(self.excess(0.0))

    def accuracy(self, prior: float = 0.5) -> float:
        """Return how often the best test is right, if the record takes part with this probability.

        ``1 − p + p δ(log((1 − p)/p))``.
        """
        if not 0 < prior < 1:
            raise InputError("The prior must be a probability between 0 and 1.")
        odds = math.log1p(-prior) - math.log(prior)
        return 1 - prior + prior * float(self.excess(odds))

    def tpr(self, fpr: Any = 0.01) -> np.ndarray:
        """Return the largest true positive rate at each false positive rate."""
        rate = np.asarray(fpr, dtype=float)
        if not np.all((rate >= 0) & (rate <= 1)):
            raise InputError("A false positive rate must lie between 0 and 1.")
        # Lines δ(ε) + e^ε·FPR of 4,001 values of ε. Those with a smaller δ than 1e-12 no longer
        # matter; up to ε = 700, e^ε is still a number, and fewer lines bound as well.
        far = min(max(self.removed.get_epsilon_for_delta(1e-12), 1.0), 700.0)
        epsilon = np.linspace(-far, far, 4001)
        height = cache(lambda k: float(self.excess(epsilon[k])))
        lowest = [_lowest(height, epsilon, each) for each in rate.ravel()]
        return np.asarray(np.clip(np.reshape(lowest, rate.shape), rate, 1.0))

    def __repr__(self) -> str:
        most = "at most " if self.kind == "guarantee" else ""
        words = (
            f"<membership in a run, {self.kind}: guessed right {most}{100 * self.accuracy():.1f} "
            f"times in 100 (a coin toss: 50), {most}{100 * float(self.tpr(0.01)):.1f} % of members "
            "found at 1 % false positives>"
        )
        return marked(words, self.conditions)


def _lowest(height: Callable[[int], float], epsilon: np.ndarray, rate: float) -> float:
    """Return the least ``δ(ε) + e^ε·FPR`` of a grid: it is convex in ``e^ε``, so halving finds it.

    Where ε is far below zero the lines agree to the last digit, so ties lead upwards.
    """

    def line(k: int) -> float:
        return height(k) + math.exp(epsilon[k]) * rate

    low, high = 0, len(epsilon) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if line(middle + 1) <= line(middle) else (low, middle)
    return line(low)


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
    from dp_accounting.pld import privacy_loss_distribution as losses

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
        step = losses.from_gaussian_mechanism(
            entry.noise / max(share * entry.sensitivity, 1e-12),
            value_discretization_interval=1e-4,  # the grid of losses, which rounds them upwards
            sampling_prob=entry.sample_rate if entry.sampler == POISSON else 1.0,
        )
        steps = step.self_compose(entry.steps)
        total = steps if total is None else total.compose(steps)
    # Its public methods take the larger of both directions at each ε, which mixes two curves.
    return total._pmf_remove, total._pmf_add
