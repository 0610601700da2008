"""A run's total from a share of each record's steps.

Each record is measured at every k-th of its uses, from a random start. Let ``a`` be a use's trace
estimate, and ``z`` the norm of its clipped gradient, which is known at every use; both are divided
by the variance of the noise and multiplied by κ. The total is estimated by the ratio estimator of
Cochran (1977, chapter 6),

    A = Z Σ a/Σ z,

where Z sums ``z`` over all uses, and the other sums are over the measured uses. Traces and norms
usually decrease together as a record is learned, so their quotients ``q = a/z`` vary much less than
the traces. If the relative variance of the quotients is ``c²``, that of ``A`` is ``h c²``, with
``h = Σ z²/(Σ z)²``. A record's own quotients have

    r = Σ z Σ a²/z/(Σ a)² − 1,    E r = (1 − h) c²/(1 + h c²),

which is exact for equal ``z`` and quotients with a gamma distribution. Few quotients show too
little of their variance, above all if the estimate is too low. Therefore, ``c²`` is the mean of the
record's own value ``r/(1 − h)``, with weight ``1/h − 1``, and of the value ``Σ r/Σ (1 − h − h r)``
of all records together, with weight 8. The measured uses are a part of the total: with several
probes, whose relative variance ``v`` is known, ``h c²`` becomes ``(1 − Σ z/Z)(h c² − v) + v``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.nn.jacobian.random_directions import key_of, random_numbers


@dataclass
class RatioSums:
    """Sums for every record, each ``(n,)``."""

    kept: ClassVar[tuple[str, ...]] = ("every", "sizes", "squares", "quotients")

    every: Tensor  # ``Z``, over all uses; the other sums are over the measured uses
    sizes: Tensor  # ``Σ z``
    squares: Tensor  # ``Σ z²``
    quotients: Tensor  # ``Σ a²/z``

    @classmethod
    def zeros(cls, n: int) -> RatioSums:
        """Return the sums before the first step."""
        return cls(*(torch.zeros(n, dtype=torch.float64) for _ in cls.kept))

    def moments(
        self, total: Tensor, within: Tensor | None, counted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the totals, their variances, and the degrees of freedom.

        ``total`` is ``Σ a``, and ``within`` the sum of the variances of ``a`` between probes, or
        ``None`` for a single probe.

        Quotients have a skewed distribution: a sum with the relative variance ``2/ν`` is nearly
        proportional to χ² with ν degrees of freedom. Student's t with ``0.7 √ν`` degrees of freedom
        makes ``√A (1 + t/√(2ν))`` at least ``√(A ν/χ²)``, the upper end of the χ² interval.
        """
        tiny = torch.finfo(torch.float64).tiny
        positive, sizes = total > 0, self.sizes.clamp(min=tiny)
        repeated = positive & (counted > 1)
        h = torch.where(repeated, self.squares / sizes**2, 1.0).clamp(max=1.0)
        r = torch.where(repeated, sizes * self.quotients / total**2 - 1, 0.0)
        rest, weight = 1 - h, 1 / h - 1
        r = torch.minimum(r.clamp(min=0.0), weight)  # its largest value for equal z
        # nan if no record was measured twice
        pooled = r.sum() / torch.maximum((rest - h * r).sum(), rest.sum() / 100)
        own = r / rest.clamp(min=tiny)
        relative = h * (8 * pooled + weight * own) / (8 + weight)
        degrees = 0.7 * torch.sqrt(2 / relative.clamp(min=tiny))
        if within is not None:
            probes = torch.where(positive, within / total**2, 0.0)
            left = (1 - sizes / self.every.clamp(min=tiny)).clamp(min=0.0)
            relative = left * (relative - probes).clamp(min=0.0) + probes
        estimate = self.every * total / sizes
        # Where no measured trace is above zero, as by rounding, a record counts as an average one.
        typical = self.every * total.sum() / self.sizes.sum().clamp(min=tiny)
        estimate = torch.where(positive, estimate, typical)
        return estimate, estimate**2 * torch.where(positive, relative, 1.0), degrees


class MeasuredShare:
    """The choice of the measured uses of ``n`` records, one in ``every``, and their sums."""

    kept: ClassVar[tuple[str, ...]] = ("counted",)

    def __init__(self, n: int, every: int) -> None:
        self.every = every
        self.counted = torch.zeros(n, dtype=torch.int64)  # measured uses
        self.amplified, self.plain = RatioSums.zeros(n), RatioSums.zeros(n)

    def due(self, index: Tensor, uses: Tensor, seed: int) -> Tensor:
        """Return which records of a batch to measure, ``(B,)``, given the uses before the batch.

        Each record is measured at every k-th use, from a start drawn at random for each record.
        """
        start = random_numbers(key_of(seed, "start"), index) % self.every
        return (uses[index] + start) % self.every == 0

    def add(
        self,
        index: Tensor,
        mean: Tensor,
        factors: Tensor,
        lengths: Tensor,
        noise: float,
        places: Tensor,
    ) -> None:
        """Add a step: the norms of all records, and the mean traces of those at ``places``.

        Without clipping, norms are unknown (nan) and count as equal. Norms near zero count as a
        thousandth of the noise, so that ``a²/z`` is finite.
        """
        sizes = torch.nan_to_num(lengths.double() / noise, nan=1.0).clamp(min=1e-3) / noise
        some = index[places]
        self.counted.index_add_(0, some, torch.ones_like(some))
        for sums, factor in ((self.amplified, factors), (self.plain, torch.ones_like(factors))):
            z = factor * sizes
            sums.every.index_add_(0, index, z)
            sums.sizes.index_add_(0, some, z[places])
            sums.squares.index_add_(0, some, z[places] ** 2)
            sums.quotients.index_add_(0, some, factor[places] * mean**2 / sizes[places])
