"""One column of a table on its way to numbers: its levels, its spread, and what fills its gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.errors import InputError
from seepage.tables.facts import plain_numbers
from seepage.tables.names import printable, shown, unique

Array = np.ndarray[Any, Any]

# A spread below this share of the largest value is rounding, not variation.
_ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Part:
    """How one column is encoded."""

    # The column and its kind
    name: str
    kind: str
    # How many gaps it has, and the value put there
    filled: int
    fill: Any
    # Of a numeric or boolean column with its gaps filled; see :class:`Encoded` for a category
    mean: float
    spread: float
    levels: pa.Array | None  # the values of a category in order, as they are in the table
    constant: bool  # whether all values are the same

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray, kind: str) -> Part:
        """Look at a column, gaps and all."""
        if kind == "categorical":
            return cls._of_category(name, column)
        values, filled = _numbers(column, None)
        fill: Any = None
        if filled:
            # Of zeros and ones, the mean says which are more frequent.
            middle = np.nanmedian(values) if kind == "numeric" else np.nanmean(values) > 0.5
            fill = float(middle)
            values[np.isnan(values)] = fill
        with np.errstate(over="ignore", invalid="ignore"):
            mean, spread = float(values.mean()), float(values.std())
            largest = float(np.abs(values).max())
        if not (np.isfinite(mean) and np.isfinite(spread)):
            raise InputError(
                f"The values of column {shown(name)} are too large for their spread to be "
                f"computed (up to {largest:.2g}); write them in a larger unit."
            )
        constant = spread <= _ROUNDING * largest
        return cls(name, kind, filled, fill, mean, spread, None, constant)

    @classmethod
    def _of_category(cls, name: str, column: pa.ChunkedArray) -> Part:
        column = plain_numbers(column)
        counts = pc.value_counts(column.drop_null())
        order = pc.sort_indices(counts.field("values"))
        levels, number = counts.field("values").take(order), counts.field("counts").take(order)
        if pa.types.is_large_string(levels.type):
            levels = levels.cast(pa.string())
        sizes = number.to_numpy().astype(float)
        filled = column.null_count
        fill = None
        if filled:
            fill = int(sizes.argmax())
            sizes[fill] += filled
        shares = sizes / sizes.sum()
        spread = float(np.sqrt(max(0.0, 1.0 - float(shares @ shares))))
        return cls(name, "categorical", filled, fill, 0.0, spread, levels, len(levels) < 2)

    @property
    def fill_is(self) -> str:
        """What the gaps are filled with, in words."""
        return "median" if self.kind == "numeric" else "most frequent value"

    @property
    def fill_text(self) -> str:
        """The value the gaps are filled with, to be read."""
        return f"{self.fill:g}" if self.levels is None else shown(self._level_names()[self.fill])

    def _level_names(self) -> list[str]:
        return [] if self.levels is None else unique(_texts(self.levels))

    def width(self, drop_first: bool) -> int:
        """Return how many features the column becomes."""
        return 1 if self.levels is None else len(self.levels) - int(drop_first)

    def titles(self, drop_first: bool) -> list[str]:
        """Return the names of its features."""
        if self.levels is None:
            return [self.name]
        return [f"{self.name}={level}" for level in self._level_names()[int(drop_first) :]]


def encode_column(
    part: Part, column: pa.ChunkedArray, out: Array, scale: bool, drop_first: bool
) -> None:
    """Write one column into its place in the encoded table, which is zero so far."""
    if part.levels is None:
        values, _ = _numbers(column, part.fill)
        if scale and part.kind == "numeric":
            values -= part.mean
            values /= part.spread
        out[:, 0] = values
        return
    codes = pc.index_in(plain_numbers(column), value_set=part.levels)
    if part.fill is not None:
        codes = pc.fill_null(codes, part.fill)
    which = codes.to_numpy().astype(np.int64) - int(drop_first)
    rows = np.flatnonzero(which >= 0)
    out[rows, which[rows]] = 1.0


def labels_of(column: pa.ChunkedArray, missing: str = "") -> Array:
    """Return every value as text, (n,), one object per different value however long it is."""
    plain = plain_numbers(column)
    levels = pc.unique(plain.drop_null())
    texts = unique(_texts(levels))
    gap = len(texts)
    codes = pc.fill_null(pc.index_in(plain, value_set=levels), gap).to_numpy()
    named = np.empty(gap + 1, dtype=object)
    named[:] = [*texts, missing]
    return np.asarray(named[codes])


def _texts(levels: pa.Array) -> list[str]:
    """Return values as printable text; whole numbers without a decimal point."""
    if pa.types.is_floating(levels.type):
        return [f"{value:.15g}" for value in levels.to_pylist()]
    if pa.types.is_boolean(levels.type):
        return ["true" if value else "false" for value in levels.to_pylist()]
    return [printable(str(value)) for value in levels.to_pylist()]


def _numbers(column: pa.ChunkedArray, fill: float | None) -> tuple[Array, int]:
    """Return a column as floats of its own, NaN or the fill in its gaps, and how many there are."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = np.array(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    gaps = np.isnan(values)
    filled = int(gaps.sum())
    if filled and fill is not None:
        values[gaps] = fill
    return values, filled
