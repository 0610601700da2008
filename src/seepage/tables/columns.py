"""Determines a column's type and encoding from sums over pieces of the column.

A table in memory is a single piece. Means and sums of squares of two pieces are combined as in
Chan, Golub and LeVeque (1979), so a scan is about as accurate as a pass over the whole column with
a known mean.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.errors import InputError
from seepage.tables.names import counted, printable, shown, unique
from seepage.tables.source import Chunk, check_column, first_not_finite

MOST_LEVELS = 1000  # the most different values that are counted
ENOUGH = 10  # number of rows from which all-different values make an identifier
FEW = 20  # different texts up to which numbers among them count as codes

# A spread below this share of the largest value is rounding, not variation.
_ROUNDING = 4 * float(np.finfo(float).eps)
_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([ T]\d{1,2}:\d\d.*)?"
)
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_COMMAS = r"^[-+]?\d*(,\d+)+(\.\d*)?$"

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


@dataclass(frozen=True)
class Piece:
    """Consecutive rows as read, with the name of their file and the position of the first row."""

    batch: pa.RecordBatch | pa.Table
    file: str
    first: int


def rows_in(pieces: Iterable[Piece]) -> int:
    """Return the total number of rows in the pieces."""
    return sum(piece.batch.num_rows for piece in pieces)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type contains numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type contains text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, regardless of how they are stored."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind


def decoded(column: Column) -> Column:
    """Return a column with decoded values, regardless of how they are stored."""
    plain = plain_type(column.type)
    return column if plain == column.type else column.cast(plain)


def plain_numbers(column: Column) -> Column:
    """Return a numeric column with null for NaN, 0 for −0, and decimals converted to floats.

    Other columns are returned unchanged. Zeros are merged because Arrow distinguishes -0.0 from 0.0
    when it counts or looks up values.
    """
    if pa.types.is_decimal(column.type) or column.type == pa.float16():
        column = column.cast(pa.float64())
    if not pa.types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 + 0.0 is 0.0
    gone = pc.is_nan(column)
    if not pc.any(gone).as_py():
        return column
    return pc.if_else(gone, pa.scalar(None, column.type), column)


def floats(column: Column) -> np.ndarray:
    """Return a numeric column as floats, with NaN for missing values."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def complete_rows(batch: pa.RecordBatch | pa.Table, needed: Iterable[str]) -> np.ndarray:
    """Return which rows have a value in every given column, ``(n,)``."""
    whole = np.ones(batch.num_rows, dtype=bool)
    for name in needed:
        column = plain_numbers(batch.column(name))
        if column.null_count:
            whole &= pc.is_valid(column).to_numpy(zero_copy_only=False)
    return whole


@dataclass(frozen=True)
class ColumnSums:
    """Sums over some rows of a column; sums over two sets of rows can be added."""

    rows: int = 0
    missing: int = 0  # how many of the rows have no value (or NaN)
    # The mean as a number near it plus the remainder (so that the means of pieces far from zero
    # stay distinct), and the sum of the squared distances from it
    origin: float = 0.0
    offset: float = 0.0
    squares: float = 0.0
    # The range of the values
    least: float = math.inf
    most: float = -math.inf
    whole: bool = True  # whether all numbers are whole
    finite: bool = True  # whether all are finite
    # How often each value occurs, or ``None`` for more than 1,000 different ones
    levels: Mapping[Any, int] | None = field(default_factory=dict)

    @property
    def values(self) -> int:
        """The number of rows with a value."""
        return self.rows - self.missing

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.origin + self.offset

    @property
    def spread(self) -> float:
        """The standard deviation of the values."""
        return math.sqrt(self.squares / self.values) if self.values else 0.0

    def with_gaps_filled(self, fill: float) -> ColumnSums:
        """Return the sums with all missing values replaced by this number."""
        return replace(self, rows=self.values, missing=0) + ColumnSums(self.missing, 0, fill)

    def __add__(self, other: ColumnSums) -> ColumnSums:
        both = self.values + other.values
        first = self if self.values else other
        apart = (other.origin - first.origin) + (other.offset - first.offset)
        share = other.values / both if both else 0.0
        levels = None
        if self.levels is not None and other.levels is not None:
            levels = dict(Counter(self.levels) + Counter(other.levels))
        return ColumnSums(
            self.rows + other.rows,
            self.missing + other.missing,
            first.origin,
            first.offset + apart * share,
            self.squares + other.squares + apart * apart * self.values * share,
            min(self.least, other.least),
            max(self.most, other.most),
            self.whole and other.whole,
            self.finite and other.finite,
            levels if len(levels or ()) <= MOST_LEVELS else None,
        )


