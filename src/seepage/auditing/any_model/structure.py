"""Structural risks of a fitted model, found without any attack.

The risks follow the output checks of safe havens for data (SACRO). These checks look for few
degrees of freedom, cells with few records, classes disclosed with certainty, records stored inside
the model, and needlessly risky settings. Each risk is a number for the model and, if applicable,
for every record. The limits are output checkers' rules of thumb, not bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.auditing.any_model.parts import (
    Part,
    leaves_of,
    numbers_learnt,
    parts_of,
    records_kept,
)
from seepage.auditing.any_model.settings_risk import rules_met
from seepage.auditing.findings import FEW, StructuralRisk
from seepage.tables.frames import columns_as_they_are

_NO_LEAVES = "The model has no trees, or does not report their leaves."


@dataclass(frozen=True, eq=False)
class Structure:
    """The structural risks of a model, with per-record results by risk name."""

    risks: tuple[StructuralRisk, ...]
    records: Mapping[str, np.ndarray]


def examine(model: Any, X: Any, y: np.ndarray) -> Structure:
    """Return the structural risks of a model fitted on ``X``, an array or a frame, and ``y``.

    Models inside pipelines, searches, voting ensembles and calibrated classifiers are examined on
    their own inputs.
    """
    parts, kept = list(parts_of(model, X)), dict[str, np.ndarray]()
    trees = [(part, _leaves(part)) for part in parts]
    found = [leaves for _, leaves in trees if leaves is not None]
    # All records in a leaf of a single tree get one answer, which other leaves may give as well
    one_tree = len(found) == 1 and found[0].shape[1] == 1
    answers = found[0] if one_tree else _answers(model, X)
    risks = (
        _small_leaves(found, len(y), kept),
        _stored(parts, len(y), kept),
        _stated_classes(model, X, y, kept),
        _classes_ruled_out(model, X, kept),
        *_cells(answers, y, _is_classifier(model), kept),
        _freedom(trees, len(y)),
        _settings(parts, len(y)),
        _single_levels(X, kept),
    )
    return Structure(risks, kept)


def _leaves(part: Part) -> np.ndarray | None:
    return None if part.X is None else leaves_of(part.model, part.X)


def _is_classifier(model: Any) -> bool:
    return getattr(model, "classes_", None) is not None


def _answers(model: Any, X: Any) -> np.ndarray:
    """Return the model's output for each record, (n, k): probabilities or predictions."""
    if hasattr(model, "predict_proba"):
        return np.round(np.asarray(model.predict_proba(X), dtype=float), 6)
    said = np.asarray(model.predict(X))
    if said.dtype.kind in "fiub":
        return np.round(said.reshape(len(said), -1).astype(float), 6)
    return np.unique(said, return_inverse=True)[1].reshape(len(said), 1)


def _small_leaves(
    found: list[np.ndarray], records: int, kept: dict[str, np.ndarray]
) -> StructuralRisk:
    """Count the records that are in a leaf with fewer than ten records in at least one tree."""
    name = "leaves with few records"
    if not found:
        return StructuralRisk(name, None, 0, records, reason=_NO_LEAVES)
    leaves = np.column_stack(found)
    smallest = np.full(records, records)
    always = np.ones(records, bool)
    for tree in leaves.T:
        _, inverse, counts = np.unique(tree, return_inverse=True, return_counts=True)
        size = counts[inverse]
        smallest = np.minimum(smallest, size)
        always &= size < FEW
    kept["smallest_leaf"] = smallest
    few = smallest < FEW
    return StructuralRisk(
        name,
        bool(few.any()),
        int(few.sum()),
        records,
        float(smallest.min()),
        FEW,
        "ACRO's default",
        trees=leaves.shape[1],
        in_every_tree=int(always.sum()),
    )


def _stored(parts: list[Part], records: int, kept: dict[str, np.ndarray]) -> StructuralRisk:
    """Find records that the model, or a step before it, stores verbatim."""
    inside, most, keeper = np.zeros(records, bool), 0, None
    for part in parts:
        rows = records_kept(part.model)
        if rows is None:
            continue
        count = rows if isinstance(rows, int) else len(rows)
        if isinstance(rows, int) and rows >= records:
            inside[:] = True
        elif not isinstance(rows, int) and rows.max(initial=-1) < records:
            inside[rows] = True
        if count > most:
            most, keeper = count, type(part.model).__name__
    kept["kept_in_model"] = inside
    return StructuralRisk(
        "records inside the model", most > 0, most, records, float(most), 0.0, keeper=keeper
    )


def _stated_classes(
    model: Any, X: Any, y: np.ndarray, kept: dict[str, np.ndarray]
) -> StructuralRisk:
    """Count the records whose class is predicted correctly with certainty."""
    name = "class disclosure"
    if not hasattr(model, "predict_proba"):
        return StructuralRisk(name, None, 0, len(y), reason=_no_probabilities(model))
    chances = np.asarray(model.predict_proba(X))
    own = np.searchsorted(model.classes_, y)
    sure = chances[np.arange(len(y)), own] >= 1 - 1e-12
    kept["class_stated"] = sure
    count = int(sure.sum())
    return StructuralRisk(name, count > 0, count, len(y), float(count), 0.0)


