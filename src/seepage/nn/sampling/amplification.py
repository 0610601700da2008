"""Amplification by subsampling: the factor κ by which hidden batches scale the information.

One step releases ``Σ g̃ + N(0, s²)``. Let ``I = J̃ᵀJ̃/s²`` be the information of the release about
a record in the batch. If the batch is secret, the step's information about the record is at most
``κ q I``, with q the sampling rate. The accountant therefore counts ``κ I`` in the steps in which
the record takes part. There are three factors, from the loosest to the tightest:

* ``κ = 1`` (Guo et al. 2022, theorem 4, equation 2), for any batches chosen independently of the
  data.
* ``κ = q/(q + (1 − q)e^{−ε})`` (equation 3), where the densities with and without the record differ
  by a factor of at most ``e^ε`` (see :func:`theorem4_factor`). With Gaussian noise, this bound
  fails with probability at most δ in each step.
* :class:`MixtureFactor`, which needs no δ and uses the norm of the record's own gradient.

Algorithm 1 of Guo et al. uses the second factor with another ε (:func:`paper_epsilon`), which need
not bound the ratio of the densities. The algorithm is offered for comparison only, and results
state this.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.sampling.samplers import FIXED, OTHER, POISSON, check_rate
from seepage.support.number_check import check_choice, check_count, check_share

METHODS = ("mixture", "theorem4", "algorithm1", "none")

_STEP = 1 / 128  # of the table of κ, in units of the shift


class MixtureFactor:
    """Computes κ from the exact mixture of a subsampled step, without a failure probability.

    The release is ``p₁ = N(m₁, s²)`` with the record in the batch, and ``p₀ = N(m₀, s²)`` without
    it (or with another record in its place). The observer sees the mixture ``q p₁ + (1 − q) p₀``,
    whose second part does not depend on the record. With ``x ~ N(0, 1)``, ``μ = ‖m₁ − m₀‖/s`` and

        w(x) = q/(q + (1 − q) e^{μx − μ²/2})

    the information is exactly ``q I`` times ``E[w]`` in directions orthogonal to ``m₁ − m₀``, and
    ``q I`` times ``E[x² w]`` along ``m₁ − m₀``. κ is the larger of the two factors. Averaging over
    the other records of the batch can only lower κ (the map ``(a, b) → a²/b`` is convex). As ``μ``
    grows, κ increases from ``q`` to one. The value is read from a table at the next larger point,
    so it is an upper bound.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn.sampling.amplification import MixtureFactor
    >>> MixtureFactor(0.01)(torch.tensor([0.0, 1.0, 100.0]))
    tensor([0.0100, 0.0472, 1.0000], dtype=torch.float64)
    """

    def __init__(self, sample_rate: float) -> None:
        check_rate(sample_rate)
        self.sample_rate = float(sample_rate)

    def __call__(self, shifts: Tensor) -> Tensor:
        """Return κ for each shift ``μ = ‖m₁ − m₀‖/s``; one for an unknown shift (NaN)."""
        table = _mixture_table(self.sample_rate, shifts.device)
        known = torch.nan_to_num(shifts.double(), nan=math.inf, posinf=math.inf)
        place = torch.ceil(known / _STEP).clamp(max=table.shape[0] - 1)
        return table[place.long()]


@lru_cache(maxsize=8)
def _mixture_table(sample_rate: float, device: torch.device) -> Tensor:
    """Return κ at the shifts 0, 1/128, …, 12, made non-decreasing, and 1 for larger shifts."""
    if sample_rate == 1.0:
        return torch.ones(2, dtype=torch.float64, device=device)
    spacing = 0.02  # of the quadrature, over nine standard deviations to either side
    x = torch.arange(-9.0, 9.0, spacing, dtype=torch.float64)
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi) * spacing
    weights = torch.stack((density, density * x * x))
    # Beyond a shift of 12, κ is taken to be one, which is nearly exact.
    shifts = torch.arange(0.0, 12.0 + _STEP, _STEP, dtype=torch.float64)
    odds = math.log((1 - sample_rate) / sample_rate)
    largest = [
        (weights @ torch.sigmoid(-(odds + mu[:, None] * x - mu[:, None] ** 2 / 2)).T).amax(0)
        for mu in shifts.split(512)
    ]
    table = torch.cummax(torch.cat(largest), 0).values.clamp(max=1.0)
    return torch.cat((table, torch.ones(1, dtype=torch.float64))).to(device)


def theorem4_factor(sample_rate: float, epsilon: float) -> float:
    """Return ``q/(q + (1 − q)e^{−ε})`` (Guo et al. 2022, equation 3).

    Examples
    --------
    >>> from seepage.nn.sampling.amplification import theorem4_factor
    >>> theorem4_factor(0.01, 0.0), theorem4_factor(1.0, 3.0)
    (0.01, 1.0)
    """
    return sample_rate / (sample_rate + (1 - sample_rate) * math.exp(-epsilon))


def paper_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return ``1.115·2·sqrt(2 log(1.25/δ))/σ``, the ε in algorithm 1 of Guo et al. 2022.

    This classic formula for the Gaussian mechanism is proved only for ε ≤ 1, and it does not bound
    the ratio of densities, as theorem 4 requires. The formula only reproduces the paper; for a
    valid bound, use :func:`privacy_loss_quantile`.
    """
    return 1.115 * 2 * math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier


