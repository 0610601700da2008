"""Everything an audit measures of data that are read in chunks, in one pass over them, at σ = 1.

One number per record is kept for the leakage of the record, of its columns, of its label and for
the exact bound (in files without a name instead of memory where there are very many); of every
column the smallest error, where it is, and the median over a sample of the records.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.clean_batches import ROW
from seepage.auditing.measure import INVERSE_WORK, errors_of
from seepage.auditing.record_questions import Questions
from seepage.auditing.subject import Attribute
from seepage.columns.encoded import labels_of
from seepage.glm.block_information import block_information, seen_norm
from seepage.glm.block_sums import block_norm, column_norms, sum_rows
from seepage.glm.closed_form import SingleOutputJacobian
from seepage.glm.jacobian import GLMJacobian
from seepage.streams.source import Chunk, RowSource
from seepage.unknowns import Unknowns

_IN_MEMORY = 1 << 24  # records whose numbers are kept in memory rather than in a file


@dataclass(frozen=True, eq=False)
class Tally:
    """What adds up over the chunks."""

    whole: Any  # sums of the whole table
    label: Any  # of the labels alone
    columns: Any  # of every column
    smallest: np.ndarray  # (attributes,): least error
    easiest: np.ndarray  # (attributes,): position of its record
    groups: Mapping[str, Mapping[str, GroupTally]]

    def __add__(self, other: Tally) -> Tally:
        ours = self.smallest <= other.smallest
        return Tally(
            self.whole + other.whole,
            self.label + other.label,
            self.columns + other.columns,
            np.where(ours, self.smallest, other.smallest),
            np.where(ours, self.easiest, other.easiest),
            {name: _both(self.groups[name], other.groups[name]) for name in self.groups},
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
class Found:
    """The answers about the records of one chunk."""

    tally: Tally
    rows: dict[str, np.ndarray]  # (m,) each
    sampled: np.ndarray  # (sampled, attributes): errors
    held_out: tuple[np.ndarray, np.ndarray]


@dataclass(eq=False)
class StreamedMeasures:
    """All that was found, at σ = 1: ``rows`` has one number per record under each name."""

    questions: Questions
    tally: Tally
    rows: dict[str, np.ndarray]
    medians: np.ndarray
    held_out: tuple[np.ndarray, np.ndarray]
    kept: dict[str, np.ndarray] = field(default_factory=dict)

    def column_leakage(self) -> np.ndarray:
        """Return the leakage of every column over all records, in its own steps."""
        template, asked = self.questions.release.template, self.questions.asked()
        if isinstance(template, SingleOutputJacobian):
            norms = np.asarray(column_norms(template, asked, self.tally.columns))
        else:
            norms = np.asarray([seen_norm(template, one) for one in self.tally.columns])
        factors = [
            1.0 if a.plain_column() is None else abs(float(a.directions[0, 0])) * a.scale
            for a in self.questions.attributes
        ]
        return np.asarray(np.sqrt(np.maximum(norms, 0.0)) * factors)

    def together(self, block: Any, unknowns: Unknowns) -> float:
        """Return the leakage of a block of records from its sums."""
        template = self.questions.release.template
        if isinstance(template, SingleOutputJacobian):
            return math.sqrt(max(block_norm(template, unknowns, block), 0.0))
        return math.sqrt(max(seen_norm(template, block), 0.0))


def measure_streamed(source: RowSource, questions: Questions) -> StreamedMeasures:
    """Ask all questions in one pass."""
    extra = tuple(dict.fromkeys([*questions.groups, ROW]))
    names = ["row", "eta", "eta_features", "eta_label", "exact_error"]
    kept = {name: _array(questions.rows, int if name == "row" else float) for name in names}
    errors = {name: _array(questions.rows, float) for name in questions.sensitive}
    tally: Tally | None = None
    sampled, X, y, at = [], [], [], 0
    answers: Iterator[Found] = source.each(partial(_ask, questions=questions), "records", extra)
    for found in answers:
        tally = found.tally if tally is None else tally + found.tally
        here = slice(at, at + len(found.rows["row"]))
        for name, values in {**kept, **errors}.items():
            values[here] = found.rows[name]
        sampled.append(found.sampled)
        X.append(found.held_out[0])
        y.append(found.held_out[1])
        at = here.stop
    if tally is None:
        raise ValueError("a source without rows")
    return StreamedMeasures(
        questions, tally, kept, np.median(np.concatenate(sampled), axis=0),
        (np.concatenate(X), np.concatenate(y)), errors,
    )  # fmt: skip


def _ask(chunk: Chunk, questions: Questions) -> Found:
    jacobian, every = questions.jacobian(chunk), np.arange(len(chunk))
    position = chunk.start + every
    eta = _root(jacobian.row_norms(questions.every))
    label = Unknowns((), True)
    eta_label = _root(jacobian.row_norms(label))
    errors = _attribute_errors(jacobian, questions.attributes)
    errors = np.concatenate(
        [errors, (errors_of(eta_label**2) * questions.label_step)[:, None]], axis=1
    )
    rows = {
        "row": chunk.extra[ROW],
        "eta": eta,
        "eta_features": _root(jacobian.row_norms(questions.features)),
        "eta_label": eta_label,
        "exact_error": _exact(jacobian, questions),
    }
    names = [a.name for a in questions.attributes]
    for name in questions.sensitive:
        rows[name] = errors[:, names.index(name) if name in names else -1]
    first = errors.argmin(axis=0)
    single = isinstance(jacobian, SingleOutputJacobian)
    tally = Tally(
        _sums(jacobian, questions.every, every),
        _sums(jacobian, label, every),
        sum_rows(jacobian, jacobian.a**2, every) if single else  # type: ignore[attr-defined,arg-type]
        np.stack([block_information(jacobian, u, every) for u in questions.asked()]),
        errors[first, np.arange(errors.shape[1])],
        position[first],
        {name: _group(jacobian, questions, chunk.extra[name], eta) for name in questions.groups},
    )  # fmt: skip
    out = np.isin(position, questions.held_out)
    return Found(
        tally, rows, errors[position % questions.stride == 0], (chunk.X[out], chunk.y[out])
    )


def _attribute_errors(jacobian: GLMJacobian, attributes: Sequence[Attribute]) -> np.ndarray:
    """Return the least error of an attack on every column of every record, in its own units."""
    out = np.empty((jacobian.rows, len(attributes)))
    plain = [k for k, a in enumerate(attributes) if a.plain_column() is not None]
    if plain:
        columns = tuple(int(attributes[k].columns[0]) for k in plain)
        information = np.asarray(jacobian.cell_information(Unknowns(columns, False)))
        factors = np.asarray([float(attributes[k].directions[0, 0]) ** 2 for k in plain])
        out[:, plain] = errors_of(information * factors)
    for k, attribute in enumerate(attributes):
        if attribute.plain_column() is None:
            norms = np.asarray(jacobian.row_norms(attribute.unknowns()))
            out[:, k] = errors_of(norms) * attribute.scale
    return out


def _exact(jacobian: GLMJacobian, questions: Questions) -> np.ndarray:
    """Return ``√(Tr(I⁻¹)/t)`` of every record, or NaN where that takes too long."""
    unknowns = questions.features
    count = unknowns.features(jacobian.features)
    if unknowns.basis is not None and np.linalg.matrix_rank(unknowns.basis) < count:
        return np.full(jacobian.rows, np.inf)
    closed = isinstance(jacobian, SingleOutputJacobian)
    if not closed and float(questions.rows) * count**3 > INVERSE_WORK:
        return np.full(jacobian.rows, np.nan)
    return np.asarray(np.sqrt(np.asarray(jacobian.inverse_traces(unknowns)) / count))


def _group(
    jacobian: GLMJacobian, questions: Questions, values: np.ndarray, eta: np.ndarray
) -> dict[str, GroupTally]:
    texts = labels_of(pa.chunked_array([pa.array(values, from_pandas=True)]), missing="(missing)")
    known, inverse = np.unique(texts.astype(str), return_inverse=True)
    found = {}
    for k, label in enumerate(known.tolist()):
        rows = np.flatnonzero(inverse == k)
        here = eta[rows]
        block = _sums(jacobian, questions.every, rows)
        found[label] = GroupTally(len(rows), float(here.sum()), float(here.max()), block)
    return found


def _sums(jacobian: GLMJacobian, unknowns: Unknowns, rows: np.ndarray) -> Any:
    if isinstance(jacobian, SingleOutputJacobian):
        return sum_rows(jacobian, jacobian.rank_two(unknowns)[0], rows)
    return block_information(jacobian, unknowns, rows)


def _both(
    ours: Mapping[str, GroupTally], theirs: Mapping[str, GroupTally]
) -> dict[str, GroupTally]:
    out = dict(ours)
    for name, tally in theirs.items():
        out[name] = out[name] + tally if name in out else tally
    return out


def _root(squared: Any) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(np.asarray(squared, dtype=float), 0.0)))


def _array(rows: int, kind: type) -> np.ndarray:
    """Return room for one number per record: in a file without a name where that is much."""
    if rows <= _IN_MEMORY:
        return np.empty(rows, dtype=kind)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=kind, shape=(rows,))
