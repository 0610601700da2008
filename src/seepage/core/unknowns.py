"""The unknowns of a record, and how the caller names them.

:class:`Unknowns` are the unknown directions of a record: some of its columns, its label, or all of
it. :class:`Attributes` finds them for the columns that a caller names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError, nearest
from seepage.tables.source import Array, Chunk, RowSource


@dataclass(frozen=True, eq=False)
class Unknowns:
    """The unknown directions of one record.

    Parameters
    ----------
    columns
        The unknown columns; ``None`` means all columns.
    label
        Whether the label is unknown too.
    basis
        With a basis ``V`` of shape ``(len(columns), t)``, only the directions it spans are
        unknown. The other directions are impossible, as for a one-hot attribute on its simplex.
    """

    columns: tuple[int, ...] | None
    label: bool
    basis: np.ndarray | None = None

    def of(self, values: Array, axis: int = 0) -> Array:
        """Restrict the column axis of an array to the unknown directions."""
        xp = array_namespace(values)
        if self.columns is not None:
            where = xp.asarray(self.columns, dtype=xp.int64, device=values.device)
            values = xp.take(values, where, axis=axis)
        if self.basis is None:
            return values
        basis = xp.asarray(self.basis, dtype=values.dtype, device=values.device)
        return xp.moveaxis(xp.moveaxis(values, axis, -1) @ basis, -1, axis)

    def back(self, values: Array, columns: int) -> Array:
        """Map the first axis from the unknown directions back to all columns."""
        xp = array_namespace(values)
        if self.basis is not None:
            values = xp.asarray(self.basis, dtype=values.dtype, device=values.device) @ values
        if self.columns is None:
            return values
        out = xp.zeros((columns, *values.shape[1:]), dtype=values.dtype, device=values.device)
        out[list(self.columns), ...] = values
        return out

    def same_features(self, other: Unknowns) -> bool:
        """Return whether the unknown features are the same, regardless of the label."""
        return self.columns == other.columns and self.basis is other.basis

    def features(self, columns: int) -> int:
        """Return the number of unknown directions among the ``columns`` features."""
        if self.basis is not None:
            return int(self.basis.shape[1])
        return columns if self.columns is None else len(self.columns)

    def count(self, jacobian: Any) -> int:
        """Return the number of unknowns of one record, label included."""
        label = jacobian.label_size if self.label else 0
        return self.features(jacobian.features) + int(label)


class Attributes:
    """Attributes of a table: single columns, or several columns under one name.

    Columns that form one attribute, such as the one-hot columns of a category, are known from the
    source or declared by the caller.
    """

    def __init__(
        self, source: RowSource, declared: Mapping[str, Sequence[str | int]] | None = None
    ) -> None:
        self.source, self.names = source, source.names
        self._positions: dict[str, int] = {}
        for j, name in enumerate(self.names):
            self._positions.setdefault(name, j)
        self.declared: dict[str, tuple[int, ...]] = {}
        owner: dict[int, str] = {}
        for name, columns in {**source.attributes, **(declared or {})}.items():
            members = tuple(self._column(c) for c in columns)
            if not members:
                raise InputError(
                    f"The attribute {name!r} is declared without a column; name at least one."
                )
            for j in members:
                if j in owner:
                    raise InputError(
                        f"Column {self.names[j]!r} belongs to both {owner[j]!r} and {name!r}; "
                        "remove it from one of these attributes."
                    )
                owner[j] = name
            self.declared[str(name)] = members
        self._owner = owner

    def each(self, simplex: bool) -> tuple[list[str], list[Unknowns]]:
        """Return every attribute's name and unknowns, in the order of their first columns."""
        names: list[str] = []
        unknowns: list[Unknowns] = []
        for j, column in enumerate(self.names):
            name = self._owner.get(j)
            if name is None:
                names.append(column)
                unknowns.append(Unknowns((j,), False))
            elif self.declared[name][0] == j:
                names.append(name)
                members = self.declared[name]
                basis = self._basis([members]) if simplex else None
                unknowns.append(Unknowns(members, False, basis))
        return names, unknowns

    def unknowns(
        self, columns: str | int | Sequence[str | int] | None, label: bool, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return the unknowns that ``columns`` select, and their description."""
        and_label = " and the label" if label else ""
        if columns is None:
            about = f"all columns{and_label}"
            if not simplex:
                return Unknowns(None, label), about
            blocks = [u.columns or () for u in self.each(False)[1]]
            # In the order of the attributes, which is that of the basis.
            every = tuple(j for block in blocks for j in block)
            return Unknowns(every, label, self._basis(blocks)), about
        asked = [columns] if isinstance(columns, str | int | np.integer) else list(columns)
        if not asked and not label:
            raise InputError("No column was named; name at least one column, or pass label=True.")
        blocks = [self._members(name) for name in asked]
        flat = [j for block in blocks for j in block]
        if len(set(flat)) < len(flat):
            twice = next(j for j in flat if flat.count(j) > 1)
            raise InputError(f"Column {self.names[twice]!r} was named twice; name it once.")
        shown = ", ".join(str(n) if isinstance(n, str) else self.names[n] for n in asked)
        about = f"{shown}{and_label}" if asked else "the label"
        return Unknowns(tuple(flat), label, self._basis(blocks) if simplex else None), about

    def _members(self, name: str | int) -> tuple[int, ...]:
        if isinstance(name, str) and name in self.declared:
            return self.declared[name]
        return (self._column(name),)

    def _column(self, name: str | int) -> int:
        d = len(self.names)
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if not -d <= name < d:
                raise InputError(f"There is no column {name}; choose columns from 0 to {d - 1}.")
            return int(name) % d
        if str(name) not in self._positions:
            known = [*self.declared, *self.names] if hasattr(self, "declared") else []
            raise InputError(
                f"There is no column {name!r} among the features{nearest(name, known)}. The label "
                "has no column name: to measure it, leave the column out or pass None."
            )
        if self.names.count(str(name)) > 1:
            raise InputError(f"Several columns are called {name!r}; pass their positions instead.")
        return self._positions[str(name)]

    def _basis(self, blocks: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Return the directions in which every complete one-hot attribute keeps its sum."""
        for block in blocks:
            if len(block) > 1:
                self._check_complete(block)
        from scipy.linalg import block_diag

        bases = [simplex_basis(len(b)) if len(b) > 1 else np.eye(1) for b in blocks]
        return np.asarray(block_diag(*bases))

    def _check_complete(self, block: tuple[int, ...]) -> None:
        sums = self.source.total(partial(_sums_of_columns, block=block), "one-hot columns")
        if sums.other is not None:
            name = self._owner.get(block[0], self.names[block[0]])
            raise InputError(
                f"The columns of {name!r} do not have the same sum in every row (rows 0 and "
                f"{sums.other} differ), so they are not a complete one-hot attribute: a level was "
                "dropped, or they were scaled; pass simplex=False."
            )


@dataclass(frozen=True)
class _SumsOfColumns:
    """Stores the sum of some columns in the first row, and the first row with a different sum."""

    first: float
    start: int
    other: int | None

    def __add__(self, other: _SumsOfColumns) -> _SumsOfColumns:
        row = self.other
        if row is None:
            apart = abs(other.first - self.first) > _SAME_SUM
            row = other.start if apart else other.other
        return _SumsOfColumns(self.first, self.start, row)


_SAME_SUM = 1e-6  # one-hot columns add up to 1, but in single precision only about


def _sums_of_columns(chunk: Chunk, block: tuple[int, ...]) -> _SumsOfColumns:
    xp = array_namespace(chunk.X)
    sums = xp.sum(xp.stack([chunk.X[:, j] for j in block]), axis=0)
    off = xp.abs(sums - sums[0]) > _SAME_SUM
    row = chunk.start + int(xp.argmax(xp.astype(off, xp.int64))) if bool(xp.any(off)) else None
    return _SumsOfColumns(float(sums[0]), chunk.start, row)


def simplex_basis(levels: int) -> np.ndarray:
    """Return an orthonormal basis, ``(levels, levels − 1)``, of the directions that sum to zero."""
    # Imported here, so that training needs only torch and numpy.
    from scipy.linalg import helmert

    return np.asarray(helmert(levels).T)
