"""Reads Parquet files or a pyarrow data set as record batches, and divides them among machines.

Files are read through small buffers, a few pages of each column at a time, so large row groups need
no more memory than small ones.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from seepage.errors import InputError, not_utf8, not_whole
from seepage.support.files import check_input
from seepage.tables.columns import Piece, plain_type
from seepage.tables.names import counted

_BUFFER = 1 << 18  # bytes of one column that are read ahead
PART_ROWS = 100_000  # rows that make up for the cost of a part: a task, and sending a matrix
BROKEN = (pa.ArrowException, OSError, ValueError)


class Batches(ABC):
    """Rows on disk, which can be read repeatedly."""

    schema: pa.Schema

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows."""

    @abstractmethod
    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns in row order, at most ``size`` rows at a time."""

    def runs(
        self, columns: Sequence[str], size: int, starts: Sequence[int], rows: int
    ) -> Iterator[tuple[int, Piece]]:
        """Yield the ``rows`` rows from each start on, with the position of each piece's first row.

        There are none where rows in the middle cannot be read without those before them.
        """
        return iter(())

    def holds(self, path: Path) -> bool:
        """Return whether a file written to this path would be among the input files."""
        return False

    def parts(self) -> list[Batches]:
        """Return the rows as ordered parts that different machines can read."""
        raise InputError(
            "These data cannot be spread over a cluster; pass a plain folder of Parquet files."
        )

    def spread(self) -> Any:
        """Return the files on a cluster that contain these rows, or ``None`` without a cluster.

        The workers process the rows of these files
        (:class:`~seepage.streams.dask.spread_files.SpreadFiles`).
        """
        return None


class ParquetFiles(Batches):
    """Parquet files with a common schema, in order.

    ``root`` is the folder that contains the files, or ``None`` for a single file or a list of
    files.
    """

    _read = slice(None)  # the row groups of every file that are read

    def __init__(self, paths: Sequence[str], filesystem: Any, root: str | None) -> None:
        self.paths, self.filesystem, self.root = tuple(paths), filesystem, root
        self._groups: list[tuple[int, ...]] = []  # the rows of every row group
        for k, path in enumerate(self.paths):
            with self._open(path) as file:
                if k == 0:
                    self.schema = file.schema_arrow
                else:
                    _check_same(self.schema, file.schema_arrow, self._name(0), self._name(k))
                about = file.metadata
                self._groups.append(
                    tuple(about.row_group(g).num_rows for g in range(about.num_row_groups))
                )

    @property
    def rows(self) -> int:
        """The number of rows according to the files' metadata."""
        return sum(sum(rows[self._read]) for rows in self._groups)

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns in row order, at most ``size`` rows at a time."""
        for k in range(len(self.paths)):
            yield from self.read_groups(k, columns, size)

    def read_groups(self, k: int, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns from the chosen row groups of one file."""
        name, rows = self._name(k), self._groups[k]
        groups = range(len(rows))[self._read]
        at = sum(rows[: groups.start])
        with self._open(self.paths[k]) as file:
            found, expected = file.metadata.num_rows, sum(rows)
            if found != expected:
                raise InputError(
                    f"{name} had {counted(expected, 'row')}, but now has {found:,}; do not change "
                    "files while they are read."
                )
            # A whole file may have been rewritten with other row groups since it was opened.
            some = None if self._read == slice(None) else list(groups)
            batches = file.iter_batches(size, row_groups=some, columns=list(columns))
            while True:
                try:
                    batch = next(batches, None)
                except BROKEN as error:
                    raise not_whole(name, "Parquet") from error
                if batch is None:
                    break
                _check_content(batch, name)
                yield Piece(batch, name, at)
                at += batch.num_rows

    def runs(
        self, columns: Sequence[str], size: int, starts: Sequence[int], rows: int
    ) -> Iterator[tuple[int, Piece]]:
        """Yield the ``rows`` rows from each start on, with the position of each piece's first row.

        A row group can be read only from its first row, so each is read up to the last row needed.
        """
        first = 0
        for k, groups in enumerate(self._groups):
            of_file = first
            for g, count in enumerate(groups):
                stop = first + count
                wanted = [
                    (max(start, first), min(start + rows, stop))
                    for start in starts
                    if start < stop and first < start + rows
                ]
                group = self._part(k, slice(g, g + 1))
                for piece in group.read(columns, size) if wanted else ():
                    at = of_file + piece.first
                    held = at + piece.batch.num_rows
                    for low, high in wanted:
                        low, high = max(low, at), min(high, held)
                        if low < high:
                            batch = piece.batch.slice(low - at, high - low)
                            yield low, Piece(batch, piece.file, low - of_file)
                    if held >= wanted[-1][1]:
                        break
                first = stop

    def parts(self) -> list[Batches]:
        """Return the row groups of every file, grouped into parts.

        A part has at least :data:`PART_ROWS` rows, or all remaining rows of its file.
        """
        parts: list[Batches] = []
        for k, rows in enumerate(self._groups):
            first, held = 0, 0
            for group, count in enumerate(rows, 1):
                held += count
                if held >= PART_ROWS or (group == len(rows) and held):
                    parts.append(self._part(k, slice(first, group)))
                    first, held = group, 0
        return parts

    def _part(self, k: int, groups: slice) -> ParquetFiles:
        """Return some row groups of one file, without reopening it."""
        part = ParquetFiles.__new__(ParquetFiles)
        part.paths, part.filesystem, part.root = (self.paths[k],), self.filesystem, self.root
        part.schema, part._groups, part._read = self.schema, [self._groups[k]], groups
        return part

    def holds(self, path: Path) -> bool:
        """Return whether a file at this path would be among the input files."""
        if not isinstance(self.filesystem, pafs.LocalFileSystem):
            return False
        wanted = path.resolve()
        if self.root is None:
            return any(Path(p).resolve() == wanted for p in self.paths)
        return wanted.is_relative_to(Path(self.root).resolve())

    def _name(self, k: int) -> str:
        """Return the path of a file relative to its folder."""
        path = PurePosixPath(self.paths[k])
        if self.root is not None and path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        return path.name

    def _open(self, path: str) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(
                path, filesystem=self.filesystem, pre_buffer=False, buffer_size=_BUFFER
            )
        except FileNotFoundError:
            raise InputError(f"There is no file {path}; check the path.") from None
        except BROKEN as error:
            raise not_whole(self._name(self.paths.index(path)), "Parquet") from error


