"""The factor κ by which not knowing who was in a batch lowers the information about a record.

One step releases ``Σ g̃ + N(0, s²)``. If a record that takes part has information ``I = J̃ᵀJ̃/s²`` and
nobody learns who took part, the information of the step is at most ``κ q I``: ``I`` counted in the
steps in which the record does take part, times κ. Three factors, from the loosest to the tightest:

* ``κ = 1`` (paper 004, theorem 4, equation 2): for any batches chosen without looking at the data.
* ``κ = q/(q + (1 − q)e^{−ε})`` (equation 3), where the densities with and without the record differ
  by at most ``e^ε``: see ``theorem4``. With Gaussian noise that holds but for a probability δ in
  each step.
* :class:`MixtureFactor`, which needs no δ and knows the length of the record's own gradient.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from seepage.errors import InputError

POISSON, FIXED, OTHER = "poisson", "fixed", "other"
SAMPLERS = (POISSON, FIXED, OTHER)

_STEP = 1 / 128  # of the table of κ, in units of the shift
_LARGEST_SHIFT = 12.0  # beyond it κ is taken to be one, which it nearly is
_QUADRATURE = 0.02


class MixtureFactor:
    """κ from the mixture that a subsampled step really is, with no failure probability.

    With the record in the batch the release is ``p₁ = N(m₁, s²)``, without it (or with another in
    its place) ``p₀ = N(m₀, s²)``, and what is seen is ``q p₁ + (1 − q) p₀``, whose second part does
    not depend on the record. With ``x ~ N(0, 1)``, ``μ = ‖m₁ − m₀‖/s`` and

        w(x) = q/(q + (1 − q) e^{μx − μ²/2})

    the information is exactly ``q I`` times ``E[w]`` across the direction ``m₁ − m₀`` and
    ``E[x² w]`` along it; κ is the larger of the two. What is known of the other records' batch only
    averages this (the map ``(a, b) → a²/b`` is convex). The factor runs from ``q`` at ``μ = 0`` to
    one, and is read at the next larger point of a table, so that it stays a bound.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn.sampling.subsampling import MixtureFactor
    >>> MixtureFactor(0.01)(torch.tensor([0.0, 1.0, 100.0]))
    tensor([0.0100, 0.0472, 1.0000], dtype=torch.float64)
    """

    def __init__(self, sample_rate: float) -> None:
        check_rate(sample_rate)
        self.sample_rate = float(sample_rate)

    def __call__(self, shifts: Tensor) -> Tensor:
        """Return κ for each shift ``μ = ‖m₁ − m₀‖/s``; one where that is unknown (nan)."""
        table = _mixture_table(self.sample_rate).to(shifts.device)
        known = torch.nan_to_num(shifts.double(), nan=math.inf, posinf=math.inf)
        place = torch.ceil(known / _STEP).clamp(max=table.shape[0] - 1)
        return table[place.long()]


@lru_cache(maxsize=8)
def _mixture_table(sample_rate: float) -> Tensor:
    """Return κ at the shifts 0, 1/128, … 12, made to never decrease; then one."""
    if sample_rate == 1.0:
        return torch.ones(2, dtype=torch.float64)
    x = torch.arange(-9.0, 9.0, _QUADRATURE, dtype=torch.float64)
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi) * _QUADRATURE
    weights = torch.stack((density, density * x * x))
    shifts = torch.arange(0.0, _LARGEST_SHIFT + _STEP, _STEP, dtype=torch.float64)
    odds = math.log((1 - sample_rate) / sample_rate)
    largest = [
        (weights @ torch.sigmoid(-(odds + mu[:, None] * x - mu[:, None] ** 2 / 2)).T).amax(0)
        for mu in shifts.split(512)
    ]
    table = torch.cummax(torch.cat(largest), 0).values.clamp(max=1.0)
    return torch.cat((table, torch.ones(1, dtype=torch.float64)))


def check_rate(sample_rate: float) -> None:
    """Raise unless a sampling rate lies above zero and not above one."""
    if not 0 < sample_rate <= 1:
        raise InputError(f"The sampling rate must lie in (0, 1], not {sample_rate!r}.")
