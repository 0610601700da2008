"""Models refitted with every candidate level of one record's attribute.

Let row i be ``x`` with its true level and ``x' = x + δ`` with another level. Let ``r`` be the slope
of the row's loss with respect to the margin, ``a`` the curvature and ``ω`` the weight; ``r'`` and
``a'`` are the slope and curvature at ``x'``. At the minimiser ``w`` of the known table's objective,
whose Hessian is ``H``, the changed objective has::

    gradient  g = U c,            U = [x δ],   c = ω (r' − r, r')
    Hessian   H' = H + U S Uᵀ,                 S = ω [[a' − a, a'], [a', a']]

so that one Newton step, with ``G = UᵀH⁻¹U``, is::

    Δ = −H'⁻¹ g = −H⁻¹U (I + S G)⁻¹ c

This step is a combination of ``H⁻¹x`` and ``H⁻¹δ``, with coefficients from 2×2 systems; there are
only a few different ``δ``. For linear regression the objective is quadratic and ``w + Δ`` is the
refit itself (a rank-two update).

Families other than linear regression need two Newton steps. Let ``m`` be a row's margin, and ``m'``
the margin of ``x'``. After the first step the gradient is::

    ρ = ½ Σ_{j≠i} ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j  +  ω (r(m' + x'ᵀΔ) − r' − a' x'ᵀΔ) x'  + O(Δ³)

The sum over the other rows is a tensor of third derivatives applied to ``Δ`` twice, so a candidate
needs no pass over the data. The second step is ``−H'⁻¹ρ``, computed with the same rank-two update;
the remaining error is of third order. On a large table this error is negligible for most rows; the
remaining rows, and all rows of a small table, are refitted.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn, cast

import numpy as np

from seepage.attacks.attribute.nominal import NominalAttribute
from seepage.core.jacobian import Refits
from seepage.errors import InputError
from seepage.glm.fitting.objective import Objective, cholesky_factor
from seepage.glm.losses import Family
from seepage.support.chunks import CHUNK, progress, row_slices

# Up to this many margins (rows × candidates) every candidate is refitted, which then takes seconds.
_AFFORDABLE = 1 << 20


class RankTwo(NamedTuple):
    """The rank-two changes of the Hessian for b rows with K candidate levels each.

    The second axis of the arrays is the candidate level; the change for a row's actual level is
    zero.
    """

    x: np.ndarray  # (b, P): the rows, with a last 1 for an intercept
    z: np.ndarray  # (b, P): H⁻¹x
    delta: np.ndarray  # (b, K, t): the change of the attribute's columns
    zeta: np.ndarray  # (b, K, P): H⁻¹δ
    weight: np.ndarray  # (b, 1): ω
    slope: np.ndarray  # (b, K): r'
    curvature: np.ndarray  # (b, 1): a
    new_curvature: np.ndarray  # (b, K): a'
    margin: np.ndarray  # (b, K): that of x + δ
    system: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # (b, K) each: I + S G
    determinant: np.ndarray  # (b, K): its determinant
    step: np.ndarray  # (b, K, P): Δ

    def along(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹U (I + S G)⁻¹ (first, second)``, (b, K, P)."""
        s11, s12, s21, s22 = self.system
        alpha = (s22 * first - s12 * second) / self.determinant
        beta = (s11 * second - s21 * first) / self.determinant
        return np.asarray(alpha[:, :, None] * self.z[:, None, :] + beta[:, :, None] * self.zeta)


