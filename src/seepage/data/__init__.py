"""Data sets: find or fetch them, read them in their publishers' formats, prepare them as papers do.

Everything here is imported on first use, so that ``import seepage.data`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.data.adult import load_adult
    from seepage.data.bundled import load_bundled
    from seepage.data.celeba import load_celeba
    from seepage.data.cifar10 import load_cifar10
    from seepage.data.iwpc import load_iwpc
    from seepage.data.lfw import load_lfw
    from seepage.data.mnist import load_mnist
    from seepage.data.obtain import fetch, locate
    from seepage.data.pneumoniamnist import load_pneumoniamnist
    from seepage.data.prepare import adult_one_hot, iwpc_one_hot, two_class_pca, two_class_pixels
    from seepage.data.pubfig import load_pubfig
    from seepage.data.registry import DATA_SETS
    from seepage.data.structures import Faces, Images, ImageSet, Problem, Records, Tabular

__all__ = [
    "DATA_SETS",
    "Faces",
    "ImageSet",
    "Images",
    "Problem",
    "Records",
    "Tabular",
    "adult_one_hot",
    "fetch",
    "iwpc_one_hot",
    "load_adult",
    "load_bundled",
    "load_celeba",
    "load_cifar10",
    "load_iwpc",
    "load_lfw",
    "load_mnist",
    "load_pneumoniamnist",
    "load_pubfig",
    "locate",
    "two_class_pca",
    "two_class_pixels",
]

_HOME = {
    "DATA_SETS": "registry",
    "Faces": "structures",
    "ImageSet": "structures",
    "Images": "structures",
    "Problem": "structures",
    "Records": "structures",
    "Tabular": "structures",
    "adult_one_hot": "prepare",
    "fetch": "obtain",
    "iwpc_one_hot": "prepare",
    "load_adult": "adult",
    "load_bundled": "bundled",
    "load_celeba": "celeba",
    "load_cifar10": "cifar10",
    "load_iwpc": "iwpc",
    "load_lfw": "lfw",
    "load_mnist": "mnist",
    "load_pneumoniamnist": "pneumoniamnist",
    "load_pubfig": "pubfig",
    "locate": "obtain",
    "two_class_pca": "prepare",
    "two_class_pixels": "prepare",
}

__getattr__ = lazy_names(__name__, _HOME, globals())


def __dir__() -> list[str]:
    return __all__
