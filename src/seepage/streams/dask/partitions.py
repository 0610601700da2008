"""How one partition of a Dask collection becomes a chunk of rows, on the worker that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from seepage.errors import InputError
from seepage.streams.disk.coding import Coding
from seepage.streams.disk.files import Piece
from seepage.tables.source import Chunk


class Reader(Protocol):
    """Turns a partition into a chunk."""

    def __call__(self, partition: Any, number: int, start: int, extra: tuple[str, ...]) -> Chunk:
        """Return the rows of a partition, whose first is number ``start`` of the whole table."""


@dataclass(frozen=True)
class FrameReader:
    """Reads partitions that are pandas data frames.

    Parameters
    ----------
    coding
        How columns become features, labels and weights.
    schema
        The types of all columns.
    """

    coding: Coding
    schema: pa.Schema

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
