"""Parquet files dealt out to the workers of a Dask cluster, which read, encode and measure them.

A file is what a worker is given. The order of the rows is that of the files, so that the answers
are the same as those of one machine that reads them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate
from operator import add
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from seepage.auditing.clean_batches import ROW, CleanBatches, CompleteRows
from seepage.cluster.tree import fetch, named, tree_sum
from seepage.errors import InputError
from seepage.streams.coding import Coding
from seepage.streams.column_scan import Scan
from seepage.streams.parquet_files import Batches, ParquetFiles, Piece
from seepage.streams.source import Chunk

Answer = TypeVar("Answer")

_AHEAD = 2  # files for each worker whose answers may wait for those before them


class SpreadFiles(ParquetFiles):
    """Parquet files that the workers of a cluster read; all of them must see the files.

    Parameters
    ----------
    files
        The files.
    client
        The client of the cluster.
    """

    def __init__(self, files: Batches, client: Any) -> None:
        if not isinstance(files, ParquetFiles):
            raise InputError(
                "Folders called key=value cannot be dealt out to a cluster; give a plain folder of "
                "Parquet files."
            )
        self.__dict__.update(files.__dict__)
        self.client = client
        self._counted: list[tuple[Batches, list[tuple[Batches, int]]]] = []

    def spread(self) -> SpreadFiles:
        """Return these files."""
        return self

    def each(
        self,
        batches: Batches,
        coding: Coding,
        function: Callable[[Chunk], Answer],
        what: str,
        extra: Sequence[str],
    ) -> Iterator[Answer]:
        """Yield the answers on all chunks in order, of a few files at a time."""
        waiting: deque[Any] = deque()
        most = _AHEAD * max(1, len(self.client.nthreads()))
        asked = partial(_answers, coding=coding, function=function, extra=tuple(extra))
        for k, (part, start) in enumerate(self._parts(batches)):
            key = f"{named(what)}-{k}"
            waiting.append(self.client.submit(asked, part, start, key=key, pure=False))
            if len(waiting) >= most:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()

    def total(
        self,
        batches: Batches,
        coding: Coding,
        function: Callable[[Chunk], Answer],
        what: str,
        extra: Sequence[str],
    ) -> Answer:
        """Return the sum of the answers over all chunks, formed in a tree."""
        asked = partial(_summed, coding=coding, function=function, extra=tuple(extra))
        found: Answer = fetch(self._tree(asked, self._parts(batches), what), self.client)
        return found

    def scan(self, batches: Batches, columns: Sequence[str]) -> Scan:
        """Return what one scan of some columns finds out."""
        asked = partial(_scanned, columns=tuple(columns))
        found: Scan = fetch(self._tree(asked, self._parts(batches), "scan"), self.client)
        return found

    def _tree(self, function: Any, parts: Sequence[tuple[Batches, int]], what: str) -> Any:
        from dask.delayed import delayed

        prefix = named(what)
        asked = delayed(function, pure=False, traverse=False)
        answers = [
            delayed(_call, pure=False)(asked, part, start, dask_key_name=f"{prefix}-{k}")
            for k, (part, start) in enumerate(parts)
        ]
        return tree_sum(answers, what)

    def _parts(self, batches: Batches) -> list[tuple[Batches, int]]:
        """Return the rows of every file that has some, with the position of the first of them."""
        for known, counted in self._counted:
            if known is batches:
                return counted
        parts = parts_of(batches)
        count = self._tree(_rows, [(part, 0) for part in parts], "rows")
        lengths: list[int] = fetch(count, self.client)
        starts = list(accumulate(lengths, initial=0))
        counted = [(part, starts[k]) for k, part in enumerate(parts) if lengths[k]]
        self._counted.append((batches, counted))
        return counted


def parts_of(batches: Batches) -> list[Batches]:
    """Return the rows of each file by themselves, numbered as in the whole."""
    if isinstance(batches, ParquetFiles):
        return [ParquetFiles([path], batches.filesystem, batches.root) for path in batches.paths]
    if isinstance(batches, CleanBatches):
        inner = parts_of(batches._inner)
        starts = accumulate((part.rows for part in inner), initial=0)
        return [_Numbered(CleanBatches(p), k) for p, k in zip(inner, starts, strict=False)]
    if isinstance(batches, CompleteRows):
        inner = parts_of(batches._inner)
        return [CompleteRows(p, batches._needed, batches._as_type) for p in inner]
    raise InputError(f"{type(batches).__name__} cannot be dealt out to a cluster.")


class _Numbered(Batches):
    """Clean rows of one file that know their numbers in the whole table."""

    def __init__(self, clean: CleanBatches, first: int) -> None:
        self._clean, self._first = clean, first
        self.schema = clean.schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._clean.rows

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns of all rows in order, at most ``size`` rows at a time."""
        for piece in self._clean.read(columns, size):
            batch = piece.batch
            if ROW in columns:
                place = batch.schema.names.index(ROW)
                numbers = np.asarray(batch.column(place)) + self._first
                batch = batch.set_column(place, ROW, pa.array(numbers))
            yield replace(piece, batch=batch)


def _call(function: Any, part: Batches, start: int) -> Any:
    return function(part, start)


def _answers(
    part: Batches,
    start: int,
    coding: Coding,
    function: Callable[[Chunk], Answer],
    extra: tuple[str, ...],
) -> list[Answer]:
    from seepage.streams.parquet_source import ParquetRows

    def moved(chunk: Chunk) -> Answer:
        return function(replace(chunk, start=chunk.start + start))

    return list(ParquetRows(part, coding).each(moved, "", extra))


def _summed(
    part: Batches,
    start: int,
    coding: Coding,
    function: Callable[[Chunk], Answer],
    extra: tuple[str, ...],
) -> Answer:
    from seepage.streams.parquet_source import ParquetRows

    def moved(chunk: Chunk) -> Answer:
        return function(replace(chunk, start=chunk.start + start))

    return reduce(add, ParquetRows(part, coding).each(moved, "", extra))


def _scanned(part: Batches, start: int, columns: tuple[str, ...]) -> Scan:
    from seepage.streams.parquet_source import scan_columns

    return scan_columns(part, columns)


def _rows(part: Batches, start: int) -> list[int]:
    return [part.rows]
