"""Work through the rows of a table in pieces, with a progress bar for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from array_api_compat import array_namespace, device, is_numpy_array
from tqdm import tqdm

Array = Any
Item = TypeVar("Item")

# Numbers in one chunk: enough rows to keep a matrix product at full speed, few enough that what is
# made of them stays far below the size of the table.
CHUNK = 1 << 19

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
    pieces = list(row_slices(rows, width, chunk=chunk))
    if len(pieces) == 1:
        return function(pieces[0])
    if not (threads and usable_cores() > 1):
        return _joined(map(function, progress(pieces, what) if what else pieces), pieces)
    with ThreadPoolExecutor(usable_cores()) as pool:
        return _joined(pool.map(function, pieces), pieces)


def _joined(parts: Iterable[Array], pieces: list[slice]) -> Array:
    """Put the answers on slices into one array as they come, so that none is held twice."""
    out = None
    for piece, part in zip(pieces, parts, strict=True):
        if out is None:
            xp = array_namespace(part)
            shape = (pieces[-1].stop, *part.shape[1:])
            out = xp.empty(shape, dtype=part.dtype, device=device(part))
        out[piece, ...] = part
    return out


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
