"""Which factor κ the records of a step get, and when it falls back to one."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from seepage.errors import InputError, nearest
from seepage.nn.sampling.subsampling import FIXED, OTHER, POISSON, MixtureFactor
from seepage.nn.sampling.theorem4 import FailureBudget, privacy_loss_quantile, theorem4_factor

METHODS = ("mixture", "theorem4", "none")


class Amplification:
    """κ for the records of a step.

    Parameters
    ----------
    method
        ``"mixture"``: :class:`~seepage.nn.sampling.subsampling.MixtureFactor`. ``"theorem4"``: equation 3 of
        paper 004. ``"none"``: one (equation 2).
    sampler
        How batches are drawn: ``"poisson"``, ``"fixed"`` (a set of fixed size), or ``"other"``, for
        which only κ = 1 is known to hold.
    sample_rate
        The probability that a record takes part in a step.
    budget
        The failure probabilities of ``"theorem4"``, which alone has any.
    """

    def __init__(
        self, method: str, sampler: str, sample_rate: float, budget: FailureBudget | None
    ) -> None:
        if method not in METHODS:
            raise InputError(
                f"amplification must be one of {', '.join(METHODS)}, not "
                f"{method!r}{nearest(method, METHODS)}."
            )
        self.method = "none" if sampler == OTHER else method
        self.sampler = sampler
        self.sample_rate = sample_rate
        self.budget = budget if self.method == "theorem4" else None
        if self.method == "theorem4" and budget is None:
            raise InputError(
                "amplification='theorem4' needs delta, the probability with which its factor may "
                "fail: the default of 1/n leaves nothing with a single record."
            )
        self._mixture = MixtureFactor(sample_rate)
        self._told = False

    def factors(self, lengths: Tensor, noise: float, sensitivity: float, step: int) -> Tensor:
        """Return κ of each record.

        Parameters
        ----------
        lengths
            The norms of the records' clipped gradients, ``‖g̃‖``.
        noise
            The standard deviation of the noise on the sum.
        sensitivity
            The largest norm that any clipped gradient can have.
        step
            Which step it is, counted from one.
        """
        if self.budget is not None:
            kappa = self._theorem4(self.budget, noise, sensitivity, step)
            return torch.full_like(lengths, kappa).double()
        if self.method == "mixture":
            # With Poisson sampling the alternative is a batch without the record; with sets of a
            # fixed size another record, of any gradient, takes its place.
            apart = lengths if self.sampler == POISSON else lengths + sensitivity
            return self._mixture(apart.double() / noise)
        return torch.ones_like(lengths, dtype=torch.float64)

    def _theorem4(
        self, budget: FailureBudget, noise: float, sensitivity: float, step: int
    ) -> float:
        delta = budget.at(step)
        if delta == 0.0:
            if not self._told:
                warnings.warn(
                    f"The run is longer than the {budget.steps} steps that were announced, "
                    "over which theorem 4 spreads its failure probability: further steps count in "
                    "full (κ = 1).",
                    stacklevel=2,
                )
                self._told = True
            return 1.0
        apart = (2 if self.sampler == FIXED else 1) * sensitivity
        return theorem4_factor(self.sample_rate, privacy_loss_quantile(apart / noise, delta))
