"""Queries about a release, computed chunk by chunk; one pass over the records can answer several.

The leakage of a record depends only on the record and the release; the leakage of a block depends
on sums over its records. Per-record numbers are stored chunk by chunk in one array
(:func:`seepage.support.room.room_for`); sums for blocks are added up. If a chunk is the whole
table, the result is computed directly.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.jacobian import (
    SUMS_HELD,
    MeasuredRelease,
    ReleaseJacobian,
    Unknowns,
    block_norms,
    column_traces,
    columns_at_once,
)
from seepage.errors import InputError
from seepage.tables.source import AnswerIfAny, Array, Chunk, RowSource, place_like

ALL = "all"  # the name of the block where there is only one

_FEWEST = 100  # groups whose sums are always held at a time
_MANY_GROUPS = 1000  # above which the accuracy of each is no longer stated

# The records of a chunk in each block, by position in the chunk
Choice = Callable[[Chunk], dict[Any, np.ndarray]]


class ChunkQuestion(ABC):
    """A query that is computed one chunk after another."""

    per_record = False  # whether every record has an answer of its own

    @abstractmethod
    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return a chunk's contribution to the result; contributions add up with ``+``.

        ``before`` contains the chunk's contributions to earlier queries.
        """

    def rest(self, total: Any) -> ChunkQuestion | None:
        """Return the query for another pass if some sums did not fit in memory, or ``None``."""
        return None

    def answer(self, totals: list[Any], template: ReleaseJacobian) -> Any:
        """Return the result from the totals of each pass."""
        return totals[0]


