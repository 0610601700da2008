"""The available data sets: their descriptions, files, sources and SHA-256 digests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.errors import InputError, nearest


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its name in the data set's folder, addresses, size in bytes and SHA-256.

    Every address serves the same bytes, so an interrupted download may resume from another address.
    ``archive`` files are unpacked in the same folder.
    """

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str
    archive: bool = False


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set; its loader reads ``files``, and its publisher serves ``downloads``."""

    name: str
    title: str
    licence: str
    source: str
    folder: str = ""
    files: tuple[str, ...] = ()
    downloads: tuple[RemoteFile, ...] = ()
    size: int = 0  # in bytes
    by_hand: str = ""  # how to get what nobody serves
    bundled: bool = False  # with scikit-learn


def _bundled(name: str, title: str) -> DataSet:
    source = "https://scikit-learn.org/stable/datasets/toy_dataset.html"
    return DataSet(name=name, title=title, licence="BSD-3-Clause", source=source, bundled=True)


def _served(
    published: str, *addresses: str, files: tuple[str, ...] | None = None, archive: bool = False
) -> dict[str, Any]:
    """Return files from lines that contain a SHA-256, a size and a name.

    An address that ends in a slash serves each file under its name. Loaders read these files
    unless ``files`` lists others.
    """
    downloads = []
    for line in published.split("\n"):
        sha256, size, name = line.split()
        urls = tuple(a + name if a.endswith("/") else a for a in addresses)
        downloads.append(RemoteFile(name, urls, int(size), sha256, archive))
    return {
        "files": tuple(file.name for file in downloads) if files is None else files,
        "downloads": tuple(downloads),
        "size": sum(file.size for file in downloads),
    }


_MNIST = """\
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 9912422 train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c 28881 train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 1648877 t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 4542 t10k-labels-idx1-ubyte.gz"""
_CIFAR10 = """\
c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd 170052171 cifar-10-binary.tar.gz"""
_ADULT = """\
5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d 3974305 adult.data
a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05 2003153 adult.test
c248284c0b5de30c9e1958d6cdd168a34a654758b620e68f46aefa83fc0a576a 5229 adult.names"""
_IWPC = "fc81402548298d703a92c63d84c8d2e2da266af7ccda35025d35f431934977f3 217273 iwpc-scaled.csv"
_X_RAYS = """\
e1792d3f03751cb101e99f19a63b3c1941436c988665f47853417b05be250cd8 4170669 pneumoniamnist.npz"""

_ALL = (
    DataSet(
        name="mnist",
        title="handwritten digits, 60,000 / 10,000 grey images of 28×28",
        licence="CC BY-SA 3.0",
        source="http://yann.lecun.com/exdb/mnist/",
        folder="mnist",
        # LeCun's own server no longer serves them reliably; both mirrors have the same bytes.
        **_served(
            _MNIST,
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    DataSet(
        name="cifar10",
        title="ten kinds of objects, 50,000 / 10,000 colour images of 32×32",
        licence="none stated",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar10",
        **_served(
            _CIFAR10,
            "https://www.cs.toronto.edu/~kriz/",
            "https://cave.cs.toronto.edu/kriz/",
            files=(
                *(f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)),
                "cifar-10-batches-bin/test_batch.bin",
            ),
            archive=True,
        ),
    ),
    DataSet(
        name="adult",
        title="UCI Adult: income above $50,000 from the 1994 census, 32,561 / 16,281 people",
        licence="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/2/adult",
        folder="adult",
        **_served(
            _ADULT,
            "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
            files=("adult.data", "adult.test"),
        ),
    ),
    DataSet(
        name="iwpc",
        title="stable warfarin dose of 4,819 patients, as prepared by Yeom et al. (2018)",
        licence="MIT",
        source="https://github.com/samuel-yeom/ml-privacy-csf18",
        folder="iwpc",
        **_served(
            _IWPC,
            "https://raw.githubusercontent.com/samuel-yeom/ml-privacy-csf18/"
            "5b176c3025b02ce5853448dbe6365ce7f0eecbf4/data/",
        ),
    ),
    DataSet(
        name="pneumoniamnist",
        title="MedMNIST chest X-rays, 4,708 / 524 / 624 grey images of 28×28",
        licence="CC BY 4.0",
        source="https://medmnist.com/",
        folder="medmnist",
        **_served(
            _X_RAYS, "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1"
        ),
    ),
    DataSet(
        name="lfw",
        title="Labeled Faces in the Wild, 13,233 colour images of 62×47 with attributes",
        folder="lfw",
        files=("lfw_62x47.npz", "lfw_attributes.csv"),
        size=120_449_127,
        licence="none stated; for research",
        source="http://vis-www.cs.umass.edu/lfw/",
        by_hand=(
            "it is not published in this form, so add two files yourself. The first, "
            "lfw_62x47.npz, contains an array `images` of bytes with the shape (n, 62, 47, 3): "
            "crop the images of lfw-deepfunneled.tgz from the LFW site to rows 70 to 195 and "
            "columns 78 to 172, and halve their size. The second, lfw_attributes.csv, has one row "
            "per image in the same order, with the columns image, person, imagenum, male_manual "
            "and smile_manual (1, 0 or empty), and any number of pred_… scores"
        ),
    ),
    DataSet(
        name="celeba",
        title="CelebA, 202,599 aligned faces of 218×178 with forty attributes",
        folder="celeba",
        files=("list_attr_celeba.txt", "img_align_celeba/000001.jpg"),
        size=1_470_000_000,
        licence="for non-commercial research",
        source="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        by_hand=(
            "its publisher provides it on a web page, so add the downloaded files yourself: "
            "list_attr_celeba.txt, the unpacked folder img_align_celeba and, to "
            "identify people, identity_CelebA.txt"
        ),
    ),
    DataSet(
        name="pubfig",
        title="PubFig or PubFig83, faces of public figures with 73 attribute scores",
        folder="pubfig",
        files=("pubfig_attributes.txt",),
        size=100_000_000,
        licence="for non-commercial research",
        source="https://www.cs.columbia.edu/CAVE/databases/pubfig/",
        by_hand=(
            "its publishers provide addresses instead of images, so add the files yourself: "
            "pubfig_attributes.txt, dev_urls.txt and eval_urls.txt from the PubFig page, and a "
            "folder pubfig83 with a folder of images per person"
        ),
    ),
    _bundled("breast_cancer", "569 tumours, 30 measurements, benign or malignant"),
    _bundled("diabetes", "442 patients, 10 measurements, disease progression"),
    _bundled("digits", "1,797 handwritten digits of 8×8"),
    _bundled("iris", "150 flowers, 4 measurements, three species"),
    _bundled("wine", "178 wines, 13 measurements, three growers"),
)

DATA_SETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _ALL}


def data_set(name: str) -> DataSet:
    """Return the data set with this name; otherwise raise an error that suggests the nearest."""
    if name not in DATA_SETS:
        raise InputError(
            f"There is no data set {name!r}{nearest(name, DATA_SETS)}; choose from "
            f"{', '.join(DATA_SETS)}."
        )
    return DATA_SETS[name]


def broken(path: Path, what: str, name: str) -> InputError:
    """Return the error for a corrupted, truncated or wrong file of the data set ``name``."""
    if DATA_SETS[name].downloads:
        remedy = f"delete it and run `seepage data fetch {name}`"
    else:
        remedy = f"replace it (`seepage data fetch {name}` describes the expected file)"
    return InputError(f"{path} {what}; {remedy}.")
