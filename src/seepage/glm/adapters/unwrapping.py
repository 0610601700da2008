"""Open what holds a model: searches, pipelines, formulas, and penalties that leave columns out.

What comes out is a model that :func:`~seepage.glm.adapters.registry.describe` reads, the steps that
turn the caller's table into the one it was fitted on, and what an audit leaves out, in sentences.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.adapters.kinds import SEARCHES, ModelKind, refusal
from seepage.glm.adapters.registry import kind_of
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.formula import FormulaStep, takes_frame
from seepage.glm.preprocessing.steps import FeatureStep, KeptColumns
from seepage.tables.source import as_numpy

SEARCHED = (
    "The search itself looked at the data: that these settings won counts as public here, and what "
    "it tells is left out."
)

SELECTED = (
    "It was read as the model of the columns with coefficients other than zero, with their signs "
    "as they are: that another record might bring other columns in, and what the choice of these "
    "columns tells, is left out."
)


@dataclass(frozen=True)
class Unwrapped:
    """A model that is read as it is, the steps before it, and what is left out."""

    model: Any
    steps: tuple[FeatureStep, ...] = ()
    notes: tuple[str, ...] = ()


def unwrap(model: Any, X: Any) -> Unwrapped:
    """Open a fitted model that was fitted on the table ``X``."""
    if type(model).__name__ in SEARCHES:
        inner = unwrap(best_of(model), X)
        return Unwrapped(inner.model, inner.steps, (SEARCHED, *inner.notes))
    if type(model).__name__ == "Pipeline":
        before = Chain.of_pipeline(model[:-1], X)
        inner = unwrap(model[-1], before.transform(X) if before.steps else X)
        return Unwrapped(inner.model, (*before.steps, *inner.steps), inner.notes)
    kind = kind_of(model)
    if takes_frame(model, X):
        return Unwrapped(model, (FormulaStep.of(model),), _notes(kind))
    if kind.selects:
        coef = as_numpy(getattr(model, "coef_", np.ones(1))).reshape(-1)
        if not _has_signs(model):
            return Unwrapped(model, (), _notes(kind))
        notes = (SELECTED, *_notes(kind))
        if np.any(coef == 0):
            return Unwrapped(*_kept(model, coef), notes)
        return Unwrapped(model, (), notes)
    return Unwrapped(model, (), _notes(kind))


def best_of(search: Any) -> Any:
    """Return the best model of a search, which was fitted on all records."""
    if not hasattr(search, "best_estimator_"):
        raise InputError(
            f"This {type(search).__name__} has no best model: call fit first, with refit=True."
        )
    return search.best_estimator_


def _notes(kind: ModelKind) -> tuple[str, ...]:
    return (kind.note,) if kind.note else ()


def _has_signs(model: Any) -> bool:
    """Say whether there is an L1 penalty at all, which some models may do without."""
    ratio = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0))
    return bool(np.any(np.asarray(ratio if ratio is not None else 0.0, dtype=float) > 0))


def _kept(model: Any, coef: np.ndarray) -> tuple[Any, tuple[FeatureStep, ...]]:
    """Return the model of the columns whose coefficients are not zero, and those columns."""
    columns = np.flatnonzero(coef)
    if not len(columns):
        raise refusal(
            "The penalty left no column in, so the model is a constant and has no coefficients to "
            "release.",
            "Fit with a smaller penalty.",
        )
    smaller = copy(model)
    smaller.coef_ = as_numpy(model.coef_)[..., columns]
    smaller.n_features_in_ = len(columns)
    smaller.__dict__.pop("feature_names_in_", None)
    return smaller, (KeptColumns(columns),)
