"""Decide what every column of a table is for an audit, and turn the table into numbers.

Numeric columns are centred and divided by their standard deviation; a boolean column is 0 and 1; a
category becomes one 0/1 feature per level. The means, deviations and fills that this takes are
public constants to everything that follows: the leakage is that of the model, given them. What
cannot be used is refused, and what was done is remembered, one sentence each.

A table in memory becomes a source with one chunk; one that is read in chunks
(:class:`seepage.auditing.intake.parquet.TableInChunks`) answers the same questions by scans of its
columns, and is encoded again in every pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.files import steps_of
from seepage.auditing.trained_model import (
    ROW,
    Attribute,
    EncodedTable,
    LabelFacts,
    RecordsInMemory,
)
from seepage.errors import InputError, nearest
from seepage.streams.disk.encoding import TableEncoding
from seepage.streams.disk.files import Piece
from seepage.tables.encoded import Part, labels_of
from seepage.tables.facts import FEW, Facts, is_number, is_text, look_at, plain_numbers
from seepage.tables.names import SHOWN, counted, listed, shown
from seepage.tables.source import RowSource

if TYPE_CHECKING:
    from seepage.auditing.intake.parquet import TableInChunks

    TableToAudit: TypeAlias = "TableInMemory | TableInChunks"

MOST_LEVELS = 1000
MOST_CLASSES = 100
MOST_GROUPS = 100
MOST_BYTES = 8 * 10**9  # of an encoded table in memory
MISSING_SHARE = 0.99  # of a column: from there on it is dropped

_NUMBER = re.compile(r"[-+]?\d+\.?\d*")


@dataclass(frozen=True)
class ColumnPlan:
    """What every column of a table is used for."""

    # The column that is predicted: ``numeric``, ``count`` (whole numbers from 0 on), ``binary`` or
    # ``multiclass``
    target: str
    target_kind: str
    features: tuple[str, ...]  # the columns it is predicted from, in the order of the table
    # For every feature: ``numeric``, ``boolean`` (true and false, or 0 and 1) or ``categorical``
    kinds: dict[str, str]
    sensitive: tuple[str, ...] = ()  # features the caller worries about most
    # Columns whose values say which group a record belongs to, features or not
    groups: tuple[str, ...] = ()
    # What happens to a record with a missing value: ``refuse``, ``drop`` or ``impute``
    missing: str = "refuse"
    steps: tuple[str, ...] = field(default=())  # what was done so far, one sentence each

    @property
    def classes(self) -> bool:
        """Whether the target is a class."""
        return self.target_kind in ("binary", "multiclass")


class TableInMemory:
    """A table in memory: :func:`seepage.auditing.intake.files.read_file` reads one.

    Parameters
    ----------
    table
        The table.
    row_index
        The numbers of its rows in the caller's table; all of them where not given.
    unlabelled
        How many rows without a label were left out.
    """

    def __init__(
        self, table: pa.Table, row_index: np.ndarray | None = None, unlabelled: int = 0
    ) -> None:
        self.raw, self.names, self.rows = table, table.column_names, table.num_rows
        self.steps, self.unlabelled = steps_of(table), unlabelled
        self._row_index = np.arange(self.rows) if row_index is None else row_index

    def look(
        self, names: Sequence[str], codes: set[str], groups: Sequence[str]
    ) -> tuple[dict[str, Facts], dict[str, int | None]]:
        """Return the facts of some columns, and how many different values each group column has.

        ``codes`` are columns of numbers that are codes of categories. ``None`` stands for more
        different values than are counted, which does not happen in memory.
        """
        facts = {n: look_at(self.raw.column(n), as_codes=n in codes) for n in names}
        sizes: dict[str, int | None] = {}
        for name in groups:
            try:
                sizes[name] = len(pc.unique(self.raw.column(name)))
            except pa.ArrowNotImplementedError:
                raise InputError(
                    f"Column {shown(name)} cannot be grouped by: it is nested."
                ) from None
        return facts, sizes

    def complete(self, plan: ColumnPlan) -> TableInMemory:
        """Return the rows that are used as planned: with a label, and all features if so asked."""
        unlabelled = _gaps(self.raw.column(plan.target))
        incomplete = unlabelled.copy()
        for name in plan.features if plan.missing == "drop" else ():
            incomplete |= _gaps(self.raw.column(name))
        rows = np.flatnonzero(~incomplete)
        raw = self.raw if len(rows) == self.rows else self.raw.take(pa.array(rows))
        return TableInMemory(raw, rows, int(unlabelled.sum()))

    def part(self, name: str, kind: str) -> Part:
        """Return how a column of that kind is encoded."""
        return Part.of(name, self.raw.column(name), kind)

    def encoded(self, coding: TableEncoding, plan: ColumnPlan) -> tuple[RowSource, LabelFacts]:
        """Return the rows as numbers, one chunk of them, and the facts of their labels."""
        _check_size(self.rows, coding)
        place = self.names.index(plan.target)
        table = self.raw.set_column(place, plan.target, _target(self.raw, plan))
        batches = table.select(list(coding.columns)).to_batches()
        chunk = coding.encode([Piece(batch, "", 0) for batch in batches], 0, (), by_rows=True)
        beside = {g: labels_of(self.raw.column(g), missing="(missing)") for g in plan.groups}
        beside[ROW] = self._row_index
        source = RecordsInMemory(chunk.X, coding.names(), chunk.y, None, beside)
        return source, LabelFacts.of(chunk.y, plan.classes)


def plan_columns(
    table: TableToAudit,
    target: str,
    *,
    drop: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    groups: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "refuse",
) -> ColumnPlan:
    """Work out the kind of every column from its type and its values.

    Parameters
    ----------
    table
        The table.
    target
        The column to predict.
    drop
        Columns to leave out.
    sensitive
        Features to report cell by cell.
    groups
        Columns to compare groups by; one that is dropped still serves for that.
    categorical
        Columns of numbers that are codes of categories (the target too, for classes).
    missing
        ``"refuse"`` a table with gaps, ``"drop"`` the rows that have one, or ``"impute"`` the
        median or the most frequent value.

    Raises
    ------
    InputError
        For a name that is not a column, dates, nested or infinite values, too many categories, a
        target that is an identifier, has one value only or too many classes; gaps, unless
        ``missing`` says what to do; and when no feature is left.
    """
    _check_names(table.names, target, drop, sensitive, groups, categorical)
    if missing not in ("refuse", "drop", "impute"):
        raise InputError(f"missing must be 'refuse', 'drop' or 'impute', not {missing!r}.")
    wanted = [n for n in table.names if n not in {target, *drop}]
    facts, sizes = table.look([target, *wanted], set(categorical), groups)
    check_groups(sizes)
    steps = list(table.steps)
    kind = _target_kind(target, facts[target], as_classes=target in categorical)
    if kind == "count":
        steps.append(
            f"The target {shown(target)} holds whole numbers from 0 on, more than two of them: "
            "taken as counts; if they stand for classes, name it with --categorical."
        )
    useless = _useless(facts, wanted)
    _check_sensitive(sensitive, target, drop, useless)
    for reason, names in _by_reason(useless).items():
        steps.append(f"{counted(len(names), 'column')} dropped, {reason}: {listed(names)}.")
    if drop:
        steps.append(f"{counted(len(set(drop)), 'column')} left out as asked: {listed(drop)}.")
    features = tuple(n for n in wanted if n not in useless)
    _check_features(features, facts)
    numbers = [n for n in features if facts[n].kind == "numeric" and facts[n].integer]
    few = [n for n in numbers if facts[n].distinct <= FEW]
    if few:
        steps.append(
            f"{counted(len(few), 'column')} of few different whole numbers taken as numeric; if "
            f"they are codes of categories, use --categorical: {listed(few)}."
        )
    if not features:
        raise InputError("No column is left to predict the target from; see what was dropped.")
    if missing == "refuse":
        _check_no_gaps([target, *features], facts, facts[target].rows)
    return ColumnPlan(
        target=target,
        target_kind=kind,
        features=features,
        kinds={n: facts[n].kind for n in features},
        sensitive=tuple(dict.fromkeys(sensitive)),
        groups=tuple(dict.fromkeys(groups)),
        missing=missing,
        steps=tuple(steps),
    )


def _check_names(known: Sequence[str], target: str, *asked: Iterable[str]) -> None:
    """Refuse names that are no columns; the first of ``asked`` are those that are dropped."""
    if len(set(known)) < len(known):
        twice = next(n for n in known if known.count(n) > 1)
        raise InputError(f"Several columns are called {shown(twice)}; rename all but one.")
    for name in [target, *(n for names in asked for n in names)]:
        if name in known:
            continue
        close = nearest(name, [n for n in known if len(n) <= SHOWN])
        hint = close or f": the columns are {listed(known, 10)}"
        data = any(_NUMBER.fullmatch(n) for n in known)
        advice = "; if these are a record, the file has no header: use --no-header" if data else ""
        raise InputError(f"There is no column {shown(name)}{hint}{advice}.")
    if target in set(asked[0]):
        raise InputError(f"The target {shown(target)} cannot be dropped.")


def _target_kind(name: str, facts: Facts, *, as_classes: bool) -> str:
    who = f"The target {shown(name)}"
    _check_usable(who, facts)
    if facts.missing == facts.rows:
        raise InputError(f"{who} has no values at all, so there is nothing to predict.")
    if facts.distinct == 1:
        raise InputError(f"{who} has one value only, so there is nothing to predict.")
    if facts.identifier:
        raise InputError(
            f"{who} is an identifier: its values {facts.identifier}, so there is nothing to learn; "
            "name another column."
        )
    if facts.kind == "boolean" or (facts.distinct == 2 and facts.whole):
        return "binary"
    if facts.kind == "numeric" and not as_classes:
        return "count" if facts.integer and facts.least == 0 else "numeric"
    if facts.distinct > MOST_CLASSES:
        raise InputError(
            f"{who} has {_many(facts)} classes, and at most {MOST_CLASSES} can be told apart; "
            "name another column."
        )
    return "binary" if facts.distinct == 2 else "multiclass"


def _useless(facts: dict[str, Facts], wanted: Sequence[str]) -> dict[str, str]:
    """Return the features that say nothing, each with the reason in words."""
    out = {}
    for name in wanted:
        known = facts[name]
        if known.missing >= MISSING_SHARE * known.rows:
            out[name] = "99 % or more of their values missing"
        elif known.distinct == 1 and not known.refused:
            out[name] = "with one value only"
        elif known.identifier:
            out[name] = f"identifiers whose values {known.identifier}"
    return out


def _by_reason(useless: dict[str, str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name, reason in useless.items():
        out.setdefault(reason, []).append(name)
    return out


def _check_sensitive(
    sensitive: Sequence[str], target: str, drop: Sequence[str], useless: dict[str, str]
) -> None:
    for name in sensitive:
        if name == target:
            raise InputError(
                f"{shown(name)} is the target, whose leakage is always reported; leave it out of "
                "the sensitive columns."
            )
        if name in drop:
            raise InputError(f"{shown(name)} is both sensitive and dropped; decide for one.")
        if name in useless:
            raise InputError(
                f"The sensitive column {shown(name)} cannot be used ({useless[name]}); leave it "
                "out of the sensitive columns."
            )


def _check_features(features: Sequence[str], facts: dict[str, Facts]) -> None:
    dates = [n for n in features if facts[n].refused == "dates"]
    if dates:
        raise InputError(
            f"Dates and times cannot be used as they are: {listed(dates)}; turn each into a number "
            "(for instance days since a reference date), or leave it out with --drop."
        )
    for name in features:
        _check_usable(f"Column {shown(name)}", facts[name])
        levels = facts[name].distinct
        if facts[name].kind == "categorical" and levels > MOST_LEVELS:
            raise InputError(
                f"Column {shown(name)} has {_many(facts[name])} different values, and a category "
                f"may have at most {MOST_LEVELS:,}; put rare ones together, or leave the column "
                "out with --drop."
            )


def _check_usable(who: str, facts: Facts) -> None:
    if facts.refused == "dates":
        raise InputError(
            f"{who} holds dates or times; turn them into a number (for instance days since a "
            "reference date)."
        )
    if facts.refused:
        raise InputError(f"{who} holds {facts.refused}; turn it into plain numbers, or drop it.")
    if facts.almost_number is not None:
        where = f", first in row {facts.almost_number:,}" if facts.almost_number >= 0 else ""
        raise InputError(
            f"{who} holds numbers, but also text{where}; correct that, or name the column with "
            "--categorical if its values are codes."
        )


def _many(facts: Facts) -> str:
    return f"more than {facts.distinct - 1:,}" if facts.capped else f"{facts.distinct:,}"


def check_groups(sizes: Mapping[str, int | None]) -> None:
    """Refuse columns with too many different values to compare groups by."""
    for name, size in sizes.items():
        if size is None or size > MOST_GROUPS:
            levels = f"more than {MOST_LEVELS:,}" if size is None else f"{size:,}"
            raise InputError(
                f"Column {shown(name)} has {levels} different values, and at most {MOST_GROUPS} "
                "groups can be compared; put values together first (for instance into age bands)."
            )


def _check_no_gaps(names: Sequence[str], facts: dict[str, Facts], rows: int) -> None:
    gaps = [n for n in names if facts[n].missing]
    if gaps:
        worst = max(gaps, key=lambda n: facts[n].missing)
        raise InputError(
            f"{counted(len(gaps), 'column has', 'columns have')} missing values: {listed(gaps)} "
            f"(most in {shown(worst)}: {facts[worst].missing:,} of {rows:,}); say --missing drop "
            "to leave out those rows, or --missing impute to fill them."
        )


def encode(
    table: TableToAudit, plan: ColumnPlan, *, scale: bool = True, drop_first: bool = True
) -> EncodedTable:
    """Encode a table as planned.

    Parameters
    ----------
    table, plan
        The table, and what :func:`plan_columns` made of it.
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
    coding = TableEncoding(tuple(parts), plan.target, None, scale, drop_first)
    source, labels = used.encoded(coding, plan)
    steps.extend(_told_steps(parts, scale, drop_first))
    if not source.in_memory:
        steps.append(f"The data were read in chunks, {used.rows:,} records of them.")
    return EncodedTable(
        source=source,
        attributes=_attributes(coding),
        target=plan.target,
        target_kind=plan.target_kind,
        labels=labels,
        groups=plan.groups,
        sensitive=plan.sensitive,
        steps=tuple(steps),
        raw=used.raw,
    )


def _tell_lost(before: int, used: TableToAudit, steps: list[str]) -> None:
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


def _attributes(coding: TableEncoding) -> tuple[Attribute, ...]:
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


def _check_size(n: int, coding: TableEncoding) -> None:
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
