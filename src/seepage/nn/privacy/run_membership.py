"""Membership inference on a training run: trade-off between false and true positive rates.

A run of subsampled Gaussian steps has a trade-off curve, not a single μ
(:mod:`seepage.privacy.trade_off`). The curves for removing and for adding the record are computed
from dp-accounting's privacy loss distributions, which round the loss upwards. Every number is
therefore an upper bound for the composed steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.nn.privacy.randomness import marked
from seepage.nn.privacy.run_privacy import (
    RELATIONS,
    Ledger,
    checked_relation,
    conditions_of_relation,
    losses,
    own_relation,
)
from seepage.privacy.trade_off import LossTradeOff, both_ways, gaussian_losses

GUARANTEED = (
    "Only the noisy gradients of the steps, or results computed from them, are released.",
    "The curve is valid for every record: the clip bounds each record's contribution to a step.",
)
MEASURED = (
    GUARANTEED[0],
    "The result is an estimate for the run that took place. The curve is composed from the "
    "norms of the record's own gradients, and steps without the record are charged like steps "
    "with it. The norms depend on earlier outputs, so the result is not an upper bound; an upper "
    "bound requires a filter (Feldman and Zrnic 2021).",
)
UNSEEN = "The record was in no batch, so it is charged the maximum that the clip allows."


@dataclass(frozen=True, eq=False, repr=False)
class RunMembership(LossTradeOff):
    """The trade-off curve of membership inference against a training run.

    Parameters
    ----------
    removed, added
        dp-accounting's privacy loss distributions for the run with the record against the run
        without it (or with another record in its place), and for the reverse.
    kind
        ``guarantee`` if the curve follows from clipping and is valid for every record; ``estimate``
        if it is computed from the norms of one record's gradients.
    conditions
        The assumptions under which the numbers are valid.
    relation
        The neighbouring relation, in words: to add or remove the record, or to replace it.
    doubt
        The possible error of the membership advantage due to grouping similar norms; zero for a
        guarantee.
    """

    kind: str
    conditions: tuple[str, ...]
    relation: str = ""
    doubt: float = 0.0

    def __repr__(self) -> str:
        most = "at most " if self.kind == "guarantee" else ""
        about = f", to {self.relation}" if self.relation else ""
        words = (
            f"<membership inference in a run, {self.kind}{about}: success rate {most}"
            f"{100 * self.accuracy():.1f} % (chance 50 %), true positive rate {most}"
            f"{100 * float(self.tpr(0.01)):.1f} % at 1 % false positives>"
        )
        return marked(words, self.conditions)


def run_membership(ledger: Ledger, neighbours: str | None = None) -> RunMembership:
    """Return the trade-off curve that is valid for every record of a run."""
    _check_clipped(ledger)
    relation = checked_relation(ledger, neighbours)
    return RunMembership(
        *both_ways(losses(ledger, relation)),
        "guarantee",
        (*GUARANTEED, *conditions_of_relation(ledger), *ledger.conditions),
        RELATIONS[relation],
    )


@dataclass(frozen=True)
class ShiftGroup:
    """Steps in which a record shifted the sum by a similar ``μ = ‖g̃‖/s``.

    Parameters
    ----------
    count
        The number of steps.
    mean, variance
        The mean and the variance of ``μ²`` over these steps.
    """

    count: float
    mean: float
    variance: float

    def whole(self) -> list[tuple[float, float]]:
        """Return one representative shift and the number of steps."""
        return [(math.sqrt(self.mean), self.count)]

    def halves(self) -> list[tuple[float, float]]:
        """Return two shifts, for half of the steps each, with this mean and variance of μ²."""
        away = min(math.sqrt(max(self.variance, 0.0)), self.mean)
        if away < 1e-3 * self.mean:  # one norm, but for rounding
            return self.whole()
        return [(math.sqrt(self.mean + side), self.count / 2) for side in (away, -away)]


def own_membership(ledger: Ledger, norms: Sequence[ShiftGroup]) -> RunMembership:
    """Return the trade-off curve of one record, composed from the norms of its own gradients.

    ``norms`` contains these norms in the batches with the record, in groups of similar norms. All
    steps of the ledger, which use Poisson batches of one rate, are charged in the proportions of
    these groups. A record that was in no batch has no norms and is charged the maximum that the
    clip allows.
    """
    if not norms:
        worst = run_membership(ledger, own_relation(ledger))
        return replace(worst, conditions=(*worst.conditions, UNSEEN))
    _check_clipped(ledger)
    rate = next(iter(ledger)).sample_rate
    two, one = (
        LossTradeOff(*_composed([part for group in norms for part in cut(group)], ledger, rate))
        for cut in (ShiftGroup.halves, ShiftGroup.whole)
    )
    seen = f"{sum(group.count for group in norms):,.0f}"
    return RunMembership(
        two.removed,
        two.added,
        "estimate",
        (
            *MEASURED,
            f"The record was in {seen} of the {ledger.steps:,} batches.",
            *conditions_of_relation(ledger),
            *ledger.conditions,
        ),
        RELATIONS[own_relation(ledger)],
        abs(two.advantage() - one.advantage()),
    )


def _composed(parts: Sequence[tuple[float, float]], ledger: Ledger, rate: float) -> tuple[Any, Any]:
    """Return the privacy loss distributions of all steps, in both directions, for these shifts."""
    counts = _shared_out(ledger.steps, np.array([count for _, count in parts]))
    total: Any = None
    for (shift, _), count in zip(parts, counts, strict=True):
        if count == 0 or shift < 1e-9:  # nothing that could be told
            continue
        # An estimate needs no finer grid, and a record may have many norms.
        steps = gaussian_losses(1 / shift, rate, int(count), grid=1e-3)
        total = steps if total is None else total.compose(steps)
    if total is None:
        total = gaussian_losses(1e9, 1.0, 1)
    return both_ways(total)


def _shared_out(steps: int, counts: np.ndarray) -> np.ndarray:
    """Return whole numbers that sum to ``steps``, nearly in the proportions of the counts."""
    exact = steps * counts / counts.sum()
    whole: np.ndarray = np.floor(exact).astype(int)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: steps - whole.sum()]] += 1
    return whole


def _check_clipped(ledger: Ledger) -> None:
    if any(math.isinf(entry.sensitivity) for entry in ledger):
        raise InputError(
            "Unclipped gradients can have any norm, so membership inference is not bounded; clip "
            "them (clip='hard' or 'smooth')."
        )
