"""What an audit asks about every record of data that are read in chunks, before the pass begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seepage.auditing.measures.measure import INVERSE_WORK, errors_of
from seepage.auditing.measures.records import NUMBERS
from seepage.auditing.measures.subject import Attribute
from seepage.core.jacobian import Release, ReleaseJacobian
from seepage.core.unknowns import Unknowns
from seepage.tables.source import Chunk

LABEL = Unknowns((), True)


@dataclass(frozen=True, eq=False)
class Questions:
    """What is asked about every record: fixed before the pass begins.

    Of every record there are these numbers, at σ = 1, in this order: those of
    :data:`seepage.auditing.measures.records.NUMBERS`, and the least error of an attack on each attribute,
    the label last.

    Parameters
    ----------
    release
        The model and its noise.
    attributes
        The caller's columns.
    basis
        How the features move with them; see :meth:`Subject.basis`.
    label_step
        The step of the label that counts as one.
    groups
        Columns to compare groups by.
    sensitive
        Columns of which every record's error is told.
    rows
        How many rows there are.
    """

    release: Release
    attributes: tuple[Attribute, ...]
    basis: np.ndarray | None
    label_step: float
    groups: tuple[str, ...]
    sensitive: tuple[str, ...]
    rows: int

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the Jacobian about a chunk, with the label in steps of its spread."""
        return self.release.jacobian(chunk).with_label_step(self.label_step)

    @property
    def every(self) -> Unknowns:
        """A whole record with its label."""
        return Unknowns(None, True, self.basis)

    @property
    def features(self) -> Unknowns:
        """A record without its label."""
        return Unknowns(None, False, self.basis)

    def asked(self) -> list[Unknowns]:
        """Return the unknowns of every column."""
        return [
            a.unknowns() if a.plain_column() is None else Unknowns(a.columns, False)
            for a in self.attributes
        ]

    @property
    def count(self) -> int:
        """How many numbers there are of every record."""
        return len(NUMBERS) + len(self.attributes) + 1

    def told(self) -> tuple[int, ...]:
        """Return which numbers a table of records has: the first four and the sensitive errors."""
        names = [a.name for a in self.attributes]
        errors = [names.index(n) if n in names else len(names) for n in self.sensitive]
        return (*range(len(NUMBERS)), *(len(NUMBERS) + k for k in errors))

    def answer(self, jacobian: ReleaseJacobian, which: Sequence[int]) -> np.ndarray:
        """Return some of the numbers of every record, ``(m, len(which))``."""
        out = np.empty((jacobian.rows, len(which)))
        first = len(NUMBERS)
        last = first + len(self.attributes)
        label = root(jacobian.row_norms(LABEL)) if {2, last} & set(which) else None
        plain = {}
        for k, number in enumerate(which):
            if number < 2:
                out[:, k] = root(jacobian.row_norms((self.every, self.features)[number]))
            elif label is not None and number in (2, last):
                out[:, k] = label if number == 2 else errors_of(label**2) * self.label_step
            elif number == 3:
                out[:, k] = self._exact(jacobian)
            elif self.attributes[number - first].plain_column() is not None:
                plain[k] = self.attributes[number - first]
            else:
                attribute = self.attributes[number - first]
                norms = np.asarray(jacobian.row_norms(attribute.unknowns()))
                out[:, k] = errors_of(norms) * attribute.scale
        if plain:
            columns = tuple(int(a.columns[0]) for a in plain.values())
            information = np.asarray(jacobian.cell_information(Unknowns(columns, False)))
            factors = np.asarray([float(a.directions[0, 0]) ** 2 for a in plain.values()])
            out[:, list(plain)] = errors_of(information * factors)
        return out

    def _exact(self, jacobian: ReleaseJacobian) -> np.ndarray:
        """Return ``√(Tr(I⁻¹)/t)`` of every record, or NaN where that takes too long."""
        unknowns = self.features
        count = unknowns.features(jacobian.features)
        if unknowns.basis is not None and np.linalg.matrix_rank(unknowns.basis) < count:
            return np.full(jacobian.rows, np.inf)
        if self.rows * jacobian.inverse_work(unknowns) > INVERSE_WORK:
            return np.full(jacobian.rows, np.nan)
        return np.asarray(np.sqrt(np.asarray(jacobian.inverse_traces(unknowns)) / count))


def root(squared: object) -> np.ndarray:
    """Return the root of what rounding may have left below zero."""
    return np.asarray(np.sqrt(np.maximum(np.asarray(squared, dtype=float), 0.0)))
