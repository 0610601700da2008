"""All measures of a release that an audit needs, computed once at σ = 1 and rescaled.

The Fisher information is ``JᵀJ/σ²`` for Gaussian noise of standard deviation σ, with ``J`` the
Jacobian of the released numbers with respect to the records. Leakage at σ = 1 is therefore divided
by σ, and the least error of an attack multiplied by σ.

The audit sends a list of queries to a :class:`~seepage.core.leakage.Leakage`, which answers all of
them in one pass over the records. Per-record results are stored in memory or on disk; medians and
quantiles are computed from them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import (
    NUMBERS,
    ONE_PERSON,
    ONE_ROW,
    AttributeFinding,
    GroupFinding,
    GroupingFinding,
    RecordLeakage,
    median_of,
)
from seepage.auditing.trained_model import ROW, Attribute, TrainedModel
from seepage.core.jacobian import (
    ReleaseJacobian,
    Unknowns,
    block_norms,
    inverse_gram_diagonal,
    inverse_work,
    largest_square,
)
from seepage.core.noise import Gaussian
from seepage.core.questions import (
    ALL,
    AttributeBlocks,
    Block,
    Blocks,
    BlocksByName,
    ChunkQuestion,
    ask,
    chosen,
    grouped,
    members,
)
from seepage.core.result import (
    EachRecord,
    RecordNumbers,
    root,
)
from seepage.glm.changes.neighbouring_models import NeighbouringModels
from seepage.glm.jacobian.operator import PlainJacobians
from seepage.glm.leakage import describe_on, largest_leakage
from seepage.support.room import copied, sorted_numbers
from seepage.tables.columns import labels_of
from seepage.tables.source import Chunk

INVERSE_WORK = 3e11  # multiplications, beyond which inverting every record's matrix takes minutes
_AT_ONCE = 8  # attributes whose errors on every record of a table in memory are held at a time
_LABEL = Unknowns((), True)


@dataclass(frozen=True, eq=False)
class _RowNumber(EachRecord):
    """Query for the row number of every record in the caller's table."""

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return the row numbers of a chunk."""
        return RecordNumbers(np.asarray(chunk.extra[ROW]), None, chunk.start, self.rows)


@dataclass(frozen=True, eq=False)
class _ExactError(EachRecord):
    """Measures ``√(Tr(I⁻¹)/t)``; ``I`` is the Fisher information on the t unknowns of a record.

    The value is NaN if the computation would take too long.
    """

    def numbers(self, jacobian: ReleaseJacobian) -> tuple[np.ndarray, None]:
        """Return the value for every record of a chunk's Jacobian."""
        unknowns, basis = self.unknowns, self.unknowns.basis
        if basis is not None and np.linalg.matrix_rank(basis) < basis.shape[1]:
            # Fewer features than columns: some change of a record does not move the release.
            return np.full(jacobian.rows, np.inf), None
        if self.rows * inverse_work(jacobian, unknowns) > INVERSE_WORK:
            return np.full(jacobian.rows, np.nan), None
        return np.sqrt(np.asarray(super().numbers(jacobian)[0])), None


@dataclass(frozen=True, eq=False)
class AttackErrors:
    """The smallest and the median least error of attacks on each attribute."""

    least: np.ndarray
    place: np.ndarray  # the position of the record with the smallest error
    median: np.ndarray
    sensitive: Mapping[str, np.ndarray]  # every record's error, for attributes declared sensitive


