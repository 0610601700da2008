"""Balanced class weights, and their change when records are removed or change class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

FEW_KEYS = 64  # ways to leave, each with weights of its own, that are worth a fit each


@dataclass(frozen=True, eq=False)
class ClassBalance:
    """The weights ``ω_i = s_i N/(K n_c)``; ``n_c`` is the class size, and ``N = Σ n_c``.

    A class size is the number of records or the sum of their weights, as in the library that fitted
    the model.
    """

    classes: np.ndarray  # the position of every record's class, (n,)
    own: np.ndarray  # ``s``: the weights that were given, (n,)
    counted: np.ndarray  # what every record adds to the size of its class, (n,)
    count: int  # K

    @cached_property
    def sizes(self) -> np.ndarray:
        """``n_c`` of all records, of shape (K,)."""
        return self._sizes(slice(None))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the contribution of these records to the class sizes, (K,)."""
        return self._sizes(rows)

    def factors(self, sizes: np.ndarray) -> np.ndarray:
        """Return the class weights for these sizes, of shape (K,); no class may be empty."""
        return np.asarray(sizes.sum() / (self.count * sizes))

    def empties(self, sizes: np.ndarray) -> bool:
        """Return whether a class is empty, in which case the model cannot be fitted."""
        return bool(np.any(sizes < 0.5 * self.counted[self.counted > 0].min()))

    def weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return the weights of all records for these class sizes, (n,)."""
        return np.asarray(self.own * self.factors(sizes)[self.classes])

    @cached_property
    def keys(self) -> int:
        """The number of distinct sets of class weights after removing any single record."""
        return len(np.unique(np.stack([self.classes, self.counted], axis=1), axis=0))

    def _sizes(self, rows: np.ndarray | slice) -> np.ndarray:
        return np.bincount(self.classes[rows], self.counted[rows], self.count)
