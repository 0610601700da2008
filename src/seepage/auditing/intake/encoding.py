"""Turn a table into the numbers a linear model is fitted on, and remember what was done.

Numeric columns are centred and divided by their standard deviation; a boolean column is 0 and 1; a
category becomes one 0/1 feature per level. The means, deviations and fills that this takes are
public constants to everything that follows: the leakage is that of the model, given them.

A table in memory becomes a source with one chunk; one that is read in chunks
(:class:`seepage.auditing.intake.parquet.TableInChunks`) is encoded again in every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.columns import ColumnPlan
from seepage.auditing.intake.files import steps_of
from seepage.auditing.trained_model import ROW, Attribute, LabelFacts, RecordsInMemory
from seepage.errors import InputError
from seepage.streams.disk.coding import Coding
from seepage.streams.disk.files import Piece
from seepage.tables.encoded import Part, labels_of
from seepage.tables.facts import Facts, is_number, is_text, look_at, plain_numbers
from seepage.tables.names import counted, listed, shown
from seepage.tables.source import RowSource

MOST_BYTES = 8 * 10**9  # of an encoded table in memory


class TableToAudit(Protocol):
    """What an audit asks of a table before it is numbers, wherever its rows are."""

    @property
    def names(self) -> list[str]:
        """The names of its columns."""

    @property
    def rows(self) -> int:
        """How many rows it has."""

    @property
    def steps(self) -> Sequence[str]:
        """What was done to it so far, one sentence each."""

    def look(
        self, names: Sequence[str], codes: set[str], groups: Sequence[str]
    ) -> tuple[dict[str, Facts], dict[str, int | None]]:
        """Return the facts of some columns, and how many different values each group column has.

        ``codes`` are columns of numbers that are codes of categories. ``None`` stands for more
        different values than are counted.
        """

    def complete(self, plan: ColumnPlan) -> CompleteTable:
        """Return the rows that are used as planned: a label is needed, and features if so asked."""


class CompleteTable(Protocol):
    """The rows of a table that have all the values they need."""

    @property
    def rows(self) -> int:
        """How many they are."""

    @property
    def unlabelled(self) -> int:
        """How many rows of the table have no label."""

    @property
    def raw(self) -> pa.Table | None:
        """The rows as they came, all columns of them, where they are in memory."""

    def part(self, name: str, kind: str) -> Part:
        """Return how a column of that kind is encoded."""

    def encoded(self, coding: Coding, groups: Sequence[str]) -> RowSource:
        """Return the rows as numbers; their groups and numbers can be read besides."""

    def labels(self, classes: bool) -> LabelFacts:
        """Return what is known of the labels."""


class TableInMemory:
    """A table in memory: :func:`seepage.auditing.intake.files.read_file` reads one."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.names, self.rows = table, table.column_names, table.num_rows
        self.steps = steps_of(table)

    def look(
        self, names: Sequence[str], codes: set[str], groups: Sequence[str]
    ) -> tuple[dict[str, Facts], dict[str, int | None]]:
        """Return the facts of some columns, and how many different values each group column has."""
        facts = {n: look_at(self.table.column(n), as_codes=n in codes) for n in names}
        sizes: dict[str, int | None] = {}
        for name in groups:
            try:
                sizes[name] = len(pc.unique(self.table.column(name)))
            except pa.ArrowNotImplementedError:
                raise InputError(
                    f"Column {shown(name)} cannot be grouped by: it is nested."
                ) from None
        return facts, sizes

    def complete(self, plan: ColumnPlan) -> CompleteTableInMemory:
        """Return the rows that are used as planned."""
        unlabelled = _gaps(self.table.column(plan.target))
        incomplete = unlabelled.copy()
        for name in plan.features if plan.missing == "drop" else ():
            incomplete |= _gaps(self.table.column(name))
        rows = np.flatnonzero(~incomplete)
        raw = self.table if len(rows) == self.rows else self.table.take(pa.array(rows))
        return CompleteTableInMemory(raw, rows, int(unlabelled.sum()), plan)


