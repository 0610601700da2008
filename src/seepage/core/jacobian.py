"""The interface of a measurable release: products with its Jacobian.

Every measure is a functional of the Jacobian ``J`` of a release with respect to the data, whitened
by the release's noise. The information about a block of the table is ``JᵀJ``, with ``J`` the
block's columns. :class:`ReleaseJacobian` represents ``J`` for a set of records, and
:class:`MeasuredRelease` returns it for any chunk of records. :class:`EntryJacobian` computes every
result from the entries of ``J``, and :class:`AnswerAccuracy` computes the accuracy of the results.

:class:`Refits` and :class:`FiniteChanges` measure finite changes: a record is left out, or has
another category, class or number. With noise of information ``Φ``, a change of the release by ``δ``
has length ``‖Φ^½δ‖`` in units of the noise; :mod:`seepage.risks` needs only inner products of these
changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from seepage.core.spectra import DENSE_LIMIT, dense_largest, largest_eigenvalues
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.support.chunks import by_rows, progress, row_slices
from seepage.tables.source import Array, Chunk, RowSource

WIDE_CHUNK = 1 << 21  # numbers held at a time where every row comes with whole matrices
SUMS_HELD = 1 << 25  # numbers in the sums of all groups or attributes at a time


class AnswerAccuracy:
    """The accuracy of results from a Jacobian, as relative errors of η.

    This base class states no errors beyond the rounding of the entries.
    """

    stated = False

    def entries(self, J: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return the relative errors of the columns of some rows' Jacobians, ``(m, q)``."""
        xp = array_namespace(J)
        # That of a sum over the release in which nothing cancels.
        rounding = 4 * math.sqrt(J.shape[1]) * float(xp.finfo(J.dtype).eps)
        return rounding + xp.zeros_like(J[:, 0, :])

    def rows(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the errors of all records, given the squares of η."""
        raise NotImplementedError

    def cells(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the errors of all cells, given the squares of η."""
        raise NotImplementedError

    def block(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the error of η for the unknowns of some records together."""
        raise NotImplementedError

    def columns(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the error of η for each attribute of some records together."""
        raise NotImplementedError

    # Of records that are read in chunks: what they add to the error of a block adds up.

    def row_terms(self, unknowns: Unknowns) -> Array:
        """Return the contribution of each record to a block's error, ``(n, e)``."""
        raise NotImplementedError

    def column_terms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the rows' contribution to the error of each attribute, one row per attribute."""
        raise NotImplementedError

    def of_terms(self, squared: float, terms: Array) -> float:
        """Return the error of a block from the sum of its terms."""
        raise NotImplementedError


class InverseForm(Protocol):
    """A closed form of the inverse information about every row."""

    work: float  # about how many multiplications a row takes

    def diagonals(self) -> tuple[Array, Array]:
        """Return the diagonals and their relative errors, both ``(n, q)``."""

    def traces(self) -> tuple[Array, Array]:
        """Return the traces and their relative errors, both ``(n,)``."""


class ReleaseJacobian(ABC):
    """The Jacobian of a release with respect to the records ``X``, whitened by its noise.

    Measures, bounds and reports use only this interface. A new kind of release implements the two
    products :meth:`forward` and :meth:`adjoint`. All other methods are derived from them, and are
    overridden if a closed form is faster. Quantities that all releases compute in the same way are
    functions in :mod:`seepage.core.information`.

    Attributes
    ----------
    X, target
        The records and their labels as numbers, in the caller's array library.
    rows, features, label_size
        The number of records, and the number of unknowns in one record's columns and in its label.
    size
        ``P``, the number of released numbers.
    accuracy
        The accuracy of the results.
    sums_of_all
        Whether :meth:`column_sums` are the same for all attributes.
    """

    X: Array
    target: Array
    rows: int
    features: int
    label_size: int
    size: int
    accuracy: AnswerAccuracy = AnswerAccuracy()
    sums_of_all = False

    @abstractmethod
    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``J z``, ``(P,)``, for a change ``z (len(rows), q)`` of a block of the table."""

    @abstractmethod
    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Jᵀv``, ``(len(rows), q)``, for a vector ``v`` of the whitened release."""

    # Records, one by one ----------------------------------------------------------------------

    def row_jacobians(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return the whitened Jacobians of some rows in full, ``(m, P, q)``.

        The Jacobians are computed by products with unit vectors of the data or of the release,
        whichever are fewer.
        """
        xp, m, q = array_namespace(self.X), int(rows.shape[0]), unknowns.count(self)
        like = {"dtype": self.X.dtype, "device": self.X.device}
        if self.size <= m * q:
            units = xp.eye(self.size, **like)
            return xp.stack([self.adjoint(v, unknowns, rows) for v in units], axis=1)
        changes = xp.eye(q, **like)[:, None, :]
        each = (rows[k : k + 1] for k in range(m))
        return xp.stack(
            [xp.stack([self.forward(z, unknowns, one) for z in changes], axis=1) for one in each]
        )

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return a function that computes the information matrices of given rows, ``(m, q, q)``."""
        every, xp = every_row(self), array_namespace(self.X)

        def matrices(rows: slice) -> Array:
            J = self.row_jacobians(unknowns, every[rows])
            return xp.matrix_transpose(J) @ J

        return matrices

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Array], Array]]:
        """Return a function that multiplies one vector per row by the row's information."""
        information = self.row_information(unknowns)

        def operator(rows: slice) -> Callable[[Array], Array]:
            matrices = information(rows)
            return lambda v: (matrices @ v[:, :, None])[..., 0]

        return operator

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²`` of each row: the largest eigenvalue of its information, ``(n,)``."""
        count = unknowns.count(self)
        # What the work on one row holds: its matrix, and what that is made of.
        width = 2 * count**2 + self.size * count
        if count <= DENSE_LIMIT:
            information = self.row_information(unknowns)
            threads = is_numpy_array(self.X)  # a piece is then for one core, and short
            chunk = WIDE_CHUNK >> 3 if threads else WIDE_CHUNK
            return by_rows(
                lambda rows: dense_largest(information(rows)),
                self.rows,
                width,
                chunk=chunk,
                threads=threads,
            )
        operator = self.row_operator(unknowns)

        def norms(rows: slice) -> Array:
            xp = array_namespace(self.X)
            held = len(range(self.rows)[rows])
            like = xp.zeros((held, count), dtype=self.X.dtype, device=self.X.device)
            return largest_eigenvalues(operator(rows), like)

        # Lanczos keeps a few dozen vectors for each row.
        return by_rows(norms, self.rows, width + 40 * count, chunk=2 * WIDE_CHUNK, what="rows")

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, ``(n,)``."""
        return from_entries(self, unknowns, squared_size)

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each unknown feature, all else being known, ``(n, t)``."""
        return from_entries(self, replace(unknowns, label=False), squared_columns)

    def inverse_form(self, unknowns: Unknowns) -> InverseForm | None:
        """Return a closed form of the rows' inverse information, if there is one."""
        return None

    # Blocks of the table ----------------------------------------------------------------------

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        xp = array_namespace(self.X)
        like = xp.zeros((1, self.size), dtype=self.X.dtype, device=self.X.device)

        def norm(unknowns: Unknowns) -> Array:
            def apply(v: Array) -> Array:
                z = self.adjoint(v[0, :], unknowns, rows)
                return self.forward(z, unknowns, rows)[None, :]

            return largest_eigenvalues(apply, like)

        return xp.concat([norm(u) for u in progress(attributes, "attributes")])

    def block_sums(self, unknowns: Unknowns, rows: Array) -> Any:
        """Return the contribution of these rows to ``J Jᵀ`` of a block.

        Contributions of different records add up (with ``+``), and :meth:`norm_of` computes the
        norm of the total. By default, a contribution is ``J Jᵀ``, ``(P, P)``, which has the nonzero
        eigenvalues of ``JᵀJ``.
        """
        xp, total = array_namespace(self.X), 0.0
        for piece in entry_pieces(self, unknowns, rows):
            J = xp.permute_dims(self.row_jacobians(unknowns, rows[piece]), (1, 0, 2))
            J = xp.reshape(J, (self.size, -1))
            total = total + J @ J.T
        return total

    def norm_of(self, unknowns: Unknowns, sums: Any) -> float:
        """Return the largest eigenvalue for all rows that contributed to these :meth:`block_sums`.

        The rows themselves are not needed: any Jacobian of the same release can be used.
        """
        return float(dense_largest(sums[None, :, :])[0])

    def column_sums(self, attributes: list[Unknowns], rows: Array) -> Any:
        """Return :meth:`block_sums` of these rows for every attribute; such sums also add up."""
        return array_namespace(self.X).stack([self.block_sums(u, rows) for u in attributes])

    def column_norms_of(self, attributes: list[Unknowns], sums: Any) -> Array:
        """Return :meth:`column_norms` for all rows that contributed to :meth:`column_sums`."""
        values = [self.norm_of(u, s) for u, s in zip(attributes, sums, strict=True)]
        return array_namespace(self.X).asarray(values, dtype=self.X.dtype, device=self.X.device)

    def with_label_step(self, step: float) -> ReleaseJacobian:
        """Return the Jacobian with the label in units of this step."""
        if step == 1.0:
            return self
        raise InputError(
            f"The label of this release cannot be measured in steps of {step:g}; use a step of 1."
        )


