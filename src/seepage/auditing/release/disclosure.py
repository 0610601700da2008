"""Which published figures would change without a record, or with another in its place.

The whole procedure is rerun from the raw table for each of the most exposed records: without it,
with another label, and with its numbers at the ends of their domain. Figures that would change are
listed as disclosed; declared ones never change (see :mod:`seepage.auditing.neighbours`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.findings import LEFT_OUT, RELABELLED, Disclosure
from seepage.auditing.neighbours import AT_THE_ENDS, most_exposed, other_labels
from seepage.auditing.release.procedure import Domain, Prepared, Procedure
from seepage.auditing.trained_model import ROW
from seepage.errors import InputError


def find_disclosures(
    procedure: Procedure,
    raw: pa.Table,
    prepared: Prepared,
) -> tuple[Disclosure, ...]:
    """Rerun the procedure on the neighbours of a table, and say what would be published."""
    rows = prepared.trained.records.beside[ROW]
    ours, found = prepared.figures, []
    for row in rows[most_exposed(prepared.eta)].tolist():
        for change, neighbour in _neighbours(raw, row, prepared, procedure.domains):
            try:
                others = procedure.figures(neighbour, prepared)
            except InputError:
                figures = ["whether anything can be released"]
            else:
                names = dict.fromkeys([*ours, *others])
                figures = [name for name in names if ours.get(name) != others.get(name)]
            if figures:
                found.append(Disclosure(row, change, tuple(figures)))
    return tuple(found)


def _neighbours(
    raw: pa.Table, row: int, prepared: Prepared, domain: Domain
) -> Iterator[tuple[str, pa.Table]]:
    """Yield a table without a record, and tables with another in its place."""
    yield LEFT_OUT, pa.concat_tables([raw.slice(0, row), raw.slice(row + 1)])
    encoded = prepared.trained.table
    target = encoded.target
    cells = {name: raw.column(name)[row].as_py() for name in raw.column_names}
    if encoded.labels.counts is not None:
        known = pc.unique(raw.column(target)).drop_null().to_pylist()
    else:
        known = list(_ends(raw, target, domain))
    for label in other_labels(cells[target], known):
        yield RELABELLED, _replaced(raw, row, cells | {target: label})
    numeric = [a.name for a in encoded.attributes if a.kind == "numeric"]
    for end, words in enumerate(AT_THE_ENDS):
        moved = {name: _ends(raw, name, domain)[end] for name in numeric}
        yield words, _replaced(raw, row, cells | moved)


def _ends(raw: pa.Table, name: str, domain: Domain) -> tuple[float, float]:
    """Return the ends of a column's domain: as stated, or the smallest and largest value.

    Those of whole numbers are the outermost whole numbers of the domain.
    """
    if name in domain:
        low, high = domain[name]
        whole = pa.types.is_integer(raw.schema.field(name).type)
        return (math.ceil(low), math.floor(high)) if whole else (low, high)
    ends = pc.min_max(raw.column(name)).as_py()
    return ends["min"], ends["max"]


def _replaced(raw: pa.Table, row: int, cells: Mapping[str, Any]) -> pa.Table:
    one = pa.table([[cells[name]] for name in raw.column_names], schema=raw.schema)
    return pa.concat_tables([raw.slice(0, row), one, raw.slice(row + 1)])
