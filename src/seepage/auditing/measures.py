"""Every number an audit needs of a release, measured once: other noise only rescales them.

With noise of standard deviation σ every leakage is the one at σ = 1 over σ, and every least error
of an attack σ times the one at σ = 1 (the information is ``JᵀJ/σ²``).

The audit is a list of questions to a :class:`~seepage.core.leakage.Leakage`, all of them answered
in one pass over the records. The numbers of every record are kept, in memory or on disk; medians
and quantiles are taken from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import (
    NUMBERS,
    AttributeFinding,
    GroupFinding,
    GroupingFinding,
    RecordLeakage,
    median_of,
)
from seepage.auditing.trained_model import ROW, Attribute, TrainedModel
from seepage.core.information import inverse_work
from seepage.core.jacobian import ReleaseJacobian
from seepage.core.noise import Gaussian
from seepage.core.questions import (
    ALL,
    AttributeBlocks,
    Block,
    Blocks,
    ChunkQuestion,
    EachRecord,
    RecordNumbers,
    chosen,
    members,
    root,
)
from seepage.core.unknowns import Unknowns
from seepage.glm.leakage import largest_leakage
from seepage.support.room import copied, sorted_numbers
from seepage.tables.columns import labels_of
from seepage.tables.source import Chunk

INVERSE_WORK = 3e11  # multiplications, beyond which inverting every record's matrix takes minutes
_AT_ONCE = 8  # attributes whose errors on every record of a table in memory are held at a time
_LABEL = Unknowns((), True)


@dataclass(frozen=True, eq=False)
class _RowNumber(EachRecord):
    """The row number of every record in the caller's table."""

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return those of a chunk."""
        return RecordNumbers(np.asarray(chunk.extra[ROW]), None, chunk.start, self.rows)


@dataclass(frozen=True, eq=False)
class _ExactError(EachRecord):
    """``√(Tr(I⁻¹)/t)`` of every record, or NaN where that takes too long."""

    def numbers(self, jacobian: ReleaseJacobian) -> tuple[np.ndarray, None]:
        """Return those of a Jacobian's records."""
        unknowns, basis = self.unknowns, self.unknowns.basis
        if basis is not None and np.linalg.matrix_rank(basis) < basis.shape[1]:
            # Fewer features than columns: some change of a record does not move the release.
            return np.full(jacobian.rows, np.inf), None
        if self.rows * inverse_work(jacobian, unknowns) > INVERSE_WORK:
            return np.full(jacobian.rows, np.nan), None
        return np.sqrt(np.asarray(super().numbers(jacobian)[0])), None


@dataclass(frozen=True, eq=False)
class AttackErrors:
    """The least errors of attacks on some attributes: the least of all, where, and the median."""

    least: np.ndarray
    place: np.ndarray  # the record's position
    median: np.ndarray
    sensitive: Mapping[str, np.ndarray]  # of every record, for attributes declared sensitive


@dataclass(frozen=True, eq=False)
class _EachError(EachRecord):
    """The least error of an attack on each of some attributes of every record, in its own units.

    Without attributes, on the label, in the unit of ``label_step``.
    """

    attributes: tuple[Attribute, ...] = ()
    label_step: float = 1.0
    sensitive: Mapping[int, str] | None = None  # the names of those that are kept, by position

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return the errors on a chunk's records; of the whole table, what is kept of them."""
        if not self.attributes:
            with np.errstate(divide="ignore"):
                errors = (self.label_step / np.asarray(before["eta_label"].values))[:, None]
        else:
            errors = np.empty((len(self.attributes), jacobian.rows)).T
            plain = [k for k, a in enumerate(self.attributes) if a.plain]
            if plain:
                columns = tuple(int(self.attributes[k].columns[0]) for k in plain)
                cells = np.asarray(jacobian.cell_information(Unknowns(columns, False)))
                factors = np.array([self.attributes[k].factor for k in plain])
                errors[:, plain] = _errors(cells * factors**2)
            for k, attribute in enumerate(self.attributes):
                if not attribute.plain:
                    norms = np.asarray(jacobian.row_norms(attribute.unknowns()))
                    errors[:, k] = _errors(norms) * attribute.scale
        numbers = RecordNumbers(errors, None, chunk.start, self.rows)
        return self._summary(numbers) if len(chunk) == self.rows else numbers

    def answer(self, totals: list[Any], template: ReleaseJacobian) -> AttackErrors:
        """Return the least error, where it is, the median, and what is kept."""
        (total,) = totals
        return total if isinstance(total, AttackErrors) else self._summary(total)

    def _summary(self, numbers: RecordNumbers) -> AttackErrors:
        columns = numbers.values.T
        place = np.array([int(column.argmin()) for column in columns])
        return AttackErrors(
            np.array([column[at] for column, at in zip(columns, place, strict=True)]),
            place,
            np.array([median_of(sorted_numbers(column)) for column in columns]),
            {name: copied(columns[k]) for k, name in (self.sensitive or {}).items()},
        )


