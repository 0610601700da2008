"""Which rows of a table a caller means: positions, a mask, or the records of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError, nearest
from seepage.tables.frames import Table, as_numpy, check_length

Array = Any


def chosen_rows(rows: Any, table: Table) -> Array:
    """Return the positions that ``rows`` names: whole numbers, a mask, or ``None`` for all."""
    n = table.values.shape[0]
    if rows is None:
        positions = np.arange(n)
    else:
        positions = np.atleast_1d(as_numpy(rows))
        if positions.dtype == bool:
            check_length(positions, table, "the mask of rows")
            positions = np.flatnonzero(positions)
        if positions.dtype.kind not in "iu" or positions.ndim != 1:
            raise InputError("rows must be row positions (whole numbers) or a boolean mask.")
        if positions.size == 0:
            raise InputError("No row was chosen; give at least one.")
        outside = positions[(positions < -n) | (positions >= n)]
        if outside.size:
            raise InputError(f"There is no row {outside[0]}: the table has {n} rows.")
        positions = np.unique(positions % n)
    return array_namespace(table.values).asarray(positions, device=table.values.device)


def group_labels(labels: Any, table: Table, what: str) -> np.ndarray:
    """Return the group of every row as an array, or say which row has none."""
    values = as_numpy(labels)
    check_length(values, table, what)
    missing = [i for i, v in enumerate(values.tolist()) if v is None or v != v]
    if missing:
        raise InputError(
            f"The group of row {missing[0]} is missing; leave such rows out or name a group."
        )
    return values


def positions_of_each(group: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the positions of 0, of 1, …, of ``count − 1`` in an array of group numbers."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(1, count))
    return np.split(order, starts)


def rows_by_group(labels: Any, table: Table, only: Sequence[Any] | None) -> dict[Any, Array]:
    """Return the row positions of each group label, labels in sorted order."""
    xp = array_namespace(table.values)
    values = group_labels(labels, table, "the group labels")
    try:
        known, inverse = np.unique(values, return_inverse=True)
    except TypeError:  # labels of mixed types have no order of their own
        known, inverse = np.unique(values.astype(str), return_inverse=True)
    groups = {
        label: xp.asarray(rows, device=table.values.device)
        for label, rows in zip(known.tolist(), positions_of_each(inverse, len(known)), strict=True)
    }
    if only is None:
        return groups
    for label in only:
        if label not in groups:
            raise InputError(f"No record is in the group {label!r}{nearest(label, groups)}.")
    return {label: groups[label] for label in only}
