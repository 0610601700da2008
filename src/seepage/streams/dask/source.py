"""``sp.dask_rows``: dask arrays and data frames as tables for fitting models and measuring leakage.

Rows remain on the workers, except for risks of people or groups. Only sums, and a view's per-record
numbers, are sent to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from seepage.errors import InputError
from seepage.streams.dask.tasks import (
    each_task,
    fetch,
    fetch_each,
    fill_folder,
    sum_over,
    tree_sum,
    write_one,
)
from seepage.tables.columns import (
    ColumnSums,
    Piece,
    Scan,
    TableEncoding,
    choose_columns,
    class_levels,
    column_sums,
    encode_columns,
    plain_type,
    scan,
)
from seepage.tables.names import counted
from seepage.tables.source import Chunk, RowSource, check_column, first_not_finite

Answer = TypeVar("Answer")


def dask_rows(
    data: Any,
    target: Any,
    *,
    columns: Sequence[str] | None = None,
    weight: Any = None,
    scale: bool = False,
    drop_first: bool = False,
) -> DaskRows:
    """Use a Dask collection as a table for fitting models and measuring leakage.

    :mod:`seepage.glm` estimators and :func:`seepage.leakage` also accept Dask collections directly;
    this function reads the levels and the partition lengths once for all later calls.

    Parameters
    ----------
    data
        A dask data frame, or a dask array with one row per record.
    target
        The labels: the name of a data-frame column or, for a dask array, another dask array.
    columns
        The feature columns of a data frame; by default all columns except the label and the
        weight. Text becomes one 0/1 feature per level, named ``column=level``.
    weight
        The sample weights, in the same form as the labels.
    scale, drop_first
        For data frames only, as for :func:`seepage.parquet`.

    Examples
    --------
    >>> import dask.array as da
    >>> import seepage as sp
    >>> from seepage.streams.dask.source import dask_rows
    >>> X = da.random.default_rng(0).standard_normal((1000, 3), chunks=(250, 3))
    >>> data = dask_rows(X, X.sum(axis=1) > 0)
    >>> model = sp.glm.LogisticRegression(l2=1e-2).fit(data)
    >>> leak = sp.leakage(model, data, noise=sp.Gaussian(0.1))
    >>> leak.records().to_dask().shape
    (1000,)
    """
    if hasattr(data, "dask") and hasattr(data, "columns"):
        return _of_frame(data, target, columns, weight, scale, drop_first)
    if not (hasattr(data, "dask") and hasattr(data, "chunks")):
        raise InputError(f"The data must be a dask array or data frame, not {type(data).__name__}.")
    if columns is not None or scale or drop_first:
        raise InputError(
            "columns, scale and drop_first apply only to data frames; omit them for a dask array."
        )
    return _of_arrays(data, target, weight)


class DaskRows(RowSource):
    """A Dask collection as a table read in chunks, made by :func:`dask_rows`.

    Each query runs one task per partition; sums of the results are computed in a tree. Tasks depend
    only on their partition, so if a worker is lost, another can recompute its results exactly.
    ``partitions`` returns the delayed partitions with any further requested columns. ``read``
    converts a partition to a chunk, given its number, its first row and the requested columns.
    """

    def __init__(
        self,
        partitions: Callable[[tuple[str, ...]], Sequence[Any]],
        lengths: Sequence[int],
        read: Callable[..., Chunk],
        *,
        names: tuple[str, ...],
        attributes: Mapping[str, tuple[str, ...]],
        target: str,
        weighted: bool,
        find_classes: Callable[[], np.ndarray],
    ) -> None:
        self.partitions, self.lengths, self.read = partitions, tuple(lengths), read
        self.names, self.attributes = names, attributes
        self.target, self.weighted = target, weighted
        self._find_classes = find_classes
        if not len(self):
            raise InputError("The Dask collection has no rows; pass a collection with data.")

    def __len__(self) -> int:
        return sum(self.lengths)

    def __repr__(self) -> str:
        return (
            f"<DaskRows: {counted(len(self), 'row')} in {counted(len(self.lengths), 'partition')}, "
            f"{counted(len(self.names), 'feature')}, {self.target!r}>"
        )

    @cached_property
    def classes(self) -> np.ndarray:
        """The distinct labels, sorted."""
        return self._find_classes()

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum of the function's results, computed on the workers."""
        answers = self.answers(function, what, extra)
        found: Answer = fetch(tree_sum([a for _, a in answers], what))
        return found

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's result for every partition; the workers compute the results."""
        yield from fetch_each([task for _, task in self.answers(function, what, extra)])

    def taken(self, most: float, extra: Sequence[str] = ()) -> None:
        """Return ``None``, since the rows remain on the workers."""

    def lazily(self, function: Callable[[Chunk], np.ndarray], width: int | None, what: str) -> Any:
        """Return the function's result for every row as a dask array, computed on demand."""
        arrays: Any = import_module("dask.array")
        like = np.empty(0 if width is None else (0, width))
        blocks = [
            arrays.from_delayed(answer, (self.lengths[k], *like.shape[1:]), meta=like)
            for k, answer in self.answers(function, what)
        ]
        return arrays.concatenate(blocks)

    def write(self, function: Callable[[Chunk], pa.Table], path: Path, what: str) -> None:
        """Let the workers write a folder of Parquet files, one per partition."""
        tables = [(number, [table]) for number, table in self.answers(function, what)]
        fill_folder(write_one, tables, path, what)

    def answers(
        self, function: Callable[[Chunk], Any], what: str, extra: Sequence[str] = ()
    ) -> list[tuple[int, Any]]:
        """Return the number and the delayed result of each partition that has rows."""
        wanted, starts = tuple(extra), accumulate(self.lengths[:-1], initial=0)
        every = zip(self.partitions(wanted), starts, self.lengths, strict=True)
        asked = [(part, k, start, rows) for k, (part, start, rows) in enumerate(every) if rows]
        work = partial(_answer, function=function, read=self.read, extra=wanted)
        tasks = each_task(work, asked, what)
        return [(number, task) for (_, number, *_), task in zip(asked, tasks, strict=True)]


