"""The models that a training set would have given, had one record had another level.

Let row i be ``x`` with the level it has and ``x' = x + δ`` with another; let ``r`` be the slope of
its loss, ``a`` the curvature and ``ω`` its weight, ``r'`` and ``a'`` those at ``x'``. At the
minimiser ``w`` of the known table, whose Hessian is ``H``, the changed objective has::

    gradient  g = U c,            U = [x δ],   c = ω (r' − r, r')
    Hessian   H' = H + U S Uᵀ,                 S = ω [[a' − a, a'], [a', a']]

so that one Newton step, with ``G = UᵀH⁻¹U``, is::

    Δ = −H'⁻¹ g = −H⁻¹U (I + S G)⁻¹ c

a combination of ``H⁻¹x`` and one of a few vectors ``H⁻¹δ``, with coefficients from 2×2 systems. For
linear regression the objective is quadratic and ``w + Δ`` is the refit itself (a rank-two update).

Other families take two warm Newton steps, and more where needed. The first step leaves the
gradient::

    ρ = ½ Σ_{j≠i} ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j  +  ω (r(m' + x'ᵀΔ) − r' − a' x'ᵀΔ) x'  + O(Δ³)

whose sum over the other rows is one tensor of third derivatives applied to ``Δ`` twice: no
candidate needs a pass over the data. The second step is ``−H'⁻¹ρ``, with the same rank-two update,
and leaves terms of third order. On a large table these are negligible for most rows; the others,
and all rows of a small table, take further steps with gradients over all rows. Candidates that
still do not converge are refitted from scratch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from seepage.attacks.attribute.nominal import NominalAttribute
from seepage.errors import InputError
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective, cholesky_factor
from seepage.glm.losses import Family
from seepage.support.chunks import CHUNK, progress, row_slices

# A smaller determinant of I + SG is rounding: without the row's level the data lack a direction.
_SINGULAR = 1e-11
# The remainder after two steps was below the square of either of these on every table tried: the
# second step relative to the first, and the move of the changed row's own margin.
_SECOND_STEP = 1e-3
_OWN_MOVE = 1e-2
_AFFORDABLE = 1 << 24  # margins: if a third step for all candidates needs no more, all take it
_SETTLED = 1e-7  # remainder allowed after further steps, relative to the whole move
_MOST_STEPS = 12
_DIFFERENCE = 1e-4  # between margins, for ∂a/∂m: its error is far below the remainder of two steps
_LARGEST_TENSOR = 1 << 26  # numbers
_CHUNK = 4 * CHUNK


class RankTwo(NamedTuple):
    """The changes made by a chunk of b rows with K candidate levels each, to second order.

    Candidates run along the second axis; a row's actual level is a change of zero.
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
    """The refits for every level of every row under attack, as differences from the known fit.

    ``objective`` is that of the known table, of a family with one margin, ``theta`` its minimiser,
    (P,), the intercept last; ``levels``, (n,), are the actual levels of the known table's rows, and
    ``rows``, (m,), the rows under attack.
    """

    def __init__(
        self,
        objective: Objective,
        theta: np.ndarray,
        attribute: NominalAttribute,
        levels: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        self.objective, self.theta, self.attribute = objective, theta, attribute
        self.family = cast(Family, objective.family)
        self.levels, self.rows = levels, rows
        margins = objective.margins(theta)
        self.inverse = _inverse(objective.hessian(margins))
        self.margins = margins

    @property
    def size(self) -> int:
        """The number of parameters of a candidate, P."""
        return len(self.theta)

    def differences(self, which: slice) -> np.ndarray:
        """Return the refits less the known fit, (b, K, P), for a slice of the rows under attack."""
        return self.rank_two(self.rows[which], np.arange(len(self.attribute))[None, :]).step

    def rank_two(self, rows: np.ndarray, candidates: np.ndarray) -> RankTwo:
        """Return the changes made by candidate levels, (b, K) or (1, K), of rows of the table."""
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
        self._check_unique(determinant, rows, candidates)
        row = (x, z, delta, zeta, weight, new_slope, a, new_a, new_margin)
        found = RankTwo(*row, system, determinant, np.empty(0))
        step = -found.along(weight * (new_slope - slope), weight * new_slope)
        return found._replace(step=step)

    def _check_unique(
        self, determinant: np.ndarray, rows: np.ndarray, candidates: np.ndarray
    ) -> None:
        """Raise where a changed Hessian is singular."""
        singular = ~(determinant > _SINGULAR)
        if not np.any(singular):
            return
        b, k = np.argwhere(singular)[0]
        level = self.attribute.levels[np.broadcast_to(candidates, singular.shape)[b, k]]
        raise InputError(
            f"With {level!r} for {self.attribute.name!r} in row {rows[b]} the columns are linearly "
            "dependent, so the model has no unique refit there; set l2 above 0, or leave the row "
            "out of those attacked (rows=)."
        )


class NewtonModels(CandidateModels):
    """Candidate models by warm Newton steps, all computed once and kept: K per row.

    ``further`` counts the candidates that took further steps, with gradients over all rows, and
    ``refitted`` those that had to be refitted from scratch.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        m, K = len(self.rows), len(self.attribute)
        self._third = ThirdDerivatives(self.objective, self.family, self.margins, m * K)
        # A row's actual level needs no step.
        self._differences = np.zeros((m, K, self.size))
        near = np.ones((m, K), dtype=bool)
        other = (self.levels[self.rows][:, None] + np.arange(1, K)) % K
        for some in row_slices(m, 4 * K * self.size, what="candidate models"):
            at = np.arange(m)[some, None], other[some]
            self._differences[at], near[at] = self._two_steps(self.rows[some], other[some])
        if len(self.margins) * near.size <= _AFFORDABLE:
            near[np.arange(m)[:, None], other] = False
        self.further = int(np.sum(~near))
        last = np.full((m, K), np.nan)
        for _ in range(_MOST_STEPS):
            places, levels = np.nonzero(~near)
            for some in row_slices(len(places), 64 * self.size, what="further steps"):
                at = places[some], levels[some]
                moved = self._further_step(places[some], levels[some], last[at])
                self._differences[at], near[at], last[at] = moved
        self._refit(np.argwhere(~near))
        self.refitted = int(np.sum(~near))

    def differences(self, which: slice) -> np.ndarray:
        """Return the refits less the known fit, (b, K, P), for a slice of the rows under attack."""
        return np.asarray(self._differences[which])

    def _two_steps(self, rows: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the differences after two steps, (b, K, P), and whether they suffice, (b, K)."""
        change = self.rank_two(rows, levels)
        along, new_along = self._own_margins(change, change.step)
        y = self.objective.target[rows, None]
        left = self.family.slope(change.margin + new_along, y) - change.slope
        left = change.weight * (left - change.new_curvature * new_along)
        # The tensor still includes the row's original term.
        counted = 0.5 * self._third.weights[rows, None] * along**2
        residual = self._third.apply(change.step) + self._on_own_row(change, -counted, left)
        second = self._solve(change, residual)
        near = _size(second) <= _SECOND_STEP * _size(change.step)
        near &= np.maximum(np.abs(along), np.abs(new_along)) <= _OWN_MOVE
        return change.step - second, near

    def _further_step(
        self, places: np.ndarray, levels: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Refine single candidates, (b, P); return also which converged and how far they moved."""
        rows = self.rows[places]
        change = self.rank_two(rows, levels[:, None])
        where = self._differences[places, levels][:, None, :]
        y, margins = self.objective.target[rows, None], self.margins[rows, None]
        with np.errstate(over="ignore", invalid="ignore"):  # diverging steps never settle
            along, new_along = self._own_margins(change, where)
            old = change.weight * self.family.slope(margins + along, y)
            new = change.weight * self.family.slope(change.margin + new_along, y)
            residual = self._gradient(where) + self._on_own_row(change, -old, new)
            step = self._solve(change, residual)
            where = where - step
            size, whole = _size(step)[:, 0], _size(where)[:, 0]
            # Steps shrink by a constant factor; the first here by as much as the two before it.
            rate = np.where(np.isnan(last), np.sqrt(size / whole), size / last)
            settled = size * rate <= _SETTLED * (1 - rate) * whole
            settled |= size <= 0.01 * _SETTLED * whole  # as small as rounding allows
        return where[:, 0], settled, size

    def _gradient(self, steps: np.ndarray) -> np.ndarray:
        """Return the gradient of the known objective at ``theta`` plus each step, (b, K, P)."""
        known = self.objective
        flat = steps.reshape(-1, self.size)
        out = known.ridge * flat
        if known.intercept:
            out[:, -1] = 0.0
        here = known.slopes(self.margins)
        for rows in row_slices(len(here), self.size + 4 * len(flat), chunk=4 * CHUNK):
            x = design(known, rows)
            margins = self.margins[rows] + flat @ x.T
            slopes = self.family.slope(margins, known.target[rows])
            if known.sample_weight is not None:
                slopes = slopes * known.sample_weight[rows]
            # Less the gradient at theta, which is zero up to the rounding of its many terms.
            out += (slopes - here[rows]) @ x
        return out.reshape(steps.shape)

    def _own_margins(self, change: RankTwo, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``xᵀΔ`` and ``x'ᵀΔ``, (b, K) each."""
        columns = list(self.attribute.columns)
        along = np.einsum("bp,bkp->bk", change.x, steps)
        return along, along + np.einsum("bkt,bkt->bk", change.delta, steps[:, :, columns])

    def _on_own_row(self, change: RankTwo, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return ``old·x + new·x'``, (b, K, P)."""
        out = (old + new)[:, :, None] * change.x[:, None, :]
        out[:, :, list(self.attribute.columns)] += new[:, :, None] * change.delta
        return np.asarray(out)

    def _solve(self, change: RankTwo, right: np.ndarray) -> np.ndarray:
        """Return ``H'⁻¹`` times each right-hand side, (b, K, P), by Woodbury's formula."""
        columns = list(self.attribute.columns)
        plain = right @ self.inverse
        on_x = np.einsum("bp,bkp->bk", change.x, plain)
        on_delta = np.einsum("bkt,bkt->bk", change.delta, plain[:, :, columns])
        bend = change.new_curvature - change.curvature
        first = change.weight * (bend * on_x + change.new_curvature * on_delta)
        second = change.weight * change.new_curvature * (on_x + on_delta)
        return np.asarray(plain - change.along(first, second))

    def _refit(self, lost: np.ndarray) -> None:
        """Refit from scratch the candidates, given by place and level, that did not converge."""
        known, columns = self.objective, list(self.attribute.columns)
        changed = np.array(known.X) if len(lost) else known.X
        for place, level in progress(lost, "refits"):
            row = self.rows[place]
            changed[row, columns] = self.attribute.codes[level]
            try:
                refit = minimise(replace(known, X=changed), start=self.theta)
            except InputError as error:
                raise InputError(
                    f"With {self.attribute.levels[level]!r} for {self.attribute.name!r} in row "
                    f"{row} there is no model: {error}"
                ) from error
            self._differences[place, level] = refit.parameters - self.theta
            changed[row, columns] = known.X[row, columns]


class ThirdDerivatives:
    """The effect of third derivatives at the minimiser on steps away from it.

    ``½ Σ_j ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j`` is the gradient that remains after a Newton step Δ. For
    many ``steps`` and few columns the sum over the rows is taken once, as a P×P×P tensor; otherwise
    two matrix products with the rows give the same.
    """

    def __init__(
        self, objective: Objective, family: Family, margins: np.ndarray, steps: int
    ) -> None:
        self._objective = objective
        self.weights = _curvature_slope(family, margins, objective.target)
        """``ω_j ∂a_j/∂m``, (n,)."""
        if objective.sample_weight is not None:
            self.weights = self.weights * objective.sample_weight
        n, P = len(margins), objective.shape[0]
        cheaper = P**2 * (n + steps) < 4 * n * steps
        self._tensor = self._sum_of_rows() if cheaper and P**3 < _LARGEST_TENSOR else None

    def apply(self, steps: np.ndarray) -> np.ndarray:
        """Return ``½ Σ_j ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j`` for each Δ of an array, (…, P)."""
        flat = steps.reshape(-1, steps.shape[-1])
        out = np.zeros_like(flat)
        width = flat.shape[1] if self._tensor is not None else len(self.weights)
        for some in row_slices(len(flat), width, chunk=_CHUNK):
            if self._tensor is None:
                self._add_by_rows(flat[some], out[some])
                continue
            for p, part in enumerate(self._tensor):
                out[some] += (flat[some, p:] * flat[some, p : p + 1]) @ part
        return out.reshape(steps.shape)

    def _sum_of_rows(self) -> list[np.ndarray]:
        """Return for each p ``½ Σ_j weight_j x_jp x_jq x_j``, q ≥ p, with both orders counted."""
        P = self._objective.shape[0]
        tensor = [np.zeros((P - p, P)) for p in range(P)]
        for rows in row_slices(len(self.weights), P, chunk=_CHUNK):
            x = design(self._objective, rows)
            for p, part in enumerate(tensor):
                part += x[:, p:].T @ ((self.weights[rows] * x[:, p])[:, None] * x)
        for part in tensor:
            part[0] /= 2
        return tensor

    def _add_by_rows(self, steps: np.ndarray, out: np.ndarray) -> None:
        for rows in row_slices(len(self.weights), sum(steps.shape), chunk=_CHUNK):
            x = design(self._objective, rows)
            along = x @ steps.T
            out += (0.5 * self.weights[rows, None] * along * along).T @ x


def design(objective: Objective, rows: np.ndarray | slice) -> np.ndarray:
    """Return rows of the known table, with a final 1 for an intercept."""
    x = objective.X[rows, :]
    return np.hstack([x, np.ones((len(x), 1))]) if objective.intercept else np.asarray(x)


def _inverse(hessian: np.ndarray) -> np.ndarray:
    """Return ``H⁻¹``, through the Cholesky factor of ``H`` scaled to a unit diagonal."""
    sizes = np.sqrt(np.diagonal(hessian))
    scaling = np.outer(sizes, sizes)
    factor = cholesky_factor(hessian / scaling) if np.all(sizes > 0) else None
    if factor is None:
        raise InputError(
            "The columns of X are linearly dependent to rounding, so refits are not unique; set l2 "
            "above 0, or drop a column."
        )
    inverse = factor.solve(np.eye(len(sizes))) / scaling
    return np.asarray(inverse + inverse.T) / 2


def _size(steps: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(steps, axis=2))


def _curvature_slope(family: Family, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ``∂a/∂m``, (n,), stated by the family or else a difference of its curvatures."""
    if family.curvature_slope is not None:
        return np.asarray(family.curvature_slope(margins, y))
    up, down = (family.curvature(margins + h, y) for h in (_DIFFERENCE, -_DIFFERENCE))
    return np.asarray(up - down) / (2 * _DIFFERENCE)
