"""The errors that seepage raises; each message states what is wrong and what to do."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

Call = TypeVar("Call", bound=Callable[..., Any])

# What other libraries call an option, and its name here
OTHER_NAMES = {
    "random_state": "seed",
    "learning_rate": "lr",
    "optimiser": "optimizer",
    "n_jobs": "jobs",
    "n_epochs": "epochs",
    "neighbors": "neighbours",
    "membership": "right",
    "max_membership": "right",
}
# How an option that a call cannot do without is written
_WRITTEN = {
    "noise": "noise=sp.Gaussian(0.1)",
    "noise_multiplier": "noise_multiplier=1.0",
    "max_grad_norm": "max_grad_norm=1.0",
    "delta": "delta=1e-5",
}


class InputError(ValueError):
    """Raised for invalid input; the message states what is wrong, where, and how to fix it."""


class ArgumentError(InputError, TypeError):
    """Raised if a call has an unknown option or lacks a required one."""


class NotTheMinimiserError(InputError):
    """Raised if a model's coefficients do not minimise the stated objective on the given data."""


class NotConvergedError(InputError):
    """Raised if rounding errors keep a fit from reaching its minimiser, although one may exist."""


class TooFewPeopleError(InputError):
    """Raised if the data have too few people to estimate what the released numbers leak."""


class NotConvergedWarning(UserWarning):
    """Warns that a model is near, but not at, the minimiser of its objective."""


class InaccurateWarning(UserWarning):
    """Warns that a result with an exact formula has lost significant digits to rounding."""


def nearest(name: object, candidates: Iterable[object]) -> str:
    """Return `` (did you mean 'x'?)`` for the candidate closest to ``name``, or an empty text.

    Of several equally close candidates, the one that shares the longest substring with ``name`` is
    suggested.
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
    """Return the error for a table whose text is not in UTF-8."""
    return InputError(f"{file} contains text that is not UTF-8; write it again as UTF-8.")


def accepts_other_names(call: Call) -> Call:
    """Let a public function or class also accept an option by its name in other libraries.

    For example, ``random_state`` means ``seed`` (:data:`OTHER_NAMES`). An unknown or a missing
    option raises an error with seepage's message instead of Python's.
    """
    thing: Any = call
    if inspect.isclass(call):
        thing.__init__ = _with_other_names(thing.__init__, thing.__name__)
        return call
    wrapped: Call = _with_other_names(thing, thing.__qualname__)
    return wrapped


def check_options(given: Iterable[str], known: Iterable[str], call: str) -> None:
    """Raise an error if a call has an unknown option, and suggest the closest known one."""
    names = tuple(known)
    for name in given:
        if name not in names:
            advice = nearest(name, names) or f"; choose from {', '.join(names)}"
            if name.startswith("max_") and "preset" in names:
                flag = f"--{name.replace('_', '-')}"
                advice = f"; choose limits by preset=, or {flag} on the command line"
            raise ArgumentError(f"{call} has no option {name!r}{advice}.")


def _with_other_names(function: Any, called: str) -> Any:
    kinds = inspect.Parameter
    parameters = inspect.signature(function).parameters
    places = [n for n, p in parameters.items() if p.kind is kinds.POSITIONAL_OR_KEYWORD]
    several = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    names = [n for n, p in parameters.items() if p.kind not in several]
    needed = [n for n in names if parameters[n].default is kinds.empty]
    open_ended = any(p.kind is kinds.VAR_KEYWORD for p in parameters.values())

    @wraps(function)
    def with_own_names(*args: Any, **options: Any) -> Any:
        for other in [name for name in options if name not in parameters]:
            own = OTHER_NAMES.get(other)
            if own is None or own not in names:
                continue
            if own in options or own in places[: len(args)]:
                raise ArgumentError(
                    f"{called} got {own} and {other}, which mean the same option; pass only {own}."
                )
            options[own] = options.pop(other)
        if not open_ended and not set(options).issubset(names):
            check_options(options, [n for n in names if n != "self"], called)
        given = {*places[: len(args)], *options}
        missing = [name for name in needed if name not in given]
        if missing:
            written = ", ".join(_WRITTEN.get(name, f"{name}=…") for name in missing)
            raise ArgumentError(f"{called} needs {' and '.join(missing)}: pass {written}.")
        return function(*args, **options)

    return with_own_names
