"""Parquet data for an audit as it is read: columns with good names, text cleaned, rows left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.read_file import MISSING, clean_text, good_names
from seepage.streams.disk.column_scan import decoded
from seepage.streams.disk.files import Batches, Piece, plain_type
from seepage.streams.disk.source import sum_pieces
from seepage.tables.facts import is_number, is_text, plain_numbers

ROW = "row\x00"  # the number of a record in the data; no column that is read can be called so


class CleanBatches(Batches):
    """What :func:`seepage.auditing.intake.read_file.read_file` does to a table, batch by batch.

    Parameters
    ----------
    batches
        The data as they are.
    first
        The number of the first of these rows in the whole table.

    Attributes
    ----------
    steps
        What had to be changed, one sentence each.
    """

    def __init__(self, batches: Batches, first: int = 0) -> None:
        self._inner, self._first = batches, first
        names, self.steps = good_names(batches.schema.names)
        self._given = dict(zip(names, batches.schema.names, strict=True))
        fields = [
            pa.field(new, plain_type(batches.schema.field(k).type)) for k, new in enumerate(names)
        ]
        self.schema = pa.schema(fields)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._inner.rows

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns of all rows in order, at most ``size`` rows at a time."""
        at = self._first
        given = [self._given[name] for name in columns if name != ROW]
        for piece in self._inner.read(given, size):
            rows = piece.batch.num_rows
            found = [
                pa.array(np.arange(at, at + rows))
                if name == ROW
                else _clean(piece.batch.column(self._given[name]))
                for name in columns
            ]
            yield Piece(
                pa.RecordBatch.from_arrays(found, names=list(columns)), piece.file, piece.first
            )
            at += rows

    def holds(self, path: Path) -> bool:
        """Say whether a file written to this path would be among the ones that are read."""
        return self._inner.holds(path)

    def spread(self) -> Any:
        """Return the files on a cluster that these rows come from, if any."""
        return self._inner.spread()

    def parts(self) -> list[Batches]:
        """Return these rows in parts that can be read by different machines."""
        inner = self._inner.parts()
        starts = accumulate((part.rows for part in inner), initial=self._first)
        return [CleanBatches(part, start) for part, start in zip(inner, starts, strict=False)]


class CompleteRows(Batches):
    """The rows that have a value in all of some columns, numbered by the column :data:`ROW`.

    Parameters
    ----------
    batches
        The data, of which :data:`ROW` can be read.
    needed
        The columns that must have a value.
    as_type
        Columns that are read as another type.
    """

    def __init__(
        self, batches: Batches, needed: Sequence[str], as_type: Mapping[str, pa.DataType]
    ) -> None:
        self._inner, self._needed, self._as_type = batches, tuple(needed), dict(as_type)
        fields = [pa.field(f.name, self._as_type.get(f.name, f.type)) for f in batches.schema]
        self.schema = pa.schema([*fields, pa.field(ROW, pa.int64())])

    @cached_property
    def rows(self) -> int:
        """The number of rows that are complete, counted once."""
        if not self._needed:
            return self._inner.rows
        return sum_pieces(self, self._needed, _count) or 0

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns of the complete rows in order, at most ``size`` rows at a time."""
        wanted = list(columns)
        every = list(dict.fromkeys([*wanted, *self._needed]))
        for piece in self._inner.read(every, size):
            batch = piece.batch
            whole = np.ones(batch.num_rows, dtype=bool)
            for name in self._needed:
                whole &= ~_gaps(batch.column(name))
            batch = batch.select(wanted)
            if not whole.all():
                batch = batch.filter(pa.array(whole))
            for name, kind in self._as_type.items():
                if name in wanted:
                    place = wanted.index(name)
                    batch = batch.set_column(place, name, batch.column(place).cast(kind))
            yield Piece(batch, piece.file, piece.first)

    def holds(self, path: Path) -> bool:
        """Say whether a file written to this path would be among the ones that are read."""
        return self._inner.holds(path)

    def spread(self) -> Any:
        """Return the files on a cluster that these rows come from, if any."""
        return self._inner.spread()

    def parts(self) -> list[Batches]:
        """Return these rows in parts that can be read by different machines."""
        return [CompleteRows(p, self._needed, self._as_type) for p in self._inner.parts()]


def _count(pieces: Sequence[Piece]) -> int:
    return sum(piece.batch.num_rows for piece in pieces)


def _clean(column: pa.Array) -> pa.Array:
    column = decoded(column)
    if not is_text(column.type):
        return column
    return clean_text(pa.chunked_array([column]), MISSING, False).combine_chunks()


def _gaps(column: pa.Array) -> np.ndarray:
    if is_number(column.type):
        column = plain_numbers(column)
    return np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False))
