"""The images that the layers experiment can run on: faces, CIFAR-10, or a folder with a table.

Every set has images of one size and labels of 0 and 1: an attribute above its cut, where the cut
belongs to the set (LFW's scores are from 0 to 1, PubFig's above or below 0).
``python -m reproduction.layers.image_sets FILE`` packs LFW and CIFAR-10 for another machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reproduction.layers.packed import STORED, pack, unpack
from seepage.data import Faces, Records, load_celeba, load_cifar10, load_lfw, load_pubfig
from seepage.data.readers import read_images
from seepage.errors import InputError, nearest

TABLE = "labels.csv"  # of a folder of images


class CutAttribute(NamedTuple):
    """An attribute, and the score above which an image has it."""

    column: str
    cut: float = 0.5


@dataclass(frozen=True)
class ImageSource:
    """How images are read, and which labels they have.

    Parameters
    ----------
    load
        Returns the images and their attributes, given the data folder.
    labels
        The attribute of each label.
    """

    load: Callable[[str | None], Faces]
    labels: Mapping[str, CutAttribute]


_VEHICLES = ("airplane", "automobile", "ship", "truck")
_CLASSES = (*_VEHICLES[:2], "bird", "cat", "deer", "dog", "frog", "horse", *_VEHICLES[2:])


def _cifar10(folder: str | None) -> Faces:
    """Return the training images, with the task (animal), a crossing property, and the classes."""
    train = load_cifar10(folder, download=False).train
    columns = {"animal": ~np.isin(train.labels, [_CLASSES.index(name) for name in _VEHICLES])}
    columns["flies"] = np.isin(train.labels, [_CLASSES.index(n) for n in ("airplane", "bird")])
    columns |= {name: train.labels == k for k, name in enumerate(_CLASSES)}
    table = {name: values.astype(float) for name, values in columns.items()}
    return Faces(train.pixels, Records({"person": np.full(len(train.labels), "")} | table))


_PUBFIG = {
    "Gender": CutAttribute("pred_Male", 0.0),
    "Glasses": CutAttribute("pred_Eyeglasses", 0.0),
    "Age": CutAttribute("pred_Youth", 0.0),
    "Hair": CutAttribute("pred_Gray_Hair", 0.0),
}
SOURCES = {
    # Gender is a human label; the others are another model's scores.
    "lfw": ImageSource(
        load_lfw,
        {
            "Gender": CutAttribute("male_manual"),
            "Glasses": CutAttribute("pred_Eyeglasses"),
            "Age": CutAttribute("pred_Young"),
            "Hair": CutAttribute("pred_Gray_Hair"),
        },
    ),
    "celeba": ImageSource(
        load_celeba,
        {
            "Gender": CutAttribute("Male"),
            "Glasses": CutAttribute("Eyeglasses"),
            "Age": CutAttribute("Young"),
            "Hair": CutAttribute("Gray_Hair"),
        },
    ),
    "pubfig": ImageSource(load_pubfig, _PUBFIG),
    "pubfig83": ImageSource(partial(load_pubfig, join="number"), _PUBFIG),
    "cifar10": ImageSource(
        _cifar10,
        {name.capitalize(): CutAttribute(name) for name in ("animal", "flies", *_CLASSES)},
    ),
}


def read_folder(folder: Path, size: tuple[int, int]) -> Faces:
    """Return the images of a folder, named in the column ``image`` of its ``labels.csv``.

    ``person`` says whom an image shows, if known; all other columns are numbers, or empty where
    nothing is known.
    """
    import pyarrow.csv

    try:
        table = pyarrow.csv.read_csv(folder / TABLE)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / TABLE} cannot be read as a table ({error}).") from None
    if "image" not in table.column_names:
        raise InputError(f"{folder / TABLE} has no column 'image' with the names of the files.")
    names = [str(name) for name in table["image"].to_pylist()]
    columns: dict[str, np.ndarray] = {"image": np.asarray(names)}
    for name in table.column_names:
        values = table[name].to_pylist()
        if name == "person":
            columns[name] = np.asarray(["" if value is None else str(value) for value in values])
        elif name != "image":
            try:
                columns[name] = np.array([np.nan if v is None else float(v) for v in values])
            except (TypeError, ValueError):
                raise InputError(
                    f"Column {name!r} of {folder / TABLE} holds text; give numbers, such as 0 and "
                    "1, or drop the column."
                ) from None
    columns.setdefault("person", np.full(len(names), ""))
    return Faces(
        read_images([folder / name for name in names], size, folder.name), Records(columns)
    )


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images on a device, with labels (NaN where there is none) and the people's numbers."""

    images: Tensor
    labels: Mapping[str, np.ndarray]
    people: np.ndarray

    @staticmethod
    def of(faces: Faces, labels: Mapping[str, CutAttribute], device: str) -> LabelledImages:
        """Read the labels, and move the images to the device.

        An image without a person counts as a person of its own.
        """
        read = {}
        for name, (column, cut) in labels.items():
            score = np.asarray(faces.attributes[column], dtype=float)
            read[name] = np.where(np.isnan(score), np.nan, score > cut)
        named = np.asarray(faces.attributes["person"])
        alone = np.array([f"image {k}" for k in range(len(named))])
        _, people = np.unique(np.where(named == "", alone, named), return_inverse=True)
        return LabelledImages(torch.from_numpy(faces.images).to(device), read, people)

    @staticmethod
    def load(
        name: str,
        folder: str | None,
        device: str,
        size: tuple[int, int] = (64, 64),
        count: int | None = None,
    ) -> LabelledImages:
        """Return a named set, or the images of a folder, which are resized to ``size``.

        ``folder`` may be a file of :mod:`reproduction.layers.packed`; ``count`` keeps the first
        images only.
        """
        if name in SOURCES:
            source = SOURCES[name]
            packed = folder is not None and Path(folder).is_file()
            faces = unpack(Path(str(folder)), name) if packed else source.load(folder)
            return LabelledImages.of(_first(faces, count), source.labels, device)
        if not Path(name).is_dir():
            raise InputError(
                f"There is no image set or folder {name!r}{nearest(name, SOURCES)}; take "
                f"{', '.join(SOURCES)} or a folder of images with {TABLE}."
            )
        faces = _first(read_folder(Path(name), size), count)
        own = [n for n in faces.attributes.columns if n not in ("image", "person")]
        return LabelledImages.of(faces, {n: CutAttribute(n) for n in own}, device)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.images.shape[1]), int(self.images.shape[2])

    def inputs(self, rows: np.ndarray) -> Tensor:
        """Return some images as the networks take them: channels first, from −1 to 1."""
        chosen = self.images[torch.from_numpy(rows).to(self.images.device)]
        return chosen.permute(0, 3, 1, 2).float() / 127.5 - 1


def _first(faces: Faces, count: int | None) -> Faces:
    """Return the first images, or all."""
    if count is None:
        return faces
    if not 1 <= count <= len(faces):
        raise InputError(f"There are {len(faces):,} images; choose from 1 to that many.")
    columns = {name: values[:count] for name, values in faces.attributes.columns.items()}
    return Faces(faces.images[:count], Records(columns))


def main(arguments: Sequence[str]) -> int:
    """Pack LFW and CIFAR-10 into one file."""
    (path,) = map(Path, arguments)
    chosen = {name: SOURCES[name] for name in STORED}
    path.parent.mkdir(parents=True, exist_ok=True)
    pack(
        path,
        {
            name: (source.load(None), [label.column for label in source.labels.values()])
            for name, source in chosen.items()
        },
    )
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
