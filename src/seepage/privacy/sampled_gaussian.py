"""The privacy guarantee of private SGD: Gaussian steps on random batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seepage.errors import InputError
from seepage.privacy.statements import NEIGHBOURS, PrivacyStatement
from seepage.privacy.trade_off import (
    LossTradeOff,
    both_ways,
    gaussian_losses,
    replacement_renyi,
)
from seepage.support.number_check import (
    check_choice,
    check_count,
    check_noise,
    check_number,
    check_share,
)


@dataclass(frozen=True)
class SampledGaussianDP(PrivacyStatement):
    """The guarantee of Gaussian steps on Poisson batches, to add, remove or replace a record.

    The trade-off curve is computed from dp-accounting's privacy loss distributions, rounded
    pessimistically, for a pair of distributions that dominates every step
    (:func:`~seepage.privacy.trade_off.gaussian_losses`). This curve is tighter than the curve of
    the run's (ε, δ) alone. A replacement is accounted for directly: counting it as a removal and an
    addition, or as one removal at half the noise, could overstate its cost.

    Parameters
    ----------
    noise_multiplier
        The standard deviation of the noise divided by the clipping norm.
    sample_rate
        The probability that a record takes part in a step; 1 without sampling.
    steps
        The number of steps.
    neighbours
        The neighbouring relation for ε and the curve: ``"add-or-remove"`` or ``"replace"`` a
        record. ``"add-or-remove"`` requires that neither the rate nor the divisor of the sums
        depends on the number of records.
    group
        The number of records that are added or removed together, such as all records of one person.

    Examples
    --------
    >>> from seepage.privacy import SampledGaussianDP
    >>> run = SampledGaussianDP(noise_multiplier=1.0, sample_rate=0.01, steps=100)
    >>> round(run.epsilon(1e-5), 1)
    0.7
    >>> round(run.trade_off().accuracy(), 3)
    0.525
    >>> round(SampledGaussianDP(1.0, 0.01, 100, "replace").epsilon(1e-5), 1)
    0.9
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1
    neighbours: str = "add-or-remove"
    group: int = 1
    assumptions: tuple[str, ...] = (
        "Every record takes part in each step independently (Poisson sampling), and the batches "
        "remain secret.",
        "The sample rate, the number of steps and the divisor of the sums were fixed before the "
        "data were seen. If these settings depend on the number of records, the guarantee is only "
        "for replacing a record.",
        "Only the noisy gradients of the steps, or results computed from them, are released.",
    )
    guarantee: bool = True

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_number(self.sample_rate, "sample_rate")
        if not 0 < self.sample_rate <= 1:
            raise InputError(
                "sample_rate must be the probability that a record takes part in a step, above 0 "
                f"and up to 1, not {self.sample_rate!r}. Divide the mean batch size by the number "
                "of records."
            )
        check_count(self.steps, "steps")
        check_choice(self.neighbours, "neighbours", NEIGHBOURS)
        check_count(self.group, "group")
        if self.group > 1 and self.neighbours == "replace":
            raise InputError(
                "The guarantee for a group covers only adding or removing the group; omit "
                "neighbours=. To replace k records, account for removing k and adding k."
            )

    @property
    def words(self) -> str:
        """A short description of the guarantee."""
        return (
            f"{self.steps:,} Gaussian {'step' if self.steps == 1 else 'steps'}, noise multiplier "
            f"{self.noise_multiplier:.4g}, sample rate {self.sample_rate:.4g} ({self.neighbours}"
            f"{f' {self.group} records' if self.group > 1 else ''})"
        )

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε at this δ."""
        check_share(delta, "delta")
        return float(self._losses.get_epsilon_for_delta(delta))

    def trade_off(self) -> LossTradeOff:
        """Return the best membership test under this guarantee."""
        return LossTradeOff(*both_ways(self._losses))

    def renyi(self) -> float:
        """Return ε(2) under replacement of one record; infinite for a group."""
        if self.group > 1:
            return math.inf
        (step,) = replacement_renyi(1 / self.noise_multiplier, self.sample_rate, [2.0])
        return self.steps * float(step)

    def total_variation(self) -> float:
        """Return an upper bound on the total variation under replacement of the record or group."""
        if self.group > 1:
            return self.trade_off().replaced()
        replacing = self._losses if self.neighbours == "replace" else self._composed(replace=True)
        return float(LossTradeOff(*both_ways(replacing)).advantage())

    @cached_property
    def _losses(self) -> Any:
        return self._composed(replace=self.neighbours == "replace", group=self.group)

    def _composed(self, **change: Any) -> Any:
        return gaussian_losses(self.noise_multiplier, self.sample_rate, self.steps, **change)
