"""Raw columns as directions in which a record can change, and their effect on features.

The effect of a numeric column is the derivative of the features with respect to that column. A
category or a yes/no column changes by whole levels, from the first level to each other level; all
other columns are unchanged. This is a finite change, not a derivative. The learnt parameters of the
preprocessing change by their derivative times this change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np

from seepage.core.finite_changes import Alternatives
from seepage.core.people import is_a_feature
from seepage.errors import InputError
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.steps import by_differences, dense
from seepage.glm.refusals import NoDerivativeError
from seepage.tables.columns import category_spread
from seepage.tables.names import unique
from seepage.tables.source import Table, check_column, check_names

MOST_LEVELS = 1000  # more is an identifier or a number, not a category
PREPROCESSING = ("frozen", "refitted")
REFITTED = (
    "The preprocessing is part of the procedure: the values it learns change with every record, "
    "and must not be published with the model."
)


@dataclass(frozen=True)
class RawColumn:
    """A column of the caller's table, and the directions in which the column can change."""

    name: str
    kind: str  # ``numeric``, ``boolean`` or ``categorical``
    levels: tuple[Any, ...]  # of a boolean or category, sorted; the first is the reference
    # The standard deviation in the column's own units; for a category, of its code
    spread: float

    @property
    def directions(self) -> int:
        """The number of directions of the column."""
        return max(1, len(self.levels) - 1)

    def titles(self) -> list[str]:
        """Return a name for each direction."""
        if self.directions == 1:
            return [self.name]
        return [f"{self.name}={level}" for level in self.levels[1:]]


def read_frame(X: Any) -> tuple[nw.DataFrame[Any], bool]:
    """Return a raw table as a data frame, and whether the caller passed a data frame."""
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        try:
            frame = nw.from_native(X, eager_only=True)
        except TypeError as problem:
            raise InputError(
                f"X has type {type(X).__name__}, which cannot be read as a table "
                f"({str(problem).rstrip('.')}); pass a data frame in memory."
            ) from problem
        check_names(frame)
        return frame, True
    values = np.asarray(X)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(
            f"X must be a table with rows and columns, not an array of shape {values.shape}."
        )
    import pyarrow

    names = [f"x{j}" for j in range(values.shape[1])]
    table = pyarrow.table([pyarrow.array(values[:, j]) for j in range(len(names))], names=names)
    return nw.from_native(table, eager_only=True), False


def read_columns(
    frame: nw.DataFrame[Any], categorical: Sequence[str] = (), quantities: Sequence[str] = ()
) -> list[RawColumn]:
    """Describe every column; raise an error if a category has too many levels."""
    for name in [*categorical, *quantities]:
        check_column(name, frame.columns)
    found = []
    for name in frame.columns:
        column = frame[name]
        present = column.filter(~_gaps(column))
        numbers = column.dtype.is_numeric() or column.dtype == nw.Boolean
        if name in categorical or not numbers:
            found.append(_category(name, "categorical", present))
        elif name not in quantities and len(present.unique()) == 2:
            # Yes and no, however they are written: they move by whole levels.
            found.append(_category(name, "boolean", present))
        else:
            spread = float(np.std(present.to_numpy().astype(float)))
            found.append(RawColumn(name, "numeric", (), spread))
    return found


def _gaps(column: nw.Series[Any]) -> nw.Series[Any]:
    gaps = column.is_null()
    return gaps | column.is_nan().fill_null(True) if column.dtype.is_float() else gaps


def _category(name: str, kind: str, column: nw.Series[Any]) -> RawColumn:
    levels = sorted(column.unique().to_list(), key=lambda level: (str(type(level)), level))
    if len(levels) > MOST_LEVELS:
        raise InputError(
            f"Column {name!r} has {len(levels)} distinct values, more than the {MOST_LEVELS} "
            "that a category may have; group rare values before the fit."
        )
    shares = np.unique(column.to_numpy().astype(str), return_counts=True)[1] / len(column)
    return RawColumn(name, kind, tuple(levels), category_spread(shares))


