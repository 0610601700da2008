"""Room for numbers of every record: an array, or a file mapped into memory where they are many."""

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
    """Return numbers of this shape, to be filled: in memory, or in a file mapped into it.

    The file has no name: only this process can read it, and the system removes it when the last
    reference to the numbers is gone or the process ends, in whatever way.
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
            f"The numbers of all records take {size / 1e9:.2g} GB of temporary space, which "
            f"{tempfile.gettempdir()} does not have ({error.strerror or error}); name another "
            "folder in the environment variable TMPDIR."
        ) from error


def _reserve(file: int, size: int) -> None:
    """Take the space now: a page of a mapped file that finds the disk full ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    block = bytes(1 << 20)
    for start in range(0, size, len(block)):
        os.write(file, block[: size - start])


def computed(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Return a function's answers on the entries of arrays, in room of their own.

    It is asked about some entries at a time, so that what it computes on the way stays small.
    """
    answers = room_for(len(arrays[0]))
    for start in range(0, len(answers), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        answers[here] = function(*(array[here] for array in arrays))
    return answers


def copied(values: np.ndarray) -> np.ndarray:
    """Return the numbers in room of their own."""
    copy = room_for(*values.shape)
    copy[...] = values
    return copy


def sorted_numbers(values: np.ndarray) -> np.ndarray:
    """Return the numbers in ascending order, in room of their own."""
    ordered = copied(values)
    ordered.sort()
    return ordered