@dataclass(frozen=True, eq=False)
class _GroupMeans(ChunkQuestion):
    """How many records a group has, the sum of their leakages, and the largest."""

    column: str

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return those of a chunk's groups."""
        eta, groups = np.asarray(before["eta"].values), _text_groups(chunk, self.column)
        return _GroupSums(
            (name, (len(rows), float(eta[rows].sum()), float(eta[rows].max())))
            for name, rows in groups.items()
        )


class _GroupSums(dict[str, tuple[int, float, float]]):
    """Counts, sums and maxima of groups; two sets of rows add up."""

    def __add__(self, other: _GroupSums) -> _GroupSums:
        both = _GroupSums(self)
        for name, (count, total, worst) in other.items():
            mine = both.get(name, (0, 0.0, 0.0))
            both[name] = (mine[0] + count, mine[1] + total, max(mine[2], worst))
        return both


def _text_groups(chunk: Chunk, column: str) -> dict[Any, np.ndarray]:
    """Return the positions of a chunk's records in each group; a missing value is a group."""
    texts = labels_of(pa.array(chunk.extra[column], from_pandas=True), missing="(missing)")
    return members(texts.astype(str))


@dataclass(frozen=True, eq=False)
class Measures:
    """Everything found about a release at σ = 1; findings are converted to another σ."""

    released: int  # how many numbers are released
    records: RecordLeakage  # the single records
    dataset: float  # the leakage of the whole table
    # The leakage of every attribute over all records, the label last
    etas: Sequence[float]
    errors: Sequence[AttackErrors]  # the least errors of attacks on them
    attributes_of: tuple[Attribute, ...]
    sensitive: tuple[str, ...]
    # For each grouping column its groups: counts, sums and maxima, and their leakage as one
    groups: Mapping[str, tuple[_GroupSums, Mapping[Any, Block]]]

    def attributes(
        self, sigma: float, target: tuple[str, str, float]
    ) -> tuple[AttributeFinding, ...]:
        """Return the leakage of every column; the target's name, kind and spread come last."""
        described = [(a.name, a.kind, a.spread) for a in self.attributes_of] + [target]
        least, place, median = (
            np.concatenate([getattr(errors, name) for errors in self.errors])
            for name in ("least", "place", "median")
        )
        return tuple(
            AttributeFinding(
                name=name,
                kind=kind,
                eta=float(eta) / sigma,
                smallest_error=float(least[k]) * sigma,
                easiest_row=self.records.row_at(place[k]),
                median_error=float(median[k]) * sigma,
                spread=spread,
                sensitive=name in self.sensitive,
            )
            for k, ((name, kind, spread), eta) in enumerate(zip(described, self.etas, strict=True))
        )

    def grouping(self, column: str, sigma: float) -> GroupingFinding:
        """Return how evenly leakage is spread over the groups of a column."""
        sums, together = self.groups[column]
        groups = tuple(
            GroupFinding(
                label,
                count,
                total / count / sigma,
                worst / sigma,
                float(np.sqrt(max(together[label].squared, 0.0))) / sigma,
            )
            for label, (count, total, worst) in sorted(sums.items())
        )
        ordered = sorted(groups, key=lambda group: group.mean_eta)
        least, most = ordered[0].mean_eta, ordered[-1].mean_eta
        ratio = most / least if least > 0 else (1.0 if most == 0 else float("inf"))
        return GroupingFinding(column, groups, ratio, ordered[0].label, ordered[-1].label)


