"""The clip's exact derivative from a sample of the steps.

A clipped gradient's squared derivative is ``(S − a r)/φ²`` with ``S = ‖J‖_F²``, ``r = ‖Jᵀĝ‖²`` and
``a = 1 − ρ²``. A probe estimates ``S`` at every step. The radial part ``r`` costs several training
steps, so it is measured only at steps drawn at random: step ``t = 0, 1, …`` with the probability
``p = max(1/k, 1/(t + 1))``. The sum over a run's steps is estimated by

    Σ_t S/φ² − Σ_t a b S/φ² − Σ_measured a (r − b S)/(p φ²)

where ``b`` predicts ``r/S`` from the steps measured *before*, for all records together. The
estimate is unbiased for every such ``b``; a good prediction makes it precise. Until there is
something to predict from, ``p = 1``. Negative terms are kept, because cutting them at zero would
bias the sum.

The last two sums together have the variance ``σ² Σ_t (1/p − 1)(a S/φ²)²`` for each record, in
addition to the variance of the probes in the first sum. Here, ``σ²`` is the sum of
``(a (r − b S)/φ²)²`` over all measured records, divided by that of ``(a S/φ²)²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.nn.jacobian.random_directions import key_of


@dataclass
class RadialSums:
    """Sums over steps for every record, each ``(n,)``, divided by the variance of the noise."""

    kept: ClassVar[tuple[str, ...]] = ("removed", "squares")

    removed: Tensor  # ``Σ_t a b S/φ² + Σ_measured a (r − b S)/(p φ²)``
    squares: Tensor  # ``Σ_t (1/p − 1)(a S/φ²)²``

    @classmethod
    def zeros(cls, n: int) -> RadialSums:
        """Return the sums before the first step."""
        return cls(torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))


class RadialSample:
    """The radial parts of the measured steps of a run with ``n`` records."""

    kept: ClassVar[tuple[str, ...]] = ("pooled",)

    def __init__(self, n: int, every: int = 32) -> None:
        # At one step in 32, a radial part adds about a tenth to the time of an accounted step.
        self.every = every
        self._known = False
        self.amplified, self.plain = RadialSums.zeros(n), RadialSums.zeros(n)
        # Over all measured records: sums of aS/φ² and ar/φ², for b; and of squared residuals
        # and squared aS/φ², for σ²
        self.pooled = torch.zeros(4, dtype=torch.float64)

    def probability(self, step: int) -> float:
        """Return the probability that the radial part is measured at a step, counted from zero."""
        return 1.0 if self.needed else max(1 / self.every, 1 / (step + 1))

    def due(self, step: int, seed: int) -> bool:
        """Return whether the radial part is measured at a step."""
        return key_of(seed, "radial part", step) < self.probability(step) * 2**64

    @property
    def needed(self) -> bool:
        """Whether the radial part must be measured, because nothing is known to predict it from."""
        if not self._known:  # asked only at first, since an accelerator is waited for
            self._known = bool(self.pooled[0] > 0)
        return not self._known

    def predicted(self) -> Tensor:
        """Return ``b``, the radial part's predicted share of ``S``."""
        return torch.where(self.pooled[0] > 0, self.pooled[1] / self.pooled[0].clamp(min=1e-300), 0)

    def add(
        self,
        index: Tensor,
        possible: Tensor,
        radial: Tensor | None,
        factors: Tensor,
        probability: float,
    ) -> None:
        """Add a step: ``aS/φ²``, ``ar/φ²`` if it was measured, every record's κ, and ``p``."""
        one = torch.ones_like(factors)
        predicted = self.predicted() * possible
        removed, squares = predicted, (1 / probability - 1) * possible**2
        if radial is not None:
            removed = predicted + (radial - predicted) / probability
        for sums, factor in ((self.amplified, factors), (self.plain, one)):
            sums.removed.index_add_(0, index, factor * removed)
            sums.squares.index_add_(0, index, factor**2 * squares)
        if radial is None:
            return
        first = self.needed
        self.pooled[0] += possible.sum()
        self.pooled[1] += radial.sum()
        if first:
            predicted = self.predicted() * possible
        self.pooled[2] += (radial - predicted).square().sum()
        self.pooled[3] += possible.square().sum()

    def moments(self, amplified: bool) -> tuple[Tensor, Tensor]:
        """Return what to subtract from the totals, and its variance."""
        sums = self.amplified if amplified else self.plain
        spread = self.pooled[2] / self.pooled[3].clamp(min=1e-300)
        return sums.removed, spread * sums.squares
