"""The interface of a measurable release: products with its Jacobian.

Every measure is a functional of the Jacobian ``J`` of a release with respect to the data, whitened
by the release's noise. The information about a block of the table is ``JᵀJ``, with ``J`` the
block's columns. :class:`ReleaseJacobian` represents ``J`` for a set of records, and
:class:`MeasuredRelease` returns it for any chunk of records. :class:`EntryJacobian` computes every
result from the entries of ``J``, and :class:`AnswerAccuracy` computes the accuracy of the results.

:func:`largest_eigenvalues` and :func:`inverse_gram_diagonal` compute eigenvalues and inverses of
many information matrices at once; :func:`block_norms`, :func:`inverses` and others use them, or a
closed form of the release if there is one. :class:`Refits` and
:class:`~seepage.core.finite_changes.FiniteChanges` measure finite changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from seepage.core.finite_changes import FiniteChanges
from seepage.errors import InputError, nearest
from seepage.support.chunks import by_rows, progress, row_slices
from seepage.tables.source import Array, Chunk, RowSource

WIDE_CHUNK = 1 << 21  # numbers held at a time where every row comes with whole matrices
SUMS_HELD = 1 << 25  # numbers in the sums of all groups or attributes at a time
DENSE_LIMIT = 48  # up to this size a dense eigenvalue problem is cheaper than an iteration


# What is unknown of a record ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Unknowns:
    """The unknown directions of one record.

    Parameters
    ----------
    columns
        The unknown columns; ``None`` means all columns.
    label
        Whether the label is unknown too.
    basis
        A basis ``V`` of shape ``(len(columns), t)``; if given, only the directions that it spans
        are unknown. Changes in other directions are impossible, as for a one-hot attribute on its
        simplex.
    """

    columns: tuple[int, ...] | None
    label: bool
    basis: np.ndarray | None = None

    def of(self, values: Array, axis: int = 0) -> Array:
        """Restrict the column axis of an array to the unknown directions."""
        xp = array_namespace(values)
        if self.columns is not None:
            where = xp.asarray(self.columns, dtype=xp.int64, device=values.device)
            values = xp.take(values, where, axis=axis)
        if self.basis is None:
            return values
        basis = xp.asarray(self.basis, dtype=values.dtype, device=values.device)
        return xp.moveaxis(xp.moveaxis(values, axis, -1) @ basis, -1, axis)

    def back(self, values: Array, columns: int) -> Array:
        """Map the first axis from the unknown directions back to all columns."""
        xp = array_namespace(values)
        if self.basis is not None:
            values = xp.asarray(self.basis, dtype=values.dtype, device=values.device) @ values
        if self.columns is None:
            return values
        out = xp.zeros((columns, *values.shape[1:]), dtype=values.dtype, device=values.device)
        out[list(self.columns), ...] = values
        return out

    def same_features(self, other: Unknowns) -> bool:
        """Return whether the unknown features are the same, regardless of the label."""
        return self.columns == other.columns and self.basis is other.basis

    def features(self, columns: int) -> int:
        """Return the number of unknown directions among the ``columns`` features."""
        if self.basis is not None:
            return int(self.basis.shape[1])
        return columns if self.columns is None else len(self.columns)

    def count(self, jacobian: Any) -> int:
        """Return the number of unknowns of one record, label included."""
        label = jacobian.label_size if self.label else 0
        return self.features(jacobian.features) + int(label)


class Attributes:
    """Attributes of a table: single columns, or several columns under one name.

    Columns that form one attribute, such as the one-hot columns of a category, are known from the
    source or declared by the caller.
    """

    def __init__(
        self, source: RowSource, declared: Mapping[str, Sequence[str | int]] | None = None
    ) -> None:
        self.source, self.names = source, source.names
        self._positions: dict[str, int] = {}
        for j, name in enumerate(self.names):
            self._positions.setdefault(name, j)
        self.declared: dict[str, tuple[int, ...]] = {}
        owner: dict[int, str] = {}
        for name, columns in {**source.attributes, **(declared or {})}.items():
            members = tuple(self._column(c) for c in columns)
            if not members:
                raise InputError(
                    f"The attribute {name!r} is declared without a column; name at least one."
                )
            for j in members:
                if j in owner:
                    raise InputError(
                        f"Column {self.names[j]!r} belongs to both {owner[j]!r} and {name!r}; "
                        "remove it from one of these attributes."
                    )
                owner[j] = name
            self.declared[str(name)] = members
        self._owner = owner

    def each(self, simplex: bool) -> tuple[list[str], list[Unknowns]]:
        """Return every attribute's name and unknowns, in the order of their first columns."""
        names: list[str] = []
        unknowns: list[Unknowns] = []
        for j, column in enumerate(self.names):
            name = self._owner.get(j)
            if name is None:
                names.append(column)
                unknowns.append(Unknowns((j,), False))
            elif self.declared[name][0] == j:
                names.append(name)
                members = self.declared[name]
                basis = self._basis([members]) if simplex else None
                unknowns.append(Unknowns(members, False, basis))
        return names, unknowns

    def unknowns(
        self,
        columns: str | int | Sequence[str | int] | None,
        label: bool | None = None,
        simplex: bool = False,
    ) -> tuple[Unknowns, str]:
        """Return the unknowns that ``columns`` select, and their description.

        By default, the label is unknown unless columns are named.
        """
        label = columns is None if label is None else bool(label)
        and_label = " and the label" if label else ""
        if columns is None:
            about = f"all columns{and_label}"
            if not simplex:
                return Unknowns(None, label), about
            blocks = [u.columns or () for u in self.each(False)[1]]
            # In the order of the attributes, which is that of the basis.
            every = tuple(j for block in blocks for j in block)
            return Unknowns(every, label, self._basis(blocks)), about
        asked = [columns] if isinstance(columns, str | int | np.integer) else list(columns)
        if not asked and not label:
            raise InputError("No column was named; name at least one column, or pass label=True.")
        own = self.declared
        blocks = [own[n] if isinstance(n, str) and n in own else (self._column(n),) for n in asked]
        flat = [j for block in blocks for j in block]
        if len(set(flat)) < len(flat):
            twice = next(j for j in flat if flat.count(j) > 1)
            raise InputError(f"Column {self.names[twice]!r} was named twice; name it once.")
        shown = ", ".join(str(n) if isinstance(n, str) else self.names[n] for n in asked)
        about = f"{shown}{and_label}" if asked else "the label"
        return Unknowns(tuple(flat), label, self._basis(blocks) if simplex else None), about

    def _column(self, name: str | int) -> int:
        d = len(self.names)
        if isinstance(name, int | np.integer) and not isinstance(name, bool):
            if not -d <= name < d:
                raise InputError(f"There is no column {name}; choose columns from 0 to {d - 1}.")
            return int(name) % d
        if str(name) not in self._positions:
            known = [*self.declared, *self.names] if hasattr(self, "declared") else []
            raise InputError(
                f"There is no column {name!r} among the features{nearest(name, known)}. The label "
                "has no column name: to measure it, leave the column out or pass None."
            )
        if self.names.count(str(name)) > 1:
            raise InputError(f"Several columns are called {name!r}; pass their positions instead.")
        return self._positions[str(name)]

    def _basis(self, blocks: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Return a basis of the directions in which every one-hot attribute keeps its sum."""
        for block in blocks:
            if len(block) > 1:
                self._check_complete(block)
        from scipy.linalg import block_diag

        bases = [simplex_basis(len(b)) if len(b) > 1 else np.eye(1) for b in blocks]
        return np.asarray(block_diag(*bases))

    def _check_complete(self, block: tuple[int, ...]) -> None:
        sums = self.source.total(partial(_sums_of_columns, block=block), "one-hot columns")
        if sums.other is not None:
            name = self._owner.get(block[0], self.names[block[0]])
            raise InputError(
                f"The columns of {name!r} do not have the same sum in every row (rows 0 and "
                f"{sums.other} differ), so they are not a complete one-hot attribute: a level was "
                "dropped, or they were scaled. Pass simplex=False."
            )


@dataclass(frozen=True)
class _SumsOfColumns:
    """Stores the sum of some columns in the first row, and the first row with a different sum."""

    first: float
    start: int
    other: int | None

    def __add__(self, other: _SumsOfColumns) -> _SumsOfColumns:
        row = self.other
        if row is None:
            apart = abs(other.first - self.first) > _SAME_SUM
            row = other.start if apart else other.other
        return _SumsOfColumns(self.first, self.start, row)


_SAME_SUM = 1e-6  # one-hot columns add up to 1, but in single precision only about


def _sums_of_columns(chunk: Chunk, block: tuple[int, ...]) -> _SumsOfColumns:
    xp = array_namespace(chunk.X)
    sums = xp.sum(xp.stack([chunk.X[:, j] for j in block]), axis=0)
    off = xp.abs(sums - sums[0]) > _SAME_SUM
    row = chunk.start + int(xp.argmax(xp.astype(off, xp.int64))) if bool(xp.any(off)) else None
    return _SumsOfColumns(float(sums[0]), chunk.start, row)


def simplex_basis(levels: int) -> np.ndarray:
    """Return an orthonormal basis, ``(levels, levels − 1)``, of the directions that sum to zero."""
    # Imported here, so that training needs only torch and numpy.
    from scipy.linalg import helmert

    return np.asarray(helmert(levels).T)


# The operator -------------------------------------------------------------------------------------


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
        """Return the relative errors of η for all records, given η²."""
        raise NotImplementedError

    def cells(self, squared: Array, unknowns: Unknowns) -> Array:
        """Return the relative errors of η for all cells, given η²."""
        raise NotImplementedError

    def block(self, squared: float, unknowns: Unknowns, rows: Array) -> float:
        """Return the error of η for the unknowns of some records together."""
        raise NotImplementedError

    def columns(self, squared: Array, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the error of η for each attribute of some records together."""
        raise NotImplementedError

    # Of records that are read in chunks: what they add to the error of a block adds up.

    def row_terms(self, unknowns: Unknowns) -> Array:
        """Return each record's contributions to the e terms of a block's error, ``(n, e)``."""
        raise NotImplementedError

    def column_terms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the rows' contributions to each attribute's error, ``(len(attributes), e)``."""
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
    functions below, such as :func:`inverses`.

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
        """Return ``J z``, ``(P,)``, for changes ``z (len(rows), q)`` of q unknowns per row."""

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
        """Return the information about each of t unknown features, all else known, ``(n, t)``."""
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
        """Return :meth:`block_sums` of these rows for every attribute; these also add up."""
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


# The largest eigenvalue and the inverse of many information matrices ------------------------------


def largest_eigenvalues(apply: Callable[[Array], Array], like: Array) -> Array:
    """Return the largest eigenvalue of each of a batch of symmetric matrices.

    ``apply`` multiplies each matrix by its own vector, from ``(m, k)`` to ``(m, k)``; ``like`` is
    an array of that shape on the batch's device. Matrices up to :data:`DENSE_LIMIT` in size are
    computed in full and decomposed. For larger matrices, the Lanczos method runs for all of them at
    once, with full reorthogonalisation. It stops when the residual of the leading Ritz pair is
    below ``1e-10`` of its value (``1e-6`` in single precision; the value's error is far smaller),
    or when the whole space is spanned and the result is exact.
    """
    xp = array_namespace(like)
    if like.shape[1] <= DENSE_LIMIT:
        units = xp.eye(like.shape[1], dtype=like.dtype, device=like.device)
        columns = [apply(xp.zeros_like(like) + unit[None, :]) for unit in units]
        matrices = xp.stack(columns, axis=2)
        return dense_largest((matrices + xp.matrix_transpose(matrices)) / 2)
    # One fixed start for all, so that the same question always gets the same answer.
    start = np.random.default_rng(0).standard_normal(like.shape[1])
    start = xp.zeros_like(like) + xp.asarray(start, dtype=like.dtype, device=like.device)
    # Relative, of the residual: a Ritz value is accurate to its square over the gap.
    tolerance = max(1e-10, 8 * float(xp.finfo(like.dtype).eps))
    # A decomposition costs about as much as four steps.
    return leading_ritz_values(apply, start, tolerance, like.shape[1], every=4)[0]


def dense_largest(matrices: Array) -> Array:
    """Return the largest eigenvalue of each symmetric matrix in a batch, or zero if negative."""
    xp = array_namespace(matrices)
    single = matrices.shape[-1] == 1
    values = matrices[..., 0, 0] if single else xp.linalg.eigvalsh(matrices)[..., -1]
    return xp.where(values > 0, values, xp.zeros_like(values))


def leading_ritz_values(
    apply: Callable[[Array], Array], start: Array, tolerance: float, most: int, every: int = 1
) -> tuple[Array, Array, Array, int]:
    """Return each matrix's leading Ritz value, its residual, and the Lanczos remainder.

    The Lanczos method runs with full reorthogonalisation from the vectors ``start (m, k)``. It
    stops when every residual, relative to its Ritz value, is at most ``tolerance`` (checked every
    ``every`` steps), or after ``most`` steps. The remainder is the norm of the next direction,
    which is zero once an invariant subspace is spanned. The last return value is the number of
    steps.
    """
    xp = array_namespace(start)
    vector = start / xp.sqrt(xp.vecdot(start, start))[:, None]
    basis = vector[:, None, :]
    diagonal: list[Array] = []
    beside: list[Array] = []
    eps = float(xp.finfo(start.dtype).eps)
    scale = xp.zeros_like(start[:, 0])
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
        if steps % every == 0 or steps >= most:
            values, vectors = xp.linalg.eigh(_tridiagonal(diagonal, beside))
            residual = length * xp.abs(vectors[:, -1, -1])
            leading = values[:, -1]
            leading = xp.where(leading > 0, leading, xp.zeros_like(leading))
            if steps >= most or bool(xp.all(residual <= tolerance * leading)):
                return leading, residual, length, steps
        inverse = xp.where(length > 0, 1 / xp.where(length > 0, length, 1.0), 0.0)
        vector = image * inverse[:, None]
        basis = xp.concat([basis, vector[:, None, :]], axis=1)


def _tridiagonal(diagonal: list[Array], beside: list[Array]) -> Array:
    """Return tridiagonal matrices with these diagonal and off-diagonal entries."""
    xp = array_namespace(diagonal[0])
    like = {"dtype": diagonal[0].dtype, "device": diagonal[0].device}
    middle, side = (xp.stack(entries, axis=1)[:, :, None] for entries in (diagonal, beside))
    above = side * xp.eye(len(diagonal), k=1, **like)
    return middle * xp.eye(len(diagonal), **like) + above + xp.matrix_transpose(above)


def inverse_gram_diagonal(J: Array, accuracy: Array) -> tuple[Array, Array]:
    """Return the diagonal of ``(JᵀJ)⁻¹`` of each matrix and its relative errors, both ``(m, k)``.

    The columns of ``J``, ``(m, P, k)``, are first scaled to equal norm, and ``JᵀJ`` is never
    computed. The diagonal is infinite if the columns' relative errors, ``accuracy (m,)``, cannot
    rule out linear dependence.
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
    regular = values[:, -1] > 4 * off  # below, a singular value may as well be zero
    safe = xp.where(regular[:, None], values, xp.ones_like(values))
    diagonal = xp.sum((rows / safe[:, :, None]) ** 2, axis=1) * scale * scale
    error = 2 * off / xp.where(regular, values[:, -1], xp.ones_like(off))
    diagonal = xp.where(regular[:, None], diagonal, xp.full_like(diagonal, float("inf")))
    error = xp.where(regular, error, xp.zeros_like(error))
    return diagonal, xp.zeros_like(diagonal) + error[:, None]


# Measures from the Jacobian of any release --------------------------------------------------------


def block_norms(
    jacobian: ReleaseJacobian, unknowns: Unknowns, blocks: Sequence[Array]
) -> list[float]:
    """Return the largest eigenvalue of the information about these unknowns of each block."""
    every = progress(blocks, "groups")
    return [float(jacobian.column_norms([unknowns], rows)[0]) for rows in every]


def column_traces(jacobian: ReleaseJacobian, attributes: list[Unknowns], rows: Array) -> Array:
    """Return the trace of the information about each attribute, summed over the rows."""
    xp = array_namespace(jacobian.X)

    def cells(unknowns: Unknowns) -> Array:
        return xp.sum(jacobian.cell_information(unknowns)[rows, :], axis=0)

    every = cells(Unknowns(None, False))
    # A trace is a sum over cells, and columns share theirs; a basis needs its own directions.
    each = (u.of(every) if u.basis is None else cells(u) for u in attributes)
    return xp.stack([xp.sum(own) for own in each])


def columns_at_once(jacobian: ReleaseJacobian) -> int:
    """Return the approximate number of attributes to pass to ``column_sums`` at a time."""
    return jacobian.features if jacobian.sums_of_all else max(1, SUMS_HELD // jacobian.size**2)


def inverses(
    jacobian: ReleaseJacobian, unknowns: Unknowns, rows: Array | None = None
) -> tuple[Array, Array]:
    """Return the diagonal of the inverse information about each row, and its relative errors.

    Both have shape ``(n, q)``. For a subset of m rows, both have shape ``(m, q)``, and no closed
    form is used. An entry is infinite if the inverse does not exist: no unbiased estimate then has
    a finite error. The computation uses the singular values of the whitened Jacobian, since
    computing the information matrix would square its condition number.
    """
    form = jacobian.inverse_form(unknowns) if rows is None else None
    if form is not None:
        return form.diagonals()
    xp = array_namespace(jacobian.X)
    chosen = every_row(jacobian) if rows is None else rows

    def invert(piece: slice) -> Array:
        J = jacobian.row_jacobians(unknowns, chosen[piece])
        off = jacobian.accuracy.entries(J, unknowns, chosen[piece])
        return xp.stack(inverse_gram_diagonal(J, xp.max(off, axis=1)), axis=2)

    width = 3 * jacobian.size * unknowns.count(jacobian)
    both = by_rows(invert, int(chosen.shape[0]), width, chunk=WIDE_CHUNK, what="inverting")
    return both[:, :, 0], both[:, :, 1]


def inverse_traces(jacobian: ReleaseJacobian, unknowns: Unknowns) -> tuple[Array, Array]:
    """Return each row's trace of the inverse information, and its relative error, both ``(n,)``."""
    form = jacobian.inverse_form(unknowns)
    if form is not None:
        return form.traces()
    diagonal, errors = inverses(jacobian, unknowns)
    xp = array_namespace(jacobian.X)
    return xp.sum(diagonal, axis=1), xp.max(errors, axis=1)


def inverse_work(jacobian: ReleaseJacobian, unknowns: Unknowns) -> float:
    """Return the approximate number of multiplications for the inverse information of a row."""
    form = jacobian.inverse_form(unknowns)
    return float(unknowns.count(jacobian)) ** 3 if form is None else form.work


# The release --------------------------------------------------------------------------------------


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
        """A bound on how far replacing a record moves the release, for any data, or ``None``."""
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
            "changed; measure the parameters of such a model."
        )

    def finite_changes(self) -> FiniteChanges:
        """Return how far the release moves if any row is left out or replaced.

        Distances are in units of the noise; the risks are computed from them.
        """
        raise InputError(
            "The effect of leaving out or changing a record is not known for this release; risks "
            "need a linear model fitted on a table in memory."
        )

    def changes_in_chunks(self, source: RowSource) -> Callable[[Chunk], FiniteChanges]:
        """Return a function that gives certified finite changes for a chunk of the source."""
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
        The records, ``(n, d)``, and their labels as numbers, as NumPy arrays.
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
