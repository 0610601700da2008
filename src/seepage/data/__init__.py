"""Data sets: find or fetch them, read them in their publishers' formats, prepare them as papers do.

For the demo, the papers and the tests: nothing that measures needs this room. ``registry`` says
what there is, ``obtain`` and ``download`` bring it here, ``readers`` know the file formats,
``loaders`` load the sets, and ``prepare`` makes learning problems of them.
Everything is imported on first use, so that ``import seepage.data`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.data.loaders import (
        load_adult,
        load_bundled,
        load_celeba,
        load_cifar10,
        load_iwpc,
        load_lfw,
        load_mnist,
        load_pneumoniamnist,
        load_pubfig,
    )
    from seepage.data.obtain import fetch, locate
    from seepage.data.prepare import (
        adult_one_hot,
        iwpc_one_hot,
        two_class_pca,
        two_class_pixels,
    )
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

__getattr__, __dir__ = lazy_names(__name__, globals())
