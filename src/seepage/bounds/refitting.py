"""From a leakage back to its model, for the bounds that refit it with a record changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seepage.core.leakage import Leakage
from seepage.core.noise import Noise
from seepage.errors import InputError
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.jacobian.row_refits import RowRefits
from seepage.tables.frames import as_numpy


def refits_of(leak: Leakage) -> tuple[RowRefits, Noise]:
    """Return the refits of the one model that was released, in NumPy, and its noise."""
    jacobian = leak.jacobian
    if len(leak.noise) != 1 or not isinstance(jacobian, GLMJacobian):
        raise InputError(
            "This bound refits the model, so it is for a single release of one linear model; take "
            "the releases one by one."
        )
    fit = jacobian.fit
    local = replace(
        fit,
        coef=as_numpy(fit.coef),
        intercept=None if fit.intercept is None else as_numpy(fit.intercept),
        sample_weight=None if fit.sample_weight is None else as_numpy(fit.sample_weight),
        target=as_numpy(fit.target),
    )
    return RowRefits(local, as_numpy(jacobian.X).astype(np.float64, copy=False)), leak.noise[0]
