"""The second factor of paper 004's theorem 4, and the failure probability it takes.

Plain numbers only: nothing here needs torch.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from seepage.errors import InputError


def theorem4_factor(sample_rate: float, epsilon: float) -> float:
    """Return ``q/(q + (1 − q)e^{−ε})`` (paper 004, equation 3).

    Examples
    --------
    >>> from seepage.nn.sampling.theorem4 import theorem4_factor
    >>> theorem4_factor(0.01, 0.0), theorem4_factor(1.0, 3.0)
    (0.01, 1.0)
    """
    return sample_rate / (sample_rate + (1 - sample_rate) * math.exp(-epsilon))


def paper_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return ``1.115·2·sqrt(2 log(1.25/δ))/σ``, the ε of paper 004's algorithm 1.

    It is the classical formula of the Gaussian mechanism, which is proved for ε ≤ 1 only and says
    nothing about the ratio of densities that the theorem needs: kept for the reproduction. For a
    number to rely on, take :func:`privacy_loss_quantile`.
    """
    return 1.115 * 2 * math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier


def privacy_loss_quantile(shift: float, delta: float) -> float:
    """Return the ε that the log-ratio of two densities exceeds with probability δ.

    Two Gaussian releases whose means lie ``shift`` standard deviations apart have the log-ratio
    ``N(shift²/2, shift²)``, hence ``ε = shift²/2 + shift·Φ⁻¹(1 − δ)``.
    """
    return shift * shift / 2 - shift * NormalDist().inv_cdf(delta)


class FailureBudget:
    """How the failure probability of theorem 4 is spread over the steps of a run.

    Of a run with a known number of steps each gets the same part; once all parts are spent, none is
    left. Without a known end, step ``t`` gets ``6/(π²t²)`` of the whole, which sums to it.
    """

    def __init__(self, total: float, steps: int | None) -> None:
        if not 0 < total < 1:
            raise InputError(f"delta must lie between 0 and 1, not {total!r}.")
        if steps is not None and steps < 1:
            raise InputError(f"steps must be the number of steps of the run, not {steps!r}.")
        self.total = float(total)
        self.steps = None if steps is None else int(steps)

    def at(self, step: int) -> float:
        """Return the failure probability of a step, counted from one; zero when none is left."""
        if self.steps is None:
            return self.total * 6 / (math.pi * step) ** 2
        return self.total / self.steps if step <= self.steps else 0.0

    def spent(self, steps: int) -> float:
        """Return what the first ``steps`` steps spend together."""
        if self.steps is not None:
            return self.total * min(steps, self.steps) / self.steps
        return math.fsum(self.at(step) for step in range(1, steps + 1))
