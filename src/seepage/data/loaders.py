"""Loads published data sets: tables of people, small images, and faces.

The tables are UCI Adult, IWPC and the data sets bundled with scikit-learn; the images are MNIST,
CIFAR-10 and PneumoniaMNIST; the faces are Labeled Faces in the Wild, CelebA and PubFig.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seepage.data.obtain import Folder, locate
from seepage.data.readers import Box, read_csv, read_idx, read_images, read_npz
from seepage.data.registry import DATA_SETS, broken
from seepage.data.structures import Faces, Images, ImageSet, Records, Tabular
from seepage.errors import InputError, nearest
from seepage.support.number_check import check_choice

_CONTINUOUS = "age fnlwgt education-num capital-gain capital-loss hours-per-week"
_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
)
ADULT_CONTINUOUS, ADULT_COLUMNS = tuple(_CONTINUOUS.split()), tuple(_COLUMNS.split())


@dataclass(frozen=True, eq=False)
class Adult:
    """The rows of both files, with unknown values as ``"?"``; the target is ``income``."""

    train: Records
    test: Records


def load_adult(folder: Folder = None, *, download: bool = True) -> Adult:
    """Read ``adult.data`` and ``adult.test``, fetching them if they are missing.

    The records are people in the 1994 census; the target is whether they earn more than $50,000 a
    year. The labels in the test file end in a full stop, which is removed. :func:`locate` finds the
    folder or fetches the data.
    """
    home = locate("adult", folder, download=download)
    return Adult(
        train=_read_adult(home / "adult.data", 32_561),
        test=_read_adult(home / "adult.test", 16_281),
    )


def _read_adult(path: Path, count: int) -> Records:
    rows = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            # The test file opens with a line that starts with "|"; both end with an empty one.
            if not text or text.startswith("|"):
                continue
            fields = [field.strip() for field in text.split(",")]
            if len(fields) != len(ADULT_COLUMNS):
                what = f"has {len(fields)} fields instead of {len(ADULT_COLUMNS)} in line {number}"
                raise broken(path, what, "adult")
            fields[-1] = fields[-1].removesuffix(".")
            if fields[-1] not in ("<=50K", ">50K"):
                what = f"has the invalid income {fields[-1]!r} in line {number}"
                raise broken(path, what, "adult")
            rows.append(fields)
    if len(rows) != count:
        raise broken(path, f"has {len(rows):,} records instead of {count:,}", "adult")
    columns = {}
    for name, values in zip(ADULT_COLUMNS, zip(*rows, strict=True), strict=True):
        if name in ADULT_CONTINUOUS:
            try:
                columns[name] = np.asarray(values, dtype=np.float64)
            except ValueError as error:
                raise broken(
                    path, f"has text in the numeric column {name} ({error})", "adult"
                ) from error
        else:
            columns[name] = np.asarray(values)
    return Records(columns)


_IWPC_COLUMNS = "race age height weight amiodarone decr cyp2c9 vkorc1 dose"
# The genotype cyp2c9 looks like a number (11, 12, …) and is a name.
IWPC_NOMINAL = ("cyp2c9", "race", "vkorc1")


def load_iwpc(folder: Folder = None, *, download: bool = True) -> Records:
    """Read ``iwpc-scaled.csv``, fetching it if it is missing; the target is ``dose``.

    The task is to predict the stable warfarin dose of 4,819 patients from clinical and genetic
    traits. Yeom et al. (2018) prepared the data: age, height, weight and dose are standardised.
    :func:`locate` finds the folder or fetches the data.
    """
    path = locate("iwpc", folder, download=download) / "iwpc-scaled.csv"
    records = read_csv(path, "iwpc", leading=_IWPC_COLUMNS.split(), further=None, text=IWPC_NOMINAL)
    if len(records) != 4_819:
        raise broken(path, f"has {len(records):,} rows instead of 4,819", "iwpc")
    return records


def load_bundled(name: str) -> Tabular:
    """Return ``breast_cancer``, ``diabetes``, ``digits``, ``iris`` or ``wine``.

    The Linnerud data set of scikit-learn is not included, because it has three targets.
    """
    known = [data_set.name for data_set in DATA_SETS.values() if data_set.bundled]
    if name not in known:
        raise InputError(
            f"scikit-learn has no bundled data set {name!r}{nearest(name, known)}; choose from "
            f"{', '.join(known)}."
        )
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    return Tabular(
        name=name,
        X=np.ascontiguousarray(bunch.data, dtype=np.float64),
        y=bunch.target,
        names=tuple(str(feature) for feature in bunch.feature_names),
        classes=tuple(str(c) for c in getattr(bunch, "target_names", ())),
    )


def load_mnist(folder: Folder = None, *, download: bool = True) -> ImageSet:
    """Read MNIST from the publisher's four ``.gz`` files, fetching them if they are missing.

    There are 60,000 training and 10,000 test images of handwritten digits, ``(n, 28, 28)`` bytes.
    :func:`locate` finds the folder or fetches the data.
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
        raise broken(
            label_file, f"contains the label {labels.max()}, which is not a digit", "mnist"
        )
    return Images(pixels, labels.astype(np.int64))


