"""The errors seepage raises on purpose: each says what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An input cannot be used; the message says which, where, and the remedy."""


class NotTheMinimiserError(InputError):
    """A fitted model's coefficients do not minimise the stated objective on the given data."""


class NotConvergedError(InputError):
    """Rounding errors kept a fit from reaching its minimiser, which may exist."""


class TooFewPeopleError(InputError):
    """There are too few people to estimate the leakage of this many released numbers."""


class NotConvergedWarning(UserWarning):
    """A model is near the minimiser of its objective but not at it."""


class InaccurateWarning(UserWarning):
    """A number that is exact by its formula has visibly lost digits to rounding."""


def nearest(name: object, candidates: Iterable[object]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest of the candidates, or nothing.

    Of several equally close candidates, the one with the longest common piece.
    """
    given = str(name)
    close = difflib.get_close_matches(given, [str(c) for c in candidates], n=3, cutoff=0.6)

    def likeness(other: str) -> tuple[float, int]:
        match = difflib.SequenceMatcher(None, other, given)
        return match.ratio(), match.find_longest_match().size

    return f" (did you mean {max(close, key=likeness)!r}?)" if close else ""


def not_whole(file: str, kind: str) -> InputError:
    """Return the error for a file that cannot be read to its end."""
    return InputError(
        f"{file} is not a complete {kind} file: it may be cut off or damaged; write or copy it "
        "again."
    )


def not_utf8(file: str) -> InputError:
    """Return the error for a table whose text is in another encoding."""
    return InputError(f"{file} holds text that is not UTF-8; write it again as UTF-8.")
