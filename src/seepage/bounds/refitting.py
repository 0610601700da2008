"""From a leakage back to its model, for the bounds that refit it with a record changed."""

from __future__ import annotations

from seepage.core.jacobian import Refits
from seepage.core.leakage import Leakage
from seepage.core.noise import Noise
from seepage.errors import InputError


def refits_of(leak: Leakage) -> tuple[Refits, Noise]:
    """Return the refits of the one model that was released, in NumPy, and its noise."""
    if len(leak.noise) != 1:
        raise InputError(
            "This bound refits the model, so it is for a single release of one linear model; take "
            "the releases one by one."
        )
    return leak.jacobian.refits(), leak.noise[0]
