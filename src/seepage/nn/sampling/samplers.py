"""Draws batches: each record independently (Poisson), or a set of fixed size.

Batches depend only on a seed and a step, so a stopped run can resume with the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from seepage.errors import InputError, accepts_other_names
from seepage.support.keyed_stream import KeyedStream
from seepage.support.number_check import check_choice

POISSON, FIXED, OTHER = "poisson", "fixed", "other"
SAMPLERS = (POISSON, FIXED, OTHER)


class Sampler(ABC):
    """Draws batches of a given size, or mean size, from a data set.

    A seed fixes all batches; give one only for experiments. By default, batches differ in every
    run, because they are drawn with a new key from the operating system. Keep the seed or key
    secret: an attacker who knows the batches learns more than the accountant states.
    """

    name: str

    def __init__(
        self, records: int, batch_size: int, seed: int | KeyedStream | None = None
    ) -> None:
        if not 1 <= batch_size <= records:
            raise InputError(
                f"batch_size must be from 1 to the number of records, {records}, not {batch_size}."
            )
        self.records = records
        self.batch_size: float = batch_size
        self.sample_rate = batch_size / records  # the probability that a record is in a batch
        if seed is None:
            self._stream = KeyedStream.fresh()
        else:
            self._stream = seed if isinstance(seed, KeyedStream) else KeyedStream.of_seed(seed)

    def batch(self, step: int) -> Tensor:
        """Return the records in a step's batch, in ascending order."""
        return torch.from_numpy(self._draw(self._stream.child("batch", step)))

    @abstractmethod
    def _draw(self, stream: KeyedStream) -> np.ndarray:
        """Draw one batch."""


@accepts_other_names
class PoissonSampler(Sampler):
    """Draws every record into a batch independently, with a given probability.

    Batches vary in size and may be empty. The probability is either a declared ``sample_rate``, or
    ``batch_size/records``; anyone who learns the latter can infer the number of records.

    Examples
    --------
    >>> from seepage.nn.sampling.samplers import PoissonSampler
    >>> sampler = PoissonSampler(records=1000, batch_size=50, seed=0)
    >>> [len(sampler.batch(t)) for t in range(3)] == [len(sampler.batch(t)) for t in range(3)]
    True
    """

    name = POISSON

    def __init__(
        self,
        records: int,
        batch_size: int | None = None,
        seed: int | KeyedStream | None = None,
        *,
        sample_rate: float | None = None,
    ) -> None:
        if (batch_size is None) == (sample_rate is None):
            raise InputError("Give exactly one of batch_size and sample_rate.")
        super().__init__(records, records if batch_size is None else batch_size, seed)
        if sample_rate is not None:
            check_rate(sample_rate)
            self.sample_rate = float(sample_rate)
            self.batch_size = self.sample_rate * records  # its mean

    def _draw(self, stream: KeyedStream) -> np.ndarray:
        return np.flatnonzero(stream.uniform(self.records) <= self.sample_rate)


@accepts_other_names
class FixedSizeSampler(Sampler):
    """Draws a uniformly random set of exactly ``batch_size`` records for every step."""

    name = FIXED

    def _draw(self, stream: KeyedStream) -> np.ndarray:
        # The records with the smallest random words; ties are practically impossible.
        size = int(self.batch_size)
        order = np.argpartition(stream.words(self.records), size - 1)
        return np.sort(order[:size])


_KINDS: dict[str, type[Sampler]] = {POISSON: PoissonSampler, FIXED: FixedSizeSampler}


def make_sampler(
    kind: str,
    records: int,
    batch_size: int | None,
    seed: int | KeyedStream,
    sample_rate: float | None = None,
) -> Sampler:
    """Return the sampler with this name, for a batch size or a declared sampling rate."""
    check_choice(kind, "sampling", tuple(_KINDS))
    if batch_size is None:
        return PoissonSampler(records, None, seed, sample_rate=sample_rate)
    return _KINDS[kind](records, batch_size, seed)


def check_rate(sample_rate: float) -> None:
    """Raise an error unless the sampling rate is above zero and at most one."""
    if not 0 < sample_rate <= 1:
        raise InputError(f"The sampling rate must be above 0 and at most 1, not {sample_rate!r}.")
