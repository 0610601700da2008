"""CelebA: aligned faces of celebrities with forty attributes each (Liu et al. 2015)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.readers.image_files import read_images
from seepage.data.structures import Faces, Records
from seepage.errors import InputError

_ATTRIBUTES, _IDENTITIES = "list_attr_celeba.txt", "identity_CelebA.txt"


def load_celeba(
    folder: str | os.PathLike[str] | None = None,
    *,
    count: int | None = 15_000,
    size: tuple[int, int] = (64, 64),
) -> Faces:
    """Read the aligned images and ``list_attr_celeba.txt`` as their publisher packs them.

    Attributes are 1 or 0 (the file has −1). With ``identity_CelebA.txt`` the column ``person`` says
    who it is; without, it is empty.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    count
        How many images to read, from the first; paper 003 uses 15,000. ``None`` for all.
    size
        Height and width to which the images, 218×178, are resized.
    """
    home = locate("celeba", folder, download=False)
    names, files, values = _read_attributes(home / _ATTRIBUTES)
    if count is not None:
        if not 1 <= count <= len(files):
            raise InputError(f"count must lie between 1 and {len(files):,}, not {count}.")
        files, values = files[:count], values[:count]
    person = _read_identities(home / _IDENTITIES, files)
    images = read_images([home / "img_align_celeba" / name for name in files], size, "celeba")
    columns = {"image": np.asarray(files), "person": person}
    return Faces(images, Records(columns | {n: values[:, j] for j, n in enumerate(names)}))


def _read_attributes(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Return the attributes' names, the images' names, and a table of zeros and ones.

    The first line is the number of images, the second the names of the attributes; every further
    line is an image's name and its attributes, −1 or 1, with blanks between.
    """
    lines = _lines(path)
    if len(lines) < 3 or not lines[0].strip().isdigit():
        raise broken(path, "does not begin with the number of images", "celeba")
    names, rows = lines[1].split(), [line.split() for line in lines[2:]]
    if int(lines[0]) != len(rows):
        what = f"has {len(rows):,} images instead of the {int(lines[0]):,} it announces"
        raise broken(path, what, "celeba")
    for number, row in enumerate(rows, start=3):
        if len(row) != len(names) + 1 or not set(row[1:]) <= {"-1", "1"}:
            what = f"has something other than {len(names)} values of −1 or 1 in line {number}"
            raise broken(path, what, "celeba")
    values = np.array([row[1:] for row in rows], dtype=float)
    return names, [row[0] for row in rows], (values > 0).astype(float)


def _read_identities(path: Path, files: list[str]) -> np.ndarray:
    if not path.is_file():
        return np.full(len(files), "")
    known = dict(line.split() for line in _lines(path) if len(line.split()) == 2)
    missing = [name for name in files if name not in known]
    if missing:
        raise broken(path, f"does not say who is on {missing[0]}", "celeba")
    return np.asarray([known[name] for name in files])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise broken(path, f"is not a text file ({error})", "celeba") from error
