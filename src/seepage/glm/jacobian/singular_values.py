"""Leverages and solutions ``H⁻¹x̃`` of records without the difference of nearly equal numbers.

Let ``d_j = ω_j a_j`` be the records' curvatures, and ``A = U S Vᵀ`` the table of the rows
``√d_j (x_j − x̄)``, with ``x̄`` their mean weighted by ``d`` where there is an intercept (else 0),
and ``e_j = √(d_j/Σd)`` the unit vector to which the columns of ``U`` are then orthogonal. With the
ridge λ on the coefficients and none on the intercept::

    h_i     = d_i x̃_iᵀH⁻¹x̃_i = e_i² + Σ_k u_ik² s_k²/(s_k² + λ)
    1 − h_i = Σ_k u_ik² λ/(s_k² + λ) + (1 − e_i² − ‖u_i‖²)
    H⁻¹x̃_i  = (w, 1/Σd − x̄ᵀw),        w = V S/(S² + λ) u_i / √d_i
    √d_i r_i = −u_iᵀ λ/(S² + λ) Uᵀt − (t − UUᵀt)_i        of least squares,  t = (I − eeᵀ)√d y

The bracket is what lies outside the span of e and U: nothing, where there are no more records than
columns. The inverse of ``AᵀA + λ`` loses these numbers there: its entries grow like 1/λ, while
``1 − h`` shrinks like λ, so that its relative error grows like 1/λ². Here errors grow like the root
of the condition number, as those of the decomposition do.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

_EPS = float(np.finfo(float).eps)
_BACKWARD = 8 * _EPS  # the error of a decomposition, relative to the largest singular value


class SingularValues:
    """The decomposition of one table of records of one output.

    Parameters
    ----------
    X
        The records, (n, d).
    curvature
        ``ω a``, (n,). Records without any have no part in the Hessian.
    ridge
        λ, on all coefficients but the intercept.
    intercept
        Whether there is one.

    Attributes
    ----------
    shares, left
        ``h`` and ``1 − h``, (n,).
    lengths
        ``x̃ᵀH⁻¹x̃``, (n,).
    error
        How far rounding may move ``left`` and ``H⁻¹x̃``, relative to them, (n,).
    """

    def __init__(self, X: np.ndarray, curvature: np.ndarray, ridge: float, intercept: bool) -> None:
        self.counted = counted = curvature > 0
        d = curvature[counted]
        self.root = root = np.sqrt(d)
        self.ridge = ridge
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
        U, sure = self._precise_rows(U, S, table, e)

        self.shares, self.left = np.zeros(len(X)), np.ones(len(X))
        self.shares[counted] = e**2 + U**2 @ kept
        self.left[counted] = left = U**2 @ shrunk + self._outside(U, e)
        self.lengths = np.zeros(len(X))
        self.lengths[counted] = self.shares[counted] / d
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
        self.error = np.zeros(len(X))
        self.error[counted] = _BACKWARD * np.where(np.isnan(error), np.inf, error)

    def _outside(self, U: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return how much of every record lies outside the span of e and U, squared, (n,)."""
        if self.whole:
            return np.zeros(len(U))
        return np.asarray(np.maximum(1 - e**2 - np.sum(U**2, axis=1), 0.0))

    def _missed(self, U: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return ``‖e_i − A H⁻¹Aᵀe_i‖`` without the part along e, (n,)."""
        return np.asarray(
            np.sqrt(np.sum((U * self.ridge / self.curved) ** 2, axis=1) + self._outside(U, e))
        )

    def _precise_rows(
        self, U: np.ndarray, S: np.ndarray, table: np.ndarray, e: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return U with the more precise of two rows for every record, and what its error is worth.

        An error ΔA of the table moves ``w = H⁻¹Aᵀe_i`` by ``H⁻¹ΔAᵀ(e_i − Aw) − H⁻¹AᵀΔAw``. With the
        record's own row in place of ``Aᵀe_i`` the first term is ``H⁻¹ΔAᵀAw``, and the row's own
        rounding: less, where the record has hardly any leverage.
        """
        missed = self._missed(U, e)
        own = np.linalg.norm(U * S**2 / self.curved, axis=1)
        own += np.linalg.norm(table, axis=1) / max(self.scale, 1e-300)
        by_row = own < missed
        rows = table @ self.directions.T / np.where(S > 0, S, 1.0)
        return np.where(by_row[:, None], rows, U), np.minimum(own, missed)

    def solved(self, rows: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` of some records, (m, P); zero for records without curvature."""
        moved = self._along[rows] @ self.directions
        return self._with_intercept(moved, np.where(self.shares[rows] > 0, 1 / self.total, 0.0))

    def solved_columns(self, columns: list[int]) -> np.ndarray:
        """Return ``H⁻¹e`` of some columns, (len(columns), P)."""
        at = self.directions[:, columns].T
        moved = (at / self.curved) @ self.directions
        if self.directions.shape[0] < self.directions.shape[1]:  # what no record sees
            unseen = -at @ self.directions
            unseen[np.arange(len(columns)), columns] += 1.0
            moved += unseen / self.ridge
        return self._with_intercept(moved, np.zeros(len(columns)))

    def least_squares_slopes(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the residuals ``m − y`` of least squares, and their errors, (n,) each.

        Where the curvatures are the weights. Infinite errors for records without any.
        """
        U, S, shrunk = self.U, self.S, self.ridge / self.curved
        t = self.root * labels[self.counted]
        size = float(np.linalg.norm(t))
        t = t - self.e * (self.e @ t)
        seen = U.T @ t
        found = -(U @ (shrunk * seen))
        inside = np.linalg.norm(U * shrunk, axis=1)
        reach = self.scale * float(np.linalg.norm(S / self.curved * seen))
        lost = inside * (reach + size)
        if not self.whole:
            found -= t - U @ seen
            lost += reach + np.abs(t) + np.linalg.norm(U, axis=1) * size
        solved = np.linalg.norm(U * (S / self.curved), axis=1)
        lost += solved * self.scale * float(np.linalg.norm(found))
        lost += self.e * size
        slopes, errors = np.zeros(len(self.counted)), np.full(len(self.counted), np.inf)
        slopes[self.counted], errors[self.counted] = found / self.root, _BACKWARD * lost / self.root
        return slopes, errors

    def _with_intercept(self, moved: np.ndarray, at_mean: np.ndarray) -> np.ndarray:
        """Return vectors of coefficients with that of the intercept, whose centre is the mean."""
        if self.mean is None:
            return moved
        return np.hstack([moved, (at_mean - moved @ self.mean)[:, None]])


def _reflected(table: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return ``Q A`` with the reflection ``Q`` that exchanges a unit vector and the first axis."""
    # Q takes the vector to ±e₁; the sign that adds keeps the digits of v.
    v = unit.copy()
    v[0] += 1.0 if v[0] >= 0 else -1.0
    v /= np.linalg.norm(v)
    return np.asarray(table - 2 * np.outer(v, v @ table))
