"""Reads publishers' file formats; an invalid file raises an error that states the reason."""

from __future__ import annotations

import csv
import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seepage.data.registry import broken
from seepage.data.structures import Records


def read_idx(path: Path, shape: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    """Return the array in ``path``, which must have exactly this ``shape``.

    The gzipped idx format of MNIST starts with the magic number ``0x00 0x00 0x08 ndim`` (0x08:
    unsigned bytes). The sizes follow as big-endian 32-bit integers, and then the bytes of the
    array.
    """
    header = struct.Struct(f">{1 + len(shape)}I")
    count = math.prod(shape)
    try:
        with gzip.open(path, "rb") as stream:
            head = stream.read(header.size)
            # Asking for one byte more than announced reveals a longer file.
            body = stream.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise broken(path, f"is truncated or is not a gzip file ({error})", name) from error
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
        raise broken(path, f"contains an array of {_times(sizes)} instead of {_times(shape)}", name)
    if len(body) != count:
        surplus = "more" if len(body) > count else "fewer"
        raise broken(path, f"contains {surplus} than the {count:,} bytes its header states", name)
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _times(sizes: tuple[int, ...] | list[int]) -> str:
    return "×".join(str(size) for size in sizes)


def read_npz(
    path: Path, shapes: Mapping[str, tuple[int | None, ...]], name: str
) -> dict[str, NDArray[np.uint8]]:
    """Return arrays from a NumPy archive; pickled objects raise an error.

    Each array must contain bytes and have the given shape (``None`` allows any size).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in shapes if f"{key}.npy" in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise broken(path, f"is truncated or is not a NumPy archive ({error})", name) from error
    except ValueError as error:  # among them NumPy's refusal to unpickle
        raise broken(path, f"contains objects that are not arrays ({error})", name) from error
    missing = [key for key in shapes if key not in found]
    if missing:
        what = f"lacks the array{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise broken(path, what, name)
    for key, shape in shapes.items():
        array = found[key]
        fits = array.ndim == len(shape) and all(
            want in (None, size) for want, size in zip(shape, array.shape, strict=True)
        )
        if array.dtype != np.uint8 or not fits:
            wanted = "×".join("n" if size is None else str(size) for size in shape)
            have = "×".join(str(size) for size in array.shape)
            what = f"contains {have} {array.dtype} in {key} instead of {wanted} uint8"
            raise broken(path, what, name)
    return found


def read_csv(
    path: Path,
    name: str,
    *,
    leading: Sequence[str],
    further: str | None,
    text: Sequence[str],
    allow_missing: bool = False,
) -> Records:
    """Return the columns of ``path``, all numeric except those named in ``text``.

    The header must begin with the columns ``leading``. The names of all other columns begin with
    ``further`` (``None``: no other columns). With ``allow_missing``, a field may be empty, which
    becomes NaN in a numeric column and ``""`` in a text column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            header, *rows = list(csv.reader(stream, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise broken(path, f"is not a comma-separated text file ({error})", name) from error
    if header[: len(leading)] != list(leading) or not all(
        further is not None and title.startswith(further) for title in header[len(leading) :]
    ):
        expected = ",".join(leading) + ("" if further is None else f",{further}…")
        raise broken(path, f"has the header {','.join(header)!r} instead of {expected!r}", name)
    if not rows:
        raise broken(path, "has no rows", name)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            what = f"has {len(row)} fields instead of {len(header)} in line {number}"
            raise broken(path, what, name)
    columns = {}
    for title, values in zip(header, zip(*rows, strict=True), strict=True):
        if not allow_missing and "" in values:
            what = f"has no value in column {title} of line {values.index('') + 2}"
            raise broken(path, what, name)
        if title in text:
            columns[title] = np.asarray(values)
            continue
        try:
            columns[title] = np.asarray([value or "nan" for value in values], dtype=np.float64)
        except ValueError as error:
            raise broken(path, f"has text in the numeric column {title} ({error})", name) from error
    return Records(columns)


Box = tuple[int, int, int, int]  # left, upper, right, lower


def read_images(
    paths: Sequence[Path],
    size: tuple[int, int],
    name: str,
    boxes: Sequence[Box | None] | None = None,
) -> NDArray[np.uint8]:
    """Return colour images, ``(n, height, width, 3)``, resized if necessary.

    Images that have a box (left, upper, right, lower) are cropped to it first.
    """
    from PIL import Image, UnidentifiedImageError

    from seepage.support.chunks import progress  # loads libraries that bytes do not need

    out = np.empty((len(paths), *size, 3), dtype=np.uint8)
    for k, path in enumerate(progress(paths, f"reading {name}")):
        try:
            with Image.open(path) as image:
                whole = image.convert("RGB")
        except FileNotFoundError as error:
            raise broken(path, "is missing", name) from error
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise broken(path, f"is truncated or is not an image ({error})", name) from error
        box = None if boxes is None else boxes[k]
        colour = whole if box is None else whole.crop(box)
        if colour.size != size[::-1]:
            colour = colour.resize(size[::-1], Image.Resampling.BILINEAR)
        out[k] = np.asarray(colour)
    return out
