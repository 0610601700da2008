"""What one scan finds out about a column: its gaps, mean, spread and range, and its levels.

Means and sums of squares of two parts are joined as Chan, Golub and LeVeque (1979) do, so that a
scan is as accurate as a pass over the whole column that knows its mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.streams.disk.files import Piece
from seepage.tables.facts import decoded, is_number, is_text, plain_numbers

MOST_LEVELS = 1000  # different values that are counted; of more only this is known
_HEAD = 4 * MOST_LEVELS  # rows that show at once that a column has more


@dataclass(frozen=True)
class ColumnSums:
    """What some rows of a column hold; the sum of two is what their rows hold together."""

    # The rows, and how many of them have no value (or NaN)
    rows: int = 0
    missing: int = 0
    # The mean of the values as a number near it and what is missing to it (so that the means of
    # pieces far from zero can be told apart), and the sum of the squared distances from it
    origin: float = 0.0
    offset: float = 0.0
    squares: float = 0.0
    # The range of the values
    least: float = math.inf
    most: float = -math.inf
    # Whether all numbers are whole, and whether all are finite
    whole: bool = True
    finite: bool = True
    # How often each value occurs, or ``None`` for more than 1,000 different ones
    levels: Mapping[Any, int] | None = field(default_factory=dict)

    @property
    def values(self) -> int:
        """The number of rows that have a value."""
        return self.rows - self.missing

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.origin + self.offset

    @property
    def spread(self) -> float:
        """The standard deviation of the values."""
        return math.sqrt(self.squares / self.values) if self.values else 0.0

    def __add__(self, other: ColumnSums) -> ColumnSums:
        both = self.values + other.values
        first = self if self.values else other
        apart = (other.origin - first.origin) + (other.offset - first.offset)
        share = other.values / both if both else 0.0
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
            _joined(self.levels, other.levels),
        )


class Scan(dict[str, ColumnSums]):
    """The sums of several columns; the sum of two scans is that of every column."""

    def __add__(self, other: Scan) -> Scan:
        return Scan({name: self[name] + other[name] for name in self})


def scan(pieces: Iterable[Piece]) -> Scan:
    """Return the sums of all columns of some pieces."""
    total: Scan | None = None
    for piece in pieces:
        names = piece.batch.schema.names
        here = Scan({n: column_sums(piece.batch.column(k)) for k, n in enumerate(names)})
        total = here if total is None else total + here
    return total or Scan()


def column_sums(column: pa.Array) -> ColumnSums:
    """Return what one piece of a column holds."""
    column = decoded(column)
    if pa.types.is_boolean(column.type):
        return _numbers(column, column.cast(pa.float64()))
    if is_number(column.type):
        plain = plain_numbers(column)
        return _numbers(plain, plain.cast(pa.float64(), safe=False))
    if is_text(column.type):
        return ColumnSums(len(column), column.null_count, levels=_levels(column))
    return ColumnSums(len(column), column.null_count, levels=None)


def _numbers(column: pa.Array, as_floats: pa.Array) -> ColumnSums:
    numbers = as_floats.drop_null().to_numpy(zero_copy_only=False)
    levels = _levels(column)
    if numbers.size == 0:
        return ColumnSums(len(column), column.null_count, levels=levels)
    with np.errstate(over="ignore", invalid="ignore"):
        origin = float(numbers.mean())
        away = numbers - origin
        offset = float(away.mean())
        squares = max(0.0, float(away @ away) - len(away) * offset * offset)
    least, most = float(numbers.min()), float(numbers.max())
    finite = math.isfinite(least) and math.isfinite(most)
    whole = not pa.types.is_floating(column.type) or bool(np.all(numbers == np.floor(numbers)))
    return ColumnSums(
        len(column), column.null_count, origin, offset, squares, least, most, whole, finite, levels
    )


def _levels(column: pa.Array) -> Mapping[Any, int] | None:
    if len(pc.unique(column[:_HEAD])) > MOST_LEVELS + 1:  # a gap is no level
        return None
    counts = pc.value_counts(column.drop_null())
    if len(counts) > MOST_LEVELS:
        return None
    return dict(
        zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    )


def _joined(ours: Mapping[Any, int] | None, theirs: Mapping[Any, int] | None) -> Any:
    if ours is None or theirs is None:
        return None
    both = Counter(ours)
    both.update(theirs)
    return None if len(both) > MOST_LEVELS else dict(both)
