"""A table in the partitions of a Dask collection: sums come here, rows stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from seepage.errors import InputError
from seepage.streams.dask.tasks import fetch, named, tree_sum, write_by_workers
from seepage.streams.disk.encoding import TableEncoding
from seepage.streams.disk.files import Piece
from seepage.tables.source import Chunk, RowSource

Answer = TypeVar("Answer")


class Reader(Protocol):
    """Turns a partition into a chunk."""

    def __call__(self, partition: Any, number: int, start: int, extra: tuple[str, ...]) -> Chunk:
        """Return the rows of a partition, whose first is number ``start`` of the whole table."""


@dataclass(frozen=True)
class FrameReader:
    """Reads partitions that are pandas data frames."""

    coding: TableEncoding  # how columns become features, labels and weights
    schema: pa.Schema  # the types of all columns

    def __call__(self, partition: Any, number: int, start: int, extra: tuple[str, ...]) -> Chunk:
        """Return the rows of a data frame."""
        piece = as_piece(partition, self.schema, number)
        return self.coding.encode([piece], start, extra)


@dataclass(frozen=True)
class ArrayReader:
    """Reads partitions that are blocks of arrays: the features, the labels, and weights if any."""

    names: tuple[str, ...]

    def __call__(self, partition: Any, number: int, start: int, extra: tuple[str, ...]) -> Chunk:
        """Return the rows of a block."""
        if extra:
            raise InputError(
                f"Arrays have no column {extra[0]!r}; pass a dask data frame with that column."
            )
        X, y, weight = partition
        X = np.asarray(X, dtype=np.float64)
        _refuse_not_finite(X, self.names, start)
        y = np.asarray(y)
        if y.dtype.kind == "f":
            _refuse_not_finite(y[:, None], ("y",), start)
        if weight is not None:
            weight = np.asarray(weight, dtype=np.float64)
            _refuse_not_finite(weight[:, None], ("sample_weight",), start)
            if weight.size and weight.min() < 0:
                row = start + int(np.argmin(weight))
                raise InputError(f"Sample weights must not be negative, but row {row:,} has one.")
        return Chunk(X, y, weight, start)


def as_piece(frame: Any, schema: pa.Schema, number: int) -> Piece:
    """Return a pandas partition as Arrow columns of the types that all partitions should have."""
    wanted = pa.schema([schema.field(name) for name in frame.columns])
    try:
        batch = pa.RecordBatch.from_pandas(frame, wanted, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise InputError(
            f"Partition {number} does not have the column types of the whole: {error}."
        ) from error
    return Piece(batch, f"partition {number}", 0)


def _refuse_not_finite(numbers: np.ndarray, names: tuple[str, ...], start: int) -> None:
    if np.isfinite(np.sum(numbers)):  # far cheaper than a mask, and finite unless something is
        return
    bad = ~np.isfinite(numbers)
    if not bad.any():
        return  # finite entries whose sum overflowed
    row, column = np.argwhere(bad)[0]
    raise InputError(
        f"{names[column]!r} holds NaN or infinity in row {start + row:,}; drop such rows or fill "
        "the gaps."
    )


class DaskRows(RowSource):
    """A Dask collection as a table that is read in chunks; :func:`dask_rows` makes one.

    Every question is answered by one task per partition, and sums of the answers are formed in a
    tree. Tasks are functions of their partition, so that whatever a lost worker had is computed
    again by another one, to the same numbers.

    Parameters
    ----------
    partitions
        Given the other columns that are wanted, returns the delayed partitions.
    lengths
        How many rows each of them has.
    read
        Turns a partition into a chunk.
    names, attributes, target, weighted
        As in :class:`~seepage.tables.source.RowSource`.
    find_classes
        Finds the different labels.
    """

    def __init__(
        self,
        partitions: Callable[[tuple[str, ...]], Sequence[Any]],
        lengths: Sequence[int],
        read: Reader,
        *,
        names: tuple[str, ...],
        attributes: Mapping[str, tuple[str, ...]],
        target: str,
        weighted: bool,
        find_classes: Callable[[], np.ndarray],
    ) -> None:
        self.partitions, self.lengths, self.read = partitions, tuple(lengths), read
        self.names, self.attributes = names, attributes
        self.target, self.weighted = target, weighted
        self._find_classes = find_classes
        if not len(self):
            raise InputError("The Dask collection has no rows.")

    def __len__(self) -> int:
        return sum(self.lengths)

    def __repr__(self) -> str:
        return (
            f"<DaskRows: {len(self):,} rows in {len(self.lengths)} partitions, "
            f"{len(self.names):,} features, {self.target!r}>"
        )

    def classes(self) -> np.ndarray:
        """Return the different labels, sorted."""
        return self._classes

    @cached_property
    def _classes(self) -> np.ndarray:
        return self._find_classes()

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum of the function's answers over all partitions: only that comes here."""
        answers = self.answers(function, what, extra)
        found: Answer = fetch(tree_sum([a for _, a in answers], what))
        return found

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Refuse: what there is one of for every row never comes to the client."""
        raise InputError(
            "The rows of Dask data stay on the workers: have them as a dask array with to_dask(), "
            "written by the workers with write(folder), or look at the worst with top()."
        )

    def lazily(self, function: Callable[[Chunk], np.ndarray], width: int | None, what: str) -> Any:
        """Return what the function says of every row as a dask array, computed when it is used."""
        arrays: Any = import_module("dask.array")
        like = np.empty(0 if width is None else (0, width))
        blocks = [
            arrays.from_delayed(answer, (self.lengths[k], *like.shape[1:]), meta=like)
            for k, answer in self.answers(function, what)
        ]
        return arrays.concatenate(blocks)

    def write(self, function: Callable[[Chunk], pa.Table], path: Path, what: str) -> None:
        """Let the workers write a folder of Parquet files, one for every partition."""
        write_by_workers(self.answers(function, what), path, what)

    def answers(
        self, function: Callable[[Chunk], Any], what: str, extra: Sequence[str] = ()
    ) -> list[tuple[int, Any]]:
        """Return the number of every partition that has rows, with the delayed answer on it."""
        from dask.delayed import delayed

        wanted = tuple(extra)
        prefix = named(what)
        # A node of its own in the graph: sent once, and passed on between the workers.
        asked = delayed(_Asked(function, self.read), pure=False, traverse=False)
        starts = list(accumulate(self.lengths, initial=0))
        return [
            (
                k,
                delayed(_answer, pure=False)(
                    asked, part, k, starts[k], rows, wanted, dask_key_name=f"{prefix}-{k}"
                ),
            )
            for k, (part, rows) in enumerate(
                zip(self.partitions(wanted), self.lengths, strict=True)
            )
            if rows
        ]


class _Asked:
    """A question and how to read the rows it is about; plain data, so that Dask leaves it alone."""

    def __init__(self, function: Callable[[Chunk], Any], read: Reader) -> None:
        self.function, self.read = function, read


def _answer(
    asked: _Asked, partition: Any, number: int, start: int, rows: int, extra: tuple[str, ...]
) -> Any:
    chunk = asked.read(partition, number, start, tuple(extra))
    if len(chunk) != rows:
        raise InputError(
            f"Partition {number} has {len(chunk):,} rows where it had {rows:,} before; the data "
            "must not change while they are read."
        )
    return asked.function(chunk)