_OBJECTS = "airplane automobile bird cat deer dog frog horse ship truck"


def load_cifar10(folder: Folder = None, *, download: bool = True) -> ImageSet:
    """Read CIFAR-10 from ``cifar-10-batches-bin``, fetching the archive if it is missing.

    In the file, an image consists of one class byte and 3×32×32 colour bytes. The arrays are in
    height, width, channel order: ``(50000, 32, 32, 3)`` and ``(10000, 32, 32, 3)``. :func:`locate`
    finds the folder or fetches the data.
    """
    batches = locate("cifar10", folder, download=download) / "cifar-10-batches-bin"
    return ImageSet(
        name="cifar10",
        train=_read_batches([batches / f"data_batch_{k}.bin" for k in range(1, 6)]),
        test=_read_batches([batches / "test_batch.bin"]),
        classes=tuple(_OBJECTS.split()),
    )


def _read_batches(paths: Sequence[Path]) -> Images:
    count, size = 10_000, 1 + 3 * 32 * 32  # images in a file, and bytes of one
    batches = []
    for path in paths:
        if path.stat().st_size != count * size:
            what = f"has {path.stat().st_size:,} bytes, but a CIFAR-10 batch has {count * size:,}"
            raise broken(path, what, "cifar10")
        batches.append(np.fromfile(path, dtype=np.uint8).reshape(count, size))
        if batches[-1][:, 0].max() > 9:
            raise broken(
                path,
                f"contains the class {batches[-1][:, 0].max()}, which is not between 0 and 9",
                "cifar10",
            )
    records = np.concatenate(batches)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(np.ascontiguousarray(pixels), records[:, 0].astype(np.int64))


_X_RAYS = {"train": 4_708, "val": 524, "test": 624}


def load_pneumoniamnist(folder: Folder = None, *, download: bool = True) -> ImageSet:
    """Read ``pneumoniamnist.npz`` (six arrays such as ``train_images``), fetching it if missing.

    The images are children's chest X-rays, normal or with pneumonia, of 28×28 bytes (MedMNIST v2).
    :func:`locate` finds the folder or fetches the data.
    """
    path = locate("pneumoniamnist", folder, download=download) / "pneumoniamnist.npz"
    shapes: dict[str, tuple[int | None, ...]] = {}
    for split, count in _X_RAYS.items():
        shapes[f"{split}_images"] = (count, 28, 28)
        shapes[f"{split}_labels"] = (count, 1)
    arrays = read_npz(path, shapes, "pneumoniamnist")
    for split in _X_RAYS:
        if arrays[f"{split}_labels"].max() > 1:
            what = f"contains labels other than 0 and 1 in {split}_labels"
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


_LFW_LEADING = ("image", "person", "imagenum", "male_manual", "smile_manual")
_LFW_TEXT = ("image", "person", "pred_df_race", "pred_df_gender", "pred_df_emotion")


