"""Processes the rows of a table in chunks, with a progress bar."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, TypeVar

from array_api_compat import array_namespace, device, is_numpy_array
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from tqdm import tqdm

Array = Any
Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Numbers in one chunk: enough rows to keep a matrix product at full speed, few enough that what is
# computed from them stays far below the size of the table.
CHUNK = 1 << 19

# The same on an accelerator, which needs far more to keep busy (half a gigabyte of float64).
ACCELERATOR_CHUNK = 1 << 26


def chunk_for(array: Array) -> int:
    """Return how many numbers a chunk should contain on this array's device."""
    where = "cpu" if is_numpy_array(array) else getattr(array.device, "type", "cpu")
    return CHUNK if where == "cpu" else ACCELERATOR_CHUNK


def row_slices(rows: int, width: int, *, chunk: int = CHUNK, what: str = "") -> Iterator[slice]:
    """Divide ``rows`` rows of ``width`` numbers each into slices of about ``chunk`` numbers.

    With ``what``, a progress bar with that label is displayed during long computations.
    """
    step = max(1, chunk // max(1, width))
    starts = range(0, rows, step)
    for start in progress(starts, what) if what else starts:
        yield slice(start, min(start + step, rows))


def even_slices(rows: int, width: int, *, chunk: int = CHUNK) -> list[slice]:
    """Divide rows into nearly equal slices of at most ``chunk`` numbers.

    If several are needed, their number is a multiple of the number of cores where possible.
    """
    step = max(1, chunk // max(1, width))
    count = -(-rows // step)
    if count > 1:
        cores = usable_cores()
        count = -(-count // cores) * cores
        step = -(-rows // count)
    return list(row_slices(rows, 1, chunk=step))


def progress(items: Collection[Item], what: str) -> Iterator[Item]:
    """Iterate over items; on a terminal, a progress bar appears after two seconds."""
    yield from tqdm(items, desc=what, delay=2, disable=None, leave=False)


def progress_over(
    items: Iterable[Item], total: int, what: str, size: Callable[[Item], int]
) -> Iterator[Item]:
    """Iterate over items of several rows each, with a progress bar as in :func:`progress`."""
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
    """Apply ``function`` to the slices of :func:`row_slices` and concatenate the results.

    With ``threads``, the slices are distributed over the cores as in :func:`spread`. This requires
    NumPy arrays and a function that can safely run on several slices at the same time.
    """
    if rows <= max(1, chunk // max(1, width)):
        return function(slice(0, rows))
    cut = even_slices if threads else row_slices
    pieces = list(cut(rows, width, chunk=chunk))
    shown = progress(pieces, what) if what else pieces
    return _joined(spread(function, shown) if threads else map(function, shown), pieces)


def spread(
    function: Callable[[Item], Answer], pieces: Iterable[Item], workers: int | None = None
) -> Iterator[Answer]:
    """Yield the function's results for the pieces in order, computing several in parallel.

    The caller's thread distributes the pieces, and ``workers`` threads process them. By default
    there is one worker per core, and none on a machine with a single core. Each worker uses one
    core: most of NumPy does so anyway, and matrix products are limited to one. Pieces are taken
    only as needed: at any time, at most ``workers + 1`` pieces are waiting or in progress.
    """
    if workers is None:
        workers = usable_cores()
        if workers == 1:
            yield from map(function, pieces)
            return
    with blas_on_one_core(), ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Answer]] = deque()
        for piece in pieces:
            waiting.append(pool.submit(function, piece))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def blas_on_one_core() -> Iterator[None]:
    """Limit matrix products of NumPy and SciPy to one core inside this context.

    Additional threads would need buffers of tens of megabytes. Their busy waiting would also occupy
    a core for a tenth of a second during the next step.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


def small_on_one_core(matrix: Array) -> AbstractContextManager[None]:
    """Limit the decomposition of a small NumPy matrix to one core inside this context."""
    # Several cores take part from 64 rows or columns on, and are hardly faster up to 1024.
    small = is_numpy_array(matrix) and 64 <= max(matrix.shape) <= 1024
    return blas_on_one_core() if small else nullcontext()


def give_back_memory() -> None:
    """Return freed memory to the operating system, if the C library supports this."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def share_one_heap() -> None:
    """Make all threads of this process allocate from one heap, if the C library supports it.

    By default, each thread has a separate heap, and other threads do not reuse memory freed there.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX of glibc


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def _joined(parts: Iterable[Array], pieces: list[slice]) -> Array:
    """Copy the results for slices into one array as they arrive, so that none is stored twice."""
    out = None
    for piece, part in zip(pieces, parts, strict=True):
        if out is None:
            xp = array_namespace(part)
            shape = (pieces[-1].stop, *part.shape[1:])
            out = xp.empty(shape, dtype=part.dtype, device=device(part))
        out[piece, ...] = part
    return out


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