def _answer(
    partition: Any,
    number: int,
    start: int,
    rows: int,
    *,
    function: Callable[[Chunk], Answer],
    read: Callable[..., Chunk],
    extra: tuple[str, ...],
) -> Answer:
    chunk = read(partition, number, start, extra)
    if len(chunk) != rows:
        raise InputError(
            f"Partition {number} now has {counted(len(chunk), 'row')}, but had {rows:,} before; do "
            "not change the data while they are read."
        )
    return function(chunk)


def _of_frame(
    frame: Any,
    target: Any,
    columns: Sequence[str] | None,
    weight: Any,
    scale: bool,
    drop_first: bool,
) -> DaskRows:
    for what, given in (("target", target), ("weight", weight)):
        if not isinstance(given, str) and not (what == "weight" and given is None):
            raise InputError(
                f"With a dask data frame, the {what} must be the name of one of its columns, not "
                f"{type(given).__name__}; add it to the frame with frame.assign(…)."
            )
    known = [str(name) for name in frame.columns]
    wanted = choose_columns(known, target, weight, columns)
    # The types of text and categories come from values, which an empty frame lacks.
    schema = pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)
    counted = [[part] for part in frame[[target]].to_delayed()]
    lengths: tuple[int, ...] = tuple(sum_over(_counted, counted, "rows"))
    if not sum(lengths):
        raise InputError("The dask data frame has no rows; pass a data frame with data.")
    scan = partial(_scanned, frame, schema, lengths=lengths)
    parts = encode_columns(wanted, schema, scale, scan)
    coding = TableEncoding(parts, target, weight, scale, drop_first)

    def partitions(extra: tuple[str, ...]) -> Sequence[Any]:
        for name in extra:
            check_column(name, known)
        asked = list(dict.fromkeys([*coding.columns, *extra]))
        return list(frame[asked].to_delayed())

    def classes() -> np.ndarray:
        sums = _scanned(frame, schema, [target], lengths)[target]
        return class_levels(sums, plain_type(schema.field(target).type), target)

    return DaskRows(
        partitions,
        lengths,
        partial(_read_frame, coding=coding, schema=schema),
        names=coding.names(),
        attributes=coding.attributes(),
        target=target,
        weighted=weight is not None,
        find_classes=classes,
    )


def _of_arrays(X: Any, y: Any, weight: Any) -> DaskRows:
    if X.ndim != 2:
        raise InputError(
            f"X must have rows and columns, but it has {counted(X.ndim, 'dimension')}; pass a "
            "two-dimensional array."
        )
    if X.dtype.kind not in "fiub":
        raise InputError(f"X contains {X.dtype} values instead of numbers; convert it first.")
    X = _known(X).rechunk({1: -1})
    given = {"y": y, "sample_weight": weight} if weight is not None else {"y": y}
    beside = {what: _beside(X, array, what) for what, array in given.items()}
    lengths = X.chunks[0]
    columns = [list(array.to_delayed().ravel()) for array in (X, *beside.values())]
    if weight is None:
        columns.append([None] * len(lengths))
    names = tuple(f"x{j}" for j in range(X.shape[1]))

    def partitions(extra: tuple[str, ...]) -> Sequence[Any]:
        return [list(blocks) for blocks in zip(*columns, strict=True)]

    def classes() -> np.ndarray:
        blocks = [[block] for block, rows in zip(columns[1], lengths, strict=True) if rows]
        found: ColumnSums = sum_over(_label_sums, blocks, "labels")
        kind = pa.string() if beside["y"].dtype.kind in "OU" else pa.from_numpy_dtype(y.dtype)
        return class_levels(found, kind, "y")

    return DaskRows(
        partitions,
        lengths,
        partial(_read_arrays, names=names),
        names=names,
        attributes={},
        target="y",
        weighted=weight is not None,
        find_classes=classes,
    )


