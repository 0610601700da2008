"""Which columns are features, and how record batches become the numbers of a linear model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.errors import InputError, nearest
from seepage.streams.disk.column_scan import ColumnSums, Scan
from seepage.streams.disk.files import Piece, plain_type
from seepage.tables.encoded import Part, encode_column
from seepage.tables.facts import decoded, is_number, is_text, plain_numbers
from seepage.tables.names import unique
from seepage.tables.source import Chunk


@dataclass(frozen=True)
class TableEncoding:
    """How the columns of a table become features, labels and weights."""

    parts: tuple[Part, ...]  # how each column is encoded, in the order of the features
    # The columns of the labels and of the sample weights (or ``None``)
    target: str
    weight: str | None
    scale: bool  # whether numeric columns are centred and divided by their standard deviations
    drop_first: bool  # whether the first level of every category is left out

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*(p.name for p in self.parts), self.target, *weight]))

    def names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return tuple(unique(t for part in self.parts for t in part.titles(self.drop_first)))

    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Return the features of every category under the name of its column."""
        names, start, found = self.names(), 0, {}
        for part in self.parts:
            stop = start + part.width(self.drop_first)
            if part.levels is not None:
                found[part.name] = names[start:stop]
            start = stop
        return found

    def encode(
        self, pieces: Sequence[Piece], start: int, extra: Sequence[str], by_rows: bool = False
    ) -> Chunk:
        """Return the rows of some pieces as one chunk.

        The features lie column by column in memory, as they came: a matrix product is as fast that
        way, and nothing is transposed. ``by_rows`` has them row by row, for a chunk that is kept.
        """
        rows = sum(piece.batch.num_rows for piece in pieces)
        width = sum(p.width(self.drop_first) for p in self.parts)
        columns = np.zeros((rows, width)).T if by_rows else np.zeros((width, rows))
        labels, weights = [], []
        others: dict[str, list[np.ndarray]] = {name: [] for name in extra}
        at = 0
        for piece in pieces:
            here = slice(at, at + piece.batch.num_rows)
            self._fill(piece, columns[:, here])
            labels.append(_labels(piece, self.target))
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

    def _fill(self, piece: Piece, out: np.ndarray) -> None:
        row = 0
        for part in self.parts:
            width = part.width(self.drop_first)
            column = piece.batch.column(part.name)
            if part.fill is None:
                _refuse_gaps(column, part.name, piece)
            if part.levels is None and part.fill is None:
                numbers = out[row]
                np.copyto(numbers, _numbers(column), casting="unsafe")
                _refuse_nan(numbers, part.name, piece)
                if self.scale and part.kind == "numeric":
                    numbers -= part.mean
                    numbers /= part.spread
            else:
                whole = pa.chunked_array([decoded(column)])
                _refuse_new_levels(whole, part, piece)
                encode_column(part, whole, out[row : row + width].T, self.scale, self.drop_first)
            row += width


def encoded_columns(
    names: Sequence[str], schema: pa.Schema, scale: bool, scan: Callable[[Sequence[str]], Scan]
) -> tuple[Part, ...]:
    """Return how each of some columns is encoded, text and what is to be scaled after a scan."""
    kinds = {name: schema.field(name).type for name in names}
    to_scan = [n for n in names if scale or is_text(plain_type(kinds[n]))]
    found = scan(to_scan) if to_scan else Scan()
    return tuple(
        _scanned_part(n, kinds[n], found[n]) if n in found else _plain_part(n, kinds[n])
        for n in names
    )


def _plain_part(name: str, kind: pa.DataType) -> Part:
    """Return how a column of numbers is encoded that is used as it is, or refuse its type."""
    kind = plain_type(kind)
    if is_number(kind):
        return Part(name, "numeric", 0, None, 0.0, 1.0, None, False)
    if pa.types.is_boolean(kind):
        return Part(name, "boolean", 0, None, 0.0, 1.0, None, False)
    raise InputError(
        f"Column {name!r} holds {kind}, which is neither numbers nor text; turn it into numbers, "
        "or leave it out with columns=."
    )


