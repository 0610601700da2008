"""Every number an audit needs of a release, measured once: other noise only rescales them.

With noise of standard deviation σ every leakage is the one at σ = 1 over σ, and every least error
of an attack σ times the one at σ = 1 (the information is ``JᵀJ/σ²``).

One pass over the records sums what the table, its columns, its groups and its labels leak together,
and measures the single records. For a table in memory the numbers of every record are kept. For one
read in chunks a few records are kept, with the distribution of the others; a few more passes find
quantiles, and a later question about all records takes a pass of its own. What is kept, and what
workers send, does not grow with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import (
    NUMBERS,
    SHARES,
    AttributeFinding,
    GroupFinding,
    GroupingFinding,
    RecordLeakage,
    SomeRecords,
    between,
    count_into,
)
from seepage.auditing.trained_model import ROW, Attribute, RecordsInMemory, TrainedModel
from seepage.core.information import (
    block_norm,
    block_norms,
    columns_at_once,
    inverse_traces,
    inverse_work,
)
from seepage.core.jacobian import MeasuredRelease, ReleaseJacobian
from seepage.core.noise import Gaussian
from seepage.core.order_statistics import Bins, Inside, Interval, bin_numbers, look_into, select
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.glm.leakage import largest_leakage, release_of
from seepage.support.files import Writer
from seepage.tables.columns import labels_of
from seepage.tables.source import Chunk, RowSource
from seepage.tables.table_file import write_each

MOST = 1000  # most exposed records that are kept of a table read in chunks
LEAST = 100  # least exposed ones
INVERSE_WORK = 3e11  # multiplications, beyond which inverting every record's matrix takes minutes
_AT_ONCE = 8  # numbers of every record of a table in memory that are held at a time
_LABEL = Unknowns((), True)

MakeTable = Callable[[SomeRecords], pa.Table]


@dataclass(frozen=True, eq=False)
class RecordQuestions:
    """The questions about every record, fixed before a pass begins and sent to the records.

    Every record has these numbers, at σ = 1, in this order: those of
    :data:`~seepage.auditing.findings.NUMBERS`, and the least error of an attack on each attribute,
    the label last.
    """

    release: MeasuredRelease  # the model and its noise
    attributes: tuple[Attribute, ...]  # the caller's columns
    # How the features move with them; see :func:`seepage.auditing.trained_model.basis_of`
    basis: np.ndarray | None
    label_step: float  # the step of the label that counts as one
    groups: tuple[str, ...]  # columns to compare groups by
    sensitive: tuple[str, ...]  # columns whose error is reported for every record
    rows: int  # how many records there are
    keep: bool  # whether the numbers of every record are kept, as for a table in memory

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the Jacobian about a chunk, with the label in steps of its spread."""
        return self.release.jacobian(chunk).with_label_step(self.label_step)

    @property
    def whole(self) -> Unknowns:
        """A whole record with its label."""
        return Unknowns(None, True, self.basis)

    @property
    def features(self) -> Unknowns:
        """A record without its label."""
        return Unknowns(None, False, self.basis)

    def columns(self) -> list[Unknowns]:
        """Return the unknowns of every column."""
        return [a.unknowns() for a in self.attributes]

    @property
    def count(self) -> int:
        """How many numbers every record has."""
        return len(NUMBERS) + len(self.attributes) + 1

    def told(self) -> tuple[int, ...]:
        """Return which numbers a table of records has: the first four and the sensitive errors."""
        names = [a.name for a in self.attributes]
        errors = [names.index(n) if n in names else len(names) for n in self.sensitive]
        return (*range(len(NUMBERS)), *(len(NUMBERS) + k for k in errors))

    def answer(self, jacobian: ReleaseJacobian, which: Sequence[int]) -> np.ndarray:
        """Return some of the numbers of every record, ``(m, len(which))``."""
        out = np.empty((len(which), jacobian.rows)).T  # one number of all records is contiguous
        first = len(NUMBERS)
        last = first + len(self.attributes)
        label = _root(jacobian.row_norms(_LABEL)) if {2, last} & set(which) else None
        plain = {}
        for k, number in enumerate(which):
            if number < 2:
                out[:, k] = _root(jacobian.row_norms((self.whole, self.features)[number]))
            elif label is not None and number in (2, last):
                out[:, k] = label if number == 2 else _errors(label**2) * self.label_step
            elif number == 3:
                out[:, k] = self._exact(jacobian)
            elif self.attributes[number - first].plain:
                plain[k] = self.attributes[number - first]
            else:
                attribute = self.attributes[number - first]
                norms = np.asarray(jacobian.row_norms(attribute.unknowns()))
                out[:, k] = _errors(norms) * attribute.scale
        if plain:
            columns = tuple(int(a.columns[0]) for a in plain.values())
            information = np.asarray(jacobian.cell_information(Unknowns(columns, False)))
            for (k, attribute), cells in zip(plain.items(), information.T, strict=True):
                out[:, k] = _errors(cells * attribute.factor**2)
        return out

    def _exact(self, jacobian: ReleaseJacobian) -> np.ndarray:
        """Return ``√(Tr(I⁻¹)/t)`` of every record, or NaN where that takes too long."""
        unknowns = self.features
        count = unknowns.features(jacobian.features)
        if unknowns.basis is not None and np.linalg.matrix_rank(unknowns.basis) < count:
            # Fewer features than columns: some change of a record does not move the release.
            return np.full(jacobian.rows, np.inf)
        if self.rows * inverse_work(jacobian, unknowns) > INVERSE_WORK:
            return np.full(jacobian.rows, np.nan)
        return np.asarray(np.sqrt(np.asarray(inverse_traces(jacobian, unknowns)[0]) / count))


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The records of one group: how many, the sum and the most of their leakage, their sums."""

    count: int
    total: float
    worst: float
    block: Any

    def __add__(self, other: GroupSums) -> GroupSums:
        return GroupSums(
            self.count + other.count,
            self.total + other.total,
            max(self.worst, other.worst),
            self.block + other.block,
        )


@dataclass(frozen=True, eq=False)
class RankedRecords:
    """The first records in order of leakage, ties in the order of the table."""

    sign: int  # -1 for the most exposed first, 1 for the least
    most: int  # how many are kept
    # Their positions, and their numbers in the table
    place: np.ndarray
    row: np.ndarray
    numbers: np.ndarray  # their reported numbers, ``(k, t)``, the leakage first

    def __add__(self, other: RankedRecords) -> RankedRecords:
        return RankedRecords(
            self.sign,
            self.most,
            np.concatenate([self.place, other.place]),
            np.concatenate([self.row, other.row]),
            np.concatenate([self.numbers, other.numbers]),
        ).first()

    def first(self) -> RankedRecords:
        """Return the records that are kept, in order."""
        which = np.lexsort((self.place, self.sign * self.numbers[:, 0]))[: self.most]
        numbers = self.numbers[which]
        return RankedRecords(self.sign, self.most, self.place[which], self.row[which], numbers)


@dataclass(frozen=True, eq=False)
class RecordSummary:
    """What is kept of the records of some chunks; two sets of rows add up."""

    bins: Bins  # the distribution of each number
    most: np.ndarray  # the largest of each
    positive: tuple[float, float]  # the range of the leakages that are finite and above zero
    # The most and the least exposed records
    top: RankedRecords
    bottom: RankedRecords

    @classmethod
    def of(
        cls, place: np.ndarray, row: np.ndarray, numbers: np.ndarray, told: Sequence[int]
    ) -> RecordSummary:
        """Summarise some records by their numbers, ``(m, q)``, of which some are reported."""
        eta = numbers[:, 0]
        positive = eta[np.isfinite(eta) & (eta > 0)]
        kept = numbers[:, list(told)]
        return cls(
            bin_numbers(numbers),
            numbers.max(axis=0),
            (float(positive.min(initial=np.inf)), float(positive.max(initial=-np.inf))),
            RankedRecords(-1, MOST, place, row, kept).first(),
            RankedRecords(1, LEAST, place, row, kept).first(),
        )

    def __add__(self, other: RecordSummary) -> RecordSummary:
        (low, high), (lower, higher) = self.positive, other.positive
        return RecordSummary(
            self.bins + other.bins,
            np.maximum(self.most, other.most),
            (min(low, lower), max(high, higher)),
            self.top + other.top,
            self.bottom + other.bottom,
        )


@dataclass(frozen=True, eq=False)
class KeptRecords:
    """All records of a table in memory: row numbers, reported numbers, and medians."""

    row: np.ndarray
    numbers: np.ndarray  # (n, t)
    medians: np.ndarray  # (q,): of each of the numbers asked for


@dataclass(frozen=True, eq=False)
class AuditSums:
    """What adds up over the chunks: sums of blocks, the minimum of every number, the records.

    For a table in memory, where nothing is left to add up, blocks are the squared leakages.
    """

    whole: Any  # of the whole table
    label: Any  # of the labels alone
    columns: Any  # of the first columns, as many as fit into one pass
    least: np.ndarray  # (q,): the minimum of every number
    easiest: np.ndarray  # (q,): the row of that record in the table
    groups: Mapping[str, Mapping[str, GroupSums]]
    records: Any  # RecordSummary, or KeptRecords for a table in memory

    def __add__(self, other: AuditSums) -> AuditSums:
        ours = self.least <= other.least
        return AuditSums(
            self.whole + other.whole,
            self.label + other.label,
            self.columns + other.columns,
            np.where(ours, self.least, other.least),
            np.where(ours, self.easiest, other.easiest),
            {name: _merged(self.groups[name], other.groups[name]) for name in self.groups},
            self.records + other.records,
        )


@dataclass(frozen=True, eq=False)
class Measures:
    """Everything found about a release at σ = 1; its methods convert it to another σ."""

    # The records, and what was asked of them
    source: RowSource
    questions: RecordQuestions
    sums: AuditSums  # what the pass found
    columns: np.ndarray  # the leakage of every column over all records, as its unknowns are counted
    medians: np.ndarray  # of the leakage, and of the errors of every attribute, the label last
    # Of each of the NUMBERS at the SHARES; nothing for records that are kept
    quantiles: Mapping[str, np.ndarray]

    @property
    def worst(self) -> float:
        """The largest leakage of a record."""
        return self.records(1.0).largest("eta")

    @property
    def exact_is_left_out(self) -> bool:
        """Whether the exact bound on every record would have taken too long."""
        return bool(np.isnan(self.sums.least[NUMBERS.index("exact_error")]))

    @property
    def released(self) -> int:
        """How many numbers are released."""
        return self.questions.release.template.size

    def records(self, sigma: float) -> RecordLeakage:
        """Return the leakage of the single records with noise σ."""
        if not self.questions.keep:
            return RecordsInChunks(self, sigma)
        kept = self.sums.records
        place = np.arange(len(kept.row))
        some = _at_noise(place, kept.row, kept.numbers, self.questions, sigma)
        return RecordLeakage(some.row, some.numbers, some.errors)

    def dataset(self, sigma: float) -> float:
        """Return the leakage of the whole table."""
        return self._together(self.sums.whole, self.questions.whole) / sigma

    def attributes(
        self, sigma: float, target: tuple[str, str, float]
    ) -> tuple[AttributeFinding, ...]:
        """Return the leakage of every column; the target's name, kind and spread come last."""
        questions, first = self.questions, len(NUMBERS)
        steps = [a.factor * a.scale if a.plain else 1.0 for a in questions.attributes]
        etas = [*self.columns * steps, self._together(self.sums.label, _LABEL)]
        told = [(a.name, a.kind, a.spread) for a in questions.attributes] + [target]
        return tuple(
            AttributeFinding(
                name=name,
                kind=kind,
                eta=float(eta) / sigma,
                smallest_error=float(self.sums.least[first + k]) * sigma,
                easiest_row=int(self.sums.easiest[first + k]),
                median_error=float(self.medians[1 + k]) * sigma,
                spread=spread,
                sensitive=name in questions.sensitive,
            )
            for k, ((name, kind, spread), eta) in enumerate(zip(told, etas, strict=True))
        )

    def grouping(self, column: str, sigma: float) -> GroupingFinding:
        """Return how evenly leakage is spread over the groups of a column."""
        groups = tuple(
            GroupFinding(
                label,
                sums.count,
                sums.total / sums.count / sigma,
                sums.worst / sigma,
                self._together(sums.block, self.questions.whole) / sigma,
            )
            for label, sums in sorted(self.sums.groups[column].items())
        )
        ordered = sorted(groups, key=lambda group: group.mean_eta)
        least, most = ordered[0].mean_eta, ordered[-1].mean_eta
        ratio = most / least if least > 0 else (1.0 if most == 0 else float("inf"))
        return GroupingFinding(column, groups, ratio, ordered[0].label, ordered[-1].label)

    def _together(self, block: Any, unknowns: Unknowns) -> float:
        """Return the leakage of a block of records from what the pass found."""
        template = self.questions.release.template
        squared = block if self.questions.keep else template.norm_of(unknowns, block)
        return math.sqrt(max(squared, 0.0))