class Scan(dict[str, ColumnSums]):
    """The sums of several columns; adding two scans adds the sums of each column."""

    def __add__(self, other: Scan) -> Scan:
        return Scan({name: self[name] + other[name] for name in self})


def scan(pieces: Iterable[Piece]) -> Scan:
    """Return the sums of all columns in the pieces."""
    total: Scan | None = None
    for piece in pieces:
        names = piece.batch.schema.names
        here = Scan({n: column_sums(piece.batch.column(k)) for k, n in enumerate(names)})
        total = here if total is None else total + here
    return total or Scan()


def column_sums(column: Column) -> ColumnSums:
    """Return the sums over one piece of a column."""
    column = plain_numbers(decoded(column))
    rows, missing = len(column), column.null_count
    text = is_text(column.type)
    if not (text or is_number(column.type) or pa.types.is_boolean(column.type)):
        return ColumnSums(rows, missing, levels=None)
    levels: dict[Any, int] | None = None
    # The first rows show at once that most columns have more levels; a gap is none.
    if len(pc.unique(column[: 4 * MOST_LEVELS])) <= MOST_LEVELS + 1:
        counts = pc.value_counts(column.drop_null())
        if len(counts) <= MOST_LEVELS:
            values, sizes = (counts.field(key).to_pylist() for key in ("values", "counts"))
            levels = dict(zip(values, sizes, strict=True))
    if text or missing == rows:
        return ColumnSums(rows, missing, levels=levels)
    numbers = floats(column.drop_null())
    with np.errstate(over="ignore", invalid="ignore"):
        origin = float(numbers.mean())
        away = numbers - origin
        offset = float(away.mean())
        squares = float(away @ away)
    squares = max(0.0, squares - len(away) * offset * offset) if squares < math.inf else math.inf
    least, most = float(numbers.min()), float(numbers.max())
    finite = math.isfinite(least) and math.isfinite(most)
    whole = not pa.types.is_floating(column.type) or bool(np.all(numbers == np.floor(numbers)))
    return ColumnSums(rows, missing, origin, offset, squares, least, most, whole, finite, levels)


@dataclass(frozen=True)
class ColumnProfile:
    """The type of a column, and whether it can be used."""

    rows: int
    missing: int  # how many of the rows have no value
    distinct: int = 0  # how many different values there are
    capped: bool = False  # whether ``distinct`` is only a lower bound
    kind: str = "categorical"  # ``numeric``, ``boolean`` or ``categorical``
    integer: bool = False  # whether the type is an integer
    whole: bool = True  # whether all values are whole numbers (or text)
    least: float = 0.0  # the smallest value of a column of numbers
    identifier: str = ""  # why the column is an identifier, a clause after "its values", or nothing
    refused: str = ""  # what it holds if that cannot be used (``dates``, …), or nothing
    almost_numbers: bool = False  # whether it is text, but mostly numbers