def _scanned_part(name: str, kind: pa.DataType, sums: ColumnSums) -> Part:
    """Return how a column is encoded whose levels, mean and spread a scan has found."""
    kind = plain_type(kind)
    if is_text(kind):
        if sums.levels is None:
            raise InputError(
                f"Column {name!r} has more than 1,000 different values; put rare ones together, or "
                "leave it out with columns=."
            )
        counts = np.asarray(list(sums.levels.values()), dtype=float)
        shares = counts / counts.sum()
        spread = float(np.sqrt(max(0.0, 1.0 - float(shares @ shares))))
        levels = pa.array(sorted(sums.levels), kind)
        return Part(name, "categorical", 0, None, 0.0, spread, levels, len(levels) < 2)
    plain = _plain_part(name, kind)
    if plain.kind == "boolean":
        return plain
    if not sums.spread > 0:
        raise InputError(
            f"Column {name!r} has one value only, so it cannot be scaled; leave it out with "
            "columns=."
        )
    return Part(name, "numeric", 0, None, sums.mean, sums.spread, None, False)


def _numbers(column: pa.Array) -> np.ndarray:
    column = decoded(column)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _as_numpy(column: pa.Array) -> np.ndarray:
    if is_text(column.type):
        # One object for each different text, however often it occurs.
        coded = column.dictionary_encode()
        texts = np.empty(len(coded.dictionary) + 1, dtype=object)
        texts[:-1] = coded.dictionary.to_pylist()
        return np.asarray(texts[pc.fill_null(coded.indices, -1).to_numpy()])
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _labels(piece: Piece, name: str) -> np.ndarray:
    column = piece.batch.column(name)
    _refuse_gaps(column, name, piece)
    column = decoded(column)
    if is_text(column.type):
        return _as_numpy(column)
    labels = _numbers(column)
    if labels.dtype.kind == "f":
        _refuse_nan(labels, name, piece)
    return labels


def _weights(piece: Piece, name: str) -> np.ndarray:
    column = piece.batch.column(name)
    _refuse_gaps(column, name, piece)
    weights = np.array(_numbers(column), dtype=float)
    _refuse_nan(weights, name, piece)
    if weights.size and weights.min() < 0:
        row = piece.first + int(np.argmin(weights))
        raise InputError(
            f"The sample weights in column {name!r} must not be negative, but row {row:,} of "
            f"{piece.file} has {weights.min():g}."
        )
    return weights


def _refuse_gaps(column: pa.Array, name: str, piece: Piece) -> None:
    if column.null_count == 0:
        return
    row = piece.first + int(pc.index(pc.is_null(column), True).as_py())
    raise InputError(
        f"Column {name!r} has no value in row {row:,} of {piece.file}; fill the gaps, or leave out "
        "those rows or the column."
    )


def _refuse_nan(numbers: np.ndarray, name: str, piece: Piece) -> None:
    # One sum is far cheaper than a mask, and it is finite unless something is amiss.
    if np.isfinite(np.sum(numbers)):
        return
    bad = ~np.isfinite(numbers)
    if not bad.any():
        return  # finite entries whose sum overflowed
    row = piece.first + int(np.argmax(bad))
    raise InputError(
        f"Column {name!r} holds NaN or infinity in row {row:,} of {piece.file}; drop such rows or "
        "fill the gaps."
    )


def _refuse_new_levels(column: Any, part: Part, piece: Piece) -> None:
    if part.levels is None or part.fill is not None:
        return
    known = pc.is_in(plain_numbers(column), value_set=part.levels)
    if not pc.all(known).as_py():
        raise InputError(
            f"Column {part.name!r} of {piece.file} holds a value that was not there when the "
            "levels were read; the files must not change while they are read."
        )


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
