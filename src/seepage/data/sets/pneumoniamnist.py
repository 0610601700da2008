"""PneumoniaMNIST: children's chest X-rays, normal or pneumonia, 28×28 bytes (MedMNIST v2)."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.readers.npz import read_npz
from seepage.data.structures import Images, ImageSet

_COUNTS = {"train": 4_708, "val": 524, "test": 624}


def load_pneumoniamnist(
    folder: str | os.PathLike[str] | None = None, *, download: bool = True
) -> ImageSet:
    """Read ``pneumoniamnist.npz`` (six arrays, ``train_images`` and so on), fetching it if missing.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether a missing file may be fetched.
    """
    path = locate("pneumoniamnist", folder, download=download) / "pneumoniamnist.npz"
    shapes: dict[str, tuple[int | None, ...]] = {}
    for split, count in _COUNTS.items():
        shapes[f"{split}_images"] = (count, 28, 28)
        shapes[f"{split}_labels"] = (count, 1)
    arrays = read_npz(path, shapes, "pneumoniamnist")
    for split in _COUNTS:
        if arrays[f"{split}_labels"].max() > 1:
            what = f"holds labels other than 0 and 1 in {split}_labels"
            raise broken(path, what, "pneumoniamnist")
    return ImageSet(
        name="pneumoniamnist",
        train=_split(arrays, "train"),
        validation=_split(arrays, "val"),
        test=_split(arrays, "test"),
        classes=("normal", "pneumonia"),
    )


def _split(arrays: dict[str, NDArray[np.uint8]], split: str) -> Images:
    return Images(arrays[f"{split}_images"], arrays[f"{split}_labels"][:, 0].astype(np.int64))
