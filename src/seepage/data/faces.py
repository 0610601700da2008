"""Sets of faces with attributes: Labeled Faces in the Wild, CelebA, PubFig."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seepage.data.obtain import Folder, locate
from seepage.data.readers import read_csv, read_images, read_npz
from seepage.data.registry import broken
from seepage.data.structures import Faces, Records
from seepage.errors import InputError

_LFW_LEADING = ("image", "person", "imagenum", "male_manual", "smile_manual")
_LFW_TEXT = ("image", "person", "pred_df_race", "pred_df_gender", "pred_df_emotion")


def load_lfw(folder: Folder = None) -> Faces:
    """Read ``lfw_62x47.npz`` and ``lfw_attributes.csv``, which have to be put in place by hand.

    ``male_manual`` and ``smile_manual`` are human labels (1, 0 or NaN); the ``pred_*`` columns
    are another model's scores, from 0 to 1 except for ``pred_df_*_prob``, from 0 to 100.
    They are looked for as by :func:`locate`.
    """
    home = locate("lfw", folder, download=False)
    image_file, table_file = home / "lfw_62x47.npz", home / "lfw_attributes.csv"
    attributes = read_csv(
        table_file, "lfw", leading=_LFW_LEADING, further="pred_", text=_LFW_TEXT, allow_missing=True
    )
    images = read_npz(image_file, {"images": (None, 62, 47, 3)}, "lfw")["images"]
    if len(images) != len(attributes):
        what = f"has {len(attributes):,} rows for {len(images):,} images"
        raise broken(table_file, what, "lfw")
    return Faces(images, attributes)


_CELEBA_ATTRIBUTES, _CELEBA_IDENTITIES = "list_attr_celeba.txt", "identity_CelebA.txt"


def load_celeba(
    folder: Folder = None,
    *,
    count: int | None = 15_000,
    size: tuple[int, int] = (64, 64),
) -> Faces:
    """Read the aligned images and ``list_attr_celeba.txt`` as their publisher packs them.

    Faces of celebrities with forty attributes each (Liu et al. 2015), 1 or 0 (the file has −1).
    With ``identity_CelebA.txt`` the column ``person`` says who it is; without, it is empty.

    Parameters
    ----------
    folder
        As for :func:`locate`.
    count
        How many images to read, from the first; paper 003 uses 15,000. ``None`` for all.
    size
        Height and width to which the images, 218×178, are resized.
    """
    home = locate("celeba", folder, download=False)
    names, files, values = _celeba_attributes(home / _CELEBA_ATTRIBUTES)
    if count is not None:
        if not 1 <= count <= len(files):
            raise InputError(f"count must lie between 1 and {len(files):,}, not {count}.")
        files, values = files[:count], values[:count]
    person = _celeba_identities(home / _CELEBA_IDENTITIES, files)
    images = read_images([home / "img_align_celeba" / name for name in files], size, "celeba")
    columns = {"image": np.asarray(files), "person": person}
    return Faces(images, Records(columns | {n: values[:, j] for j, n in enumerate(names)}))


def _celeba_attributes(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Return the attributes' names, the images' names, and a table of zeros and ones.

    The first line is the number of images, the second the names of the attributes; every further
    line is an image's name and its attributes, −1 or 1, with blanks between.
    """
    lines = _lines(path, "celeba")
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


def _celeba_identities(path: Path, files: list[str]) -> np.ndarray:
    if not path.is_file():
        return np.full(len(files), "")
    known = dict(line.split() for line in _lines(path, "celeba") if len(line.split()) == 2)
    missing = [name for name in files if name not in known]
    if missing:
        raise broken(path, f"does not say who is on {missing[0]}", "celeba")
    return np.asarray([known[name] for name in files])


_PUBFIG_ATTRIBUTES, _PUBFIG_IMAGES = "pubfig_attributes.txt", "pubfig83"
_PUBFIG_KINDS = (".jpg", ".jpeg", ".png")


def load_pubfig(folder: Folder = None, *, size: tuple[int, int] = (100, 100)) -> Faces:
    """Read the cropped images of PubFig83 with the scores of ``pubfig_attributes.txt``.

    Faces of public figures with 73 scores each (Kumar et al. 2009). The scores are another model's
    (above zero: the attribute is there), so their columns are named ``pred_…`` and must be called
    predicted labels. Images without scores are left out.

    Parameters
    ----------
    folder
        As for :func:`locate`.
    size
        Height and width to which the images are brought; 100×100 in paper 003.
    """
    home = locate("pubfig", folder, download=False)
    names, scores = _pubfig_scores(home / _PUBFIG_ATTRIBUTES)
    found = [(path, key) for path, key in _pubfig_images(home / _PUBFIG_IMAGES) if key in scores]
    if not found:
        what = f"has no scores for any image in {_PUBFIG_IMAGES}"
        raise broken(home / _PUBFIG_ATTRIBUTES, what, "pubfig")
    images = read_images([path for path, _ in found], size, "pubfig")
    values = np.array([scores[key] for _, key in found])
    columns = {
        "image": np.asarray([f"{person}_{number}" for _, (person, number) in found]),
        "person": np.asarray([person for _, (person, _) in found]),
        "imagenum": np.asarray([float(number) for _, (_, number) in found]),
    }
    scored = {f"pred_{name.replace(' ', '_')}": values[:, j] for j, name in enumerate(names)}
    return Faces(images, Records(columns | scored))


def _pubfig_scores(path: Path) -> tuple[list[str], dict[tuple[str, int], list[float]]]:
    """Return the attributes' names, and the scores by person and number of the image.

    Tabs separate fields; the second line, behind a ``#``, names them: person, imagenum, attributes.
    """
    lines = _lines(path, "pubfig")
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


def _pubfig_images(folder: Path) -> list[tuple[Path, tuple[str, int]]]:
    """Return the images, a folder for each person and a file named by the image's number."""
    found = []
    for path in sorted(folder.glob("*/*")):
        if path.suffix.lower() in _PUBFIG_KINDS and path.stem.isdigit():
            found.append((path, (_person(path.parent.name), int(path.stem))))
    return found


def _person(name: str) -> str:
    return name.replace("_", " ").strip()


def _lines(path: Path, name: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise broken(path, f"is not a text file ({error})", name) from error