class DatasetBatches(Batches):
    """A pyarrow data set: partitioned folders, non-Parquet files, or a selection of rows."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.schema = dataset, dataset.schema

    @cached_property
    def rows(self) -> int:
        """The number of rows, which is counted only once."""
        try:
            return int(self.dataset.count_rows())
        except BROKEN as error:
            raise _unreadable(error) from error

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns in row order, at most ``size`` rows at a time."""
        scanner = self.dataset.scanner(
            columns=list(columns), batch_size=size, batch_readahead=2, fragment_readahead=1
        )
        first: dict[str, int] = {}
        read = 0
        batches = scanner.scan_batches()
        while True:
            try:
                tagged = next(batches, None)
            except BROKEN as error:
                raise _unreadable(error) from error
            if tagged is None:
                break
            batch = tagged.record_batch
            name = PurePosixPath(getattr(tagged.fragment, "path", "") or "the data set").name
            _check_content(batch, name)
            yield Piece(batch, name, first.get(name, 0))
            first[name] = first.get(name, 0) + batch.num_rows
            read += batch.num_rows
        if read != self.rows:
            raise InputError(
                f"The data set had {counted(self.rows, 'row')}, but now has {read:,}; do not "
                "change it while it is read."
            )


def _check_content(batch: pa.RecordBatch, name: str) -> None:
    """Raise an error for text that is not UTF-8, or for offsets outside their buffers."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise (not_utf8(name) if "UTF8" in str(error) else not_whole(name, "Parquet")) from error


def _check_same(expected: pa.Schema, found: pa.Schema, first: str, here: str) -> None:
    """Raise an error unless all files have the same columns with the same types."""
    known, given = set(expected.names), set(found.names)
    for name in expected.names:
        if name not in given:
            raise InputError(
                f"Column {name!r} is in {first} but not in {here}; all files must have the same "
                "columns."
            )
    for name in found.names:
        if name not in known:
            raise InputError(
                f"Column {name!r} is in {here} but not in {first}; all files must have the same "
                "columns."
            )
        ours, theirs = (plain_type(s.field(name).type) for s in (expected, found))
        if ours != theirs:
            raise InputError(
                f"Column {name!r} is {ours} in {first} but {theirs} in {here}; write all files "
                "with one schema."
            )


def _unreadable(error: Exception) -> InputError:
    first = str(error).splitlines()[0][:300].rstrip(".") if str(error) else type(error).__name__
    return InputError(f"The data set cannot be read: {first}. Correct or replace its files.")


def open_batches(data: Any, filesystem: Any = None) -> Batches:
    """Open a Parquet file, a folder or list of Parquet files, or a pyarrow data set.

    Paths may be on any file system that fsspec or pyarrow supports (``s3://…``).
    """
    if hasattr(data, "get_fragments"):
        return DatasetBatches(data)
    several = not isinstance(data, str | os.PathLike)
    given = [os.fsdecode(path) for path in (data if several else [data])]
    if not given:
        raise InputError("The list of Parquet files is empty; give at least one file.")
    found, system = _locate(given[0], filesystem)
    if several:
        files = [_locate(path, filesystem)[0] for path in given]
        return ParquetFiles(files, system, None)
    about = system.get_file_info(found)
    if about.type == pafs.FileType.NotFound:
        raise InputError(f"There is no file or folder {given[0]}; check the path.")
    if about.type == pafs.FileType.File:
        return ParquetFiles([found], system, None)
    return _open_folder(found, system, given[0])


def _open_folder(folder: str, system: Any, shown: str) -> Batches:
    inside = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    parts = {
        info.path: PurePosixPath(info.path).relative_to(folder).parts
        for info in inside
        if info.type == pafs.FileType.File and info.path.lower().endswith((".parquet", ".pq"))
    }
    # As in other readers of folders, names that start with a dot or underscore are not data.
    files = sorted(path for path, names in parts.items() if not any(n[0] in "._" for n in names))
    if not files:
        raise InputError(f"The folder {shown} contains no Parquet file (.parquet); choose another.")
    if any("=" in name for path in files for name in parts[path][:-1]):
        import pyarrow.dataset as pads

        ParquetFiles(files, system, folder)  # its checks name the file
        kind = pads.partitioning(flavor="hive")
        return DatasetBatches(
            pads.dataset(files, filesystem=system, format="parquet", partitioning=kind)
        )
    return ParquetFiles(files, system, folder)


def _locate(path: str, filesystem: Any) -> tuple[str, Any]:
    """Return the path within its file system, and the pyarrow file system."""
    if filesystem is not None:
        if isinstance(filesystem, pafs.FileSystem):
            return path, filesystem
        return path, pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    if "://" not in path:
        whole = str(Path(path).absolute())
        check_input(whole)
        return whole, pafs.LocalFileSystem()
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        try:
            system, inner = pafs.FileSystem.from_uri(path)
        except BROKEN as error:
            raise InputError(
                f"pyarrow alone cannot open {path}; install fsspec, which supports more file "
                "systems."
            ) from error
        return inner, system
    try:
        system, inner = url_to_fs(path)
    except (ImportError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be opened: {error}; check the path.") from error
    return inner, pafs.PyFileSystem(pafs.FSSpecHandler(system))
