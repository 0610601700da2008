"""PubFig: faces of public figures with 73 attribute scores each (Kumar et al. 2009)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.readers.image_files import read_images
from seepage.data.structures import Faces, Records

_ATTRIBUTES, _IMAGES = "pubfig_attributes.txt", "pubfig83"
_KINDS = (".jpg", ".jpeg", ".png")


def load_pubfig(
    folder: str | os.PathLike[str] | None = None, *, size: tuple[int, int] = (100, 100)
) -> Faces:
    """Read the cropped images of PubFig83 with the scores of ``pubfig_attributes.txt``.

    The scores are another model's (above zero: the attribute is there), so their columns are named
    ``pred_…`` and must be called predicted labels. Images without scores are left out.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    size
        Height and width to which the images are brought; 100×100 in paper 003.
    """
    home = locate("pubfig", folder, download=False)
    names, scores = _read_attributes(home / _ATTRIBUTES)
    found = [(path, key) for path, key in _images(home / _IMAGES) if key in scores]
    if not found:
        what = f"has no scores for any image in {_IMAGES}"
        raise broken(home / _ATTRIBUTES, what, "pubfig")
    images = read_images([path for path, _ in found], size, "pubfig")
    values = np.array([scores[key] for _, key in found])
    columns = {
        "image": np.asarray([f"{person}_{number}" for _, (person, number) in found]),
        "person": np.asarray([person for _, (person, _) in found]),
        "imagenum": np.asarray([float(number) for _, (_, number) in found]),
    }
    scored = {f"pred_{name.replace(' ', '_')}": values[:, j] for j, name in enumerate(names)}
    return Faces(images, Records(columns | scored))


def _read_attributes(path: Path) -> tuple[list[str], dict[tuple[str, int], list[float]]]:
    """Return the attributes' names, and the scores by person and number of the image.

    Tabs separate fields; the second line, behind a ``#``, names them: person, imagenum, attributes.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise broken(path, f"is not a text file ({error})", "pubfig") from error
    heads = [line.lstrip("#").strip("\t ").split("\t") for line in lines if line.startswith("#")]
    header = next((head for head in heads if head[:2] == ["person", "imagenum"]), None)
    if header is None or len(header) < 3:
        raise broken(path, "has no line '# person imagenum …' with tabs between", "pubfig")
    scores = {}
    for number, line in enumerate(lines, start=1):
        if line.startswith("#") or not line.strip():
            continue
        fields = line.split("\t")
        try:
            if len(fields) != len(header):
                raise ValueError(f"{len(fields)} fields instead of {len(header)}")
            scores[_person(fields[0]), int(fields[1])] = [float(value) for value in fields[2:]]
        except ValueError as error:
            raise broken(path, f"is wrong in line {number} ({error})", "pubfig") from error
    return header[2:], scores


def _images(folder: Path) -> list[tuple[Path, tuple[str, int]]]:
    """Return the images, a folder for each person and a file named by the image's number."""
    found = []
    for path in sorted(folder.glob("*/*")):
        if path.suffix.lower() in _KINDS and path.stem.isdigit():
            found.append((path, (_person(path.parent.name), int(path.stem))))
    return found


def _person(name: str) -> str:
    return name.replace("_", " ").strip()
