"""The leakage of a fitted GLM about data that are read in chunks: ``Leakage``'s views, streamed.

One pass checks the model and sums the Hessian; every question is one more pass. The mathematics is
that of the Jacobian of each chunk (:mod:`seepage.glm.jacobian.closed_form`): a record's leakage depends on
nothing but the record and the Hessian, and a block's on sums over its records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seepage.core.attributes import Attributes
from seepage.core.noise import Noise
from seepage.core.result import UNBIASED, Result
from seepage.core.row_stream import RowStream, write_rows
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError, nearest
from seepage.glm.jacobian.block_information import seen_norm
from seepage.glm.jacobian.block_sums import block_norm, column_norms
from seepage.glm.jacobian.closed_form import SingleOutputJacobian
from seepage.glm.jacobian.release import Release, release_of
from seepage.glm.streamed_questions import (
    HELD,
    Traces,
    block_sums_of,
    column_traces,
    curved_sums,
    group_sums,
    measured_rows,
    row_values,
    seen_blocks,
)
from seepage.tables.frames import Table
from seepage.tables.source import Chunk, RowSource

Columns = str | int | Sequence[str | int] | None

MEASURES = ("fil", "dfil", "cramer_rao")


def streamed_leakage(
    model: Any,
    source: RowSource,
    *,
    noise: Noise,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
) -> StreamedLeakage:
    """Measure what releasing a model tells about data that are read in chunks.

    :func:`seepage.leakage` comes here for such data, and its docstring has the parameters.
    """
    release = release_of(model, source, noise, on_mismatch)
    declared = {**source.attributes, **(attributes or {})}
    return StreamedLeakage(release, source, noise, _SourceAttributes(source, declared))


class StreamedLeakage:
    """The leakage of one release about data that are read in chunks.

    The views are those of :class:`~seepage.core.leakage.Leakage`. What has one number per record is a
    :class:`~seepage.core.row_stream.RowStream`, which is computed when it is read or written; the
    others are one pass over the data each.
    """

    def __init__(
        self, release: Release, source: RowSource, noise: Noise, attributes: Attributes
    ) -> None:
        self.release, self.source, self.noise = release, source, (noise,)
        self.attributes = attributes

    def __repr__(self) -> str:
        return (
            f"<Leakage of {self.release.template.size} numbers with {self.noise[0]!r} about "
            f"{len(self.source)} records of {len(self.source.names)} columns, read in chunks>"
        )

    def rows(
        self,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> RowStream:
        """Return the leakage about each record: all of it, or the named columns.

        ``measure`` is ``fil`` or ``dfil``; the parameters are those of :meth:`Leakage.rows`.
        """
        unknowns, about = self.unknowns(columns, label, simplex)
        return RowStream(
            self.source,
            self._ask(unknowns, _check_measure(measure)),
            "rows",
            measure,
            about,
            noise=self.noise,
        )

    def cramer_rao_rows(self, columns: Columns = None, label: bool = False) -> RowStream:
        """Return the exact Cramér–Rao bound on each record; see ``sp.bounds.cramer_rao_rows``."""
        unknowns, about = self.unknowns(columns, label)
        return RowStream(
            self.source,
            self._ask(unknowns, "cramer_rao"),
            "rows",
            "mse",
            about,
            "bound",
            assumptions=UNBIASED,
            noise=self.noise,
        )

    def labels(self, measure: str = "fil") -> RowStream:
        """Return the leakage about each record's label alone, its columns known."""
        return self.rows(columns=[], label=True, measure=measure)

    def cells(self, columns: Columns = None) -> RowStream:
        """Return the leakage about each single cell, all else known: one column per column."""
        unknowns, _ = self.unknowns(columns, False)
        which = range(len(self.source.names)) if unknowns.columns is None else unknowns.columns
        names = tuple(self.source.names[j] for j in which)
        return RowStream(
            self.source,
            self._ask(unknowns, "cells"),
            "cells",
            "fil",
            "one cell at a time",
            names=names,
            noise=self.noise,
        )

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
            The file; it appears whole or not at all, readable by its owner only.
        measures
            Any of ``fil``, ``dfil`` and ``cramer_rao`` (the exact bound on the mean squared error
            per unknown, ``Tr(I⁻¹)/d``): the columns of the file, after ``row``.
        columns, label
            As for :meth:`rows`; for ``cramer_rao`` the label is known unless ``label`` is given.
        """
        asked = [measures] if isinstance(measures, str) else list(measures)
        functions = {}
        for measure in asked:
            exact = measure == "cramer_rao"
            unknowns, _ = self.unknowns(columns, bool(label) if exact else label)
            name = measure if exact else _check_measure(measure)
            functions[(measure,)] = self._ask(unknowns, name)
        if not functions:
            raise InputError(f"Name at least one measure: {', '.join(MEASURES)}.")
        return write_rows(self.source, path, functions)  # type: ignore[arg-type]

    def columns(self, measure: str = "fil", simplex: bool = False) -> Result:
        """Return the leakage about each attribute over all records.

        Columns that belong together, such as the one-hot columns of a category, count as one.
        """
        names, unknowns = self.attributes.each(simplex)
        if _check_measure(measure) == "dfil":
            ask = partial(column_traces, release=self.release, attributes=unknowns)
            traces = self.source.total(ask, "columns")
            d = len(self.source.names)
            squared = traces / np.asarray([u.features(d) * len(self.source) for u in unknowns])
        else:
            squared = self._column_norms(unknowns)
        index = np.asarray(names, object)
        return self._result(squared, "columns", measure, "one attribute of all records", index)

    def groups(
        self,
        by: str,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
        only: Sequence[Any] | None = None,
    ) -> Result:
        """Return the leakage about each group of records together, in the order of their labels.

        Parameters
        ----------
        by
            The column of the data that has the group of every record, a feature or not.
        columns, label, measure, simplex
            As for :meth:`rows`.
        only
            The groups to report, where not all are wanted.
        """
        if not isinstance(by, str):
            raise InputError("Groups of data that are read in chunks are named by their column.")
        unknowns, about = self.unknowns(columns, label, simplex)
        ask = partial(
            group_sums,
            release=self.release,
            unknowns=unknowns,
            by=by,
            measure=_check_measure(measure),
        )
        found = self.source.total(ask, "groups", extra=(by,))
        known = sorted(found)
        for wanted in only or ():
            if wanted not in found:
                raise InputError(f"No record is in the group {wanted!r}{nearest(wanted, known)}.")
        chosen = known if only is None else list(only)
        squared = np.asarray([self._finish(found[g], unknowns) for g in chosen])
        index = np.empty(len(chosen), object)
        index[:] = chosen
        return self._result(squared, "groups", measure, about, index)

    def dataset(self, measure: str = "fil") -> Result:
        """Return the leakage about the whole table with its labels as one number."""
        unknowns, about = self.unknowns(None, True)
        ask = partial(
            block_sums_of, release=self.release, unknowns=unknowns, measure=_check_measure(measure)
        )
        squared = np.asarray(self._finish(self.source.total(ask, "data set"), unknowns))
        return self._result(squared, "dataset", measure, f"{about} of all records", None)

    def unknowns(
        self, columns: Columns, label: bool | None = None, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return what ``columns`` and ``label`` name, as directions of a record and in words."""
        unknown_label = columns is None if label is None else bool(label)
        return self.attributes.unknowns(columns, unknown_label, simplex)

    def _ask(self, unknowns: Unknowns, measure: str) -> Any:
        # On the made-up row first: what all rows have in common is then kept and passed on.
        measured_rows(self.release.template, unknowns, measure)
        return partial(row_values, release=self.release, unknowns=unknowns, measure=measure)

    def _column_norms(self, attributes: list[Unknowns]) -> np.ndarray:
        template = self.release.template
        if isinstance(template, SingleOutputJacobian):
            sums = self.source.total(partial(curved_sums, release=self.release), "columns")
            return np.asarray(column_norms(template, attributes, sums))
        batch = max(1, HELD // template.size**2)
        norms: list[float] = []
        for start in range(0, len(attributes), batch):
            some = attributes[start : start + batch]
            seen = self.source.total(
                partial(seen_blocks, release=self.release, some=some), "columns"
            )
            norms.extend(seen_norm(template, one) for one in seen)
        return np.asarray(norms)

    def _finish(self, block: Any, unknowns: Unknowns) -> float:
        """Return the squared measure of a block from its sums."""
        template = self.release.template
        if isinstance(block, Traces):
            return block.trace / (template.unknown_count(unknowns) * block.rows)
        if isinstance(template, SingleOutputJacobian):
            return block_norm(template, unknowns, block)
        return seen_norm(template, block)

    def _result(
        self, squared: Any, view: str, measure: str, about: str, index: np.ndarray | None
    ) -> Result:
        return Result(
            np.sqrt(np.maximum(squared, 0.0)),
            view,
            measure,
            about=about,
            index=index,
            library="pyarrow",
            noise=self.noise,
        )


@dataclass(frozen=True)
class _Sums:
    """The least and the most of the sum of some columns over the rows, and where it is most."""

    least: float
    most: float

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(min(self.least, other.least), max(self.most, other.most))


def _row_sums(chunk: Chunk, block: tuple[int, ...]) -> _Sums:
    sums = chunk.X[:, list(block)].sum(axis=1)
    return _Sums(float(sums.min()), float(sums.max()))


class _SourceAttributes(Attributes):
    """Attributes of data that are read in chunks."""

    def __init__(self, source: RowSource, declared: Mapping[str, Sequence[str | int]]) -> None:
        self.source = source
        super().__init__(
            Table(np.zeros((1, len(source.names))), source.names, None, "pyarrow"), declared
        )

    def _check_complete(self, block: tuple[int, ...]) -> None:
        sums = self.source.total(partial(_row_sums, block=block), "one-hot columns")
        if sums.most - sums.least > 1e-6:
            name = self._owner.get(block[0], self.table.names[block[0]])
            raise InputError(
                f"The columns of {name!r} do not add up to the same in every row, so they are no "
                "complete one-hot attribute: a level was dropped and the others are free already, "
                "or they were scaled; ask with simplex=False."
            )


def _check_measure(measure: str) -> str:
    if measure not in ("fil", "dfil"):
        raise InputError(f"There is no measure {measure!r}; choose 'fil' or 'dfil'.")
    return measure
