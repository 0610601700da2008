"""What is known of a class of models: how one is read, or why it is refused and what is instead.

Classes are known by name, so that no library has to be imported.
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
    "The penalty was chosen by looking at the data, which counts as public here: what the choice "
    "itself tells is left out."
)
SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")

Read = Callable[[Any, Table, Any, Any], FittedGLM]


@dataclass(frozen=True)
class ModelKind:
    """A class of models, how one is read, and what there is to say about it."""

    library: str  # the package that defines the class
    name: str  # of the class; of statsmodels that of the results' model
    read: Read  # from the fitted model, a table, labels and weights to the description
    objective: str  # what it minimises, for the page
    note: str = ""  # what an audit of it leaves out, a sentence
    # Whether an L1 penalty leaves columns out, so that the model is one of those it keeps
    selects: bool = False
    # ``nλ`` of a model of so many records and so much weight, where it depends on these
    penalty: Callable[[Any, int, float], float] | None = None


@dataclass(frozen=True)
class RefusedKind:
    """A class of models without an exact audit: a sentence why, and one on the nearest thing."""

    library: str
    name: str  # ``*`` for all of a library
    why: str
    instead: str

    def error(self) -> InputError:
        """Return the refusal, with the page on which it stands."""
        return refusal(self.why, self.instead)


def refusal(why: str, instead: str) -> InputError:
    """Return a refusal in two sentences, with the page that has all models."""
    return InputError(f"{why} {instead} See {PAGE}.")


def refuse_setting(model: Any, what: str, instead: str) -> InputError:
    """Return the refusal of a model of a known kind for one of its settings."""
    return InputError(
        f"A {type(model).__name__} with {what} is not supported; {instead}. See {PAGE}."
    )
