"""Errors for calls that are not supported for an outsider, each with an alternative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seepage.core.noise import Attacker, Gaussian
from seepage.errors import InputError, TooFewPeopleError
from seepage.glm.outsider.predictions import Parameters, Predictions
from seepage.glm.outsider.streamed import StreamedWorlds
from seepage.glm.outsider.worlds import Worlds
from seepage.tables.names import counted


def checked_attacker(attacker: Any, noise: Any, release: Any) -> Attacker:
    """Check that the attacker, the noise and the release are compatible; return the attacker."""
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
            "Without noise, an attacker who knows all other records detects with certainty every "
            "record whose removal changes the model. Pass noise=sp.Gaussian(sigma), or assume an "
            "attacker who knows less: attacker=sp.Attacker(knows=0.0)."
        )
    if everything and isinstance(release, Predictions) and release.queries is None:
        raise InputError(
            "The leakage of each record's own prediction can be measured only for an attacker who "
            "does not know all other records; pass attacker=sp.Attacker(knows=0.0), or pass "
            "queries to sp.Predictions."
        )
    if everything and release is not None and not isinstance(noise, Gaussian):
        raise InputError(
            "Noise on predictions or rounded numbers must be Gaussian; use sp.Gaussian."
        )
    if not everything and noise is not None and not isinstance(noise, Gaussian):
        raise InputError(
            "For an attacker who does not know all other records, noise must be Gaussian; use "
            "sp.Gaussian."
        )
    return Attacker() if attacker is None else attacker


def check_people(worlds: Worlds | StreamedWorlds, attacker: Attacker) -> None:
    """Raise an error for too few people, or too few people whom the attacker does not know."""
    others = worlds.others
    whom = " whom the attacker does not know" if attacker.names_records else ""
    if others.count < 3:
        raise InputError(
            f"There are fewer than three people{whom}, too few to hide anybody; use a larger table."
        )
    # With ten people a number μ² is about twice too high (least squares), and soon useless.
    if not worlds.own and others.count < 10 * worlds.numbers:
        raise TooFewPeopleError(
            f"{others.count:,} people{whom} are too few for "
            f"{counted(worlds.numbers, 'released number')}: with fewer than 10 people per number, "
            "the variance due to other people cannot be estimated. Measure each record's own "
            "prediction instead, with release=sp.Predictions()."
        )
    named, rest = attacker.names_records, others.present_count - 1
    unknown = others.count - 1 if named else round((1 - attacker.knows) * rest, 6)
    # Fewer are not normal together: a test that knows their law is right more often.
    if unknown < max(30, worlds.numbers):
        there = f"The number of other people is only {rest:,}"
        if unknown < rest:
            there = (
                f"The attacker would know all but {math.floor(unknown)} of {rest:,} other "
                "people, which is practically everybody"
            )
        raise InputError(
            f"{there}: too few unknown people remain to estimate the risk. Omit attacker= to "
            "measure the risk from an attacker who knows all other records; without noise, that "
            "attacker is certain of membership."
        )


def check_same_attacker(first: Attacker, other: Attacker) -> None:
    """Raise an error unless two releases have the same attacker."""
    same = other is first or (
        other.reference == first.reference
        and other.fraction == first.fraction
        and np.array_equal(other.knows, first.knows)
    )
    if not same:
        raise InputError(
            f"One release assumes {first}, another {other}; pass the same attacker= to both."
        )


def refuse_answers(several: bool, form: Predictions | Parameters | None) -> None:
    """Raise an error for several releases, answers or rounding, which support only membership."""
    if several:
        raise InputError(
            "For an attacker who does not know all other records, only membership() supports "
            "several releases; measure each release separately."
        )
    if form is not None:
        raise InputError(
            "For an attacker who does not know all other records, only membership() supports "
            "predictions and rounded numbers; call membership(), or measure unrounded parameters."
        )


def refuse_names(attacker: Attacker) -> None:
    """Raise an error if the attacker knows listed records rather than a share of them."""
    if attacker.names_records:
        raise InputError(
            "Guesses and groups require an attacker who knows a share of the other records; set "
            "knows= to a number from 0 to 1."
        )
