"""What a run has released so far: how many steps, with which noise, clip and batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Entry:
    """Steps in a row that were alike.

    Parameters
    ----------
    steps
        How many.
    sampler
        How the batches were drawn: ``poisson``, ``fixed`` or ``other``.
    sample_rate
        The probability that a record takes part in one of them.
    noise_multiplier
        σ: the noise on the sum has the standard deviation ``σC``.
    max_grad_norm
        C.
    sensitivity
        The largest norm of a clipped gradient; infinite without clipping.
    records
        How many records the batches were drawn from.
    """

    steps: int
    sampler: str
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    sensitivity: float
    records: int

    @property
    def noise(self) -> float:
        """The standard deviation of the noise on the sum, ``σC``."""
        return self.noise_multiplier * self.max_grad_norm

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps: {self.sampler} batches of rate {self.sample_rate:.4g}, "
            f"σ = {self.noise_multiplier:.4g}, C = {self.max_grad_norm:.4g}, "
            f"gradients no longer than {self.sensitivity:.4g}"
        )


class Ledger:
    """The entries of a run, in the order of its steps.

    Examples
    --------
    >>> from seepage.nn.privacy.ledger import Entry, Ledger
    >>> ledger = Ledger()
    >>> for _ in range(3):
    ...     ledger.add(Entry(1, "poisson", 0.01, 1.0, 1.0, 1.0, 6000))
    >>> print(ledger)
    3 steps: poisson batches of rate 0.01, σ = 1, C = 1, gradients no longer than 1
    """

    def __init__(self, entries: tuple[Entry, ...] = ()) -> None:
        self._entries = list(entries)

    def add(self, entry: Entry) -> None:
        """Add steps; they join the last entry if they are like it."""
        if self._entries and replace(self._entries[-1], steps=entry.steps) == entry:
            entry = replace(entry, steps=entry.steps + self._entries.pop().steps)
        self._entries.append(entry)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(entry.steps for entry in self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "\n".join(map(str, self._entries)) or "no steps"

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps([asdict(entry) for entry in self._entries])

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Return the ledger that :meth:`to_json` wrote."""
        return cls(tuple(Entry(**entry) for entry in json.loads(text)))
