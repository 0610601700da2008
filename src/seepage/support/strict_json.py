"""Reads untrusted JSON: limits its size and checks that it has the expected fields.

Every error is a ``ValueError`` that states the problem; the caller adds the file's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

# Whether a value may stand in a field, and what such values are, in words
Field = tuple[Callable[[Any], bool], str]


def read_json(path: Path, most: int = 8 * 10**6) -> Any:
    """Return the content of a JSON file of at most ``most`` bytes.

    A larger file raises an error before it is read completely, since parsed content may need twenty
    times the size of the file.
    """
    with path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it is larger than {most / 1e6:g} MB")
    return parse_json(text)


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text; repeated keys and non-finite numbers raise an error."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            raise ValueError("it has an object with a repeated key")
        return content

    def refuse(constant: str) -> Any:
        raise ValueError(f"it contains {constant}, which is not a number")

    try:
        # Given bytes, json would guess the encoding; a release is written in UTF-8.
        said = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(said, object_pairs_hook=once, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError("it is not valid JSON") from error


def check_fields(
    content: Any, fields: Mapping[str, Field], what: str, optional: Collection[str] = ()
) -> None:
    """Raise an error unless ``content`` is an object with these fields only, and valid values."""
    if not isinstance(content, dict):
        raise ValueError(f"{what} is not an object")
    for name in content:
        if name not in fields:
            raise ValueError(f"{what} has the unknown field {name[:60]!a}")
    for name, (possible, words) in fields.items():
        if name not in content:
            if name in optional:
                continue
            raise ValueError(f"{what} lacks the field {name!r}")
        if not possible(content[name]):
            raise ValueError(f"{name!r} of {what} must be {words}")


def is_text(value: Any) -> bool:
    """Return whether a value is text that can be written as UTF-8, without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that double precision can represent."""
    try:
        return type(value) in (int, float) and math.isfinite(float(value))
    except OverflowError:
        return False


def is_digest(value: Any) -> bool:
    """Return whether a value is a SHA-256 digest in hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


TEXT: Field = (is_text, "a text")
TEXTS: Field = (
    lambda v: isinstance(v, list) and all(map(is_text, v)) and len(set(v)) == len(v),
    "a list of different texts",
)
COUNT: Field = (lambda value: type(value) is int and value >= 0, "a non-negative integer")
FINITE: Field = (is_finite, "a finite number")
POSITIVE: Field = (lambda value: is_finite(value) and value > 0, "a finite number above zero")
DIGEST: Field = (is_digest, "a SHA-256 digest of 64 hexadecimal digits")
