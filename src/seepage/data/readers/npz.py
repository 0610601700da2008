"""Read arrays of bytes from a NumPy archive, never unpickling anything."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seepage.data.problems import broken


def read_npz(
    path: Path, shapes: Mapping[str, tuple[int | None, ...]], name: str
) -> dict[str, NDArray[np.uint8]]:
    """Return the named arrays; each must hold bytes in the given shape (``None``: any size)."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in shapes if f"{key}.npy" in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise broken(path, f"is cut off or is not a NumPy archive ({error})", name) from error
    except ValueError as error:  # among them NumPy's refusal to unpickle
        raise broken(path, f"holds something other than plain arrays ({error})", name) from error
    missing = [key for key in shapes if key not in found]
    if missing:
        raise broken(path, f"lacks the arrays {', '.join(missing)}", name)
    for key, shape in shapes.items():
        array = found[key]
        fits = array.ndim == len(shape) and all(
            want in (None, size) for want, size in zip(shape, array.shape, strict=True)
        )
        if array.dtype != np.uint8 or not fits:
            wanted = "×".join("n" if size is None else str(size) for size in shape)
            have = "×".join(str(size) for size in array.shape)
            what = f"holds {have} {array.dtype} in {key} instead of {wanted} uint8"
            raise broken(path, what, name)
    return found
