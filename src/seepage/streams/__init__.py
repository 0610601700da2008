"""Sources larger than memory: records are read in chunks, from Parquet files or a Dask cluster.

Both kinds of source implement :class:`~seepage.tables.source.RowSource` and nothing else; they do
not depend on the computations applied to the chunks. ``glm.inputs`` converts callers' arguments
into a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.streams.disk.source import ParquetRows as ParquetRows
    from seepage.tables.source import Chunk as Chunk
    from seepage.tables.source import RowSource as RowSource

__getattr__, __dir__ = lazy_names(__name__, globals())
