"""The small data sets that come with scikit-learn: always there, never downloaded."""

from __future__ import annotations

import numpy as np

from seepage.data.registry import DATA_SETS
from seepage.data.structures import Tabular
from seepage.errors import InputError, nearest


def load_bundled(name: str) -> Tabular:
    """Return ``breast_cancer``, ``diabetes``, ``digits``, ``iris`` or ``wine``.

    scikit-learn's linnerud is left out: it has three targets at once, and every model here one.
    """
    known = [data_set.name for data_set in DATA_SETS.values() if data_set.bundled]
    if name not in known:
        raise InputError(
            f"scikit-learn bundles no data set called {name!r}{nearest(name, known)}; there are "
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