class CandidateModels:
    """The models refitted with each level of each attacked row, minus the known fit.

    ``objective`` is the known table's objective, for a family with one margin; ``refits`` contains
    the objective's minimiser. Candidates for which two Newton steps are too inaccurate are
    refitted; ``refitted`` counts them. ``levels``, (n,), are the true levels of the known table's
    rows, and ``rows``, (m,), the attacked rows.
    """

    def __init__(
        self,
        objective: Objective,
        refits: Refits,
        attribute: NominalAttribute,
        levels: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        self.objective, self.refits, self.attribute = objective, refits, attribute
        self.theta = refits.theta
        self.family = cast(Family, objective.family)
        self.levels, self.rows = levels, rows
        self.margins = objective.margins(self.theta)
        self.inverse = _inverse(objective.hessian(self.margins))
        self.refitted = 0
        # Closed forms are made anew when they are asked for; what took longer is kept.
        self._moves = None if self.family.name == "gaussian" else self._by_newton()

    @property
    def size(self) -> int:
        """The number of parameters of a candidate, P."""
        return len(self.theta)

    def differences(self, which: slice) -> np.ndarray:
        """Return the refits minus the known fit, (b, K, P), for a slice of the attacked rows."""
        if self._moves is not None:
            return np.asarray(self._moves[which])
        return self.rank_two(self.rows[which], np.arange(len(self.attribute))[None, :]).step

    def rank_two(self, rows: np.ndarray, candidates: np.ndarray) -> RankTwo:
        """Return the changes of b rows for candidates: positions of levels, (b, K) or (1, K)."""
        codes, columns = self.attribute.codes, list(self.attribute.columns)
        own = self.levels[rows]
        x = design(self.objective, rows)
        z = x @ self.inverse
        delta = codes[candidates] - codes[own][:, None, :]
        steps = codes @ self.inverse[columns, :]
        zeta = steps[candidates] - steps[own][:, None, :]
        y, margin = self.objective.target[rows, None], self.margins[rows, None]
        new_margin = margin + delta @ self.theta[columns]
        weight = np.ones_like(y)
        if self.objective.sample_weight is not None:
            weight = self.objective.sample_weight[rows, None]
        slope, new_slope = self.family.slope(margin, y), self.family.slope(new_margin, y)
        a, new_a = self.family.curvature(margin, y), self.family.curvature(new_margin, y)

        gxx = np.sum(x * z, axis=1)[:, None]
        gxd = np.einsum("bt,bkt->bk", z[:, columns], delta)
        gdd = np.einsum("bkt,bkt->bk", zeta[:, :, columns], delta)
        bend = new_a - a
        system = (
            1 + weight * (bend * gxx + new_a * gxd),
            weight * (bend * gxd + new_a * gdd),
            weight * new_a * (gxx + gxd),
            1 + weight * new_a * (gxd + gdd),
        )
        # A sum without negative terms; the first shows what remains of H without the row.
        determinant = np.maximum(1 - weight * a * gxx, 0)
        determinant = determinant * (1 + weight * new_a * (gxx + 2 * gxd + gdd))
        determinant = determinant + weight**2 * a * new_a * (gxx + gxd) ** 2
        # A smaller determinant is rounding: without the row's level the data lack a direction.
        singular = np.argwhere(~(determinant > 1e-11))
        if len(singular):
            b, k = singular[0]
            self._refuse(rows[b], np.broadcast_to(candidates, determinant.shape)[b, k])
        row = (x, z, delta, zeta, weight, new_slope, a, new_a, new_margin)
        change = RankTwo(*row, system, determinant, np.empty(0))
        step = -change.along(weight * (new_slope - slope), weight * new_slope)
        return change._replace(step=step)

    def _refuse(self, row: int, level: int) -> NoReturn:
        """Raise an error, because the changed table has no unique minimiser."""
        raise InputError(
            f"With {self.attribute.levels[level]!r} for {self.attribute.name!r} in row {row}, the "
            "refit is not unique, because the columns are linearly dependent or the classes are "
            "separable. Set l2 above 0, or leave the row out of the attack (rows=)."
        )

    def _by_newton(self) -> np.ndarray:
        """Return the differences of all candidates, (m, K, P), from two Newton steps or a refit."""
        m, K = len(self.rows), len(self.attribute)
        moves = np.zeros((m, K, self.size))
        # A row's actual level needs no step.
        other = (self.levels[self.rows][:, None] + np.arange(1, K)) % K
        far = np.zeros((m, K), dtype=bool)
        # The tensor of larger models would not fit into memory.
        if len(self.margins) * m * K <= _AFFORDABLE or self.size**3 > 1 << 26:
            far[np.arange(m)[:, None], other] = True
        else:
            third = third_derivatives(self.objective, self.family, self.margins)
            for some in row_slices(m, 4 * K * self.size, what="candidate models"):
                at = np.arange(m)[some, None], other[some]
                moves[at], far[at] = self._two_steps(self.rows[some], other[some], third)
        self.refitted = int(far.sum())
        for place in progress(np.flatnonzero(far.any(axis=1)), "refits"):
            row, asked = int(self.rows[place]), np.flatnonzero(far[place])
            features = np.tile(self.refits.X[row], (len(asked), 1))
            features[:, list(self.attribute.columns)] = self.attribute.codes[asked]
            moves[place, asked] = self.refits.moves(row, features)
            lost = ~np.isfinite(moves[place, asked]).all(axis=1)
            if lost.any():
                self._refuse(row, asked[lost.argmax()])
        return moves

    def _two_steps(
        self, rows: np.ndarray, levels: np.ndarray, third: tuple[np.ndarray, list[np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the differences after two Newton steps, and a mask of inaccurate candidates."""
        change, columns = self.rank_two(rows, levels), list(self.attribute.columns)
        weights, tensor = third
        along = np.einsum("bp,bkp->bk", change.x, change.step)  # xᵀΔ and x'ᵀΔ
        new_along = along + np.einsum("bkt,bkt->bk", change.delta, change.step[:, :, columns])
        y = self.objective.target[rows, None]
        own = self.family.slope(change.margin + new_along, y) - change.slope
        own = change.weight * (own - change.new_curvature * new_along)
        # The tensor still includes the row's original term.
        counted = 0.5 * weights[rows, None] * along**2
        flat = change.step.reshape(-1, self.size)  # one product for all candidates, not one each
        remainder = sum((flat[:, p:] * flat[:, p : p + 1]) @ part for p, part in enumerate(tensor))
        residual = np.reshape(remainder, change.step.shape)
        residual += (own - counted)[:, :, None] * change.x[:, None, :]
        residual[:, :, columns] += own[:, :, None] * change.delta
        second = self._solve(change, residual)
        # On every table tried, the remainder after two steps was below the square of either of
        # these: the second step relative to the first, and the move of the row's own margin.
        first_size, second_size = (np.linalg.norm(v, axis=2) for v in (change.step, second))
        far = second_size > 1e-3 * first_size
        far |= np.maximum(np.abs(along), np.abs(new_along)) > 1e-2
        return change.step - second, far

    def _solve(self, change: RankTwo, right: np.ndarray) -> np.ndarray:
        """Return ``H'⁻¹`` times each right-hand side, (b, K, P), by Woodbury's formula."""
        plain = right @ self.inverse
        on_x = np.einsum("bp,bkp->bk", change.x, plain)
        on_delta = np.einsum("bkt,bkt->bk", change.delta, plain[:, :, list(self.attribute.columns)])
        bend = change.new_curvature - change.curvature
        first = change.weight * (bend * on_x + change.new_curvature * on_delta)
        second = change.weight * change.new_curvature * (on_x + on_delta)
        return np.asarray(plain - change.along(first, second))


def third_derivatives(
    objective: Objective, family: Family, margins: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return ``ω_j ∂a_j/∂m``, (n,), and ``½ Σ_j ω_j (∂a_j/∂m) x_j x_j x_j``.

    Applied twice to a Newton step, the tensor yields the gradient that remains after the step. The
    p-th part of the tensor, (P − p, P), contains the entries ``(p, q, r)`` with q ≥ p. Entries with
    q > p are doubled, since they also stand for ``(q, p, r)``.
    """
    if family.curvature_slope is not None:
        weights = np.asarray(family.curvature_slope(margins, objective.target))
    else:  # a difference, whose error is far below the remainder of two steps
        h = 1e-4
        up, down = (family.curvature(margins + s, objective.target) for s in (h, -h))
        weights = np.asarray(up - down) / (2 * h)
    if objective.sample_weight is not None:
        weights = weights * objective.sample_weight
    size = objective.shape[0]
    tensor = [np.zeros((size - p, size)) for p in range(size)]
    for rows in row_slices(len(weights), size, chunk=4 * CHUNK):
        x = design(objective, rows)
        for p, part in enumerate(tensor):
            part += x[:, p:].T @ ((weights[rows] * x[:, p])[:, None] * x)
    for part in tensor:
        part[0] /= 2  # the orders (p, q) and (q, p) are one entry, but (p, p) is itself
    return weights, tensor


def design(objective: Objective, rows: np.ndarray | slice) -> np.ndarray:
    """Return rows of the known table, with a final 1 if there is an intercept."""
    x = objective.X[rows, :]
    return np.hstack([x, np.ones((len(x), 1))]) if objective.intercept else np.asarray(x)


def _inverse(hessian: np.ndarray) -> np.ndarray:
    """Return ``H⁻¹``, computed from the Cholesky factor of ``H`` scaled to a unit diagonal."""
    sizes = np.sqrt(np.diagonal(hessian))
    scaling = np.outer(sizes, sizes)
    factor = cholesky_factor(hessian / scaling) if np.all(sizes > 0) else None
    if factor is None:
        raise InputError(
            "The columns of X are linearly dependent up to rounding, so refits are not unique; set "
            "l2 above 0, or drop a column."
        )
    inverse = factor.solve(np.eye(len(sizes))) / scaling
    return np.asarray(inverse + inverse.T) / 2
