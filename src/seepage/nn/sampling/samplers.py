"""How batches are drawn: every record by a coin of its own, or a set of fixed size.

Both are functions of a seed and a step, so a run that stops can go on with the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from seepage.errors import InputError, nearest
from seepage.nn.jacobian.random_signs import key_of

POISSON, FIXED, OTHER = "poisson", "fixed", "other"
SAMPLERS = (POISSON, FIXED, OTHER)


class Sampler(ABC):
    """Batches of a data set.

    Parameters
    ----------
    records
        How many records there are.
    batch_size
        The size of a batch, or its mean.
    seed
        Fixes all batches. Keep it secret: whoever knows the batches learns more than the accountant
        says.
    """

    name: str

    def __init__(self, records: int, batch_size: int, seed: int) -> None:
        if not 1 <= batch_size <= records:
            raise InputError(
                f"batch_size must lie between 1 and the number of records, {records}, "
                f"not {batch_size}."
            )
        self.records = records
        self.batch_size = batch_size
        self.seed = seed

    @property
    def sample_rate(self) -> float:
        """The probability that a record is in a batch."""
        return self.batch_size / self.records

    def batch(self, step: int) -> Tensor:
        """Return the records of the batch of a step, in ascending order."""
        source = torch.Generator().manual_seed(key_of(self.seed, "batch", step))
        return self._draw(source)

    @abstractmethod
    def _draw(self, source: torch.Generator) -> Tensor:
        """Draw one batch."""


class PoissonSampler(Sampler):
    """Every record is in a batch with probability ``batch_size/records``, by a coin of its own.

    Batches vary in size and may be empty.

    Examples
    --------
    >>> from seepage.nn.sampling.samplers import PoissonSampler
    >>> sampler = PoissonSampler(records=1000, batch_size=50, seed=0)
    >>> [len(sampler.batch(t)) for t in range(3)] == [len(sampler.batch(t)) for t in range(3)]
    True
    """

    name = POISSON

    def _draw(self, source: torch.Generator) -> Tensor:
        coins = torch.rand(self.records, generator=source, dtype=torch.float64)
        return torch.nonzero(coins < self.sample_rate).flatten()


class FixedSizeSampler(Sampler):
    """A set of exactly ``batch_size`` records, all sets alike, drawn anew for every step."""

    name = FIXED

    def _draw(self, source: torch.Generator) -> Tensor:
        order = torch.randperm(self.records, generator=source)
        return order[: self.batch_size].sort().values


_KINDS: dict[str, type[Sampler]] = {POISSON: PoissonSampler, FIXED: FixedSizeSampler}


def make_sampler(kind: str, records: int, batch_size: int, seed: int) -> Sampler:
    """Return the sampler of that name."""
    if kind not in _KINDS:
        raise InputError(
            f"sampling must be 'poisson' or 'fixed', not {kind!r}{nearest(kind, _KINDS)}."
        )
    return _KINDS[kind](records, batch_size, seed)


def check_rate(sample_rate: float) -> None:
    """Raise unless a sampling rate lies above zero and not above one."""
    if not 0 < sample_rate <= 1:
        raise InputError(f"The sampling rate must lie in (0, 1], not {sample_rate!r}.")
