"""The settings of a trainer: checked when it is made, and compared with those of a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seepage.errors import InputError, nearest
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.support.number_check import check_noise, check_number

_OWN = ("n", "sample_rate", "sampler")  # what the trainer itself tells the accountant


def check_accounting(given: Iterable[str], trainer: type) -> None:
    """Raise if an option is neither one of the trainer's nor one it hands to the accountant."""
    mine = list(inspect.signature(trainer).parameters)
    theirs = [
        name
        for name in inspect.signature(FisherAccountant).parameters
        if name not in mine and name not in _OWN
    ]
    for name in given:
        if name not in theirs:
            raise InputError(
                f"{trainer.__name__} has no option {name!r}{nearest(name, (*mine, *theirs))}."
            )


def check_update(
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    noise_multiplier: float,
    max_grad_norm: float,
) -> None:
    """Raise unless the numbers of the update are numbers, and in their range."""
    check_noise(noise_multiplier)
    check_number("learning_rate", learning_rate)
    check_number("momentum", momentum)
    check_number("weight_decay", weight_decay)
    check_number("max_grad_norm", max_grad_norm)
    if not (learning_rate > 0 and 0 <= momentum < 1 and weight_decay >= 0):
        raise InputError(
            "learning_rate must be above zero, momentum in [0, 1), weight_decay not negative."
        )


def check_same_run(
    path: Path, stored: Mapping[str, Any], mine: Mapping[str, Any], steps: int
) -> None:
    """Raise unless a checkpoint is of the run that is to go on from it, for ``steps`` steps."""
    if "loss" not in stored:
        raise InputError(
            f"{path} was written by an earlier version of seepage, which did not store all that "
            "identifies a run; name another checkpoint, or delete it to begin anew."
        )
    for name, value in mine.items():
        if stored.get(name) != value:
            raise InputError(
                f"{path} is of another run: its {name} is {stored.get(name)!r}, not {value!r}. "
                "Name another checkpoint, or delete it to begin anew."
            )
    announced = stored["theorem4_steps"]
    if announced is not None and announced != steps:
        raise InputError(
            f"{path} is of a run that spreads the failure probability of theorem 4 over "
            f"{announced} steps; to go on for {steps} would not keep to its delta. Give "
            f"steps={announced}, or begin anew with another checkpoint."
        )
