"""What a report asks about the leakage of single records, and the answers from arrays in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from seepage.support.files import Writer

NUMBERS = ("eta", "eta_features", "eta_label", "exact_error")
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)  # of the records, for which quantiles are told


@dataclass(frozen=True, eq=False)
class SomeRecords:
    """The numbers of a few records.

    Parameters
    ----------
    place, row
        Their positions among the audited records, and their numbers in the table.
    numbers
        Under each name of :data:`NUMBERS`, one number for each.
    errors
        For every sensitive attribute, the least error of an attack on it for each.
    """

    place: np.ndarray
    row: np.ndarray
    numbers: Mapping[str, np.ndarray]
    errors: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.row)

    def at(self, which: np.ndarray) -> SomeRecords:
        """Return some of these records, in the order they are named in."""
        return SomeRecords(
            self.place[which],
            self.row[which],
            {name: values[which] for name, values in self.numbers.items()},
            {name: values[which] for name, values in self.errors.items()},
        )


class Records(ABC):
    """The leakage of all records, wherever its numbers are.

    Attributes
    ----------
    count
        How many records there are.
    sensitive
        The attributes for which the error on every record is known.
    """

    count: int
    sensitive: tuple[str, ...]

    @abstractmethod
    def quantiles(self, name: str, shares: Sequence[float]) -> np.ndarray:
        """Return quantiles of one of the :data:`NUMBERS`, each the lower of two observations."""

    @abstractmethod
    def median(self) -> float:
        """Return the median of the leakage."""

    @abstractmethod
    def over(self, limit: float) -> int:
        """Return how many records leak more than a limit."""

    @abstractmethod
    def most(self, count: int) -> SomeRecords:
        """Return the most leaked records, the worst first, as many as are kept at most."""

    @abstractmethod
    def least(self, count: int) -> SomeRecords:
        """Return the least leaked records, the least first."""

    @abstractmethod
    def span(self) -> tuple[float, float] | None:
        """Return the range of the leakages that are finite and above zero, if there are any."""

    @abstractmethod
    def histogram(self, edges: np.ndarray) -> np.ndarray:
        """Return how many finite leakages lie in each bin; those outside count at the ends."""

    @abstractmethod
    def writer(self, make: Callable[[SomeRecords], pa.Table]) -> Writer | None:
        """Return what writes a table of all records to a file; ``None`` where workers have them."""

    def write_folder(self, make: Callable[[SomeRecords], pa.Table], folder: Path) -> None:
        """Have the workers write the table of all records to files in a new folder."""
        raise NotImplementedError

    def largest(self, name: str) -> float:
        """Return the largest of one of the :data:`NUMBERS`."""
        return float(self.quantiles(name, [1.0])[0])

    def worst(self) -> tuple[int, float]:
        """Return the number of the most leaked record in the table, and its leakage."""
        first = self.most(1)
        return int(first.row[0]), float(first.numbers["eta"][0])


class RecordArrays(Records):
    """Records whose numbers are in memory."""

    def __init__(
        self, row: np.ndarray, numbers: Mapping[str, Any], errors: Mapping[str, Any]
    ) -> None:
        self.count, self.sensitive = len(row), tuple(errors)
        self.every = SomeRecords(np.arange(len(row)), row, numbers, errors)
        self._eta = np.asarray(numbers["eta"], dtype=float)

    def quantiles(self, name: str, shares: Sequence[float]) -> np.ndarray:
        """Return quantiles of one of the :data:`NUMBERS`, each the lower of two observations."""
        # Not a mix of two: next to an infinite error that would mean nothing.
        values = np.asarray(self.every.numbers[name], dtype=float)
        return np.asarray(np.quantile(values, shares, method="lower"))

    def median(self) -> float:
        """Return the median of the leakage."""
        return float(np.median(self._eta))

    def over(self, limit: float) -> int:
        """Return how many records leak more than a limit."""
        return int(np.sum(self._eta > limit))

    def most(self, count: int) -> SomeRecords:
        """Return the most leaked records, the worst first."""
        return self.every.at(np.argsort(-self._eta, kind="stable")[:count])

    def least(self, count: int) -> SomeRecords:
        """Return the least leaked records, the least first."""
        return self.every.at(np.argsort(self._eta, kind="stable")[:count])

    def span(self) -> tuple[float, float] | None:
        """Return the range of the leakages that are finite and above zero, if there are any."""
        shown = self._eta[np.isfinite(self._eta) & (self._eta > 0)]
        return (float(shown.min()), float(shown.max())) if len(shown) else None

    def histogram(self, edges: np.ndarray) -> np.ndarray:
        """Return how many finite leakages lie in each bin; those outside count at the ends."""
        return count_into(self._eta, edges)

    def worst(self) -> tuple[int, float]:
        """Return the number of the most leaked record in the table, and its leakage."""
        place = int(np.argmax(self._eta))
        return int(self.every.row[place]), float(self._eta[place])

    def writer(self, make: Callable[[SomeRecords], pa.Table]) -> Writer:
        """Return what writes a table of all records to a file."""
        import pyarrow.parquet as pq

        table = make(self.every)
        return lambda file: pq.write_table(table, file)


def count_into(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many finite values lie in each bin; those outside count at the ends."""
    finite = values[np.isfinite(values)]
    return np.asarray(np.histogram(np.clip(finite, edges[0], edges[-1]), edges)[0])