def measure(trained: TrainedModel) -> Measures:
    """Measure a release at σ = 1, in one pass over the records unless there are many columns."""
    table, rows, leak = trained.table, len(trained.source), trained.measured(Gaussian(1.0))
    basis = trained.basis()
    whole, features = Unknowns(None, True, basis), Unknowns(None, False, basis)
    every = partial(chosen, positions=None)
    columns = tuple(a.unknowns() for a in table.attributes)
    questions: dict[str, ChunkQuestion] = {
        "row": _RowNumber("", whole, rows),
        "eta": EachRecord("fil", whole, rows, stated=False),
        "eta_features": EachRecord("fil", features, rows, stated=False),
        "eta_label": EachRecord("fil", _LABEL, rows, stated=False),
        "exact_error": _ExactError("cramer_rao", features, rows, stated=False),
        "table": Blocks(whole, "fil", every, rows, stated=False),
        "label": Blocks(_LABEL, "fil", every, rows, stated=False),
        "columns": AttributeBlocks(columns, "fil", every, rows, stated=False),
    }
    errors = _error_questions(trained, rows)
    groups = {name: partial(_text_groups, column=name) for name in table.groups}
    means = {f"means of {name}": _GroupMeans(name) for name in groups}
    together = {
        f"groups of {name}": Blocks(whole, "fil", choose, rows, stated=False)
        for name, choose in groups.items()
    }
    extra = tuple(dict.fromkeys([*table.groups, ROW]))
    answers = leak.ask({**questions, **errors, **means, **together}, "records", extra)
    steps = [a.factor * a.scale if a.plain else 1.0 for a in table.attributes]
    etas = root(np.asarray(answers["columns"][0], dtype=float)) * steps
    # The leakage of all records as one
    dataset, labels = (
        float(np.sqrt(max(answers[name][ALL].squared, 0.0))) for name in ("table", "label")
    )
    kept = {name: values for k in errors for name, values in answers[k].sensitive.items()}
    return Measures(
        released=leak.release.template.size,
        records=RecordLeakage(
            answers["row"].values,
            {name: np.asarray(answers[name].values) for name in NUMBERS},
            {name: kept[name] for name in table.sensitive},
        ),
        dataset=dataset,
        etas=[*etas, labels],
        errors=[answers[k] for k in errors],
        attributes_of=table.attributes,
        sensitive=table.sensitive,
        groups={n: (answers[f"means of {n}"], answers[f"groups of {n}"]) for n in table.groups},
    )


def _error_questions(trained: TrainedModel, rows: int) -> dict[str, ChunkQuestion]:
    """Return the questions about the least errors of attacks on the attributes, the label last."""
    table, questions = trained.table, {}
    for start in range(0, len(table.attributes), _AT_ONCE):
        some = table.attributes[start : start + _AT_ONCE]
        kept = {k: a.name for k, a in enumerate(some) if a.name in table.sensitive}
        questions[f"errors {start}"] = _EachError("", _LABEL, rows, False, some, sensitive=kept)
    own = {0: table.target} if table.target in table.sensitive else {}
    step = table.labels.step
    label = _EachError("", _LABEL, rows, False, label_step=step, sensitive=own)
    return {**questions, "label errors": label}


def record_leakage(trained: TrainedModel, noise: Gaussian | None = None) -> np.ndarray:
    """Return the leakage of every record with its label, at σ = 1 by default."""
    leak = trained.measured(noise or Gaussian(1.0))
    question = EachRecord(
        "fil", Unknowns(None, True, trained.basis()), len(trained.source), stated=False
    )
    return np.asarray(leak.ask({"eta": question}, "records")["eta"].values)


def largest_share(trained: TrainedModel, allowed: np.ndarray | None = None) -> float:
    """Return the largest leakage of a record at σ = 1, relative to what each is ``allowed`` (1).

    For a table in memory to which its model was just fitted, in ordinary arithmetic: for the many
    tables that differ from the audited one by a record.
    """
    ones = np.ones(len(trained.source)) if allowed is None else allowed
    step = trained.table.labels.step
    whole = Unknowns(None, True, trained.basis())
    return largest_leakage(trained.model, trained.source, whole, step, ones)


def _errors(information: np.ndarray) -> np.ndarray:
    """Return the least error of an attack, ``1/√I``: infinite if nothing leaks."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(np.maximum(information, 0.0)))
