"""η of records, people and groups, with the other records treated as noise.

The information is ``JᵀS₋⁻¹J`` with ``S₋ = uH⁻¹G₋H⁻¹ + Σ``, where J is the Jacobian of the release
with respect to the measured records, and G₋ the sum of ``c cᵀ`` over all other records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from seepage.core.leakage import Leakage
from seepage.core.result import Result
from seepage.errors import InputError, TooFewPeopleError
from seepage.glm.outsider.refusals import refuse_names
from seepage.glm.outsider.seen import SeenRelease
from seepage.glm.outsider.words import assumptions
from seepage.glm.outsider.worlds import inverse_root
from seepage.tables.names import counted


def eta_of_each(
    seen: SeenRelease, ask: Callable[[Leakage[Any]], Result], people: bool = False
) -> Result:
    """Return a leakage measure for each record or person, treating the other records as noise.

    Let S be the covariance with record i, S₋ᵢ that without it, and αq the record's share of S.
    Since ``S₋ᵢ ≥ (1 − αq)S``, η for noise of covariance S, divided by ``√(1 − αq)``, never
    understates the leakage.
    """
    together = seen.together(None) if people else None
    worlds = seen.worlds(together) if people else seen.worlds_of_records()
    share, _ = worlds.told_apart()
    spread = worlds.others.spread(worlds.unknown)
    if inverse_root(spread).shape[1] < len(spread):
        raise InputError(
            "Only one record has nonzero values in some column, so no other record can hide it; "
            "membership() names the record. Drop the column, or pass noise=sp.Gaussian(sigma)."
        )
    result = ask(seen.with_noise(spread))
    with np.errstate(divide="ignore"):
        factor = 1 / np.sqrt(np.maximum(1 - share, 0.0))
    factor = np.where(worlds.others.alone, np.inf, factor)
    values = np.asarray(result)
    factor = factor.reshape(-1, *[1] * (values.ndim - 1))
    values = np.where(values > 0, values * factor, 0.0)
    asked, index = seen.asked(together, None)
    return replace(
        result,
        values=values[asked],
        index=index,
        kind="estimate",
        assumptions=assumptions([seen]),
        accuracy=None,
        noise=() if seen.noise is None else (seen.noise,),
        rescaled=lambda other: eta_of_each(seen.scaled(other), ask, people),
    )


def eta_of_groups(
    seen: SeenRelease, labels: Any, columns: Any, label: bool | None, measure: str, simplex: bool
) -> Result:
    """Return a leakage measure for each group as a whole, treating all other records as noise."""
    refuse_names(seen.attacker)
    together, worlds = seen.together(labels), seen.worlds_of_records()
    others, values = worlds.others, []
    assert together is not None  # noqa: S101 - told to the type checker
    gradients = np.concatenate([g for _, g in others.gradients()])
    inverse = seen.model.inverse
    for rows in together.sets:
        outside = others.present & ~np.isin(np.arange(len(gradients)), rows)
        left = int(outside.sum())
        if left < 10 * worlds.numbers:
            raise TooFewPeopleError(
                f"One of the groups leaves too few other people ({left:,}) for "
                f"{counted(worlds.numbers, 'released number')}: with fewer than 10 people per "
                "number, the variance due to other people cannot be estimated. Use smaller groups."
            )
        g = gradients[outside & ~others.alone]
        half = (g - g.mean(axis=0)) @ inverse
        spread = worlds.unknown * half.T @ half + others.noise_spread
        # Along some direction nobody outside varies: nobody else has what they have.
        still = inverse_root(spread).shape[1] < len(spread)
        if still or others.alone[rows].any():
            values.append(np.inf)
            continue
        leak = seen.with_noise(spread)
        value = leak.subset(np.asarray(rows), columns, label, measure, simplex)
        values.append(float(np.asarray(value).reshape(-1)[0]))
    like = seen.informed.subset(together.sets[0], columns, label, measure, simplex)
    return replace(
        like,
        values=np.array(values),
        view="groups",
        about=seen.informed.unknowns(columns, label, simplex)[1],
        index=together.names,
        kind="estimate",
        assumptions=assumptions([seen]),
        accuracy=None,
        noise=() if seen.noise is None else (seen.noise,),
        rescaled=lambda other: eta_of_groups(
            seen.scaled(other), labels, columns, label, measure, simplex
        ),
    )
