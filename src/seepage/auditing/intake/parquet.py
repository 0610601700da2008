"""Parquet data for an audit, read in chunks: columns with good names, text cleaned, rows left out.

What is known of columns comes from one scan of them. What differs from a table in memory: of a
column with more than 1,000 different values only that is known, so text columns of that kind must
be dropped by name, identifiers or not, and no median fills the gaps of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.files import MISSING, clean_text, good_names
from seepage.auditing.intake.table import ColumnPlan
from seepage.auditing.trained_model import ROW, LabelFacts
from seepage.errors import InputError
from seepage.streams.disk.column_scan import MOST_LEVELS, ColumnSums
from seepage.streams.disk.encoding import TableEncoding
from seepage.streams.disk.files import Batches, Piece, plain_type
from seepage.streams.disk.source import ParquetRows, scan_columns, sum_pieces
from seepage.tables.encoded import ROUNDING, Part, category_spread
from seepage.tables.facts import (
    BEYOND,
    COMMAS,
    ENOUGH,
    FEW,
    Facts,
    beyond_floats,
    commas_in,
    decoded,
    is_number,
    is_text,
    looks_like_dates,
    numbers_in,
    plain_numbers,
)
from seepage.tables.names import shown
from seepage.tables.source import RowSource

_64_BITS = (1 << 64) - 1


class TableInChunks:
    """Parquet data as a table to audit, known by a scan of its columns.

    It answers what :class:`~seepage.auditing.intake.table.TableInMemory` does.

    Parameters
    ----------
    batches
        The rows that are used.
    found
        What a scan of some columns found.
    unlabelled
        How many rows without a label were left out.
    """

    raw = None

    def __init__(
        self, batches: AuditedRows, found: Mapping[str, ColumnSums], unlabelled: int = 0
    ) -> None:
        self._batches, self._found = batches, found
        self.names, self.rows = batches.names, batches.rows
        self.steps, self.unlabelled = batches.steps, unlabelled

    @classmethod
    def of(cls, batches: Batches) -> TableInChunks:
        """Return the table of data as they are."""
        if not batches.rows:
            raise InputError("The Parquet data have no rows.")
        return cls(AuditedRows(batches), {})

    def look(
        self, names: Sequence[str], codes: set[str], groups: Sequence[str]
    ) -> tuple[dict[str, Facts], dict[str, int | None]]:
        """Return the facts of some columns, and how many different values each group column has."""
        self._found = scan_columns(self._batches, list(dict.fromkeys([*names, *groups])))
        facts = {n: _facts(self._batches, n, self._found[n], n in codes) for n in names}
        levels = {n: self._found[n].levels for n in groups}
        return facts, {n: None if found is None else len(found) for n, found in levels.items()}

    def complete(self, plan: ColumnPlan) -> TableInChunks:
        """Return the rows that are used as planned: with a label, and all features if so asked."""
        unlabelled = self._found[plan.target].missing
        needed = [plan.target] if unlabelled else []
        if plan.missing == "drop":
            needed += [n for n in plan.features if self._found[n].missing]
        as_type = _class_type(self._batches, plan, self._found[plan.target])
        used = self._batches.complete(needed, as_type)
        found = scan_columns(used, list(plan.features)) if needed else self._found
        return TableInChunks(used, found, unlabelled)

    def part(self, name: str, kind: str) -> Part:
        """Return how a column of that kind is encoded."""
        stored, sums = self._batches.schema.field(name).type, self._found[name]
        return _category(name, stored, sums) if kind == "categorical" else _number(name, kind, sums)

    def encoded(self, coding: TableEncoding, plan: ColumnPlan) -> tuple[RowSource, LabelFacts]:
        """Return the rows as numbers, read again in every pass, and the facts of their labels."""
        sums = scan_columns(self._batches, [plan.target])[plan.target]
        counts = sums.levels if plan.classes else None
        labels = LabelFacts(sums.mean, sums.spread, sums.most, counts)
        return ParquetRows(self._batches, coding), labels


class AuditedRows(Batches):
    """What :func:`seepage.auditing.intake.files.read_file` does to a table, batch by batch.

    Columns get good names, text is cleaned, and rows that lack a value may be left out. The numbers
    of the rows in the whole table can be read as the column :data:`ROW`.

    Parameters
    ----------
    batches
        The data as they are.
    first
        The number of the first of these rows in the whole table.
    needed
        Columns that must have a value.
    as_type
        Columns that are read as another type.

    Attributes
    ----------
    names, steps
        The names of the columns, and what had to be changed, one sentence each.
    """

    def __init__(
        self,
        batches: Batches,
        first: int = 0,
        needed: Sequence[str] = (),
        as_type: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self._inner, self._first = batches, first
        self._needed, self._as_type = tuple(needed), dict(as_type or {})
        self.names, self.steps = good_names(batches.schema.names)
        self._given = dict(zip(self.names, batches.schema.names, strict=True))
        stored = [plain_type(batches.schema.field(k).type) for k in range(len(self.names))]
        fields = [
            pa.field(name, self._as_type.get(name, kind))
            for name, kind in zip(self.names, stored, strict=True)
        ]
        self.schema = pa.schema([*fields, pa.field(ROW, pa.int64())])

    def complete(self, needed: Sequence[str], as_type: Mapping[str, pa.DataType]) -> AuditedRows:
        """Return those of the rows that have a value in all of some columns."""
        return AuditedRows(self._inner, self._first, needed, as_type)

    @cached_property
    def rows(self) -> int:
        """The number of rows, counted once where some are left out."""
        if not self._needed:
            return self._inner.rows
        return sum_pieces(self, self._needed, _count) or 0

    def read(self, columns: Sequence[str], size: int) -> Iterator[Piece]:
        """Yield these columns of the rows in order, at most ``size`` rows at a time."""
        at = self._first
        every = list(dict.fromkeys([*columns, *self._needed]))
        for piece in self._inner.read([self._given[n] for n in every if n != ROW], size):
            rows = piece.batch.num_rows
            found = {n: _clean(piece.batch.column(self._given[n])) for n in every if n != ROW}
            found[ROW] = pa.array(np.arange(at, at + rows))
            at += rows
            whole = np.ones(rows, dtype=bool)
            for name in self._needed:
                whole &= ~_gaps(found[name])
            batch = pa.RecordBatch.from_arrays([found[n] for n in columns], names=list(columns))
            if not whole.all():
                batch = batch.filter(pa.array(whole))
            for place, name in enumerate(columns):
                if name in self._as_type:
                    cast = batch.column(place).cast(self._as_type[name])
                    batch = batch.set_column(place, name, cast)
            yield Piece(batch, piece.file, piece.first)

    def holds(self, path: Path) -> bool:
        """Say whether a file written to this path would be among the ones that are read."""
        return self._inner.holds(path)

    def spread(self) -> Any:
        """Return the files on a cluster that these rows come from, if any."""
        return self._inner.spread()

    def parts(self) -> list[Batches]:
        """Return these rows in parts that can be read by different machines."""
        inner = self._inner.parts()
        starts = accumulate((part.rows for part in inner), initial=self._first)
        return [
            AuditedRows(part, start, self._needed, self._as_type)
            for part, start in zip(inner, starts, strict=False)
        ]


def _count(pieces: Sequence[Piece]) -> int:
    return sum(piece.batch.num_rows for piece in pieces)


def _clean(column: pa.Array) -> pa.Array:
    column = decoded(column)
    if not is_text(column.type):
        return column
    return clean_text(pa.chunked_array([column]), MISSING, False).combine_chunks()


def _gaps(column: pa.Array) -> np.ndarray:
    if is_number(column.type):
        column = plain_numbers(column)
    return np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False))


def _facts(batches: Batches, name: str, sums: ColumnSums, as_codes: bool) -> Facts:
    """Return what :func:`seepage.tables.facts.look_at` finds, as far as a scan tells."""
    kind, rows, missing = batches.schema.field(name).type, sums.rows, sums.missing
    capped = sums.levels is None
    distinct = MOST_LEVELS + 1 if sums.levels is None else len(sums.levels)
    if pa.types.is_null(kind) or missing == rows:
        return Facts(rows, rows)
    if pa.types.is_temporal(kind):
        return Facts(rows, missing, refused="dates")
    if pa.types.is_boolean(kind):
        return Facts(rows, missing, distinct, "categorical" if as_codes else "boolean")
    if is_text(kind):
        return _text_facts(sums, distinct, capped, as_codes)
    if not is_number(kind):
        return Facts(rows, missing, refused="bytes or nested values")
    if not sums.finite:
        return Facts(rows, missing, distinct, "numeric", refused="infinite values", capped=capped)
    identifier = ""
    counts_up = sums.whole and missing == 0 and sums.most - sums.least == rows - 1
    if rows >= ENOUGH and counts_up and _all_different(batches, name, sums):
        identifier = "are all different and count up"
    plain = "boolean" if distinct == 2 else "numeric"
    if pa.types.is_integer(kind) and not identifier and beyond_floats(sums.least, sums.most):
        return Facts(rows, missing, distinct, plain, refused=BEYOND, capped=capped)
    return Facts(
        rows,
        missing,
        distinct,
        "categorical" if as_codes else plain,
        pa.types.is_integer(kind),
        sums.whole,
        sums.least,
        identifier,
        capped=capped,
    )


def _text_facts(sums: ColumnSums, distinct: int, capped: bool, as_codes: bool) -> Facts:
    rows, missing, filled = sums.rows, sums.missing, sums.values
    if as_codes or sums.levels is None:
        return Facts(rows, missing, distinct, capped=capped)
    texts, counts = pa.array(list(sums.levels)), np.asarray(list(sums.levels.values()))

    def rows_with(flags: pa.Array) -> int:
        return int(counts[flags.to_numpy(zero_copy_only=False)].sum())

    if looks_like_dates(texts[:100].to_pylist()):
        return Facts(rows, missing, distinct, refused="dates")
    if 2 * rows_with(commas_in(texts)) > filled:
        return Facts(rows, missing, distinct, refused=COMMAS)
    if distinct > FEW and filled > rows_with(numbers_in(texts)) >= 0.9 * filled:
        return Facts(rows, missing, distinct, almost_number=-1)
    identifier = "are all different" if filled >= ENOUGH and distinct == filled else ""
    return Facts(rows, missing, distinct, identifier=identifier)


def _all_different(batches: Batches, name: str, sums: ColumnSums) -> bool:
    """Say whether whole numbers that span as many values as there are rows take each of them."""
    surplus = sum_pieces(batches, [name, ROW], partial(_surplus, least=sums.least))
    return surplus is not None and not (surplus & _64_BITS)


def _surplus(pieces: Sequence[Piece], least: float) -> int:
    """Return the sum of a hash of the values, counted from the least, less that of the rows.

    Over all rows it vanishes modulo 2⁶⁴ where the values are the numbers of the rows in another
    order, and otherwise with a probability of 2⁻⁶⁴ only; a list of those seen would grow with the
    rows.
    """
    total = 0
    for piece in pieces:
        values = (_floats(piece.batch.column(0)) - least).astype(np.int64)
        rows = np.asarray(piece.batch.column(1))
        total += int(_mixed(values).sum()) - int(_mixed(rows).sum())
    return total


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of whole numbers: the mixing function of SplitMix64 (Steele et al., 2014)."""
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _floats(column: pa.Array) -> np.ndarray:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _class_type(batches: Batches, plan: ColumnPlan, sums: ColumnSums) -> dict[str, pa.DataType]:
    """Return the type of the labels: whole numbers where classes are numbers."""
    kind = batches.schema.field(plan.target).type
    if plan.target_kind in ("numeric", "count"):
        return {plan.target: pa.float64()}
    if is_text(kind):
        return {}
    return {plan.target: pa.int64() if sums.whole else pa.string()}


