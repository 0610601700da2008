"""One number per record, never held for all records at once: read in chunks, or written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.core.result import NOTICE, UNBIASED, Result, warned
from seepage.errors import InputError
from seepage.support.files import check_path
from seepage.tables.source import Chunk, RowSource

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = Callable[[Chunk], np.ndarray]
# The numbers of the records of one chunk, ``(m,)``, or ``(m, k)`` for cells, and their accuracy
Measure = Callable[[Chunk], tuple[np.ndarray, Any]]


@dataclass(frozen=True, eq=False)
class RecordStream:
    """The leakage about every record of data read in chunks: a result not computed yet.

    Nothing is computed until it is asked for, and then chunk by chunk: go through :meth:`chunks`,
    :meth:`write` them to Parquet, look at the :meth:`top` ones, or hold all the numbers in memory
    after all with :meth:`result`.

    Parameters
    ----------
    source
        The data.
    function
        Gives the numbers of the records of one chunk, ``(m,)``, or ``(m, k)`` for cells, and their
        accuracy as :class:`~seepage.core.result.Result` has it.
    view, measure, kind, about, names, assumptions, noise
        As in :class:`~seepage.core.result.Result`.
    """

    source: RowSource
    function: Measure
    view: str
    measure: str
    about: str
    kind: str = "exact"
    names: tuple[str, ...] | None = None
    assumptions: tuple[str, ...] = ()
    noise: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return (
            f"<{len(self):,} {'records' if self.view == 'rows' else 'rows of cells'}: "
            f"{self.measure}, {self.kind}, about {self.about}; not computed yet>"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.result(), dtype=dtype)

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the numbers of some records after those of others, in the order of the rows."""
        yield from self.source.each(self.numbers, self.view)

    @property
    def numbers(self) -> Numbers:
        """The function that gives the numbers of one chunk's records, without their accuracy."""
        return partial(_numbers_alone, function=self.function)

    def result(self) -> Result:
        """Compute all numbers and hold them in memory: eight bytes for every record.

        Twice that if each has an accuracy of its own.
        """
        parts = list(self.source.each(self.function, self.view))
        values = np.concatenate([numbers for numbers, _ in parts])
        return self._result(values, None, _joined(parts))

    def to_dask(self) -> Any:
        """Return the numbers of Dask data as a dask array, which the workers keep."""
        width = None if self.names is None else len(self.names)
        return self.source.lazily(self.numbers, width, self.view)

    def top(self, count: int = 10) -> Result:
        """Return the ``count`` records with the most leakage, the worst first.

        For a bound on an error, these are the records with the smallest bound. Cells count by their
        row's worst.
        """
        sign = 1.0 if self.measure in ("mse", "std") else -1.0
        best = partial(_best, function=self.function, sign=sign, count=count)
        worst = self.source.total(best, f"{self.view}, the worst")
        return self._result(worst.values, worst.rows, worst.accuracy)

    def mse_bound(self) -> RecordStream:
        """Return the smallest mean squared error per unknown; see :meth:`Result.mse_bound`."""
        if self.measure not in ("fil", "dfil"):
            raise InputError("This is already a bound on the mean squared error.")
        return replace(
            self,
            function=partial(_inverse_square, function=self.function),
            measure="mse",
            kind="bound",
            assumptions=(*UNBIASED, *self.assumptions),
        )

    def std_bound(self) -> RecordStream:
        """Return the square root of :meth:`mse_bound`, in the units of the data."""
        bound = self if self.measure == "mse" else self.mse_bound()
        return replace(bound, function=partial(_root, function=bound.function), measure="std")

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a Parquet file with the columns ``row`` and the measure (or one per cell's column).

        The file appears complete or not at all, readable by its owner only: the numbers are as
        sensitive as the data. Returns its path.
        """
        names = self.names if self.names is not None else (self.measure,)
        return write_records(self.source, path, {names: self.numbers})

    def _result(self, values: np.ndarray, rows: np.ndarray | None, accuracy: Any) -> Result:
        return warned(
            Result(
                values,
                self.view,
                self.measure,
                self.kind,
                self.about,
                rows,
                self.names,
                self.assumptions,
                "pyarrow",
                self.noise,
                accuracy,
            )
        )


def write_records(
    source: RowSource,
    path: str | os.PathLike[str],
    measures: dict[tuple[str, ...], Numbers],
) -> Path:
    """Write the answers of several functions on every record to one Parquet file, in one pass.

    Each function is given with the names of the columns it fills.
    """
    out = Path(path)
    check_path(out)
    if out.is_dir():
        raise InputError(f"{out} is a folder; name the Parquet file to write.")
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


def _numbers_alone(chunk: Chunk, function: Measure) -> np.ndarray:
    return function(chunk)[0]


def _joined(parts: list[tuple[np.ndarray, Any]]) -> Any:
    """Return the accuracies of chunks as one; a single number if no chunk has more."""
    stated = [accuracy for _, accuracy in parts]
    if stated[0] is None:
        return None
    if all(np.ndim(accuracy) == 0 for accuracy in stated):
        return np.max(stated)
    return np.concatenate([np.broadcast_to(a, values.shape) for values, a in parts])


@dataclass(frozen=True)
class _Best:
    """The leading records so far."""

    keys: np.ndarray
    values: np.ndarray
    rows: np.ndarray
    accuracy: np.ndarray | None
    count: int

    def __add__(self, other: _Best) -> _Best:
        keys = np.concatenate([self.keys, other.keys])
        first = np.argsort(keys, kind="stable")[: self.count]

        def both(mine: np.ndarray, yours: np.ndarray) -> np.ndarray:
            return np.concatenate([mine, yours])[first]

        accuracy = None
        if self.accuracy is not None and other.accuracy is not None:
            accuracy = both(self.accuracy, other.accuracy)
        return _Best(
            keys[first],
            both(self.values, other.values),
            both(self.rows, other.rows),
            accuracy,
            self.count,
        )


def _best(chunk: Chunk, function: Measure, sign: float, count: int) -> _Best:
    values, stated = function(chunk)
    keys = sign * values
    if keys.ndim == 2:
        keys = keys.min(axis=1)
    first = np.argsort(keys, kind="stable")[:count]
    accuracy = None if stated is None else np.broadcast_to(stated, values.shape)[first]
    return _Best(keys[first], values[first], chunk.start + first, accuracy, count)


def _inverse_square(chunk: Chunk, function: Measure) -> tuple[np.ndarray, Any]:
    values, accuracy = function(chunk)
    with np.errstate(divide="ignore"):
        return 1 / (values * values), None if accuracy is None else 2 * accuracy


def _root(chunk: Chunk, function: Measure) -> tuple[np.ndarray, Any]:
    values, accuracy = function(chunk)
    return np.sqrt(values), None if accuracy is None else accuracy / 2