def profile_column(
    sums: ColumnSums,
    stored: pa.DataType,
    *,
    as_codes: bool = False,
    counts_up: bool = False,
    column: Column | None = None,
) -> ColumnProfile:
    """Return the profile of a column, given its sums and its type.

    ``as_codes`` treats numbers as category codes; ``counts_up`` states that the values are row
    numbers. If ``column`` is given, the levels of a category or text are counted without a limit.
    """
    stored, rows, missing = plain_type(stored), sums.rows, sums.missing
    if missing == rows:
        return ColumnProfile(rows, rows)
    refused = "" if sums.finite else "infinite values"
    if pa.types.is_temporal(stored):
        refused = "dates"
    elif not (is_number(stored) or is_text(stored) or pa.types.is_boolean(stored)):
        binary = pa.types.is_binary(stored) or pa.types.is_large_binary(stored)
        refused = "bytes" if binary else "nested values"
    if refused:
        return ColumnProfile(rows, missing, refused=refused)
    levels: Any = sums.levels
    if levels is None and column is not None and (as_codes or is_text(stored)):
        levels = pc.value_counts(plain_numbers(decoded(column)).drop_null())
    distinct = MOST_LEVELS + 1 if levels is None else len(levels)
    known = ColumnProfile(rows, missing, distinct, levels is None)
    if is_text(stored):
        return known if as_codes or levels is None else _profile_text(known, levels)
    integer = pa.types.is_integer(stored)
    if integer and not counts_up and max(abs(sums.least), abs(sums.most)) > 2.0**53:
        return replace(known, refused="integers beyond 2⁵³, which floats cannot distinguish")
    boolean = distinct == 2 or pa.types.is_boolean(stored)
    return replace(
        known,
        kind="categorical" if as_codes else "boolean" if boolean else "numeric",
        integer=integer,
        whole=sums.whole,
        least=sums.least,
        identifier="are all different and consecutive" if counts_up else "",
    )


def _profile_text(known: ColumnProfile, levels: Mapping[str, int] | pa.Array) -> ColumnProfile:
    """Return the profile of a text column, from its distinct values and their counts."""
    if isinstance(levels, pa.Array):
        texts, counts = levels.field("values"), levels.field("counts").to_numpy()
    else:
        texts, counts = pa.array(list(levels)), np.asarray(list(levels.values()))
    filled = known.rows - known.missing

    def rows_like(pattern: str) -> int:
        alike = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
        return int(counts[alike].sum())

    if all(_DATE.fullmatch(text) for text in texts[:100].to_pylist()):
        return replace(known, refused="dates")
    if 2 * rows_like(_COMMAS) > filled:
        return replace(known, refused="numbers that contain commas")
    if known.distinct > FEW and filled > rows_like(_NUMBER) >= 0.9 * filled:
        return replace(known, almost_numbers=True)
    different = filled >= ENOUGH and known.distinct == filled
    return replace(known, identifier="are all different" if different else "")


def first_text(column: Column) -> int | None:
    """Return the first row of a text column whose text is not a number, or ``None``."""
    row = int(pc.index(pc.match_substring_regex(decoded(column), _NUMBER), False).as_py())
    return None if row < 0 else row


