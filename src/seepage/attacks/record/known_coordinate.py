"""The one thing an adversary knows of a record it never saw: what is the same in all records."""

from __future__ import annotations

import numpy as np

from seepage.glm.fitting.fitted import FittedGLM


def known_coordinate(fit: FittedGLM, X: np.ndarray) -> tuple[int | None, float]:
    """Return the parameter whose column is the same in every record, and the value there.

    It is the intercept, or the first column of the table that is constant and not zero.
    """
    if fit.intercept is not None:
        return X.shape[1], 1.0
    if len(X) > 1:
        for j in np.flatnonzero(X[0] != 0):
            if np.all(X[:, j] == X[0, j]):
                return int(j), float(X[0, j])
    return None, 0.0