class EntryJacobian(ReleaseJacobian):
    """A Jacobian with known entries: every result follows from :meth:`row_jacobians`."""

    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``J z``, ``(P,)``, for a change ``z`` of some rows."""
        xp = array_namespace(self.X)
        return sum(
            xp.sum(self.row_jacobians(unknowns, rows[piece]) @ z[piece, :, None], axis=(0, 2))
            for piece in entry_pieces(self, unknowns, rows)
        )

    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Jᵀv``, ``(len(rows), q)``."""
        xp = array_namespace(self.X)
        return from_entries(self, unknowns, lambda J: xp.matrix_transpose(J) @ v, rows)

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²`` of each row, ``(n,)``."""
        return from_entries(self, unknowns, largest_square)

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        return self.column_norms_of(attributes, self.column_sums(attributes, rows))


def every_row(jacobian: ReleaseJacobian) -> Array:
    """Return the positions of all rows."""
    return array_namespace(jacobian.X).arange(jacobian.rows, device=jacobian.X.device)


def entry_pieces(jacobian: ReleaseJacobian, unknowns: Unknowns, rows: Array) -> Iterator[slice]:
    """Split rows into pieces whose whitened Jacobians fit in memory."""
    width = jacobian.size * (unknowns.count(jacobian) + jacobian.features)
    return row_slices(int(rows.shape[0]), width, chunk=WIDE_CHUNK)


def from_entries(
    jacobian: ReleaseJacobian,
    unknowns: Unknowns,
    take: Callable[[Array], Array],
    rows: Array | None = None,
) -> Array:
    """Apply ``take`` to the whitened Jacobians of the given rows (default: all), piece by piece.

    Squares of entries do not cancel, so the result is accurate even where the terms of a closed
    form nearly cancel.
    """
    rows = every_row(jacobian) if rows is None else rows
    width = jacobian.size * (unknowns.count(jacobian) + jacobian.features)
    return by_rows(
        lambda piece: take(jacobian.row_jacobians(unknowns, rows[piece])),
        int(rows.shape[0]),
        width,
        chunk=WIDE_CHUNK,
    )


def squared_size(J: Array) -> Array:
    """Return the sum of the squared entries of each matrix, ``(m,)``."""
    return array_namespace(J).sum(J * J, axis=(1, 2))


def squared_columns(J: Array) -> Array:
    """Return the squared lengths of the columns of each matrix, ``(m, q)``."""
    return array_namespace(J).sum(J * J, axis=1)


def largest_square(J: Array) -> Array:
    """Return the squared largest singular value of each matrix, ``(m,)``."""
    return array_namespace(J).linalg.svdvals(J)[:, 0] ** 2


class MeasuredRelease(ABC):
    """A release that is measured chunk by chunk; it can be sent to workers as plain data.

    Attributes
    ----------
    template
        A Jacobian of the release, for quantities that do not depend on the records; for a table in
        memory, it covers all records.
    """

    template: ReleaseJacobian
    single: bool = False  # whether results are wanted in single precision
    # Of what the procedure learnt from the data, in the words of ``Result.held``: what
    # finite changes choose anew, and what they hold fixed besides when a record leaves
    anew: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def parts(self) -> list[MeasuredRelease]:
        """The single releases that make up this release."""
        return [self]

    @property
    def model(self) -> Any:
        """The fitted linear model whose parameters are released, or ``None``."""
        return None

    @property
    def sensitivity(self) -> float | None:
        """A bound, for any data, on the release's move if a record is replaced, or ``None``."""
        return None

    @abstractmethod
    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the exact Jacobian with respect to the records of a chunk."""

    def refits(self) -> Refits:
        """Return the operator that refits the release with one record changed.

        Bounds and attacks use these refits.
        """
        raise InputError(
            "Only a single linear model fitted on a table in memory can be refitted with a record "
            "changed; measure the releases one by one."
        )

    def finite_changes(self) -> FiniteChanges:
        """Return how far the release moves if any row is left out or replaced.

        Distances are in units of the noise; risks use them.
        """
        raise InputError(
            "The effect of leaving out or changing a record is not known for this release; risks "
            "need a linear model fitted on a table in memory."
        )

    def changes_in_chunks(self, source: RowSource) -> Callable[[Chunk], FiniteChanges]:
        """Return certified bounds on the moves for records read in chunks, without refits."""
        raise InputError(
            "The effect of leaving out a record is not known for this release when records are "
            "read in chunks; load them into memory."
        )

    def merged(self, other: MeasuredRelease) -> MeasuredRelease | None:
        """Return both releases as one if that is simpler than composing them, or ``None``."""
        return None


class Refits(Protocol):
    """The release refitted with one record replaced and all others unchanged.

    Attributes
    ----------
    X, target
        The records, ``(n, d)``, and their labels as numbers, in NumPy.
    theta
        The actual released numbers.
    rounding
        The rounding error of a released number, relative to the largest released number.
    """

    X: np.ndarray
    target: np.ndarray
    theta: np.ndarray
    rounding: float

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the releases after the given replacements of a row, ``(K, …)``; NaN if undefined.

        ``features (K, d)`` replace the row's features; ``labels`` replace its label, which is kept
        by default.
        """

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the releases after these replacements minus the actual one, ``(K, P)``."""

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Any
    ) -> ReleaseJacobian:
        """Return the Jacobian for the replaced row, at a release from :meth:`parameters`."""


@dataclass(frozen=True)
class Moves:
    """The differences (moves) of a release under each of K changes to m records.

    Parameters
    ----------
    gram
        Inner products of the whitened moves, ``(m, K, K)``; the diagonal is infinite if the changed
        data have no unique fit.
    radius
        The largest error of each move, ``(m, K)``: only rounding if exact, infinite if unknown.
    least, most
        Bounds on the length of each move, ``(m, K)``, if tighter than those from the radius.
    """

    gram: np.ndarray
    radius: np.ndarray
    least: np.ndarray = None  # type: ignore[assignment]
    most: np.ndarray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.least is not None:
            return
        centre = self.expected()
        with np.errstate(invalid="ignore"):
            least = np.where(np.isinf(self.radius), 0.0, np.maximum(centre - self.radius, 0.0))
        least = np.where(np.isinf(centre) & np.isfinite(self.radius), np.inf, least)
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "most", centre + self.radius)

    def __add__(self, other: Moves) -> Moves:
        """Return the joint moves of two independent releases: squared distances add up."""
        return Moves(
            self.gram + other.gram,
            np.hypot(self.radius, other.radius),
            np.hypot(self.least, other.least),
            np.hypot(self.most, other.most),
        )

    def put(self, where: np.ndarray | slice, other: Moves) -> None:
        """Replace the moves of some records."""
        self.gram[where], self.radius[where] = other.gram, other.radius
        self.least[where], self.most[where] = other.least, other.most

    def expected(self) -> np.ndarray:
        """Return the best estimate of how far each change moves the release, ``(m, K)``."""
        return np.asarray(np.sqrt(np.maximum(np.einsum("mkk->mk", self.gram), 0.0)))

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on how far each change moves the release, ``(m, K)`` each."""
        return self.least, self.most

    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on the distance between the releases under two changes, ``(m,)`` each."""
        with np.errstate(invalid="ignore"):
            square = self.gram[:, 0, 0] + self.gram[:, 1, 1] - 2 * self.gram[:, 0, 1]
            between = np.sqrt(np.maximum(square, 0.0))
            radius = self.radius.sum(axis=1)
            least, most = np.maximum(between - radius, 0.0), between + radius
        lost = np.isinf(self.expected()).any(axis=1)
        least, most = np.where(lost, np.inf, least), np.where(lost, np.inf, most)
        for still, moved in ((0, 1), (1, 0)):  # one of them is the record as it is
            here = self.most[:, still] == 0
            least[here], most[here] = self.least[here, moved], self.most[here, moved]
        return least, most

    def between(self) -> np.ndarray:
        """Return upper bounds on the distance between every two changed releases, ``(m, K, K)``."""
        lengths = np.einsum("mkk->mk", self.gram)
        with np.errstate(invalid="ignore"):
            square = lengths[:, :, None] + lengths[:, None, :] - 2 * self.gram
            most = np.sqrt(np.maximum(square, 0.0))
            most += self.radius[:, :, None] + self.radius[:, None, :]
        still = self.most == 0  # the record as it is: the other's length is known best
        most = np.where(still[:, :, None], self.most[:, None, :], most)
        most = np.where(still[:, None, :], self.most[:, :, None], most)
        lost = np.isinf(self.expected())
        most = np.where(lost[:, :, None] | lost[:, None, :], np.inf, most)
        most[:, range(lengths.shape[1]), range(lengths.shape[1])] = 0.0
        return np.asarray(most)

    def of(self, where: np.ndarray) -> Moves:
        """Return the moves of some records."""
        return Moves(self.gram[where], self.radius[where], self.least[where], self.most[where])

    def scaled(self, factor: float) -> Moves:
        """Return the moves in units of a noise that is smaller by this factor."""
        if factor == 1:
            return self
        lengths = (factor * numbers for numbers in (self.radius, self.least, self.most))
        return Moves(factor**2 * self.gram, *lengths)


@dataclass(frozen=True)
class Alternatives:
    """The candidate values of a record: K rows of values for some columns, or K labels.

    Parameters
    ----------
    columns
        The columns that may differ, by position.
    values
        Their values, ``(K, len(columns))``.
    labels
        The labels in the model's format, ``(K, …)``; by default the record's own.
    """

    columns: tuple[int, ...] = ()
    values: np.ndarray | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels if self.values is None else self.values)  # type: ignore[arg-type]


class FiniteChanges(ABC):
    """Measures how far one release moves under finite changes to records.

    ``rows`` are positions of single records, or an object array of position arrays for records that
    are removed or changed together.

    Attributes
    ----------
    records
        The number of records.
    work
        The approximate number of multiplications in one refit.
    target
        The labels in the form the model uses.
    """

    records: int
    work: float
    target: np.ndarray

    @abstractmethod
    def without(self, rows: np.ndarray) -> Moves:
        """Return certified bounds on the moves if each given record is left out (K is 1)."""

    @abstractmethod
    def without_exactly(self, rows: np.ndarray) -> Moves:
        """Return the moves if each given record is left out, computed by refits."""

    @abstractmethod
    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return certified bounds on the moves if records take each alternative value."""

    @abstractmethod
    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves if records take each alternative value, computed by refits."""

    @abstractmethod
    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the likelihood of each alternative under the model fitted without the record.

        Returns the log-likelihoods, ``(m, K)``, up to a constant for each record, and each record's
        error, ``(m,)``. ``refits`` limits the number of refits if there is also a method
        without refits.
        """

    @property
    def fixed(self) -> FiniteChanges:
        """The finite changes with the preprocessing and other choices held fixed."""
        return self

    def class_labels(self) -> np.ndarray:
        """Return the possible labels of a classifier's record, ``(K, …)``."""
        raise InputError("The label of this model is a number, not a class; use leak.within().")


