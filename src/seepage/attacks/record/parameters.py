"""Read released parameters, however they are handed over."""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.attacks.record.releases import Releases
from seepage.errors import InputError
from seepage.tables.frames import as_numpy


def parameters_of(release: Any, size: int) -> np.ndarray:
    """Return released parameters, (T, P): features first, the intercept last, the class fast."""
    if isinstance(release, Releases):
        theta = release.parameters
    elif hasattr(release, "coef_"):
        coef = np.atleast_2d(as_numpy(release.coef_).astype(float)).T
        last = np.reshape(as_numpy(release.intercept_).astype(float), (1, -1))
        # Released models carry an intercept of zero where they have none.
        theta = (coef if coef.size == size else np.concatenate([coef, last])).reshape(1, -1)
    else:
        theta = np.atleast_2d(as_numpy(release).astype(float))
    if theta.ndim != 2 or theta.shape[1] != size:
        raise InputError(
            f"A release of this model has {size} numbers, but what was given has shape "
            f"{np.shape(theta)}."
        )
    return np.asarray(theta, dtype=float)
