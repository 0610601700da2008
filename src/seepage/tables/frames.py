"""Reads the columns of a raw table: an array, or a data frame from any narwhals-supported library.

Models are refitted on the caller's table, with its names and types. This module reads the columns
as numbers or text, and builds new records from the columns of several records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.tables.source import as_numpy


def is_frame(X: Any) -> bool:
    """Return whether a table is a data frame, whose columns have names and types."""
    return hasattr(X, "columns") or hasattr(X, "column_names")


def columns_as_they_are(X: Any, text: Sequence[bool] | None = None) -> list[tuple[str, np.ndarray]]:
    """Return the name and the values of each column.

    Numbers, Booleans and dates (in days) are floats, with NaN for missing values. All other values
    are text, with ``None`` for missing values. ``text`` states which columns are text, if known,
    since a subset of an object column may contain only numbers.
    """
    if is_frame(X):
        frame = _frame(X)
        columns = [(str(name), frame.get_column(name)) for name in frame.columns]
        reads: tuple[Callable[[Any], np.ndarray], ...]
        reads = (_read, lambda series: _as_text(_objects(series.to_list())))
    else:
        values = np.asarray(X)
        columns = [(f"column {j}", values[:, j]) for j in range(values.shape[1])]
        reads = (_read_array, _as_text)
    known = [False] * len(columns) if text is None else text
    return [(name, reads[own](column)) for own, (name, column) in zip(known, columns, strict=True)]


def put_together(X: Any, rows: np.ndarray, holders: Sequence[np.ndarray]) -> Any:
    """Return copies of the records ``rows``, with columns replaced by other records' values.

    ``holders`` states, for each column, which records supply its values. A column whose entry is
    ``rows`` itself is not changed.
    """
    if not is_frame(X):
        made = np.array(X[rows])
        for j, own in enumerate(holders):
            if own is not rows:
                made[:, j] = X[own, j]
        return made
    frame = _frame(X)
    taken = [
        frame.get_column(name)[own.tolist()].alias(name)
        for name, own in zip(frame.columns, holders, strict=True)
        if own is not rows
    ]
    return frame[rows.tolist()].with_columns(*taken).to_native()


def _frame(X: Any) -> Any:
    import narwhals as nw

    try:
        return nw.from_native(X, eager_only=True)
    except Exception as problem:
        line = (str(problem).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"X is a {type(X).__name__} whose columns cannot be read ({line}); pass an in-memory "
            "data frame with distinct column names."
        ) from problem


def _read(series: Any) -> np.ndarray:
    import pyarrow as pa

    try:
        column = series.to_arrow()
    except (pa.ArrowException, TypeError, ValueError):  # objects of several kinds
        return _read_array(_objects(series.to_list()))
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        days = column.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False)
        return np.asarray(days.to_numpy(zero_copy_only=False)) / 86_400e6
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ):
        return _as_text(_objects(column.to_pylist()))
    return np.asarray(
        column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float
    )


def _objects(cells: list[Any]) -> np.ndarray:
    return np.fromiter(cells, dtype=object, count=len(cells))


def _read_array(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "M":
        days = values.astype("datetime64[us]")
        return np.where(np.isnat(days), np.nan, days.astype(np.int64) / 86_400e6)
    if values.dtype.kind == "O" and all(_is_gap(cell) or _is_number(cell) for cell in values):
        return np.array([np.nan if _is_gap(cell) else cell for cell in values], dtype=float)
    return values.astype(float) if values.dtype.kind in "biuf" else _as_text(values)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float | np.integer | np.floating | np.bool_)


def _is_gap(cell: Any) -> bool:
    # pandas's marks of a gap are compared with nothing
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or bool(cell != cell)


def _as_text(values: np.ndarray) -> np.ndarray:
    gaps = [_is_gap(cell) for cell in values.tolist()]
    texts = (str(cell) for cell in values.tolist())
    return np.array([None if gap else t for gap, t in zip(gaps, texts, strict=True)], dtype=object)


def as_labels(y: Any) -> np.ndarray:
    """Return labels, ``(n,)``, as numbers, Booleans or text, regardless of their input type.

    ``y`` may be a data frame's column, a one-column data frame, or an object array of one type.
    """
    if is_frame(y):
        frame = _frame(y)
        if len(frame.columns) != 1:
            raise InputError(
                f"y is a table with {len(frame.columns)} columns; pass only the target column."
            )
        y = frame.get_column(frame.columns[0])
    # Arrow's arrays of truth values are bits, which NumPy cannot take as they are
    values = _objects(y.to_pylist()) if hasattr(y, "to_pylist") else as_numpy(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"y has the shape {values.shape}; pass one label per row.")
    gaps = [_is_gap(cell) for cell in values.tolist()]
    if any(gaps):
        raise InputError(
            f"y has no label in row {gaps.index(True)} ({sum(gaps)} missing in total); drop the "
            "rows without a label."
        )
    if values.dtype.kind != "O":
        return values
    cells = values.tolist()
    if all(isinstance(cell, bool | np.bool_) for cell in cells):
        return values.astype(bool)
    if all(isinstance(cell, int | np.integer) for cell in cells):
        return values.astype(np.int64)
    if all(_is_number(cell) for cell in cells):
        return values.astype(float)
    return np.array([str(cell) for cell in cells])
