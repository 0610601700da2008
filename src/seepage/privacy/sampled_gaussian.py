"""What Gaussian steps on random batches promise: private SGD, from its three numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seepage.errors import InputError
from seepage.privacy.statements import PrivacyStatement, renyi_of_event
from seepage.privacy.trade_off import LossTradeOff, both_ways, gaussian_losses
from seepage.support.number_check import check_count, check_noise, check_number, check_share


@dataclass(frozen=True)
class SampledGaussianDP(PrivacyStatement):
    """Steps with Gaussian noise on Poisson batches, about adding or removing one record.

    Its trade-off curve comes from dp-accounting's privacy loss distributions, rounded towards more
    loss; it is below what the (ε, δ) of the same run allows by itself.

    Parameters
    ----------
    noise_multiplier
        The standard deviation of the noise over the clip.
    sample_rate
        The probability with which each record takes part in a step; 1 without sampling.
    steps
        How many steps there are.

    Examples
    --------
    >>> from seepage.privacy import SampledGaussianDP
    >>> run = SampledGaussianDP(noise_multiplier=1.0, sample_rate=0.01, steps=100)
    >>> round(run.epsilon(1e-5), 1)
    0.7
    >>> round(run.trade_off().accuracy(), 3)
    0.525
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1
    neighbours: str = "add-or-remove"
    assumptions: tuple[str, ...] = (
        "Every record takes part in a step by its own coin toss, which nobody sees.",
        "Nothing leaves but the noisy gradients of the steps, or results computed from them.",
    )
    guarantee: bool = True

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        check_number(self.sample_rate, "sample_rate")
        if not 0 < self.sample_rate <= 1:
            raise InputError(
                "sample_rate is the probability that a record takes part in a step, above 0 and up "
                f"to 1, not {self.sample_rate!r}: the mean size of a batch over the number of "
                "records."
            )
        check_count(self.steps, "steps")
        if self.neighbours != "add-or-remove":
            raise InputError(
                "Poisson batches are about adding or removing a record: leave neighbours out."
            )

    @property
    def words(self) -> str:
        """The promise in a few words."""
        return (
            f"{self.steps:,} Gaussian {'step' if self.steps == 1 else 'steps'}, noise multiplier "
            f"{self.noise_multiplier:.4g}, sample rate {self.sample_rate:.4g} ({self.neighbours})"
        )

    def epsilon(self, delta: float) -> float:
        """Return the least ε at this δ."""
        check_share(delta, "delta")
        return float(self._losses.get_epsilon_for_delta(delta))

    def trade_off(self) -> LossTradeOff:
        """Return how well it can be told whether a record was in the data."""
        return LossTradeOff(*both_ways(self._losses))

    def renyi(self) -> float:
        """Return ε(2) under replacement, from dp-accounting's Rényi accountant."""
        import dp_accounting as dp

        step = dp.GaussianDpEvent(self.noise_multiplier)
        batch = dp.PoissonSampledDpEvent(self.sample_rate, step)
        return renyi_of_event(dp.SelfComposedDpEvent(batch, self.steps)).renyi()

    def total_variation(self) -> float:
        """Return the bound by way of removal: see :meth:`TradeOff.replaced`."""
        return self.trade_off().replaced()

    @cached_property
    def _losses(self) -> Any:
        return gaussian_losses(self.noise_multiplier, self.sample_rate, self.steps)
