"""What is not measured to an attacker who does not know all others, and what to do instead."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seepage.core.noise import Attacker, Gaussian
from seepage.errors import InputError, TooFewPeopleError
from seepage.glm.outsider.predictions import Parameters, Predictions
from seepage.glm.outsider.streamed import StreamedWorlds
from seepage.glm.outsider.worlds import Worlds


def checked_attacker(attacker: Any, noise: Any, release: Any) -> Attacker:
    """Return the attacker, or raise unless she, the noise and what is released go together."""
    if attacker is not None and not isinstance(attacker, Attacker):
        raise InputError(
            f"attacker must be sp.Attacker(knows=…), not a value of type {type(attacker).__name__}."
        )
    if release is not None and not isinstance(release, Predictions | Parameters):
        raise InputError(
            "release must be sp.Predictions(queries) or sp.Parameters(digits=…), not a value of "
            f"type {type(release).__name__}."
        )
    everything = attacker is None or attacker.knows_all
    if everything and noise is None:
        raise InputError(
            "Without noise, an attacker who knows all other records recognises every record with "
            "certainty. Pass noise=sp.Gaussian(sigma), or say that she knows less: "
            "attacker=sp.Attacker(knows=0.0)."
        )
    if everything and isinstance(release, Predictions) and release.queries is None:
        raise InputError(
            "Each record's own prediction alone is measured for an attacker who does not know all "
            "other records: add attacker=sp.Attacker(knows=0.0), or give the queries."
        )
    if everything and release is not None and not isinstance(noise, Gaussian):
        raise InputError("Noise on predictions is measured if it is Gaussian; use sp.Gaussian.")
    if not everything and noise is not None and not isinstance(noise, Gaussian):
        raise InputError(
            "To an attacker who does not know all others noise is measured if it is Gaussian; use "
            "sp.Gaussian."
        )
    return Attacker() if attacker is None else attacker


def check_people(worlds: Worlds | StreamedWorlds, attacker: Attacker) -> None:
    """Refuse people who are too few, or too few that she does not know."""
    others = worlds.others
    whom = " whom she does not know" if attacker.names_records else ""
    if others.count < 3:
        raise InputError(f"There are fewer than three people{whom}: nobody is hidden among others.")
    # With ten people a number μ² is about twice too high (least squares), and soon useless.
    if not worlds.own and others.count < 10 * worlds.numbers:
        raise TooFewPeopleError(
            f"{others.count:,} people{whom} are too few for {worlds.numbers:,} released "
            "numbers: below 10 people a number the others' randomness is not known "
            "well enough. Ask what each record's own prediction tells, with "
            "release=sp.Predictions()."
        )
    named, rest = attacker.names_records, others.present_count - 1
    unknown = others.count - 1 if named else round((1 - attacker.knows) * rest, 6)
    # Fewer are not normal together: a test that knows their law is right more often.
    if unknown < max(30, worlds.numbers):
        there = f"There are only {rest:,} others"
        if unknown < rest:
            there = (
                f"She would know all but {math.floor(unknown)} of {rest:,} others, which is "
                "practically everybody"
            )
        raise InputError(
            f"{there}: so few hide nobody in a way that can be estimated. Take the risk from "
            "an attacker who knows all other records (without noise: certainty)."
        )


def check_same_attacker(first: Attacker, other: Attacker) -> None:
    """Raise unless two releases are to the same attacker."""
    same = other is first or (
        other.reference == first.reference
        and other.fraction == first.fraction
        and np.array_equal(other.knows, first.knows)
    )
    if not same:
        raise InputError(
            f"One release is to {first}, another to {other}; pass the same attacker= for both."
        )


def refuse_answers(several: bool, form: Predictions | Parameters | None) -> None:
    """Raise where only membership is known: of several releases, of answers, of rounded numbers."""
    if several:
        raise InputError(
            "Of several releases to an attacker who does not know all others, membership() "
            "alone is known; ask about each release by itself."
        )
    if form is not None:
        raise InputError(
            "Of predictions and of rounded numbers only membership() is known to such an attacker."
        )


def refuse_names(attacker: Attacker) -> None:
    """Raise where she must know a share of the others, not certain of them."""
    if attacker.names_records:
        raise InputError(
            "Guesses and groups are estimated for an attacker who knows a share of the others; "
            "give knows= as a number from 0 to 1."
        )
