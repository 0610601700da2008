"""CIFAR-10 in its binary layout: per image one byte of class, then 3×32×32 bytes of colour."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.structures import Images, ImageSet

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_ROWS = 10_000
_RECORD = 1 + 3 * 32 * 32


def load_cifar10(
    folder: str | os.PathLike[str] | None = None, *, download: bool = True
) -> ImageSet:
    """Read CIFAR-10 from ``cifar-10-batches-bin``, fetching the archive where it is missing.

    Pixels come in height, width, channel order: ``(50000, 32, 32, 3)`` and ``(10000, 32, 32, 3)``.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether missing files may be fetched.
    """
    batches = locate("cifar10", folder, download=download) / "cifar-10-batches-bin"
    return ImageSet(
        name="cifar10",
        train=_read([batches / f"data_batch_{k}.bin" for k in range(1, 6)]),
        test=_read([batches / "test_batch.bin"]),
        classes=CLASSES,
    )


def _read(paths: Sequence[Path]) -> Images:
    pixels = np.empty((len(paths) * _ROWS, 32, 32, 3), dtype=np.uint8)
    labels = np.empty(len(paths) * _ROWS, dtype=np.int64)
    for k, path in enumerate(paths):
        size = path.stat().st_size
        if size != _ROWS * _RECORD:
            raise broken(
                path,
                f"has {size:,} bytes where a CIFAR-10 batch has {_ROWS * _RECORD:,}",
                "cifar10",
            )
        records = np.fromfile(path, dtype=np.uint8).reshape(_ROWS, _RECORD)
        if records[:, 0].max() > 9:
            raise broken(path, f"holds the class {records[:, 0].max()} of 0 to 9", "cifar10")
        rows = slice(k * _ROWS, (k + 1) * _ROWS)
        labels[rows] = records[:, 0]
        pixels[rows] = records[:, 1:].reshape(_ROWS, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(pixels, labels)
