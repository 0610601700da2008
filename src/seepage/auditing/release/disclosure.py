"""Finds published figures that would change if a record were removed or replaced.

The whole procedure is rerun from the raw table for each of the most exposed records. The record is
left out, or gets another label, numbers at the ends of their domain, or another level of one of its
categories. If the unit is the person, all records of a person are changed together, including
unusable ones. Figures that would change are listed as disclosed. Declared figures never change (see
:mod:`seepage.auditing.neighbours`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.findings import LEFT_OUT, OTHER_LEVEL, RELABELLED, RELEASED_OR_NOT, Disclosure
from seepage.auditing.measures import replaced_leakage
from seepage.auditing.neighbours import AT_THE_ENDS, OTHER_VALUES, most_exposed, other_labels
from seepage.auditing.release.procedure import Domain, NeighbouringReruns, Prepared, Procedure
from seepage.auditing.trained_model import ROW
from seepage.glm.jacobian.operator import PlainJacobians
from seepage.glm.leakage import plain_jacobians
from seepage.tables.columns import decoded


class Neighbour(NamedTuple):
    """A table in which one record, or person, is changed, and the figures that then change."""

    row: int
    change: str
    figures: tuple[str, ...]  # the published figures that would change
    needed: float  # the smallest σ with which nobody in this table leaks more than allowed
    moved: float = math.nan  # the distance of its numbers from the released ones, before noise
    column: str = ""  # the column whose class or level changes

    @property
    def disclosure(self) -> Disclosure:
        """The figures that disclose the change."""
        return Disclosure(self.row, self.change, self.figures)


def try_neighbours(
    procedure: Procedure, raw: pa.Table, prepared: Prepared
) -> tuple[Neighbour, ...]:
    """Rerun the procedure on the neighbouring tables of the most exposed records."""
    ours, found = prepared.figures, []
    tables, reruns = (
        NeighbouringTables(procedure, raw, prepared),
        NeighbouringReruns(procedure, raw, prepared),
    )
    for row in prepared.rows[most_exposed(prepared.eta)].tolist():
        rows = rows_beside(raw, row, procedure.person)
        changed = list(tables.of(rows))
        results = reruns.of(rows, [(table.table, table.columns) for table in changed])
        for (change, _, column, _), result in zip(changed, results, strict=True):
            if result is None:
                found.append(Neighbour(row, change, (RELEASED_OR_NOT,), math.inf, column=column))
                continue
            names = dict.fromkeys([*ours, *result.figures])
            figures = tuple(name for name in names if ours.get(name) != result.figures.get(name))
            found.append(Neighbour(row, change, figures, result.needed, result.moved, column))
    return tuple(found)


def rows_beside(raw: pa.Table, row: int, person: str | None) -> np.ndarray:
    """Return the rows that change with a row: the row itself, or all rows of its person."""
    if person is None:
        return np.array([row])
    column = raw.column(person)
    return np.flatnonzero(pc.equal(column, column[row]).to_numpy(zero_copy_only=False))


class ChangedTable(NamedTuple):
    """A table in which some records are left out, or have other values."""

    change: str
    table: pa.Table
    column: str = ""  # the column whose class or level changes
    columns: Sequence[str] | None = None  # all columns that change; ``None`` if rows are left out


class _Levels(NamedTuple):
    """The levels of a category in a table."""

    columns: list[int]  # its features
    codes: np.ndarray  # the features of every level
    values: list[Any]  # the commonest value of the raw column with each level
    holders: list[int]  # how many records, or people, have each
    of_record: np.ndarray  # the level of every record


@dataclass(frozen=True, eq=False)
class NeighbouringTables:
    """The tables that differ from the released table in one record, or one person."""

    procedure: Procedure
    raw: pa.Table
    prepared: Prepared

    def of(self, rows: np.ndarray) -> Iterator[ChangedTable]:
        """Yield the table without the given rows, and tables in which they have other values."""
        raw, domain = self.raw, self.procedure.domains
        yield ChangedTable(LEFT_OUT, raw.take(pa.array(np.delete(np.arange(raw.num_rows), rows))))
        encoded = self.prepared.trained.table
        target = encoded.target
        own = raw.column(target)[int(rows[0])].as_py()
        if encoded.labels.counts is not None:
            known = pc.unique(raw.column(target)).drop_null().to_pylist()
        else:
            known = list(_ends(raw, target, domain))
        for label in other_labels(own, known):
            changed = _replaced(raw, rows, {target: label})
            yield ChangedTable(RELABELLED, changed, target, (target,))
        numeric = [a.name for a in encoded.attributes if a.kind == "numeric"]
        for end, words in enumerate(AT_THE_ENDS):
            moved = {name: _ends(raw, name, domain)[end] for name in numeric}
            yield ChangedTable(words, _replaced(raw, rows, moved), "", numeric)
        for name, value in self.other_levels(rows):
            changed = _replaced(raw, rows, {name: value})
            yield ChangedTable(OTHER_LEVEL, changed, name, (name,))

    def other_levels(self, rows: np.ndarray) -> list[tuple[str, Any]]:
        """Return at most three changes of a record's categories, as pairs of column and new level.

        The changes are ranked by the leakage that they cause in the current model, without a refit.
        The level with the most leakage needs the most noise; the one with the least may show that
        the table would have needed less noise. If losing the record would make one of its own
        levels too rare to be named, a change of that level is included.
        """
        trained = self.prepared.trained
        records = trained.records
        held = np.flatnonzero(np.isin(records.beside[ROW], rows))
        others, features, rare = [], [], []
        for name, levels in self._levels.items():
            own = levels.of_record[held]
            few = min(levels.holders[k] for k in own) <= self.procedure.least_holders
            for k, value in enumerate(levels.values):
                if np.any(own != k):
                    moved = records.X[held].copy()
                    moved[:, levels.columns] = levels.codes[k]
                    others.append((name, value))
                    features.append(moved)
                    rare.append(few)
        if not others:
            return []
        eta = replaced_leakage(trained, self._jacobians, held, np.stack(features))
        order = np.argsort(-eta, kind="stable").tolist()
        left = [k for k in order if rare[k]][:1]
        chosen = dict.fromkeys([order[0], order[-1], *left, *order])
        return [others[k] for k in list(chosen)[:OTHER_VALUES]]

    @cached_property
    def _jacobians(self) -> PlainJacobians:
        """The Jacobians of the released model."""
        trained = self.prepared.trained
        return plain_jacobians(trained.model, trained.source)

    @cached_property
    def _levels(self) -> dict[str, _Levels]:
        """The levels of every category, by column."""
        trained, found = self.prepared.trained, {}
        records, owner = trained.records, trained.records.owner
        for attribute in trained.table.attributes:
            if attribute.kind == "numeric":
                continue
            columns = list(attribute.columns)
            code = records.X[:, columns] @ np.arange(1.0, len(columns) + 1)
            _, first, level = np.unique(code, return_index=True, return_inverse=True)
            used = decoded(self.raw.column(attribute.name)).take(pa.array(records.beside[ROW]))
            held = np.empty(len(level), dtype=object)
            held[:] = used.to_pylist()
            own = [np.flatnonzero(level == k) for k in range(len(first))]
            found[attribute.name] = _Levels(
                columns,
                records.X[first][:, columns],
                [Counter(held[some].tolist()).most_common(1)[0][0] for some in own],
                [len(np.unique(owner[some])) for some in own],
                level.reshape(-1),
            )
        return found


def _ends(raw: pa.Table, name: str, domain: Domain) -> tuple[float, float]:
    """Return the ends of a column's domain: as declared, or its smallest and largest values.

    For an integer column, they are the smallest and largest integers in the domain.
    """
    if name in domain:
        low, high = domain[name]
        whole = pa.types.is_integer(raw.schema.field(name).type)
        return (math.ceil(low), math.floor(high)) if whole else (low, high)
    ends = pc.min_max(raw.column(name)).as_py()
    return ends["min"], ends["max"]


def _replaced(raw: pa.Table, rows: np.ndarray, cells: Mapping[str, Any]) -> pa.Table:
    """Return the table with the same new cells in each of the given rows."""
    changed = np.zeros(raw.num_rows, dtype=bool)
    changed[rows] = True
    for name, cell in cells.items():
        field = raw.schema.field(name)
        other = pc.if_else(pa.array(changed), pa.scalar(cell, field.type), raw.column(name))
        raw = raw.set_column(raw.column_names.index(name), field, other)
    return raw
