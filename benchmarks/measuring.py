"""How the benchmarks measure: the best of several runs, peak memory, and dense Jacobians."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np


def seconds(
    work: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the shortest time of several runs: the one least disturbed by anything else.

    The clock ``time.process_time`` counts processor time, without other work of the machine.
    """
    best = float("inf")
    for _ in range(repeats):
        start = clock()
        work()
        best = min(best, clock() - start)
    return best


def peak_megabytes(work: Callable[[], object]) -> float:
    """Return the peak megabytes of arrays that one (untimed) run adds."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def dense_row_norms(
    X: np.ndarray,
    w: np.ndarray,
    r: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    H: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """Return ‖J_i‖₂ the textbook way: build the d×(d+1) Jacobian of each row and decompose it."""
    inverse = np.linalg.inv(H)
    norms = np.empty(len(rows))
    for k, i in enumerate(rows):
        mixed = a[i] * np.outer(X[i], w) + r[i] * np.eye(len(w))
        J = -inverse @ np.column_stack([mixed, b[i] * X[i]])
        norms[k] = np.linalg.svd(J, compute_uv=False)[0]
    return norms


def show(*columns: Any, widths: tuple[int, ...]) -> None:
    """Print one line of a table."""
    first, *others = (str(c).rjust(w) for c, w in zip(columns, widths, strict=True))
    print("  ".join([first.strip().ljust(widths[0]), *others]), flush=True)
