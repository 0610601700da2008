"""Membership inference by an attacker who knows only some of the other records.

The success rate is an estimate. It is always reported together with that of an attacker who knows
all other records. Refits on other people check the estimate for the most exposed records; if their
success rate is above the approximation's, it is reported instead.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from seepage.auditing.findings import OutsiderFinding, RecordLeakage, RiskFinding
from seepage.auditing.trained_model import TrainedModel
from seepage.core.noise import Attacker
from seepage.errors import InputError, TooFewPeopleError
from seepage.glm.outsider.predictions import Predictions
from seepage.tables.names import shown


def attacker_of(text: str) -> Attacker:
    """Return the attacker that ``--attacker`` names: ``outsider``, or ``knows=0.9``.

    >>> attacker_of("knows=0.9").knows
    0.9
    """
    if text.strip().lower() == "outsider":
        return Attacker(knows=0.0)
    stated = re.fullmatch(r"\s*knows\s*=\s*([\d.]+(?:e[+-]?\d+)?)\s*", text.lower())
    try:
        known = Attacker(knows=float(stated[1])) if stated else None
    except ValueError:  # no number, or no share
        known = None
    if known is None:
        raise InputError(
            "--attacker must be outsider (knows no other record) or knows=0.9 (knows that share of "
            f"the other records), not {shown(text)}."
        )
    check_outsider(known)
    return known


def check_outsider(attacker: Any) -> None:
    """Raise an error unless a value is an attacker who does not know all other records."""
    if not isinstance(attacker, Attacker):
        raise InputError(
            f"attacker must be sp.Attacker(knows=…), not a value of type {type(attacker).__name__}."
        )
    if attacker.knows_all:
        raise InputError(
            "Every audit already covers an attacker who knows all other records; name an attacker "
            "who knows fewer, such as outsider or knows=0.9, or leave the attacker out."
        )


def find_outsider(
    trained: TrainedModel,
    attacker: Attacker,
    sigma: float | None,
    records: RecordLeakage,
    risks: RiskFinding | None,
    refits: bool,
) -> OutsiderFinding:
    """Return the attacker's estimated success rate; raise an error if there is no estimate.

    ``sigma`` is the noise, ``None`` for a model published without noise. ``records`` gives the row
    numbers of all records or people, and ``risks`` the success rates of an attacker who knows all
    other records. ``refits`` states whether refits on other people may check the most exposed
    records.
    """
    exact: bool | int = False if refits else 0
    try:
        seen, found = "parameters", trained.leakage_to(attacker, sigma).membership(exact=exact)
    except TooFewPeopleError:
        # Without the noise, which hides more: no less than she is right about.
        alone = trained.leakage_to(attacker, None, Predictions())
        seen, found = "predictions", alone.membership(exact=exact)
    right, rest = np.asarray(found.accuracy()).copy(), np.asarray(found.informed.accuracy())
    checked, known = found.checked, ~np.isnan(found.checked.right)
    people = checked.people[known]
    right[people] = np.maximum(right[people], checked.right[known])
    apart = checked.right[known] - checked.predicted[known]
    worst = int(np.argmax(right))
    membership, median = float(right[worst]), float(np.median(right))
    informed, middle = float(np.max(rest)), float(np.median(rest))
    if sigma is not None and risks is not None:
        # What the audit says of who knows all others, which may be about the whole procedure
        if seen == "parameters":
            informed, middle = max(informed, risks.membership), max(middle, risks.median)
        else:
            informed, middle = risks.membership, risks.median
            membership, median = min(membership, informed), min(median, middle)
    return OutsiderFinding(
        attacker=str(attacker),
        sigma=sigma,
        seen=seen,
        membership=membership,
        row=int(records.row[worst]),
        median=median,
        informed=informed,
        informed_median=middle,
        others=found.others,
        must_know=None if sigma is not None else int(np.median(found.must_know())),
        checked=int(known.sum()),
        apart=float(apart[np.argmax(np.abs(apart))]) if len(apart) else None,
        assumptions=found.mu.assumptions,
    )
