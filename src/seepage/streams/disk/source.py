"""``sp.parquet``: Parquet data of any size as a table for fitting models and measuring leakage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from seepage.errors import InputError
from seepage.streams.disk.files import Batches, open_batches
from seepage.support.chunks import progress_over, spread, usable_cores
from seepage.tables.columns import (
    Piece,
    Scan,
    TableEncoding,
    choose_columns,
    class_levels,
    encode_columns,
    plain_type,
    rows_in,
    scan,
)
from seepage.tables.names import counted
from seepage.tables.source import Chunk, RowSource, check_column

Answer = TypeVar("Answer")

_CHUNK = 1 << 20  # numbers in a chunk: decoding files favours larger ones than arithmetic does
_WIDE = 4096  # rows of a wide table that make up for the fixed cost of a chunk


def parquet(
    data: Any,
    *,
    target: str,
    columns: Sequence[str] | None = None,
    weight: str | None = None,
    scale: bool = False,
    drop_first: bool = False,
    filesystem: Any = None,
) -> ParquetRows:
    """Open Parquet data of any size as a table read in chunks.

    :mod:`seepage.glm` estimators can be fitted on this table, and :func:`seepage.leakage` accepts
    it. Only a few chunks are in memory at a time, and the results equal those for the whole table
    in memory.

    Parameters
    ----------
    data
        A Parquet file, a list of files, a folder of files or a ``pyarrow.dataset.Dataset``. A
        folder is read in the order of file names; its ``key=value`` folders become columns. Paths
        may be on any file system that fsspec can open, such as ``s3://bucket/people/``.
    target
        The label column.
    columns
        The feature columns; by default all columns except the label and the weight. Text becomes
        one 0/1 feature per level, named ``column=level``; a scan of the text columns finds the
        levels.
    weight
        The column of sample weights.
    scale
        Whether to standardise numeric columns by their means and standard deviations, which are
        computed in a scan. The means and standard deviations then count as public.
    drop_first
        Whether to omit the first level of each text column; a model with an intercept and no
        penalty requires this.
    filesystem
        The pyarrow or fsspec file system of the paths.

    Examples
    --------
    >>> import tempfile, numpy as np, pyarrow as pa, pyarrow.parquet as pq
    >>> from seepage.glm import LogisticRegression
    >>> from seepage import parquet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal(1000)
    >>> table = pa.table({"x": x, "y": x + rng.standard_normal(1000) > 0})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(table, folder + "/people.parquet", row_group_size=100)
    ...     data = parquet(folder, target="y")
    ...     model = LogisticRegression(l2=1e-2).fit(data)
    >>> len(data), model.coef_.shape
    (1000, (1, 1))
    """
    batches = open_batches(data, filesystem)
    wanted = choose_columns(batches.schema.names, target, weight, columns)
    if batches.rows == 0:
        raise InputError("The Parquet data have no rows; pass files with data.")
    parts = encode_columns(wanted, batches.schema, scale, partial(scan_columns, batches))
    return ParquetRows(batches, TableEncoding(parts, target, weight, scale, drop_first))


class ParquetRows(RowSource):
    """Parquet data as a table read in chunks, made by :func:`parquet`.

    Parameters
    ----------
    batches
        The rows to read, as batches.
    coding
        The encoding of columns as features, labels and weights.
    threads
        The number of chunks processed in parallel; by default, one per core.
    """

    def __init__(self, batches: Batches, coding: TableEncoding, threads: int | None = None) -> None:
        self.batches, self.coding, self._threads = batches, coding, threads
        self.names = coding.names()
        self.attributes = coding.attributes()
        self.target, self.weighted = coding.target, coding.weight is not None

    def __len__(self) -> int:
        return self.batches.rows

    def __repr__(self) -> str:
        return (
            f"<ParquetRows: {counted(len(self), 'row')}, {counted(len(self.names), 'feature')}, "
            f"{self.target!r}>"
        )

    @cached_property
    def classes(self) -> np.ndarray:
        """The distinct labels, sorted; only the label column is scanned."""
        kind = plain_type(self.batches.schema.field(self.target).type)
        sums = scan_columns(self.batches, [self.target])[self.target]
        return class_levels(sums, kind, self.target)

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum of the function's results; on a cluster, the workers compute it."""
        cluster = self.batches.spread()
        if cluster is None:
            return super().total(function, what, extra)
        found: Answer = cluster.total(self.batches, self.coding, function, what, extra)
        return found

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's result for every chunk in order, while the next chunks are read."""
        for name in extra:
            check_column(name, self.batches.schema.names)
        cluster = self.batches.spread()
        if cluster is not None:
            yield from cluster.each(self.batches, self.coding, function, what, extra)
            return
        columns = tuple(dict.fromkeys([*self.coding.columns, *extra]))
        size = chunk_rows(len(self.names))

        def work(piece: tuple[int, list[Piece]]) -> Answer:
            start, pieces = piece
            return function(self.coding.encode(pieces, start, extra))

        starts = _with_starts(gathered(self.batches.read(columns, size), size))
        shown = progress_over(starts, len(self), what, lambda item: rows_in(item[1]))
        yield from spread(work, shown, _workers(self._threads))

    def taken(self, most: float, extra: Sequence[str] = ()) -> Chunk | None:
        """Return all rows as one chunk, unless there are too many or they are on a cluster."""
        return super().taken(most, extra) if self.batches.spread() is None else None

    def excerpt(self, rows: int) -> list[Chunk]:
        """Return about this many rows, a run from each of 32 equal shares of the table.

        The place of a run in its share varies, since rows may be sorted, as a whole or within each
        row group.
        """
        n, size = len(self), chunk_rows(len(self.names))
        if n <= size or self.batches.spread() is not None:
            return []
        share = n / 32
        each = int(min(rows / 32, share))
        # The multiples of the golden ratio, modulo 1, lie evenly and repeat no period.
        places = (k + 0.618034 * k % 1.0 * (1 - each / share) for k in range(32))
        starts = [int(share * place) for place in places]
        runs = self.batches.runs(self.coding.columns, min(size, _WIDE), starts, each)
        return [self.coding.encode([piece], start, ()) for start, piece in runs]

    def write(self, function: Callable[[Chunk], pa.Table], path: Path, what: str) -> None:
        """Write the tables that the function returns for each chunk to one Parquet file."""
        if self.batches.holds(path):
            raise InputError(
                f"{path.name} would be in the folder of its input Parquet files; write it to "
                "another folder."
            )
        super().write(function, path, what)


