"""Errors for models and steps that have no exact audit: the reason, and the closest alternative."""

from __future__ import annotations

from typing import Any

from seepage.errors import InputError

PAGE = "docs/how-to/models.md"


class NoDerivativeError(InputError):
    """Raised if a procedure is not differentiable in the records; refits may measure its risks."""

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(str(refusal(why, instead)))
        self.why = why


def refusal(why: str, instead: str) -> InputError:
    """Return an error with the reason, an alternative, and the page that lists all models."""
    return InputError(f"{why} {instead} See {PAGE}.")


def refuse_setting(model: Any, what: str, why: str, instead: str) -> InputError:
    """Return the error for an unsupported setting of a supported model."""
    return refusal(f"{type(model).__name__} with {what} is not supported: {why}.", instead)
