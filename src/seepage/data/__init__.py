"""Data sets: find or fetch them, read them in their publishers' formats, prepare them as papers do.

Everything here is imported on first use, so that ``import seepage.data`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.data.obtain import fetch, locate
    from seepage.data.registry import DATA_SETS
    from seepage.data.sets.adult import load_adult
    from seepage.data.sets.bundled import load_bundled
    from seepage.data.sets.celeba import load_celeba
    from seepage.data.sets.cifar10 import load_cifar10
    from seepage.data.sets.iwpc import load_iwpc
    from seepage.data.sets.lfw import load_lfw
    from seepage.data.sets.mnist import load_mnist
    from seepage.data.sets.pneumoniamnist import load_pneumoniamnist
    from seepage.data.sets.prepare import (
        adult_one_hot,
        iwpc_one_hot,
        two_class_pca,
        two_class_pixels,
    )
    from seepage.data.sets.pubfig import load_pubfig
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

__getattr__, __dir__ = lazy_names(__name__, globals())
