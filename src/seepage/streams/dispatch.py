"""Which data a caller means: rows in memory, or a source that gives them in chunks."""

from __future__ import annotations

import os
from typing import Any

from seepage.errors import InputError
from seepage.tables.frames import MemorySource, read_table
from seepage.tables.source import RowSource


def is_streamed(X: Any) -> bool:
    """Say whether a caller's table is one to be read in chunks: a source, a path or a data set."""
    if isinstance(X, RowSource | str | os.PathLike) or _is_dask(X):
        return True
    return type(X).__module__.startswith("pyarrow.") and hasattr(X, "get_fragments")


def _is_dask(X: Any) -> bool:
    return type(X).__module__.startswith("dask.")


def as_source(X: Any, y: Any, sample_weight: Any, dtype: str | None = None) -> RowSource:
    """Return the source that a caller means by a table, or a path with the names of its columns.

    ``dtype`` is that of a table in memory; see :func:`~seepage.tables.frames.read_table`.
    """
    if not is_streamed(X):
        return MemorySource(read_table(X, dtype=dtype), y, sample_weight)
    if dtype not in (None, "float64"):
        raise InputError("Data that are read in chunks are measured in float64; leave dtype out.")
    if isinstance(X, RowSource):
        if y is not None or sample_weight is not None:
            raise InputError(
                f"The data have their labels ({X.target!r}) and weights with them: leave y and "
                "sample_weight out."
            )
        return X
    if _is_dask(X):
        from seepage.streams.dask.source import dask_rows

        return dask_rows(X, y, weight=sample_weight)
    from seepage.streams.disk.source import parquet

    for what, given in (("y", y), ("sample_weight", sample_weight)):
        if not isinstance(given, str) and not (what == "sample_weight" and given is None):
            raise InputError(
                f"With Parquet data {what} is the name of a column, not {type(given).__name__}."
            )
    return parquet(X, target=y, weight=sample_weight)
