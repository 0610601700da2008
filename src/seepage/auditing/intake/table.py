"""Determines the role of each column of a table, and encodes the table.

Numeric columns are centred and divided by their standard deviation. A two-valued numeric column
becomes 0 and 1, and a category becomes one 0/1 feature per level. Means, standard deviations and
imputed values count as public constants: leakage is measured with these values fixed. Columns
without information are dropped, other unusable columns raise an error, and each step is recorded in
a sentence.

Columns are summarised by sums over pieces of the table. A table in memory is a single piece, and
becomes a source with one chunk. A table read in chunks
(:class:`seepage.auditing.intake.parquet.TableInChunks`) is encoded again in every pass. Medians,
and counts of more than 1,000 different values, need a whole column, so they are computed only in
memory.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.files import steps_of
from seepage.auditing.intake.identities import (
    check_identifiers,
    is_same_within,
    panel_notices,
    people_of_rows,
)
from seepage.auditing.questions import ReleaseQuestion
from seepage.auditing.trained_model import (
    FEWEST_ROWS,
    ROW,
    Attribute,
    EncodedTable,
    LabelFacts,
    RecordsInMemory,
)
from seepage.core.result import round_to_multiple, round_up
from seepage.errors import InputError, nearest
from seepage.tables.columns import (
    ENOUGH,
    FEW,
    MOST_LEVELS,
    Column,
    ColumnEncoding,
    ColumnProfile,
    ColumnSums,
    Piece,
    Scan,
    TableEncoding,
    complete_rows,
    decoded,
    first_text,
    floats,
    is_text,
    labels_of,
    level_names,
    plain_numbers,
    plain_type,
    profile_column,
    refuse_repeated,
    scan,
    typed_levels,
)
from seepage.tables.names import SHOWN, counted, listed, shown
from seepage.tables.source import RowSource

MOST_BYTES = 8 * 10**9  # of an encoded table in memory
# The grid of the units of columns; 1 is not one of its points, because many tables are already
# whitened, and a spread at a point would follow every record.
UNITS = (2.0, 5.0)
MOST_CLASSES = 100  # that a target may have
FEW_CODES = 10  # different whole numbers of a target up to which they may be codes of classes
MISSING_SHARE = 0.99  # share of a column's values: above it the column is dropped

_NUMBER = re.compile(r"[-+]?\d+\.?\d*")


@dataclass(frozen=True)
class ColumnPlan:
    """The role of each column of a table."""

    # The column that is predicted: ``numeric``, ``count`` (whole numbers from 0 on), ``binary`` or
    # ``multiclass``
    target: str
    target_kind: str
    features: tuple[str, ...]  # the columns it is predicted from, in the order of the table
    # For every feature: ``numeric``, ``boolean`` (two values) or ``categorical``
    kinds: dict[str, str]
    sums: Scan  # what was found about every column examined
    sensitive: tuple[str, ...] = ()  # features the caller worries about most
    # Columns whose values say which group a record belongs to, features or not
    groups: tuple[str, ...] = ()
    # What happens to a record with a missing value: ``refuse``, ``drop`` or ``impute``
    missing: str = "refuse"
    person: str | None = None  # the column that says whose row it is
    steps: tuple[str, ...] = ()  # what was done so far, one sentence each
    notices: tuple[str, ...] = ()  # what must be read before any number, one sentence each
    # How many different whole numbers a target has that is taken for a number or a count, where
    # they are so few that they may be codes of classes
    codes: int = 0

    @property
    def classes(self) -> bool:
        """Whether the target is a class."""
        return self.target_kind in ("binary", "multiclass")


@dataclass(frozen=True, eq=False)
class LabelCoding:
    """States how labels are read: as numbers of a type, or as class names."""

    kind: pa.DataType
    levels: pa.Array | None = None  # the classes as they are in the table
    names: pa.Array | None = None  # and as they are called

    def __call__(self, column: Column) -> Column:
        """Return the labels in a column, read in this way."""
        if self.levels is None:
            return column.cast(self.kind, safe=False)
        return pc.take(self.names, pc.index_in(plain_numbers(decoded(column)), self.levels))


class TableToAudit(ABC):
    """A table to audit, in memory or read in chunks."""

    names: Sequence[str]  # its columns
    rows: int  # how many
    schema: pa.Schema  # the types of the columns
    steps: Sequence[str]  # what had to be changed to read it, one sentence each
    raw: pa.Table | None = None  # the table itself, where it is in memory
    manner: Sequence[str] = ()  # how the rows are read, one sentence each
    hypothetical: bool = False  # whether nobody has this table, or reads notices about it

    @abstractmethod
    def total(self, columns: Sequence[str], function: Callable[[Sequence[Piece]], Any]) -> Any:
        """Return a function's results, summed over all pieces; columns may include :data:`ROW`."""

    def scan(self, columns: Sequence[str]) -> Scan:
        """Return the sums of columns over all rows."""
        found: Scan = self.total(columns, scan)
        return found

    @abstractmethod
    def complete(self, needed: Sequence[str]) -> TableToAudit:
        """Return the rows without missing values in these columns."""

    @abstractmethod
    def encoded(
        self, coding: TableEncoding, labels: LabelCoding, groups: Sequence[str]
    ) -> RowSource:
        """Return the encoded rows, with their groups and row numbers."""

    def owned(self, source: RowSource, person: str) -> RowSource:
        """Return the encoded rows, each with its person from the identifying column."""
        raise InputError(
            "All rows of a person are changed together, so they must be in memory, but this table "
            "is read in chunks. Audit a sample of the people, with all of their rows."
        )

    def group_count(self, name: str, sums: ColumnSums) -> int | None:
        """Return the number of groups, with missing values as a group; ``None`` if unknown."""
        if sums.levels is not None:
            return len(sums.levels) + (sums.missing > 0)
        if self.raw is None:
            return None
        try:
            return len(pc.unique(plain_numbers(self.raw.column(name))))
        except pa.ArrowNotImplementedError:
            raise InputError(
                f"Column {shown(name)} cannot define groups because its values are nested; choose "
                "another column."
            ) from None

    def profile(self, name: str, sums: ColumnSums, as_codes: bool) -> ColumnProfile:
        """Return the column's profile; ``as_codes`` reads numbers as category codes."""
        # Whether the values may be row numbers, in any order and from any starting number
        spanned = sums.missing == 0 and sums.most - sums.least == sums.rows - 1
        counts_up = spanned and sums.whole and sums.rows >= ENOUGH
        if counts_up:
            counts_up = not self.total([name, ROW], partial(_surplus, least=sums.least)) % 2**64
        return profile_column(
            sums,
            self.schema.field(name).type,
            as_codes=as_codes,
            counts_up=counts_up,
            column=None if self.raw is None else self.raw.column(name),
        )


