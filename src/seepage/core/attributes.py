"""Attributes of a table: single columns, or columns that belong together under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from array_api_compat import array_namespace

from seepage.core.unknowns import Unknowns, block_diagonal, simplex_basis
from seepage.errors import InputError, nearest
from seepage.tables.frames import Table


class Attributes:
    """Resolves what callers name into columns of the table.

    Parameters
    ----------
    table
        The table whose columns are meant.
    declared
        Columns that belong together, such as the one-hot columns of a category, under a name.
    """

    def __init__(self, table: Table, declared: Mapping[str, Sequence[str | int]]) -> None:
        self.table = table
        self._positions: dict[str, int] = {}
        for j, name in enumerate(table.names):
            self._positions.setdefault(name, j)
        self.declared: dict[str, tuple[int, ...]] = {}
        owner: dict[int, str] = {}
        for name, columns in declared.items():
            members = tuple(self._column(c) for c in columns)
            if not members:
                raise InputError(f"The attribute {name!r} is declared without any column.")
            for j in members:
                if j in owner:
                    raise InputError(
                        f"Column {table.names[j]!r} belongs to both {owner[j]!r} and {name!r}; an "
                        "attribute's columns must be its own."
                    )
                owner[j] = name
            self.declared[str(name)] = members
        self._owner = owner

    def each(self, simplex: bool) -> tuple[list[str], list[Unknowns]]:
        """Return every attribute's name and unknowns, in the order of their first columns."""
        names: list[str] = []
        unknowns: list[Unknowns] = []
        for j, column in enumerate(self.table.names):
            name = self._owner.get(j)
            if name is None:
                names.append(column)
                unknowns.append(Unknowns((j,), False))
            elif self.declared[name][0] == j:
                names.append(name)
                members = self.declared[name]
                unknowns.append(Unknowns(members, False, self._basis([members], simplex)))
        return names, unknowns

    def unknowns(
        self, columns: str | int | Sequence[str | int] | None, label: bool, simplex: bool
    ) -> tuple[Unknowns, str]:
        """Return the unknowns that ``columns`` name, and the same in words."""
        and_label = " and the label" if label else ""
        if columns is None:
            blocks = [u.columns or () for u in self.each(False)[1]] if simplex else []
            # In the order of the attributes, which is that of the basis.
            every = tuple(j for block in blocks for j in block) if simplex else None
            return Unknowns(every, label, self._basis(blocks, simplex)), f"all columns{and_label}"
        asked = [columns] if isinstance(columns, str | int | np.integer) else list(columns)
        if not asked and not label:
            raise InputError("No column was named; name at least one, or ask about the label.")
        blocks = [self._members(name) for name in asked]
        flat = [j for block in blocks for j in block]
        if len(set(flat)) < len(flat):
            twice = next(j for j in flat if flat.count(j) > 1)
            raise InputError(f"Column {self.table.names[twice]!r} was named twice.")
        shown = ", ".join(str(n) if isinstance(n, str) else self.table.names[n] for n in asked)
        about = f"{shown}{and_label}" if asked else "the label"
        return Unknowns(tuple(flat), label, self._basis(blocks, simplex)), about

    def _members(self, name: str | int) -> tuple[int, ...]:
        if isinstance(name, str) and name in self.declared:
            return self.declared[name]
        return (self._column(name),)

    def _column(self, name: str | int) -> int:
        d = len(self.table.names)
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if not -d <= name < d:
                raise InputError(f"There is no column {name}: the table has {d} columns.")
            return int(name) % d
        if str(name) not in self._positions:
            known = [*self.declared, *self.table.names] if hasattr(self, "declared") else []
            raise InputError(f"There is no column {name!r}{nearest(name, known)}.")
        if self.table.names.count(str(name)) > 1:
            raise InputError(f"Several columns are called {name!r}; name them by their position.")
        return self._positions[str(name)]

    def _basis(self, blocks: Sequence[tuple[int, ...]], simplex: bool) -> np.ndarray | None:
        """Return the directions that keep every complete one-hot attribute on its simplex."""
        if not simplex:
            return None
        for block in blocks:
            if len(block) > 1:
                self._check_complete(block)
        return block_diagonal([simplex_basis(len(b)) if len(b) > 1 else np.eye(1) for b in blocks])

    def _check_complete(self, block: tuple[int, ...]) -> None:
        xp = array_namespace(self.table.values)
        sums = xp.sum(xp.stack([self.table.values[:, j] for j in block]), axis=0)
        off = xp.abs(sums - sums[0]) > 1e-6
        if bool(xp.any(off)):
            row = int(xp.argmax(xp.astype(off, xp.int64)))
            name = self._owner.get(block[0], self.table.names[block[0]])
            raise InputError(
                f"The columns of {name!r} do not add up to the same in every row (rows 0 and "
                f"{row} differ), so they are no complete one-hot attribute: a level was dropped "
                "and the others are free already, or they were scaled; ask with simplex=False."
            )
