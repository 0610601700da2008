"""Measures all records at randomly chosen steps, to average leakage over redrawn batches.

A run measures a record only in the batches that contain it. If record i takes part in step t with
probability q and then leaks ``κ ‖J̃_{i,t}‖_F²/s_t²``,

    M_i = q Σ_t κ_{i,t} ‖J̃_{i,t}‖_F² / s_t²

is the mean over batches redrawn in every step, at the iterates of this run. This mean is estimated
from a stratified sample of steps (Cochran 1977, chapter 5): the steps are divided into blocks of L,
and all records are measured in two randomly drawn steps of each block. If v and w are a record's
values in these steps, the block contributes ``L/2 (v + w)``, with the variance
``L² (1 − 2/L) (v − w)²/4`` plus ``L/2`` times the variance of the probes. A step that the run does
not reach leaks nothing, so the estimate is also valid if the run ends within a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from seepage.nn.jacobian.random_directions import key_of
from seepage.support.number_check import check_count


@dataclass
class SurveyedTraces:
    """The estimates for every record from the survey passes, each ``(n,)``."""

    kept: ClassVar[tuple[str, ...]] = ("total", "variance", "squares", "first", "first_noise")

    total: Tensor  # the estimate of ``M``
    variance: Tensor  # that of its variance
    squares: Tensor  # the sum over blocks of the squares of their variances
    # The values of a block's first pass, until its second is made, and their variances
    first: Tensor
    first_noise: Tensor

    @classmethod
    def zeros(cls, n: int) -> SurveyedTraces:
        """Return the estimates before the first pass."""
        return cls(*(torch.zeros(n, dtype=torch.float64) for _ in cls.kept))


class Survey:
    """Chooses the surveyed steps, one in ``every`` on average, and stores their results.

    Each pass gives ``probes`` estimates of the trace for each of ``n`` records. If the number of
    ``steps`` is known, the last block ends with the run.
    """

    def __init__(self, n: int, every: int, probes: int, seed: int, steps: int | None) -> None:
        check_count(every, "survey_every")
        self.every, self.probes, self.seed, self.steps = every, probes, int(seed), steps
        self.amplified, self.plain = SurveyedTraces.zeros(n), SurveyedTraces.zeros(n)

    def due(self, step: int) -> bool:
        """Return whether all records must be measured at a step; steps are counted from zero."""
        start, length = self._block(step)
        return step - start in self._chosen(start, length)

    def passes(self, steps: int) -> list[int]:
        """Return the number of passes in each surveyed block, over the first ``steps`` steps."""
        counts, start = [], 0
        while start < steps:
            start, length = self._block(start)
            counts.append(sum(start + place < steps for place in self._chosen(start, length)))
            start += length
        return [count for count in counts if count]

    def add(
        self, step: int, amplified: tuple[Tensor, Tensor], plain: tuple[Tensor, Tensor]
    ) -> None:
        """Add a pass, with each record's mean over redrawn batches and the probes' variance."""
        start, length = self._block(step)
        chosen = self._chosen(start, length)
        weight = length / len(chosen)
        waiting = len(chosen) > 1 and step - start == chosen[0]
        for kept, (value, noise) in ((self.amplified, amplified), (self.plain, plain)):
            kept.total += weight * value
            if waiting:
                kept.first.copy_(value)
                kept.first_noise.copy_(noise)
                continue
            block = weight * (kept.first_noise + noise)
            if len(chosen) > 1:
                block += self._between(length) * (kept.first - value) ** 2
            kept.variance += block
            kept.squares += block**2
            kept.first.zero_()
            kept.first_noise.zero_()

    def moments(self, steps: int, amplified: bool) -> tuple[Tensor, Tensor]:
        """Return the means over redrawn batches, for the first ``steps``, and their variances."""
        kept = self.amplified if amplified else self.plain
        return kept.total.clone(), kept.variance + self._waiting(kept, steps)

    def degrees(self, steps: int, amplified: bool) -> Tensor:
        """Return the degrees of freedom of each record's variance.

        The variances ``V_k`` of K blocks have one degree of freedom each. The result is
        ``3 (Σ V)²/Σ V² − 2``, limited to the range from 1 to K: Satterthwaite's formula, corrected
        for the bias of the squares (``E V² = 3 (E V)²``).
        """
        kept = self.amplified if amplified else self.plain
        half = self._waiting(kept, steps)
        squares = kept.squares + half**2
        ratio = (kept.variance + half) ** 2 / squares.clamp(min=1e-300)
        return (3 * ratio - 2).clamp(min=1.0, max=max(1, len(self.passes(steps))))

    def _waiting(self, kept: SurveyedTraces, steps: int) -> Tensor:
        """Return the variance of a block whose second pass is missing.

        The missing pass counts as a step without leakage.
        """
        length = self._block(max(steps - 1, 0))[1]
        return self._between(length) * kept.first**2 + length / 2 * kept.first_noise

    def _between(self, length: int) -> float:
        """Return the factor of ``(v − w)²`` in the variance of a block of ``length`` steps.

        With a single probe, the variance of the probes is unknown but contained in ``(v − w)²``, so
        no finite-population correction is applied.
        """
        seen = 2 / length if self.probes > 1 else 0.0
        return length**2 * (1 - seen) / 4

    def _block(self, step: int) -> tuple[int, int]:
        """Return the first step and the length of the block that contains a step."""
        usual = 2 * self.every
        if self.steps is None or step < self.steps:
            start = step // usual * usual
            return start, usual if self.steps is None else min(usual, self.steps - start)
        return self.steps + (step - self.steps) // usual * usual, usual

    def _chosen(self, start: int, length: int) -> tuple[int, ...]:
        """Return the surveyed steps of a block in order, counted from the block's first step."""
        if length <= 2:
            return tuple(range(length))
        random = np.random.default_rng(key_of(self.seed, "survey", start))
        return tuple(sorted(random.choice(length, 2, replace=False).tolist()))

    def emptied(self) -> Survey:
        """Return a survey with the same chosen steps and no results."""
        n = len(self.amplified.total)
        return Survey(n, self.every, self.probes, self.seed, self.steps)

    def keep(self, rows: Tensor) -> None:
        """Keep only the results for these records."""
        for tensor in (*vars(self.amplified).values(), *vars(self.plain).values()):
            own = tensor[rows].clone()
            tensor.zero_()
            tensor[rows] = own

    def plan(self) -> dict[str, Any]:
        """Return the parameters, other than ``every``, that determine the chosen steps."""
        return {"seed": self.seed, "steps": self.steps}

    def follow(self, plan: Mapping[str, Any]) -> None:
        """Restore the choice of steps from the output of :meth:`plan`."""
        self.seed, self.steps = plan["seed"], plan["steps"]