def _classes_ruled_out(model: Any, X: Any, kept: dict[str, np.ndarray]) -> StructuralRisk:
    """Count the records for which some class has probability zero, to within 10⁻⁸."""
    name, records = "classes ruled out", int(np.shape(X)[0])
    if not hasattr(model, "predict_proba"):
        return StructuralRisk(name, None, 0, records, reason=_no_probabilities(model))
    never = np.any(np.isclose(np.asarray(model.predict_proba(X)), 0.0), axis=1)
    kept["class_ruled_out"] = never
    count = int(never.sum())
    return StructuralRisk(name, count > 0, count, records, float(count), 0.0, "SACRO-ML")


def _no_probabilities(model: Any) -> str:
    kind = "states no probabilities" if _is_classifier(model) else "predicts numbers, not classes"
    return f"The model {kind}."


def _cells(
    answers: np.ndarray, y: np.ndarray, classes: bool, kept: dict[str, np.ndarray]
) -> tuple[StructuralRisk, StructuralRisk]:
    """Count the records that share each prediction (k-anonymity), in total and by class."""
    _, cell, counts = np.unique(answers, axis=0, return_inverse=True, return_counts=True)
    cell, records = cell.reshape(-1), len(y)
    kept["same_answer"] = counts[cell]
    few = counts[cell] < FEW
    # As smooth models and sums of many trees have: that few share an answer is then no finding
    own = len(counts) > records / 2 and answers.dtype.kind == "f"
    reason = (
        f"The model makes {len(counts):,} different predictions for {records:,} records. With so "
        "many different predictions, few records share one, whatever the model has learnt."
        if own
        else ""
    )
    alone = StructuralRisk(
        "answers shared by few",
        None if own else bool(few.any()),
        int(few.sum()),
        records,
        float(counts.min()),
        FEW,
        "ACRO's default",
        reason,
    )
    name = "small groups"
    if not classes:
        why = "The model predicts numbers, not classes."
        return alone, StructuralRisk(name, None, 0, records, reason=why)
    _, label = np.unique(y, return_inverse=True)
    table = np.zeros((len(counts), label.max() + 1), dtype=int)
    np.add.at(table, (cell, label.reshape(-1)), 1)
    held = np.where(table > 0, table, records).min(axis=1)
    small = held[cell] < FEW
    kept["small_group"] = small
    group = StructuralRisk(
        name,
        None if own else bool(small.any()),
        int(small.sum()),
        records,
        float(held.min()),
        FEW,
        "SACRO-ML",
        reason,
    )
    return alone, group


def _freedom(trees: list[tuple[Part, np.ndarray | None]], records: int) -> StructuralRisk:
    """Compare the number of learnt parameters with the number of records."""
    name = "degrees of freedom"
    models = [(part, leaves) for part, leaves in trees if part.X is not None]
    counts = [numbers_learnt(part.model, part.X, leaves) for part, leaves in models]
    if any(count is None for count in counts):
        unknown = next(p.model for (p, _), c in zip(models, counts, strict=True) if c is None)
        reason = f"The number of parameters that {type(unknown).__name__} has learnt is unknown."
        return StructuralRisk(name, None, 0, records, reason=reason)
    learnt = sum(count for count in counts if count is not None)
    return StructuralRisk.of_freedom(learnt, records)


def _settings(parts: list[Part], records: int) -> StructuralRisk:
    """Count how many published rules on needlessly risky settings the model matches."""
    name = "settings"
    counts = [rules_met(part.model, records) for part in parts if part.X is not None]
    known = [count for count in counts if count is not None]
    if not known:
        models = sorted({type(part.model).__name__ for part in parts if part.X is not None})
        reason = f"No rule has been published for {', '.join(models)}."
        return StructuralRisk(name, None, 0, records, reason=reason)
    met = max(known)
    about = records if met else 0
    return StructuralRisk(name, met > 0, about, records, float(met), 0.0, "Preen and Smith 2025")


def _single_levels(X: Any, kept: dict[str, np.ndarray]) -> StructuralRisk:
    """Count the records with a unique value in some column of at most 50 different values."""
    columns = columns_as_they_are(X)
    alone = np.zeros(len(columns[0][1]), bool)
    for _, column in columns:
        values = column if column.dtype.kind == "f" else column.astype(str)
        known, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        if len(known) <= 50:
            alone |= counts[inverse] == 1
    kept["only_holder"] = alone
    count = int(alone.sum())
    return StructuralRisk(
        "categories held by one row", count > 0, count, len(alone), float(count), 0.0
    )
