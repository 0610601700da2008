"""Read image files into one array of bytes, all of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seepage.data.problems import broken
from seepage.support.chunks import progress


def read_images(paths: Sequence[Path], size: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """Return colour images, ``(n, height, width, 3)``, resized where they have another size.

    Parameters
    ----------
    paths
        The files.
    size
        Height and width.
    name
        The data set they belong to.
    """
    from PIL import Image, UnidentifiedImageError

    out = np.empty((len(paths), *size, 3), dtype=np.uint8)
    for k, path in enumerate(progress(paths, f"reading {name}")):
        try:
            with Image.open(path) as image:
                colour = image.convert("RGB")
        except FileNotFoundError as error:
            raise broken(path, "is missing", name) from error
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise broken(path, f"is cut off or is not an image ({error})", name) from error
        if colour.size != size[::-1]:
            colour = colour.resize(size[::-1], Image.Resampling.BILINEAR)
        out[k] = np.asarray(colour)
    return out