class Reruns(FiniteChanges):
    """Measures how far a release moves if the whole procedure is rerun on changed records.

    Attributes
    ----------
    fits
        The number of models that one run fits.
    learnt
        What each run learns from the data in addition to the released numbers, as terms of
        ``Result.held``.
    kept
        Values that stay fixed in every run.
    """

    fits: int
    learnt: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @abstractmethod
    def released(self, kept: np.ndarray) -> np.ndarray:
        """Return the numbers that a fit on only these records releases, ``(P,)``.

        The numbers are NaN if no fit exists, or if they are not comparable with the original
        release.
        """


class ComposedChanges(FiniteChanges):
    """Measures the joint moves of several independent releases under the same changes."""

    def __init__(self, parts: list[FiniteChanges]) -> None:
        self.parts = parts
        self.records, self.target = parts[0].records, parts[0].target
        self.work = sum(part.work for part in parts)

    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves if each given record is left out."""
        return _sum([part.without(rows) for part in self.parts])

    def without_exactly(self, rows: np.ndarray) -> Moves:
        """Return the moves if each given record is left out, computed by refits."""
        return _sum([part.without_exactly(rows) for part in self.parts])

    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves if each given record takes each alternative value."""
        self._check(others)
        return _sum([part.replaced(rows, others) for part in self.parts])

    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves if records take each alternative value, computed by refits."""
        self._check(others)
        return _sum([part.replaced_exactly(rows, others) for part in self.parts])

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Raise an error, since several models give different predictions."""
        raise InputError("The prior 'model' needs a single release; give another prior.")

    @property
    def fixed(self) -> FiniteChanges:
        """The finite changes with all learnt values except the released numbers held fixed."""
        return ComposedChanges([part.fixed for part in self.parts])

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record may have."""
        return self.parts[0].class_labels()

    def _check(self, others: Alternatives) -> None:
        same = all(
            part.target.shape == self.target.shape and bool(np.all(part.target == self.target))
            for part in self.parts
        )
        if others.labels is not None and not same:
            raise InputError(
                "These releases have different labels, so there is no common label to guess; "
                "measure each release separately."
            )


def _sum(moves: list[Moves]) -> Moves:
    total = moves[0]
    for other in moves[1:]:
        total = total + other
    return total
