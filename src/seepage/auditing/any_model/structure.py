"""Structural risks: what a fitted model gives away by its construction, without any attack.

They follow the checks of output control in safe havens (SACRO): cells with few records, classes
that are disclosed with certainty, few degrees of freedom, records kept inside the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.support.library_classes import SEARCHES, own_name
from seepage.tables.source import as_numpy

FEW = 10  # records in a cell below which its contents are about too few records


@dataclass(frozen=True)
class StructuralRisk:
    """One thing that a model gives away by its construction."""

    name: str
    found: bool  # whether it does
    records: int  # how many records it is about
    among: int  # of how many
    # Of leaves: how many trees there are, and records in a small leaf of every one of them
    trees: int | None = None
    in_every_tree: int | None = None
    parameters: int | None = None  # about how many numbers the model has learnt
    keeper: str | None = None  # the class that keeps records as they are


def structural_risks(model: Any, X: Any, y: np.ndarray) -> tuple[StructuralRisk, ...]:
    """Return the structural risks of a model fitted on ``X``, an array or a frame, and ``y``.

    Of a pipeline or a search, the last model is examined on what the steps before make of ``X``.
    """
    last, features, before = _opened(model, X)
    risks = (
        _leaves(last, features),
        _stored((last, *before), len(y)),
        _certain_classes(model, X, y),
        _cells(model, X),
        _freedom(last, features),
    )
    return (*(risk for risk in risks if risk is not None), _single_levels(X))


def _opened(model: Any, X: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the model inside pipelines and searches, what it is given, and the steps before it."""
    before: tuple[Any, ...] = ()
    while (kind := own_name(model, "sklearn", ("Pipeline", *SEARCHES))) is not None:
        if kind == "Pipeline":
            before += tuple(step for _, step in model.steps[:-1])
            X = model[:-1].transform(X) if len(model.steps) > 1 else X
            model = model[-1]
        else:
            model = model.best_estimator_
    return model, X, before


def _leaves(model: Any, X: Any) -> StructuralRisk | None:
    """Count the records that share a leaf with few others, in at least one tree."""
    leaves = leaves_of(model, X)
    if leaves is None:
        return None
    records = len(leaves)
    few, always = np.zeros(records, bool), np.ones(records, bool)
    for tree in leaves.T:
        _, inverse, counts = np.unique(tree, return_inverse=True, return_counts=True)
        small = counts[inverse] < FEW
        few |= small
        always &= small
    return StructuralRisk(
        "leaves with few records",
        bool(few.any()),
        int(few.sum()),
        records,
        trees=leaves.shape[1],
        in_every_tree=int(always.sum()),
    )


def leaves_of(model: Any, X: Any) -> np.ndarray | None:
    """Return the leaf of every record in every tree, (n, trees), or ``None`` without trees."""
    apply = getattr(model, "apply", None)
    if apply is None:
        return None
    found = np.asarray(apply(X))
    return found.reshape(len(found), -1)


def _stored(parts: tuple[Any, ...], records: int) -> StructuralRisk | None:
    """Find records that the model, or a step before it, keeps as they are."""
    names = ("support_vectors_", "_fit_X")
    kept = [
        (int(np.shape(getattr(part, name))[0]), part)
        for part in parts
        for name in names
        if getattr(part, name, None) is not None
    ]
    if not kept:
        return None
    count, model = max(kept, key=lambda pair: pair[0])
    keeper = type(model).__name__
    return StructuralRisk("records inside the model", count > 0, count, records, keeper=keeper)


def _certain_classes(model: Any, X: Any, y: np.ndarray) -> StructuralRisk | None:
    """Count the records whose class is predicted correctly and with certainty."""
    if not hasattr(model, "predict_proba"):
        return None
    chances = np.asarray(model.predict_proba(X))
    own = np.searchsorted(model.classes_, y)
    sure = chances[np.arange(len(X)), own] >= 1 - 1e-12
    return StructuralRisk("class disclosure", bool(sure.any()), int(sure.sum()), len(X))


def _cells(model: Any, X: Any) -> StructuralRisk | None:
    """Count the records that share their prediction with few others."""
    if hasattr(model, "predict_proba"):
        answers = np.asarray(model.predict_proba(X))
    else:
        answers = np.asarray(model.predict(X))
        if answers.dtype.kind not in "fiu":
            return None
        answers = answers.reshape(len(X), -1)
    _, inverse, counts = np.unique(
        np.round(answers, 6), axis=0, return_inverse=True, return_counts=True
    )
    alone = counts[inverse.reshape(-1)] < FEW
    if len(counts) > len(X) / 2:  # answers that vary smoothly tell records apart anyway
        return None
    return StructuralRisk("answers shared by few", bool(alone.any()), int(alone.sum()), len(X))


def _freedom(model: Any, X: Any) -> StructuralRisk | None:
    """Compare the numbers a model has learnt with the records it learnt from."""
    count = parameters_of(model, X)
    if count is None:
        return None
    records = int(np.shape(X)[0])
    all_held = records - count < FEW
    about = records if all_held else 0
    return StructuralRisk("degrees of freedom", all_held, about, records, parameters=count)


def parameters_of(model: Any, X: Any) -> int | None:
    """Return how many numbers a model has learnt (leaves, weights); ``None`` if unknown."""
    leaves = leaves_of(model, X)
    if leaves is not None:
        return int(sum(len(np.unique(tree)) for tree in leaves.T))
    weights = getattr(model, "coefs_", None)
    if weights is not None:
        return int(sum(np.size(w) for w in [*weights, *model.intercepts_]))
    return None


def _single_levels(X: Any) -> StructuralRisk:
    """Count the records that alone have a value of a column with few values."""
    alone = np.zeros(len(X), bool)
    for column in _columns(X):
        values, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
        if len(values) <= 50:
            alone |= counts[inverse] == 1
    found, count = bool(alone.any()), int(alone.sum())
    return StructuralRisk("categories held by one row", found, count, len(X))


def _columns(X: Any) -> Iterator[np.ndarray]:
    """Yield the columns of an array or a data frame; those of objects as text, gaps included."""
    from sklearn.utils import _safe_indexing

    for j in range(np.shape(X)[1]):
        values = as_numpy(_safe_indexing(X, j, axis=1)).reshape(-1)
        yield values.astype(str) if values.dtype.kind == "O" else values
