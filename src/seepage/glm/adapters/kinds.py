"""A class of models: how one is read, or why it is refused and what to use instead.

A library's own classes are named, so that none has to be imported: see
:mod:`seepage.support.library_classes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM
from seepage.tables.source import Table

PAGE = "docs/how-to/models.md"
TUNED = (
    "The penalty was chosen by looking at the data; the choice counts as public here, and what it "
    "reveals is left out."
)

Read = Callable[[Any, Table, Any, Any], FittedGLM]


@dataclass(frozen=True)
class ModelKind:
    """A class of models, how one is read, and what its page says about it."""

    library: str  # the package that defines the class
    name: str  # of the class; for statsmodels, of the model behind the results
    read: Read  # from the fitted model, a table, labels and weights to the description
    objective: str  # what it minimises, for the page
    note: str = ""  # one sentence on what its audit leaves out
    # Whether an L1 penalty drops columns, so that the audit is of the columns it keeps
    selects: bool = False
    # ``nλ`` from the number of records and the total weight, where it depends on these
    penalty: Callable[[Any, int, float], float] | None = None


@dataclass(frozen=True)
class RefusedKind:
    """A class of models without an exact audit: one sentence why, one on what to use instead."""

    library: str
    name: str  # ``*`` for all of a library
    why: str
    instead: str

    def error(self) -> InputError:
        """Return the refusal, with the page that explains it."""
        return refusal(self.why, self.instead)


def refusal(why: str, instead: str) -> InputError:
    """Return a refusal in two sentences, with the page that lists all models."""
    return InputError(f"{why} {instead} See {PAGE}.")


def refuse_setting(model: Any, what: str, why: str, instead: str) -> InputError:
    """Return the refusal of a model of a known kind for one of its settings."""
    return refusal(f"{type(model).__name__} with {what} is not supported: {why}.", instead)
