"""Downloads and reads data sets, and prepares them as in the papers.

Only the demo, the paper reproductions and the tests use these data sets; the measures do not.
``registry`` lists the data sets, and ``obtain`` and ``download`` fetch them. ``readers`` parse the
file formats, ``loaders`` load the data sets, and ``prepare`` turns them into learning problems.
Modules are imported on first use, so ``import seepage.data`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.data.loaders import load_adult as load_adult
    from seepage.data.loaders import load_bundled as load_bundled
    from seepage.data.loaders import load_celeba as load_celeba
    from seepage.data.loaders import load_cifar10 as load_cifar10
    from seepage.data.loaders import load_iwpc as load_iwpc
    from seepage.data.loaders import load_lfw as load_lfw
    from seepage.data.loaders import load_mnist as load_mnist
    from seepage.data.loaders import load_pneumoniamnist as load_pneumoniamnist
    from seepage.data.loaders import load_pubfig as load_pubfig
    from seepage.data.obtain import fetch as fetch
    from seepage.data.obtain import locate as locate
    from seepage.data.prepare import adult_one_hot as adult_one_hot
    from seepage.data.prepare import iwpc_one_hot as iwpc_one_hot
    from seepage.data.prepare import two_class_pca as two_class_pca
    from seepage.data.prepare import two_class_pixels as two_class_pixels
    from seepage.data.registry import DATA_SETS as DATA_SETS
    from seepage.data.structures import Faces as Faces
    from seepage.data.structures import Images as Images
    from seepage.data.structures import ImageSet as ImageSet
    from seepage.data.structures import Problem as Problem
    from seepage.data.structures import Records as Records
    from seepage.data.structures import Tabular as Tabular

__getattr__, __dir__ = lazy_names(__name__, globals())
