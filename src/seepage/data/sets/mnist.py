"""MNIST: 60,000 training and 10,000 test images of handwritten digits, 28×28 bytes each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.readers.idx import read_idx
from seepage.data.structures import Images, ImageSet


def load_mnist(folder: str | os.PathLike[str] | None = None, *, download: bool = True) -> ImageSet:
    """Read MNIST from the publisher's four ``.gz`` files, fetching them where they are missing.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether missing files may be fetched.
    """
    home = locate("mnist", folder, download=download)
    return ImageSet(
        name="mnist",
        train=_read_split(home, "train", 60_000),
        test=_read_split(home, "t10k", 10_000),
        classes=tuple("0123456789"),
    )


def _read_split(home: Path, prefix: str, count: int) -> Images:
    label_file = home / f"{prefix}-labels-idx1-ubyte.gz"
    pixels = read_idx(home / f"{prefix}-images-idx3-ubyte.gz", (count, 28, 28), "mnist")
    labels = read_idx(label_file, (count,), "mnist")
    if labels.max() > 9:
        raise broken(label_file, f"holds the label {labels.max()}, which is no digit", "mnist")
    return Images(pixels, labels.astype(np.int64))