def ask(
    source: RowSource,
    release: MeasuredRelease,
    questions: Mapping[str, ChunkQuestion],
    what: str,
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the result of each query; all queries share each pass over the records."""
    totals: dict[str, list[Any]] = {name: [] for name in questions}
    left = dict(questions)
    while left:
        put = partial(_put, release=release, questions=left)
        if any(question.per_record for question in left.values()):
            sums = reduce(add, source.each(put, what, extra))
        else:
            sums = source.total(put, what, extra)
        for name, total in sums.items():
            totals[name].append(total)
        rest = {name: question.rest(sums[name]) for name, question in left.items()}
        left = {name: question for name, question in rest.items() if question is not None}
    template = release.template
    return {name: questions[name].answer(totals[name], template) for name in questions}


class _Parts(dict[str, Any]):
    """The contributions of some records to the results."""

    def __add__(self, other: _Parts) -> _Parts:
        return _Parts((name, part + other[name]) for name, part in self.items())


def _put(chunk: Chunk, release: MeasuredRelease, questions: Mapping[str, ChunkQuestion]) -> _Parts:
    jacobian, parts = release.jacobian(chunk), _Parts()
    for name, question in questions.items():
        parts[name] = question.of(jacobian, chunk, parts)
    return parts


# Single records -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Information(ChunkQuestion):
    """The information matrix about one record."""

    unknowns: Unknowns
    row: int

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> list[Array]:
        """Return the matrix in a list, which is empty if the record is not in the chunk."""
        here = self.row - chunk.start
        if not 0 <= here < len(chunk):
            return []
        return [jacobian.row_information(self.unknowns)(slice(here, here + 1))[0, :, :]]


# Blocks of records --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """The contribution of some records to the result for a block."""

    squared: Any  # the squared leakage, or sums from which it follows, or the information's trace
    count: int  # of the records
    error: Any  # of η, relative, or the terms it is made of; ``None`` where none is stated

    def __add__(self, other: Block) -> Block:
        error = None if self.error is None else self.error + other.error
        return Block(self.squared + other.squared, self.count + other.count, error)


class BlocksByName(dict[Any, Block]):
    """The contributions of some records to the results for as many blocks as fit in memory."""

    held: int = sys.maxsize
    seen: frozenset[Any] = frozenset()  # the names of all blocks that have records

    def __add__(self, other: BlocksByName) -> BlocksByName:
        both = BlocksByName(self)
        for name, block in other.items():
            both[name] = both[name] + block if name in both else block
        both.held, both.seen = max(self.held, other.held), self.seen | other.seen
        # A block dropped here is never among the first again, however many are added.
        for name in sorted(both)[both.held :] if len(both) > both.held else ():
            del both[name]
        return both


@dataclass(frozen=True, eq=False)
class Blocks(ChunkQuestion):
    """The leakage of blocks of records, each as a whole; the result has a :class:`Block` for each.

    ``choose`` selects the blocks in a chunk; ``only`` names the requested blocks, if not all.
    ``measure`` is ``fil`` or ``dfil``; ``rows`` and ``stated`` are as for :class:`EachRecord`.
    """

    unknowns: Unknowns
    measure: str
    choose: Choice
    rows: int
    only: frozenset[Any] | None = None
    stated: bool = True

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return the squared leakage of each block, or a chunk's contribution to it."""
        chosen, xp = self.choose(chunk), array_namespace(chunk.X)
        parts, whole = BlocksByName(), len(chunk) == self.rows
        parts.seen = frozenset(chosen)
        if not whole and self.measure == "fil":  # else a number for each block is all that is held
            parts.held = max(_FEWEST, SUMS_HELD // jacobian.size**2)
        names = [name for name in chosen if self.only is None or name in self.only][: parts.held]
        rows = [xp.asarray(chosen[name], device=chunk.X.device) for name in names]
        squares, errors = self._squares(jacobian, rows, whole), self._errors(jacobian, rows, whole)
        for name, where, squared, error in zip(names, rows, squares, errors, strict=True):
            parts[name] = Block(squared, len(where), error(squared) if callable(error) else error)
        return parts

    def _squares(self, jacobian: ReleaseJacobian, rows: list[Array], whole: bool) -> Iterable[Any]:
        """Return each block's trace, squared norm or sums, as the measure requires."""
        if self.measure == "dfil" and rows:
            traces = jacobian.row_traces(self.unknowns)
            return [float(array_namespace(traces).sum(traces[where])) for where in rows]
        if whole:
            return block_norms(jacobian, self.unknowns, rows)
        return (jacobian.block_sums(self.unknowns, where) for where in rows)

    def _errors(self, jacobian: ReleaseJacobian, rows: list[Array], whole: bool) -> list[Any]:
        """Return the terms of each block's error; for a whole table, functions returning errors."""
        stated = self.stated and jacobian.accuracy.stated
        if not (rows and stated) or (whole and len(rows) > _MANY_GROUPS):
            return [None] * len(rows)
        if whole:
            checked = len(rows) == 1 and jacobian.rows * jacobian.size <= 1 << 15
            return [partial(self._error, jacobian, where, checked) for where in rows]
        terms = jacobian.accuracy.row_terms(self.unknowns)
        return [array_namespace(terms).sum(terms[where, :], axis=0) for where in rows]

    def _error(
        self, jacobian: ReleaseJacobian, rows: Array, checked: bool, squared: float
    ) -> float:
        """Return the relative error of η of a block of the whole table, given η².

        With ``checked``, the result is compared with another bound: no direction of a block leaks
        more than the sum of its records' traces, which are computed in a different way. The size of
        a violation is a lower bound on the error.
        """
        error = jacobian.accuracy.block(squared, self.unknowns, rows)
        if not checked:
            return error
        traces = jacobian.row_traces(self.unknowns)
        total = float(array_namespace(traces).sum(traces[rows]))
        excess = squared / total - 1 if total > 0 else 0.0
        return max(error, excess) if excess > 20 * error + 1e-9 else error

    def rest(self, total: BlocksByName) -> Blocks | None:
        """Return the query for the blocks whose sums did not fit in this pass."""
        asked = total.seen if self.only is None else total.seen & self.only
        left = asked.difference(total)
        return replace(self, only=left) if left else None

    def answer(self, totals: list[BlocksByName], template: ReleaseJacobian) -> BlocksByName:
        """Return each block with its squared leakage and the relative error of η."""
        answers = BlocksByName()
        answers.seen = totals[0].seen
        for name, block in (item for total in totals for item in total.items()):
            squared, error, count = block.squared, block.error, 1
            if not isinstance(squared, float):
                squared = template.norm_of(self.unknowns, squared)
            if error is not None and not isinstance(error, float):
                error = template.accuracy.of_terms(squared, error)
            if self.measure == "dfil":
                count = self.unknowns.count(template) * block.count
            answers[name] = Block(squared / count, block.count, error)
        return answers


@dataclass(frozen=True, eq=False)
class AttributeBlocks(ChunkQuestion):
    """The leakage of attributes, each over all records or over those that ``choose`` selects.

    The result contains η² and the relative errors of η. The other arguments are as for
    :class:`Blocks`.
    """

    attributes: tuple[Unknowns, ...]
    measure: str
    choose: Choice
    rows: int
    stated: bool = True

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> AnswerIfAny:
        """Return η² over the whole table, or the sums from which it is computed."""
        where = self.choose(chunk).get(ALL)
        if where is None:
            return AnswerIfAny(())
        rows = array_namespace(jacobian.X).asarray(where, device=jacobian.X.device)
        whole, asked, error = len(chunk) == self.rows, list(self.attributes), None
        if self.measure == "dfil":
            squared = column_traces(jacobian, asked, rows)
        elif whole:
            squared = jacobian.column_norms(asked, rows)
        else:
            asked = asked[: columns_at_once(jacobian)]
            squared = jacobian.column_sums(asked, rows)
        if self.stated and jacobian.accuracy.stated:
            error = (
                jacobian.accuracy.columns(squared, asked, rows)
                if whole
                else jacobian.accuracy.column_terms(asked, rows)
            )
        return AnswerIfAny((_ColumnSums(squared, len(where), error, len(asked), whole),))

    def rest(self, total: AnswerIfAny) -> AttributeBlocks | None:
        """Return the query for the attributes whose sums did not fit in this pass."""
        left = self.attributes[total.given[0].asked :]
        return replace(self, attributes=left) if left else None

    def answer(self, totals: list[AnswerIfAny], template: ReleaseJacobian) -> tuple[Array, Any]:
        """Return the squared leakage of each attribute, and the relative errors of η."""
        squares, errors, first = [], [], 0
        for sums in (total.given[0] for total in totals):
            asked = list(self.attributes[first : first + sums.asked])
            squared, error, first = sums.squared, sums.error, first + sums.asked
            if self.measure == "fil" and not sums.whole:
                squared = template.column_norms_of(asked, squared)
            if error is not None and not sums.whole:
                each = zip(squared, error, strict=True)
                errors_of = [template.accuracy.of_terms(float(value), own) for value, own in each]
                error = place_like(errors_of, squared)
            if self.measure == "dfil":
                sizes = [float(u.features(template.features) * sums.count) for u in asked]
                squared = squared / place_like(sizes, squared)
            squares.append(squared)
            errors.append(error)
        concat = array_namespace(squares[0]).concat
        return concat(squares), None if errors[0] is None else concat(errors)


@dataclass(frozen=True, eq=False)
class _ColumnSums(Block):
    """The contributions of some records to the results for the attributes of one pass."""

    asked: int  # how many attributes
    whole: bool  # whether these are the answers, and all records were there

    def __add__(self, other: Block) -> _ColumnSums:
        both = super().__add__(other)
        return replace(self, squared=both.squared, count=both.count, error=both.error)


# Which records of a chunk are meant ---------------------------------------------------------------


def chosen(chunk: Chunk, positions: np.ndarray | None) -> dict[Any, np.ndarray]:
    """Return the sorted table positions (``None``: all) in the chunk, counted from its start."""
    if positions is None:
        return {ALL: np.arange(len(chunk))}
    first, last = np.searchsorted(positions, [chunk.start, chunk.start + len(chunk)])
    return {ALL: positions[first:last] - chunk.start} if first < last else {}


def grouped(chunk: Chunk, by: str | np.ndarray) -> dict[Any, np.ndarray]:
    """Return each group's positions in the chunk; ``by`` is a column, or one label per record."""
    if isinstance(by, str):
        labels = chunk.extra[by]
        missing = first_missing(labels)
        if missing is not None:
            count = sum(map(is_missing, labels.tolist()))
            raise InputError(
                f"Column {by!r} has no value in {count:,} of the rows read so far (the first is "
                f"row {chunk.start + missing:,}); leave such rows out, or fill in a value."
            )
    else:
        labels = by[chunk.start : chunk.start + len(chunk)]
    return members(labels)


def members(labels: np.ndarray) -> dict[Any, np.ndarray]:
    """Return the positions of each label, found by one sort."""
    known, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(1, len(known)))
    return dict(zip(known.tolist(), np.split(order, starts), strict=True))


def first_missing(labels: np.ndarray) -> int | None:
    """Return the position of the first missing label, if any."""
    return next((i for i, value in enumerate(labels.tolist()) if is_missing(value)), None)


def is_missing(label: Any) -> bool:
    """Return whether a label is missing: ``None``, NaN or NA."""
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA is neither equal to itself nor different
        return True
