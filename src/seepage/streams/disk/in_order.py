"""Work on a stream of pieces with all cores, while the next pieces are read, and keep the order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from seepage.support.chunks import usable_cores

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")

_MOST_WORKERS = 8  # each holds a chunk and what is made of it


def in_order(
    pieces: Iterator[Piece], work: Callable[[Piece], Answer], threads: int | None = None
) -> Iterator[Answer]:
    """Yield ``work(piece)`` of every piece in turn, several of them being worked on at a time.

    The caller's thread reads; the workers compute. One chunk for each core keeps all of them busy
    in every line of the work, where a matrix product spread over the cores would leave them idle
    in between, so the linear algebra is kept to one thread meanwhile. ``threads`` is for whoever
    shares the cores with others.
    """
    workers = min(usable_cores() if threads is None else threads, _MOST_WORKERS)
    waiting: deque[Future[Answer]] = deque()
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as pool:
        try:
            for piece in pieces:
                waiting.append(pool.submit(work, piece))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
