"""Per-row results written by the workers: a folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from seepage.errors import InputError
from seepage.streams.dask.tree import fetch, named, tree_sum
from seepage.tables.table_file import write_tables


def write_by_workers(tables: Sequence[tuple[int, Any]], path: Path, what: str) -> None:
    """Write delayed tables, each to a Parquet file of its own, into a new folder.

    Parameters
    ----------
    tables
        Delayed tables with their numbers.
    path, what
        As for :func:`fill_folder`.
    """
    from dask.delayed import delayed

    def writing(table: Any) -> Callable[[str, str], Any]:
        return lambda file, key: delayed(_write, pure=False)(table, file, dask_key_name=key)

    fill_folder([(number, writing(table)) for number, table in tables], path, what)


def fill_folder(
    tasks: Sequence[tuple[int, Callable[[str, str], Any]]],
    path: Path,
    what: str,
    client: Any = None,
) -> None:
    """Have workers write one Parquet file each into a new folder.

    The files are written beside the folder's place, in a hidden one, which is renamed when all are
    there; only their owner can read them. A task that runs twice, because a worker was lost, writes
    the same file again.

    Parameters
    ----------
    tasks
        For every file its number and what makes its task: called with the path of the file and the
        name of the task, it returns a delayed number.
    path
        The folder to make; the client and all workers must see it.
    what
        The name of the tasks.
    client
        The client of the cluster, where it is not Dask's own choice.
    """
    if path.exists():
        raise InputError(f"{path.name} is there already; name a new folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(dir=path.parent.resolve(), prefix=f".{path.name}."))
    prefix = named(f"{what} files")
    try:
        counts = [task(str(hidden / _name(k)), f"{prefix}-{k}") for k, task in tasks]
        fetch(tree_sum(counts, what), client)
        wanted = {_name(number) for number, _ in tasks}
        missing = sorted(wanted - {file.name for file in hidden.iterdir()})
        if missing:
            raise InputError(
                f"The workers wrote {missing[0]} where this machine cannot see it; name a folder "
                "on a file system that all of them share."
            )
        for file in hidden.iterdir():
            if file.name not in wanted:  # left by a worker that was lost
                file.unlink()
        hidden.rename(path)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def _name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def _write(table: pa.Table, path: str) -> int:
    write_tables(iter([table]), Path(path))
    return 1