def scan_columns(batches: Batches, columns: Sequence[str]) -> Scan:
    """Return the sums of the given columns, from one scan."""
    return sum_pieces(batches, columns, scan) or Scan()


def sum_pieces(
    batches: Batches,
    columns: Sequence[str],
    function: Callable[[list[Piece]], Answer],
    threads: int | None = None,
) -> Answer | None:
    """Return the sum of the function's results over all pieces, or ``None`` without rows."""
    cluster = batches.spread()
    if cluster is not None:
        on_cluster: Answer | None = cluster.sum_pieces(batches, columns, function)
        return on_cluster
    total: Answer | None = None
    size = chunk_rows(len(columns))
    pieces = gathered(batches.read(columns, size), size)
    for found in spread(function, pieces, _workers(threads)):
        total = found if total is None else total + found  # type: ignore[operator]
    return total


def chunk_rows(width: int) -> int:
    """Return the number of rows per chunk, for rows of this width."""
    return max(1, _CHUNK // width, min(_WIDE, 4 * _CHUNK // width))


def gathered(pieces: Iterator[Piece], size: int) -> Iterator[list[Piece]]:
    """Yield lists of consecutive pieces; each list but the last has at least ``size / 2`` rows."""
    held: list[Piece] = []
    rows = 0
    for piece in pieces:
        if piece.batch.num_rows == 0:
            continue
        held.append(piece)
        rows += piece.batch.num_rows
        if 2 * rows >= size:
            yield held
            held, rows = [], 0
    if held:
        yield held


def _with_starts(lists: Iterator[list[Piece]]) -> Iterator[tuple[int, list[Piece]]]:
    start = 0
    for pieces in lists:
        yield start, pieces
        start += rows_in(pieces)


def _workers(threads: int | None) -> int:
    """Return the number of chunks to process in parallel; ``threads`` overrides the default."""
    # Each holds a chunk and what is computed from it.
    return min(usable_cores() if threads is None else threads, 8)
