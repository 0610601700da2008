"""The leakage of a release about its training data, by view of the table and by measure.

The Fisher information of a release about any block of the table is ``JᵀJ``, with ``J`` the whitened
Jacobian of the release (Hannun et al. 2021, equation 16). Two measures are computed from ``J``::

    FIL    η = ‖J‖₂                               the direction of the block that leaks most
    dFIL   η̄ = ‖J‖_F / √(number of unknowns)      the root mean square over its directions

Every view is a query, computed one chunk of the table at a time (:mod:`seepage.core.questions`); a
table in memory is a single chunk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
from array_api_compat import array_namespace

from seepage.core.finite_changes import Reruns
from seepage.core.jacobian import (
    Attributes,
    MeasuredRelease,
    Refits,
    ReleaseJacobian,
    Unknowns,
)
from seepage.core.noise import Noise
from seepage.core.people import Identities, Together
from seepage.core.questions import (
    ALL,
    AttributeBlocks,
    Blocks,
    BlocksByName,
    Information,
    ask,
    chosen,
    first_missing,
    grouped,
)
from seepage.core.result import (
    CLASS_WEIGHTS,
    EachRecord,
    RecordNumbers,
    RecordStream,
    Result,
    held_sentences,
    less,
    numbers_alone,
    root,
    warned,
    write_records,
)
from seepage.core.risk_views import (
    Guess,
    Membership,
    Prior,
    among_levels,
    guess_among,
    membership,
    to_within,
    way_of,
)
from seepage.errors import InputError, nearest
from seepage.support.lazy import offered
from seepage.support.number_check import check_choice
from seepage.tables.source import (
    Array,
    Chunk,
    RowSource,
    Table,
    as_numpy,
    check_length,
    check_order,
    place_like,
    row_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import TypeVar  # for its default

    PerRecord = TypeVar("PerRecord", bound=Result | RecordStream, default=Result)
else:
    from typing import TypeVar

    PerRecord = TypeVar("PerRecord")

Columns = str | int | Sequence[str | int] | None
_MEASURES = ("fil", "dfil")


@dataclass(frozen=True, eq=False)
class LeakageInputs:
    """The inputs of a leakage measurement, for a report.

    Parameters
    ----------
    model, X, y
        The caller's arguments, unchanged.
    options
        Further arguments of :func:`seepage.leakage` that an audit also accepts, by name.
    """

    model: Any
    X: Any
    y: Any
    options: Mapping[str, Any]


@dataclass(eq=False, repr=False)
class Leakage(Generic[PerRecord]):
    """The leakage of one or more releases about a table, in memory or read in chunks.

    Each view returns a :class:`~seepage.core.result.Result`. For data read in chunks, a view with
    one number per record returns a :class:`~seepage.core.result.RecordStream`, whose numbers
    are computed on demand. All other views are computed immediately, usually in one pass over the
    data. The adversary is assumed to know everything outside the view, which is the worst case
    (Hannun et al. 2021, equation 12).

    Parameters
    ----------
    release
        The release or releases.
    source
        The source of the records.
    noise
        The noise of the release, or of each of several releases.
    attributes
        The columns, and which of them form one attribute.
    notes
        Further assumptions, as sentences, which every result states.
    person
        The person of each record, if known; risks are then per person.
    held
        Values learnt from the data that derivatives treat as constants: see ``Result.held``.
    procedure
        The whole fitting procedure, to be rerun on changed records, if known.
    """

    release: MeasuredRelease
    source: RowSource
    noise: tuple[Noise, ...]
    attributes: Attributes
    notes: tuple[str, ...] = ()
    person: Identities | None = None
    held: tuple[str, ...] = ()
    procedure: Reruns | None = None
    inputs: LeakageInputs | None = field(default=None, init=False)

    def _repr_html_(self) -> str:
        """Return the notebook display: a line of text and a histogram of the records' η."""
        text = f"<p><code>{escape(repr(self))}</code></p>"
        try:
            return text + self.records().histogram("FIL η of the records")
        except InputError as problem:  # of a procedure without a derivative
            return f"{text}<p>{escape(str(problem))}</p>"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the leakage about every record in descending order, and label the most exposed.

        The call is equivalent to ``leak.records().plot(ax)`` and returns the matplotlib axes.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> X, y = np.eye(40), np.arange(40.0)
        >>> model = sp.glm.LinearRegression(l2=1.0).fit(X, y)
        >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
        >>> leak.plot().get_ylabel()
        'FIL η'
        """
        axes: Axes = self.records().plot(ax)
        return axes

    def report(self, folder: str | os.PathLike[str] = "seepage-audit") -> Path:
        """Audit the model with this noise, write a report, and return the path of its page.

        The call is equivalent to ``sp.report(sp.audit(model, X, y, noise=…), folder)``; only the
        report's owner can read it. The model must be linear, with Gaussian noise and a table in
        memory.

        Examples
        --------
        >>> import tempfile, seepage as sp
        >>> wine = sp.data.load_bundled("wine")
        >>> model = sp.glm.LogisticRegression(l2=0.1).fit(wine.X, wine.y == 0)
        >>> leak = sp.leakage(model, wine.X, wine.y == 0, noise=sp.Gaussian(0.1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     leak.report(f"{folder}/report").name
        'report.html'
        """
        page: Path = offered("report")(self, folder)
        return page

    def __repr__(self) -> str:
        noise = " and ".join(map(repr, self.noise))
        what = f"{self.release.template.size} numbers"
        if len(self.noise) == 1 and self.noise[0].on:
            what = "predictions"
        return (
            f"<Leakage of {what} with {noise} about "
            f"{len(self.source)} records of {len(self.source.names)} columns{self.source.manner}>"
        )

    @property
    def jacobian(self) -> ReleaseJacobian:
        """The Jacobian of the release with respect to all records of a table in memory."""
        self.source.whole("the Jacobian with respect to all records")
        return self.release.template

    @property
    def table(self) -> Table:
        """The table, if it is in memory."""
        return self.source.whole("the whole table")

    def refits(self) -> Refits:
        """Return the operator that refits a single release with a record changed."""
        if len(self.noise) != 1:
            raise InputError(
                "Refits with a changed record are possible only for a single release; measure the "
                "releases one by one."
            )
        self.source.whole("all records")
        return self.release.refits()

    # Views ------------------------------------------------------------------------------------

    def records(
        self,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> PerRecord:
        """Return the leakage about each record as a whole, or about the named columns.

        The label counts as part of the record unless columns are named; ``label`` overrides this.
        With ``simplex``, the columns of a complete one-hot attribute may change only so that their
        sum stays the same.
        """
        if measure not in _MEASURES:
            check_choice(measure, "measure", _MEASURES)
        unknowns, about = self.unknowns(columns, label, simplex)
        return self.per_record(measure, unknowns, "rows", about)

    rows = records

    def labels(self, measure: str = "fil") -> PerRecord:
        """Return the leakage about each record's label, assuming that its columns are known."""
        return self.records(columns=[], label=True, measure=measure)

    def cells(self, columns: Columns = None) -> PerRecord:
        """Return the leakage about each cell, assuming that all other cells are known.

        The result has one column for each named column (default: all). For a single number, FIL and
        dFIL are equal.
        """
        unknowns, _ = self.unknowns(columns, False)
        return self.per_record("cells", unknowns, "cells", "one cell at a time")

    def columns(self, rows: Any = None, measure: str = "fil", simplex: bool = False) -> Result:
        """Return the leakage about each attribute over all records, or over some of them.

        ``rows`` are positions or a boolean mask. Columns of one attribute, such as the one-hot
        columns of a category, are measured together.
        """
        check_choice(measure, "measure", _MEASURES)
        choose = partial(chosen, positions=self._positions(rows))
        names, unknowns = self.attributes.each(simplex)
        held = self.held_about(label=False)
        question = AttributeBlocks(tuple(unknowns), measure, choose, len(self.source))
        answers = ask(self.source, self.release, {"columns": question}, "columns")
        squared, accuracy = answers["columns"]
        about = "one attribute of all records" if rows is None else "one attribute of some records"
        index = np.asarray(names, object)
        return self._result(squared, "columns", measure, about, accuracy, held, index)

    def groups(
        self,
        labels: Any,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
        only: Sequence[Any] | None = None,
    ) -> Result:
        """Return the leakage about each group of records as a whole, sorted by the groups' labels.

        Parameters
        ----------
        labels
            The group of every record, or the name of a column with the groups, which need not be a
            feature.
        columns, label, measure, simplex
            As for :meth:`records`.
        only
            The groups to report, in this order; by default all, sorted.
        """
        by = labels if isinstance(labels, str) else _sortable(group_labels(labels, self.source))
        return self._groups("groups", by, columns, label, measure, simplex, only)

    def people(
        self,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
        only: Sequence[Any] | None = None,
    ) -> Result:
        """Return the leakage about all records of each person as a whole, sorted by identity.

        The adversary knows every record of all other people. Identities are those passed to
        :func:`seepage.leakage` as ``person``. All arguments are as for :meth:`groups`.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> X, y = np.eye(4), np.arange(4.0)
        >>> model = sp.glm.LinearRegression(l2=1.0).fit(X, y)
        >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0), person=["a", "b", "b", "c"])
        >>> leak.people()
        <3 people: FIL η (exact) about all columns and the label: ...
        """
        if self.person is None:
            raise InputError(
                "The person of each record is not known; pass person= to sp.leakage: an identity "
                "for every record, or the name of a column."
            )
        return self._groups("people", self.person.by, columns, label, measure, simplex, only)

    def _groups(
        self,
        view: str,
        by: str | np.ndarray,
        columns: Columns,
        label: bool | None,
        measure: str,
        simplex: bool,
        only: Sequence[Any] | None,
    ) -> Result:
        """Return the leakage about each set of records with the same label, sorted by label."""
        unknowns, about = self.unknowns(columns, label, simplex)
        extra = (by,) if isinstance(by, str) else ()
        wanted = None if only is None else frozenset(only)
        answers = self._blocks(unknowns, measure, partial(grouped, by=by), extra, wanted)
        for name in only or ():
            if name not in answers.seen:
                unit = "in the group" if view == "groups" else "about the person"
                known = sorted(answers.seen, key=str)
                first = ", ".join(repr(k) if isinstance(k, str) else str(k) for k in known[:5])
                more = f" and {len(known) - 5} more" if len(known) > 5 else ""
                advice = nearest(name, known) or f"; choose from {first}{more}"
                raise InputError(f"No record is {unit} {name!r}{advice}.")
        names = sorted(answers) if only is None else list(only)
        index = np.fromiter(names, object)
        blocks = [answers[name] for name in names]
        squared = place_like([block.squared for block in blocks], self.release.template.X)
        errors = [block.error for block in blocks]
        accuracy = None if None in errors else np.array(errors)
        held = self.held_about(unknowns.label)
        return self._result(squared, view, measure, about, accuracy, held, index)

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

        The rows and columns of ``I`` are the unknowns: the table's columns (or the named ones),
        then the label if it is unknown. :func:`seepage.bounds.biased` and
        :func:`seepage.bounds.van_trees` take this matrix as input.
        """
        unknowns, _ = self.unknowns(columns, label)
        position = int(row_positions([row], len(self.source))[0])
        question = {"record": Information(unknowns, position)}
        return ask(self.source, self.release, question, "one record")["record"][0]

    # Risks --------------------------------------------------------------------------------------

    def membership(
        self,
        rows: Any = None,
        *,
        groups: Any = None,
        exact: bool | int = False,
        refit: Callable[[np.ndarray], Any] | str | None = None,
    ) -> Membership:
        """Return the membership risk: the μ of every record.

        If identities are known, the result is the μ of every person: all records of a person are
        removed together. The adversary knows all other records and may be biased or unbiased. For
        least squares, the result is exact, in closed form. Logistic, Poisson and softmax models use
        a certified expansion, with refits for the most exposed and the least certain records.
        Families without a self-concordance constant use refits.

        The result is a :class:`~seepage.core.risk_views.Membership`. Data read in chunks are
        measured without refits, except for people or groups whose rows together fit in half a
        gigabyte.

        Parameters
        ----------
        rows
            The records, by position or as a mask; by default, all records. If identities are known,
            the result covers all people who have any of these records.
        groups
            The group of every record: all records of a group are removed together, regardless of
            the person.
        exact
            ``True`` refits the model for every record, regardless of their number. A number limits
            how many records are refitted, the most exposed and the least certain first.
        refit
            By default, everything learnt from the data is learnt again without the record. Class
            weights are recomputed in closed form. Scaling, levels, selected columns and
            cross-validated penalties are learnt again by refitting the whole pipeline or search.
            ``"model"`` keeps all of these fixed, as Hannun et al. 2021 do. ``"pipeline"`` refits
            the pipeline, even if many refits are needed. A function defines any other procedure:
            given the positions of the remaining records, it returns the numbers that would be
            released. ``mu.held`` of the result lists everything held fixed.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((100, 3))
        >>> y = (X[:, 0] + rng.standard_normal(100) > 0).astype(int)
        >>> model = sp.glm.LogisticRegression(l2=1e-2).fit(X, y)
        >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
        >>> leak.membership()
        <100 records: membership inference, exact: success rate ...
        """
        which = self._positions(rows)
        if groups is not None:
            if rows is not None:
                raise InputError(
                    "All records of a group are removed together, so rows= and groups= cannot be "
                    "combined; leave one of them out."
                )
            labels = _sortable(group_labels(groups, self.source))
            return membership(self, None, Together.of("groups", labels), exact, refit)
        people = None if self.person is None else self.person.together.holding(which)
        return membership(self, which, people, exact, refit)

    def guess(
        self,
        column: str | int | None = None,
        prior: Prior = "frequencies",
        *,
        rows: Any = None,
        exact: bool | int = False,
        precision: float = 1e-5,
        refit: str | None = None,
    ) -> Guess:
        """Return the attribute-inference risk of a category or class, for every record.

        The adversary knows all other records and all other values of this record, and makes the
        Bayes-optimal guess. The result includes the success rate without the release, for
        comparison. If identities are known, a column with one value per person is an attribute of
        the person: it is guessed and changed in all records of the person together. Any other
        column is guessed for one record at a time, with the person's other records known.

        The result is a :class:`~seepage.core.risk_views.Guess`. For data read in chunks, refits are
        limited as for :meth:`membership`.

        Parameters
        ----------
        column
            The category (a column, or an attribute of one-hot columns); by default the label.
        prior
            The adversary's prior. With ``"equal"``, all levels are equally likely.
            ``"frequencies"`` uses the levels' frequencies in the table (among people, if the column
            belongs to a person). ``"model"`` uses the prediction of the model fitted without this
            record. Alternatively, give one probability per level, for all records or for each
            record.
        rows, exact
            As for :meth:`membership`.
        precision
            The target error of the success rate with more than three levels, for which the integral
            has no closed form.
        refit
            The values that are estimated again for each level, as for :meth:`membership`:
            ``"model"`` keeps the preprocessing and all choices fixed.
        """
        which, way = self._positions(rows), way_of(self, refit)
        changes = way.changes()
        candidates = among_levels(self, changes, column, precision)
        return guess_among(self, changes, candidates, [prior], which, exact, way=way)[0]

    def within(
        self,
        column: str | int | None,
        tolerance: float,
        prior: Prior = "frequencies",
        *,
        values: Any = None,
        rows: Any = None,
        exact: bool | int = False,
        refit: str | None = None,
    ) -> Guess:
        """Return the success rate of the best guess of a number to within a tolerance.

        The result is of the same kind as that of :meth:`guess`.

        Parameters
        ----------
        column
            The column, or ``None`` for a numeric label.
        tolerance
            The largest error at which a guess counts as correct, in the unit of the column.
        prior
            The adversary's prior: ``"equal"`` for equal probabilities over the column's range,
            ``"frequencies"`` for the values' frequencies in the table, ``"model"`` for the
            prediction of the model fitted without this record, or one probability for each of
            ``values``.
        values
            The candidate values; by default those of the table (its quantiles, if there are many)
            or, with the prior ``"equal"``, a grid over their range.
        rows, exact, refit
            As for :meth:`guess`.
        """
        which, way = self._positions(rows), way_of(self, refit)
        changes = way.changes()
        candidates = to_within(self, changes, column, tolerance, values, prior)
        return guess_among(self, changes, candidates, [prior], which, exact, way=way)[0]

    def write_rows(
        self,
        path: str | os.PathLike[str],
        measures: Sequence[str] = ("fil", "dfil", "cramer_rao"),
        columns: Columns = None,
        label: bool | None = None,
    ) -> Path:
        """Write several measures of every record to Parquet, in one pass over the data.

        Parameters
        ----------
        path
            The file (for Dask data, a new folder of files). It is written completely or not at all,
            and only its owner can read it.
        measures
            Any of ``fil``, ``dfil`` and ``cramer_rao`` (the exact bound on the mean squared error
            per unknown, ``Tr(I⁻¹)/d``): the columns of the file, after ``row``.
        columns, label
            As for :meth:`records`; for ``cramer_rao``, the label is known unless ``label`` is
            given.
        """
        asked = [measures] if isinstance(measures, str) else list(measures)
        functions: dict[tuple[str, ...], Callable[[Chunk], Array]] = {}
        for measure in asked:
            check_choice(measure, "measure", (*_MEASURES, "cramer_rao"))
            exact = measure == "cramer_rao"
            unknowns, _ = self.unknowns(columns, bool(label) if exact else label)
            question = EachRecord(measure, unknowns, len(self.source), stated=False)
            self.source.prepare(partial(question.numbers, self.release.template))
            function = partial(_of_chunk, release=self.release, question=question)
            functions[(measure,)] = partial(numbers_alone, function=function)
        if not functions:
            raise InputError("No measure was named; name at least one of fil, dfil and cramer_rao.")
        return write_records(self.source, path, functions)

    # Shared by views and bounds -----------------------------------------------------------------

    def unknowns(
        self, columns: Columns, label: bool | None = None, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return the unknowns that ``columns`` and ``label`` select, and their description."""
        return self.attributes.unknowns(columns, label, simplex)

    def held_about(self, label: bool) -> tuple[str, ...]:
        """Return the values held fixed; class weights are included only if the label is unknown."""
        return self.held if label else less(self.held, [CLASS_WEIGHTS])

    def assumptions(self, label: bool = True) -> tuple[str, ...]:
        """Return the assumptions behind the derivatives, as sentences."""
        return (*held_sentences(self.held_about(label)), *self.notes)

    def row_positions(self, rows: Any) -> Array:
        """Return the positions that ``rows`` names: whole numbers, a mask, or ``None`` for all."""
        like = self.release.template.X
        positions = row_positions(rows, len(self.source), self.source)
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
        """Return one number per record, or one per cell.

        Parameters
        ----------
        question
            One of ``fil``, ``dfil``, ``cells``, ``cramer_rao`` (``Tr(I⁻¹)`` over the number of
            unknowns) and ``cramer_rao_cells`` (the diagonal of ``I⁻¹``).
        unknowns
            The unknowns of a record.
        view, about, measure, kind, assumptions
            The fields of the result. If ``question`` is a measure, it replaces ``measure``.
        """
        names = None
        if view == "cells":
            which = range(len(self.source.names)) if unknowns.columns is None else unknowns.columns
            names = tuple(self.source.names[j] for j in which)
        if question in ("fil", "dfil"):
            measure = question
        asked = EachRecord(question, unknowns, len(self.source))
        held = self.held_about(unknowns.label)
        stream = RecordStream(
            self.source,
            partial(_of_chunk, release=self.release, question=asked),
            view,
            measure,
            about,
            kind,
            names,
            (*held_sentences(held), *self.notes, *assumptions),
            self.noise,
            held,
        )
        if not self.source.lazy:
            return cast(PerRecord, self._narrowed(stream.result()))
        # The template first: what all records have in common is then kept and passed on.
        self.source.prepare(partial(asked.numbers, self.release.template))
        return cast(PerRecord, stream)

    def _one_block(
        self, unknowns: Unknowns, which: np.ndarray | None, measure: str, view: str, about: str
    ) -> Result:
        block = self._blocks(unknowns, measure, partial(chosen, positions=which))[ALL]
        squared = place_like(block.squared, self.release.template.X)
        held = self.held_about(unknowns.label)
        return self._result(squared, view, measure, about, block.error, held)

    def _blocks(
        self,
        unknowns: Unknowns,
        measure: str,
        choose: Callable[[Chunk], dict[Any, np.ndarray]],
        extra: Sequence[str] = (),
        only: frozenset[Any] | None = None,
    ) -> BlocksByName:
        """Return the squared measure of each block of records that ``choose`` selects."""
        check_choice(measure, "measure", _MEASURES)
        question = Blocks(unknowns, measure, choose, len(self.source), only)
        answers = ask(self.source, self.release, {"blocks": question}, "groups", extra)
        blocks: BlocksByName = answers["blocks"]
        return blocks

    def _positions(self, rows: Any) -> np.ndarray | None:
        return None if rows is None else row_positions(rows, len(self.source), self.source)

    def _result(
        self,
        squared: Array,
        view: str,
        measure: str,
        about: str,
        accuracy: Any,
        held: tuple[str, ...],
        index: np.ndarray | None = None,
    ) -> Result:
        result = Result(
            root(squared),
            view,
            measure,
            about=about,
            index=index,
            library=self.source.library,
            noise=self.noise,
            accuracy=accuracy,
            assumptions=(*held_sentences(held), *self.notes),
            held=held,
        )
        return warned(self._narrowed(result))

    def _narrowed(self, result: Result) -> Result:
        """Return the result in the table's precision (or in float32), unless it is out of range."""
        values, xp = result.values, array_namespace(result.values)
        kind = xp.float32 if self.release.single else self.source.dtype
        if values.dtype == kind:
            return result
        limits, size = xp.finfo(kind), xp.abs(values)
        beyond = (size > limits.max) | (size < limits.smallest_normal)
        if bool(xp.any(beyond & xp.isfinite(values) & (size > 0))):
            return result  # out of range for the table's type
        stated = None if result.accuracy is None else result.accuracy + float(limits.eps)
        return replace(result, values=xp.astype(values, kind), accuracy=stated)


def _of_chunk(chunk: Chunk, release: MeasuredRelease, question: EachRecord) -> RecordNumbers:
    values, accuracy = question.numbers(release.jacobian(chunk))
    return RecordNumbers(values, accuracy, chunk.start, question.rows)


def _sortable(labels: np.ndarray) -> np.ndarray:
    """Return labels that can be sorted; mixed types become text."""
    if labels.dtype.kind == "O":
        try:
            np.unique(labels)
        except TypeError:
            return labels.astype(str)
    return labels


def row_positions(rows: Any, count: int, table: Table | RowSource | None = None) -> np.ndarray:
    """Return the sorted, distinct positions that ``rows`` selects among ``count`` rows.

    If both the mask and the table have row labels, the labels must match.
    """
    positions = named_positions(rows, count, table)
    return positions if rows is None else np.unique(positions)


def named_positions(rows: Any, count: int, table: Table | RowSource | None = None) -> np.ndarray:
    """Return the positions that ``rows`` selects among ``count`` rows, in the order given.

    ``rows`` contains row positions, or is a boolean mask, or ``None`` for all. If both a mask and
    the table have row labels, the labels must match.
    """
    if rows is None:
        return np.arange(count)
    positions = np.atleast_1d(as_numpy(rows))
    if positions.dtype == bool:
        check_length(positions, range(count), "the mask of rows")
        if table is not None:
            check_order(row_labels(rows), table, "the mask of rows")
        positions = np.flatnonzero(positions)
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise InputError("rows must be row positions (whole numbers) or a boolean mask.")
    if positions.size == 0:
        raise InputError("No row was selected; select at least one.")
    outside = positions[(positions < -count) | (positions >= count)]
    if outside.size:
        raise InputError(f"There is no row {outside[0]}; choose rows from 0 to {count - 1}.")
    return np.asarray(positions % count)


def group_labels(
    labels: Any, table: Table | RowSource, what: str = "the group labels"
) -> np.ndarray:
    """Return the group of every row as an array; a missing group raises an error."""
    values = as_numpy(labels)
    check_length(values, table, what)
    check_order(row_labels(labels), table, what)
    missing = first_missing(values)
    if missing is not None:
        raise InputError(f"Row {missing} has no group; leave such rows out, or give each a group.")
    return values
