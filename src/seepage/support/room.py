"""Stores per-record numbers in an array, or in a memory-mapped file if there are many."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable

import numpy as np

from seepage.errors import InputError

_AT_ONCE = 1 << 13  # entries that a function is asked about at a time
IN_MEMORY = 1 << 26  # bytes up to which they are an array; beyond, a file is mapped


def room_for(*shape: int) -> np.ndarray:
    """Return an array of this shape to fill, in memory or in a memory-mapped file.

    The file has no name, so only this process can read it. The system removes the file when the
    last reference is dropped or the process ends.
    """
    size = 8 * math.prod(shape)
    if size <= IN_MEMORY:
        return np.empty(shape)
    try:
        with tempfile.TemporaryFile() as file:
            _reserve(file.fileno(), size)
            return np.asarray(np.memmap(file, np.float64, "r+", shape=shape))
    except OSError as error:
        raise InputError(
            f"The per-record numbers need {size / 1e9:.2g} GB of temporary space, but "
            f"{tempfile.gettempdir()} has too little ({error.strerror or error}); set the "
            "environment variable TMPDIR to another folder."
        ) from error


def _reserve(file: int, size: int) -> None:
    """Reserve disk space, since writing a mapped page to a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    block = bytes(1 << 20)
    for start in range(0, size, len(block)):
        os.write(file, block[: size - start])


def computed(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Apply a function elementwise to arrays, and return the results in new storage.

    The function is called for a few entries at a time, so that intermediate results are small.
    """
    answers = room_for(len(arrays[0]))
    for start in range(0, len(answers), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        answers[here] = function(*(array[here] for array in arrays))
    return answers


def copied(values: np.ndarray) -> np.ndarray:
    """Return a copy of the numbers in new storage."""
    copy = room_for(*values.shape)
    copy[...] = values
    return copy


def sorted_numbers(values: np.ndarray) -> np.ndarray:
    """Return the numbers in ascending order, in new storage."""
    ordered = copied(values)
    ordered.sort()
    return ordered
