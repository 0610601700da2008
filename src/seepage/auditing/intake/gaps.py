"""Which rows of a table are kept where values are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.columns import ColumnPlan
from seepage.errors import InputError
from seepage.tables.facts import is_number, plain_numbers
from seepage.tables.names import counted


def kept_rows(table: pa.Table, plan: ColumnPlan, steps: list[str]) -> np.ndarray[Any, Any] | None:
    """Return the positions of the rows that are kept, ``None`` for all, and note what goes.

    A missing target is never filled: such a row trains nothing.
    """
    unlabelled = _gaps(table.column(plan.target))
    lost = int(unlabelled.sum())
    if plan.missing == "drop":
        incomplete = unlabelled.copy()
        for name in plan.features:
            incomplete |= _gaps(table.column(name))
    else:
        incomplete = unlabelled
    gone = int(incomplete.sum())
    left = table.num_rows - gone
    if left < 2:
        raise InputError(
            f"{counted(left, 'row is', 'rows are')} left of {table.num_rows:,} once those with "
            "missing values are dropped, and an audit needs two or more; drop the columns with the "
            "most gaps, or use --missing impute."
        )
    if lost:
        steps.append(f"{counted(lost, 'row')} dropped for a missing target.")
    if gone > lost:
        steps.append(
            f"{counted(gone - lost, 'row')} dropped for a missing value in a feature, of "
            f"{table.num_rows:,}."
        )
    return np.flatnonzero(~incomplete) if gone else None


def _gaps(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    if is_number(column.type):
        column = plain_numbers(column)
    if column.null_count == 0:
        return np.zeros(len(column), dtype=bool)
    return np.asarray(pc.is_null(column).to_numpy())
