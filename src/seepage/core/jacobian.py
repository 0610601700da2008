"""What a release offers so that its leakage can be measured: products with its Jacobian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from seepage.core.spectra import DENSE_LIMIT, dense_largest, inverse_diagonal, largest_eigenvalues
from seepage.core.unknowns import Unknowns
from seepage.support.chunks import by_rows, progress

Array = Any

WIDE_CHUNK = 1 << 22  # numbers held at a time where every row brings whole matrices along


class ReleaseJacobian(ABC):
    """The Jacobian of a release about the table ``X``, whitened by the release's noise.

    The information about a block of the table is ``JᵀJ`` with ``J`` the block's columns. Measures,
    bounds and reports ask only this class, and never where the Jacobian came from. A new kind of
    release implements the abstract methods; the others follow from them, and are overridden where
    a closed form is faster.
    """

    X: Array
    rows: int
    features: int
    target: Array  # the labels as numbers
    label_size: int  # the unknowns in one label
    size: int  # P: how many numbers are released

    @abstractmethod
    def row_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the information about each row, ``(n,)``."""

    @abstractmethod
    def cell_information(self, unknowns: Unknowns) -> Array:
        """Return the information about each unknown feature alone, ``(n, t)``."""

    @abstractmethod
    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Array]:
        """Return the function that gives each row's information matrix, ``(m, q, q)``."""

    @abstractmethod
    def column_traces(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the trace of the information about each attribute over the rows."""

    @abstractmethod
    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``Jᵀv`` for a vector of the whitened release, ``(len(rows), q)``."""

    @abstractmethod
    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Return ``J z`` for a change ``z (len(rows), q)`` of a block of the table, ``(P,)``."""

    def merged(self, other: ReleaseJacobian) -> ReleaseJacobian | None:
        """Return both releases as one where that is simpler than their composition."""
        return None

    def unknown_count(self, unknowns: Unknowns) -> int:
        """Count the unknown numbers of one row."""
        return unknowns.features(self.features) + self.label_size * unknowns.label

    def row_width(self, unknowns: Unknowns) -> int:
        """Return how many numbers the work on one row holds at a time."""
        return self.unknown_count(unknowns) ** 2 + self.size

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Array], Array]]:
        """Return, for some rows, the product of one vector per row with its information matrix."""
        information = self.row_information(unknowns)

        def operator(rows: slice) -> Callable[[Array], Array]:
            matrices = information(rows)
            return lambda v: (matrices @ v[:, :, None])[..., 0]

        return operator

    def row_norms(self, unknowns: Unknowns) -> Array:
        """Return the largest eigenvalue of the information about each row, ``(n,)``."""
        count = self.unknown_count(unknowns)
        if count <= DENSE_LIMIT:
            information = self.row_information(unknowns)
            width = self.row_width(unknowns) + count**2
            return by_rows(
                lambda rows: dense_largest(information(rows)), self.rows, width, chunk=WIDE_CHUNK
            )
        operator = self.row_operator(unknowns)

        def norms(rows: slice) -> Array:
            like = self.zeros(len(range(self.rows)[rows]), count)
            return largest_eigenvalues(operator(rows), like)

        # Lanczos keeps a few dozen vectors for each row.
        width = self.row_width(unknowns) + 40 * count
        return by_rows(norms, self.rows, width, chunk=2 * WIDE_CHUNK, what="rows")

    def inverse_diagonal(self, unknowns: Unknowns) -> Array:
        """Return the diagonal of the inverse information about each row, ``(n, q)``.

        Infinite where the inverse does not exist: no unbiased estimate has a finite error there.
        """
        information = self.row_information(unknowns)
        return by_rows(
            lambda rows: inverse_diagonal(information(rows)),
            self.rows,
            self.row_width(unknowns) + 2 * self.unknown_count(unknowns) ** 2,
            chunk=WIDE_CHUNK,
            what="inverting",
        )

    def inverse_traces(self, unknowns: Unknowns) -> Array:
        """Return the trace of the inverse information about each row, ``(n,)``."""
        return array_namespace(self.X).sum(self.inverse_diagonal(unknowns), axis=1)

    def block_norm(self, unknowns: Unknowns, rows: Array) -> float:
        """Return the largest eigenvalue of the information about these unknowns of these rows."""

        def apply(v: Array) -> Array:
            z = self.adjoint(v[0, :], unknowns, rows)
            return self.forward(z, unknowns, rows)[None, :]

        return float(largest_eigenvalues(apply, self.zeros(1, self.size))[0])

    def column_norms(self, attributes: list[Unknowns], rows: Array) -> Array:
        """Return the largest eigenvalue of the information about each attribute over the rows."""
        values = [self.block_norm(u, rows) for u in progress(attributes, "attributes")]
        return array_namespace(self.X).asarray(values, dtype=self.X.dtype, device=self.X.device)

    def zeros(self, *shape: int) -> Array:
        """Return zeros of that shape, of the type of the table and where it lives."""
        xp = array_namespace(self.X)
        return xp.zeros(shape, dtype=self.X.dtype, device=self.X.device)
