"""Checks that settings are valid numbers or choices, and raises clear errors."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

from seepage.errors import InputError, nearest


def check_noise(value: Any) -> None:
    """Raise an error unless a noise multiplier is a finite number above zero."""
    check_number(value, "noise_multiplier")
    if not float(value) > 0:
        raise InputError(
            f"noise_multiplier must be above zero, not {value!r}; without noise, a release "
            "of gradients is not private."
        )


def check_number(value: Any, name: str) -> None:
    """Raise an error unless a setting is a finite number; numeric text is not accepted."""
    try:
        good = not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError):
        good = False
    if not good:
        raise InputError(f"{name} must be a finite number, not {value!r}.")


def check_choice(value: Any, name: str, choices: Collection[Any]) -> None:
    """Raise an error unless a setting is one of the choices; the message suggests the nearest."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise InputError(
            f"{name} must be {', '.join(others)} or {last}, not {value!r}{nearest(value, choices)}."
        )


def check_share(value: Any, name: str) -> None:
    """Raise an error unless a setting is a number strictly between 0 and 1."""
    check_number(value, name)
    if not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1 (exclusive), not {value!r}.")


def check_count(value: Any, name: str, least: int = 1) -> None:
    """Raise an error unless a setting is an integer and at least ``least``."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (whole and value >= least):
        raise InputError(f"{name} must be at least {least} and a whole number, not {value!r}.")


def check_not_negative(value: Any, name: str) -> None:
    """Raise an error unless a setting is a finite number that is not negative."""
    check_number(value, name)
    if value < 0:
        raise InputError(f"{name} must not be negative, but is {value!r}.")


def check_positive(value: Any, name: str) -> None:
    """Raise an error unless an option is a finite number above zero."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a finite number above zero, not {value!r}.")
