"""Writes tables in sequence to a Parquet file, completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from seepage.errors import InputError
from seepage.support.files import check_path, write_private

if TYPE_CHECKING:
    import pyarrow as pa


def write_tables(tables: Iterator[pa.Table], path: Path) -> None:
    """Write tables with a common schema in sequence to a file that only its owner can read.

    If the disk is full or the folder is not writable, no partial file remains.
    """
    try:
        write_private(path, partial(write_each, tables))
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be written: {error.strerror or error}; no partial file remains. "
            "Choose another path."
        ) from error


def write_frame(table: pa.Table, path: str | os.PathLike[str]) -> Path:
    """Write one table to a Parquet file that only its owner can read, and return its path."""
    out = file_to_write(path)
    write_tables(iter([table]), out)
    return out


def file_to_write(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file; raise an error for a folder or an unresolvable path."""
    check_path(path)
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder; give the path of the Parquet file to write.")
    return Path(path)


def write_each(tables: Iterator[pa.Table], file: BinaryIO) -> None:
    """Write tables with a common schema in sequence to an open file."""
    import pyarrow.parquet as pq

    first = next(tables)
    # Nearly all numbers are different: a dictionary of them would be wasted.
    with pq.ParquetWriter(file, first.schema, use_dictionary=False) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