def measure(trained: TrainedModel) -> Measures:
    """Measure a release at σ = 1 in one pass, and look for quantiles in a few more."""
    source, questions = trained.source, _questions(trained, Gaussian(1.0))
    extra = tuple(dict.fromkeys([*questions.groups, ROW]))
    sums = source.total(partial(_ask, questions=questions), "records", extra)
    columns = _column_leakage(source, questions, sums.columns)
    halves = [0, *range(len(NUMBERS), questions.count)]
    every = range(questions.count)
    if questions.keep:
        return Measures(source, questions, sums, columns, sums.records.medians[halves], {})
    rows, records = questions.rows, sums.records
    # The ends are known; other quantiles, except the median, are the lower of two observations.
    ranks = [math.floor((rows - 1) * share) for share in SHARES[1:-1]]
    middle = ((rows - 1) // 2, rows // 2)
    wanted = [(column, rank) for column in range(len(NUMBERS)) for rank in ranks]
    wanted += [(column, rank) for column in every for rank in middle]

    def look(intervals: tuple[Interval, ...]) -> Inside:
        return source.total(partial(_look, questions=questions, intervals=intervals), "quantiles")

    found = select(records.bins, wanted, look)
    inner = np.reshape(found[: len(NUMBERS) * len(ranks)], (len(NUMBERS), len(ranks)))
    medians = np.array([between(*pair) for pair in np.reshape(found[inner.size :], (-1, 2))])
    inner[:, SHARES.index(0.5) - 1] = medians[: len(NUMBERS)]
    quantiles = {
        name: np.asarray([sums.least[k], *inner[k], records.most[k]])
        for k, name in enumerate(NUMBERS)
    }
    return Measures(source, questions, sums, columns, medians[halves], quantiles)


def _column_leakage(source: RowSource, questions: RecordQuestions, first: Any) -> np.ndarray:
    """Return the leakage of every column; all but the first few take passes of their own."""
    if questions.keep:
        return _root(first)
    template, columns = questions.release.template, questions.columns()
    step = columns_at_once(template)
    squared = [template.column_norms_of(columns[:step], first)]
    for start in range(step, len(columns), step):
        some = columns[start : start + step]
        sums = source.total(partial(_column_sums, questions=questions, some=some), "columns")
        squared.append(template.column_norms_of(some, sums))
    return _root(np.concatenate([np.asarray(part) for part in squared]))


def _column_sums(chunk: Chunk, questions: RecordQuestions, some: list[Unknowns]) -> Any:
    return questions.jacobian(chunk).column_sums(some, np.arange(len(chunk)))


def worst_record(trained: TrainedModel, noise: Gaussian | None = None) -> float:
    """Return the largest leakage of a record with its label, at σ = 1 by default."""
    ask = partial(_eta, questions=_questions(trained, noise or Gaussian(1.0)), sigma=1.0)
    return max(float(eta.max()) for eta in trained.source.each(ask, "records"))


def largest_share(trained: TrainedModel, allowed: np.ndarray | None = None) -> float:
    """Return the largest leakage of a record at σ = 1, relative to what each is ``allowed`` (1).

    For a table in memory to which its model was just fitted, in ordinary arithmetic: for the many
    tables that differ from the audited one by a record.
    """
    source = trained.source
    assert isinstance(source, RecordsInMemory)  # noqa: S101 - neighbours are made in memory
    whole = Unknowns(None, True, trained.basis())
    ones = np.ones(len(source)) if allowed is None else allowed
    return largest_leakage(trained.model, source, whole, trained.table.labels.step, ones)


def record_leakage(trained: TrainedModel) -> np.ndarray:
    """Return the leakage of every record with its label at σ = 1."""
    ask = partial(_eta, questions=_questions(trained, Gaussian(1.0)), sigma=1.0)
    return np.concatenate(list(trained.source.each(ask, "records")))


def _questions(trained: TrainedModel, noise: Gaussian) -> RecordQuestions:
    through = trained.table.through
    found = release_of(trained.model, trained.source, noise, "raise")
    release: MeasuredRelease = found if through is None else through.release(found)
    return RecordQuestions(
        release=release,
        attributes=trained.table.attributes,
        basis=trained.basis(),
        label_step=trained.table.labels.step,
        groups=trained.table.groups,
        sensitive=trained.table.sensitive,
        rows=len(trained.source),
        keep=trained.source.in_memory,
    )


def _ask(chunk: Chunk, questions: RecordQuestions) -> AuditSums:
    """Answer all questions about the records of a chunk."""
    jacobian, every = questions.jacobian(chunk), np.arange(len(chunk))
    row, q = np.asarray(chunk.extra[ROW]), questions.count
    told = questions.told()
    kept, medians = np.empty((len(chunk), len(told))), np.empty(q)
    least, easiest = np.empty(q), np.empty(q, dtype=np.int64)
    step = _AT_ONCE if questions.keep else q
    for start in range(0, q, step):
        some = range(start, min(start + step, q))
        numbers, here = questions.answer(jacobian, some), slice(start, some.stop)
        first = np.array([column.argmin() for column in numbers.T])
        least[here], easiest[here] = numbers[first, np.arange(len(some))], row[first]
        for k, number in enumerate(told):
            if number in some:
                kept[:, k] = numbers[:, number - start]
        if questions.keep:
            medians[here] = [np.median(column) for column in numbers.T]
    block = partial(block_norm, jacobian) if questions.keep else jacobian.block_sums
    blocks = partial(block_norms, jacobian, questions.whole)
    if not questions.keep:
        blocks = partial(_sums_of_each, jacobian, questions.whole)
    return AuditSums(
        block(questions.whole, every),
        block(_LABEL, every),
        jacobian.column_norms(questions.columns(), every)
        if questions.keep
        else jacobian.column_sums(questions.columns()[: columns_at_once(jacobian)], every),
        least,
        easiest,
        {name: _by_group(chunk.extra[name], kept[:, 0], blocks) for name in questions.groups},
        KeptRecords(row, kept, medians)
        if questions.keep
        else RecordSummary.of(chunk.start + every, row, numbers, told),
    )


def _look(chunk: Chunk, questions: RecordQuestions, intervals: tuple[Interval, ...]) -> Inside:
    columns = sorted({interval.column for interval in intervals})
    numbers = questions.answer(questions.jacobian(chunk), columns)
    return look_into(intervals, columns, numbers)


def _sums_of_each(
    jacobian: ReleaseJacobian, unknowns: Unknowns, blocks: Sequence[np.ndarray]
) -> list[Any]:
    return [jacobian.block_sums(unknowns, rows) for rows in blocks]


def _by_group(
    values: np.ndarray,
    eta: np.ndarray,
    of_blocks: Callable[[Sequence[np.ndarray]], Sequence[Any]],
) -> dict[str, GroupSums]:
    """Return the sums of every group, given the function that sums a block of rows."""
    texts = labels_of(pa.array(values, from_pandas=True), missing="(missing)")
    known, inverse = np.unique(texts.astype(str), return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    members = np.split(order, np.searchsorted(inverse[order], np.arange(1, len(known))))
    found = {}
    for label, rows, block in zip(known.tolist(), members, of_blocks(members), strict=True):
        here = eta[rows]
        found[label] = GroupSums(len(rows), float(here.sum()), float(here.max()), block)
    return found


def _merged(ours: Mapping[str, GroupSums], theirs: Mapping[str, GroupSums]) -> dict[str, GroupSums]:
    out = dict(ours)
    for name, sums in theirs.items():
        out[name] = out[name] + sums if name in out else sums
    return out


class RecordsInChunks(RecordLeakage):
    """Records that are recomputed, chunk by chunk, whenever all of them are asked for.

    On a cluster its workers recompute them, as long as it runs.
    """

    def __init__(self, found: Measures, sigma: float) -> None:
        self.count, self.sensitive = found.questions.rows, found.questions.sensitive
        self._found, self._sigma = found, sigma
        self._counted: dict[float, int] = {}

    @property
    def every(self) -> SomeRecords:
        """All records: refused, since they are not kept."""
        raise InputError(
            "The numbers of all records are not kept for data read in chunks; ask audit.records, "
            "or read them from the report's leakage.parquet."
        )

    def quantiles(self, name: str, shares: Sequence[float]) -> np.ndarray:
        """Return quantiles of one of the :data:`NUMBERS` at some of the :data:`SHARES`."""
        values = self._found.quantiles[name][[SHARES.index(share) for share in shares]]
        return values * self._sigma if name == "exact_error" else values / self._sigma

    def median(self) -> float:
        """Return the median of the leakage."""
        return float(self._found.medians[0]) / self._sigma

    def over(self, limit: float) -> int:
        """Return how many records leak more than a limit; many of them take a pass."""
        top = self._found.sums.records.top.numbers[:, 0] / self._sigma
        if len(top) == self.count or top[-1] <= limit:
            return int(np.sum(top > limit))
        if limit not in self._counted:
            self._counted[limit] = self._total(_over, "records over the limit", limit=limit)
        return self._counted[limit]

    def most(self, count: int) -> SomeRecords:
        """Return the most leaked records, the worst first, as many as are kept at most."""
        return self._some(self._found.sums.records.top, count)

    def least(self, count: int) -> SomeRecords:
        """Return the least leaked records, the least first, as many as are kept at most."""
        return self._some(self._found.sums.records.bottom, count)

    def _some(self, ranked: RankedRecords, count: int) -> SomeRecords:
        place, row, numbers = (a[:count] for a in (ranked.place, ranked.row, ranked.numbers))
        return _at_noise(place, row, numbers, self._found.questions, self._sigma)

    def span(self) -> tuple[float, float] | None:
        """Return the range of the leakages that are finite and above zero, if there are any."""
        low, high = self._found.sums.records.positive
        return (low / self._sigma, high / self._sigma) if low <= high else None

    def histogram(self, edges: np.ndarray) -> np.ndarray:
        """Return how many finite leakages lie in each bin; those outside count at the ends."""
        return np.asarray(self._total(_binned, "histogram", edges=edges))

    def writer(self, make: MakeTable) -> Writer | None:
        """Return what writes a table of all records to a file; ``None`` where workers have them."""
        source: Any = self._found.source
        if source.batches.spread() is not None:
            return None

        def write(file: BinaryIO) -> None:
            write_each(source.each(self._ask(_table, make=make), "writing", (ROW,)), file)

        return write

    def write_folder(self, make: MakeTable, folder: Path) -> None:
        """Have the workers write the table of all records to files in a new folder."""
        source: Any = self._found.source
        source.write_folder(self._ask(_table, make=make), folder, "writing", (ROW,))

    def _ask(self, function: Callable[..., Any], **options: Any) -> Callable[[Chunk], Any]:
        return partial(function, questions=self._found.questions, sigma=self._sigma, **options)

    def _total(self, function: Callable[..., Any], what: str, **options: Any) -> Any:
        return self._found.source.total(self._ask(function, **options), what)


def _eta(chunk: Chunk, questions: RecordQuestions, sigma: float) -> np.ndarray:
    return questions.answer(questions.jacobian(chunk), [0])[:, 0] / sigma


def _over(chunk: Chunk, questions: RecordQuestions, sigma: float, limit: float) -> int:
    return int(np.sum(_eta(chunk, questions, sigma) > limit))


def _binned(
    chunk: Chunk, questions: RecordQuestions, sigma: float, edges: np.ndarray
) -> np.ndarray:
    return count_into(_eta(chunk, questions, sigma), edges)


def _table(chunk: Chunk, questions: RecordQuestions, sigma: float, make: MakeTable) -> pa.Table:
    numbers = questions.answer(questions.jacobian(chunk), questions.told())
    place, row = chunk.start + np.arange(len(chunk)), np.asarray(chunk.extra[ROW])
    return make(_at_noise(place, row, numbers, questions, sigma))


def _at_noise(
    place: np.ndarray,
    row: np.ndarray,
    numbers: np.ndarray,
    questions: RecordQuestions,
    sigma: float,
) -> SomeRecords:
    """Return records with their numbers at the actual noise."""
    first = {
        name: numbers[:, k] * sigma if name == "exact_error" else numbers[:, k] / sigma
        for k, name in enumerate(NUMBERS)
    }
    errors = {
        name: numbers[:, len(NUMBERS) + k] * sigma for k, name in enumerate(questions.sensitive)
    }
    return SomeRecords(place, row, first, errors)


def _errors(information: np.ndarray) -> np.ndarray:
    """Return the least error of an attack, ``1/√I``: infinite if nothing leaks."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(np.maximum(information, 0.0)))


def _root(squared: Any) -> np.ndarray:
    """Return the root of a number that rounding may have left below zero."""
    return np.asarray(np.sqrt(np.maximum(np.asarray(squared, dtype=float), 0.0)))
