"""A nominal attribute: its columns in the encoded table, and the code for each level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core.jacobian import Attributes
from seepage.errors import InputError, nearest
from seepage.tables.names import counted
from seepage.tables.source import MemorySource, as_numpy, read_table

_DROPPED = "none of these"


@dataclass(frozen=True, eq=False)
class NominalAttribute:
    """An attribute with K levels, encoded in t columns of a table.

    Parameters
    ----------
    name
        The attribute's name.
    columns
        The positions of the attribute's columns in the table.
    codes
        The entries of the attribute's columns for each level, (K, t): rows of the identity matrix
        for a one-hot attribute, and a row of zeros for a level without a column.
    levels
        The names of the levels, in the order of ``codes``.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import NominalAttribute
    >>> X = np.array([[0.3, 1, 0], [0.8, 0, 1], [0.1, 0, 0]])
    >>> allele = NominalAttribute.from_table(X, [1, 2], "allele", levels=("CC", "CT", "TT"))
    >>> allele.read(X).tolist()
    [1, 2, 0]
    """

    name: str
    columns: tuple[int, ...]
    codes: np.ndarray
    levels: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = np.array(self.codes, dtype=float)
        if not self.columns:
            raise InputError(
                f"The attribute {self.name!r} has no columns; name at least one column."
            )
        if codes.ndim != 2 or codes.shape != (len(self.levels), len(self.columns)):
            raise InputError(
                f"The codes of {self.name!r} must have one row per level ({len(self.levels)}) and "
                f"one column per column of the attribute ({len(self.columns)}), but their shape is "
                f"{codes.shape}; transpose or extend them."
            )
        if len(self.levels) < 2:
            raise InputError(
                f"{self.name!r} has only one level, so nothing can be inferred; name an attribute "
                "with at least two levels."
            )
        if not np.all(np.isfinite(codes)):
            raise InputError(
                f"The codes of {self.name!r} contain NaN or infinity; give finite codes."
            )
        if len(np.unique(codes, axis=0)) < len(codes):
            raise InputError(
                f"Two levels of {self.name!r} have the same code, so no model can distinguish "
                "them; merge these levels."
            )
        codes.setflags(write=False)
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "columns", tuple(int(j) for j in self.columns))
        object.__setattr__(self, "levels", tuple(str(level) for level in self.levels))

    @classmethod
    def from_problem(cls, problem: Any, name: str, *, dropped: str = _DROPPED) -> NominalAttribute:
        """Return an attribute from a prepared :class:`~seepage.data.Problem`.

        Parameters
        ----------
        problem
            The problem; its :attr:`attributes` define which columns belong together.
        name
            The attribute.
        dropped
            The name of the level without a column (its code is all zeros).
        """
        known = problem.indices()
        if name not in known:
            raise InputError(
                f"The problem has no attribute {name!r}{nearest(name, known)}; its attributes are "
                f"{', '.join(map(repr, known))}."
            )
        columns = known[name]
        own = [problem.names[j].removeprefix(f"{name}=") for j in columns]
        t = len(columns)
        return cls(name, columns, np.vstack([np.zeros((1, t)), np.eye(t)]), (dropped, *own))

    @classmethod
    def from_table(
        cls,
        X: Any,
        columns: Sequence[str | int],
        name: str = "",
        *,
        levels: Sequence[str] | None = None,
    ) -> NominalAttribute:
        """Return the attribute with the levels that occur in a table.

        Columns of zeros and ones with at most a single 1 per row are treated as one-hot: each
        column is a level. A row of zeros is the dropped level, which is listed first. In all other
        cases, such as scaled columns, every distinct combination in the table is a level, in sorted
        order.

        Parameters
        ----------
        X
            A table that contains all levels: a NumPy array, a data frame or a tensor.
        columns
            The attribute's columns, by name or position.
        name
            The attribute's name; by default, the name of the first column.
        levels
            The names of the levels in the order described above; by default, the names of the
            columns or their values.
        """
        table = read_table(X)
        named, _ = Attributes(MemorySource(table, None)).unknowns(list(columns), False)
        places = named.columns or ()
        title = name or table.names[places[0]]
        seen = as_numpy(table.values[:, list(places)])
        codes, named_levels = _levels_of(seen, [table.names[j] for j in places], title)
        return cls(title, places, codes, tuple(levels) if levels is not None else named_levels)

    def __len__(self) -> int:
        return len(self.levels)

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.levels)}>"

    def read(self, X: Any) -> np.ndarray:
        """Return every row's level, (n,), as a position in ``levels``."""
        values = read_table(X, check=False).values
        if max(self.columns) >= values.shape[1] or min(self.columns) < 0:
            raise InputError(
                f"{self.name!r} is encoded in columns {list(self.columns)}, but X has "
                f"{counted(values.shape[1], 'column')}; pass the table from which the attribute "
                "was defined."
            )
        shown = as_numpy(values[:, list(self.columns)])
        positions = np.full(len(shown), -1, dtype=np.int64)
        for k, code in enumerate(self.codes):
            positions[np.all(shown == code, axis=1)] = k
        if np.any(positions < 0):
            row = int(np.argmax(positions < 0))
            raise InputError(
                f"Row {row} has {shown[row].tolist()} in the columns of {self.name!r}, which is "
                "not the code of any of its levels. Correct the row, or redefine the attribute "
                "with a table that contains all levels."
            )
        return positions

    def others(self, d: int) -> np.ndarray:
        """Return the positions of all columns, out of d, that do not encode this attribute."""
        return np.setdiff1d(np.arange(d), self.columns)


def _levels_of(
    seen: np.ndarray, names: list[str], title: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the codes that occur in the attribute's columns, and a name for each."""
    t = seen.shape[1]
    if np.all((seen == 0) | (seen == 1)) and np.all(seen.sum(axis=1) <= 1):
        codes, names_of_levels = np.eye(t), [name.removeprefix(f"{title}=") for name in names]
        if np.any(seen.sum(axis=1) == 0):
            codes, names_of_levels = (
                np.vstack([np.zeros((1, t)), codes]),
                [_DROPPED, *names_of_levels],
            )
        return codes, tuple(names_of_levels)
    codes = np.unique(seen, axis=0)
    if len(codes) > min(1000, max(2, len(seen) // 2)):
        raise InputError(
            f"{title!r} has {len(codes)} distinct values in {len(seen)} rows, so it is continuous, "
            "not nominal; divide it into bands first."
        )
    return codes, tuple(", ".join(f"{value:g}" for value in code) for code in codes)
