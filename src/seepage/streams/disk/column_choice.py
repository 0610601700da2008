"""Which columns of a table are features, and which labels are classes: the same for all sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from seepage.errors import InputError, nearest
from seepage.streams.disk.column_scan import ColumnSums
from seepage.tables.facts import is_text


def choose_columns(
    known: Sequence[str], target: str, weight: str | None, columns: Sequence[str] | None
) -> list[str]:
    """Return the columns of the features: the named ones, or all but the label and the weight."""
    known = list(known)
    if len(set(known)) < len(known):
        twice = next(n for n in known if known.count(n) > 1)
        raise InputError(f"Several columns are called {twice!r}; rename all but one.")
    special = [target] if weight is None else [target, weight]
    if isinstance(columns, str):
        columns = [columns]
    wanted = [n for n in known if n not in special] if columns is None else list(columns)
    for name in [*special, *wanted]:
        check_column(name, known)
    for name in wanted:
        if name in special:
            raise InputError(f"Column {name!r} cannot be both a feature and the label or weight.")
        if wanted.count(name) > 1:
            raise InputError(f"Column {name!r} was named twice.")
    if not wanted:
        raise InputError("There is no column left for the features.")
    return wanted


def check_column(name: str, known: Sequence[str]) -> None:
    """Refuse a name that no column has."""
    if name not in known:
        raise InputError(f"There is no column {name!r}{nearest(name, known)}.")


def class_levels(sums: ColumnSums, kind: pa.DataType, target: str) -> np.ndarray:
    """Return the different labels, sorted, from what a scan found of them."""
    if sums.missing:
        raise InputError(f"The labels in column {target!r} have {sums.missing:,} gaps.")
    if sums.levels is None:
        raise InputError(
            f"Column {target!r} has more than 1,000 different values, too many to be "
            "classes; fit a regression, or name another column."
        )
    if pa.types.is_floating(kind) and not sums.whole:
        raise InputError(
            f"Column {target!r} holds numbers with decimals, which are no classes; fit a "
            "regression, or name another column."
        )
    return np.asarray(sorted(sums.levels), dtype=object if is_text(kind) else None)