class CompleteTableInMemory:
    """The rows of a table in memory that are used, with their numbers in it."""

    def __init__(
        self, raw: pa.Table, row_index: np.ndarray, unlabelled: int, plan: ColumnPlan
    ) -> None:
        self.raw, self.rows, self.unlabelled = raw, raw.num_rows, unlabelled
        self._row_index, self._plan = row_index, plan

    def part(self, name: str, kind: str) -> Part:
        """Return how a column of that kind is encoded."""
        return Part.of(name, self.raw.column(name), kind)

    def encoded(self, coding: Coding, groups: Sequence[str]) -> RecordsInMemory:
        """Return the rows as numbers, one chunk of them."""
        _check_size(self.rows, coding)
        place = self.raw.column_names.index(coding.target)
        table = self.raw.set_column(place, coding.target, _target(self.raw, self._plan))
        batches = table.select(list(coding.columns)).to_batches()
        chunk = coding.encode([Piece(batch, "", 0) for batch in batches], 0, (), by_rows=True)
        beside = {g: labels_of(self.raw.column(g), missing="(missing)") for g in groups}
        beside[ROW] = self._row_index
        self._y = chunk.y
        return RecordsInMemory(chunk.X, coding.names(), chunk.y, None, beside)

    def labels(self, classes: bool) -> LabelFacts:
        """Return what is known of the labels."""
        return LabelFacts.of(self._y, classes)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as numbers.

    Parameters
    ----------
    source
        The records: features, labels, numbers in the table and groups (text, ``(missing)`` for
        none).
    coding
        How columns became features.
    attributes
        Every column that is used, with its features. Its spread is the standard deviation in its
        own units; of a category, the root of the total variance of its one-hot code, ``√(1 − Σ
        p²)``.
    target, target_kind, labels
        The target's name, ``numeric``, ``count``, ``binary`` or ``multiclass``, and its facts.
        Labels are floats for ``numeric`` and ``count``, whole numbers or text for classes; false
        and true are 0 and 1.
    groups, sensitive
        The columns to compare groups by, and those that are sensitive, all among the attributes.
    steps
        What was done to the data, one sentence each.
    raw
        The records as they came, all columns of them, where they are in memory.
    """

    source: RowSource
    coding: Coding
    attributes: tuple[Attribute, ...]
    target: str
    target_kind: str
    labels: LabelFacts
    groups: tuple[str, ...]
    sensitive: tuple[str, ...]
    steps: tuple[str, ...]
    raw: pa.Table | None

    def values(self) -> dict[str, list[str]]:
        """Return the caller's cells as text."""
        if self.raw is None:
            raise InputError("The values of data that are read in chunks are not kept.")
        return {
            name: ["" if cell is None else str(cell) for cell in self.raw.column(k).to_pylist()]
            for k, name in enumerate(self.raw.column_names)
        }


def encode(
    table: TableToAudit, plan: ColumnPlan, *, scale: bool = True, drop_first: bool = True
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
        encoded table would take more than 8 GB of memory.
    """
    steps = list(plan.steps)
    used = table.complete(plan)
    _tell_lost(table.rows, used, steps)
    parts = _usable_parts([used.part(n, plan.kinds[n]) for n in plan.features], plan, steps)
    coding = Coding(tuple(parts), plan.target, None, scale, drop_first)
    source = used.encoded(coding, plan.groups)
    steps.extend(_told_steps(parts, scale, drop_first))
    if used.raw is None:
        steps.append(f"The data were read in chunks, {used.rows:,} records of them.")
    return Encoded(
        source=source,
        coding=coding,
        attributes=_attributes(coding),
        target=plan.target,
        target_kind=plan.target_kind,
        labels=used.labels(classes=plan.target_kind in ("binary", "multiclass")),
        groups=plan.groups,
        sensitive=plan.sensitive,
        steps=tuple(steps),
        raw=used.raw,
    )


def _tell_lost(before: int, used: CompleteTable, steps: list[str]) -> None:
    """Say which rows go; a missing target is never filled: such a row trains nothing."""
    lost, gone = used.unlabelled, before - used.rows
    if used.rows < 2:
        raise InputError(
            f"{counted(used.rows, 'row is', 'rows are')} left of {before:,} once those with "
            "missing values are dropped, and an audit needs two or more; drop the columns with the "
            "most gaps, or use --missing impute."
        )
    if lost:
        steps.append(f"{counted(lost, 'row')} dropped for a missing target.")
    if gone > lost:
        steps.append(
            f"{counted(gone - lost, 'row')} dropped for a missing value in a feature, of "
            f"{before:,}."
        )


def _usable_parts(parts: Sequence[Part], plan: ColumnPlan, steps: list[str]) -> list[Part]:
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


def _attributes(coding: Coding) -> tuple[Attribute, ...]:
    """Return every column with its features, and how far they move for one unit of it."""
    found, start = [], 0
    for part in coding.parts:
        width = part.width(coding.drop_first)
        unit = part.spread if coding.scale and part.kind == "numeric" else 1.0
        columns = tuple(range(start, start + width))
        found.append(Attribute(part.name, part.kind, columns, np.eye(width) / unit, part.spread))
        start += width
    return tuple(found)


def _told_steps(parts: Sequence[Part], scale: bool, drop_first: bool) -> list[str]:
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


def _check_size(n: int, coding: Coding) -> None:
    widths = [part.width(coding.drop_first) for part in coding.parts]
    d = sum(widths)
    if 8 * n * d > MOST_BYTES:
        widest = max(zip(widths, coding.parts, strict=True), key=lambda pair: pair[0])
        raise InputError(
            f"Encoded, the table would have {n:,} rows and {d:,} columns and take "
            f"{8e-9 * n * d:.1f} GB, more than the {MOST_BYTES / 1e9:g} GB allowed; the most "
            f"columns come from {shown(widest[1].name)} ({widest[0]:,}): drop it, put "
            "levels together, or audit a sample of the rows."
        )


def _target(table: pa.Table, plan: ColumnPlan) -> pa.Array | pa.ChunkedArray:
    """Return the labels: floats, or classes as whole numbers or text."""
    column = table.column(plan.target)
    if plan.target_kind in ("numeric", "count"):
        return column.cast(pa.float64(), safe=False)
    if len(pc.unique(plain_numbers(column))) < 2:
        raise InputError(
            f"The target {shown(plan.target)} has one value only in the rows that are left."
        )
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int64())
    if not is_text(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:  # numbers with decimals, named as codes of classes
            pass
    return pa.array(labels_of(column), pa.string())


def _gaps(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    if is_number(column.type):
        column = plain_numbers(column)
    if column.null_count == 0:
        return np.zeros(len(column), dtype=bool)
    return np.asarray(pc.is_null(column).to_numpy())
