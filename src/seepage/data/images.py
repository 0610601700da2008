"""Sets of small images in the splits of their publishers: MNIST, CIFAR-10, PneumoniaMNIST."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seepage.data.obtain import Folder, locate
from seepage.data.readers import read_idx, read_npz
from seepage.data.registry import broken
from seepage.data.structures import Images, ImageSet


def load_mnist(folder: Folder = None, *, download: bool = True) -> ImageSet:
    """Read MNIST from the publisher's four ``.gz`` files, fetching them where they are missing.

    60,000 training and 10,000 test images of handwritten digits, ``(n, 28, 28)`` bytes.
    Where it is looked for, and whether it may be fetched, is as for :func:`locate`.
    """
    home = locate("mnist", folder, download=download)
    return ImageSet(
        name="mnist",
        train=_read_digits(home, "train", 60_000),
        test=_read_digits(home, "t10k", 10_000),
        classes=tuple("0123456789"),
    )


def _read_digits(home: Path, prefix: str, count: int) -> Images:
    label_file = home / f"{prefix}-labels-idx1-ubyte.gz"
    pixels = read_idx(home / f"{prefix}-images-idx3-ubyte.gz", (count, 28, 28), "mnist")
    labels = read_idx(label_file, (count,), "mnist")
    if labels.max() > 9:
        raise broken(label_file, f"holds the label {labels.max()}, which is no digit", "mnist")
    return Images(pixels, labels.astype(np.int64))


_OBJECTS = "airplane automobile bird cat deer dog frog horse ship truck"
_BATCH = 10_000  # images in a file
_BYTES = 1 + 3 * 32 * 32


def load_cifar10(folder: Folder = None, *, download: bool = True) -> ImageSet:
    """Read CIFAR-10 from ``cifar-10-batches-bin``, fetching the archive where it is missing.

    Per image the file has one byte of class, then 3×32×32 bytes of colour; here pixels come in
    height, width, channel order: ``(50000, 32, 32, 3)`` and ``(10000, 32, 32, 3)``.
    Where it is looked for, and whether it may be fetched, is as for :func:`locate`.
    """
    batches = locate("cifar10", folder, download=download) / "cifar-10-batches-bin"
    return ImageSet(
        name="cifar10",
        train=_read_batches([batches / f"data_batch_{k}.bin" for k in range(1, 6)]),
        test=_read_batches([batches / "test_batch.bin"]),
        classes=tuple(_OBJECTS.split()),
    )


def _read_batches(paths: Sequence[Path]) -> Images:
    pixels = np.empty((len(paths) * _BATCH, 32, 32, 3), dtype=np.uint8)
    labels = np.empty(len(paths) * _BATCH, dtype=np.int64)
    for k, path in enumerate(paths):
        size = path.stat().st_size
        if size != _BATCH * _BYTES:
            raise broken(
                path,
                f"has {size:,} bytes where a CIFAR-10 batch has {_BATCH * _BYTES:,}",
                "cifar10",
            )
        records = np.fromfile(path, dtype=np.uint8).reshape(_BATCH, _BYTES)
        if records[:, 0].max() > 9:
            raise broken(path, f"holds the class {records[:, 0].max()} of 0 to 9", "cifar10")
        rows = slice(k * _BATCH, (k + 1) * _BATCH)
        labels[rows] = records[:, 0]
        pixels[rows] = records[:, 1:].reshape(_BATCH, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(pixels, labels)


_X_RAYS = {"train": 4_708, "val": 524, "test": 624}


def load_pneumoniamnist(folder: Folder = None, *, download: bool = True) -> ImageSet:
    """Read ``pneumoniamnist.npz`` (six arrays, ``train_images`` and so on), fetching it if missing.

    Children's chest X-rays, normal or with pneumonia, 28×28 bytes (MedMNIST v2).
    Where it is looked for, and whether it may be fetched, is as for :func:`locate`.
    """
    path = locate("pneumoniamnist", folder, download=download) / "pneumoniamnist.npz"
    shapes: dict[str, tuple[int | None, ...]] = {}
    for split, count in _X_RAYS.items():
        shapes[f"{split}_images"] = (count, 28, 28)
        shapes[f"{split}_labels"] = (count, 1)
    arrays = read_npz(path, shapes, "pneumoniamnist")
    for split in _X_RAYS:
        if arrays[f"{split}_labels"].max() > 1:
            what = f"holds labels other than 0 and 1 in {split}_labels"
            raise broken(path, what, "pneumoniamnist")
    return ImageSet(
        name="pneumoniamnist",
        train=_x_rays(arrays, "train"),
        validation=_x_rays(arrays, "val"),
        test=_x_rays(arrays, "test"),
        classes=("normal", "pneumonia"),
    )


def _x_rays(arrays: dict[str, NDArray[np.uint8]], split: str) -> Images:
    return Images(arrays[f"{split}_images"], arrays[f"{split}_labels"][:, 0].astype(np.int64))