@dataclass(frozen=True, eq=False)
class _EachError(EachRecord):
    """Measures the least error of an attack on each of some attributes, in the attribute's units.

    Without attributes, the attack is on the label, in units of ``label_step``.
    """

    attributes: tuple[Attribute, ...] = ()
    label_step: float = 1.0
    sensitive: Mapping[int, str] | None = None  # the names of those that are kept, by position
    # The person of every record by number, where errors are those on people, and for each attribute
    # whether it is the same in all records of every person
    owner: np.ndarray | None = None
    same: tuple[bool, ...] = ()

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return the errors on a chunk's records, or a summary if it is the whole table."""
        if not self.attributes:
            with np.errstate(divide="ignore"):
                errors = (self.label_step / np.asarray(before["eta_label"].values))[:, None]
        else:
            errors = np.empty((len(self.attributes), jacobian.rows)).T
            plain = [k for k, a in enumerate(self.attributes) if a.factor is not None]
            if plain:
                columns = tuple(int(self.attributes[k].columns[0]) for k in plain)
                cells = np.asarray(jacobian.cell_information(Unknowns(columns, False)))
                factors = np.array([self.attributes[k].factor for k in plain], dtype=float)
                errors[:, plain] = _errors(cells * factors**2)
            for k, attribute in enumerate(self.attributes):
                if attribute.factor is None:
                    norms = np.asarray(jacobian.row_norms(attribute.unknowns()))
                    errors[:, k] = _errors(norms) * attribute.scale
        if self.owner is not None:
            errors = self._of_people(jacobian, errors)
        numbers = RecordNumbers(errors, None, chunk.start, self.rows)
        return self.answer([numbers], jacobian) if len(chunk) == self.rows else numbers

    def _of_people(self, jacobian: ReleaseJacobian, errors: np.ndarray) -> np.ndarray:
        """Return the least errors of attacks on people, from those of attacks on their records.

        A value that is the same in all records of a person is one unknown. Its error is ``1/‖Σ_i
        J_i‖``, where ``J_i`` is the Jacobian of record i with respect to this value. For a value
        that differs between records, the smallest of the records' errors is used.
        """
        owner: Any = self.owner
        found = np.full((errors.shape[1], int(owner.max()) + 1), np.inf).T
        for k, same in enumerate(self.same):
            if not same:
                np.minimum.at(found[:, k], owner, errors[:, k])
                continue
            attribute = self.attributes[k] if self.attributes else None
            unknowns = _LABEL if attribute is None else attribute.unknowns()
            step = self.label_step if attribute is None else attribute.scale
            factor = None if attribute is None else attribute.factor
            if factor is not None:
                step = 1 / factor if factor else np.inf
            found[:, k] = _errors(_together(jacobian, unknowns, owner)) * step
        return found

    def answer(self, totals: list[Any], template: ReleaseJacobian) -> AttackErrors:
        """Return the summary of the errors over the whole table."""
        (total,) = totals
        if isinstance(total, AttackErrors):
            return total
        columns = total.values.T
        place = np.array([int(column.argmin()) for column in columns])
        return AttackErrors(
            np.array([column[at] for column, at in zip(columns, place, strict=True)]),
            place,
            np.array([median_of(sorted_numbers(column)) for column in columns]),
            {name: copied(columns[k]) for k, name in (self.sensitive or {}).items()},
        )


@dataclass(frozen=True, eq=False)
class _GroupMeans(ChunkQuestion):
    """Measures each group's number of records, and the sum and maximum of their leakages.

    With people as the unit, a person counts in every group that contains one of their records.
    """

    column: str
    owner: np.ndarray | None = None  # the person of every record, by number

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return the sums of a chunk's groups."""
        groups = _text_groups(chunk, self.column)
        if self.owner is None:
            eta = np.asarray(before["eta"].values)
        else:
            eta = _of_blocks(before["people eta"])
            groups = {name: np.unique(self.owner[rows]) for name, rows in groups.items()}
        return _GroupSums(
            (name, (len(rows), float(eta[rows].sum()), float(eta[rows].max())))
            for name, rows in groups.items()
        )


class _GroupSums(dict[str, tuple[int, float, float]]):
    """Counts, sums and maxima of groups, which can be combined over sets of rows."""

    def __add__(self, other: _GroupSums) -> _GroupSums:
        both = _GroupSums(self)
        for name, (count, total, worst) in other.items():
            mine = both.get(name, (0, 0.0, 0.0))
            both[name] = (mine[0] + count, mine[1] + total, max(mine[2], worst))
        return both


def _text_groups(chunk: Chunk, column: str) -> dict[Any, np.ndarray]:
    """Return the positions of a chunk's records in each group; missing values form one group."""
    texts = labels_of(pa.array(chunk.extra[column], from_pandas=True), missing="(missing)")
    return members(texts.astype(str))


@dataclass(frozen=True, eq=False)
class Measures:
    """All results for a release at σ = 1; the methods rescale them to other noise."""

    released: int  # the number of released numbers
    rows: RecordLeakage  # the single records
    records: RecordLeakage  # the single records, or the people
    dataset: float  # the leakage of the whole table
    # The leakage of every attribute over all records, the label last
    etas: Sequence[float]
    errors: Sequence[AttackErrors]  # the least errors of attacks on the attributes
    attributes_of: tuple[Attribute, ...]
    sensitive: tuple[str, ...]
    # For each grouping column its groups: counts, sums and maxima, and their leakage as one
    groups: Mapping[str, tuple[_GroupSums, Mapping[Any, Block]]]

    def attributes(
        self, sigma: float, target: tuple[str, str, float], same: Container[str] = ()
    ) -> tuple[AttributeFinding, ...]:
        """Return the leakage of every column, with that of ``target`` (name, kind, spread) last.

        ``same`` names the columns that are constant within every person.
        """
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
                easiest_row=int(self.records.row[place[k]]),
                median_error=float(median[k]) * sigma,
                spread=spread,
                sensitive=name in self.sensitive,
                unit=ONE_PERSON if name in same else ONE_ROW,
            )
            for k, ((name, kind, spread), eta) in enumerate(zip(described, self.etas, strict=True))
        )

    def grouping(self, column: str, sigma: float) -> GroupingFinding:
        """Return the leakage of each group of a column."""
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


