"""What all attribute-inversion adversaries share: learn what is known, guess, and be scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from seepage.attacks.attribute.inversion_result import InversionResult
from seepage.attacks.attribute.nominal import NominalAttribute, check_columns
from seepage.attacks.record.releases import Releases
from seepage.errors import InputError
from seepage.support.chunks import row_slices
from seepage.tables.frames import Table, as_numpy, check_finite, check_length, read_table


class AttributeInversion(ABC):
    """An adversary who guesses a nominal attribute of records from everything else about them.

    ``fit`` takes what the adversary knows; ``predict`` guesses the level of every target row, and
    never looks at the attribute's own columns there; ``attack`` compares the guesses with the truth
    in these columns. A subclass says how well each level explains what is seen.

    Parameters
    ----------
    attribute
        What is guessed.
    """

    name = "adversary"

    def __init__(self, attribute: NominalAttribute) -> None:
        self.attribute = attribute

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Learn from what the adversary knows, and return the adversary."""

    @abstractmethod
    def _prepare(self, release: Any) -> tuple[Any, int]:
        """Return what scoring needs of the release or releases, and how many there are."""

    @abstractmethod
    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        """Return the score of every level, (T, b, K) or (1, b, K), for a chunk of target rows.

        ``X``, (b, d), and ``y``, (b,), are the chunk, with zeros in the attribute's columns, and
        ``rows`` says where among the targets it lies. The level with the highest score is guessed.
        """

    def predict(self, X: Any, y: Any, release: Any = None) -> np.ndarray:
        """Guess the level of every target row.

        Parameters
        ----------
        X
            The target rows, (n, d). What stands in the attribute's columns is not looked at, and
            may be NaN.
        y
            Their labels, (n,).
        release
            What left the house: a released model, or :class:`Releases`, many at once. Not looked at
            by :class:`Prior` and :class:`Ideal`.

        Returns
        -------
        numpy.ndarray
            The position of the guessed level in ``attribute.levels``, (n,); (T, n) for
            :class:`Releases`. Of levels that explain what is seen equally well, the first.
        """
        guesses = self._guess(X, y, release)
        if isinstance(release, Releases):
            return np.broadcast_to(guesses, (len(release), len(guesses[0])))
        return np.asarray(guesses[0])

    def attack(self, X: Any, y: Any, release: Any = None) -> InversionResult:
        """Guess the level of every target row and compare with the truth.

        Parameters are those of :meth:`predict`, but the attribute's columns hold the truth.
        """
        truth = self.attribute.read(X)
        hits = self._guess(X, y, release) == truth
        return InversionResult(self.name, self.attribute.name, len(self.attribute), hits)

    def _guess(self, X: Any, y: Any, release: Any) -> np.ndarray:
        """Return the guessed levels, (T, n)."""
        self._check_fitted()
        table, labels = self._read_targets(X, y)
        prepared, trials = self._prepare(release)
        d, K = table.values.shape[1], len(self.attribute)
        guesses = np.empty((trials, len(table)), dtype=np.min_scalar_type(K))
        width = self._chunk_width(d, trials)
        for rows in row_slices(len(table), width, what=f"{self.name} attack"):
            chunk = self._without_attribute(table, rows)
            guesses[:, rows] = np.argmax(self._scores(chunk, labels[rows], rows, prepared), axis=2)
        return guesses

    def _chunk_width(self, d: int, trials: int) -> int:
        """Return about how many numbers scoring one row holds at a time."""
        return d + 3 * trials * len(self.attribute)

    def _read_known(self, X: Any, y: Any) -> tuple[Table, np.ndarray, np.ndarray]:
        """Return the table the adversary knows, its labels, and the level of every row."""
        table = read_table(X)
        check_columns(self.attribute, table.values.shape[1])
        labels = as_numpy(y)
        check_length(labels, table, "y")
        self.n_features_in_ = table.values.shape[1]
        return table, labels, self.attribute.read_columns(self._shown(table))

    def _read_targets(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        table = read_table(X, check=False)
        if table.values.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {table.values.shape[1]} columns, but the adversary learnt from "
                f"{self.n_features_in_}; pass rows of the same table."
            )
        labels = as_numpy(y)
        check_length(labels, table, "y")
        return table, labels

    def _without_attribute(self, table: Table, rows: slice) -> np.ndarray:
        """Return a chunk of the table with zeros in the attribute's columns."""
        chunk = np.array(as_numpy(table.values[rows, :]), dtype=float)
        chunk[:, self.attribute.columns] = 0.0
        check_finite(Table(chunk, table.names, None, table.library))
        return chunk

    def _shown(self, table: Table) -> np.ndarray:
        return as_numpy(table.values[:, list(self.attribute.columns)])

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):
            raise InputError(
                f"This {type(self).__name__} knows nothing yet: call fit with what it knows first."
            )

    def __repr__(self) -> str:
        return f"<{self.name} adversary on {self.attribute!r}>"


def log_frequencies(positions: np.ndarray, levels: int) -> np.ndarray:
    """Return the logarithm of every level's share, (K,); −∞ for a level nobody has."""
    with np.errstate(divide="ignore"):
        return np.log(np.bincount(positions, minlength=levels) / len(positions))