@dataclass(frozen=True, eq=False)
class ColumnEncoding:
    """The encoding of one column as features."""

    name: str
    kind: str  # ``numeric``, ``boolean`` or ``categorical``
    # The feature of a number is ``(value − centre)/unit``: the mean and the deviation of a column,
    # or what makes 0 and 1 of two values; their gaps filled first
    centre: float = 0.0
    unit: float = 1.0
    spread: float = 1.0  # the deviation, of two values as 0 and 1, of a category `category_spread`
    levels: pa.Array | None = None  # the values of a category in order, as they are in the table
    # How many gaps it has, and what fills them: a number, or the position of a level
    filled: int = 0
    fill: Any = None
    constant: bool = False  # whether all values are the same

    @classmethod
    def of_two_values(cls, name: str, sums: ColumnSums) -> ColumnEncoding:
        """Return the encoding of two values; the more frequent one replaces missing values."""
        low, step = sums.least, (sums.most - sums.least) or 1.0
        high = (sums.levels or {}).get(sums.most, 0)
        often = 2 * high > sums.values
        share = (high + sums.missing * often) / sums.rows
        spread = math.sqrt(share * (1 - share))
        fill = (sums.most if often else low) if sums.missing else None
        constant = spread * step <= _ROUNDING * max(abs(sums.least), abs(sums.most))
        return cls(name, "boolean", low, step, spread, None, sums.missing, fill, constant)

    @classmethod
    def of_numbers(cls, name: str, sums: ColumnSums, fill: float | None = None) -> ColumnEncoding:
        """Return the encoding of numbers; ``fill`` replaces missing values."""
        whole = sums if fill is None else sums.with_gaps_filled(fill)
        largest = max(abs(sums.least), abs(sums.most))
        if not (math.isfinite(whole.mean) and math.isfinite(whole.spread)):
            raise InputError(
                f"The values of column {shown(name)} (up to {largest:.2g}) are too large for "
                "a standard deviation to be computed; rescale the column to a larger unit."
            )
        filled = 0 if fill is None else sums.missing
        constant = whole.spread <= _ROUNDING * largest
        mean, spread = whole.mean, whole.spread
        return cls(name, "numeric", mean, spread, spread, None, filled, fill, constant)

    @classmethod
    def of_category(
        cls, name: str, stored: pa.DataType, sums: ColumnSums, fill_gaps: bool = False
    ) -> ColumnEncoding:
        """Return the encoding of a category; ``fill_gaps`` fills in the most frequent level."""
        if sums.levels is None:
            raise InputError(
                f"Column {name!r} has more than 1,000 different values; merge rare values, or "
                "leave the column out of columns=."
            )
        counts = dict(sorted(sums.levels.items()))
        levels = typed_levels(counts, stored)
        sizes = np.asarray(list(counts.values()), dtype=float)
        filled = sums.missing if fill_gaps else 0
        fill = int(sizes.argmax()) if filled else None
        if fill is not None:
            sizes[fill] += filled
        spread = category_spread(sizes / sizes.sum())
        return cls(name, "categorical", 0, 1, spread, levels, filled, fill, len(levels) < 2)

    @property
    def fill_is(self) -> str:
        """The kind of value that replaces missing values, in words."""
        return "median" if self.kind == "numeric" else "most frequent value"

    @property
    def fill_text(self) -> str:
        """The value that replaces missing values, as text."""
        return (
            f"{self.fill:g}" if self.levels is None else shown(level_names(self.levels)[self.fill])
        )

    def width(self, drop_first: bool) -> int:
        """Return the number of features of the column."""
        return 1 if self.levels is None else len(self.levels) - int(drop_first)

    def titles(self, drop_first: bool) -> list[str]:
        """Return the names of the column's features."""
        if self.levels is None:
            return [self.name]
        return [f"{self.name}={level}" for level in level_names(self.levels)[int(drop_first) :]]

    def write(self, piece: Piece, out: np.ndarray, scale: bool, drop_first: bool) -> None:
        """Write a piece's features into ``out``, the column's part of a feature array of zeros."""
        if self.levels is None:
            # A matrix product is as fast with columns that lie together, so nothing is transposed.
            np.copyto(out[0], _numbers(piece, self.name, self.fill), casting="unsafe")
            if scale:
                out[0] -= self.centre
                out[0] /= self.unit
            return
        column = _cells(piece, self.name, gaps=self.fill is not None)
        codes = pc.index_in(plain_numbers(column), value_set=self.levels)
        if self.fill is not None:
            codes = pc.fill_null(codes, self.fill)
        elif codes.null_count:
            raise InputError(
                f"Column {self.name!r} of {piece.file} contains a value that did not occur when "
                "the levels were read; do not change the files while they are read."
            )
        which = codes.to_numpy().astype(np.int64) - int(drop_first)
        rows = np.flatnonzero(which >= 0)
        out[which[rows], rows] = 1.0


def category_spread(shares: np.ndarray) -> float:
    """Return the root of the total variance of a one-hot code, ``√(1 − Σ p²)`` for level shares p.

    Two levels are encoded by a single indicator, whose standard deviation is ``√(p (1 − p))``.
    """
    total = max(0.0, 1.0 - float(shares @ shares))
    return float(np.sqrt(total / 2 if len(shares) == 2 else total))


