"""The records of data that are read in chunks: what was kept of them, and passes for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from seepage.auditing.intake.clean_batches import ROW
from seepage.auditing.measures.records import NUMBERS, SHARES, Records, SomeRecords, count_into
from seepage.auditing.streamed.measure import StreamedMeasures
from seepage.auditing.streamed.record_questions import Questions
from seepage.auditing.streamed.record_summary import Ranked
from seepage.streams.disk.source import ParquetRows
from seepage.support.files import Writer
from seepage.tables.source import Chunk
from seepage.tables.table_file import write_each

Make = Callable[[SomeRecords], pa.Table]


class StreamedRecords(Records):
    """Records that are computed again, chunk by chunk, whenever all of them are asked for.

    Parameters
    ----------
    source
        The data; on a cluster its workers are asked, as long as it runs.
    found
        What was measured at σ = 1.
    noise
        The standard deviation of the noise.
    """

    def __init__(self, source: ParquetRows, found: StreamedMeasures, noise: float) -> None:
        self.count, self.sensitive = found.questions.rows, found.questions.sensitive
        self._source, self._found, self._noise = source, found, noise
        self._counted: dict[float, int] = {}

    def quantiles(self, name: str, shares: Sequence[float]) -> np.ndarray:
        """Return quantiles of one of the :data:`NUMBERS` at some of the :data:`SHARES`."""
        values = self._found.quantiles[name][[SHARES.index(share) for share in shares]]
        return values * self._noise if name == "exact_error" else values / self._noise

    def median(self) -> float:
        """Return the median of the leakage."""
        return float(self._found.medians[0]) / self._noise

    def over(self, limit: float) -> int:
        """Return how many records leak more than a limit; by a pass where they are many."""
        top = self._found.tally.records.top.numbers[:, 0] / self._noise
        if len(top) == self.count or top[-1] <= limit:
            return int(np.sum(top > limit))
        if limit not in self._counted:
            ask = partial(_over, questions=self._found.questions, noise=self._noise, limit=limit)
            self._counted[limit] = self._source.total(ask, "records over the limit")
        return self._counted[limit]

    def most(self, count: int) -> SomeRecords:
        """Return the most leaked records, the worst first, as many as are kept at most."""
        return self._some(self._found.tally.records.top, count)

    def least(self, count: int) -> SomeRecords:
        """Return the least leaked records, the least first, as many as are kept at most."""
        return self._some(self._found.tally.records.bottom, count)

    def _some(self, ranked: Ranked, count: int) -> SomeRecords:
        place, row, numbers = (a[:count] for a in (ranked.place, ranked.row, ranked.numbers))
        return _named(place, row, numbers, self._found.questions, self._noise)

    def span(self) -> tuple[float, float] | None:
        """Return the range of the leakages that are finite and above zero, if there are any."""
        low, high = self._found.tally.records.positive
        return (low / self._noise, high / self._noise) if low <= high else None

    def histogram(self, edges: np.ndarray) -> np.ndarray:
        """Return how many finite leakages lie in each bin; those outside count at the ends."""
        ask = partial(_binned, questions=self._found.questions, noise=self._noise, edges=edges)
        return self._source.total(ask, "histogram")

    def writer(self, make: Make) -> Writer | None:
        """Return what writes a table of all records to a file; ``None`` where workers have them."""
        if self._source.batches.spread() is not None:
            return None

        def write(file: BinaryIO) -> None:
            write_each(self._source.each(self._told(make), "writing", (ROW,)), file)

        return write

    def write_folder(self, make: Make, folder: Path) -> None:
        """Have the workers write the table of all records to files in a new folder."""
        self._source.write_folder(self._told(make), folder, "writing", (ROW,))

    def _told(self, make: Make) -> Callable[[Chunk], pa.Table]:
        return partial(_table, questions=self._found.questions, noise=self._noise, make=make)


def _eta(chunk: Chunk, questions: Questions, noise: float) -> np.ndarray:
    return questions.answer(questions.jacobian(chunk), [0])[:, 0] / noise


def _over(chunk: Chunk, questions: Questions, noise: float, limit: float) -> int:
    return int(np.sum(_eta(chunk, questions, noise) > limit))


def _binned(chunk: Chunk, questions: Questions, noise: float, edges: np.ndarray) -> np.ndarray:
    return count_into(_eta(chunk, questions, noise), edges)


def _table(chunk: Chunk, questions: Questions, noise: float, make: Make) -> pa.Table:
    numbers = questions.answer(questions.jacobian(chunk), questions.told())
    place, row = chunk.start + np.arange(len(chunk)), np.asarray(chunk.extra[ROW])
    return make(_named(place, row, numbers, questions, noise))


def _named(
    place: np.ndarray, row: np.ndarray, numbers: np.ndarray, questions: Questions, noise: float
) -> SomeRecords:
    """Return records with their numbers at the noise that there is."""
    first = {
        name: numbers[:, k] * noise if name == "exact_error" else numbers[:, k] / noise
        for k, name in enumerate(NUMBERS)
    }
    errors = {
        name: numbers[:, len(NUMBERS) + k] * noise for k, name in enumerate(questions.sensitive)
    }
    return SomeRecords(place, row, first, errors)
