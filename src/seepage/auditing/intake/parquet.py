"""Reads Parquet data for an audit in chunks, with cleaned names and text.

At most 1,000 different values of a column are counted, so name text columns with more values in
``drop``. Missing numbers cannot be replaced by the median, which needs a whole column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.intake.files import clean_column, good_names, read_file, with_steps
from seepage.auditing.intake.table import MOST_BYTES, LabelCoding, TableToAudit
from seepage.auditing.questions import FileOptions
from seepage.auditing.trained_model import ROW
from seepage.errors import InputError
from seepage.streams.disk.files import Batches, open_batches
from seepage.streams.disk.source import ParquetRows, sum_pieces
from seepage.tables.columns import (
    Piece,
    TableEncoding,
    complete_rows,
    plain_type,
    refuse_repeated,
    rows_in,
)
from seepage.tables.source import RowSource


class TableInChunks(TableToAudit):
    """Parquet data as a table to audit, summarised by scanning its columns."""

    def __init__(self, batches: AuditedRows) -> None:
        self._batches = batches
        self.names, self.rows = batches.names, batches.rows
        self.schema, self.steps = batches.schema, batches.steps
        self.manner = (f"The data ({self.rows:,} records) were read in chunks.",)

    @classmethod
    def of(cls, batches: Batches) -> TableInChunks:
        """Return the data as a table to audit."""
        if not batches.rows:
            raise InputError("The Parquet data have no rows; check the path.")
        refuse_repeated(batches.schema.names)  # columns are read by their names
        return cls(AuditedRows(batches))

    def whole(self, most: float | None = None, sample: str = "rows") -> pa.Table:
        """Return the table in memory; raise an error if it exceeds ``most`` bytes."""
        size, most = 8 * self.rows * len(self.names), MOST_BYTES if most is None else most
        if size > most:
            raise InputError(
                f"The table has {self.rows:,} rows and {len(self.names):,} columns, and would need "
                f"{size / 1e9:.1f} GB, more than the {most / 1e9:g} GB allowed in memory; audit a "
                f"sample of its {sample}."
            )
        pieces = self._batches.read(list(self.names), 1 << 17)  # some rows at a time
        tables = [pa.Table.from_batches([piece.batch]) for piece in pieces]
        return with_steps(pa.concat_tables(tables, promote_options="permissive"), self.steps)

    def total(self, columns: Sequence[str], function: Callable[[Sequence[Piece]], Any]) -> Any:
        """Return a function's results, summed over all pieces; columns may include :data:`ROW`."""
        return sum_pieces(self._batches, columns, function)

    def complete(self, needed: Sequence[str]) -> TableInChunks:
        """Return the rows without missing values in these columns."""
        return TableInChunks(self._batches.complete(needed))

    def encoded(
        self, coding: TableEncoding, labels: LabelCoding, groups: Sequence[str]
    ) -> RowSource:
        """Return the encoded rows, which are read again in every pass."""
        return ParquetRows(self._batches.labelled(coding.target, labels), coding)


class AuditedRows(Batches):
    """Cleans data as :func:`seepage.auditing.intake.files.read_file` does, batch by batch.

    Columns get printable, unique names, text is cleaned, and rows with a missing value in a
    ``needed`` column are dropped. The column :data:`ROW` contains row numbers in the whole table,
    starting at ``first``. ``labels`` states how label columns are read, and ``steps`` lists the
    changes.
    """

    def __init__(
        self,
        batches: Batches,
        first: int = 0,
        needed: Sequence[str] = (),
        labels: Mapping[str, LabelCoding] | None = None,
    ) -> None:
        self._inner, self._first = batches, first
        self._needed, self._labels = tuple(needed), dict(labels or {})
        self.names, self.steps = good_names(batches.schema.names)
        self._given = dict(zip(self.names, batches.schema.names, strict=True))
        kinds = {
            name: plain_type(batches.schema.field(k).type) for k, name in enumerate(self.names)
        }
        kinds |= {name: coding.kind for name, coding in self._labels.items()}
        self.schema = pa.schema({**kinds, ROW: pa.int64()})

    def complete(self, needed: Sequence[str]) -> AuditedRows:
        """Return the rows without missing values in these columns."""
        return AuditedRows(self._inner, self._first, needed, self._labels)

    def labelled(self, target: str, labels: LabelCoding) -> AuditedRows:
        """Return the same rows with the target's labels read as stated."""
        same = AuditedRows(self._inner, self._first, self._needed, {target: labels})
        same.rows = self.rows  # not counted again
        return same

    @cached_property
    def rows(self) -> int:
        """The number of rows that are not dropped; they are counted once."""
        if not self._needed:
            return self._inner.rows
        return sum_pieces(self, self._needed, rows_in) or 0

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns in row order, at most ``size`` rows at a time."""
        at = self._first
        for piece in self._inner.read(self._wanted(columns), size):
            yield self._cleaned(piece, columns, at)
            at += piece.batch.num_rows

    def runs(
        self, columns: Sequence[str], size: int, starts: Sequence[int], rows: int
    ) -> Iterator[tuple[int, Piece]]:
        """Yield runs of rows, unless rows are dropped, which would take a pass to count."""
        if not self._needed:
            for start, piece in self._inner.runs(self._wanted(columns), size, starts, rows):
                yield start, self._cleaned(piece, columns, self._first + start)

    def _wanted(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, as they are named in the data."""
        every = dict.fromkeys([*columns, *self._needed])
        return [self._given[name] for name in every if name != ROW]

    def _cleaned(self, piece: Piece, columns: Sequence[str], at: int) -> Piece:
        """Return columns of a piece whose first row has this number."""
        rows = pa.array(np.arange(at, at + piece.batch.num_rows))
        every = list(dict.fromkeys([*columns, *self._needed]))
        found = [
            rows if n == ROW else clean_column(piece.batch.column(self._given[n])) for n in every
        ]
        batch = pa.RecordBatch.from_arrays(found, names=every)
        whole = complete_rows(batch, self._needed)
        batch = batch.select(list(columns))
        if not whole.all():
            batch = batch.filter(pa.array(whole))
        for place, name in enumerate(columns):
            if name in self._labels:
                labels = self._labels[name](batch.column(place))
                batch = batch.set_column(place, name, labels)
        return Piece(batch, piece.file, piece.first)

    def holds(self, path: Path) -> bool:
        """Return whether a file written to this path would become one of the input files."""
        return self._inner.holds(path)

    def spread(self) -> Any:
        """Return the files on a cluster that contain these rows, if any."""
        return self._inner.spread()

    def parts(self) -> list[Batches]:
        """Return these rows in parts that different machines can read."""
        inner = self._inner.parts()
        starts = accumulate((part.rows for part in inner), initial=self._first)
        return [
            AuditedRows(part, start, self._needed, self._labels)
            for part, start in zip(inner, starts, strict=False)
        ]


def read_whole(table: Path, options: FileOptions) -> pa.Table:
    """Read a file, or a folder of Parquet files, into memory."""
    if not table.is_dir():
        return read_file(table, options)
    options.refuse_in_chunks()
    return TableInChunks.of(open_batches(table)).whole()
