"""Sources that provide records in chunks; a table in memory is a source with one chunk.

A table in memory is not copied, and results are returned in the caller's array library.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from seepage.errors import InputError, nearest
from seepage.support.library_classes import library_class, own_name
from seepage.support.number_check import check_choice
from seepage.tables.names import counted

if TYPE_CHECKING:
    import pyarrow as pa

Array = Any  # any array of the array API standard
Answer = TypeVar("Answer")

_ROWS_HELD = 1 << 26  # numbers of rows read together for whole people: half a gigabyte


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, as numbers.

    Parameters
    ----------
    X
        The finite features, ``(m, d)``: float64, or the caller's array for a table in memory.
    y
        The caller's labels, ``(m,)``: numbers, or text as objects.
    weight
        The sample weights, ``(m,)``, or ``None``.
    start
        The position of the first row in the whole table.
    extra
        Further requested columns, such as the groups of the rows.
    gathered
        Whether the chunk contains all rows of data that are read in chunks.
    """

    X: Array
    y: Array
    weight: Array | None
    start: int
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    gathered: bool = False

    def __len__(self) -> int:
        return int(self.X.shape[0])


class RowSource(ABC):
    """A table that is read in chunks; a table in memory is a single chunk.

    A source applies a function to each chunk, and returns the sum of the results or yields them one
    by one. The function sees only one chunk at a time, so implementations may process the chunks in
    any order, in threads, or on other machines.

    Attributes
    ----------
    names
        The names of the features.
    attributes
        Features that form a single attribute, such as the one-hot columns of a category.
    target, weighted
        The label's name, and whether the rows have sample weights.
    lazy
        Whether per-record numbers are computed only on request, with one pass per result.
    manner
        How the rows are read, as the last words of a sentence.
    dtype
        The type of the features.
    index, library
        The caller's row labels (``None`` for row positions), and the library of the results.
    """

    names: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]
    target: str
    weighted: bool
    lazy: bool = True
    manner: str = ", read in chunks"
    dtype: Any = np.float64
    index: np.ndarray | None = None
    library: str = "pyarrow"

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    @abstractmethod
    def classes(self) -> np.ndarray:
        """The distinct labels, sorted."""

    @abstractmethod
    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's result for every chunk, in row order.

        Parameters
        ----------
        function
            The function, which is called with one :class:`Chunk` at a time.
        what
            The label of the progress bar.
        extra
            Names of further columns to include in the chunks.
        """

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum (with ``+``) of the function's results over all chunks."""
        return reduce(add, self.each(function, what, extra))

    def whole(self, what: str) -> Table:
        """Return the table if it is in memory; otherwise raise an error that names ``what``."""
        raise InputError(
            f"This computation needs {what} in memory, but the data are read in chunks; load "
            "all rows into memory first."
        )

    def taken(self, most: float, extra: Sequence[str] = ()) -> Chunk | None:
        """Return all rows as one chunk, if they need at most this many bytes.

        Return ``None`` if they need more, or if they remain on other machines.
        """
        if 8 * len(self) * len(self.names) > most:
            return None
        return self.joined("rows", extra)

    def holding(self, sets: np.ndarray) -> Iterator[tuple[Chunk, np.ndarray, np.ndarray]]:
        """Yield chunks that contain complete sets of rows, which may be anywhere in the table.

        Each chunk comes with the positions of each set's rows within the chunk, and with the
        indices of its sets in ``sets``. Each pass reads as many sets as fit in memory.
        """
        sizes = np.cumsum([len(rows) for rows in sets])
        room = max(1, _ROWS_HELD // max(1, len(self.names)))
        pass_of = (sizes - 1) // room
        for number in np.unique(pass_of):
            which = np.flatnonzero(pass_of == number)
            chosen = np.sort(np.concatenate(list(sets[which])))
            kept = ChangedSource(self, partial(_kept, chosen=chosen, held_out=True), len(chosen))
            chunk = replace(kept.joined("people"), gathered=len(chosen) == len(self))
            places = (np.searchsorted(chosen, rows) for rows in sets[which])
            yield chunk, np.fromiter(places, object), which

    def joined(self, what: str, extra: Sequence[str] = ()) -> Chunk:
        """Return all rows as one chunk."""
        chunks = list(self.each(_itself, what, extra))
        X, y = (np.concatenate(part) for part in zip(*((c.X, c.y) for c in chunks), strict=True))
        weight = np.concatenate([c.weight for c in chunks]) if self.weighted else None
        beside = {name: np.concatenate([c.extra[name] for c in chunks]) for name in extra}
        return Chunk(X, y, weight, 0, beside)

    def excerpt(self, rows: int) -> list[Chunk]:
        """Return about this many rows, taken from all over the table, as small chunks.

        There are none where the table is one chunk, or where they would take a pass over all rows.
        """
        return []

    def train(self, model: Any) -> Any:
        """Fit a model on the rows."""
        return model.fit(self)

    def parted(self, chosen: np.ndarray) -> tuple[RowSource, RowSource, float]:
        """Return a source without the chosen rows, a source of only those rows, and a share.

        The share is the proportion of the first source's rows that count: one if the chosen rows
        are dropped, and less if they remain there with weight zero.
        """
        rest, held_out = (partial(_kept, chosen=chosen, held_out=part) for part in (False, True))
        left = len(self) - len(chosen)
        return ChangedSource(self, rest, left), ChangedSource(self, held_out, len(chosen)), 1.0

    def less(self, centre: Array) -> RowSource:
        """Return a source from whose rows ``centre`` is subtracted."""
        return ChangedSource(self, partial(_shifted, centre=centre), len(self))

    def prepare(self, work: Callable[[], object]) -> None:
        """Do the work that all chunks share, once, before any chunk is read."""
        work()

    def write(self, function: Callable[[Chunk], pa.Table], path: Path, what: str) -> None:
        """Write the tables that the function returns for each chunk to one Parquet file."""
        from seepage.support.files import write_tables

        write_tables(self.each(function, what), path)

    def lazily(self, function: Callable[[Chunk], np.ndarray], width: int | None, what: str) -> Any:
        """Return the results for all rows, ``(n,)`` or ``(n, width)``, as a dask array."""
        raise InputError("Only Dask data can be returned as a dask array; use chunks() instead.")


def _itself(chunk: Chunk) -> Chunk:
    return chunk


@dataclass(frozen=True)
class AnswerIfAny:
    """A result for some rows, empty if there were no rows; two such results can be added."""

    given: tuple[Any, ...]

    def __add__(self, other: AnswerIfAny) -> AnswerIfAny:
        if not (self.given and other.given):
            return AnswerIfAny(self.given + other.given)
        return AnswerIfAny((self.given[0] + other.given[0],))


class ChangedSource(RowSource):
    """A source whose chunks are changed when they are read: shifted, or with some rows removed.

    ``change`` returns the changed chunk, or ``None`` if no row remains; ``rows`` is the number of
    remaining rows.
    """

    def __init__(
        self, source: RowSource, change: Callable[[Chunk], Chunk | None], rows: int
    ) -> None:
        self._source, self._change, self._rows = source, change, rows
        self.names, self.attributes, self.target = source.names, source.attributes, source.target
        self.weighted = source.weighted

    def __len__(self) -> int:
        return self._rows

    @property
    def classes(self) -> np.ndarray:
        """The distinct labels of the whole source, sorted."""
        return self._source.classes

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's result for every chunk that still contains rows."""
        for answers in self._source.each(self._ask(function), what, extra):
            yield from answers.given

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum of the function's results over the remaining rows."""
        answer: Answer = self._source.total(self._ask(function), what, extra).given[0]
        return answer

    def excerpt(self, rows: int) -> list[Chunk]:
        """Return those rows of the source's excerpt that remain, changed."""
        changed = map(self._change, self._source.excerpt(rows))
        return [chunk for chunk in changed if chunk is not None]

    def _ask(self, function: Callable[[Chunk], Any]) -> Callable[[Chunk], AnswerIfAny]:
        return partial(_of_changed, change=self._change, function=function)


def _of_changed(
    chunk: Chunk, change: Callable[[Chunk], Chunk | None], function: Callable[[Chunk], Any]
) -> AnswerIfAny:
    changed = change(chunk)
    return AnswerIfAny(() if changed is None else (function(changed),))


def _kept(chunk: Chunk, chosen: np.ndarray, held_out: bool) -> Chunk | None:
    """Return the chosen rows of a chunk, or the rows that were not chosen."""
    kept = np.isin(np.arange(chunk.start, chunk.start + len(chunk)), chosen) == held_out
    if not kept.any():
        return None
    weight = None if chunk.weight is None else chunk.weight[kept]
    others = {name: values[kept] for name, values in chunk.extra.items()}
    return replace(chunk, X=chunk.X[kept], y=chunk.y[kept], weight=weight, extra=others)


def _shifted(chunk: Chunk, centre: np.ndarray) -> Chunk:
    return replace(chunk, X=chunk.X - centre)


@dataclass(frozen=True)
class Table:
    """A two-dimensional table of numbers, with the caller's names, index and library."""

    # The numbers, ``(n, d)``: a NumPy array, or a torch tensor on the caller's device
    values: Array
    names: tuple[str, ...]  # one name per column (``x0``, ``x1``, … where the caller gave none)
    # The caller's row labels, or ``None`` where rows are known by their position
    index: np.ndarray | None
    # Where the table came from: ``numpy``, ``torch``, ``pandas``, ``polars`` or ``pyarrow``
    library: str

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def total(self, function: Callable[[Chunk], Answer], what: str) -> Answer:
        """Return the function's result for the table, which is a single chunk."""
        return MemorySource(self).total(function, what)


class MemorySource(RowSource):
    """A labelled table in memory: a source with one chunk, in the caller's array library.

    Parameters
    ----------
    table
        The table.
    y, sample_weight
        The table's labels and sample weights, as passed by the caller.
    """

    lazy, manner = False, ""
    target = "y"

    def __init__(self, table: Table, y: Any = None, sample_weight: Any = None) -> None:
        self.table, self.y, self.sample_weight = table, y, sample_weight
        self.beside: Mapping[str, np.ndarray] = {}  # further columns, which are no features
        self.names, self.attributes = table.names, {}
        self.index, self.library = table.index, table.library
        self.weighted, self.dtype = sample_weight is not None, table.values.dtype

    def __len__(self) -> int:
        return int(self.table.values.shape[0])

    def whole(self, what: str) -> Table:
        """Return the table."""
        return self.table

    def holding(self, sets: np.ndarray) -> Iterator[tuple[Chunk, np.ndarray, np.ndarray]]:
        """Yield the only chunk, which contains all sets, with the sets and their indices."""
        yield Chunk(self.table.values, self.y, self.sample_weight, 0), sets, np.arange(len(sets))

    def prepare(self, work: Callable[[], object]) -> None:
        """Do nothing, since there is only one chunk."""

    @property
    def classes(self) -> np.ndarray:
        """The distinct labels, sorted."""
        return distinct(as_numpy(self.y))[0]

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's result for the only chunk."""
        others = {name: self.beside[name] for name in extra if name in self.beside}
        for name in extra:
            if name not in others:
                check_column(name, self.names)
                others[name] = as_numpy(self.table.values[:, self.names.index(name)])
        yield function(Chunk(self.table.values, self.y, self.sample_weight, 0, others))


def check_column(name: str, known: Sequence[str]) -> None:
    """Raise an error for an unknown column name."""
    if name not in known:
        raise InputError(f"There is no column {name!r}{nearest(name, known)}; name another.")


def column_names(X: Any) -> list[Any] | None:
    """Return the column names of a data frame, or ``None`` for an array."""
    # The ``columns`` of an Arrow table are its values.
    names: Any = getattr(X, "column_names", None)
    names = getattr(X, "columns", None) if names is None else names
    return None if names is None else list(names)


def check_names(X: Any) -> None:
    """Raise an error if a data frame's column names are not text."""
    if not all(isinstance(name, str) for name in column_names(X) or ()):
        raise InputError("Column names of X must be text; rename the columns whose names are not.")


def read_table(X: Any, *, dtype: str | None = None, check: bool = True) -> Table:
    """Read a NumPy array, torch tensor or data frame into a :class:`Table` of finite numbers.

    Arrays that already have the requested type are not copied. ``dtype`` is ``"float64"`` (the
    default) or ``"float32"``.
    """
    wanted = "float64" if dtype is None else dtype
    if wanted not in ("float64", "float32"):
        check_choice(wanted, "dtype", ("float64", "float32"))
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        table = _read_frame(X)
    else:
        own = is_torch_array(X)
        table = Table(X.detach() if own else np.asarray(X), (), None, "torch" if own else "numpy")
        if not own and table.values.dtype.kind in "OUSMmV":
            raise InputError(
                f"X contains {table.values.dtype} values instead of numbers; encode text and dates "
                "as numbers first (for example as one-hot columns)."
            )
    if len(table.values.shape) != 2:
        raise InputError(
            "X must be a table with rows and columns, but it has "
            f"{counted(len(table.values.shape), 'dimension')}; reshape a single column with "
            "X.reshape(-1, 1)."
        )
    n, d = table.values.shape
    if n == 0 or d == 0:
        raise InputError(
            f"X is empty: it has {counted(n, 'row')} and {counted(d, 'column')}; pass a table with "
            "data."
        )
    xp = array_namespace(table.values)
    if xp.isdtype(table.values.dtype, "complex floating"):
        raise InputError("Complex data not supported: X contains complex numbers; pass real ones.")
    values = xp.astype(table.values, getattr(xp, wanted), copy=False)
    table = replace(table, values=values, names=table.names or tuple(f"x{j}" for j in range(d)))
    row = first_not_finite(values) if check else None
    if row is not None:
        raise _not_finite(table, row)
    return table


def _read_frame(X: Any) -> Table:
    import narwhals.stable.v1 as nw

    try:
        frame = nw.from_native(X, eager_only=True)
    except nw.exceptions.DuplicateError:
        raise InputError("Several columns of X have the same name; rename all but one.") from None
    names = tuple(str(name) for name in frame.columns)
    bad = [
        f"{name!r} ({kind})"
        for name, kind in frame.schema.items()
        if not (kind.is_numeric() or kind == nw.Boolean)
    ]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise InputError(
            f"X has columns that are not numeric: {', '.join(bad[:5])}{more}; encode such columns "
            "first (for example as one-hot columns), or drop them."
        )
    library = frame.implementation.name.lower()
    values = np.asarray(frame.to_numpy())
    if values.dtype.kind == "O":  # nullable integers and the like: missing becomes NaN
        values = np.asarray(
            [np.asarray(frame[name].to_list(), dtype=float) for name in frame.columns]
        ).T
    return Table(values, names, own_index(X), library)


def own_index(X: Any) -> np.ndarray | None:
    """Return the index of a pandas table; ``None`` for row numbers or another library."""
    if library_class(X, ("pandas",)) is None:
        return None
    index, n = X.index, len(X)
    counts = n > 0 and own_name(index, "pandas", ("RangeIndex",)) is not None
    return None if counts and (index[0], index[-1]) == (0, n - 1) else np.asarray(index)


def check_finite(table: Table) -> None:
    """Raise an :class:`InputError` that names the columns with NaN or infinity."""
    row = first_not_finite(table.values)
    if row is not None:
        raise _not_finite(table, row)


def _not_finite(table: Table, row: int) -> InputError:
    """Return the error for a table whose first row with NaN or infinity is this one."""
    xp = array_namespace(table.values)
    counts = xp.sum(xp.astype(~xp.isfinite(table.values), xp.int64), axis=0)
    named = [name for name, count in zip(table.names, counts, strict=True) if int(count) > 0]
    more = f" and {counted(len(named) - 5, 'more column')}" if len(named) > 5 else ""
    return InputError(
        f"X contains NaN or infinity in {', '.join(map(repr, named[:5]))}{more} (first in row "
        f"{row}); drop those rows, or fill in missing values."
    )


def first_not_finite(values: Array) -> int | None:
    """Return the first row that contains NaN or infinity, or ``None``."""
    xp = array_namespace(values)
    # One sum is far cheaper than a mask, and is finite unless something is wrong.
    if bool(xp.isfinite(xp.sum(values))):
        return None
    bad = ~xp.isfinite(values)
    if not bool(xp.any(bad)):
        return None  # finite entries whose sum overflowed
    rows = bad if len(bad.shape) == 1 else xp.any(bad, axis=1)
    return int(xp.argmax(xp.astype(rows, xp.int64)))


def read_vector(y: Any, table: Table, what: str) -> Array:
    """Return a numeric vector with one finite entry per table row, in the table's library."""
    xp = array_namespace(table.values)
    if is_torch_array(table.values):
        vector = xp.asarray(y, dtype=table.values.dtype, device=table.values.device)
    else:
        vector = as_numpy(y)
        if vector.dtype.kind in "OUSMmV":
            raise InputError(f"{what} must contain numbers, not {vector.dtype} values; convert it.")
        vector = np.asarray(vector, dtype=table.values.dtype)
    if len(vector.shape) == 2 and vector.shape[1] == 1:
        vector = vector[:, 0]
    check_length(vector, table, what)
    if not bool(xp.all(xp.isfinite(vector))):
        raise InputError(
            f"{what} contains NaN or infinity; drop those rows or fill in missing values."
        )
    return vector


def check_length(vector: Any, table: Sized, what: str) -> None:
    """Raise an error unless ``vector`` is one-dimensional with one entry per row of the table."""
    shape = tuple(np.shape(vector)) if not hasattr(vector, "shape") else tuple(vector.shape)
    if len(shape) != 1:
        raise InputError(f"{what} must be one-dimensional, not of shape {shape}; flatten it.")
    if shape[0] != len(table):
        raise InputError(
            f"X has {counted(len(table), 'row')} but {what} has "
            f"{counted(shape[0], 'entry', 'entries')}; pass one entry per row."
        )


def row_labels(values: Any) -> np.ndarray | None:
    """Return the row labels of a pandas series or table, or of a source read from either."""
    if isinstance(values, Table | RowSource):
        if values.library != "pandas":
            return None
        return np.arange(len(values)) if values.index is None else values.index
    if library_class(values, ("pandas",)) is None or not hasattr(values, "index"):
        return None
    return np.asarray(values.index)


def check_order(labels: np.ndarray | None, table: Any, what: str) -> None:
    """Raise an error if row labels differ from the table's, or are in another order.

    If the table has no row labels, all labels are accepted and matched by position. If the table
    has only row numbers, as after ``reset_index``, labels raise an error only if they are these
    numbers in another order.
    """
    index = row_labels(table)
    if labels is None or index is None or _same(labels, index):
        return
    reordered = Counter(labels.tolist()) == Counter(index.tolist())
    if reordered or not _same(index, np.arange(len(index))):
        by_position = "series.to_numpy() if the rows are already in the order of X"
        if reordered:
            other = f"those of X in another order; pass series.reindex(X.index), or {by_position}"
        else:
            other = f"not those of X; pass series.reindex(X.index) if it has them, or {by_position}"
        raise InputError(f"The row labels of {what} are {other}.")


def _same(labels: np.ndarray, others: np.ndarray) -> bool:
    if labels.dtype == others.dtype and labels.dtype.kind in "fmM":
        return np.array_equal(labels, others, equal_nan=True)
    return bool(labels.tolist() == others.tolist())


def as_numpy(values: Any) -> np.ndarray:
    """Return any array, tensor, series or list as a NumPy array on the CPU."""
    if is_torch_array(values):
        return np.asarray(values.detach().cpu().numpy())
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    return np.asarray(values)


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in ascending order, and the position of each value among them.

    Unlike ``numpy.unique``, this function hashes text, which is much faster than sorting.
    """
    if values.dtype.kind != "O":
        known, places = np.unique(values, return_inverse=True)
        return known, places.reshape(-1)
    known, met = looked_up(values)
    order = np.argsort(known)
    return known[order], np.argsort(order)[met]


def looked_up(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in order of appearance, and each value's position among them."""
    import pyarrow as pa

    with suppress(ValueError, TypeError):  # objects that Arrow does not know
        column = pa.array(values)
        known_to_arrow = isinstance(column, pa.StringArray) or values.dtype.kind == "f"
        if known_to_arrow and not column.null_count:
            coded = column.dictionary_encode()
            return coded.dictionary.to_numpy(zero_copy_only=False), coded.indices.to_numpy()
    seen: dict[Any, int] = {}
    met = np.asarray([seen.setdefault(value, len(seen)) for value in values.tolist()], np.int64)
    known = np.empty(len(seen), dtype=object)
    known[:] = list(seen)
    return known, met


def place_like(values: Any, like: Array) -> Array:
    """Return values as an array with the library, device and type of another array."""
    xp = array_namespace(like)
    if is_torch_array(values) and is_torch_array(like):
        return xp.asarray(values.detach(), dtype=like.dtype, device=device(like))
    # A copy, because a read-only array makes torch warn.
    host = np.array(as_numpy(values), dtype=float)
    return xp.asarray(host, dtype=like.dtype, device=device(like))


def build_frame(columns: Mapping[str, Any], library: str) -> Any:
    """Return named columns as a data frame from the given library.

    For arrays and tensors, which have no data frame, return a ``pyarrow.Table``.
    """
    import narwhals.stable.v1 as nw

    backends: dict[str, Any] = {name: name for name in ("pandas", "polars", "pyarrow")}
    return nw.from_dict(dict(columns), backend=backends.get(library, "pyarrow")).to_native()


def is_streamed(X: Any) -> bool:
    """Return whether a table is read in chunks: a source, path, data set or Dask collection."""
    library = type(X).__module__.partition(".")[0]
    of_arrow = library == "pyarrow" and hasattr(X, "get_fragments")
    return isinstance(X, RowSource | str | os.PathLike) or library == "dask" or of_arrow
