"""Recognise data on which a GLM without L2 has no minimiser because its coefficients diverge.

A direction ``v`` along which no loss ever rises and some loss always falls has no minimum on it.
For logistic loss that is a direction that separates the classes (perhaps with ties); Newton's
method on such data walks along it for ever, so its last step is the certificate.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.fitting.objective import Objective
from seepage.glm.losses.categorical import Categorical

Array = Any  # any array of the array API standard

_TIE = 1e-3  # rows on the boundary stand this still, compared with the row that moves most


NO_COUNTS = (
    "Every count (of positive weight) is zero, so the intercept diverges to minus infinity; fit "
    "without an intercept, or leave these data out."
)


def check_divergence(objective: Objective, margins: Array, margin_step: Array | None) -> None:
    """Raise an :class:`InputError` where the margins, or the last step of them, certify divergence.

    Parameters
    ----------
    objective
        What is being minimised; with a penalty it has a minimiser, and nothing is checked.
    margins
        The margins at the current parameters, which prove that classes are separable when they
        put every row strictly on its own side.
    margin_step
        The change of the margins in Newton's last step, when Newton's method no longer converges:
        it proves the same when it moves no row to the wrong side; ``None`` to look only for a
        strict separation.
    """
    if objective.ridge > 0:
        return
    refuse_strict(gain_range(objective, margins)[0], objective.family.name)
    if margin_step is not None:
        refuse_drift(gain_range(objective, margin_step, counts=True), objective.family.name)


def refuse_strict(least: float, family: str) -> None:
    """Raise where the least gain of the margins shows that every row is on its own side."""
    if 0 < least < math.inf:
        raise InputError(_message(family))


def refuse_drift(gains: tuple[float, float], family: str) -> None:
    """Raise where the range of the gains of a step shows that it leads on for ever."""
    least, largest = gains
    if largest > 0.1 and least >= -_TIE * largest:
        raise InputError(_message(family))


def gain_range(objective: Objective, margins: Array, counts: bool = False) -> tuple[float, float]:
    """Return how far margins move the rows to the side where their losses fall: least and most.

    Of no rows, and for a family that cannot diverge, an empty range: from ∞ to −∞.
    """
    gains = _gains(objective, margins, counts)
    xp = array_namespace(margins)
    if gains is None or gains.shape[0] == 0:
        return math.inf, -math.inf
    return float(xp.min(gains)), float(xp.max(gains))


def check_intercept_exists(objective: Objective) -> None:
    """Raise an :class:`InputError` for counts that are all zero: no penalty holds the intercept."""
    if objective.family.name != "poisson" or not objective.intercept:
        return
    xp = array_namespace(objective.target)
    counts = objective.target
    if objective.sample_weight is not None:
        counts = counts * objective.sample_weight
    if not bool(xp.any(counts > 0)):
        raise InputError(NO_COUNTS)


def _gains(objective: Objective, margins: Array, counts: bool = False) -> Array | None:
    """Return how far margins move every row (and rival class) to the side where its loss falls."""
    xp = array_namespace(margins)
    y = objective.target
    if isinstance(objective.family, Categorical):
        own = xp.sum(margins * y, axis=1)[:, None]
        gains = xp.where(y > 0, xp.max(own - margins, axis=1)[:, None], own - margins)
    elif objective.family.name == "bernoulli":
        gains = (2.0 * y - 1.0) * margins
    elif objective.family.name == "poisson" and counts:
        # exp(m) − y m falls for ever only towards m = −∞, and only where y = 0.
        gains = xp.where(y == 0, -margins, -xp.abs(margins))
    else:
        return None
    if objective.sample_weight is None:
        return gains
    return gains[objective.sample_weight > 0, ...]


def _message(family: str) -> str:
    if family == "poisson":
        return (
            "The counts are all zero in some direction of X (for example in every row of a "
            "category), so without L2 the coefficients diverge; set l2 to a positive number."
        )
    return (
        "The data are separable: some combination of the columns tells the classes apart without "
        "error, so without L2 the coefficients diverge; set l2 to a positive number."
    )
