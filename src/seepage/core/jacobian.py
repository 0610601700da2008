"""What a release must answer so that its leakage can be measured: products with its Jacobian.

Every measure is a functional of the Jacobian ``J`` of a release with respect to the data, whitened
by the release's noise: the information about a block of the table is ``JᵀJ`` with ``J`` the block's
columns. :class:`ReleaseJacobian` is that operator about some records, :class:`MeasuredRelease`
gives it for any chunk of them. The measures are the largest eigenvalue and the inverse of the
information, for many matrices at once.

:class:`Refits` and :class:`FiniteChanges` answer the same question for changes that are not small:
a record leaves the table altogether, or has another category, class or number. With noise of
information ``Φ``, a change that moves the release by ``δ`` moves it by ``‖Φ^½δ‖`` in units of the
noise, and inner products of such moves are all that :mod:`seepage.risks` needs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.support.chunks import by_rows, progress
from seepage.tables.source import Array, Chunk, RowSource

WIDE_CHUNK = 1 << 21  # numbers held at a time where every row comes with whole matrices
SUMS_HELD = 1 << 25  # numbers in the sums of all groups or attributes at a time
_DENSE_CHUNK = 1 << 17  # numbers of matrices decomposed by one core at a time
DENSE_LIMIT = 48  # up to this size a dense eigenvalue problem is cheaper than an iteration
_CHECK_EVERY = 4
_UNSURE = 4.0  # times its error: a singular value below that counts as zero
_RESIDUAL = 1e-10  # relative; a Ritz value is accurate to its square over the gap


class ReleaseJacobian(ABC):
    """The Jacobian of a release about the records ``X``, whitened by the release's noise.

    Measures, bounds and reports ask only this class, and never where the Jacobian came from. A new
    kind of release offers the two products :meth:`forward` and :meth:`adjoint`; everything else
    follows from them, and is overridden where a closed form is faster.

    Attributes
    ----------
    X, target
        The records and their labels as numbers, in the caller's array library.
    rows, features, label_size
        How many records there are, and the unknowns in the columns and in the label of one.
    size
        ``P``, how many numbers are released.
    states_accuracy
        Whether it knows how exact its answers are, so that results say so.
    """

    X: Array
    target: Array
    rows: int
    features: int
    label_size: int
    size: int
    states_accuracy = False

    @abstractmethod
    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``J z`` for a change ``z (len(rows), q)`` of a block of the table, ``(P,)``."""

    @abstractmethod
    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Jᵀv`` for a vector of the whitened release, ``(len(rows), q)``."""

    # Records, one by one ----------------------------------------------------------------------

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return the function that gives each row's information matrix, ``(m, q, q)``."""
        xp = array_namespace(self.X)

        def matrices(rows: slice) -> Array:
            J = self.row_jacobians(unknowns, self.every_row()[rows])
            return xp.matrix_transpose(J) @ J

        return matrices

    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, ``(n,)``."""
        xp = array_namespace(self.X)
        return sum(xp.sum(line**2, axis=1) for line in self._lines(unknowns, self.every_row()))

    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each unknown feature alone, ``(n, t)``."""
        features = Unknowns(unknowns.columns, False, unknowns.basis)
        return sum(line**2 for line in self._lines(features, self.every_row()))

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Array], Array]]:
        """Return, for some rows, the product of one vector per row with its information matrix."""
        information = self.row_information(unknowns)

        def operator(rows: slice) -> Callable[[Array], Array]:
            matrices = information(rows)
            return lambda v: (matrices @ v[:, :, None])[..., 0]

        return operator

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return ``‖J_i‖₂²`` of each row: the largest eigenvalue of its information, ``(n,)``."""
        count = self.unknown_count(unknowns)
        if count <= DENSE_LIMIT:
            information = self.row_information(unknowns)
            width = self.row_width(unknowns) + count**2
            threads = is_numpy_array(self.zeros(0, 1))
            return by_rows(
                lambda rows: dense_largest(information(rows)),
                self.rows,
                width,
                chunk=2 * _DENSE_CHUNK if threads else WIDE_CHUNK,  # each piece on one core
                threads=threads,
            )
        operator = self.row_operator(unknowns)

        def norms(rows: slice) -> Array:
            like = self.zeros(len(range(self.rows)[rows]), count)
            return largest_eigenvalues(operator(rows), like)

        # Lanczos keeps a few dozen vectors for each row.
        width = self.row_width(unknowns) + 40 * count
        return by_rows(norms, self.rows, width, chunk=2 * WIDE_CHUNK, what="rows")

    def inverses(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the diagonal of the inverse information about each row, and its relative errors.

        Both ``(n, q)``. Infinite where the inverse does not exist: no unbiased estimate has a
        finite error there. From the singular values of the whitened Jacobian: the information
        itself would square its condition.
        """
        return self.inverses_of(unknowns, self.every_row())

    def inverses_of(self, unknowns: Unknowns, rows: Array) -> tuple[Array, Array]:
        """Return the same for some rows."""
        xp = array_namespace(self.X)

        def invert(piece: slice) -> Array:
            J = self.row_jacobians(unknowns, rows[piece])
            off = self.entry_accuracy(xp.sum(J * J, axis=1), unknowns, rows[piece])
            return xp.stack(inverse_gram_diagonal(J, xp.max(off, axis=1)), axis=2)

        width = 3 * self.size * self.unknown_count(unknowns)
        both = by_rows(invert, int(rows.shape[0]), width, chunk=WIDE_CHUNK, what="inverting")
        return both[:, :, 0], both[:, :, 1]

    def traces_of_inverses(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return the trace of the inverse information about each row, and its errors, ``(n,)``."""
        diagonal, accuracy = self.inverses(unknowns)
        xp = array_namespace(self.X)
        return xp.sum(diagonal, axis=1), xp.max(accuracy, axis=1)

    def inverse_diagonal(self, unknowns: Unknowns) -> Array:
        """Return the diagonal of the inverse information about each row, ``(n, q)``."""
        return self.inverses(unknowns)[0]

    def inverse_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the inverse information about each row, ``(n,)``."""
        return self.traces_of_inverses(unknowns)[0]

    def row_jacobians(self, unknowns: Unknowns, rows: Array) -> Array:
        """Return the whitened Jacobians of some rows in full, ``(m, P, q)``."""
        return array_namespace(self.X).stack(list(self._lines(unknowns, rows)), axis=1)

    @property
    def exact_row_jacobians(self) -> bool:
        """Whether :meth:`row_jacobians` are more exact than products with the Jacobian."""
        return False

    # How exact it is --------------------------------------------------------------------------

    def row_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η, given its squares for every record."""
        return self._rounding() + 0 * squared

    def cell_accuracy(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η, given its squares for every cell."""
        return self._rounding() + 0 * squared

    def cells_and_errors(self, unknowns: Unknowns) -> tuple[Array, Array]:
        """Return :meth:`cell_information`, and the relative errors of η that go with it."""
        squared = self.cell_information(unknowns)
        return squared, self.cell_accuracy(squared, unknowns)

    def entry_accuracy(self, squared: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return the relative errors of :meth:`row_jacobians`, column by column."""
        return self._rounding() + 0 * squared

    def block_accuracy(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the relative error of η of a block, given its square."""
        return self._rounding()

    def error_terms(self, unknowns: Unknowns) -> Array:
        """Return what each record adds to the errors of a block, ``(n, e)``."""
        return self.zeros(self.rows, 1)

    def column_error_terms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the sums of the terms of each attribute over the rows, one line for each."""
        xp = array_namespace(self.X)
        return xp.stack([xp.sum(self.error_terms(u)[rows, :], axis=0) for u in attributes])

    def error_of(self, squared: float, terms: Array) -> float:
        """Return the relative error of η of a block read in chunks, from its terms."""
        return self._rounding()

    def column_accuracy(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the relative errors of η of each attribute over the rows, given its squares."""
        return self.array(
            [
                self.block_accuracy(float(value), unknowns, rows)
                for value, unknowns in zip(squared, attributes, strict=True)
            ]
        )

    def _rounding(self) -> float:
        """Return the error of sums over the release where nothing cancels."""
        return 4 * math.sqrt(self.size) * float(array_namespace(self.X).finfo(self.X.dtype).eps)

    def inverse_work(self, unknowns: Unknowns) -> float:
        """Return about how many multiplications a row's inverse information takes."""
        return float(self.unknown_count(unknowns)) ** 3

    # Blocks of the table ----------------------------------------------------------------------

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of the information about these unknowns of these rows."""

        def apply(v: Array) -> Array:
            z = self.adjoint(v[0, :], unknowns, rows)
            return self.forward(z, unknowns, rows)[None, :]

        return float(largest_eigenvalues(apply, self.zeros(1, self.size))[0])

    def block_norms(self, unknowns: Unknowns, blocks: Sequence[Array]) -> list[float]:
        """Return :meth:`block_norm` of several blocks of rows."""
        return [self.block_norm(unknowns, rows) for rows in progress(blocks, "groups")]

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        values = [self.block_norm(u, rows) for u in progress(attributes, "attributes")]
        return self.array(values)

    def column_traces(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the trace of the information about each attribute over the rows; they add up."""
        xp = array_namespace(self.X)
        return xp.stack([sum(xp.sum(line**2) for line in self._lines(u, rows)) for u in attributes])

    def block_sums(self, unknowns: Unknowns, rows: Array) -> Any:
        """Return the contribution of these rows to the release's side of a block.

        Contributions of different records add up (by ``+``), and :meth:`norm_of` takes the norm of
        the total; here they are ``J Jᵀ``, ``(P, P)``, whose eigenvalues are those of ``JᵀJ``.
        """
        lines = self._lines(unknowns, rows)
        return array_namespace(self.X).stack([self.forward(z, unknowns, rows) for z in lines])

    def norm_of(self, unknowns: Unknowns, sums: Any) -> float:
        """Return :meth:`block_norm` of all the rows that these :meth:`block_sums` came from.

        The rows themselves are not needed: any Jacobian of the same release may be asked.
        """
        return float(dense_largest(sums[None, :, :])[0])

    def column_sums(self, attributes: list[Unknowns], rows: Array) -> Any:
        """Return the same for every attribute over the rows; they add up likewise."""
        return array_namespace(self.X).stack([self.block_sums(u, rows) for u in attributes])

    def column_norms_of(self, attributes: list[Unknowns], sums: Any) -> Array:
        """Return :meth:`column_norms` of all the rows that these :meth:`column_sums` came from."""
        return self.array([self.norm_of(u, s) for u, s in zip(attributes, sums, strict=True)])

    @property
    def columns_at_once(self) -> int:
        """How many attributes :meth:`column_sums` may be asked about at a time."""
        return max(1, SUMS_HELD // self.size**2)

    # The release itself -----------------------------------------------------------------------

    def with_label_step(self, step: float) -> ReleaseJacobian:
        """Return the same Jacobian with the label counted in steps of this size."""
        if step == 1.0:
            return self
        raise InputError(f"The label of this release cannot be counted in steps of {step:g}.")

    def refits(self) -> Refits:
        """Return how the release moves when a record changes by a finite amount."""
        raise InputError(
            "Only one linear model of a table in memory can be refitted with a record changed; "
            "take the releases one by one."
        )

    # Shared by the methods above --------------------------------------------------------------

    def unknown_count(self, unknowns: Unknowns) -> int:
        """Count the unknown numbers of one row."""
        return unknowns.features(self.features) + self.label_size * unknowns.label

    def row_width(self, unknowns: Unknowns) -> int:
        """Return how many numbers the work on one row keeps in memory."""
        return self.unknown_count(unknowns) ** 2 + self.size * self.unknown_count(unknowns)

    def every_row(self) -> Array:
        """Return the positions of all rows."""
        return array_namespace(self.X).arange(self.rows, device=self.X.device)

    def zeros(self, *shape: int) -> Array:
        """Return zeros of this shape, of the table's type and on its device."""
        xp = array_namespace(self.X)
        return xp.zeros(shape, dtype=self.X.dtype, device=self.X.device)

    def array(self, values: list[float]) -> Array:
        """Return numbers as an array of the table's type, on its device."""
        xp = array_namespace(self.X)
        return xp.asarray(values, dtype=self.X.dtype, device=self.X.device)

    def _lines(self, unknowns: Unknowns, rows: Array) -> Iterator[Array]:
        """Yield the ``P`` lines of the Jacobian of a block, each ``(len(rows), q)``."""
        for k in range(self.size):
            unit = self.zeros(self.size)
            unit[k] = 1.0
            yield self.adjoint(unit, unknowns, rows)


class MeasuredRelease(ABC):
    """A release as seen by records that come in chunks: plain data that can be sent to workers.

    Attributes
    ----------
    template
        A Jacobian of the release, asked for what does not depend on the records; about all records
        of a table in memory.
    """

    template: ReleaseJacobian
    single: bool = False  # whether results are wanted in single precision

    @property
    def parts(self) -> list[MeasuredRelease]:
        """The single releases it is made of."""
        return [self]

    @property
    def model(self) -> Any:
        """The fitted linear model whose parameters are released, if that is the release."""
        return None

    @property
    def sensitivity(self) -> float | None:
        """How far replacing one record can move the release, if that holds for all data."""
        return None

    @abstractmethod
    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the Jacobian about the records of a chunk, exact for each of them."""

    def refits(self) -> Refits:
        """Return how the release moves when a record changes by a finite amount."""
        return self.template.refits()

    def finite_changes(self) -> FiniteChanges:
        """Return how far the release moves when a record is left out or replaced."""
        raise InputError(
            "How far this release moves when a record leaves or changes is not known; risks need a "
            "linear model of a table in memory."
        )

    def changes_in_chunks(self, source: RowSource) -> Callable[[Chunk], FiniteChanges]:
        """Return the same for records read in chunks: certified, without refits."""
        raise InputError(
            "How far this release moves when a record leaves is not known for records that are "
            "read in chunks; take them into memory."
        )

    def without_records(self, kept: np.ndarray) -> np.ndarray:
        """Return the numbers that the whole procedure releases from the records that stay.

        NaN where it would release none, or different ones.
        """
        raise InputError(
            "refit='pipeline' fits a pipeline anew; this release is of a model alone. Pass the "
            "fitted pipeline and its raw table to sp.leakage, or a function for refit."
        )

    def merged(self, other: MeasuredRelease) -> MeasuredRelease | None:
        """Return both releases as one where that is simpler than their composition."""
        return None


class Refits(Protocol):
    """A release made again with one record replaced and all others kept.

    Attributes
    ----------
    X, target
        The records, ``(n, d)``, and their labels as numbers, in NumPy.
    theta
        The released numbers as they are.
    rounding
        The rounding error of a released number, relative to the largest of them.
    """

    X: np.ndarray
    target: np.ndarray
    theta: np.ndarray
    rounding: float

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the releases for some replacements of a row, ``(K, …)``; NaN where there is none.

        ``features (K, d)`` replace its features and ``labels`` its label (its own by default).
        """

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return how far each of these releases lies from the actual one, ``(K, P)``."""

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Any
    ) -> ReleaseJacobian:
        """Return the Jacobian about the replaced row, at a release that :meth:`parameters` gave."""


# Eigenvalues and inverses of the information ------------------------------------------------------


def largest_eigenvalues(apply: Callable[[Array], Array], like: Array) -> Array:
    """Return the largest eigenvalue of each of a batch of symmetric matrices.

    ``apply`` multiplies one vector per matrix, ``(m, k)`` to ``(m, k)``; ``like`` is an array of
    that shape on the batch's device. Up to :data:`DENSE_LIMIT` the matrices are written out and
    decomposed. Beyond, Lanczos' method runs for all of them at once, with full
    reorthogonalisation, until the residual of the leading Ritz pair is below ``1e-10`` of its value
    (the value itself is then off by far less) or, in the worst case, until the whole space is
    spanned and the answer exact.
    """
    if like.shape[1] <= DENSE_LIMIT:
        return dense_largest(_written_out(apply, like))
    return _lanczos(apply, like)


def dense_largest(matrices: Array) -> Array:
    """Return the largest eigenvalue of each symmetric matrix in a batch, not below zero."""
    xp = array_namespace(matrices)
    if matrices.shape[-1] == 1:
        values = matrices[..., 0, 0]
    elif is_numpy_array(matrices):  # small ones, each on one core
        values = by_rows(
            lambda rows: np.linalg.eigvalsh(matrices[rows])[:, -1],
            len(matrices),
            matrices.shape[-1] ** 2,
            chunk=_DENSE_CHUNK,
            threads=True,
        )
    else:
        values = xp.linalg.eigvalsh(matrices)[..., -1]
    return xp.where(values > 0, values, xp.zeros_like(values))


def _written_out(apply: Callable[[Array], Array], like: Array) -> Array:
    xp = array_namespace(like)
    m, k = like.shape
    columns = []
    for j in range(k):
        unit = xp.zeros_like(like)
        unit[:, j] = 1.0
        columns.append(apply(unit))
    matrices = xp.reshape(xp.concat(columns, axis=1), (m, k, k))
    return (matrices + xp.matrix_transpose(matrices)) / 2


def _lanczos(apply: Callable[[Array], Array], like: Array) -> Array:
    xp = array_namespace(like)
    k = like.shape[1]
    # One fixed start for all, so that the same question always gets the same answer.
    start = np.random.default_rng(0).standard_normal(k)
    vector = xp.zeros_like(like) + xp.asarray(
        start / np.linalg.norm(start), dtype=like.dtype, device=like.device
    )
    basis = vector[:, None, :]
    diagonal: list[Array] = []
    beside: list[Array] = []
    eps = float(xp.finfo(like.dtype).eps)
    tolerance = max(_RESIDUAL, 8 * eps)
    scale = xp.zeros_like(like[:, 0])
    while True:
        image = apply(vector)
        diagonal.append(xp.vecdot(image, vector))
        scale = xp.maximum(scale, diagonal[-1])
        for _ in range(2):  # twice is enough to stay orthogonal to machine precision
            overlaps = basis @ image[:, :, None]
            image = image - (xp.matrix_transpose(basis) @ overlaps)[:, :, 0]
        length = xp.sqrt(xp.vecdot(image, image))
        # What is left after an invariant subspace was found is rounding, and must not go on.
        length = xp.where(length > 16 * eps * scale, length, xp.zeros_like(length))
        beside.append(length)
        steps = len(diagonal)
        if steps % _CHECK_EVERY == 0 or steps == k:
            values, vectors = xp.linalg.eigh(_tridiagonal(diagonal, beside))
            residual = length * xp.abs(vectors[:, -1, -1])
            leading = values[:, -1]
            leading = xp.where(leading > 0, leading, xp.zeros_like(leading))
            if steps == k or bool(xp.all(residual <= tolerance * leading)):
                return leading
        inverse = xp.where(length > 0, 1 / xp.where(length > 0, length, 1.0), 0.0)
        vector = image * inverse[:, None]
        basis = xp.concat([basis, vector[:, None, :]], axis=1)


def _tridiagonal(diagonal: list[Array], beside: list[Array]) -> Array:
    xp = array_namespace(diagonal[0])
    steps = len(diagonal)
    out = xp.zeros(
        (diagonal[0].shape[0], steps, steps), dtype=diagonal[0].dtype, device=diagonal[0].device
    )
    for j in range(steps):
        out[:, j, j] = diagonal[j]
        if j + 1 < steps:
            out[:, j, j + 1] = beside[j]
            out[:, j + 1, j] = beside[j]
    return out


def inverse_diagonal(matrices: Array) -> Array:
    """Return the diagonal of each inverse, ``(m, k)``; infinite where a matrix is singular."""
    xp = array_namespace(matrices)
    # Scaled to a unit diagonal, so that different units do not look like a lack of information.
    size = xp.sqrt(xp.linalg.diagonal(matrices))
    scale = 1 / xp.where(size > 0, size, xp.ones_like(size))
    values, vectors = xp.linalg.eigh(matrices * scale[:, :, None] * scale[:, None, :])
    floor = 64 * values.shape[1] * float(xp.finfo(values.dtype).eps) * values[:, -1:]
    regular = xp.all(values > floor, axis=1)
    safe = xp.where(values > floor, values, xp.ones_like(values))
    diagonal = xp.sum(vectors * vectors / safe[:, None, :], axis=2) * scale * scale
    return xp.where(regular[:, None], diagonal, xp.full_like(diagonal, float("inf")))


def inverse_gram_diagonal(J: Array, accuracy: Array) -> tuple[Array, Array]:
    """Return the diagonal of ``(JᵀJ)⁻¹`` of each matrix and its relative errors, ``(m, k)`` both.

    The columns of ``J``, ``(m, P, k)``, are scaled alike on the way, and ``JᵀJ`` is never formed.
    Where the relative errors of the columns of a matrix, ``accuracy (m,)``, leave open whether they
    are independent at all, the diagonal is infinite.
    """
    xp = array_namespace(J)
    _, P, k = J.shape
    size = xp.sqrt(xp.sum(J * J, axis=1))
    if k > P:
        infinite = xp.full_like(size, float("inf"))
        return infinite, xp.zeros_like(size)
    scale = 1 / xp.where(size > 0, size, xp.ones_like(size))
    _, values, rows = xp.linalg.svd(J * scale[:, None, :], full_matrices=False)
    rounding = 8 * k * float(xp.finfo(J.dtype).eps)
    off = (accuracy + rounding) * values[:, 0]
    regular = values[:, -1] > _UNSURE * off
    safe = xp.where(regular[:, None], values, xp.ones_like(values))
    diagonal = xp.sum((rows / safe[:, :, None]) ** 2, axis=1) * scale * scale
    error = 2 * off / xp.where(regular, values[:, -1], xp.ones_like(off))
    diagonal = xp.where(regular[:, None], diagonal, xp.full_like(diagonal, float("inf")))
    error = xp.where(regular, error, xp.zeros_like(error))
    return diagonal, xp.zeros_like(diagonal) + error[:, None]


@dataclass(frozen=True)
class Moves:
    """Where K changes of each of m records move the release, relative to where it is.

    Parameters
    ----------
    gram
        Inner products of the whitened moves, ``(m, K, K)``; infinite on the diagonal where a change
        leaves no release at all.
    radius
        How far from there each may truly be, ``(m, K)``: zero up to rounding where exact, and
        infinite where nothing is known.
    least, most
        Bounds on each move's length, ``(m, K)``, where they are known better than by the
        radius.
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
        """Return the moves of two independent releases together: squared distances add."""
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
        """Return how far each change moves the release, as best known, ``(m, K)``."""
        return np.asarray(np.sqrt(np.maximum(np.einsum("mkk->mk", self.gram), 0.0)))

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on how far each change moves the release, ``(m, K)`` each."""
        return self.least, self.most

    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on how far apart two changes put the release, ``(m,)`` each."""
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

    def widest(self) -> np.ndarray:
        """Return the most by which any two changes put the release apart, at most, ``(m,)``."""
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
        return np.asarray(most.max(axis=(1, 2)))


@dataclass(frozen=True)
class Alternatives:
    """What a record might have been: K values of some columns, or K labels.

    Parameters
    ----------
    columns
        The columns that may differ, by position.
    values
        Their values, ``(K, len(columns))``.
    labels
        The labels as the model takes them, ``(K, …)``; the record's own if not given.
    """

    columns: tuple[int, ...] = ()
    values: np.ndarray | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels if self.values is None else self.values)  # type: ignore[arg-type]


class FiniteChanges(ABC):
    """How far one release moves under finite changes of single records.

    Attributes
    ----------
    records
        How many records there are.
    work
        About how many multiplications one refit takes.
    target
        The labels as the model takes them.
    """

    records: int
    work: float
    target: np.ndarray

    @abstractmethod
    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out, K = 1, certified."""

    @abstractmethod
    def without_exactly(self, sets: list[np.ndarray]) -> Moves:
        """Return the moves when records leave together, by refits."""

    @abstractmethod
    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves when each of some records becomes each alternative, certified."""

    @abstractmethod
    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the same by refits."""

    @abstractmethod
    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how likely the model fitted without a record finds it with each alternative.

        Logarithms, up to a constant for each record, ``(m, K)``, and the error of those of a
        record, ``(m,)``. ``refits`` limits how many records are refitted, if the release knows
        another way.
        """

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record of a classifier may have, ``(K, …)``."""
        raise InputError("The label of this model is a number, not a class; use leak.within().")


class ComposedChanges(FiniteChanges):
    """Several independent releases under the same changes."""

    def __init__(self, parts: list[FiniteChanges]) -> None:
        self.parts = parts
        self.records, self.target = parts[0].records, parts[0].target
        self.work = sum(part.work for part in parts)

    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out."""
        return _sum([part.without(rows) for part in self.parts])

    def without_exactly(self, sets: list[np.ndarray]) -> Moves:
        """Return the moves when records leave together, by refits."""
        return _sum([part.without_exactly(sets) for part in self.parts])

    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves when each of some records becomes each alternative."""
        self._check(others)
        return _sum([part.replaced(rows, others) for part in self.parts])

    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the same by refits."""
        self._check(others)
        return _sum([part.replaced_exactly(rows, others) for part in self.parts])

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Refuse: several models predict differently."""
        raise InputError("The prior 'model' needs a single release; give another prior.")

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
                "These releases have different labels, so no guess of the label is about all of "
                "them; ask about each by itself."
            )


def _sum(moves: list[Moves]) -> Moves:
    total = moves[0]
    for other in moves[1:]:
        total = total + other
    return total
