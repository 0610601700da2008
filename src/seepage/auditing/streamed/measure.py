"""Everything an audit measures of data that are read in chunks, at σ = 1, as sums over the chunks.

One pass sums what the table, its columns, its groups and its labels leak together, and describes
the single records (:mod:`seepage.auditing.streamed.record_summary`); a few more find their quantiles. What
is kept, and what workers send, does not grow with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.intake.clean_batches import ROW
from seepage.auditing.measures.records import NUMBERS, SHARES
from seepage.auditing.streamed.record_questions import LABEL, Questions
from seepage.auditing.streamed.record_summary import RecordSummary, summarise_records
from seepage.core.jacobian import ReleaseJacobian
from seepage.core.unknowns import Unknowns
from seepage.core.order_statistics import Inside, Interval, look_into, select
from seepage.tables.encoded import labels_of
from seepage.tables.source import Chunk, RowSource


@dataclass(frozen=True, eq=False)
class Tally:
    """What adds up over the chunks."""

    whole: Any  # sums of the whole table
    label: Any  # of the labels alone
    columns: Any  # of every column
    smallest: np.ndarray  # (attributes,): least error
    easiest: np.ndarray  # (attributes,): the number of its record in the table
    groups: Mapping[str, Mapping[str, GroupTally]]
    records: RecordSummary

    def __add__(self, other: Tally) -> Tally:
        ours = self.smallest <= other.smallest
        return Tally(
            self.whole + other.whole,
            self.label + other.label,
            self.columns + other.columns,
            np.where(ours, self.smallest, other.smallest),
            np.where(ours, self.easiest, other.easiest),
            {name: _both(self.groups[name], other.groups[name]) for name in self.groups},
            self.records + other.records,
        )


@dataclass(frozen=True, eq=False)
class GroupTally:
    """The records of one group: how many, the sum and the most of their leakage, their sums."""

    count: int
    total: float
    worst: float
    block: Any

    def __add__(self, other: GroupTally) -> GroupTally:
        return GroupTally(
            self.count + other.count,
            self.total + other.total,
            max(self.worst, other.worst),
            self.block + other.block,
        )


@dataclass(frozen=True, eq=False)
class StreamedMeasures:
    """All that was found, at σ = 1.

    Parameters
    ----------
    questions
        What was asked.
    tally
        The sums.
    quantiles
        Those of every one of the :data:`~seepage.auditing.measures.records.NUMBERS` at the
        :data:`~seepage.auditing.measures.records.SHARES`.
    medians
        Of the leakage, and of the errors of every attribute, the label last.
    """

    questions: Questions
    tally: Tally
    quantiles: Mapping[str, np.ndarray]
    medians: np.ndarray

    def column_leakage(self) -> np.ndarray:
        """Return the leakage of every column over all records, in its own steps."""
        template, asked = self.questions.release.template, self.questions.asked()
        norms = np.asarray(template.column_norms_of(asked, self.tally.columns))
        factors = [
            1.0 if a.plain_column() is None else abs(float(a.directions[0, 0])) * a.scale
            for a in self.questions.attributes
        ]
        return np.asarray(np.sqrt(np.maximum(norms, 0.0)) * factors)

    def together(self, block: Any, unknowns: Unknowns) -> float:
        """Return the leakage of a block of records from its sums."""
        return math.sqrt(max(self.questions.release.template.norm_of(unknowns, block), 0.0))


def measure_streamed(source: RowSource, questions: Questions) -> StreamedMeasures:
    """Ask all questions in one pass, and look for quantiles in a few more."""
    extra = tuple(dict.fromkeys([*questions.groups, ROW]))
    tally = source.total(partial(_ask, questions=questions), "records", extra)
    rows, records = questions.rows, tally.records
    # The ends are known; between them quantiles are the lower of two observations.
    ranks = [math.floor((rows - 1) * share) for share in SHARES[1:-1]]
    middle = ((rows - 1) // 2, rows // 2)
    wanted = [(column, rank) for column in range(len(NUMBERS)) for rank in ranks]
    halves = [0, *range(len(NUMBERS), questions.count)]
    wanted += [(column, rank) for column in halves for rank in middle]

    def look(intervals: tuple[Interval, ...]) -> Inside:
        ask = partial(_look, questions=questions, intervals=intervals)
        return source.total(ask, "quantiles")

    found = select(records.bins, wanted, look)
    inner = np.reshape(found[: len(NUMBERS) * len(ranks)], (len(NUMBERS), len(ranks)))
    pairs = np.reshape(found[inner.size :], (len(halves), 2))
    quantiles = {
        name: np.asarray([records.least[k], *inner[k], records.most[k]])
        for k, name in enumerate(NUMBERS)
    }
    return StreamedMeasures(questions, tally, quantiles, np.mean(pairs, axis=1))


def _ask(chunk: Chunk, questions: Questions) -> Tally:
    jacobian, every = questions.jacobian(chunk), np.arange(len(chunk))
    numbers = questions.answer(jacobian, range(questions.count))
    row, eta = np.asarray(chunk.extra[ROW]), numbers[:, 0]
    errors = numbers[:, len(NUMBERS) :]
    first = errors.argmin(axis=0)
    return Tally(
        jacobian.block_sums(questions.every, every),
        jacobian.block_sums(LABEL, every),
        jacobian.column_sums(questions.asked(), every),
        errors[first, np.arange(errors.shape[1])],
        row[first],
        {name: _group(jacobian, questions, chunk.extra[name], eta) for name in questions.groups},
        summarise_records(chunk.start + every, row, numbers, questions.told()),
    )


def _look(chunk: Chunk, questions: Questions, intervals: tuple[Interval, ...]) -> Inside:
    columns = sorted({interval.column for interval in intervals})
    numbers = questions.answer(questions.jacobian(chunk), columns)
    return look_into(intervals, columns, numbers)


def _group(
    jacobian: ReleaseJacobian, questions: Questions, values: np.ndarray, eta: np.ndarray
) -> dict[str, GroupTally]:
    texts = labels_of(pa.chunked_array([pa.array(values, from_pandas=True)]), missing="(missing)")
    known, inverse = np.unique(texts.astype(str), return_inverse=True)
    found = {}
    for k, label in enumerate(known.tolist()):
        rows = np.flatnonzero(inverse == k)
        here = eta[rows]
        block = jacobian.block_sums(questions.every, rows)
        found[label] = GroupTally(len(rows), float(here.sum()), float(here.max()), block)
    return found


def _both(
    ours: Mapping[str, GroupTally], theirs: Mapping[str, GroupTally]
) -> dict[str, GroupTally]:
    out = dict(ours)
    for name, tally in theirs.items():
        out[name] = out[name] + tally if name in out else tally
    return out
