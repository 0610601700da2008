"""The solver of a fit: ``H⁻¹`` applied to records, the leverages, and the remaining curvature.

Along its own direction, a record has the share ``h`` (its leverage) of the curvature, and the other
records have ``1 − h``. This share and ``H⁻¹x̃`` determine the fit without the record. Two classes
compute both quantities. :class:`Solver` uses the inverse of the Gram matrix, for one or more
outputs. Let κ be the condition number of H and ε the machine precision. The relative errors are
``εκ`` in ``H⁻¹x̃``, and therefore ``εκ/(1 − h)`` in the difference ``1 − h``. With a weak penalty λ
and more columns than records, ``1 − h`` is proportional to λ and κ to 1/λ, so all precision is
lost. :class:`SingularValues` avoids this subtraction.

Let ``d_j = ω_j a_j`` be the records' curvatures, and ``A = U S Vᵀ`` the table of the rows ``√d_j
(x_j − x̄)``. With an intercept, ``x̄`` is the mean of the rows weighted by ``d`` (otherwise 0), and
the columns of ``U`` are orthogonal to the unit vector ``e_j = √(d_j/Σd)``. With the ridge λ on the
coefficients only::

    h_i     = d_i x̃_iᵀH⁻¹x̃_i = e_i² + Σ_k u_ik² s_k²/(s_k² + λ)
    1 − h_i = Σ_k u_ik² λ/(s_k² + λ) + (1 − e_i² − ‖u_i‖²)
    H⁻¹x̃_i  = (w, 1/Σd − x̄ᵀw),        w = V S/(S² + λ) u_i / √d_i
    √d_i r_i = −u_iᵀ λ/(S² + λ) Uᵀt − (t − UUᵀt)_i        of least squares,  t = (I − eeᵀ)√d y

The last term of ``1 − h_i`` is the squared length of the record's part outside the span of e and U.
This length is zero if there are no more records than columns. Errors grow like the square root of
the condition number, as in the singular value decomposition.

**k records removed together** are treated as one record with k outputs. The shares of these records
are the eigenvalues of the records' block of ``D^½X̃H⁻¹X̃ᵀD^½``. The values ``1 − h`` are the
eigenvalues of ``I`` minus the block, computed without a difference as ``U_S λ/(S² + λ) U_Sᵀ`` plus
the part outside the span.

**Uniqueness.** The minimiser without a record is unique if the other records have curvature in
every direction, that is, if ``1 − h`` exceeds its error. Only :func:`others_decide` tests this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.linalg

from seepage.glm.changes.outputs import modes_of, symmetric_root
from seepage.support.chunks import row_slices
from seepage.support.double_double import EPS

_BACKWARD = 8 * EPS  # the error of a decomposition, relative to the largest singular value


def others_decide(error: np.ndarray) -> np.ndarray:
    """Return whether ``1 − h``, with this relative error, is certainly positive."""
    return np.asarray(error < 0.5)


def best_solver(plain: Solver) -> Solver:
    """Return the Gram-matrix solver, or :class:`SingularValues` if needed and more precise."""
    X, curvature = plain.X, plain.curvature
    # A decomposition takes about n d min(n, d) multiplications, and holds the table several times.
    affordable = X.size * min(X.shape) <= 1e10 and X.size <= 1 << 26
    if plain.outputs > 1 or not affordable:
        return plain
    d = curvature[:, 0, 0]
    lost = plain.rounding / np.maximum(1 - d * plain.own_products[0], EPS)
    worst = np.max(lost, initial=0.0, where=d > 0)
    if not worst > 1e-8:
        return plain
    decomposed = SingularValues(plain)
    return decomposed if np.max(decomposed.error) < worst else plain


class Whitened(Protocol):
    """Multiplies parameter changes by ``Φ^½``, to express them in units of the noise."""

    @property
    def reach(self) -> float:
        """The largest whitened length of a unit change."""

    def __call__(self, moves: np.ndarray) -> np.ndarray:
        """Return ``Φ^½v`` for vectors along the last axis."""

    def most(self, sizes: np.ndarray) -> np.ndarray:
        """Return upper bounds on the entries of ``Φ^½v``, for changes v of these sizes."""


@dataclass(eq=False)
class Solver:
    """``H⁻¹`` of a fit, from the inverse of the Gram matrix."""

    X: np.ndarray  # the records, (n, d)
    curvature: np.ndarray  # ``ω a`` of the outputs that matter, (n, c, c)
    inverse: np.ndarray  # ``H⁻¹``, (P, P): the feature is the slow index, the output the fast one
    ridge: float  # λ, on all coefficients but the intercept
    intercept: bool  # whether there is one
    whiten: Whitened

    @property
    def outputs(self) -> int:
        """The number c of free outputs."""
        return int(self.curvature.shape[1])

    @cached_property
    def rounding(self) -> float:
        """The relative rounding error of ``H⁻¹x̃``."""
        sizes = np.sqrt(np.diag(self.inverse))
        values = np.linalg.eigvalsh(self.inverse / (sizes[:, None] * sizes[None, :]))
        return 16 * EPS * float(values[-1] / max(values[0], EPS))

    def design(self, x: np.ndarray) -> np.ndarray:
        """Return ``x̃``: the rows, with a 1 appended for the intercept."""
        return np.hstack([x, np.ones((len(x), 1))]) if self.intercept else x

    def places(self, columns: list[int]) -> np.ndarray:
        """Return the positions of some columns' parameters, one per output."""
        c = self.outputs
        return np.asarray(np.array(columns, dtype=int)[:, None] * c + np.arange(c)).reshape(-1)

    def solved(self, rows: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` for sets of records, (m, k), by record and output, (m, kc, P)."""
        return self.solved_each(rows.reshape(-1)).reshape(len(rows), -1, len(self.inverse))

    def solved_each(self, rows: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` for single records, one vector per output, (m, c, P)."""
        return self._times_rows(self.inverse, self.X[rows])

    def _times_rows(self, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return a matrix times ``x̃`` for each row, one vector per output, (m, c, P)."""
        c, P, d = self.outputs, len(matrix), x.shape[1]
        by_column = matrix.reshape(P // c, c * P)
        shift = by_column[d:].sum(axis=0)  # that of the intercept, if there is one
        return np.asarray(x @ by_column[:d] + shift).reshape(len(x), c, P)

    def lost_to_cancelling(self, rows: np.ndarray) -> np.ndarray:
        """Return the effect of rounding on the whitened ``H⁻¹x̃`` of sets, (m, k) → (m,).

        Each entry of ``H⁻¹x̃`` is a sum over columns, whose terms may cancel. The rounding error is
        proportional to ``Σ_j |H⁻¹_ij x̃_j|``, which may far exceed the sum. If columns have very
        different units, these errors may dominate after whitening.
        """
        if self.outputs == 1 and rows.shape[1] == 1:
            return np.asarray(self._own_cancelling[rows[:, 0]])
        return self._cancelling(self.X[rows.reshape(-1)], len(rows))

    @cached_property
    def _own_cancelling(self) -> np.ndarray:
        """:meth:`lost_to_cancelling` for every record alone, for one output, (n,)."""
        lost = np.empty(len(self.X))
        for piece in row_slices(len(self.X), 2 * len(self.inverse)):
            x = self.X[piece]
            lost[piece] = self._cancelling(x, len(x))
        return lost

    def _cancelling(self, x: np.ndarray, sets: int) -> np.ndarray:
        sizes = self._times_rows(np.abs(self.inverse), np.abs(x))
        sizes = self.whiten.most(sizes).reshape(sets, -1)
        return np.asarray(4 * EPS * np.linalg.norm(sizes, axis=1))

    def solved_columns(self, columns: list[int]) -> np.ndarray:
        """Return ``H⁻¹e`` for columns, one vector per column and output, (len(columns)·c, P)."""
        return np.asarray(self.inverse[self.places(columns)])

    def lengths(self, rows: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """Return ``x̃ᵀH⁻¹x̃`` for sets of records, given their ``H⁻¹x̃``, (m, kc, kc)."""
        (m, k), c = rows.shape, self.outputs
        x = self.design(self.X[rows.reshape(-1)]).reshape(m, k, -1)
        if k == 1:
            by_column = solved.reshape(m, c, -1, c)
            return np.asarray(np.sum(by_column * x[:, 0, None, :, None], axis=2))
        products = np.einsum("mapc,mjp->majc", solved.reshape(m, k * c, -1, c), x)
        products = products.reshape(m, k * c, k * c)
        return np.asarray((products + np.swapaxes(products, 1, 2)) / 2)

    def share_left(
        self, rows: np.ndarray, curvature: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the principal directions of sets of records, their shares, and ``1 − h``.

        The result contains ``W`` (m, kc, kc), ``h`` and ``1 − h`` (m, kc), and the relative error
        of ``1 − h`` (m,). All are computed from the curvatures and the products ``x̃ᵀH⁻¹x̃``.
        """
        modes, shares = modes_of(curvature, lengths)
        left = 1 - shares
        with np.errstate(divide="ignore"):
            error = self.rounding * (1 + np.max(shares / np.maximum(left, 0.0), axis=1))
        return modes, shares, left, error

    def largest_share(self, rows: np.ndarray) -> float:
        """Return the largest share that these records have together in any direction."""
        root = symmetric_root(self.curvature[rows])
        weighted = np.einsum("np,nkl->nlpk", self.design(self.X[rows]), root)
        weighted = weighted.reshape(-1, len(self.inverse))
        return float(np.linalg.eigvalsh(weighted @ self.inverse @ weighted.T)[-1])

    @cached_property
    def own_products(self) -> np.ndarray:
        """The squares of three norms of each record's ``H⁻¹x̃``, for one output, (3, n)."""
        products = np.empty((3, len(self.X)))
        for piece in row_slices(len(self.X), 2 * len(self.inverse)):
            rows = np.arange(*piece.indices(len(self.X)))
            products[:, piece] = [one[:, 0, 0] for one in self._products(rows[:, None], [])]
        return products

    def products(self, rows: np.ndarray, columns: list[int]) -> tuple[np.ndarray, ...]:
        """Return the inner products of ``H⁻¹x̃`` and ``H⁻¹e``, (m, kc+w, kc+w), in three norms.

        The norms are those of the Hessian, the noise and the penalty. Each set of records, ``rows``
        (m, k), has one vector per record and output.
        """
        if self.outputs == 1 and rows.shape[1] == 1 and not columns:
            return tuple(self.own_products[:, rows, None])
        return self._products(rows, columns)

    def _products(self, rows: np.ndarray, columns: list[int]) -> tuple[np.ndarray, ...]:
        c, places = self.outputs * rows.shape[1], self.places(columns)
        V, C = self.solved(rows), self.solved_columns(columns)
        by_inverse = np.empty((len(rows), c + len(C), c + len(C)))
        by_inverse[:, :c, :c] = self.lengths(rows, V)
        by_inverse[:, :c, c:] = V[:, :, places]
        by_inverse[:, c:, :c] = np.swapaxes(V[:, :, places], 1, 2)
        by_inverse[:, c:, c:] = C[:, places]
        penalised = self.outputs * self.X.shape[1]
        by_noise = gram_of(self.whiten(V), self.whiten(C))
        return by_inverse, by_noise, gram_of(V[:, :, :penalised], C[:, :penalised])


class SingularValues(Solver):
    """``H⁻¹`` of a single-output fit, from the singular values of its table.

    Attributes
    ----------
    shares, left
        ``h`` and ``1 − h``, (n,).
    error
        Bounds on the relative rounding errors of ``left`` and ``H⁻¹x̃``, (n,).
    """

    def __init__(self, gram: Solver) -> None:
        X, ridge, intercept = gram.X, gram.ridge, gram.intercept
        super().__init__(X, gram.curvature, gram.inverse, ridge, intercept, gram.whiten)
        every = gram.curvature[:, 0, 0]
        self.counted = counted = every > 0  # records without any have no part in the Hessian
        d = every[counted]
        self.root = root = np.sqrt(d)
        self.mean: np.ndarray | None = None
        self.total = float(np.sum(d))
        table = X[counted]
        e = np.zeros(len(d))
        if intercept:
            self.mean = d @ table / self.total
            e = root / np.sqrt(self.total)
            # A reflection takes e to the first axis; the rest of the rows is orthogonal to it.
            table = _reflected(root[:, None] * (table - self.mean), e)[1:]
        else:
            table = root[:, None] * table
        U, S, self.directions = scipy.linalg.svd(table, full_matrices=False, check_finite=False)
        if intercept:
            table = _reflected(np.vstack([np.zeros(table.shape[1]), table]), e)
            U = _reflected(np.vstack([np.zeros(len(S)), U]), e)
        # The size of the table that rounding is relative to: before it was centred.
        self.scale = float(S.max(initial=0.0))
        if self.mean is not None:
            self.scale += float(np.sqrt(self.total) * np.linalg.norm(self.mean))
        self.curved = S**2 + ridge
        kept, shrunk, rate = S**2 / self.curved, ridge / self.curved, S / self.curved
        self.whole = len(S) + int(intercept) == len(d)
        U, sure, unseen = self._precise_rows(U, S, table, e)

        self.shares, self.left = np.zeros(len(X)), np.ones(len(X))
        self.shares[counted] = e**2 + U**2 @ kept
        self.left[counted] = left = U**2 @ shrunk + self._outside(U, e)
        # ``H⁻¹x̃`` in the basis V, (n, r).
        self._along = np.zeros((len(X), len(S)))
        self._along[counted] = U * rate / root[:, None]
        self.U, self.S, self.e = U, S, e

        # What an error of the table, as small beside it as rounding, does to both.
        size, missed = np.linalg.norm(U * rate, axis=1), self._missed(U, e)
        solved = sure / float(self.curved.min(initial=np.inf)) / np.where(size > 0, size, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self.scale * (solved + rate.max(initial=0.0) + 2 * missed * size / left) + 1
            if not self.whole:
                error += 2 / left
            # What the computed directions miss of a record's own row, only the penalty holds.
            lost = np.where(unseen > 0, unseen / ridge / size, 0.0)
        self.error = np.zeros(len(X))
        self.error[counted] = _BACKWARD * np.where(np.isnan(error), np.inf, error) + lost

    def _outside(self, U: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return the squared length of each record's part outside the span of e and U, (n,)."""
        if self.whole:
            return np.zeros(len(U))
        return np.asarray(np.maximum(1 - e**2 - np.sum(U**2, axis=1), 0.0))

    def _missed(self, U: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return ``‖e_i − A H⁻¹Aᵀe_i‖`` without the component along e, of shape (n,)."""
        inside = np.sum((U * self.ridge / self.curved) ** 2, axis=1)
        return np.asarray(np.sqrt(inside + self._outside(U, e)))

    def _precise_rows(
        self, U: np.ndarray, S: np.ndarray, table: np.ndarray, e: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return U with rows from the SVD or, where more precise, from the table, and their errors.

        Where a record's own row is used, also return the part of that row that no computed
        direction captures: with very little curvature, this part is lost in rounding.

        An error ΔA of the table changes ``w = H⁻¹Aᵀe_i`` by ``H⁻¹ΔAᵀ(e_i − Aw) − H⁻¹AᵀΔAw``. If the
        record's own row replaces ``Aᵀe_i``, the first term becomes ``H⁻¹ΔAᵀAw`` plus the rounding
        error of that row. The new term is smaller for a record of very low leverage.
        """
        missed = self._missed(U, e)
        own = np.linalg.norm(U * S**2 / self.curved, axis=1)
        own += np.linalg.norm(table, axis=1) / max(self.scale, 1e-300)
        by_row = own < missed
        rows = table @ self.directions.T
        unseen = np.where(by_row, np.linalg.norm(table - rows @ self.directions, axis=1), 0.0)
        rows = rows / np.where(S > 0, S, 1.0)
        return np.where(by_row[:, None], rows, U), np.minimum(own, missed), unseen

    def solved_each(self, rows: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` of these records, (m, 1, P), or zero for records without curvature."""
        moved = self._along[rows] @ self.directions
        at_mean = np.where(self.shares[rows] > 0, 1 / self.total, 0.0)
        return self._with_intercept(moved, at_mean)[:, None, :]

    def lost_to_cancelling(self, rows: np.ndarray) -> np.ndarray:
        """Return the additional rounding error of the whitened ``H⁻¹x̃`` of sets, (m, k) → (m,).

        :attr:`error` is relative to the length of ``H⁻¹x̃``. Little of this length may remain after
        whitening: for columns far from zero, the terms of the intercept cancel.
        """
        each = rows.reshape(-1)
        size = np.linalg.norm(self._along[each], axis=1)
        if self.mean is not None:
            size *= np.hypot(1.0, np.linalg.norm(self.mean))
        seen = np.linalg.norm(self.whiten(self.solved_each(each))[:, 0], axis=1)
        beyond = self.whiten.reach * size - seen
        lost = np.multiply(self.error[each], beyond, out=np.zeros(len(each)), where=beyond > 0)
        return np.asarray(np.linalg.norm(lost.reshape(rows.shape), axis=1))

    def solved_columns(self, columns: list[int]) -> np.ndarray:
        """Return ``H⁻¹e`` for some columns, of shape (len(columns), P)."""
        at = self.directions[:, columns].T
        moved = (at / self.curved) @ self.directions
        if self.directions.shape[0] < self.directions.shape[1]:  # what no record sees
            unseen = -at @ self.directions
            unseen[np.arange(len(columns)), columns] += 1.0
            moved += unseen / self.ridge
        return self._with_intercept(moved, np.zeros(len(columns)))

    def lengths(self, rows: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """Return ``x̃ᵀH⁻¹x̃`` for sets of records, (m, k, k); for one record it is ``h/d``."""
        d = self.curvature[rows, 0, 0]
        if rows.shape[1] == 1:
            h = self.shares[rows]
        else:
            U, e = self._rows(rows)
            h = (U * self.S**2 / self.curved) @ np.swapaxes(U, 1, 2) + e[:, :, None] * e[:, None]
        size = np.sqrt(d[:, :, None] * d[:, None, :])
        h = h.reshape(size.shape)
        return np.asarray(np.divide(h, size, out=np.zeros_like(size), where=size > 0))

    def share_left(
        self, rows: np.ndarray, curvature: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the result of :meth:`Solver.share_left`, without subtracting h from 1.

        For several records, let ``I − D^½X̃H⁻¹X̃ᵀD^½ = T C T``, where T contains the square roots
        of its diagonal. The relative error of every eigenvalue is at most that of C divided by C's
        smallest eigenvalue.
        """
        if rows.shape[1] == 1:
            modes, shares = modes_of(curvature, lengths)
            return modes, shares, self.left[rows], self.error[rows[:, 0]]
        k, root = rows.shape[1], np.sqrt(np.einsum("mkk->mk", curvature))
        U, e = self._rows(rows)
        rest = (U * self.ridge / self.curved) @ np.swapaxes(U, 1, 2)
        if not self.whole:
            rest -= U @ np.swapaxes(U, 1, 2) + e[:, :, None] * e[:, None]
        every = np.arange(k)
        rest[:, every, every] = self.left[rows]
        left, vectors = np.linalg.eigh(rest)
        size = np.sqrt(self.left[rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.nan_to_num(rest / (size[:, :, None] * size[:, None, :]))
            apart = np.maximum(np.linalg.eigvalsh(scaled)[:, 0], 0.0)
            error = k * self.error[rows].max(axis=1) / apart
            error += 4 * k * EPS * left[:, -1] / np.maximum(left[:, 0], 0.0)
        modes = root[:, :, None] * vectors
        shares = np.einsum("mab,mac,mcb->mb", modes, lengths, modes)
        return modes, np.maximum(shares, 0.0), left, np.where(np.isnan(error), np.inf, error)

    def _rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of U, (m, k, r), and of e for sets of records; zero without curvature."""
        place = np.cumsum(self.counted) - 1
        there = self.counted[rows]
        U = np.where(there[:, :, None], self.U[place[rows]], 0.0)
        return U, np.where(there, self.e[place[rows]], 0.0)

    def least_squares_slopes(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the residuals ``m − y`` of least squares and their errors, of shape (n,) each.

        The curvatures must equal the weights. Errors are infinite for records without curvature.
        """
        U, S, shrunk = self.U, self.S, self.ridge / self.curved
        t = self.root * labels[self.counted]
        size = float(np.linalg.norm(t))
        t = t - self.e * (self.e @ t)
        seen = U.T @ t
        residual = -(U @ (shrunk * seen))
        inside = np.linalg.norm(U * shrunk, axis=1)
        reach = self.scale * float(np.linalg.norm(S / self.curved * seen))
        lost = inside * (reach + size)
        if not self.whole:
            residual -= t - U @ seen
            lost += reach + np.abs(t) + np.linalg.norm(U, axis=1) * size
        solved = np.linalg.norm(U * (S / self.curved), axis=1)
        lost += solved * self.scale * float(np.linalg.norm(residual))
        lost += self.e * size
        slopes, errors = np.zeros(len(self.counted)), np.full(len(self.counted), np.inf)
        slopes[self.counted] = residual / self.root
        errors[self.counted] = _BACKWARD * lost / self.root
        return slopes, errors

    def _with_intercept(self, moved: np.ndarray, at_mean: np.ndarray) -> np.ndarray:
        """Append the intercept for centred columns to vectors of coefficients."""
        if self.mean is None:
            return moved
        return np.hstack([moved, (at_mean - moved @ self.mean)[:, None]])


def _reflected(table: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return ``Q A``, where the reflection ``Q`` exchanges a unit vector and the first axis."""
    # Q takes the vector to ±e₁; the sign that adds keeps the digits of v.
    v = unit.copy()
    v[0] += 1.0 if v[0] >= 0 else -1.0
    v /= np.linalg.norm(v)
    return np.asarray(table - 2 * np.outer(v, v @ table))


def gram_of(V: np.ndarray, C: np.ndarray, between: np.ndarray | None = None) -> np.ndarray:
    """Return the inner products of c vectors per record and w shared vectors, (m, c+w, c+w).

    ``between`` is the matrix of the inner product, by default the identity.
    """
    m, c, size = V.shape
    flat = V.reshape(m * c, size)
    through, shared = (flat, C) if between is None else (flat @ between, C @ between)
    out = np.empty((m, c + len(C), c + len(C)))
    out[:, :c, :c] = through.reshape(V.shape) @ np.swapaxes(V, 1, 2)
    out[:, :c, c:] = (through @ C.T).reshape(m, c, -1)
    out[:, c:, :c] = np.swapaxes(out[:, :c, c:], 1, 2)
    out[:, c:, c:] = shared @ C.T
    return out
