"""Write tables one after another to a Parquet file that appears complete or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from seepage.errors import InputError
from seepage.support.files import write_private


def write_tables(tables: Iterator[pa.Table], path: Path) -> None:
    """Write tables of one schema as they come, to a file that only its owner can read.

    If the disk is full or the folder cannot be written to, nothing is left behind.
    """
    try:
        write_private(path, partial(write_each, tables))
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be written: {error.strerror or error}; nothing was left behind."
        ) from error


def write_each(tables: Iterator[pa.Table], file: BinaryIO) -> None:
    """Write tables of one schema, one after another, to an open file."""
    first = next(tables)
    # Nearly all numbers are different: a dictionary of them would be wasted.
    with pq.ParquetWriter(file, first.schema, use_dictionary=False) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