@dataclass(frozen=True)
class TableEncoding:
    """The encoding of a table's columns as features, labels and weights."""

    parts: tuple[ColumnEncoding, ...]  # how each column is encoded, in the order of the features
    # The columns of the labels and of the sample weights (or ``None``)
    target: str
    weight: str | None
    scale: bool  # whether numeric columns are centred and divided by their standard deviations
    drop_first: bool  # whether the first level of every category is left out

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns to read."""
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*(p.name for p in self.parts), self.target, *weight]))

    def same_as(self, other: TableEncoding) -> bool:
        """Return whether the other encoding gives the same features to every row."""

        def written(coding: TableEncoding) -> list[Any]:
            ways: list[Any] = [coding.target, coding.weight, coding.scale, coding.drop_first]
            for part in coding.parts:
                levels = (
                    None if part.levels is None else (part.levels.type, part.levels.to_pylist())
                )
                ways.append((part.name, part.centre, part.unit, levels, part.fill))
            return ways

        return written(self) == written(other)

    def places(self) -> list[tuple[ColumnEncoding, slice]]:
        """Return each column's encoding with the positions of its features."""
        found, start = [], 0
        for part in self.parts:
            stop = start + part.width(self.drop_first)
            found.append((part, slice(start, stop)))
            start = stop
        return found

    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(unique(t for part in self.parts for t in part.titles(self.drop_first)))

    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Return the features of each category, keyed by the category's column name."""
        names = self.names()
        return {part.name: names[at] for part, at in self.places() if part.levels is not None}

    def encode(
        self, pieces: Sequence[Piece], start: int, extra: Sequence[str], by_rows: bool = False
    ) -> Chunk:
        """Return the rows of the pieces as one chunk.

        The features are stored column by column, as they are read, so no copy is needed to
        transpose them, and matrix products are no slower. ``by_rows`` stores them row by row, for a
        chunk that remains in memory.
        """
        rows, places = rows_in(pieces), self.places()
        width = places[-1][1].stop
        columns = np.zeros((rows, width)).T if by_rows else np.zeros((width, rows))
        labels, weights = [], []
        others: dict[str, list[np.ndarray]] = {name: [] for name in extra}
        at = 0
        for piece in pieces:
            here = slice(at, at + piece.batch.num_rows)
            for part, place in places:
                part.write(piece, columns[place, here], self.scale, self.drop_first)
            text = is_text(plain_type(piece.batch.schema.field(self.target).type))
            named = _as_numpy(_cells(piece, self.target)) if text else _numbers(piece, self.target)
            labels.append(named)
            if self.weight is not None:
                weights.append(_weights(piece, self.weight))
            for name, found in others.items():
                found.append(_as_numpy(decoded(piece.batch.column(name))))
            at = here.stop
        return Chunk(
            columns.T,
            np.concatenate(labels),
            np.concatenate(weights) if weights else None,
            start,
            {name: np.concatenate(found) for name, found in others.items()},
        )


def encode_columns(
    names: Sequence[str], schema: pa.Schema, scale: bool, scan: Callable[[Sequence[str]], Scan]
) -> tuple[ColumnEncoding, ...]:
    """Return the encodings of columns; text columns and columns to be scaled need a scan."""
    kinds = {name: plain_type(schema.field(name).type) for name in names}
    to_scan = [n for n in names if scale or is_text(kinds[n])]
    found = scan(to_scan) if to_scan else Scan()
    return tuple(_encoding(n, kinds[n], found.get(n)) for n in names)


def _encoding(name: str, kind: pa.DataType, sums: ColumnSums | None) -> ColumnEncoding:
    """Return a column's encoding; numeric columns that were not scanned are not scaled."""
    if sums is not None and is_text(kind):
        return ColumnEncoding.of_category(name, kind, sums)
    if pa.types.is_boolean(kind):
        return ColumnEncoding(name, "boolean")
    if not is_number(kind):
        raise InputError(
            f"Column {name!r} contains {kind}, which is neither numeric nor text; convert it to "
            "numbers, or leave it out of columns=."
        )
    if sums is None:
        return ColumnEncoding(name, "numeric")
    if not sums.spread > 0:
        raise InputError(
            f"Column {name!r} has only one value, so it cannot be scaled; leave it out of columns=."
        )
    return ColumnEncoding.of_numbers(name, sums)


def choose_columns(
    known: Sequence[str], target: str, weight: str | None, columns: Sequence[str] | None
) -> list[str]:
    """Return the feature columns: the given ones, or all except the label and the weight."""
    refuse_repeated(known)
    special = [target] if weight is None else [target, weight]
    if isinstance(columns, str):
        columns = [columns]
    wanted = [n for n in known if n not in special] if columns is None else list(columns)
    for name in [*special, *wanted]:
        check_column(name, known)
    for name in wanted:
        if name in special:
            raise InputError(
                f"Column {name!r} cannot be both a feature and the label or weight; "
                "remove it from columns=."
            )
        if wanted.count(name) > 1:
            raise InputError(f"Column {name!r} is listed twice; list it once.")
    if not wanted:
        raise InputError("No feature column is left; list at least one in columns=.")
    return wanted


