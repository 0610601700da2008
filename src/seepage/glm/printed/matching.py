"""Match the records of several specifications, and the people they belong to.

Records are matched by row labels. A label must identify one record. If rows were renumbered after a
record was dropped, labels would match different people. The differences between specifications,
which leak most, would then be meaningless. So the values that two specifications have for the same
label are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from seepage.core.people import Together, identities
from seepage.errors import InputError
from seepage.tables.names import counted

_OUTCOME = " (endogenous)"
_REMEDY = (
    "fit all specifications on rows of one data frame and keep its index (no reset_index after "
    "dropping rows)"
)


def matched(results: Sequence[Any]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the positions of each specification's rows among all records, and all labels."""
    labels = [one.model.data.row_labels for one in results]
    sizes = [len(one.model.endog) for one in results]
    if any(label is None for label in labels):
        if len(set(sizes)) > 1:
            raise InputError(
                "The specifications have different numbers of records, and no row labels to match "
                "them by; fit them on pandas data frames, whose rows have labels."
            )
        return [np.arange(size) for size in sizes], np.arange(sizes[0])
    place: dict[Any, int] = {}
    rows = []
    for label in labels:
        if len(set(label)) < len(label):
            raise InputError(
                "Two rows have the same label, so records cannot be matched; call "
                "reset_index(drop=True) on the data frame before fitting."
            )
        rows.append(np.array([place.setdefault(one, len(place)) for one in label]))
    index = np.empty(len(place), dtype=object)
    index[:] = list(place)
    columns = [_named_columns(one.model) for one in results]
    for first, second in combinations(range(len(results)), 2):
        pair = columns[first], columns[second]
        _check_same(pair, (rows[first], rows[second]), (first + 1, second + 1), index)
    return rows, index


def people_of(person: Any, index: np.ndarray) -> Together:
    """Return the records of each person, from identities in row order or by label."""
    try:
        values = np.asarray(person)
    except ValueError:  # lists of different lengths
        values = np.empty(())
    if values.ndim == 0:
        raise InputError(
            f"person must contain one identity per record, not {person!r}; pass the column "
            "itself, such as person=data['id']."
        )
    if hasattr(person, "reindex") and hasattr(person, "iloc") and values.ndim == 1:
        values = by_label(person, index, "person", "identity")
    if values.shape != index.shape:
        raise InputError(
            f"person has {counted(len(values), 'identity', 'identities')} (shape {values.shape}), "
            f"but the table has {counted(len(index), 'record')}; pass a pandas series with the "
            "labels of all rows."
        )
    source: Any = index
    together = Together.of("people", identities(values, source))
    if len(together.sets) == 1:
        raise InputError(
            "person has the same identity for all records, so there are no other people to "
            "compare with; use a different identity for each person, or omit person=."
        )
    return together


def by_label(series: Any, index: np.ndarray, what: str, entry: str) -> np.ndarray:
    """Return the entries of a series in the order of the records."""
    known = dict(zip(series.index, series, strict=True))
    if len(known) < len(series):
        raise InputError(
            f"{what} has two rows with the same label; pass a series with one {entry} per label."
        )
    absent = [label for label in index if label not in known]
    if absent:
        raise InputError(
            f"{what} has no {entry} for {len(absent):,} of {len(index):,} records (the first is "
            f"row {absent[0]!r}). Pass a series with the labels of all rows, or {what}.to_numpy() "
            "if it has the same order."
        )
    values = np.empty(len(index), dtype=object)
    values[:] = [known[label] for label in index]
    return values


def _named_columns(model: Any) -> dict[str, np.ndarray]:
    """Return the named columns, and the endogenous variable if it has a name."""
    given, found = model.data, {}
    if hasattr(given.orig_exog, "columns"):
        values = np.asarray(model.exog, dtype=float)
        found = dict(zip(map(str, model.exog_names), values.T, strict=True))
    outcome = given.orig_endog
    if hasattr(outcome, "columns") or getattr(outcome, "name", None) is not None:
        found[f"{model.endog_names}{_OUTCOME}"] = np.asarray(model.endog, dtype=float)
    return found


def _check_same(
    columns: tuple[dict[str, np.ndarray], dict[str, np.ndarray]],
    rows: tuple[np.ndarray, np.ndarray],
    numbers: tuple[int, int],
    index: np.ndarray,
) -> None:
    """Raise an error if one label identifies different records in two specifications.

    No error is raised if only a record's group or a column's scale differs. Columns recomputed from
    fewer records, such as splines, are accepted if an outcome with many distinct values agrees.
    """
    names = [name for name in columns[0] if name in columns[1]]
    common, *places = np.intersect1d(*rows, return_indices=True)
    if not names or not len(common):
        return
    where = f"Specifications {numbers[0]} and {numbers[1]}"
    differs = np.zeros((len(names), len(common)), dtype=bool)
    for k, name in reversed(list(enumerate(names))):  # the outcome first
        first, second = (one[name][at] for one, at in zip(columns, places, strict=True))
        size = np.abs(first).max() or 1.0
        differs[k] = ~np.isclose(first / size, second / size)
        many = 2 * len(np.unique(first)) > len(common)
        if name.endswith(_OUTCOME) and many and not differs[k].any():
            return
        if 2 * differs[k].sum() > len(common) and not _rescaled(first, second):
            raise InputError(
                f"{where} have different values of {name} for {differs[k].sum():,} of "
                f"{len(common):,} common row labels, so a label does not identify one record. "
                f"{_REMEDY[0].upper()}{_REMEDY[1:]}, or rename the column if its meaning differs."
            )
    moved = _elsewhere(columns, names, places, np.flatnonzero(differs.any(axis=0)))
    # A single record may have changed its group, and be like another by chance.
    vary = np.array([np.ptp(columns[0][name]) > 0 for name in names])
    sure = len(moved) > 1 or (vary.sum() > 1 and bool(differs[vary][:, moved].all()))
    if sure and 2 * len(moved) > differs.any(axis=0).sum():
        worst = names[int(np.argmax(differs[:, moved].sum(axis=1)))]
        raise InputError(
            f"{where} have the same records under different row labels (first seen in column "
            f"{worst} at row {index[common[moved[0]]]!r}); {_REMEDY}."
        )


def _rescaled(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether values differ but have the same or the reverse order, as logarithms do."""
    if 2 * np.isin(second, first).sum() > len(second):
        return False
    return any(
        np.all(np.diff(there[np.lexsort((there, first))]) >= 0) for there in (second, -second)
    )


def _elsewhere(
    columns: tuple[dict[str, np.ndarray], dict[str, np.ndarray]],
    names: Sequence[str],
    places: Sequence[np.ndarray],
    asked: np.ndarray,
) -> np.ndarray:
    """Return which records of the second table match exactly one different record of the first."""
    every = [np.column_stack([one[name] for name in names]) for one in columns]
    counts = Counter(row.tobytes() for row in every[0])
    second = every[1][places[1]]
    return np.array([k for k in asked if counts[second[k].tobytes()] == 1], dtype=int)