class RawTable:
    """A raw table as the input to a procedure, and descriptions of its columns.

    Parameters
    ----------
    X
        The table.
    categorical, quantities
        Columns whose numbers are category codes, and two-valued columns to treat as numeric.
    beside
        A column that identifies people and is not a feature.

    Attributes
    ----------
    columns
        The columns that can vary: numeric columns, and categories with more than one level.
    """

    def __init__(
        self,
        X: Any,
        categorical: Sequence[str] = (),
        quantities: Sequence[str] = (),
        beside: str | None = None,
    ) -> None:
        self.X = X
        self.frame, self.named = read_frame(X)
        features = self.frame if beside is None else self.frame.drop(beside)
        every = read_columns(features, categorical, quantities)
        self.columns = [c for c in every if c.kind == "numeric" or len(c.levels) > 1]

    def table(self) -> Table:
        """Return the records as numbers, with one column per direction.

        A level is 1 for the records that have it, and 0 otherwise. Missing values and first levels
        are 0 in every column.
        """
        blocks: list[np.ndarray] = []
        for column in self.columns:
            cells = self.frame[column.name]
            if column.kind == "numeric":
                blocks.append(np.nan_to_num(cells.to_numpy().astype(float)))
            else:
                held = cells.to_list()
                blocks += [
                    np.asarray([cell == level for cell in held], dtype=float)
                    for level in column.levels[1:]
                ]
        titles = [title for column in self.columns for title in column.titles()]
        native = self.frame.to_native() if self.named else None
        index = getattr(native, "index", None)
        library = self.frame.implementation.name.lower() if self.named else "numpy"
        rows = np.asarray(index) if library == "pandas" else None
        return Table(np.stack(blocks, axis=1), tuple(unique(titles)), rows, library)

    def attributes(self, titles: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Map the name of every column with several directions to the directions' titles."""
        found, at = {}, 0
        for column in self.columns:
            if column.directions > 1:
                found[column.name] = tuple(titles[at : at + column.directions])
            at += column.directions
        return found

    def rows(self, which: np.ndarray, X: Any = None) -> Any:
        """Return some rows of this table, or of a different table with the same columns."""
        from sklearn.utils import _safe_indexing

        return _safe_indexing(self.X if X is None else X, which)

    def replaced(self, rows: np.ndarray, directions: Sequence[int], values: np.ndarray) -> Any:
        """Return the table with a new value of a column in these rows, or ``None`` if unchanged.

        ``directions`` are the positions in :meth:`table` that belong to the column.
        """
        column = self._column_at(directions)
        cells, value = self.frame[column.name], self._value_of(column, values)
        if all(cells[int(row)] == value for row in rows):
            return None
        if isinstance(value, float):
            cells = cells.cast(nw.Float64)
        if not self.named:
            X = np.array(self.X, dtype=np.result_type(self.X, np.min_scalar_type(value)))
            X[rows, self.frame.columns.index(column.name)] = value
            return X
        places = [int(row) for row in rows]
        return self.frame.with_columns(cells.scatter(places, [value] * len(places))).to_native()

    def _column_at(self, directions: Sequence[int]) -> RawColumn:
        """Return the column to which exactly these positions in :meth:`table` belong."""
        starts = np.cumsum([0, *(column.directions for column in self.columns)])
        column = self.columns[int(np.searchsorted(starts, directions[0], side="right")) - 1]
        if len(directions) != column.directions:
            raise InputError(
                f"Only whole columns can be guessed; choose {column.name!r}, not some of its "
                "levels."
            )
        return column

    def _value_of(self, column: RawColumn, values: np.ndarray) -> Any:
        """Return the cell value for the given values of a column's directions."""
        if column.kind != "numeric":
            return column.levels[int(np.argmax(values)) + 1 if np.any(values) else 0]
        value = float(values[0])
        whole = self.frame[column.name].dtype.is_integer() and value.is_integer()
        return int(value) if whole else value


class FollowedColumns(RawTable):
    """A raw table, its preprocessing, and the effect of a record on the features.

    Parameters
    ----------
    X
        The raw table, which is the input to the preprocessing.
    steps
        The fitted preprocessing.
    categorical, quantities
        Columns whose numbers are category codes, and two-valued columns to treat as numeric.
    """

    def __init__(
        self,
        X: Any,
        steps: Chain,
        categorical: Sequence[str] = (),
        quantities: Sequence[str] = (),
        beside: str | None = None,
    ) -> None:
        super().__init__(X, (*categorical, *steps.coded(X)), quantities, beside)
        self.steps = steps
        self.features = dense(steps.transform(X))
        if beside is not None:
            other = self._with(beside, self.frame[beside].to_list()[0])
            if not np.array_equal(dense(steps.transform(other)), self.features):
                raise InputError(is_a_feature(beside))
        # Columns that the preprocessing drops are not part of the model.
        moving = [self._moves(c)[0] for c in self.columns]
        largest = max((float(np.max(np.abs(m))) for m in moving), default=0.0)
        # A move this small beside the largest is rounding.
        kept = [bool(np.any(np.abs(m) > 1e-12 * largest)) for m in moving]
        self.columns = [c for c, is_kept in zip(self.columns, kept, strict=True) if is_kept]
        if not any(kept):
            raise NoDerivativeError(
                "Small changes of a record do not change the model's features, because "
                "preprocessing bins, ranks or rounds the values.",
                "To measure risks by refits, call sp.leakage(pipeline, X, y, …).membership().",
            )
        self.moves = np.concatenate(
            [m for m, is_kept in zip(moving, kept, strict=True) if is_kept], axis=2
        )
        """The change of every record's features along each direction, (n, D, t)."""

    @cached_property
    def gaps(self) -> int:
        """The number of missing values in the model's columns."""
        return sum(int(_gaps(self.frame[column.name]).sum()) for column in self.columns)

    @cached_property
    def learnt_moves(self) -> np.ndarray:
        """The change of the learnt parameters along each direction of every record, (n, p, t)."""
        return np.concatenate([self._moves(c, learnt=True)[1] for c in self.columns], axis=2)

    @cached_property
    def moved_by_learnt(self) -> list[np.ndarray]:
        """The change of all records' features with each learnt parameter, (n, D) each."""
        numbers, found = self.steps.learnt(), []
        for a, unit in enumerate(self.steps.units(self.X)):

            def moved(h: float, a: int = a, unit: float = float(unit)) -> np.ndarray:
                other = numbers.copy()
                other[a] += h * unit
                return dense(self.steps.with_learnt(other).transform(self.X))

            found.append(by_differences(moved, "The preprocessing") / unit)
        return found

    def _moves(self, column: RawColumn, learnt: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the changes of the features, (n, D, t), and optionally of learnt parameters."""
        if column.kind == "numeric":
            position = self.frame.columns.index(column.name)
            dX = np.zeros((len(self.frame), len(self.frame.columns)))
            dX[:, position] = ~_gaps(self.frame[column.name]).to_numpy().astype(bool)
            moved = self.steps.push(self.X, dX)[:, :, None]
            return moved, self.steps.influence(self.X, dX)[:, :, None] if learnt else moved
        first = self._with(column.name, column.levels[0])
        start = dense(self.steps.transform(first))
        features, numbers = [], []
        for level in column.levels[1:]:
            other = self._with(column.name, level)
            features.append(dense(self.steps.transform(other)) - start)
            if learnt:
                numbers.append(self.steps.response(self.X, first, other))
        stacked = np.stack(features, axis=2)
        return stacked, np.stack(numbers, axis=2) if learnt else stacked

    def features_with(
        self, rows: np.ndarray, others: Alternatives
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of records for each value of a column, of shape (m, K, D).

        Also return whether each alternative differs from the actual record, of shape (m, K).
        """
        column = self._column_at(others.columns)
        own = self.frame[column.name].to_list()
        features, moved = [], []
        for values in np.asarray(others.values):
            value = self._value_of(column, values)
            features.append(dense(self.steps.transform(self._with(column.name, value)))[rows])
            moved.append([own[row] != value for row in rows])
        return np.stack(features, axis=1), np.array(moved).T

    def _with(self, name: str, level: Any) -> Any:
        """Return the table with one level of a column in every record."""
        dtype = nw.Float64() if isinstance(level, float) else self.frame[name].dtype
        other = self.frame.with_columns(nw.lit(level).cast(dtype).alias(name))
        return other.to_native() if self.named else other.to_numpy()