def group_members(trained: TrainedModel) -> dict[tuple[str, str], np.ndarray]:
    """Return the positions of each group's records or people; empty for a table in chunks."""
    columns, owner = tuple(trained.table.groups), trained.owner
    if not columns or np.isinf(trained.refit_work):
        return {}
    (chunk,) = trained.source.each(lambda chunk: chunk, "groups", columns)
    return {
        (column, str(label)): rows if owner is None else np.unique(owner[rows])
        for column in columns
        for label, rows in _text_groups(chunk, column).items()
    }


def measure(trained: TrainedModel) -> Measures:
    """Measure a release at σ = 1, in one pass over the records unless there are many columns."""
    table, rows, leak = trained.table, len(trained.source), trained.measured(Gaussian(1.0))
    basis, owner = trained.basis(), trained.owner
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
    if owner is not None:
        each = partial(grouped, by=owner)
        about = {"eta": whole, "eta_features": features, "eta_label": _LABEL}
        questions |= {
            f"people {name}": Blocks(unknowns, "fil", each, rows, stated=False)
            for name, unknowns in about.items()
        }
        questions["people exact_error"] = _ExactErrorOfPeople(features, owner)
    errors = _error_questions(trained, rows)
    groups = {name: partial(_text_groups, column=name) for name in table.groups}
    means = {f"means of {name}": _GroupMeans(name, owner) for name in groups}
    together = {
        f"groups of {name}": Blocks(whole, "fil", choose, rows, stated=False)
        for name, choose in groups.items()
    }
    extra = tuple(dict.fromkeys([*table.groups, ROW]))
    every_question = {**questions, **errors, **means, **together}
    answers = ask(leak.source, leak.release, every_question, "records", extra)
    steps = [1.0 if a.factor is None else a.factor * a.scale for a in table.attributes]
    etas = root(np.asarray(answers["columns"][0], dtype=float)) * steps
    # The leakage of all records as one
    dataset, labels = (
        float(np.sqrt(max(answers[name][ALL].squared, 0.0))) for name in ("table", "label")
    )
    kept = {name: values for k in errors for name, values in answers[k].sensitive.items()}
    cells = {name: kept[name] for name in table.sensitive}
    row = answers["row"].values
    numbers = {name: np.asarray(answers[name].values) for name in NUMBERS}
    if owner is None:
        single = records = RecordLeakage(row, numbers, cells)
    else:
        single = RecordLeakage(row, numbers, {})
        _, first, count = np.unique(owner, return_index=True, return_counts=True)
        numbers = {name: _of_blocks(answers[f"people {name}"]) for name in NUMBERS}
        records = RecordLeakage(row[first], numbers, cells, held=count)
    return Measures(
        released=leak.release.template.size,
        rows=single,
        records=records,
        dataset=dataset,
        etas=[*etas, labels],
        errors=[answers[k] for k in errors],
        attributes_of=table.attributes,
        sensitive=table.sensitive,
        groups={n: (answers[f"means of {n}"], answers[f"groups of {n}"]) for n in table.groups},
    )


def _error_questions(trained: TrainedModel, rows: int) -> dict[str, ChunkQuestion]:
    """Return the queries for the least errors of attacks on the attributes, the label last."""
    table, owner, questions = trained.table, trained.owner, {}
    for start in range(0, len(table.attributes), _AT_ONCE):
        some = table.attributes[start : start + _AT_ONCE]
        kept = {k: a.name for k, a in enumerate(some) if a.name in table.sensitive}
        same = tuple(a.name in table.same for a in some)
        questions[f"errors {start}"] = _EachError(
            "", _LABEL, rows, False, some, sensitive=kept, owner=owner, same=same
        )
    own = {0: table.target} if table.target in table.sensitive else {}
    label = _EachError(
        "",
        _LABEL,
        rows,
        False,
        label_step=table.labels.step,
        sensitive=own,
        owner=owner,
        same=(table.target in table.same,),
    )
    return {**questions, "label errors": label}


def _of_blocks(blocks: BlocksByName | np.ndarray) -> np.ndarray:
    """Return η of every person, in order, from the squared leakages of their records."""
    if isinstance(blocks, np.ndarray):
        return blocks
    return np.sqrt(np.maximum([blocks[k].squared for k in range(len(blocks))], 0.0))


