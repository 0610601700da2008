"""Parquet files cut between their row groups, into parts that different machines can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seepage.streams.disk.files import Batches, ParquetFiles, Piece

PART_ROWS = 100_000  # rows that pay for what a part costs: a task, and a matrix that is sent


class ParquetPart(Batches):
    """Some row groups of one Parquet file.

    Parameters
    ----------
    file
        The file.
    groups
        The row groups.
    rows
        How many rows these have.
    """

    def __init__(self, file: ParquetFiles, groups: range, rows: int) -> None:
        self._file, self._groups, self._rows = file, groups, rows
        self.schema = file.schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._rows

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns of all rows in order, at most ``size`` rows at a time."""
        return self._file.read_groups(0, self._groups, columns, size)


def cut(file: ParquetFiles, rows: Sequence[int]) -> list[ParquetPart]:
    """Return a file in parts of at least :data:`PART_ROWS` rows, or whole where it has fewer.

    ``rows`` are those of its row groups.
    """
    parts, first, held = [], 0, 0
    for group, count in enumerate(rows, 1):
        held += count
        if held >= PART_ROWS or (group == len(rows) and held):
            parts.append(ParquetPart(file, range(first, group), held))
            first, held = group, 0
    return parts
