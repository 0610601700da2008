"""How much a release tells about its training data: views of the table × measures of the leakage.

The Fisher information of a release about any block of the table is ``JᵀJ``, with ``J`` the
whitened Jacobian of the release (paper 001, equation 16). Two numbers are taken from it::

    FIL    η = ‖J‖₂                    the most that any direction of the block leaks
    dFIL   η̄ = ‖J‖_F / √(number of unknowns)      the average over its directions

A record's leakage depends only on the record and the release, and a block's on sums over its
records. So every view is a question put to one chunk of the table after another, and a table in
memory is a single chunk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
from array_api_compat import array_namespace

from seepage.core.information import (
    block_norms,
    column_traces,
    columns_at_once,
    inverse_traces,
    inverses,
)
from seepage.core.jacobian import SUMS_HELD, MeasuredRelease, Refits, ReleaseJacobian
from seepage.core.noise import Noise
from seepage.core.record_stream import RecordStream, write_records
from seepage.core.result import Result, histogram_svg, warned
from seepage.core.risk_views import (
    Prior,
    guess,
    guess_in_chunks,
    membership,
    membership_in_chunks,
    within,
    within_in_chunks,
)
from seepage.core.unknowns import Attributes, Unknowns
from seepage.errors import InputError, nearest
from seepage.tables.source import (
    Answer,
    Array,
    Chunk,
    MemorySource,
    RowSource,
    Table,
    as_numpy,
    check_length,
    place_like,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # for its default

    PerRecord = TypeVar("PerRecord", bound=Result | RecordStream, default=Result)
else:
    from typing import TypeVar

    PerRecord = TypeVar("PerRecord")

Columns = str | int | Sequence[str | int] | None

_FEWEST = 100  # groups that are always allowed
_FREE = 1 << 15  # numbers of a release about a table up to which a law is checked as well
_MANY_GROUPS = 1000  # above which the accuracy of each is no longer stated
_ALL = "all"  # the name of the block where there is only one


class Leakage(Generic[PerRecord]):
    """The leakage of one or more releases about a table, in memory or read in chunks.

    Each view returns a :class:`~seepage.core.result.Result`. For data read in chunks, a view with
    one number per record returns a :class:`~seepage.core.record_stream.RecordStream` instead, which
    is computed when it is read or written, and every other view is one pass over the data.
    Adversaries are assumed to know everything outside the view; knowing less never helps them
    (paper 001, equation 12).

    Parameters
    ----------
    release
        The release or releases.
    source
        Where the records come from.
    noise
        The noise of the release, or of each if there are several.
    attributes
        The columns, and which of them belong together.
    notes
        What the numbers leave out, in sentences; results carry them as their assumptions.
    """

    def __init__(
        self,
        release: MeasuredRelease,
        source: RowSource,
        noise: tuple[Noise, ...],
        attributes: Attributes,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.release, self.source, self.noise = release, source, noise
        self.attributes, self.notes = attributes, notes

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the line of text, and a histogram of the records' η."""
        text = f"<p><code>{escape(repr(self))}</code></p>"
        if not self.source.in_memory:
            return text
        return text + histogram_svg(np.asarray(self.records()), "FIL η of the records")

    def __repr__(self) -> str:
        noise = " and ".join(map(repr, self.noise))
        chunks = "" if self.source.in_memory else ", read in chunks"
        return (
            f"<Leakage of {self.release.template.size} numbers with {noise} about "
            f"{len(self.source)} records of {len(self.source.names)} columns{chunks}>"
        )

    @property
    def jacobian(self) -> ReleaseJacobian:
        """The Jacobian of the release about all records of a table in memory."""
        self._check_in_memory("the Jacobian about all records")
        return self.release.template

    @property
    def table(self) -> Table:
        """The table, where it is in memory."""
        self._check_in_memory("the whole table")
        return cast(MemorySource, self.source).table

    def refits(self) -> Refits:
        """Return how a single release moves when a record changes by a finite amount."""
        if len(self.noise) != 1:
            raise InputError(
                "How far a release moves when a record changes can be asked of one release only; "
                "take the releases one by one."
            )
        if not self.source.in_memory:
            raise InputError(
                "The effect of a changed record is found by making the release again, which needs "
                "all records in memory; these are read in chunks."
            )
        return self.release.refits()

    # Views ------------------------------------------------------------------------------------

    def records(
        self,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> PerRecord:
        """Return the leakage about each record: all of it, or the named columns.

        The label counts as part of the record unless columns are named; ``label`` overrides that.
        With ``simplex`` a complete one-hot attribute may only move along its simplex.
        """
        unknowns, about = self.unknowns(columns, label, simplex)
        return self.per_record(_check_measure(measure), unknowns, "rows", about)

    rows = records

    def labels(self, measure: str = "fil") -> PerRecord:
        """Return the leakage about each record's label alone, its columns known."""
        return self.records(columns=[], label=True, measure=measure)

    def cells(self, columns: Columns = None) -> PerRecord:
        """Return the leakage about each single cell, all else known: one column per column.

        A cell is one number, for which FIL and dFIL are the same.
        """
        unknowns, _ = self.unknowns(columns, False)
        return self.per_record("cells", unknowns, "cells", "one cell at a time")

    def columns(self, rows: Any = None, measure: str = "fil", simplex: bool = False) -> Result:
        """Return the leakage about each attribute over all records, or over the given ones.

        ``rows`` are positions or a boolean mask. Columns that belong together, such as the one-hot
        columns of a category, count as one attribute.
        """
        which = self._positions(rows)
        names, unknowns = self.attributes.each(simplex)
        template, sizes, terms, accuracy = self.release.template, 1.0, None, None
        streamed_errors = template.accuracy.stated and not self.source.in_memory
        also = ("column_terms",) if streamed_errors else ()
        if _check_measure(measure) == "dfil":
            answers = self._over_columns(("column_traces", *also), unknowns, which)
            traces, terms = answers["column_traces"], answers.get("column_terms")
            count = len(self.source) if which is None else len(which)
            directions = [u.features(len(self.source.names)) for u in unknowns]
            sizes = place_like([float(many * count) for many in directions], traces)
        elif self.source.in_memory:
            traces = self._over_columns(("column_norms",), unknowns, which)["column_norms"]
        else:
            traces, terms = self._column_norms(unknowns, which, also)
        about = "one attribute of all records" if rows is None else "one attribute of some records"
        if terms is not None:
            each = zip(traces, terms, strict=True)
            errors = [template.accuracy.of_terms(float(value), own) for value, own in each]
            accuracy = place_like(errors, traces)
        elif template.accuracy.stated:
            accuracy = template.accuracy.columns(traces, unknowns, self.row_positions(which))
        squared = traces / sizes
        return self._result(squared, "columns", measure, about, accuracy, np.asarray(names, object))

    def groups(
        self,
        labels: Any,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
        only: Sequence[Any] | None = None,
    ) -> Result:
        """Return the leakage about each group of records together, in the order of their labels.

        Parameters
        ----------
        labels
            The group of every record, or the name of the column of the data that has it (a feature
            or not).
        columns, label, measure, simplex
            As for :meth:`records`.
        only
            The groups to report, if not all.
        """
        unknowns, about = self.unknowns(columns, label, simplex)
        by = labels if isinstance(labels, str) else _sortable(group_labels(labels, self.source))
        extra = (labels,) if isinstance(labels, str) else ()
        ask = partial(self._blocks, unknowns, measure, partial(_grouped, by=by), extra)
        answers = ask(only)
        left = sorted(answers.seen.difference(answers)) if only is None else []
        while left:  # no pass holds the sums of more groups than fit into memory
            answers.take(ask(left[: answers.most]))
            left = left[answers.most :]
        for group in only or ():
            if group not in answers.seen:
                raise InputError(
                    f"No record is in the group {group!r}{nearest(group, answers.seen)}."
                )
        chosen = sorted(answers) if only is None else list(only)
        index = np.empty(len(chosen), object)
        index[:] = chosen
        squared = place_like([answers[group] for group in chosen], self.release.template.X)
        if not self.source.in_memory or isinstance(by, str):
            accuracy = answers.accuracy_of(chosen)
        elif len(chosen) > _MANY_GROUPS:
            accuracy = None
        else:
            blocks = _positions(by)
            accuracy = self._accuracy(
                [
                    (answers[g] * self._count(measure, unknowns, blocks[g]), unknowns, blocks[g])
                    for g in chosen
                ]
            )
        return self._result(squared, "groups", measure, about, accuracy, index)

    def subset(
        self,
        rows: Any = None,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about any block of the table as one number.

        ``rows`` are positions or a boolean mask; ``None`` means all.
        """
        unknowns, about = self.unknowns(columns, label, simplex)
        which = self._positions(rows)
        count = len(self.source) if which is None else len(which)
        return self._one_block(unknowns, which, measure, "subset", f"{about} of {count} records")

    def dataset(self, measure: str = "fil") -> Result:
        """Return the leakage about the whole table with its labels as one number."""
        unknowns, about = self.unknowns(None, True)
        return self._one_block(unknowns, None, measure, "dataset", f"{about} of all records")

    def information(self, row: int, columns: Columns = None, label: bool | None = None) -> Array:
        """Return the information matrix ``I`` about one record, in the table's library.

        Its rows and columns are the unknowns: the table's columns (or the named ones), then the
        label if it is unknown. :func:`seepage.bounds.biased` and
        :func:`seepage.bounds.van_trees` start from it.
        """
        unknowns, _ = self.unknowns(columns, label)
        position = int(row_positions([row], len(self.source))[0])
        ask = partial(_information, release=self.release, unknowns=unknowns, row=position)
        return self.source.total(ask, "one record")[0]

    # Risks --------------------------------------------------------------------------------------

    def membership(
        self,
        rows: Any = None,
        *,
        groups: Any = None,
        exact: bool | int = False,
        refit: Callable[[np.ndarray], Any] | str | None = None,
    ) -> Any:
        """Return how well anybody can tell that a record was in the data: μ for every record.

        The adversary knows all other records, and may be biased or not. Linear models are exact in
        closed form; logistic, Poisson and softmax models by a certified expansion, with the most
        exposed and the least certain records refitted; families without a constant of
        self-concordance by refits.

        Returns a :class:`~seepage.core.risk_views.Membership`; of data that are read in chunks a
        :class:`~seepage.core.record_stream.RecordStream` of the upper ends of μ (kind ``bound``),
        without refits.

        Parameters
        ----------
        rows
            The records, by position or as a mask; all if not given.
        groups
            The group of every record: all records of a group leave together.
        exact
            Refit for every record, however many there are; a number refits as many, the most
            exposed and the least certain first.
        refit
            ``"pipeline"`` refits the whole pipeline on the records that stay, scaling included,
            with nλ unchanged. A function does the same for any procedure: given the positions of
            these records, it returns the numbers that would be released. Without either,
            everything named in ``mu.assumptions`` of the result is held fixed.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((100, 3))
        >>> y = (X[:, 0] + rng.standard_normal(100) > 0).astype(int)
        >>> model = sp.glm.LogisticRegression(l2=1e-2).fit(X, y)
        >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
        >>> leak.membership()
        <100 records: membership, exact: guessed right ...
        """
        if not self.source.in_memory and rows is None and groups is None and not exact:
            return membership_in_chunks(self)
        if groups is None:
            return membership(self, self._asked(rows), None, exact, refit)
        if rows is not None:
            raise InputError("All records of a group leave together; leave out rows= or groups=.")
        labels = _sortable(group_labels(groups, self.source))
        known, inverse = np.unique(labels, return_inverse=True)
        sets = [np.flatnonzero(inverse == k) for k in range(len(known))]
        return membership(self, np.arange(len(self.source)), (known, sets), exact, refit)

    def guess(
        self,
        column: str | int | None = None,
        prior: Prior = "frequencies",
        *,
        rows: Any = None,
        exact: bool | int = False,
        precision: float = 1e-5,
    ) -> Any:
        """Return how often the best guess of a category or class is right, for every record.

        The adversary knows everything else, all other records and the rest of this one; the guess
        is Bayes-optimal, and the best guess without the release is given beside it.

        Returns a :class:`~seepage.core.risk_views.Guess`; of data that are read in chunks a
        :class:`~seepage.core.record_stream.RecordStream` with the columns ``right`` (the upper
        end), ``right_lower``, ``baseline``, ``gain`` and ``mu``, without refits.

        Parameters
        ----------
        column
            The category (a column, or an attribute of one-hot columns); the label if not given.
        prior
            What is believed before the release: all levels ``"equal"``, their ``"frequencies"``
            in the table, the prediction of the ``"model"`` fitted without this record, or
            probabilities, one for each level, for all records or for each.
        rows, exact
            As for :meth:`membership`.
        precision
            The error to aim for with more than three levels, where the integral has no closed form.
        """
        if not self.source.in_memory and rows is None and not exact:
            return guess_in_chunks(self, column, prior, precision)
        return guess(self, column, [prior], self._asked(rows), exact, precision)[0]

    def within(
        self,
        column: str | int | None,
        tolerance: float,
        prior: Prior = "frequencies",
        *,
        values: Any = None,
        rows: Any = None,
        exact: bool | int = False,
    ) -> Any:
        """Return how often the best guess of a number is right to within a tolerance.

        Returns what :meth:`guess` does.

        Parameters
        ----------
        column
            The column, or ``None`` for a label that is a number.
        tolerance
            How far off a guess may be, in the unit of the column.
        prior
            ``"equal"`` over the column's range, the ``"frequencies"`` of its values, the
            prediction of the ``"model"``, or a probability for each of ``values``.
        values
            The values the number may have; if not given, those of the table (its quantiles, where
            there are many), or a grid over their range.
        rows, exact
            As for :meth:`membership`.
        """
        if not self.source.in_memory and rows is None and not exact:
            return within_in_chunks(self, column, tolerance, prior, values)
        return within(self, column, tolerance, prior, values, self._asked(rows), exact)

    def _asked(self, rows: Any) -> np.ndarray:
        self._check_in_memory("the records one by one")
        return row_positions(rows, len(self.source))

    def write_rows(
        self,
        path: str | os.PathLike[str],
        measures: Sequence[str] = ("fil", "dfil", "cramer_rao"),
        columns: Columns = None,
        label: bool | None = None,
    ) -> Path:
        """Write several measures of every record to one Parquet file, in one pass over the data.

        Parameters
        ----------
        path
            The file; it appears complete or not at all, readable by its owner only.
        measures
            Any of ``fil``, ``dfil`` and ``cramer_rao`` (the exact bound on the mean squared error
            per unknown, ``Tr(I⁻¹)/d``): the columns of the file, after ``row``.
        columns, label
            As for :meth:`records`; for ``cramer_rao`` the label is known unless ``label`` is given.
        """
        asked = [measures] if isinstance(measures, str) else list(measures)
        functions: dict[tuple[str, ...], Callable[[Chunk], Array]] = {}
        for measure in asked:
            exact = measure == "cramer_rao"
            unknowns, _ = self.unknowns(columns, bool(label) if exact else label)
            name = measure if exact else _check_measure(measure)
            functions[(measure,)] = self._ask_each(name, unknowns)
        if not functions:
            raise InputError("Name at least one measure: fil, dfil, cramer_rao.")
        return write_records(self.source, path, functions)

    # Shared by views and bounds -----------------------------------------------------------------

    def unknowns(
        self, columns: Columns, label: bool | None = None, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return what ``columns`` and ``label`` name, as directions of a record and in words."""
        unknown_label = columns is None if label is None else bool(label)
        return self.attributes.unknowns(columns, unknown_label, simplex)

    def row_positions(self, rows: Any) -> Array:
        """Return the positions that ``rows`` names: whole numbers, a mask, or ``None`` for all."""
        like = self.release.template.X
        positions = row_positions(rows, len(self.source))
        return array_namespace(like).asarray(positions, device=like.device)

    def per_record(
        self,
        question: str,
        unknowns: Unknowns,
        view: str,
        about: str,
        measure: str = "fil",
        kind: str = "exact",
        assumptions: tuple[str, ...] = (),
    ) -> PerRecord:
        """Return the answers to a question that is answered record by record.

        Parameters
        ----------
        question
            One of ``fil``, ``dfil``, ``cells``, ``cramer_rao`` (``Tr(I⁻¹)`` over the number of
            unknowns) and ``cramer_rao_cells`` (the diagonal of ``I⁻¹``).
        unknowns
            What is unknown of a record.
        view, about, measure, kind, assumptions
            Of the result. The measure is the question's own if that is one.
        """
        names = None
        if view == "cells":
            which = range(len(self.source.names)) if unknowns.columns is None else unknowns.columns
            names = tuple(self.source.names[j] for j in which)
        if question in ("fil", "dfil"):
            measure = question
        common: dict[str, Any] = {
            "view": view,
            "measure": measure,
            "kind": kind,
            "about": about,
            "names": names,
            "assumptions": (*self.notes, *assumptions),
            "noise": self.noise,
        }
        if not self.source.in_memory:
            ask = partial(_with_accuracy, question=question, unknowns=unknowns)
            return cast(PerRecord, RecordStream(self.source, self._asking(ask), **common))
        values, accuracy = self._narrowed(
            *_with_accuracy(self.release.template, question, unknowns)
        )
        index, library = self.source.index, self.source.library
        result = Result(values, index=index, library=library, accuracy=accuracy, **common)
        return cast(PerRecord, warned(result))

    def _ask_each(self, question: str, unknowns: Unknowns) -> Callable[[Chunk], Array]:
        return self._asking(partial(_of_each_record, question=question, unknowns=unknowns))

    def _asking(self, ask: Callable[[ReleaseJacobian], Answer]) -> Callable[[Chunk], Answer]:
        """Return the function that asks the Jacobian about the records of a chunk."""
        if not self.source.in_memory:
            # The template first: what all records have in common is then kept and passed on.
            ask(self.release.template)
        return partial(_of_each_chunk, release=self.release, ask=ask)

    def _one_block(
        self, unknowns: Unknowns, which: np.ndarray | None, measure: str, view: str, about: str
    ) -> Result:
        answers = self._blocks(unknowns, measure, partial(_chosen, positions=which))
        squared = answers[_ALL]
        if self.source.in_memory:
            whole = squared * self._count(measure, unknowns, which)
            accuracy = self._accuracy([(whole, unknowns, which)])
        else:
            accuracy = answers.accuracy_of([_ALL])
        accuracy = None if accuracy is None else accuracy[0]
        squared = place_like(squared, self.release.template.X)
        return self._result(squared, view, measure, about, accuracy)

    def _count(self, measure: str, unknowns: Unknowns, which: np.ndarray | None) -> int:
        """Return the number of unknowns that a squared measure of a block averages: 1 for FIL."""
        rows = len(self.source) if which is None else len(which)
        return 1 if measure == "fil" else rows * unknowns.count(self.release.template)

    def _accuracy(
        self, blocks: list[tuple[float, Unknowns, np.ndarray | None]]
    ) -> np.ndarray | None:
        """Return the relative errors of blocks of a table in memory, given traces or norms."""
        jacobian = self.release.template
        if not (blocks and jacobian.accuracy.stated):
            return None
        errors = []
        for value, unknowns, which in blocks:
            rows = self.row_positions(which)
            error = jacobian.accuracy.block(value, unknowns, rows)
            if len(blocks) == 1 and jacobian.rows * jacobian.size <= _FREE:
                error = max(error, self._excess(value, error, unknowns, rows))
            errors.append(error)
        return np.array(errors)

    def _excess(self, value: float, error: float, unknowns: Unknowns, rows: Array) -> float:
        """Return by how much η² of a block breaks a law; 0 if it does not.

        It is at most the trace of the information about the block, the sum of the traces about its
        records. These are computed another way: if the law is broken, some number is wrong.
        """
        traces = self.release.template.row_traces(unknowns)
        total = float(array_namespace(traces).sum(traces[rows]))
        excess = value / total - 1 if total > 0 else 0.0
        return excess if excess > 20 * error + 1e-9 else 0.0

    def _blocks(
        self,
        unknowns: Unknowns,
        measure: str,
        choose: Callable[[Chunk], dict[Any, np.ndarray]],
        extra: Sequence[str] = (),
        only: Sequence[Any] | None = None,
    ) -> BlockAnswers:
        """Return the squared measure of each block of records that ``choose`` finds in chunks."""
        ask = partial(
            _of_blocks,
            release=self.release,
            unknowns=unknowns,
            measure=_check_measure(measure),
            alone=self.source.in_memory,
            choose=choose,
            only=only,
        )
        answers = self.source.total(ask, "groups", extra)
        template = self.release.template
        for label, block in answers.items():
            squared, count = block.answer, 1
            if measure == "dfil":
                count = unknowns.count(template) * block.rows
            elif not self.source.in_memory:
                squared = template.norm_of(unknowns, squared)
            answers[label] = squared / count
            if block.terms is not None:
                answers.accuracy[label] = template.accuracy.of_terms(squared, block.terms)
        return answers

    def _column_norms(
        self, attributes: list[Unknowns], which: np.ndarray | None, also: tuple[str, ...]
    ) -> tuple[Array, Array | None]:
        """Return the squared FIL of each attribute from sums over the chunks.

        With them come the Jacobian's answers to ``also``, if given, from the same passes.
        """
        template, norms, others = self.release.template, [], []
        step = columns_at_once(template)
        for start in range(0, len(attributes), step):
            some = attributes[start : start + step]
            sums = self._over_columns(("column_sums", *also), some, which)
            norms.append(template.column_norms_of(some, sums["column_sums"]))
            others += [sums[question] for question in also]
        concat = array_namespace(norms[0]).concat
        return concat(norms), concat(others) if others else None

    def _over_columns(
        self, questions: tuple[str, ...], attributes: list[Unknowns], which: np.ndarray | None
    ) -> BlockAnswers:
        """Return the sums over the chunks of what the Jacobian answers to each question."""
        ask = partial(
            _of_columns,
            release=self.release,
            questions=questions,
            attributes=attributes,
            choose=partial(_chosen, positions=which),
        )
        return self.source.total(ask, "columns")

    def _positions(self, rows: Any) -> np.ndarray | None:
        return None if rows is None else row_positions(rows, len(self.source))

    def _check_in_memory(self, what: str) -> None:
        if not self.source.in_memory:
            raise InputError(
                f"This needs {what}, but the data are read in chunks; take the rows it is about "
                "into memory first."
            )

    def _result(
        self,
        squared: Array,
        view: str,
        measure: str,
        about: str,
        accuracy: Any,
        index: np.ndarray | None = None,
    ) -> Result:
        values, accuracy = self._narrowed(_root(squared), accuracy)
        result = Result(
            values,
            view,
            measure,
            about=about,
            index=index,
            library=self.source.library,
            noise=self.noise,
            accuracy=accuracy,
            assumptions=self.notes,
        )
        return warned(result)

    def _narrowed(self, values: Array, accuracy: Any) -> tuple[Array, Any]:
        """Return numbers in the table's type, or the one asked for; they may have been widened."""
        if not self.source.in_memory:
            return values, accuracy
        xp = array_namespace(values)
        kind = xp.float32 if self.release.single else self.table.values.dtype
        if values.dtype == kind:
            return values, accuracy
        limits, size = xp.finfo(kind), xp.abs(values)
        beyond = (size > limits.max) | (size < limits.smallest_normal)
        if bool(xp.any(beyond & xp.isfinite(values) & (size > 0))):
            return values, accuracy  # out of range for the table's type
        stated = None if accuracy is None else accuracy + float(limits.eps)
        return xp.astype(values, kind), stated


# Questions to one chunk, as functions that can be sent to where it is ---------------------------


def _of_each_chunk(
    chunk: Chunk, release: MeasuredRelease, ask: Callable[[ReleaseJacobian], Answer]
) -> Answer:
    return ask(release.jacobian(chunk))


def _of_each_record(jacobian: ReleaseJacobian, question: str, unknowns: Unknowns) -> Array:
    """Return the answer on every record of a Jacobian, ``(n,)``, or ``(n, t)`` for cells."""
    if question == "fil":
        return _root(jacobian.row_norms(unknowns))
    if question == "dfil":
        return _root(jacobian.row_traces(unknowns) / unknowns.count(jacobian))
    if question == "cells":
        return _root(jacobian.cell_information(unknowns))
    if question == "cramer_rao":
        return inverse_traces(jacobian, unknowns)[0] / unknowns.count(jacobian)
    return inverses(jacobian, unknowns)[0]


def _with_accuracy(
    jacobian: ReleaseJacobian, question: str, unknowns: Unknowns
) -> tuple[Array, Array]:
    """Return the answer on every record, and the relative errors if known."""
    if not jacobian.accuracy.stated:
        return _of_each_record(jacobian, question, unknowns), None
    count = unknowns.count(jacobian)
    if question == "cramer_rao":
        traces, accuracy = inverse_traces(jacobian, unknowns)
        return traces / count, accuracy
    if question == "cramer_rao_cells":
        return inverses(jacobian, unknowns)
    if question == "cells":
        squared = jacobian.cell_information(unknowns)
        return _root(squared), jacobian.accuracy.cells(squared, unknowns)
    if question == "dfil":
        squared = jacobian.row_traces(unknowns)
        return _root(squared / count), jacobian.accuracy.rows(squared, unknowns)
    squared = jacobian.row_norms(unknowns)
    return _root(squared), jacobian.accuracy.rows(squared, unknowns)


def _information(
    chunk: Chunk, release: MeasuredRelease, unknowns: Unknowns, row: int
) -> list[Array]:
    here = row - chunk.start
    if not 0 <= here < len(chunk):
        return []
    return [release.jacobian(chunk).row_information(unknowns)(slice(here, here + 1))[0, :, :]]


@dataclass(frozen=True)
class Block:
    """What was found about some records together; two chunks add up."""

    answer: Any  # a norm, the sums it is made of, or the trace of the information
    rows: int
    terms: Array | None  # those of the errors, if they are to be stated

    def __add__(self, other: Block) -> Block:
        terms = None if self.terms is None else self.terms + other.terms
        return Block(self.answer + other.answer, self.rows + other.rows, terms)


class BlockAnswers(dict[Any, Any]):
    """What was found about every block of records; two chunks add up block by block."""

    most: int = _FEWEST  # the most blocks that are held: those that come first in order
    seen: frozenset[Any] = frozenset()

    def __init__(self, *found: Any) -> None:
        super().__init__(*found)
        self.accuracy: dict[Any, float] = {}

    def accuracy_of(self, blocks: Sequence[Any]) -> np.ndarray | None:
        """Return the relative errors of η of some blocks, where they were stated."""
        return np.array([self.accuracy[block] for block in blocks]) if self.accuracy else None

    def __add__(self, other: BlockAnswers) -> BlockAnswers:
        both = BlockAnswers(self)
        for block, answer in other.items():
            both[block] = both[block] + answer if block in both else answer
        both.most, both.seen = max(self.most, other.most), self.seen | other.seen
        # A block dropped here is never among the first again, however many are added.
        for block in sorted(both)[both.most :] if len(both) > both.most else ():
            del both[block]
        return both

    def take(self, other: BlockAnswers) -> None:
        """Take over what another pass found about other blocks."""
        self.update(other)
        self.accuracy.update(other.accuracy)


def _of_blocks(
    chunk: Chunk,
    release: MeasuredRelease,
    unknowns: Unknowns,
    measure: str,
    alone: bool,
    choose: Callable[[Chunk], dict[Any, np.ndarray]],
    only: Sequence[Any] | None,
) -> BlockAnswers:
    """Return the norm of each block if the chunk is the whole table; else what adds up to it."""
    jacobian, blocks = release.jacobian(chunk), choose(chunk)
    xp = array_namespace(chunk.X)
    answered = BlockAnswers()
    answered.seen = frozenset(blocks)
    if alone or measure == "dfil":
        answered.most = sys.maxsize  # a number for each block is all that is held
    else:
        answered.most = max(_FEWEST, SUMS_HELD // jacobian.size**2)
    asked = None if only is None else frozenset(only)
    wanted = [label for label in blocks if asked is None or label in asked][: answered.most]
    traces = jacobian.row_traces(unknowns) if measure == "dfil" and wanted else None
    stated = not alone and jacobian.accuracy.stated and wanted
    terms = jacobian.accuracy.row_terms(unknowns) if stated else None
    chosen = [xp.asarray(blocks[label], device=chunk.X.device) for label in wanted]
    answers: Iterable[Any]
    if traces is not None:
        answers = (float(xp.sum(traces[rows])) for rows in chosen)
    elif alone:
        answers = block_norms(jacobian, unknowns, chosen)
    else:
        answers = (jacobian.block_sums(unknowns, rows) for rows in chosen)
    for label, rows, answer in zip(wanted, chosen, answers, strict=True):
        lost = None if terms is None else xp.sum(terms[rows, :], axis=0)
        answered[label] = Block(answer, len(blocks[label]), lost)
    return answered


def _of_columns(
    chunk: Chunk,
    release: MeasuredRelease,
    questions: tuple[str, ...],
    attributes: list[Unknowns],
    choose: Callable[[Chunk], dict[Any, np.ndarray]],
) -> BlockAnswers:
    """Return the answers to the questions about each attribute on the chosen rows, if any."""
    jacobian, chosen = release.jacobian(chunk), choose(chunk).get(_ALL)
    if chosen is None:
        return BlockAnswers()
    rows = array_namespace(jacobian.X).asarray(chosen, device=jacobian.X.device)
    asked: dict[str, Callable[[list[Unknowns], Array], Any]] = {
        "column_traces": partial(column_traces, jacobian),
        "column_norms": jacobian.column_norms,
        "column_sums": jacobian.column_sums,
        "column_terms": jacobian.accuracy.column_terms,
    }
    return BlockAnswers((name, asked[name](attributes, rows)) for name in questions)


# Which records of a chunk are meant ---------------------------------------------------------------


def _chosen(chunk: Chunk, positions: np.ndarray | None) -> dict[Any, np.ndarray]:
    """Return which of some sorted positions in the table, or all, lie in the chunk."""
    if positions is None:
        return {_ALL: np.arange(len(chunk))}
    first, last = np.searchsorted(positions, [chunk.start, chunk.start + len(chunk)])
    return {_ALL: positions[first:last] - chunk.start} if first < last else {}


def _grouped(chunk: Chunk, by: str | np.ndarray) -> dict[Any, np.ndarray]:
    """Return the positions of each group, named by a column or by a label for each record."""
    if isinstance(by, str):
        labels = chunk.extra[by]
        missing = _first_missing(labels)
        if missing is not None:
            raise InputError(
                f"Column {by!r} has no value in row {chunk.start + missing:,}; leave such rows out "
                "or name a group."
            )
    else:
        labels = by[chunk.start : chunk.start + len(chunk)]
    return _positions(labels)


def _positions(labels: np.ndarray) -> dict[Any, np.ndarray]:
    """Return the positions of each label, by one sort of all."""
    known, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(1, len(known)))
    return dict(zip(known.tolist(), np.split(order, starts), strict=True))


def _sortable(labels: np.ndarray) -> np.ndarray:
    """Return labels that can be sorted: as text, if their types are mixed."""
    if labels.dtype.kind == "O":
        try:
            np.unique(labels)
        except TypeError:
            return labels.astype(str)
    return labels


def row_positions(rows: Any, count: int) -> np.ndarray:
    """Return the positions that ``rows`` names among ``count`` rows, sorted, each once."""
    positions = named_positions(rows, count)
    return positions if rows is None else np.unique(positions)


def named_positions(rows: Any, count: int) -> np.ndarray:
    """Return the positions that ``rows`` names among ``count`` rows, in the order given.

    They are whole numbers, a mask, or ``None`` for all.
    """
    if rows is None:
        return np.arange(count)
    positions = np.atleast_1d(as_numpy(rows))
    if positions.dtype == bool:
        check_length(positions, range(count), "the mask of rows")
        positions = np.flatnonzero(positions)
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise InputError("rows must be row positions (whole numbers) or a boolean mask.")
    if positions.size == 0:
        raise InputError("No row was chosen; give at least one.")
    outside = positions[(positions < -count) | (positions >= count)]
    if outside.size:
        raise InputError(f"There is no row {outside[0]}: the table has {count} rows.")
    return np.asarray(positions % count)


def group_labels(labels: Any, table: Sized, what: str = "the group labels") -> np.ndarray:
    """Return the group of every row as an array, or say which row has none."""
    values = as_numpy(labels)
    check_length(values, table, what)
    missing = _first_missing(values)
    if missing is not None:
        raise InputError(
            f"The group of row {missing} is missing; leave such rows out or name a group."
        )
    return values


def _first_missing(labels: np.ndarray) -> int | None:
    return next((i for i, v in enumerate(labels.tolist()) if v is None or v != v), None)


def _check_measure(measure: str) -> str:
    if measure not in ("fil", "dfil"):
        raise InputError(f"There is no measure {measure!r}; choose 'fil' or 'dfil'.")
    return measure


def _root(squared: Array) -> Array:
    """Return the root of a number that rounding may have left below zero."""
    xp = array_namespace(squared)
    if squared.shape and not bool(xp.any(squared < 0)):
        return xp.sqrt(squared)
    return xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))