def load_lfw(folder: Folder = None) -> Faces:
    """Read ``lfw_62x47.npz`` and ``lfw_attributes.csv``, which you must supply yourself.

    ``male_manual`` and ``smile_manual`` are labels by human annotators (1, 0 or NaN). The
    ``pred_*`` columns are another model's scores, from 0 to 1, except for ``pred_df_*_prob``, which
    range from 0 to 100. :func:`locate` finds the folder.
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
    """Read the aligned images and ``list_attr_celeba.txt`` in their published form.

    Each image of a celebrity's face has forty attributes with the values 1 and 0 (Liu et al. 2015);
    the file has −1 instead of 0. The column ``person`` identifies the person; without
    ``identity_CelebA.txt``, it is empty.

    Parameters
    ----------
    folder
        As for :func:`locate`.
    count
        The number of images to read, starting with the first; Mo et al. 2021 use 15,000. ``None``
        reads all images.
    size
        The height and width to which the 218×178 images are resized.
    """
    home = locate("celeba", folder, download=False)
    names, files, values = _celeba_attributes(home / _CELEBA_ATTRIBUTES)
    if count is not None:
        if not 1 <= count <= len(files):
            raise InputError(f"count must be between 1 and {len(files):,}, not {count}.")
        files, values = files[:count], values[:count]
    person = _celeba_identities(home / _CELEBA_IDENTITIES, files)
    images = read_images([home / "img_align_celeba" / name for name in files], size, "celeba")
    columns = {"image": np.asarray(files), "person": person}
    return Faces(images, Records(columns | {n: values[:, j] for j, n in enumerate(names)}))


def _celeba_attributes(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Return the attributes' names, the images' names, and a table of zeros and ones.

    The first line contains the number of images, the second the names of the attributes. Every
    further line contains an image's name and its attributes (−1 or 1), separated by spaces.
    """
    lines = _lines(path, "celeba")
    if len(lines) < 3 or not lines[0].strip().isdigit():
        raise broken(path, "does not begin with the number of images", "celeba")
    names, rows = lines[1].split(), [line.split() for line in lines[2:]]
    if int(lines[0]) != len(rows):
        what = f"lists {len(rows):,} images instead of the stated {int(lines[0]):,}"
        raise broken(path, what, "celeba")
    for number, row in enumerate(rows, start=3):
        if len(row) != len(names) + 1 or not set(row[1:]) <= {"-1", "1"}:
            what = f"does not have {len(names)} values of −1 or 1 in line {number}"
            raise broken(path, what, "celeba")
    values = np.array([row[1:] for row in rows], dtype=float)
    return names, [row[0] for row in rows], (values > 0).astype(float)


def _celeba_identities(path: Path, files: list[str]) -> np.ndarray:
    if not path.is_file():
        return np.full(len(files), "")
    known = dict(line.split() for line in _lines(path, "celeba") if len(line.split()) == 2)
    missing = [name for name in files if name not in known]
    if missing:
        raise broken(path, f"does not identify the person in image {missing[0]}", "celeba")
    return np.asarray([known[name] for name in files])


_PUBFIG_ATTRIBUTES, _PUBFIG_IMAGES = "pubfig_attributes.txt", "pubfig83"
_PUBFIG_ADDRESSES = ("dev_urls.txt", "eval_urls.txt")
_PUBFIG_KINDS = (".jpg", ".jpeg", ".png")
_PersonNumber = tuple[str, int]


