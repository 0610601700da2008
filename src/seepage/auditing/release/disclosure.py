"""Finds published figures that would change if a record were removed or replaced.

The whole procedure is rerun from the raw table for each of the most exposed records: without it,
with another label, and with its numbers at the ends of their domain. If the unit is the person, all
of their records are changed together, including unusable ones. Figures that would change are listed
as disclosed; declared figures never change (see :mod:`seepage.auditing.neighbours`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.findings import LEFT_OUT, RELABELLED, Disclosure
from seepage.auditing.neighbours import AT_THE_ENDS, most_exposed, other_labels
from seepage.auditing.release.procedure import Domain, Prepared, Procedure
from seepage.errors import InputError


class Neighbour(NamedTuple):
    """The figures of a table in which one record, or person, is changed."""

    row: int
    change: str
    figures: tuple[str, ...]  # the published ones that would be others
    needed: float  # the σ with which nobody in it leaks more than they may
    moved: float = math.nan  # how far from the released numbers its own are, before noise

    @property
    def disclosure(self) -> Disclosure:
        """The figures that disclose the change."""
        return Disclosure(self.row, self.change, self.figures)


def find_disclosures(
    procedure: Procedure, raw: pa.Table, prepared: Prepared
) -> tuple[Disclosure, ...]:
    """Rerun the procedure on neighbouring tables, and return the figures to be published."""
    tried = try_neighbours(procedure, raw, prepared)
    return tuple(neighbour.disclosure for neighbour in tried if neighbour.figures)


def try_neighbours(
    procedure: Procedure, raw: pa.Table, prepared: Prepared
) -> tuple[Neighbour, ...]:
    """Rerun the procedure on neighbouring tables, for all changes of the most exposed records."""
    ours, found = prepared.figures, []
    numbers = released_numbers(prepared.trained.model)
    for row in prepared.rows[most_exposed(prepared.eta)].tolist():
        rows = rows_beside(raw, row, procedure.person)
        for change, neighbour in neighbours_of(raw, rows, prepared, procedure.domains):
            moved = math.nan
            try:
                others, needed, trained = procedure.rerun(neighbour, prepared)
            except InputError:
                figures, needed = ["whether anything can be released"], math.inf
            else:
                theirs = released_numbers(trained.model)
                if theirs.shape == numbers.shape:
                    moved = float(np.linalg.norm(theirs - numbers))
                names = dict.fromkeys([*ours, *others])
                figures = [name for name in names if ours.get(name) != others.get(name)]
            found.append(Neighbour(row, change, tuple(figures), needed, moved))
    return tuple(found)


def released_numbers(model: object) -> np.ndarray:
    """Return the coefficients and the intercept of a model, as they are released."""
    return np.concatenate([np.ravel(getattr(model, name)) for name in ("coef_", "intercept_")])


def rows_beside(raw: pa.Table, row: int, person: str | None) -> np.ndarray:
    """Return the rows that change together with a row: itself, or all rows of its person."""
    if person is None:
        return np.array([row])
    column = raw.column(person)
    return np.flatnonzero(pc.equal(column, column[row]).to_numpy(zero_copy_only=False))


def neighbours_of(
    raw: pa.Table, rows: np.ndarray, prepared: Prepared, domain: Domain
) -> Iterator[tuple[str, pa.Table]]:
    """Yield a table without some records, and tables with replacements for them."""
    yield LEFT_OUT, raw.take(pa.array(np.delete(np.arange(raw.num_rows), rows)))
    encoded = prepared.trained.table
    target = encoded.target
    own = raw.column(target)[int(rows[0])].as_py()
    if encoded.labels.counts is not None:
        known = pc.unique(raw.column(target)).drop_null().to_pylist()
    else:
        known = list(_ends(raw, target, domain))
    for label in other_labels(own, known):
        yield RELABELLED, _replaced(raw, rows, {target: label})
    numeric = [a.name for a in encoded.attributes if a.kind == "numeric"]
    for end, words in enumerate(AT_THE_ENDS):
        moved = {name: _ends(raw, name, domain)[end] for name in numeric}
        yield words, _replaced(raw, rows, moved)


def _ends(raw: pa.Table, name: str, domain: Domain) -> tuple[float, float]:
    """Return the ends of a column's domain: as declared, or its smallest and largest values.

    For whole numbers, they are the outermost whole numbers of the domain.
    """
    if name in domain:
        low, high = domain[name]
        whole = pa.types.is_integer(raw.schema.field(name).type)
        return (math.ceil(low), math.floor(high)) if whole else (low, high)
    ends = pc.min_max(raw.column(name)).as_py()
    return ends["min"], ends["max"]


def _replaced(raw: pa.Table, rows: np.ndarray, cells: Mapping[str, Any]) -> pa.Table:
    """Return the table with the same new cells in each of some rows."""
    changed = np.zeros(raw.num_rows, dtype=bool)
    changed[rows] = True
    for name, cell in cells.items():
        field = raw.schema.field(name)
        other = pc.if_else(pa.array(changed), pa.scalar(cell, field.type), raw.column(name))
        raw = raw.set_column(raw.column_names.index(name), field, other)
    return raw
