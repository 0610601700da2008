"""What an adversary does not know of a record: some of its columns, its label, or all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

Array = Any


@dataclass(frozen=True, eq=False)
class Unknowns:
    """The unknown directions of one record.

    Parameters
    ----------
    columns
        The unknown columns, or ``None`` for all of them.
    label
        Whether the label is unknown too.
    basis
        With a basis ``V`` of shape ``(len(columns), t)``, only the directions it spans are
        unknown: the others are ruled out beforehand, as for a one-hot attribute on its simplex.
    """

    columns: tuple[int, ...] | None
    label: bool
    basis: np.ndarray | None = None

    def of(self, values: Array, axis: int = 0) -> Array:
        """Restrict one axis of an array, which runs over the columns, to the unknown directions."""
        xp = array_namespace(values)
        if self.columns is not None:
            where = xp.asarray(self.columns, dtype=xp.int64, device=values.device)
            values = xp.take(values, where, axis=axis)
        if self.basis is None:
            return values
        basis = xp.asarray(self.basis, dtype=values.dtype, device=values.device)
        return xp.moveaxis(xp.moveaxis(values, axis, -1) @ basis, -1, axis)

    def back(self, values: Array, columns: int) -> Array:
        """Spread the first axis, which runs over the unknown directions, out over all columns."""
        xp = array_namespace(values)
        if self.basis is not None:
            values = xp.asarray(self.basis, dtype=values.dtype, device=values.device) @ values
        if self.columns is None:
            return values
        out = xp.zeros((columns, *values.shape[1:]), dtype=values.dtype, device=values.device)
        out[list(self.columns), ...] = values
        return out

    def same_features(self, other: Unknowns) -> bool:
        """Say whether the unknown features are the same ones, whatever the label is."""
        return self.columns == other.columns and self.basis is other.basis

    def features(self, columns: int) -> int:
        """Count the unknown directions among the ``columns`` features."""
        if self.basis is not None:
            return int(self.basis.shape[1])
        return columns if self.columns is None else len(self.columns)


def simplex_basis(levels: int) -> np.ndarray:
    """Return an orthonormal basis, ``(levels, levels − 1)``, of the directions that sum to zero."""
    # Helmert's contrasts: column k weighs the first k+1 levels against the next one.
    basis = np.zeros((levels, levels - 1))
    for k in range(levels - 1):
        basis[: k + 1, k] = 1.0
        basis[k + 1, k] = -(k + 1.0)
        basis[:, k] /= np.sqrt((k + 1.0) * (k + 2.0))
    return basis


def block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Put matrices along the diagonal of one matrix."""
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for b in blocks:
        out[row : row + b.shape[0], column : column + b.shape[1]] = b
        row, column = row + b.shape[0], column + b.shape[1]
    return out
