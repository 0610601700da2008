"""Turn a table into the numbers a linear model is fitted on, and remember what was done.

Numeric columns are centred and divided by their standard deviation; a boolean column is 0 and 1; a
category becomes one 0/1 feature per level. The means, deviations and fills that this takes are
public constants to everything that follows: the leakage is that of the model, given them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.columns import ColumnPlan
from seepage.auditing.intake.gaps import kept_rows
from seepage.errors import InputError
from seepage.tables.encoded import Part, encode_column, labels_of
from seepage.tables.facts import plain_numbers
from seepage.tables.names import counted, listed, shown, unique

MOST_BYTES = 8 * 10**9  # of the encoded table

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as numbers.

    Parameters
    ----------
    X
        The features, (n, d), float64, row by row in memory.
    names
        The name of every feature: the column's, or ``column=level`` for a level of a category.
    y
        The target, (n,): floats for ``numeric`` and ``count``; int64 or text (as objects) for
        classes. False and true are 0 and 1.
    target_kind
        What the target is: ``numeric``, ``count``, ``binary`` or ``multiclass``.
    attributes
        For every column that is used, the names of its features.
    kinds
        For every column that is used: ``numeric``, ``boolean`` or ``categorical``.
    units
        How much of its column's own unit one unit of every feature is, (d,): the standard deviation
        of a scaled column, otherwise 1.
    spread
        The standard deviation of every column in its own units; of a category, the root of the
        total variance of its one-hot code, ``√(1 − Σ p²)``.
    groups
        For every grouping column, the label of each record as text (``(missing)`` where it has
        none).
    row_index
        The row of the table each record was in, (n,).
    steps
        What was done to the data, one sentence each.
    raw
        The records as they came, all columns of them.
    drop_first
        Whether the first level of every category was left out, as a model with an intercept needs.
    target, sensitive
        The target's name, and the sensitive columns, all of which are in ``attributes``.
    """

    X: Array
    names: tuple[str, ...]
    y: Array
    target_kind: str
    attributes: dict[str, tuple[str, ...]]
    kinds: dict[str, str]
    units: Array
    spread: dict[str, float]
    groups: dict[str, Array]
    row_index: Array
    steps: tuple[str, ...]
    raw: pa.Table
    drop_first: bool = True
    target: str = "target"
    sensitive: tuple[str, ...] = ()

    def positions(self) -> dict[str, tuple[int, ...]]:
        """Return, for every column that is used, where its features stand in ``X``."""
        where = {name: j for j, name in enumerate(self.names)}
        return {column: tuple(where[n] for n in names) for column, names in self.attributes.items()}


def encode(
    table: pa.Table, plan: ColumnPlan, *, scale: bool = True, drop_first: bool = True
) -> Encoded:
    """Encode a table as planned.

    Parameters
    ----------
    table, plan
        The table, and what :func:`seepage.auditing.intake.columns.plan_columns` made of it.
    scale
        Whether to centre numeric columns and divide them by their standard deviations.
    drop_first
        Whether to leave out the first level of every category: with an intercept, all levels
        together would be one column too many.

    Raises
    ------
    InputError
        When no two rows are left, the target or a sensitive column is left with one value, or the
        encoded table would take more than 8 GB.
    """
    steps = list(plan.steps)
    rows = kept_rows(table, plan, steps)
    raw = table if rows is None else table.take(pa.array(rows))
    row_index = np.arange(table.num_rows) if rows is None else rows
    parts = _parts(raw, plan, steps)
    X, names, attributes, units = _fill(raw, parts, scale, drop_first)
    steps.extend(told_steps(parts, scale, drop_first))
    return Encoded(
        X=X,
        names=names,
        y=_target(raw.column(plan.target), plan),
        target=plan.target,
        target_kind=plan.target_kind,
        attributes=attributes,
        kinds={part.name: part.kind for part in parts},
        units=units,
        spread={part.name: part.spread for part in parts},
        groups={name: _group_labels(raw.column(name)) for name in plan.groups},
        sensitive=plan.sensitive,
        row_index=row_index,
        steps=tuple(steps),
        raw=raw,
        drop_first=drop_first,
    )


