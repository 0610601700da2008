"""How batches are drawn: every record by its own coin toss, or a set of fixed size.

Both are functions of a seed and a step, so a stopped run can resume with the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.support.keyed_stream import KeyedStream
from seepage.support.number_check import check_choice

POISSON, FIXED, OTHER = "poisson", "fixed", "other"
SAMPLERS = (POISSON, FIXED, OTHER)


class Sampler(ABC):
    """Draws batches of a size, or mean size, from a data set.

    A seed fixes all batches, for experiments; by default they are different in every run, with a
    key from the operating system. Keep it secret: whoever knows the batches learns more than the
    accountant says.
    """

    name: str

    def __init__(
        self, records: int, batch_size: int, seed: int | KeyedStream | None = None
    ) -> None:
        if not 1 <= batch_size <= records:
            raise InputError(
                f"batch_size must lie between 1 and the number of records, {records}, "
                f"not {batch_size}."
            )
        self.records = records
        self.batch_size = batch_size
        if seed is None:
            self._stream = KeyedStream.fresh()
        else:
            self._stream = seed if isinstance(seed, KeyedStream) else KeyedStream.of_seed(seed)

    @property
    def sample_rate(self) -> float:
        """The probability that a record is in a batch."""
        return self.batch_size / self.records

    def batch(self, step: int) -> Tensor:
        """Return the records of the batch of a step, in ascending order."""
        return torch.from_numpy(self._draw(self._stream.child("batch", step)))

    @abstractmethod
    def _draw(self, stream: KeyedStream) -> np.ndarray:
        """Draw one batch."""


class PoissonSampler(Sampler):
    """Every record is in a batch with probability ``batch_size/records``, independently.

    Batches vary in size and may be empty.

    Examples
    --------
    >>> from seepage.nn.sampling.samplers import PoissonSampler
    >>> sampler = PoissonSampler(records=1000, batch_size=50, seed=0)
    >>> [len(sampler.batch(t)) for t in range(3)] == [len(sampler.batch(t)) for t in range(3)]
    True
    """

    name = POISSON

    def _draw(self, stream: KeyedStream) -> np.ndarray:
        return np.flatnonzero(stream.uniform(self.records) <= self.sample_rate)


class FixedSizeSampler(Sampler):
    """A set of exactly ``batch_size`` records, drawn uniformly for every step."""

    name = FIXED

    def _draw(self, stream: KeyedStream) -> np.ndarray:
        # The records with the smallest random words; ties are practically impossible.
        order = np.argpartition(stream.words(self.records), self.batch_size - 1)
        return np.sort(order[: self.batch_size])


_KINDS: dict[str, type[Sampler]] = {POISSON: PoissonSampler, FIXED: FixedSizeSampler}


def make_sampler(kind: str, records: int, batch_size: int, seed: int | KeyedStream) -> Sampler:
    """Return the sampler of that name."""
    check_choice(kind, "sampling", tuple(_KINDS))
    return _KINDS[kind](records, batch_size, seed)


def check_rate(sample_rate: float) -> None:
    """Raise unless a sampling rate lies above zero and not above one."""
    if not 0 < sample_rate <= 1:
        raise InputError(f"The sampling rate must lie in (0, 1], not {sample_rate!r}.")