def _beside(X: Any, array: Any, what: str) -> Any:
    """Return labels or weights, with the same chunks of rows as the features."""
    if not (hasattr(array, "dask") and hasattr(array, "chunks")):
        raise InputError(
            f"With a dask array, {what} must also be a dask array, not {type(array).__name__}."
        )
    if array.ndim != 1:
        raise InputError(
            f"{what} must be one-dimensional, but it has {counted(array.ndim, 'dimension')}; pass "
            "one entry per row."
        )
    array = _known(array)
    if array.shape[0] != X.shape[0]:
        raise InputError(
            f"X has {counted(X.shape[0], 'row')}, but {what} has {array.shape[0]:,}; pass one "
            "entry per row."
        )
    return array.rechunk((X.chunks[0],))


def _known(array: Any) -> Any:
    """Return an array whose block sizes are known."""
    if any(np.isnan(size) for size in array.chunks[0]):
        return array.copy().compute_chunk_sizes()
    return array


def _scanned(frame: Any, schema: pa.Schema, names: list[str], lengths: Sequence[int]) -> Scan:
    parts = [(part, k) for k, part in enumerate(frame[names].to_delayed()) if lengths[k]]
    found: Scan = sum_over(partial(_scan_one, schema=schema), parts, "scan")
    return found


def _scan_one(part: Any, number: int, schema: pa.Schema) -> Scan:
    return scan([_as_piece(part, schema, number)])


def _counted(part: Any) -> list[int]:
    return [len(part)]


def _label_sums(labels: Any) -> ColumnSums:
    return column_sums(pa.array(np.asarray(labels)))


def _read_frame(
    partition: Any,
    number: int,
    start: int,
    extra: tuple[str, ...],
    *,
    coding: TableEncoding,
    schema: pa.Schema,
) -> Chunk:
    """Return a pandas partition as a chunk; ``start`` is its first row in the whole table."""
    return coding.encode([_as_piece(partition, schema, number)], start, extra)


def _read_arrays(
    partition: Any, number: int, start: int, extra: tuple[str, ...], *, names: tuple[str, ...]
) -> Chunk:
    """Return array blocks as a chunk: the features, the labels, and the weights, if any."""
    if extra:
        raise InputError(
            f"Arrays have no column {extra[0]!r}; pass a dask data frame that contains it."
        )
    X, y, weight = partition
    X = np.asarray(X, dtype=np.float64)
    _refuse_not_finite(X, names, start)
    y = np.asarray(y)
    if y.dtype.kind == "f":
        _refuse_not_finite(y[:, None], ("y",), start)
    if weight is not None:
        weight = np.asarray(weight, dtype=np.float64)
        _refuse_not_finite(weight[:, None], ("sample_weight",), start)
        if weight.size and weight.min() < 0:
            row = start + int(np.argmin(weight))
            raise InputError(f"The sample weight in row {row:,} must not be negative; correct it.")
    return Chunk(X, y, weight, start)


def _as_piece(frame: Any, schema: pa.Schema, number: int) -> Piece:
    """Return a pandas partition as Arrow columns, with the column types of the whole collection."""
    wanted = pa.schema([schema.field(name) for name in frame.columns])
    try:
        batch = pa.RecordBatch.from_pandas(frame, wanted, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise InputError(
            f"Partition {number} differs in column types from the whole collection ({error}); give "
            "each column the same type in all partitions."
        ) from error
    return Piece(batch, f"partition {number}", 0)


def _refuse_not_finite(numbers: np.ndarray, names: tuple[str, ...], start: int) -> None:
    row = first_not_finite(numbers)
    if row is not None:
        column = int(np.argmin(np.isfinite(numbers[row])))
        raise InputError(
            f"{names[column]!r} contains NaN or infinity in row {start + row:,}; drop such rows, "
            "or fill in missing values."
        )
