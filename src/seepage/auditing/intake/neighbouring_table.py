"""A table that differs from an encoded one in a few rows, and is encoded from what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa

from seepage.auditing.intake.table import LabelCoding, TableInMemory
from seepage.auditing.trained_model import EncodedTable, RecordsInMemory
from seepage.tables.columns import Scan, TableEncoding


class NeighbouringTable(TableInMemory):
    """A table with other cells in some rows than a table that was encoded before.

    Parameters
    ----------
    table
        The table after the change.
    before, encoded
        The table before the change, and the same encoded.
    rest
        The table without the rows that changed.
    rows, columns
        The rows that changed, and the columns in which they did.
    """

    hypothetical = True

    def __init__(
        self,
        table: pa.Table,
        before: TableInMemory,
        encoded: EncodedTable,
        rest: TableInMemory,
        rows: np.ndarray,
        columns: Sequence[str],
    ) -> None:
        super().__init__(table)
        self._before, self._encoded, self._rest = before, encoded, rest
        self._changed_rows, self._changed = rows, frozenset(columns)
        self._new = TableInMemory(table.take(pa.array(rows)))

    def scan(self, columns: Sequence[str]) -> Scan:
        """Return the sums of columns over all rows; of changed columns, new cells are added."""
        changed = [name for name in columns if name in self._changed]
        found = self._rest.scan(changed) + self._new.scan(changed)
        found.update(self._before.scan([name for name in columns if name not in self._changed]))
        return Scan({name: found[name] for name in columns})

    def central_scale(self, name: str, deviation: float) -> tuple[float, float]:
        """Return robust estimates of a column's centre and spread."""
        if name in self._changed:
            return super().central_scale(name, deviation)
        return self._before.central_scale(name, deviation)

    def encoded(
        self, coding: TableEncoding, labels: LabelCoding, groups: Sequence[str]
    ) -> RecordsInMemory:
        """Return the encoded rows; if the coding is the same, only changed rows are encoded."""
        records, rows = cast(RecordsInMemory, self._encoded.source), self._changed_rows
        alike = self._encoded.coding is not None and coding.same_as(self._encoded.coding)
        if groups or not alike or len(records) != self.rows:
            return super().encoded(coding, labels, groups)
        X, y = records.X.copy(), records.y
        parts = [(part, at) for part, at in coding.places() if part.name in self._changed]
        if parts:
            some = replace(coding, parts=tuple(part for part, _ in parts))
            columns = np.concatenate([np.arange(at.start, at.stop) for _, at in parts])
            X[np.ix_(rows, columns)] = self._new.encoded(some, labels, ()).X
        if coding.target in self._changed:  # classes may have other names
            narrow = replace(coding, parts=coding.parts[:1])
            y = super().encoded(narrow, labels, ()).y
        return RecordsInMemory(X, records.names, y, None, records.beside)