def _number(name: str, kind: str, sums: ColumnSums) -> Part:
    """Return how a column of numbers is encoded; see :meth:`Part.of`."""
    low, step = 0.0, 1.0
    if kind == "boolean" and sums.values:
        low, step = sums.least, (sums.most - sums.least) or 1.0
    fill = None
    if sums.missing:
        if kind == "numeric":
            raise InputError(
                f"The gaps in {shown(name)} cannot be filled while the data are read in chunks: "
                "its median takes the whole column; say --missing drop, or fill them first."
            )
        fill = low + step * float(sums.mean > low + step / 2)
    # With the fill in the place of the gaps.
    whole = (
        sums
        if fill is None
        else replace(sums, missing=0, rows=sums.values) + ColumnSums(sums.missing, 0, fill)
    )
    mean, squares = whole.mean, whole.squares
    spread = float(np.sqrt(squares / sums.rows)) / step
    if not (np.isfinite(mean) and np.isfinite(spread)):
        raise InputError(
            f"The values of column {shown(name)} are too large for their spread to be computed; "
            "write them in a larger unit."
        )
    constant = spread * step <= ROUNDING * max(abs(sums.least), abs(sums.most))
    return Part(name, kind, sums.missing, fill, mean, spread, None, constant, low, step)


def _category(name: str, stored: pa.DataType, sums: ColumnSums) -> Part:
    counts = dict(sorted((sums.levels or {}).items()))
    levels = pa.array(list(counts), stored)
    sizes = np.asarray(list(counts.values()), dtype=float)
    fill = None
    if sums.missing:
        fill = int(sizes.argmax())
        sizes[fill] += sums.missing
    shares = sizes / sizes.sum()
    spread = category_spread(shares)
    return Part(name, "categorical", sums.missing, fill, 0.0, spread, levels, len(levels) < 2)
