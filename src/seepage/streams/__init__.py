"""Tables that are never in memory as a whole: rows that come in chunks, from disk or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.streams.parquet_source import ParquetRows, parquet
    from seepage.streams.source import Chunk, RowSource

__all__ = ["Chunk", "ParquetRows", "RowSource", "parquet"]

_HOME = {
    "Chunk": "source",
    "ParquetRows": "parquet_source",
    "RowSource": "source",
    "parquet": "parquet_source",
}

__getattr__ = lazy_names(__name__, _HOME, globals())
