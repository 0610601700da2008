"""What identifies a measurement: numbers of runs that differ in it must not be put together.

Not among it is the noise, which may change from step to step: the ledger has that of every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seepage.nn.accounting.fingerprint import plain_setting
from seepage.nn.privacy.ledger import Ledger
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.views import View
from seepage.nn.sampling.amplification import Amplification

Measurement = dict[str, Any]


def describe_measurement(
    view: View, clip: Clip, clipping: str, amplification: Amplification
) -> Measurement:
    """Return what identifies a measurement, in plain words and numbers."""
    budget = amplification.budget
    return {
        "view": plain_setting(view),
        "clip": plain_setting(clip),
        "clipping": clipping,
        "sampler": amplification.sampler,
        "sample_rate": amplification.sample_rate,
        "amplification": amplification.method,
        "delta": None if budget is None else budget.total,
        "announced steps": None if budget is None else budget.steps,
    }


def identity(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return some facts of a run, and those of its measurement if it has any, in one place."""
    return {name: facts[name] for name in names} | (facts["measurement"] or {})


def first_difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return the name of the first fact in which two measurements differ, or ``None``."""
    names = (*first, *(name for name in other if name not in first))
    return next((name for name in names if first.get(name) != other.get(name)), None)


def ledger_difference(first: Ledger, other: Ledger) -> str | None:
    """Return how the steps of two runs differ, as the end of a sentence, or ``None``."""
    if first == other:
        return None
    for mine, theirs in zip(first, other, strict=False):
        name = first_difference(vars(mine), vars(theirs))
        if name is not None and name != "steps":
            return f"{name} is {vars(mine)[name]!r} in the one, {vars(theirs)[name]!r} in the other"
    return f"{first}; against {other}"
