"""Composition of independent releases about one table: their Fisher information is additive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

from array_api_compat import array_namespace

from seepage.core.finite_changes import (
    ComposedChanges,
    FiniteChanges,
)
from seepage.core.jacobian import (
    AnswerAccuracy,
    MeasuredRelease,
    ReleaseJacobian,
    Unknowns,
)
from seepage.core.leakage import Leakage
from seepage.core.people import Identities
from seepage.core.result import joined
from seepage.errors import InputError
from seepage.tables.names import counted, listed
from seepage.tables.source import Array, Chunk, RowSource


@overload
def compose(first: Leakage, *others: Leakage) -> Leakage: ...


@overload
def compose(first: Any, *others: Any) -> Any: ...


def compose(first: Any, *others: Any) -> Any:
    """Return the joint leakage of several independent releases about the same table.

    The Fisher information of independent releases is additive, exactly and for every view. All
    releases must be about the same table with the same columns in the same order (data read in
    chunks must be the same source object). For an attacker who does not know all other records,
    information is not additive, because all releases share the unknown records. The releases are
    then measured jointly, for membership only.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X, y = np.eye(3), np.array([1.0, 2.0, 3.0])
    >>> model = sp.glm.LinearRegression(l2=1.0).fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    >>> twice = sp.compose(leak, leak)
    >>> float(twice.dataset()) / float(leak.dataset())
    1.414...
    """
    if not isinstance(first, Leakage):
        return first.beside(*others)
    parts: list[MeasuredRelease] = []
    for leak in (first, *others):
        if not isinstance(leak, Leakage):
            raise InputError(
                "All releases must have the same attacker: pass the same attacker= to each of "
                "them, or to none."
            )
        _check_same_table(first, leak)
        for part in leak.release.parts:
            _add(parts, part)
    noise = tuple(noise for leak in (first, *others) for noise in leak.noise)
    together = parts[0] if len(parts) == 1 else ComposedRelease(parts)
    notes = joined(*(leak.notes for leak in (first, *others)))
    held = joined(*(leak.held for leak in (first, *others)))
    person = _same_people([leak.person for leak in (first, *others) if leak.person is not None])
    return Leakage(together, first.source, noise, first.attributes, notes, person, held)


def _same_people(given: Sequence[Identities]) -> Identities | None:
    """Return the person of each record, if known; raise an error if releases disagree."""
    if any(not given[0].same(other) for other in given[1:]):
        raise InputError(
            "These releases assign the same records to different people; pass the same person= "
            "to each."
        )
    return given[0] if given else None


def _add(parts: list[MeasuredRelease], new: MeasuredRelease) -> None:
    for k, part in enumerate(parts):
        both = part.merged(new)
        if both is not None:
            parts[k] = both
            return
    parts.append(new)


def _check_same_table(first: Leakage, other: Leakage) -> None:
    if first.source is other.source:
        return
    try:
        mine, yours = first.table, other.table
    except InputError as error:
        raise InputError(
            "Data read in chunks cannot be compared; open them once, and measure all releases with "
            "that source."
        ) from error
    if mine.values.shape != yours.values.shape or mine.names != yours.names:
        raise InputError(
            "Only releases about the same table can be composed, but one has "
            f"{counted(len(mine), 'row')} and the columns {listed(mine.names, 3)}, and another has "
            f"{counted(len(yours), 'row')} and the columns {listed(yours.names, 3)}. Measure each "
            "release on the same table."
        )
    if not _same(mine.values, yours.values):
        raise InputError(
            "Only releases about the same table can be composed, but the values of these tables "
            "differ; use the same rows in the same order, with the same preprocessing."
        )


def _same(mine: Array, yours: Array) -> bool:
    if type(mine) is not type(yours) or mine.shape != yours.shape:
        return False
    return mine is yours or bool(array_namespace(mine).all(mine == yours))


class ComposedRelease(MeasuredRelease):
    """Independent releases about the same records."""

    def __init__(self, parts: Sequence[MeasuredRelease]) -> None:
        self._parts = list(parts)
        self.template = ComposedJacobian([part.template for part in parts])
        self.single = all(part.single for part in parts)
        self.anew = tuple(w for w in parts[0].anew if all(w in part.anew for part in parts))
        self.kept = joined(*(part.kept for part in parts))

    @property
    def parts(self) -> list[MeasuredRelease]:
        """The single releases."""
        return self._parts

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the stacked Jacobians with respect to the records of a chunk."""
        if chunk.X is self.template.X:
            return self.template
        return ComposedJacobian([part.jacobian(chunk) for part in self.parts])

    def finite_changes(self) -> FiniteChanges:
        """Return how far all releases move jointly: squared distances add up."""
        return ComposedChanges([part.finite_changes() for part in self.parts])

    def changes_in_chunks(self, source: RowSource) -> Callable[[Chunk], FiniteChanges]:
        """Return a function that gives a chunk's joint finite changes of all releases."""
        parts = [part.changes_in_chunks(source) for part in self.parts]
        return partial(_composed_changes, parts=parts)


