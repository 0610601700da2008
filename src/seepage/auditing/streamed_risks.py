"""Membership and guesses about a table read in chunks: upper ends, certified without refits.

Every answer is a pass over the records that keeps the most exposed one and the leading bits of all
numbers; the exact median then takes one or two passes more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from seepage.auditing.findings import FALSE_POSITIVES, GuessFinding, RiskFinding, between
from seepage.auditing.trained_model import ROW, TrainedModel
from seepage.core.leakage import Leakage
from seepage.core.order_statistics import Bins, Inside, Interval, bin_numbers, look_into, select
from seepage.core.record_stream import Numbers, RecordStream
from seepage.errors import InputError
from seepage.risks.guessing import accuracy, true_positive_rate
from seepage.tables.names import listed
from seepage.tables.source import Chunk

CLOSED_LEVELS = 3  # up to which how often a guess is right has a closed form
_WORK = 2e11  # multiplications allowed to the guesses of one column over all records


@dataclass(frozen=True, eq=False)
class _Exposed:
    """The most exposed of some records, with its numbers."""

    exposure: float
    row: int
    numbers: np.ndarray


@dataclass(frozen=True, eq=False)
class _Summary:
    """The most exposed record by each of some numbers, and the bins of others."""

    worst: tuple[_Exposed, ...]
    bins: Bins

    def __add__(self, other: _Summary) -> _Summary:
        worst = (
            mine if mine.exposure >= yours.exposure else yours
            for mine, yours in zip(self.worst, other.worst, strict=True)
        )
        return _Summary(tuple(worst), self.bins + other.bins)


def streamed_risks(trained: TrainedModel, sigma: float) -> RiskFinding:
    """Return the risks of a release with noise σ of records that are read in chunks."""
    source = trained.source
    categories = [a for a in trained.table.attributes if a.kind != "numeric"]
    names = {a.name: [source.names[j] for j in a.columns] for a in categories}
    leak = trained.leakage(source, sigma, names)
    stream = leak.membership()
    (worst,), (median,) = _summary(leak, stream, exposures=[0], medians=[0])
    if np.isinf(worst.exposure) and trained.settings.model != "linear":
        # Least squares has a closed form, which is infinite only where the risk is.
        raise InputError(
            "Records read in chunks are not refitted one by one, and the bound without refits is "
            "infinite; audit the table, or a part of it, in memory."
        )
    guesses, left_out = [], []
    if trained.settings.classifies:
        target, levels = trained.table.target, len(trained.table.labels.counts or ())
        if _affordable(trained, levels):
            for prior in ("frequencies", "model"):
                guesses.append(_guess(leak, leak.guess(None, prior=prior), target, prior, levels))
        else:
            left_out.append(target)
    for attribute in categories if trained.basis() is None else ():
        columns = names[attribute.name]
        column = attribute.name if len(columns) > 1 else columns[0]
        levels = len(columns) + 1
        if not _affordable(trained, levels):
            left_out.append(attribute.name)
            continue
        found = leak.guess(column, prior="frequencies")
        guesses.append(_guess(leak, found, attribute.name, "frequencies", levels))
    assumptions = stream.assumptions
    if left_out:
        assumptions += (f"Guesses of {listed(left_out)} were not measured: too many levels.",)
    return RiskFinding(
        membership=float(accuracy(worst.exposure)),
        row=worst.row,
        median=float(accuracy(median)),
        mu=worst.exposure,
        looked_at=len(source),
        exact=False,
        guesses=tuple(guesses),
        assumptions=assumptions,
    )


def _affordable(trained: TrainedModel, levels: int) -> bool:
    return levels <= CLOSED_LEVELS and levels * trained.work <= _WORK


def _guess(
    leak: Leakage[Any], stream: RecordStream, name: str, prior: str, levels: int
) -> GuessFinding:
    # The columns of the stream: right, right_lower, baseline, gain, mu.
    (worst, rare), (right, baseline) = _summary(leak, stream, exposures=[3, 4], medians=[0, 2])
    return GuessFinding(
        name=name,
        prior=prior,
        right=float(worst.numbers[0]),
        baseline=float(worst.numbers[2]),
        row=worst.row,
        median_right=right,
        median_baseline=baseline,
        looked_at=len(stream),
        levels=levels,
        tpr=float(true_positive_rate(rare.exposure, FALSE_POSITIVES)),
        tpr_row=rare.row,
    )


def _summary(
    leak: Leakage[Any], stream: RecordStream, exposures: Sequence[int], medians: Sequence[int]
) -> tuple[tuple[_Exposed, ...], list[float]]:
    """Return the most exposed record by each of some columns of a stream, and medians of others."""
    # Workers get the function alone: the stream would take its source along.
    numbers, columns = stream.numbers, tuple(medians)
    ask = partial(_of_chunk, numbers=numbers, exposures=tuple(exposures), columns=columns)
    found = leak.source.total(ask, stream.measure, (ROW,))
    rows = len(stream)
    halves = [(k, rank) for k in range(len(columns)) for rank in ((rows - 1) // 2, rows // 2)]

    def look(intervals: tuple[Interval, ...]) -> Inside:
        inside = partial(_look, numbers=numbers, columns=columns, intervals=intervals)
        return leak.source.total(inside, "median")

    ends = np.reshape(select(found.bins, halves, look), (-1, 2))
    return found.worst, [between(low, high) for low, high in ends]


def _of_chunk(
    chunk: Chunk, numbers: Numbers, exposures: tuple[int, ...], columns: tuple[int, ...]
) -> _Summary:
    values = numbers(chunk).reshape(len(chunk), -1)
    rows = np.asarray(chunk.extra[ROW])
    worst = []
    for column in exposures:
        at = int(np.argmax(values[:, column]))
        worst.append(_Exposed(float(values[at, column]), int(rows[at]), values[at]))
    return _Summary(tuple(worst), bin_numbers(values[:, list(columns)]))


def _look(
    chunk: Chunk, numbers: Numbers, columns: tuple[int, ...], intervals: tuple[Interval, ...]
) -> Inside:
    values = numbers(chunk).reshape(len(chunk), -1)[:, list(columns)]
    return look_into(intervals, range(len(columns)), values)
