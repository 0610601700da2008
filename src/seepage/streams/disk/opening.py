"""Find the Parquet files, or the data set, that a caller means by a path, a list or a folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.fs as pafs

from seepage.errors import InputError
from seepage.streams.disk.files import BROKEN, Batches, DatasetBatches, ParquetFiles


def open_batches(data: Any, filesystem: Any = None) -> Batches:
    """Open a Parquet file, a folder of them, a list of them, or a pyarrow data set.

    Paths may be those of any file system that fsspec or pyarrow know (``s3://…``).
    """
    if hasattr(data, "get_fragments"):
        return DatasetBatches(data)
    several = not isinstance(data, str | os.PathLike)
    given = [os.fspath(path) for path in (data if several else [data])]
    if not given:
        raise InputError("No Parquet file was named; name at least one.")
    found, system = _locate(given[0], filesystem)
    if several:
        files = [_locate(path, filesystem)[0] for path in given]
        return ParquetFiles(files, system, None)
    about = system.get_file_info(found)
    if about.type == pafs.FileType.NotFound:
        raise InputError(f"There is no file or folder {given[0]}.")
    if about.type == pafs.FileType.File:
        return ParquetFiles([found], system, None)
    return _open_folder(found, system, given[0])


def _open_folder(folder: str, system: Any, shown: str) -> Batches:
    inside = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    parts = {
        info.path: PurePosixPath(info.path).relative_to(folder).parts
        for info in inside
        if info.type == pafs.FileType.File and info.path.lower().endswith((".parquet", ".pq"))
    }
    # As other readers of folders do: what starts with a dot or underscore is no data.
    files = sorted(path for path, names in parts.items() if not any(n[0] in "._" for n in names))
    if not files:
        raise InputError(f"The folder {shown} has no Parquet file (.parquet) in it.")
    if any("=" in name for path in files for name in parts[path][:-1]):
        import pyarrow.dataset as pads

        ParquetFiles(files, system, folder)  # its checks name the file
        kind = pads.partitioning(flavor="hive")
        return DatasetBatches(
            pads.dataset(files, filesystem=system, format="parquet", partitioning=kind)
        )
    return ParquetFiles(files, system, folder)


def _locate(path: str, filesystem: Any) -> tuple[str, Any]:
    """Return the path within its file system, and that file system as pyarrow's."""
    if filesystem is not None:
        if isinstance(filesystem, pafs.FileSystem):
            return path, filesystem
        return path, pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    if "://" not in path:
        return str(Path(path).absolute()), pafs.LocalFileSystem()
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        try:
            system, inner = pafs.FileSystem.from_uri(path)
        except BROKEN as error:
            raise InputError(
                f"{path} cannot be opened by pyarrow alone; install fsspec, which opens more."
            ) from error
        return inner, system
    try:
        system, inner = url_to_fs(path)
    except (ImportError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be opened: {error}.") from error
    return inner, pafs.PyFileSystem(pafs.FSSpecHandler(system))
