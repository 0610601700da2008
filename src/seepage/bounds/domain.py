"""Where records may lie: the limits of every column, stated by the user or read off the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError, nearest
from seepage.tables.frames import Table, as_numpy


@dataclass(frozen=True, eq=False)
class Domain:
    """The lower and upper limit of every column.

    Parameters
    ----------
    lower, upper
        One number per column.
    stated
        Whether they were stated beforehand; limits read off the data depend on them, and what
        follows from those is no guarantee.
    """

    lower: np.ndarray
    upper: np.ndarray
    stated: bool

    @property
    def diameters(self) -> np.ndarray:
        """How far apart two records can be in every column (paper 004, theorem 1)."""
        return np.asarray(self.upper - self.lower)

    @property
    def row_norm(self) -> float:
        """The largest Euclidean norm of a record."""
        return float(np.linalg.norm(np.maximum(np.abs(self.lower), np.abs(self.upper))))

    @property
    def words(self) -> str:
        """Where the limits come from, in a sentence."""
        if self.stated:
            return "Every column lies within the limits that were stated."
        return (
            "Every column lies within the range it has in the data; that range is itself read off "
            "the data, so this is not a guarantee."
        )

    @classmethod
    def of(cls, domain: Any, table: Table) -> Domain:
        """Read what callers write for the table's domain.

        A pair ``(lower, upper)``, each one number or one per column; a mapping from every column's
        name to such a pair; or ``None``: the columns' ranges.
        """
        if isinstance(domain, Domain):
            return _checked(domain, table)
        xp = array_namespace(table.values)
        if domain is None:
            low, high = xp.min(table.values, axis=0), xp.max(table.values, axis=0)
            return cls(as_numpy(low).astype(float), as_numpy(high).astype(float), False)
        d = len(table.names)
        if isinstance(domain, Mapping):
            pairs = _by_name(domain, table)
            lower, upper = pairs[:, 0], pairs[:, 1]
        else:
            try:
                lower, upper = (
                    np.array(np.broadcast_to(np.asarray(side, dtype=float), (d,)))
                    for side in domain
                )
            except (TypeError, ValueError):
                raise InputError(
                    f"domain must be (lower, upper), each one number or one for each of the {d} "
                    "columns, or a mapping from column names to such pairs."
                ) from None
        return _checked(cls(lower, upper, True), table)

    @classmethod
    def of_column(cls, domain: Any, table: Table, column: int) -> Domain:
        """Read the domain of a single column: its own limits, or its share of all columns'."""
        name = table.names[column]
        alone = Table(table.values[:, column : column + 1], (name,), table.index, table.library)
        if isinstance(domain, Domain):
            one = slice(column, column + 1)
            return _checked(cls(domain.lower[one], domain.upper[one], domain.stated), alone)
        if isinstance(domain, Mapping):
            domain = {key: pair for key, pair in domain.items() if key == name} or domain
        elif domain is not None:
            domain = [side if np.ndim(side) == 0 else np.asarray(side)[column] for side in domain]
        return cls.of(domain, alone)


def _by_name(domain: Mapping[Any, Any], table: Table) -> np.ndarray:
    for name in domain:
        if name not in table.names:
            raise InputError(f"There is no column {name!r}{nearest(name, table.names)}.")
    missing = [name for name in table.names if name not in domain]
    if missing:
        raise InputError(
            f"The domain says nothing about the column {missing[0]!r}; state the limits of every "
            "column, or none to take the ranges in the data."
        )
    try:
        return np.array([[float(end) for end in domain[name]] for name in table.names]).reshape(
            len(table.names), 2
        )
    except (TypeError, ValueError):
        raise InputError("domain must map every column to its limits (lower, upper).") from None


def _checked(domain: Domain, table: Table) -> Domain:
    if domain.lower.shape != (len(table.names),) or domain.upper.shape != domain.lower.shape:
        raise InputError(f"The domain must have limits for {len(table.names)} columns.")
    for j, name in enumerate(table.names):
        low, high = float(domain.lower[j]), float(domain.upper[j])
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise InputError(f"The limits of column {name!r} must be finite and in order.")
    xp = array_namespace(table.values)
    least, most = as_numpy(xp.min(table.values, axis=0)), as_numpy(xp.max(table.values, axis=0))
    outside = np.flatnonzero((least < domain.lower) | (most > domain.upper))
    if outside.size:
        j = int(outside[0])
        raise InputError(
            f"Column {table.names[j]!r} runs from {least[j]:.4g} to {most[j]:.4g}, outside the "
            f"stated domain from {domain.lower[j]:.4g} to {domain.upper[j]:.4g}."
        )
    return domain
