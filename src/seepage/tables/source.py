"""Where chunks of records come from, again and again: all that is ever asked of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from seepage.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any  # any array of the array API standard
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, as numbers.

    Parameters
    ----------
    X
        The features, ``(m, d)``, finite: float64, or the caller's own array of a table in memory.
    y
        The labels as the caller knows them, ``(m,)``: numbers, or text as objects.
    weight
        The sample weights, ``(m,)``, or ``None``.
    start
        The position of the first row in the whole table.
    extra
        Other columns that were asked for, such as the groups of the rows.
    """

    X: Array
    y: Array
    weight: Array | None
    start: int
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.X.shape[0])


class RowSource(ABC):
    """A table that is read in chunks; one in memory is a source with a single chunk.

    All that is ever asked of it: sums of a function over the chunks, and the function's answers
    one after the other. The functions depend on one chunk each, so that whoever implements this
    may run them in any order, in threads, or on other machines.

    Attributes
    ----------
    names
        The features.
    attributes
        The features that belong together, such as the one-hot columns of a category.
    target, weighted
        The label's name, and whether the rows have sample weights.
    in_memory
        Whether all rows are one chunk, so that what there is of every record may be held as well.
    index, library
        The caller's row labels (``None``: rows are known by their position), and the library in
        which answers are given.
    """

    names: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]
    target: str
    weighted: bool
    in_memory: bool = False
    index: np.ndarray | None = None
    library: str = "pyarrow"

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def classes(self) -> np.ndarray:
        """Return the different labels, sorted."""

    @abstractmethod
    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's answer on every chunk, in the order of the rows.

        Parameters
        ----------
        function
            Called with one :class:`Chunk`.
        what
            The name of the bar that shows the progress.
        extra
            Columns that the chunks are to carry besides.
        """

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum (by ``+``) of the function's answers over all chunks."""
        return reduce(add, self.each(function, what, extra))

    def write(self, function: Callable[[Chunk], pa.Table], path: Path, what: str) -> None:
        """Write the tables that the function makes of the chunks to one Parquet file."""
        from seepage.tables.table_file import write_tables

        write_tables(self.each(function, what), path)

    def lazily(self, function: Callable[[Chunk], np.ndarray], width: int | None, what: str) -> Any:
        """Return the answers on all rows, ``(n,)`` or ``(n, width)``, as a dask array."""
        raise InputError("Only Dask data have their numbers as a dask array: use chunks().")


@dataclass(frozen=True)
class AnswerIfAny:
    """The answer on some rows, or none where there was no row; two add up to one."""

    given: tuple[Any, ...]

    def __add__(self, other: AnswerIfAny) -> AnswerIfAny:
        if not (self.given and other.given):
            return AnswerIfAny(self.given + other.given)
        return AnswerIfAny((self.given[0] + other.given[0],))
