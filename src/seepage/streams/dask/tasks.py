"""Tasks for the workers: sums in a tree, and folders of files written completely or not at all.

Because sums are combined in a tree, no machine ever has more than a few parts in memory.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa

from seepage.errors import InputError
from seepage.support.files import write_tables

FAN_IN = 8  # sums added up by one task, and answers that come to this machine at a time


def named(what: str) -> str:
    """Return a new prefix for task keys, which Dask's dashboard displays."""
    return f"{re.sub(r'[^a-z0-9]+', '_', what.lower()).strip('_')}-{uuid.uuid4().hex}"


def tree_sum(parts: Sequence[Any], what: str) -> Any:
    """Return the delayed sum (with ``+``) of delayed parts, ``FAN_IN`` at a time.

    The order of the additions depends only on the number of parts, not on which worker finishes
    first, so the same parts always give exactly the same sum.
    """
    from dask.delayed import delayed

    level, depth = list(parts), 0
    while len(level) > 1:
        prefix, depth = named(f"{what} sum {depth}"), depth + 1
        level = [
            delayed(_sum, pure=False)(level[k : k + FAN_IN], dask_key_name=f"{prefix}-{k}")
            for k in range(0, len(level), FAN_IN)
        ]
    return level[0]


def each_task(function: Callable[..., Any], asked: Iterable[Sequence[Any]], what: str) -> list[Any]:
    """Return the delayed results of a function, with one task per list of arguments.

    The function is a separate node of the task graph, so it is sent only once and shared by the
    workers.
    """
    from dask.delayed import delayed

    prefix = named(what)
    work = delayed(function, pure=False, traverse=False)
    return [
        delayed(call, pure=False)(work, *arguments, dask_key_name=f"{prefix}-{k}")
        for k, arguments in enumerate(asked)
    ]


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that is a node of the task graph."""
    return function(*arguments)


def sum_over(
    function: Callable[..., Any], asked: Iterable[Sequence[Any]], what: str, client: Any = None
) -> Any:
    """Return the sum of a function's results, computed on the workers with one task per result."""
    return fetch(tree_sum(each_task(function, asked, what), what), client)


def fetch(delayed: Any, client: Any = None) -> Any:
    """Compute and fetch a small result, on a client's cluster or with Dask's default scheduler."""
    with warnings.catch_warnings():
        # What all rows have in common (matrices of d × d numbers) travels in the graph on purpose:
        # scattered data would be lost with the worker that holds them.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        return delayed.compute() if client is None else client.compute(delayed).result()


def fetch_each(tasks: Sequence[Any], client: Any = None) -> Iterator[Any]:
    """Yield the results of tasks in order, fetching a few at a time."""
    from dask.delayed import delayed

    for start in range(0, len(tasks), FAN_IN):
        yield from fetch(delayed(list(tasks[start : start + FAN_IN])), client)


def _sum(parts: list[Any]) -> Any:
    return reduce(add, parts)


def fill_folder(
    function: Callable[..., int],
    asked: Sequence[tuple[int, Sequence[Any]]],
    path: Path,
    what: str,
    client: Any = None,
) -> None:
    """Let workers write Parquet files into a new folder that all of them can access.

    The files are written to a hidden folder, which is renamed when all files are complete. Only the
    owner can read the files. ``asked`` contains each file's number and arguments. ``function``
    accepts the arguments and a path, writes one file and returns a number. If a worker is lost, its
    task runs again and writes the same file.
    """
    if path.exists():
        raise InputError(f"{path.name} already exists; choose a new folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(dir=path.parent.resolve(), prefix=f".{path.name}."))
    wanted = {_name(number) for number, _ in asked}
    try:
        every = [(*arguments, str(hidden / _name(number))) for number, arguments in asked]
        sum_over(function, every, f"{what} files", client)
        missing = sorted(wanted - {file.name for file in hidden.iterdir()})
        if missing:
            raise InputError(
                f"This machine cannot find {missing[0]}, which the workers wrote; choose a folder "
                "on a file system that all machines share."
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


def write_one(table: pa.Table, path: str) -> int:
    """Write a table to one file and return 1, the number of files written."""
    write_tables(iter([table]), Path(path))
    return 1
