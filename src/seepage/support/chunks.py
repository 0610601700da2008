"""Work through the rows of a table in pieces, with a progress bar for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from array_api_compat import array_namespace, is_numpy_array
from tqdm import tqdm

Array = Any
Item = TypeVar("Item")

# Numbers in one chunk: enough rows to keep a matrix product at full speed, few enough that what is
# made of them stays far below the size of the table.
CHUNK = 1 << 20

# The same on an accelerator, which takes far more to be kept busy (half a gigabyte of float64).
ACCELERATOR_CHUNK = 1 << 26


def chunk_for(array: Array) -> int:
    """Return how many numbers a chunk should hold where this array lives."""
    where = "cpu" if is_numpy_array(array) else getattr(array.device, "type", "cpu")
    return CHUNK if where == "cpu" else ACCELERATOR_CHUNK


def row_slices(rows: int, width: int, *, chunk: int = CHUNK, what: str = "") -> Iterator[slice]:
    """Cut ``rows`` rows of ``width`` numbers each into slices of about ``chunk`` numbers.

    With ``what``, a bar of that name shows the progress of long work.
    """
    step = max(1, chunk // max(1, width))
    starts = range(0, rows, step)
    for start in progress(starts, what) if what else starts:
        yield slice(start, min(start + step, rows))


def progress(items: Collection[Item], what: str) -> Iterator[Item]:
    """Go through the items behind a bar that appears after two seconds, on a terminal only."""
    yield from tqdm(items, desc=what, delay=2, disable=None, leave=False)


def progress_over(
    items: Iterable[Item], total: int, what: str, size: Callable[[Item], int]
) -> Iterator[Item]:
    """Go through items of several rows each behind a bar, as :func:`progress` does."""
    with tqdm(total=total, desc=what, delay=2, disable=None, leave=False, unit_scale=True) as bar:
        for item in items:
            yield item
            bar.update(size(item))


def by_rows(
    function: Callable[[slice], Array],
    rows: int,
    width: int,
    *,
    chunk: int = CHUNK,
    what: str = "",
    threads: bool = False,
) -> Array:
    """Apply ``function`` to the slices of :func:`row_slices` and join what it returns.

    ``threads`` spreads the slices over the processor's cores: for elementwise NumPy work, which
    runs on one core but lets go of the interpreter, and not for matrix products or torch, which
    use all cores already.
    """
    pieces = row_slices(rows, width, chunk=chunk, what=what)
    if threads and rows * width > chunk and usable_cores() > 1:
        with ThreadPoolExecutor(usable_cores()) as pool:
            parts = list(pool.map(function, pieces))
    else:
        parts = [function(piece) for piece in pieces]
    return parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts, axis=0)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
