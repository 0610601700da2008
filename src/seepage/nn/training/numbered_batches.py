"""Reads the batches of a private run from a data set, with the number of every record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

Collate = Callable[[list[Any]], Any]


class NumberedRecords(torch.utils.data.Dataset[tuple[int, Any]]):  # type: ignore[misc]
    """A data set that returns every record with its number."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return int(number), self.records[int(number)]

    def __len__(self) -> int:
        return len(self.records)


class NumberedCollate:
    """Collates numbered records into a batch, and returns the batch with the numbers.

    Poisson batches may be empty, which collators do not expect. An empty batch is therefore made
    from one record, whose rows are then removed.

    Parameters
    ----------
    collate
        A function that makes a batch from a list of records.
    example
        A record from which empty batches are made.
    key
        The key under which the numbers are added to a batch that is a mapping. Without a key, the
        result is a pair of the numbers and the batch.
    """

    def __init__(self, collate: Collate, example: Any, key: str | None = None) -> None:
        self.collate, self.example, self.key = collate, example, key

    def __call__(self, numbered: list[tuple[int, Any]]) -> Any:
        """Return the records' numbers with the batch."""
        numbers = torch.tensor([number for number, _ in numbered], dtype=torch.int64)
        batch = self.collate([record for _, record in numbered] or [self.example])
        if not numbered:
            batch = tree_map_only(Tensor, lambda rows: rows[:0], _plain(batch))
        return (numbers, batch) if self.key is None else {**batch, self.key: numbers}


def _plain(batch: Any) -> Any:
    """Return a mapping as a plain dict, which torch can traverse; other batches are unchanged."""
    return dict(batch) if isinstance(batch, Mapping) else batch


class StepBatches:
    """The records of every step of one pass, as a batch sampler for torch's ``DataLoader``.

    Parameters
    ----------
    draw
        A function that returns the positions of the records in a step's batch.
    first
        A function that returns the first step to draw; it is called when the pass begins.
    length
        The number of steps in a pass.
    """

    def __init__(
        self, draw: Callable[[int], Tensor], first: Callable[[], int], length: int
    ) -> None:
        self.draw, self.first, self.length = draw, first, length

    def __iter__(self) -> Iterator[list[int]]:
        start = self.first()
        for step in range(start, (start // self.length + 1) * self.length):
            yield self.draw(step).tolist()

    def __len__(self) -> int:
        return self.length


def numbered_loader(
    records: Any, batches: StepBatches, collate: Collate, key: str | None = None, **options: Any
) -> DataLoader[Any]:
    """Return a loader of batches with the numbers of their records (:class:`NumberedCollate`)."""
    numbered = NumberedCollate(collate, records[0], key)
    return DataLoader(
        NumberedRecords(records), batch_sampler=batches, collate_fn=numbered, **options
    )
