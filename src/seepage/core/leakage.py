"""How much a release tells about its training data: views of the table × measures of the leakage.

The Fisher information of a release about any block of the table is ``JᵀJ``, with ``J`` the
whitened Jacobian of the release (paper 001, equation 16). Two numbers are taken from it::

    FIL    η = ‖J‖₂                    the most that any direction of the block leaks
    dFIL   η̄ = ‖J‖_F / √(number of unknowns)      the average over its directions
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.attributes import Attributes
from seepage.core.jacobian import ReleaseJacobian
from seepage.core.noise import Noise
from seepage.core.result import Result
from seepage.core.row_choice import chosen_rows, rows_by_group
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.support.chunks import progress
from seepage.tables.frames import Table

Array = Any
Columns = str | int | Sequence[str | int] | None


class Leakage:
    """The leakage of one or more releases about a table.

    Each view returns a :class:`~seepage.core.result.Result`. Adversaries are assumed to know everything
    outside the view; knowing less never helps them (paper 001, equation 12).
    """

    def __init__(
        self,
        jacobian: ReleaseJacobian,
        table: Table,
        noise: tuple[Noise, ...],
        attributes: Attributes,
    ) -> None:
        self.jacobian, self.noise, self.attributes = jacobian, noise, attributes
        self.table = table

    def __repr__(self) -> str:
        n, d = self.jacobian.rows, self.jacobian.features
        noise = " and ".join(map(repr, self.noise))
        released = self.jacobian.size
        return f"<Leakage of {released} numbers with {noise} about {n} records of {d} columns>"

    def rows(
        self,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about each record: all of it, or the named columns.

        The label counts as part of the record unless columns are named; ``label`` overrides that.
        With ``simplex`` a complete one-hot attribute may only move along its simplex.
        """
        unknowns, about = self.unknowns(columns, label, simplex)
        if _check_measure(measure) == "fil":
            squared = self.jacobian.row_norms(unknowns)
        else:
            count = self.jacobian.unknown_count(unknowns)
            squared = self.jacobian.row_traces(unknowns) / count
        return self._result(squared, "rows", measure, about, index=self.table.index)

    def labels(self, measure: str = "fil") -> Result:
        """Return the leakage about each record's label alone, its columns known."""
        return self.rows(columns=[], label=True, measure=measure)

    def cells(self, columns: Columns = None) -> Result:
        """Return the leakage about each single cell, all else known: one column per column.

        A cell is one number, for which FIL and dFIL are the same.
        """
        unknowns, _ = self.unknowns(columns, False, False)
        names = self.table.names
        if unknowns.columns is not None:
            names = tuple(names[j] for j in unknowns.columns)
        squared = self.jacobian.cell_information(unknowns)
        return self._result(
            squared, "cells", "fil", "one cell at a time", index=self.table.index, names=names
        )

    def columns(self, rows: Any = None, measure: str = "fil", simplex: bool = False) -> Result:
        """Return the leakage about each attribute over all records, or over the given ones.

        Columns that were declared to belong together count as one attribute.
        """
        which = self.row_positions(rows)
        names, unknowns = self.attributes.each(simplex)
        if _check_measure(measure) == "fil":
            squared = self.jacobian.column_norms(unknowns, which)
        else:
            squared = self.jacobian.column_traces(unknowns, which)
            counts = [u.features(self.jacobian.features) * which.shape[0] for u in unknowns]
            xp = array_namespace(squared)
            squared = squared / xp.asarray(counts, dtype=squared.dtype, device=squared.device)
        about = "one attribute of all records" if rows is None else "one attribute of some records"
        return self._result(squared, "columns", measure, about, index=np.asarray(names, object))

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
            The group of every record.
        columns, label, measure, simplex
            As for :meth:`rows`.
        only
            The groups to report, where not all are wanted.
        """
        unknowns, about = self.unknowns(columns, label, simplex)
        groups = rows_by_group(labels, self.table, only)
        values = self._blocks(unknowns, list(groups.values()), measure)
        index = np.empty(len(groups), object)
        index[:] = list(groups)
        return self._result(values, "groups", measure, about, index=index)

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
        which = self.row_positions(rows)
        about = f"{about} of {which.shape[0]} records"
        return self._result(self._blocks(unknowns, [which], measure)[0], "subset", measure, about)

    def dataset(self, measure: str = "fil") -> Result:
        """Return the leakage about the whole table with its labels as one number."""
        unknowns, about = self.unknowns(None, True, False)
        values = self._blocks(unknowns, [self.row_positions(None)], measure)
        return self._result(values[0], "dataset", measure, f"{about} of all records")

    def _blocks(self, unknowns: Unknowns, blocks: list[Array], measure: str) -> Array:
        xp = array_namespace(self.jacobian.X)
        if _check_measure(measure) == "fil":
            squared = [self.jacobian.block_norm(unknowns, b) for b in progress(blocks, "groups")]
        else:
            traces = self.jacobian.row_traces(unknowns)
            count = self.jacobian.unknown_count(unknowns)
            squared = [float(xp.sum(traces[b])) / (count * b.shape[0]) for b in blocks]
        return xp.asarray(squared, dtype=self.jacobian.X.dtype, device=self.jacobian.X.device)

    def information(self, row: int, columns: Columns = None, label: bool | None = None) -> Array:
        """Return the information matrix ``I`` about one record, in the table's library.

        Its rows and columns are the unknowns: the table's columns (or the named ones), then the
        label where it is unknown. It is what :func:`seepage.bounds.biased` and
        :func:`seepage.bounds.van_trees` start from.
        """
        unknowns, _ = self.unknowns(columns, label)
        start = int(self.row_positions([row])[0])
        return self.jacobian.row_information(unknowns)(slice(start, start + 1))[0, :, :]

    def unknowns(
        self, columns: Columns, label: bool | None = None, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return what ``columns`` and ``label`` name, as directions of a record and in words."""
        unknown_label = columns is None if label is None else bool(label)
        return self.attributes.unknowns(columns, unknown_label, simplex)

    def row_positions(self, rows: Any) -> Array:
        """Return the positions that ``rows`` names: whole numbers, a mask, or ``None`` for all."""
        return chosen_rows(rows, self.table)

    def _result(
        self,
        squared: Array,
        view: str,
        measure: str,
        about: str,
        index: np.ndarray | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Result:
        xp = array_namespace(squared)
        values = xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))
        return Result(
            values,
            view,
            measure,
            about=about,
            index=index,
            names=names,
            library=self.table.library,
            noise=self.noise,
        )


def _check_measure(measure: str) -> str:
    if measure not in ("fil", "dfil"):
        raise InputError(f"There is no measure {measure!r}; choose 'fil' or 'dfil'.")
    return measure