def _composed_changes(
    chunk: Chunk, parts: Sequence[Callable[[Chunk], FiniteChanges]]
) -> ComposedChanges:
    return ComposedChanges([part(chunk) for part in parts])


class ComposedJacobian(ReleaseJacobian):
    """The stacked Jacobian of independent releases: ``JᵀJ = Σ_k J_kᵀJ_k``, exactly.

    ``η² ≤ Σ η_k²`` holds for every view. (Hannun et al. 2021, section 3.1, bound the FIL of k equal
    releases by ``kη``; additive information gives ``√k·η``.) Equality holds only if all releases
    leak most in the same direction, so this class computes the norm of the sum, not the sum of the
    norms.
    """

    def __init__(self, parts: Sequence[ReleaseJacobian]) -> None:
        self.parts = list(parts)
        first = self.parts[0]
        self.X = first.X
        self.rows, self.features, self.label_size = first.rows, first.features, first.label_size
        self.size = sum(part.size for part in parts)
        self.target = first.target
        self.accuracy = LeastExact([part.accuracy for part in parts])
        self.same_label = all(_same(part.target, first.target) for part in parts)

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, added over the releases."""
        return sum(part.row_traces(unknowns) for part in self._about(unknowns))

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each cell, added over the releases."""
        return sum(part.cell_information(unknowns) for part in self.parts)

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return a function that computes the information matrices of given rows."""
        parts = [part.row_information(unknowns) for part in self._about(unknowns)]
        return lambda rows: sum(part(rows) for part in parts)

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Array], Array]]:
        """Return a function that multiplies one vector per row by the row's information."""
        parts = [part.row_operator(unknowns) for part in self._about(unknowns)]

        def operator(rows: slice) -> Callable[[Array], Array]:
            products = [part(rows) for part in parts]
            return lambda v: sum(product(v) for product in products)

        return operator

    def row_jacobians(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return the whitened Jacobians of some rows in full, concatenated over releases."""
        each = [part.row_jacobians(unknowns, rows) for part in self._about(unknowns)]
        return array_namespace(self.X).concat(each, axis=1)

    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Σ_k J_kᵀ v_k`` for the concatenated vector of all whitened releases."""
        total, start = 0.0, 0
        for part in self._about(unknowns):
            total = total + part.adjoint(v[start : start + part.size], unknowns, rows)
            start += part.size
        return total

    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return all ``J_k z``, concatenated."""
        xp = array_namespace(self.X)
        return xp.concat([part.forward(z, unknowns, rows) for part in self.parts])

    def _about(self, unknowns: Unknowns) -> list[ReleaseJacobian]:
        """Return the parts; raise an error if their information does not add up."""
        if unknowns.label and not self.same_label:
            raise InputError(
                "These releases have different labels, or code them differently (0/1, ±1, one per "
                "class), so their information about the label does not add up; pass label=False."
            )
        return self.parts


class LeastExact(AnswerAccuracy):
    """The error of several releases together, which is that of the least accurate release."""

    def __init__(self, parts: Sequence[AnswerAccuracy]) -> None:
        self.parts = list(parts)
        self.stated = all(part.stated for part in parts)

    def entries(self, J: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return the relative errors of the columns in the given rows' Jacobians, ``(m, q)``."""
        return _worst([part.entries(J, unknowns, rows) for part in self.parts])

    def rows(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η for all records."""
        return _worst([part.rows(squared, unknowns) for part in self.parts])

    def cells(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η for all cells."""
        return _worst([part.cells(squared, unknowns) for part in self.parts])

    def block(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the error of a block: the unknowns of some records together."""
        return max(part.block(squared, unknowns, rows) for part in self.parts)

    def columns(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the error of η for each attribute of some records together."""
        return _worst([part.columns(squared, attributes, rows) for part in self.parts])

    def row_terms(self, unknowns: Unknowns) -> Array:
        """Return each record's contribution to a block's errors, concatenated over releases."""
        return _beside([part.row_terms(unknowns) for part in self.parts])

    def column_terms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the rows' contribution to each attribute's error, concatenated over releases."""
        return _beside([part.column_terms(attributes, rows) for part in self.parts])

    def of_terms(self, squared: float, terms: Array) -> float:
        """Return the error of a block from the sum of its terms."""
        width = terms.shape[0] // len(self.parts)
        return max(
            part.of_terms(squared, terms[k * width : (k + 1) * width])
            for k, part in enumerate(self.parts)
        )


def _worst(errors: list[Array]) -> Array:
    xp = array_namespace(errors[0])
    return xp.max(xp.stack(xp.broadcast_arrays(*errors)), axis=0)


def _beside(terms: list[Array]) -> Array:
    return array_namespace(terms[0]).concat(terms, axis=1)
