"""Refuse data on which a GLM has no unique minimiser, in a sentence that says why.

Without L2 there are two reasons. Columns that depend linearly on one another leave the coefficients
open. And a direction along which no loss ever rises and some loss always falls has no minimum on
it: for logistic loss a direction that separates the classes (perhaps with ties). Newton's method
on such data walks along it for ever, so its last step is the certificate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.fitting.factorisations import cholesky_factor
from seepage.glm.fitting.objective import norm
from seepage.glm.losses.categorical import Categorical

if TYPE_CHECKING:
    from seepage.glm.fitting.streamed import AnyObjective

Array = Any  # any array of the array API standard

# Cholesky of the correlation-like Gram matrix loses half the digits: a smallest squared pivot above
# this proves independence, one below it only calls for the slower QR.
_CLEARLY_INDEPENDENT = 1e-7
_MANY = 10**6  # rows from which on rounding errors no longer add up to more
_TAKES_PART = 1e-6  # entries of unit null vectors above this are not rounding
_FAR = 0.1  # a step of a margin that tells a diverging fit from one that has settled
_TIE = 1e-3  # records on the boundary stand this still, compared with the one that moves most


def check_columns(objective: AnyObjective, H: Array, counted: int, names: tuple[str, ...]) -> None:
    """Raise an :class:`InputError` naming the columns that depend linearly on one another.

    Parameters
    ----------
    objective
        What is to be minimised; with a penalty it has one minimiser, and nothing is checked.
    H
        Its Hessian at any parameters (not gauge-fixed), which is singular where the columns are.
    counted
        How many records have a positive weight.
    names
        The columns.
    """
    if objective.ridge > 0:
        return
    xp = array_namespace(H)
    # Each diagonal block of softmax's is a Gram matrix, weighted by something positive.
    step = objective.family.outputs if isinstance(objective.family, Categorical) else 1
    gram = H[::step, ::step]
    P = gram.shape[0]
    sizes = xp.sqrt(xp.linalg.diagonal(gram))
    remedy = "drop it or set l2 to a positive number."
    if bool(xp.any(sizes == 0)):
        raise InputError(
            f"Column {names[int(xp.argmin(sizes))]!r} is constant (all zeros), so without L2 its "
            f"coefficient is not determined; {remedy}"
        )
    factor = cholesky_factor(gram / (sizes[:, None] * sizes[None, :])) if counted >= P else None
    if factor is not None:
        pivots = xp.linalg.diagonal(factor.lower)
        if float(xp.min(pivots)) ** 2 > _CLEARLY_INDEPENDENT:
            return
    flat = objective.constant_columns() if objective.intercept else None
    if flat is not None and bool(xp.any(flat)):
        name = names[int(xp.argmax(xp.astype(flat, xp.int64)))]
        raise InputError(
            f"Column {name!r} is constant, and so is the intercept: without L2 only their sum is "
            f"determined; {remedy}"
        )
    if counted < P:
        samples = "1 sample" if counted == 1 else f"{counted} samples"
        raise InputError(
            f"There are more parameters ({P}) than data ({samples} of positive weight), so without "
            "L2 the coefficients are not determined; set l2 to a positive number or drop columns."
        )
    dependent = _dependent_columns(objective.triangle(labels=False), counted)
    if dependent:
        raise InputError(
            f"{_listed(dependent, names)} depend linearly on one another, so without L2 the "
            "coefficients are not determined; drop one of them or set l2 to a positive number."
        )


def _dependent_columns(R: Array, rows: int) -> list[int]:
    """Return the columns that take part in a dependence, by the null space of the unit columns."""
    xp = array_namespace(R)
    unit = R / xp.sqrt(xp.sum(R * R, axis=0))[None, :]
    _, singular, Vt = xp.linalg.svd(unit)
    tolerance = 10 * max(min(rows, _MANY), R.shape[1]) * float(xp.finfo(R.dtype).eps)
    null = Vt[singular <= tolerance * singular[0], :]
    if null.shape[0] == 0:
        return []
    part = xp.sqrt(xp.sum(null * null, axis=0))
    return [j for j in range(part.shape[0]) if float(part[j]) > _TAKES_PART]


def _listed(columns: list[int], names: tuple[str, ...]) -> str:
    shown = [repr(names[j]) if j < len(names) else "the intercept" for j in columns]
    if len(shown) > 8:
        return f"Columns {', '.join(shown[:7])} and {len(shown) - 7} more"
    return f"Columns {', '.join(shown[:-1])} and {shown[-1]}"


def check_counts(objective: AnyObjective, label_scale: float) -> None:
    """Raise for counts that are all zero: no penalty holds the intercept."""
    if objective.family.name == "poisson" and objective.intercept and label_scale == 0:
        raise InputError(
            "Every count (of positive weight) is zero, so the intercept diverges to minus "
            "infinity; fit without an intercept, or leave these data out."
        )


def check_overlap(objective: AnyObjective, least_gain: float) -> None:
    """Raise where the margins put every record strictly on its own side: classes are separable."""
    if objective.ridge == 0 and 0 < least_gain < math.inf:
        raise InputError(_divergence(objective.family.name))


def check_drift(objective: AnyObjective, step: Array, largest_norm: float) -> None:
    """Raise where Newton's step still goes far, and moves no record to a wrong side.

    ``largest_norm`` is that of the rows: a step too short to move any margin far needs no look.
    """
    if objective.ridge > 0 or norm(step) * largest_norm <= _FAR:
        return
    least, most = objective.gains(step)
    if most > _FAR and least >= -_TIE * most:
        raise InputError(_divergence(objective.family.name))


def _divergence(family: str) -> str:
    if family == "poisson":
        return (
            "The counts are all zero in some direction of X (for example in every row of a "
            "category), so without L2 the coefficients diverge; set l2 to a positive number."
        )
    return (
        "The data are separable: some combination of the columns tells the classes apart without "
        "error, so without L2 the coefficients diverge; set l2 to a positive number."
    )
