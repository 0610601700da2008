"""One number per record of data read in chunks, computed on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from html import escape
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.core.questions import RecordNumbers
from seepage.core.result import NOTICE, Result, warned
from seepage.support.files import file_to_write
from seepage.tables.result_table import PlottedNumbers, RankedResult
from seepage.tables.source import Chunk, RowSource

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = Callable[[Chunk], np.ndarray]


@dataclass(frozen=True, eq=False)
class RecordStream(RankedResult):
    """The leakage about every record of data read in chunks: a result computed on demand.

    Numbers are computed only on request, chunk by chunk: iterate over :meth:`chunks`, :meth:`write`
    them to Parquet, or call :meth:`result`, which stores all of them.

    Parameters
    ----------
    source
        The data.
    function
        The function that computes the numbers of one chunk's records.
    view, measure, kind, about, names, assumptions, noise, held
        As in :class:`~seepage.core.result.Result`.
    """

    source: RowSource
    function: Callable[[Chunk], RecordNumbers]
    view: str
    measure: str
    about: str
    kind: str = "exact"
    names: tuple[str, ...] | None = None
    assumptions: tuple[str, ...] = ()
    noise: tuple[Any, ...] = ()
    held: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return (
            f"<{len(self):,} {'records' if self.view == 'rows' else 'rows of cells'}: "
            f"{self.measure}, {self.kind}, about {self.about}; not computed yet>"
        )

    def to_numpy(self) -> np.ndarray:
        """Compute all numbers, and return them as a NumPy array."""
        return np.asarray(self.result())

    def table(self, library: str | None = None) -> Any:
        """Compute all numbers, and return them as a data frame; see :meth:`Result.table`."""
        return self.result().table(library)

    @property
    def less_is_worse(self) -> bool:
        """Whether smaller numbers mean more leakage; see :attr:`Result.less_is_worse`."""
        return self._described(np.empty(0), None).less_is_worse

    def labels(self) -> np.ndarray:
        """Return the label of each entry from the index, or its position if there is no index."""
        return np.arange(len(self)) if self.source.index is None else self.source.index

    def select(self, positions: Any) -> Result:
        """Compute all numbers, and return the entries at the given positions, in that order."""
        return self.result().select(positions)

    def drawing(self) -> PlottedNumbers:
        """Compute all numbers, and return the data for :meth:`plot`."""
        return self.result().drawing()

    def _repr_html_(self) -> str:
        """Return a line of text without numbers, which are not computed yet."""
        return f"<p><strong>{escape(repr(self)[1:-1])}</strong></p>"

    def histogram(self, title: str) -> str:
        """Return an empty string, since the numbers are not computed yet."""
        return ""

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the numbers of the records, chunk by chunk, in the order of the rows."""
        yield from self.source.each(self.numbers, self.view)

    @property
    def numbers(self) -> Numbers:
        """The function that computes the numbers of one chunk's records, without their accuracy."""
        return partial(numbers_alone, function=self.function)

    def result(self) -> Result:
        """Compute all numbers once and store them, in memory or, if there are many, on disk.

        The result needs eight bytes per number, or sixteen if each number has its own accuracy. The
        numbers of Dask data are transferred from the workers to this machine, a few partitions at a
        time.
        """
        return warned(self._every)

    @cached_property
    def _every(self) -> Result:
        every = reduce(add, self.source.each(self.function, self.view))
        return self._described(every.values, every.accuracy)

    def to_dask(self) -> Any:
        """Return the numbers of Dask data as a Dask array that stays on the workers."""
        width = None if self.names is None else len(self.names)
        return self.source.lazily(self.numbers, width, self.view)

    def mse_bound(self) -> RecordStream:
        """Return the smallest mean squared error per unknown; see :meth:`Result.mse_bound`."""
        return self._bound("mse_bound")

    def std_bound(self) -> RecordStream:
        """Return the square root of :meth:`mse_bound`, in the units of the data."""
        return self._bound("std_bound")

    def _bound(self, name: str) -> RecordStream:
        described = getattr(self._described(np.empty(0), None), name)()
        function = partial(_bound_of, function=self.function, measure=self.measure, name=name)
        return replace(
            self,
            function=function,
            measure=described.measure,
            kind=described.kind,
            assumptions=described.assumptions,
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a Parquet file: the column ``row``, and the measure (for cells, one per column).

        The file is written completely or not at all. Only its owner can read it, since the numbers
        are as sensitive as the data. Returns its path.
        """
        names = self.names if self.names is not None else (self.measure,)
        return write_records(self.source, path, {names: self.numbers})

    def _described(self, values: np.ndarray, accuracy: Any) -> Result:
        return Result(
            values,
            self.view,
            self.measure,
            self.kind,
            self.about,
            self.source.index,
            self.names,
            self.assumptions,
            self.source.library,
            self.noise,
            accuracy,
            self.held,
        )


def write_records(
    source: RowSource,
    path: str | os.PathLike[str],
    measures: dict[tuple[str, ...], Numbers],
) -> Path:
    """Write the results of several functions of every record to one Parquet file, in one pass.

    Each function is paired with the names of the columns that it fills.
    """
    out = file_to_write(path)
    source.write(partial(_table, measures=measures), out, "writing")
    return out


def _table(chunk: Chunk, measures: dict[tuple[str, ...], Numbers]) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {"row": np.arange(chunk.start, chunk.start + len(chunk))}
    for names, function in measures.items():
        numbers = function(chunk)
        for k, name in enumerate(names):
            unused = name if name not in columns else f"{name} ({k})"
            columns[unused] = numbers if numbers.ndim == 1 else numbers[:, k]
    return pa.table(columns).replace_schema_metadata({"notice": NOTICE})


def numbers_alone(chunk: Chunk, function: Callable[[Chunk], RecordNumbers]) -> np.ndarray:
    """Return the numbers of a chunk's records without their accuracy."""
    return np.asarray(function(chunk).values)


def _bound_of(
    chunk: Chunk, function: Callable[[Chunk], RecordNumbers], measure: str, name: str
) -> RecordNumbers:
    numbers = function(chunk)
    bound = getattr(Result(numbers.values, "rows", measure, accuracy=numbers.accuracy), name)()
    return replace(numbers, values=bound.values, accuracy=bound.accuracy)