def privacy_loss_quantile(shift: float, delta: float) -> float:
    """Return the ε that the log-ratio of two densities exceeds with probability δ.

    If the means of two Gaussian releases differ by ``shift`` standard deviations, the log-ratio is
    ``N(shift²/2, shift²)``, so ``ε = shift²/2 + shift·Φ⁻¹(1 − δ)``.
    """
    return shift * shift / 2 - shift * NormalDist().inv_cdf(delta)


class FailureBudget:
    """Divides the failure probability of theorem 4 among the steps of a run.

    If the number of steps is known, each step has the same share, and any further steps have no
    share. Otherwise, step ``t`` has the share ``6/(π²t²)``; these shares sum to one.
    """

    def __init__(self, total: float, steps: int | None) -> None:
        check_share(total, "delta")
        if steps is not None:
            check_count(steps, "steps, the number of steps in the run,")
        self.total = float(total)
        self.steps = None if steps is None else int(steps)

    def at(self, step: int) -> float:
        """Return the failure probability of a step, counted from one; zero after the last step."""
        if self.steps is None:
            return self.total * 6 / (math.pi * step) ** 2
        return self.total / self.steps if step <= self.steps else 0.0

    def spent(self, steps: int) -> float:
        """Return the total failure probability of the first ``steps`` steps."""
        if self.steps is not None:
            return self.total * min(steps, self.steps) / self.steps
        return math.fsum(self.at(step) for step in range(1, steps + 1))


class Amplification:
    """Computes κ for a step's records, each of which is drawn with probability ``sample_rate``.

    The method is ``"mixture"`` (:class:`MixtureFactor`), ``"theorem4"`` (equation 3 of Guo et al.
    2022), ``"algorithm1"`` (as printed in that paper, which is not a bound), or ``"none"`` for κ =
    1 (equation 2). With ``"theorem4"``, ``budget`` gives the probability that κ fails in each step.
    With ``"algorithm1"``, the budget's total is the δ of every step. ``threshold`` is the clipping
    threshold, which only ``"algorithm1"`` uses. The sampler is ``"poisson"``, ``"fixed"`` (a set of
    fixed size), or ``"other"``, for which only κ = 1 is known to be valid.
    """

    def __init__(
        self,
        method: str,
        sampler: str,
        sample_rate: float,
        budget: FailureBudget | None,
        threshold: float = 1.0,
    ) -> None:
        check_choice(method, "amplification", METHODS)
        self.method = "none" if sampler == OTHER else method
        self.sampler = sampler
        self.sample_rate = sample_rate
        self.threshold = threshold
        self.budget = budget if self.method in ("theorem4", "algorithm1") else None
        if self.method in ("theorem4", "algorithm1") and budget is None:
            raise InputError(
                f"For a single record, amplification='{self.method}' requires delta, because the "
                "default of 1/n is useless; give delta, for instance 1e-5."
            )
        self._mixture = MixtureFactor(sample_rate)
        self._warned = False

    def factors(self, lengths: Tensor, noise: float, sensitivity: float, step: int) -> Tensor:
        """Return κ of each record, given the norms ``‖g̃‖`` of the clipped gradients.

        ``noise`` is the standard deviation of the noise on the sum, and ``sensitivity`` the largest
        norm of a clipped gradient. Steps are counted from one.
        """
        if self.budget is not None:
            if self.method == "algorithm1":
                epsilon = paper_epsilon(noise / self.threshold, self.budget.total)
                kappa = theorem4_factor(self.sample_rate, epsilon)
            else:
                kappa = self._theorem4(self.budget, noise, sensitivity, step)
            return torch.full_like(lengths, kappa).double()
        if self.method == "mixture":
            # With Poisson sampling the alternative is a batch without the record; with sets of a
            # fixed size another record, with any gradient, takes its place.
            apart = lengths if self.sampler == POISSON else lengths + sensitivity
            return self._mixture(apart.double() / noise)
        return torch.ones_like(lengths, dtype=torch.float64)

    def _theorem4(
        self, budget: FailureBudget, noise: float, sensitivity: float, step: int
    ) -> float:
        delta = budget.at(step)
        if delta == 0.0:
            if not self._warned:
                warnings.warn(
                    f"The run is longer than declared (steps={budget.steps}). Theorem 4 divides "
                    "its failure probability among the declared steps, so further steps use κ = 1. "
                    "Declare the full number of steps.",
                    stacklevel=2,
                )
                self._warned = True
            return 1.0
        apart = (2 if self.sampler == FIXED else 1) * sensitivity
        return theorem4_factor(self.sample_rate, privacy_loss_quantile(apart / noise, delta))