def refuse_repeated(names: Sequence[str]) -> None:
    """Raise an error if two columns of a table have the same name."""
    twice = next((n for n, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"Several columns have the name {shown(twice)}; rename all but one.")


def class_levels(sums: ColumnSums, kind: pa.DataType, target: str) -> np.ndarray:
    """Return the distinct labels in a scan, sorted."""
    if sums.missing:
        raise InputError(
            f"The label column {target!r} has {counted(sums.missing, 'missing value')}; drop all "
            "rows without a label."
        )
    if sums.levels is None:
        raise InputError(
            f"Column {target!r} has more than 1,000 different values, too many to be "
            "classes; fit a regression, or choose another column."
        )
    if pa.types.is_floating(kind) and not sums.whole:
        raise InputError(
            f"Column {target!r} contains numbers with decimals, which are not classes; fit a "
            "regression, or choose another column."
        )
    return np.asarray(sorted(sums.levels), dtype=object if is_text(kind) else None)


def typed_levels(levels: Iterable[Any], stored: pa.DataType) -> pa.Array:
    """Return the values of a scan in the type of their column, for lookup."""
    as_floats = pa.types.is_decimal(stored) or stored == pa.float16()  # see plain_numbers
    return pa.array(list(levels), pa.float64() if as_floats else plain_type(stored))


def labels_of(column: Column, missing: str = "") -> np.ndarray:
    """Return all values as text, ``(n,)``, with one shared object per distinct value."""
    plain = plain_numbers(decoded(column))
    levels = pc.unique(plain.drop_null())
    texts = level_names(levels)
    gap = len(texts)
    codes = pc.fill_null(pc.index_in(plain, value_set=levels), gap).to_numpy()
    named = np.empty(gap + 1, dtype=object)
    named[:] = [*texts, missing]
    return np.asarray(named[codes])


def level_names(levels: pa.Array) -> list[str]:
    """Return values as distinct printable texts, with integers written without decimals."""
    if pa.types.is_floating(levels.type):
        return unique(f"{value:.15g}" for value in levels.to_pylist())
    if pa.types.is_boolean(levels.type):
        return ["true" if value else "false" for value in levels.to_pylist()]
    return unique(printable(str(value)) for value in levels.to_pylist())


def _cells(piece: Piece, name: str, gaps: bool = False) -> pa.Array:
    """Return a column of a piece; missing values raise an error unless they are allowed."""
    column = decoded(piece.batch.column(name))
    if column.null_count and not gaps:
        row = piece.first + int(pc.index(pc.is_null(column), True).as_py())
        raise InputError(
            f"Column {name!r} has no value in row {row:,} of {piece.file}; fill in the missing "
            "values, or drop those rows or the column."
        )
    return column


def _numbers(piece: Piece, name: str, fill: float | None = None) -> np.ndarray:
    """Return a column of a piece as finite numbers, with missing values replaced by ``fill``."""
    column = _cells(piece, name, gaps=fill is not None)
    if column.null_count or pa.types.is_decimal(column.type):
        numbers = floats(column)
    else:
        numbers = np.asarray(column.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind != "f":
        return numbers
    if fill is not None:
        numbers = np.where(np.isnan(numbers), fill, numbers)
    row = first_not_finite(numbers)
    if row is not None:
        raise InputError(
            f"Column {name!r} contains NaN or infinity in row {piece.first + row:,} of "
            f"{piece.file}; drop such rows, or fill in missing values."
        )
    return numbers


def _as_numpy(column: pa.Array) -> np.ndarray:
    if is_text(column.type):
        # One object for each different text, however often it occurs.
        coded = column.dictionary_encode()
        texts = np.empty(len(coded.dictionary) + 1, dtype=object)
        texts[:-1] = coded.dictionary.to_pylist()
        return np.asarray(texts[pc.fill_null(coded.indices, -1).to_numpy()])
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _weights(piece: Piece, name: str) -> np.ndarray:
    weights = np.array(_numbers(piece, name), dtype=float)
    if weights.size and weights.min() < 0:
        row = piece.first + int(np.argmin(weights))
        raise InputError(
            f"The sample weights in column {name!r} must not be negative, but row {row:,} of "
            f"{piece.file} has {weights.min():g}; correct it."
        )
    return weights