def _parts(raw: pa.Table, plan: ColumnPlan, steps: list[str]) -> list[Part]:
    """Describe how every column is encoded, leaving out those that are constant by now."""
    parts = [Part.of(name, raw.column(name), plan.kinds[name]) for name in plan.features]
    return usable_parts(parts, plan, steps)


def usable_parts(parts: Sequence[Part], plan: ColumnPlan, steps: list[str]) -> list[Part]:
    """Return the columns that vary, and write down what was filled and what is left out."""
    for part in parts:
        if part.filled:
            steps.append(
                f"{counted(part.filled, 'gap')} in {shown(part.name)} filled with its "
                f"{part.fill_is}, {part.fill_text}."
            )
    flat = [part.name for part in parts if part.constant]
    for name in plan.sensitive:
        if name in flat:
            raise InputError(
                f"The sensitive column {shown(name)} has one value only in the rows that are left."
            )
    if len(flat) == len(parts):
        raise InputError("Every feature has one value only in the rows that are left.")
    if flat:
        steps.append(
            f"{counted(len(flat), 'column')} dropped, with one value only in the rows that are "
            f"left: {listed(flat)}."
        )
    return [part for part in parts if not part.constant]


def _fill(
    raw: pa.Table, parts: list[Part], scale: bool, drop_first: bool
) -> tuple[Array, tuple[str, ...], dict[str, tuple[str, ...]], Array]:
    widths = [part.width(drop_first) for part in parts]
    n, d = raw.num_rows, sum(widths)
    if 8 * n * d > MOST_BYTES:
        widest = max(zip(widths, parts, strict=True), key=lambda pair: pair[0])
        raise InputError(
            f"Encoded, the table would have {n:,} rows and {d:,} columns and take "
            f"{8e-9 * n * d:.1f} GB, more than the {MOST_BYTES / 1e9:g} GB allowed; the most "
            f"columns come from {shown(widest[1].name)} ({widest[0]:,}): drop it, put "
            "levels together, or audit a sample of the rows."
        )
    X = np.zeros((n, d))
    units = np.ones(d)
    titles = unique(title for part in parts for title in part.titles(drop_first))
    attributes = {}
    start = 0
    for part, width in zip(parts, widths, strict=True):
        stop = start + width
        encode_column(part, raw.column(part.name), X[:, start:stop], scale, drop_first)
        if scale and part.kind == "numeric":
            units[start] = part.spread
        attributes[part.name] = tuple(titles[start:stop])
        start = stop
    return X, tuple(titles), attributes, units


def told_steps(parts: Sequence[Part], scale: bool, drop_first: bool) -> list[str]:
    """Return how the columns were encoded, one sentence each."""
    steps = []
    numeric = [part.name for part in parts if part.kind == "numeric"]
    if numeric:
        done = "centred and divided by their standard deviations" if scale else "used as they are"
        steps.append(f"{counted(len(numeric), 'numeric column')} {done}: {listed(numeric)}.")
    boolean = [part.name for part in parts if part.kind == "boolean"]
    if boolean:
        steps.append(f"{counted(len(boolean), 'column')} of 0 and 1 kept so: {listed(boolean)}.")
    levels = {part.name: part.width(drop_first) for part in parts if part.kind == "categorical"}
    if levels:
        first = ", all levels but the first in order" if drop_first else ""
        made = counted(sum(levels.values()), "column")
        steps.append(
            f"{counted(len(levels), 'category', 'categories')} written as {made} of 0 and 1"
            f"{first}: {listed(list(levels))}."
        )
    if scale and numeric:
        steps.append("The means and standard deviations used are taken to be public.")
    return steps


def _target(column: pa.ChunkedArray, plan: ColumnPlan) -> Array:
    if plan.target_kind in ("numeric", "count"):
        y = column.cast(pa.float64(), safe=False).to_numpy()
        return np.array(y, dtype=np.float64)
    classes = len(pc.unique(plain_numbers(column)))
    if classes < 2:
        raise InputError(
            f"The target {shown(plan.target)} has one value only in the rows that are left."
        )
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return labels_of(column)
    try:
        return np.array(column.cast(pa.int64()).to_numpy(), dtype=np.int64)
    except pa.ArrowInvalid:  # numbers with decimals, named as codes of classes
        return labels_of(column)


def _group_labels(column: pa.ChunkedArray) -> Array:
    return labels_of(column, missing="(missing)")
