"""Checks that incoming batches have valid record numbers and are sampled as stated."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.sampling.samplers import FIXED, OTHER, POISSON
from seepage.tables.names import counted

_FACTS = ("steps", "entries", "same_size", "last_size", "warned")


def checked_index(index: Any, size: int, records: int, before: Tensor | None = None) -> Tensor:
    """Return the numbers of a batch's records, ``(B,)``; raise an error if they are invalid.

    ``before`` contains the record numbers in earlier parts of the same step.
    """
    try:
        given = torch.as_tensor(index).flatten().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "index must contain the numbers of the batch's records, as whole numbers."
        ) from None
    if given.dtype == torch.bool:
        raise InputError(
            "index must contain the numbers of the batch's records, not a boolean mask; use "
            "torch.nonzero(mask).flatten()."
        )
    if len(given) and (given.is_floating_point() or given.is_complex()):
        raise InputError(
            "index must contain the numbers of the batch's records as whole numbers, not as "
            f"{str(given.dtype).removeprefix('torch.')}; convert it to int64."
        )
    chosen = given.to(torch.int64)
    if len(chosen) != size:
        raise InputError(
            f"index names {counted(len(chosen), 'record')}, but the batch has {size}; give one "
            "number per record."
        )
    if len(chosen) and (int(chosen.min()) < 0 or int(chosen.max()) >= records):
        odd = int(chosen.min()) if int(chosen.min()) < 0 else int(chosen.max())
        raise InputError(
            f"There is no record {odd}; n is {records}, so number the records from 0 to "
            f"{records - 1}."
        )
    values, counts = torch.unique(chosen, return_counts=True)
    if len(values) < len(chosen):
        most = int(counts.argmax())
        raise InputError(
            f"Record {int(values[most])} is in the batch {int(counts[most])} times; draw batches "
            "without replacement."
        )
    again = chosen[:0] if before is None else chosen[torch.isin(chosen, before)]
    if len(again):
        raise InputError(
            f"Record {int(again[0])} was already observed in this step; if a batch has several "
            "parts, put each record in only one of them. End the step (more=False, or the "
            "optimiser's step) before the next step begins."
        )
    return chosen


class SamplerWarning(UserWarning):
    """Warns that batches are not drawn as stated to the accountant."""


class SamplerCheck:
    """Checks the batches' sizes and how often they repeat records, unless the sampler is ``other``.

    Shuffled epochs repeat no record until the epoch ends, whereas independent draws soon repeat
    records. Poisson samples do not all have the same size, whereas batches of the sampler ``fixed``
    do. ``batch_size`` is the size, or mean size, of the batches in this process. If each batch is
    divided among processes (``shared``), its parts vary in size even if the whole batch does not.
    """

    def __init__(
        self, sampler: str, batch_size: float, records: float, shared: bool = False
    ) -> None:
        self.shared = shared
        self.sampler = sampler
        self.batch_size = batch_size
        self.records = records
        self.steps = 0
        self.entries = 0
        self.same_size = 0
        self.last_size = -1
        self.warned = sampler == OTHER

    @property
    def watching(self) -> bool:
        """Whether repetitions are still being counted."""
        return not self.warned and self.entries < self.records

    def trust(self) -> None:
        """Stop checking, because the batches are drawn by one of seepage's samplers."""
        self.warned = True

    def step(self, size: int, repeats: int) -> None:
        """Count a batch; ``repeats`` is the number of draws so far that repeated a record."""
        self.steps += 1
        self.entries += size
        self.same_size = self.same_size + 1 if size == self.last_size else 1
        if not self.warned:
            complaint = self._complaint(size, repeats)
            if complaint:
                self.warned = True
                warnings.warn(
                    f"{complaint} The batches contradict the assumptions behind κ and (ε, δ); draw "
                    "the batches as stated, or give sampler='other', which claims no "
                    "amplification.",
                    SamplerWarning,
                    stacklevel=4,
                )
        self.last_size = size

    def _complaint(self, size: int, repeats: int) -> str:
        whole = self.sampler == FIXED and not self.shared
        if whole and self.last_size >= 0 and size != self.last_size:
            return f"Batches had {self.last_size} and {size} records, so their size is not fixed."
        rate = self.batch_size / self.records
        spread = math.sqrt(self.batch_size * (1 - rate) * self.steps)
        # Eight standard deviations, for a check that is made at every step
        if abs(self.entries - self.steps * self.batch_size) > 8 * max(spread, 1.0):
            return (
                f"{counted(self.steps, 'batch', 'batches')} had "
                f"{self.entries / self.steps:.4g} records on average, not {self.batch_size:.4g}."
            )
        varies = self.batch_size * (1 - rate) >= 4
        # For Poisson batches far less likely than one in a million
        if self.sampler == POISSON and varies and self.same_size >= 12:
            return f"12 batches in a row had {counted(size, 'record')}, unlike Poisson samples."
        # Among independent draws, entries²/(2 records) repeat an earlier one (while that is small).
        # Their absence counts as evidence once 40 are expected. Of as many draws as there were: the
        # spread of the sizes is larger than the number of repetitions at first.
        drawn = self.entries / (self.steps * self.records)
        log_left_out = math.log1p(-drawn) if drawn < 1 else -math.inf
        expected = self.entries - self.records * -math.expm1(self.steps * log_left_out)
        if self.watching and expected >= 40 and repeats < expected / 4:
            return (
                f"Of {self.entries} draws, only {repeats} repeated a record, but {expected:.0f} "
                "were expected, so the batches are probably shuffled epochs."
            )
        return ""

    def facts(self) -> dict[str, int]:
        """Return the counts so far."""
        return {name: int(getattr(self, name)) for name in _FACTS}

    def take(self, facts: Mapping[str, int]) -> None:
        """Restore the counts from the output of :meth:`facts`."""
        for name in _FACTS:
            setattr(self, name, facts[name])
