"""Tables that are never in memory as a whole: rows that come in chunks, from disk or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.streams.disk.source import ParquetRows, parquet
    from seepage.tables.source import Chunk, RowSource

__all__ = ["Chunk", "ParquetRows", "RowSource", "parquet"]

__getattr__, __dir__ = lazy_names(__name__, globals())