@dataclass(frozen=True, eq=False)
class _ExactErrorOfPeople(ChunkQuestion):
    """Measures ``√(Tr(I⁻¹)/t)``; ``I`` is the Fisher information on all t unknowns of a person.

    The value is infinite if there are more unknowns than released numbers, because some change of
    the records then leaves the release unchanged.
    """

    unknowns: Unknowns
    owner: np.ndarray

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> np.ndarray:
        """Return the values for all people, whose records form one chunk."""
        alone = np.asarray(before["exact_error"].values)
        found = np.full(int(self.owner.max()) + 1, np.inf)
        for k, rows in members(self.owner).items():
            unknown = len(rows) * self.unknowns.count(jacobian)
            if len(rows) == 1:
                found[k] = alone[rows[0]]
            elif unknown <= jacobian.size:
                J = np.asarray(jacobian.row_jacobians(self.unknowns, rows))
                J = np.moveaxis(J, 0, 1).reshape(1, jacobian.size, unknown)
                diagonal, _ = inverse_gram_diagonal(J, np.full(1, np.finfo(float).eps))
                found[k] = np.sqrt(np.sum(diagonal) / unknown)
        return found


def _together(jacobian: ReleaseJacobian, unknowns: Unknowns, owner: np.ndarray) -> np.ndarray:
    """Return ``‖Σ_i J_i‖₂²`` for every person; ``J_i`` is the Jacobian of their record i."""
    # Entries about the label alone come beside those about a column.
    known = 1 if unknowns.columns == () else 0
    unknowns = Unknowns((0,), True) if known else unknowns
    order = np.argsort(owner, kind="stable")
    starts = np.flatnonzero(np.diff(owner[order], prepend=-1))
    width = jacobian.size * unknowns.count(jacobian)
    held = max(1, (1 << 21) // width)  # records whose Jacobians are held at a time
    found, first = [], 0
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + held)))
        stop = starts[last] if last < len(starts) else len(order)
        here = order[starts[first] : stop]
        J = np.asarray(jacobian.row_jacobians(unknowns, here))[:, :, known:]
        sums = np.add.reduceat(J, starts[first:last] - starts[first], axis=0)
        found.append(largest_square(sums))
        first = last
    return np.concatenate(found)


def record_leakage(trained: TrainedModel, noise: Gaussian | None = None) -> np.ndarray:
    """Return the leakage about every record and its label, or every person (by default at σ = 1).

    The leakage about a person is that about all of their records together.
    """
    leak, rows, owner = trained.measured(noise or Gaussian(1.0)), len(trained.source), trained.owner
    whole = Unknowns(None, True, trained.basis())
    if owner is not None:
        people = Blocks(whole, "fil", partial(grouped, by=owner), rows, stated=False)
        return _of_blocks(ask(leak.source, leak.release, {"eta": people}, "records")["eta"])
    question = EachRecord("fil", whole, rows, stated=False)
    return np.asarray(ask(leak.source, leak.release, {"eta": question}, "records")["eta"].values)


def largest_share(trained: TrainedModel, allowed: np.ndarray | None = None) -> float:
    """Return the largest ratio of a record's leakage at σ = 1 to its ``allowed`` leakage.

    With people as the unit, all records of a person count together. The table must be in memory,
    and the model just fitted in double precision. The function is used for the many tables that
    differ from the audited table by one record.
    """
    holders, step = trained.records.holders, trained.table.labels.step
    ones = np.ones(len(holders)) if allowed is None else allowed
    whole = Unknowns(None, True, trained.basis())
    return largest_leakage(trained.model, trained.source, whole, step, ones, holders)


def neighbouring_models(trained: TrainedModel, eta: np.ndarray) -> NeighbouringModels:
    """Return the models of tables that differ from a model's table in one record, or person.

    ``eta`` is the leakage of every record, or person, at σ = 1 (:func:`record_leakage`).
    """
    fit, _ = describe_on(trained.model, trained.source)
    whole, step = Unknowns(None, True, trained.basis()), trained.table.labels.step
    return NeighbouringModels(fit, trained.records.X, whole, step, eta, trained.owner)


def replaced_leakage(
    trained: TrainedModel, about: PlainJacobians, rows: np.ndarray, features: np.ndarray
) -> np.ndarray:
    """Return one person's η at σ = 1 for each of several sets of alternative features.

    ``features`` has the shape ``(sets, rows, columns)``; the labels stay the same. The model, whose
    Jacobians are ``about``, is not refitted.
    """
    sets, held, columns = features.shape
    whole = Unknowns(None, True, trained.basis())
    here = about(np.tile(rows, sets), features.reshape(sets * held, columns))
    here = here.with_label_step(trained.table.labels.step)
    norms = block_norms(here, whole, np.split(np.arange(sets * held), sets))
    return np.asarray(np.sqrt(np.asarray(norms)))


def _errors(information: np.ndarray) -> np.ndarray:
    """Return the least error of an unbiased attack, ``1/√information``; ∞ if nothing leaks."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(np.maximum(information, 0.0)))