class TableInMemory(TableToAudit):
    """A table in memory, as :func:`seepage.auditing.intake.files.read_file` reads it.

    ``row_index`` contains the row numbers in the caller's table; by default, all rows in order.
    """

    raw: pa.Table

    def __init__(self, table: pa.Table, row_index: np.ndarray | None = None) -> None:
        self.raw, self.names, self.rows = table, table.column_names, table.num_rows
        self.schema, self.steps = table.schema, steps_of(table)
        self._row_index = np.arange(self.rows) if row_index is None else row_index
        self._sums, self._scales = Scan(), dict[tuple[str, float], tuple[float, float]]()

    def total(self, columns: Sequence[str], function: Callable[[Sequence[Piece]], Any]) -> Any:
        """Return the function's result on the only piece."""
        found = [self._row_index if n == ROW else self.raw.column(n) for n in columns]
        return function([Piece(pa.table(found, names=list(columns)), "", 0)])

    def scan(self, columns: Sequence[str]) -> Scan:
        """Return the sums of columns over all rows; every column is read once."""
        unknown = [name for name in columns if name not in self._sums]
        self._sums.update(self.total(unknown, scan))
        return Scan({name: self._sums[name] for name in columns})

    def central_scale(self, name: str, deviation: float) -> tuple[float, float]:
        """Return robust estimates of a column's centre and spread (see :func:`central_scale`)."""
        if (name, deviation) not in self._scales:
            values = floats(plain_numbers(self.raw.column(name)))
            self._scales[name, deviation] = central_scale(values, deviation)
        return self._scales[name, deviation]

    def complete(self, needed: Sequence[str]) -> TableInMemory:
        """Return the rows without missing values in these columns."""
        rows = np.flatnonzero(complete_rows(self.raw, needed))
        return TableInMemory(self.raw.take(pa.array(rows)), self._row_index[rows])

    def encoded(
        self, coding: TableEncoding, labels: LabelCoding, groups: Sequence[str]
    ) -> RecordsInMemory:
        """Return the encoded rows, in one chunk."""
        places = coding.places()
        n, d = self.rows, places[-1][1].stop
        if 8 * n * d > MOST_BYTES:
            widest, at = max(places, key=lambda place: place[1].stop - place[1].start)
            raise InputError(
                f"Encoded, the table would have {n:,} rows and {d:,} columns and need "
                f"{8e-9 * n * d:.1f} GB, more than the {MOST_BYTES / 1e9:g} GB allowed. "
                f"{shown(widest.name)} accounts for {at.stop - at.start:,} of these columns; drop "
                "it, merge its levels, or audit a sample of the rows."
            )
        place, target = self.names.index(coding.target), self.raw.column(coding.target)
        table = self.raw.set_column(place, coding.target, labels(target))
        batches = table.select(list(coding.columns)).to_batches()
        chunk = coding.encode([Piece(batch, "", 0) for batch in batches], 0, (), by_rows=True)
        beside = {g: labels_of(self.raw.column(g), missing="(missing)") for g in groups}
        beside[ROW] = self._row_index
        return RecordsInMemory(chunk.X, coding.names(), chunk.y, None, beside)

    def owned(self, source: RowSource, person: str) -> RecordsInMemory:
        """Return the encoded rows, each with its person from the identifying column."""
        return cast(RecordsInMemory, source).of_people(
            people_of_rows(self.raw.column(person), person)
        )


