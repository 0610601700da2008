"""Read the idx format of MNIST: a magic number, big-endian sizes, then bytes, gzipped.

The magic number is ``0x00 0x00 0x08 ndim`` (0x08: unsigned bytes), each size a 32-bit integer.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seepage.data.problems import broken


def read_idx(path: Path, shape: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    """Return the array in ``path``, which must have exactly this ``shape``."""
    header = struct.Struct(f">{1 + len(shape)}I")
    count = math.prod(shape)
    try:
        with gzip.open(path, "rb") as stream:
            head = stream.read(header.size)
            # One byte more than announced tells a longer file from a whole one.
            body = stream.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise broken(path, f"is cut off or is not a gzip file ({error})", name) from error
    if len(head) < header.size:
        raise broken(path, "is too short to be an idx file", name)
    magic, *sizes = header.unpack(head)
    if magic != 0x0800 + len(shape):
        raise broken(
            path,
            f"begins with the magic number 0x{magic:08x} instead of 0x{0x0800 + len(shape):08x}",
            name,
        )
    if tuple(sizes) != shape:
        raise broken(path, f"holds an array of {_times(sizes)} instead of {_times(shape)}", name)
    if len(body) != count:
        surplus = "more" if len(body) > count else "fewer"
        raise broken(path, f"holds {surplus} than the {count:,} bytes it announces", name)
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _times(sizes: tuple[int, ...] | list[int]) -> str:
    return "×".join(str(size) for size in sizes)