def load_pubfig(
    folder: Folder = None,
    *,
    size: tuple[int, int] = (100, 100),
    join: Literal["checksum", "number"] = "checksum",
) -> Faces:
    """Read the images of PubFig with the scores in ``pubfig_attributes.txt``.

    Each face of a public figure has 73 attribute scores (Kumar et al. 2009), computed by another
    model. A score above zero means that the image has the attribute. The columns are therefore
    named ``pred_…`` and must be referred to as predicted labels. Images without a listed checksum
    or number, or without scores, are omitted.

    The score file identifies each image by person and number. Copies of the images are often
    renumbered, and the scores would then belong to other images.

    Parameters
    ----------
    folder
        As for :func:`locate`.
    size
        The height and width to which the images are resized; Mo et al. 2021 use 100×100.
    join
        ``"checksum"`` finds an image's number by its person (the folder's name) and its MD5
        checksum in the publishers' ``dev_urls.txt`` and ``eval_urls.txt``, regardless of its file
        name, and crops it to the face. ``"number"`` takes cropped images (PubFig83) by their file
        names, which must be the publishers' numbers. File names that are numbered 1, 2, 3, …
        without the gaps in the scores' numbers raise an error.
    """
    check_choice(join, "join", ("checksum", "number"))
    home = locate("pubfig", folder, download=False)
    names, scores = _pubfig_scores(home / _PUBFIG_ATTRIBUTES)
    every = sorted((home / _PUBFIG_IMAGES).glob("*/*"))  # each person has a folder
    files = [path for path in every if path.suffix.lower() in _PUBFIG_KINDS]
    joined: list[tuple[Path, _PersonNumber, Box | None]]
    if join == "checksum":
        listed = _pubfig_checksums(home)
        named = [(path, (_person(path.parent.name), _md5(path))) for path in files]
        joined = [(path, *listed[key]) for path, key in named if key in listed]
        if files and not joined:
            raise InputError(
                f"None of the {len(files):,} images in {_PUBFIG_IMAGES} has a checksum listed in "
                f"{' or '.join(_PUBFIG_ADDRESSES)}: they are crops or were saved again, so "
                "checksums cannot match them to scores. If the file names are still the "
                'publishers\' image numbers, use load_pubfig(join="number").'
            )
    else:
        joined = [
            (path, (_person(path.parent.name), int(path.stem)), None)
            for path in files
            if path.stem.isdigit()
        ]
        _check_numbers([key for _, key, _ in joined], scores)
    found = [(path, key, box) for path, key, box in joined if key in scores]
    if not found:
        what = f"has no scores for any image in {_PUBFIG_IMAGES}"
        raise broken(home / _PUBFIG_ATTRIBUTES, what, "pubfig")
    images = read_images(
        [path for path, _, _ in found], size, "pubfig", [box for _, _, box in found]
    )
    values = np.array([scores[key] for _, key, _ in found])
    columns = {
        "image": np.asarray([f"{person}_{number}" for _, (person, number), _ in found]),
        "person": np.asarray([person for _, (person, _), _ in found]),
        "imagenum": np.asarray([float(number) for _, (_, number), _ in found]),
    }
    scored = {f"pred_{name.replace(' ', '_')}": values[:, j] for j, name in enumerate(names)}
    return Faces(images, Records(columns | scored))


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def _pubfig_checksums(home: Path) -> dict[tuple[str, str], tuple[_PersonNumber, Box]]:
    """Return person, number and the face's box, by person and checksum.

    Fields are separated by tabs: person, imagenum, url, rect, md5sum. A checksum listed for two
    numbers of a person is left out; one image may show two people.
    """
    paths = [home / name for name in _PUBFIG_ADDRESSES if (home / name).is_file()]
    if not paths:
        raise InputError(
            f"{' and '.join(_PUBFIG_ADDRESSES)} are not in {home}: without the checksums in these "
            "files, scores can be matched to images only by number, and a renumbered copy would "
            "get the wrong scores. Add the two files from the PubFig page or, if the file names in "
            f'{_PUBFIG_IMAGES} are the publishers\' image numbers, use load_pubfig(join="number").'
        )
    listed: dict[tuple[str, str], tuple[_PersonNumber, Box]] = {}
    twice = set()
    for path in paths:
        for number, line in enumerate(_lines(path, "pubfig"), start=1):
            if line.startswith("#") or not line.strip():
                continue
            try:
                person, place, _, rect, checksum = line.split("\t")
                left, upper, right, lower = map(int, rect.split(","))
                entry = (_person(person), int(place)), (left, upper, right, lower)
            except ValueError as error:
                raise broken(path, f"is invalid in line {number} ({error})", "pubfig") from error
            key = _person(person), checksum.strip().lower()
            if key in listed and listed[key] != entry:
                twice.add(key)
            listed[key] = entry
    return {key: entry for key, entry in listed.items() if key not in twice}


def _check_numbers(
    keys: Sequence[_PersonNumber], scores: Mapping[_PersonNumber, Sequence[float]]
) -> None:
    """Raise an error for images that were renumbered, so that no person's numbers have a gap.

    Some published addresses no longer work, so a copy with the publishers' numbers has gaps.
    """
    numbers: dict[str, set[int]] = {}
    published: dict[str, set[int]] = {}
    for into, which in ((numbers, keys), (published, scores)):
        for person, number in which:
            into.setdefault(person, set()).add(number)
    shown = {person: own for person, own in numbers.items() if person in published}

    def renumbered(person: str) -> bool:
        own = numbers[person]
        gapless = max(own) - min(own) + 1 == len(own) and min(own) <= 1
        return gapless and own != published[person] and len(own) > 1

    if shown and all(map(renumbered, shown)):
        person = min(shown)
        raise InputError(
            f"The images in {_PUBFIG_IMAGES} are numbered without a gap ({person}: "
            f"{min(numbers[person])} to {max(numbers[person])}), unlike the scores (up to "
            f"{max(published[person])}): they were probably renumbered, so the scores would belong "
            "to other images. Use the publishers' files with "
            'load_pubfig(join="checksum").'
        )


def _pubfig_scores(path: Path) -> tuple[list[str], dict[tuple[str, int], list[float]]]:
    """Return the attributes' names, and the scores by person and image number.

    Fields are separated by tabs. A line that starts with ``#`` names the fields: person, imagenum,
    attributes.
    """
    lines = _lines(path, "pubfig")
    heads = [line.lstrip("#").strip("\t ").split("\t") for line in lines if line.startswith("#")]
    header = next((head for head in heads if head[:2] == ["person", "imagenum"]), None)
    if header is None or len(header) < 3:
        raise broken(
            path, "has no line '# person imagenum …' with tabs between the names", "pubfig"
        )
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
            raise broken(path, f"is invalid in line {number} ({error})", "pubfig") from error
    return header[2:], scores


def _person(name: str) -> str:
    return name.replace("_", " ").strip()


def _lines(path: Path, name: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise broken(path, f"is not a text file ({error})", name) from error