def _surplus(pieces: Sequence[Piece], least: float) -> int:
    """Return the sum of hashed values (less ``least``) minus that of hashed row numbers.

    Over all rows, the result is zero modulo 2⁶⁴ if the values are row numbers in any order, and
    otherwise only with probability 2⁻⁶⁴. Unlike a set of all values, this sum needs little memory.
    """
    total = 0
    for piece in pieces:
        values = (floats(piece.batch.column(0)) - least).astype(np.int64)
        rows = np.asarray(piece.batch.column(1))
        total += int(_mixed(values).sum()) - int(_mixed(rows).sum())
    return total


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of integers, by the mixing function of SplitMix64 (Steele et al., 2014)."""
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _first_texts(pieces: Sequence[Piece]) -> list[int]:
    """Return, for each piece that has one, the first row whose text is not a number."""
    found = [(piece.batch.column(1), first_text(piece.batch.column(0))) for piece in pieces]
    return [int(rows[k].as_py()) for rows, k in found if k is not None]


def plan_columns(
    table: TableToAudit,
    target: str,
    *,
    drop: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    groups: Sequence[str] = (),
    categorical: Sequence[str] = (),
    quantities: Sequence[str] = (),
    missing: str = "refuse",
    person: str | None = None,
    classes: bool = False,
) -> ColumnPlan:
    """Determine the kind of each column from its type and values.

    A column of ``groups`` that is dropped can still define the groups to compare. ``categorical``
    lists columns whose numbers are category codes; a target in this list is read as classes.
    ``quantities`` lists two-valued numeric columns that are continuous quantities, such as doses;
    other two-valued columns count as categories, measured in whole levels. ``missing`` states how
    to treat missing values: ``"refuse"`` raises an error, ``"drop"`` drops their rows, and
    ``"impute"`` fills in the median or the most frequent value. ``person`` is the column that
    identifies people; it is not a feature. ``classes`` reads a target with at most 100 different
    integers as classes.

    An error is raised for names that are not columns, for values that cannot be used (such as
    dates, nested or infinite values, or numbers mixed with text), for too many categories, and for
    tables without features. A target that is an identifier, has only one value or has too many
    classes also raises an error. So do columns named like an identifier, unless their role is
    stated, and missing values, unless ``missing`` allows them.
    """
    whose = () if person is None else (person,)
    _check_names(table.names, target, drop, sensitive, groups, categorical, quantities, whose)
    if person is not None and person in (target, *sensitive):
        raise InputError(
            f"The target {shown(target)} cannot also identify people; name another column."
            if person == target
            else f"{shown(person)} identifies people and is not a feature, so the model reveals "
            "nothing about it; do not list it as sensitive."
        )
    if missing not in ("refuse", "drop", "impute"):
        raise InputError(f"missing must be 'refuse', 'drop' or 'impute', not {missing!r}.")
    wanted = [n for n in table.names if n not in {target, *drop, *whose}]
    categorical, quantities = (
        [n for n in names if n not in whose] for names in (categorical, quantities)
    )
    sums = table.scan(list(dict.fromkeys([target, *wanted, *groups])))
    profiles = {n: table.profile(n, sums[n], n in categorical) for n in (target, *wanted)}
    for name in quantities:
        if profiles[name].kind == "categorical":
            coded = name in categorical
            why = "is also in --categorical" if coded else "does not contain finite numbers"
            raise InputError(
                f"Column {shown(name)} {why}, so it cannot be a quantity; remove it from "
                "--quantity."
            )
        profiles[name] = replace(profiles[name], kind="numeric")
    check_groups({n: table.group_count(n, sums[n]) for n in groups})
    steps = list(table.steps)
    known = profiles[target]
    coded = classes and known.whole and known.distinct <= MOST_CLASSES
    kind = _target_kind(table, target, known, as_classes=coded or target in categorical)
    codes = 0
    if kind in ("numeric", "count") and known.whole and target not in quantities:
        codes = known.distinct if known.distinct <= FEW_CODES else 0
    if kind == "count" and not codes:
        steps.append(
            f"The target {shown(target)} contains more than two different integers, the smallest "
            "of them 0, and was read as counts; if they are classes, use --categorical."
        )
    useless = _useless(profiles, wanted, sensitive, target, drop)
    for reason in dict.fromkeys(useless.values()):
        names = [n for n, why in useless.items() if why == reason]
        steps.append(
            f"{counted(len(names), 'column was', 'columns were')} dropped ({reason}): "
            f"{listed(names)}."
        )
    if drop:
        steps.append(
            f"{counted(len(set(drop)), 'column was', 'columns were')} dropped as requested: "
            f"{listed(drop)}."
        )
    features = tuple(n for n in wanted if n not in useless)
    settled = (*categorical, *quantities)
    check_identifiers(features, profiles, settled)
    _check_features(table, features, profiles)
    notices: tuple[str, ...] = ()
    if not (whose or table.hypothetical):
        notices = tuple(panel_notices(table.raw, features, sums, settled))
    numbers = [n for n in features if profiles[n].kind == "numeric" and profiles[n].integer]
    few = [n for n in numbers if profiles[n].distinct <= FEW]
    if few:
        steps.append(
            f"{counted(len(few), 'column', 'columns')} with few distinct integers "
            f"{'was' if len(few) == 1 else 'were'} treated as numeric: {listed(few)}. If the "
            "integers are category codes, use --categorical."
        )
    if not features:
        raise InputError(
            "No feature is left to predict the target from; add a column, or drop fewer."
        )
    gaps = [n for n in (target, *features) if profiles[n].missing]
    if missing == "refuse" and gaps:
        worst = max(gaps, key=lambda n: profiles[n].missing)
        raise InputError(
            f"{counted(len(gaps), 'column has', 'columns have')} missing values: {listed(gaps)} "
            f"(most in {shown(worst)}: {profiles[worst].missing:,} of {profiles[worst].rows:,}). "
            "Use --missing drop to drop those rows or, for an audit, --missing impute to fill the "
            "gaps of features."
        )
    return ColumnPlan(
        target=target,
        target_kind=kind,
        features=features,
        kinds={n: profiles[n].kind for n in features},
        sums=sums,
        sensitive=tuple(dict.fromkeys(sensitive)),
        groups=tuple(dict.fromkeys(groups)),
        missing=missing,
        person=person,
        steps=tuple(steps),
        notices=notices,
        codes=codes,
    )


def _check_names(known: Sequence[str], target: str, *asked: Iterable[str]) -> None:
    """Raise an error for names that are not columns; ``asked[0]`` contains the dropped columns."""
    refuse_repeated(known)
    for name in [target, *(n for names in asked for n in names)]:
        if name in known:
            continue
        close = nearest(name, [n for n in known if len(n) <= SHOWN])
        hint = close or f": the columns are {listed(known, 10)}"
        if not close and any(_NUMBER.fullmatch(n) for n in known):
            hint += "; if these are the values of a record, the file has no header: use --no-header"
        raise InputError(f"There is no column {shown(name)}{hint}.")
    if target in set(asked[0]):
        raise InputError(
            f"The target {shown(target)} cannot be dropped; choose another target, or do not drop "
            "it."
        )


def _target_kind(
    table: TableToAudit, name: str, profile: ColumnProfile, *, as_classes: bool
) -> str:
    who = f"The target {shown(name)}"
    _check_usable(table, name, who, profile, "choose another column")
    if profile.missing == profile.rows:
        raise InputError(
            f"{who} has no values, so there is nothing to predict; choose another column."
        )
    if profile.distinct == 1:
        raise InputError(
            f"{who} has only one value, so there is nothing to predict; choose another column."
        )
    if profile.identifier:
        raise InputError(
            f"{who} is an identifier: its values {profile.identifier}, so there is nothing to "
            "learn; choose another column."
        )
    if profile.distinct == 2 and profile.whole:
        return "binary"
    if profile.kind != "categorical" and not as_classes:
        return "count" if profile.integer and profile.least == 0 else "numeric"
    if profile.distinct > MOST_CLASSES:
        raise InputError(
            f"{who} has {_many(profile)} classes, but at most {MOST_CLASSES} are supported; choose "
            "another column, or merge classes."
        )
    return "binary" if profile.distinct == 2 else "multiclass"


def _useless(
    profiles: dict[str, ColumnProfile],
    wanted: Sequence[str],
    sensitive: Sequence[str],
    target: str,
    drop: Sequence[str],
) -> dict[str, str]:
    """Return the features without information, each with the reason; none may be sensitive."""
    out = {}
    for name in wanted:
        known = profiles[name]
        if known.missing >= MISSING_SHARE * known.rows:
            out[name] = "99 % or more missing"
        elif known.distinct == 1 and not known.refused:
            out[name] = "only one value"
        elif known.identifier:
            out[name] = f"identifier: values {known.identifier}"
    for name in sensitive:
        if name == target:
            raise InputError(
                f"{shown(name)} is the target, whose leakage is always reported; do not list it as "
                "sensitive."
            )
        if name in drop:
            raise InputError(f"{shown(name)} is both sensitive and dropped; choose one.")
        if name in out:
            raise InputError(
                f"The sensitive column {shown(name)} cannot be used ({out[name]}); do not list "
                "it as sensitive."
            )
    return out


def _check_features(
    table: TableToAudit, features: Sequence[str], profiles: dict[str, ColumnProfile]
) -> None:
    dates = [n for n in features if profiles[n].refused == "dates"]
    if dates:
        raise InputError(
            f"Dates and times cannot be used directly: {listed(dates)}; convert each to a number "
            "(for instance days since a reference date), or drop it with --drop."
        )
    for name in features:
        _check_usable(table, name, f"Column {shown(name)}", profiles[name], "drop it")
        levels = profiles[name].distinct
        if profiles[name].kind == "categorical" and levels > MOST_LEVELS:
            raise InputError(
                f"Column {shown(name)} has {_many(profiles[name])} different values, but a "
                f"category may have at most {MOST_LEVELS:,}; merge rare values, or drop the column "
                "with --drop."
            )


def _check_usable(
    table: TableToAudit, name: str, who: str, profile: ColumnProfile, otherwise: str
) -> None:
    if profile.refused == "dates":
        raise InputError(
            f"{who} contains dates or times; convert them to numbers (for instance days since a "
            "reference date)."
        )
    if profile.refused:
        raise InputError(
            f"{who} contains {profile.refused}; convert it to plain numbers, or {otherwise}."
        )
    if profile.almost_numbers:
        row = min(table.total([name, ROW], _first_texts))
        raise InputError(
            f"{who} contains numbers and also text (first in row {row:,}); correct the text, or "
            "use --categorical for this column if its values are codes."
        )


def _many(profile: ColumnProfile) -> str:
    return f"more than {profile.distinct - 1:,}" if profile.capped else f"{profile.distinct:,}"


def check_groups(sizes: Mapping[str, int | None]) -> None:
    """Raise an error for group columns with too many different values."""
    most = 1000  # the information about each is a matrix
    for name, size in sizes.items():
        if size is None or size > most:
            levels = f"more than {MOST_LEVELS:,}" if size is None else f"{size:,}"
            raise InputError(
                f"Column {shown(name)} has {levels} different values, but at most {most:,} groups "
                "can be compared; merge values first (for instance into age bands)."
            )


def encode(
    table: TableToAudit,
    plan: ColumnPlan,
    *,
    scale: bool = True,
    drop_first: bool = True,
    public: Mapping[str, tuple[float, float]] | None = None,
    public_records: TableInMemory | None = None,
    scaling: Mapping[str, tuple[float, float]] | None = None,
) -> EncodedTable:
    """Encode a table as planned by :func:`plan_columns`.

    ``scale`` centres numeric columns and divides them by their standard deviations. With
    ``public``, the centre and scale may be published: they are derived from a column's declared
    domain, or are on a coarse grid. ``drop_first`` omits the first level of each category, since
    with an intercept all levels together are collinear. ``public_records``, a table with the same
    columns, is encoded in the same way. With ``scaling``, the numeric columns instead use the
    given centres and scales, with which a model has been fitted.
    """
    steps = list(plan.steps)
    needed = [plan.target, *(plan.features if plan.missing == "drop" else ())]
    needed = [n for n in needed if plan.sums[n].missing]
    used = table.complete(needed) if needed else table
    if needed and used.rows < FEWEST_ROWS:
        # Refused for a release, and for numbers that are read in chunks
        imputable = public is None and table.raw is not None
        remedy = (
            "provide more rows with a target"
            if needed == [plan.target]
            else "drop the columns with the most gaps"
            f"{', or use --missing impute' if imputable else ''} (rows without a target are always "
            "dropped)"
        )
        raise InputError(
            f"{counted(used.rows, 'row is', 'rows are')} left of {table.rows:,} after dropping "
            f"rows with missing values, but at least {FEWEST_ROWS} are needed; {remedy}."
        )
    # A missing target is never filled: such a row trains nothing.
    unlabelled = plan.sums[plan.target].missing
    if unlabelled:
        were = counted(unlabelled, "row was", "rows were")
        steps.append(f"{were} dropped because of a missing target.")
    if table.rows - used.rows > unlabelled:
        were = counted(table.rows - used.rows - unlabelled, "row was", "rows were")
        steps.append(f"{were} dropped (of {table.rows:,}) because of a missing value in a feature.")
    sums = used.scan([plan.target, *plan.features]) if needed else plan.sums
    parts = _varying_parts(used, plan, sums, steps)
    if public is not None:
        whole = cast(TableInMemory, used)  # a release is made of a table in memory
        parts = [_publicly_scaled(p, sums[p.name], public, whole) for p in parts]
    own = parts
    if scaling is not None:
        given = (scaling.get(part.name, (0.0, 1.0)) for part in parts)
        parts = [replace(p, centre=c, unit=u) for p, (c, u) in zip(parts, given, strict=True)]
    coding = TableEncoding(tuple(parts), plan.target, None, scale, drop_first)
    labels, known = _code_labels(plan, used.schema.field(plan.target).type, sums[plan.target])
    source = used.encoded(coding, labels, plan.groups)
    if plan.person is not None:
        source = used.owned(source, plan.person)
        steps.append(
            f"All rows of a person count together: {shown(plan.person)} identifies people and is "
            "not a feature."
        )
    steps.extend(_told_steps(coding, sums, public is not None, scaling is not None))
    steps.extend(used.manner)
    return EncodedTable(
        source=source,
        attributes=_attributes(coding, own, given=scaling is not None),
        target=plan.target,
        target_kind=plan.target_kind,
        labels=known,
        groups=plan.groups,
        sensitive=plan.sensitive,
        steps=tuple(steps),
        notices=plan.notices,
        person=plan.person,
        same=_same_within(used, plan) if plan.person is not None else frozenset(),
        raw=used.raw,
        coding=coding,
        public=None if public_records is None else _alike(public_records, coding, labels),
    )


def _same_within(table: TableToAudit, plan: ColumnPlan) -> frozenset[str]:
    """Return the columns, including the target, that are constant for each person."""
    raw, whose = cast(pa.Table, table.raw), cast(str, plan.person)  # people are in memory
    person = people_of_rows(raw.column(whose), whose)
    columns = {name: raw.column(name) for name in (plan.target, *plan.features)}
    return frozenset(name for name, cells in columns.items() if is_same_within(cells, person))


def _alike(table: TableInMemory, coding: TableEncoding, labels: LabelCoding) -> RecordsInMemory:
    """Return the records of another table, encoded like the audited table."""
    lacking = [name for name in coding.columns if name not in table.names]
    if lacking:
        raise InputError(f"The public records have no column {shown(lacking[0])}; add it.")
    fewest = 10  # below, they say too little about the shape
    if table.rows < fewest or labels(table.raw.column(coding.target)).null_count:
        raise InputError(
            f"Provide at least {fewest} public records, each with a label that occurs in the "
            "audited table."
        )
    return table.encoded(coding, labels, ())


def _publicly_scaled(
    part: ColumnEncoding,
    sums: ColumnSums,
    domain: Mapping[str, tuple[float, float]],
    table: TableInMemory,
) -> ColumnEncoding:
    """Return the encoding with a centre and unit that may be published.

    For a declared domain, the centre is its middle and the unit a quarter of its width. Otherwise,
    the unit is rounded up to an especially coarse grid, because one unit per column is published,
    and the centre is rounded to a multiple of the unit.
    """
    if part.kind != "numeric":
        return part
    if part.name in domain:
        low, high = domain[part.name]
        if sums.least < low or sums.most > high:
            raise InputError(
                f"Column {shown(part.name)} has values outside its declared domain from {low:g} to "
                f"{high:g}; declare a wider domain, or correct the values."
            )
        centre, unit = (low + high) / 2, (high - low) / 4
    else:
        middle, spread = table.central_scale(part.name, part.spread)
        unit = round_up(spread, UNITS)
        centre = round_to_multiple(middle, unit)
    return replace(part, centre=centre, unit=unit, spread=unit)


def central_scale(values: np.ndarray, deviation: float) -> tuple[float, float]:
    """Return robust estimates of a column's centre and spread.

    The estimates are the mean and standard deviation of a normal distribution with the column's
    central 90 % interval, which is 3.29 standard deviations wide. Adding, removing or replacing a
    record moves each end of the interval at most to an adjacent value. If the interval is a single
    value, the spread is ``deviation``, the column's standard deviation.
    """
    # The same as np.quantile(…, method="inverted_cdf"), which takes three times as long
    places = [max(0, math.ceil(share * len(values) - 1)) for share in (0.05, 0.95)]
    low, high = np.partition(values, places)[places].tolist()
    return (low + high) / 2, (high - low) / 3.2897 if high > low else deviation


def _code_labels(
    plan: ColumnPlan, stored: pa.DataType, sums: ColumnSums
) -> tuple[LabelCoding, LabelFacts]:
    """Return how the labels are read, and a summary of the labels."""
    if not plan.classes:
        known = LabelFacts(sums.mean, sums.spread, sums.most, codes=plan.codes)
        return LabelCoding(pa.float64()), known
    levels = sums.levels or {}
    if len(levels) < 2:
        raise InputError(
            f"The target {shown(plan.target)} has only one value in the remaining rows; keep more "
            "rows."
        )
    number = not is_text(plain_type(stored)) and sums.whole
    if number and max(-sums.least, sums.most) < 2**63:
        whole = {int(level): count for level, count in levels.items()}
        return LabelCoding(pa.int64()), LabelFacts(counts=whole)
    values = typed_levels(levels, stored)
    names = level_names(values)
    counts = dict(zip(names, levels.values(), strict=True))
    return LabelCoding(pa.string(), values, pa.array(names)), LabelFacts(counts=counts)


def _varying_parts(
    table: TableToAudit, plan: ColumnPlan, sums: Scan, steps: list[str]
) -> list[ColumnEncoding]:
    """Return the encodings of the columns that vary; note imputed values and dropped columns."""
    parts = []
    for name in plan.features:
        kind, fill = plan.kinds[name], None
        if kind == "categorical":
            stored = table.schema.field(name).type
            parts.append(ColumnEncoding.of_category(name, stored, sums[name], fill_gaps=True))
            continue
        if kind == "boolean":
            parts.append(ColumnEncoding.of_two_values(name, sums[name]))
            continue
        if sums[name].missing:
            if table.raw is None:
                raise InputError(
                    f"Gaps in {shown(name)} cannot be imputed while the data are read in chunks, "
                    "because the median needs the whole column; use --missing drop, or fill the "
                    "gaps first."
                )
            fill = float(np.median(floats(plain_numbers(table.raw.column(name)).drop_null())))
        parts.append(ColumnEncoding.of_numbers(name, sums[name], fill))
    for part in parts:
        if part.filled:
            steps.append(
                f"In {shown(part.name)}, {counted(part.filled, 'gap was', 'gaps were')} filled "
                f"with the {part.fill_is}, {part.fill_text}."
            )
    flat = [part.name for part in parts if part.constant]
    for name in plan.sensitive:
        if name in flat:
            raise InputError(
                f"The sensitive column {shown(name)} has only one value in the remaining rows; "
                "keep more rows."
            )
    if len(flat) == len(parts):
        raise InputError("Every feature has only one value in the remaining rows; keep more rows.")
    if flat:
        steps.append(
            f"{counted(len(flat), 'column was', 'columns were')} dropped (only one value in the "
            f"remaining rows): {listed(flat)}."
        )
    return [part for part in parts if not part.constant]


def _attributes(
    coding: TableEncoding, own: Sequence[ColumnEncoding], given: bool
) -> tuple[Attribute, ...]:
    """Return each column with its features, and how far a change of one unit moves them.

    A two-valued column moves by a whole level, measured in the table's ``own`` encoding; a
    ``given`` model may scale it differently.
    """
    attributes = []
    for (part, at), before in zip(coding.places(), own, strict=True):
        columns = tuple(range(at.start, at.stop))
        moved = (before.unit if part.kind == "boolean" else 1.0) / (
            part.unit if coding.scale else 1.0
        )
        steps = np.eye(len(columns)) * moved
        if given and part.levels is not None and not coding.drop_first:
            # A level replaces the first, which has a feature of its own.
            steps = np.vstack([-np.ones(len(columns) - 1), np.eye(len(columns) - 1)])
        attributes.append(Attribute(part.name, part.kind, columns, steps, before.spread))
    return tuple(attributes)


def _told_steps(coding: TableEncoding, sums: Scan, public: bool, given: bool) -> list[str]:
    """Return sentences on the encoding, and on rare values whose names would be published."""
    steps, parts, scale, drop_first = [], coding.parts, coding.scale, coding.drop_first
    public = public or given
    numeric = [part.name for part in parts if part.kind == "numeric"]
    if numeric:
        done = "centred and divided by their standard deviations" if scale else "used as they are"
        if public and scale:
            done = "centred and scaled by numbers that are declared or on a coarse grid"
        were = counted(len(numeric), "numeric column was", "numeric columns were")
        steps.append(f"{were} {done}: {listed(numeric)}.")
    boolean = [part.name for part in parts if part.kind == "boolean"]
    if boolean:
        steps.append(
            f"{counted(len(boolean), 'column has', 'columns have')} two values: {listed(boolean)}. "
            "Their leakage is measured in whole levels; if the values are quantities, use "
            "--quantity."
        )
    levels = {part.name: part.width(drop_first) for part in parts if part.kind == "categorical"}
    if levels:
        first = ", for all levels except the first in sorted order" if drop_first else ""
        made = counted(sum(levels.values()), "column")
        steps.append(
            f"{counted(len(levels), 'category was', 'categories were')} encoded as {made} of 0 and "
            f"1{first}: {listed(list(levels))}."
        )
    if scale and numeric and not public:
        steps.append("The means and standard deviations count as public.")
    if given:
        steps.append("Columns were scaled as stated in the model file.")
    rare_names, holders = [], ReleaseQuestion.least_holders
    for name in levels:
        sizes = list((sums[name].levels or {}).values())
        rare = sum(size < holders for size in sizes)
        if rare:
            rare_names.append(
                f"{shown(name)} ({rare:,} of {len(sizes):,} levels, {sizes.count(1):,} of them in "
                "only one record)"
            )
    if rare_names:
        steps.append(
            f"Values in fewer than {holders} records would be published with the model as names of "
            f"levels: {', '.join(rare_names[:5])}; merge them or drop the column before a release."
        )
    return steps
