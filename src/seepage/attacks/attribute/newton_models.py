"""Candidate models of families that are not quadratic: two warm Newton steps, more where needed.

The first step ``Δ`` of :mod:`seepage.attacks.attribute.candidate_models` leaves the gradient::

    ρ = ½ Σ_{j≠i} ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j  +  ω (r(m' + x'ᵀΔ) − r' − a' x'ᵀΔ) x'  + O(Δ³)

whose sum over the other rows is one tensor of third derivatives applied to ``Δ`` twice: no
candidate needs a pass over the data. The second step is ``−H'⁻¹ρ``, with the same rank-two update,
and leaves terms of third order. On a large table these are negligible for most rows; the others,
and all rows of a small table, take further steps with gradients over all rows. Candidates that do
not settle so are refitted from scratch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from seepage.attacks.attribute.candidate_models import CandidateModels, RankTwo, design
from seepage.attacks.attribute.third_derivatives import ThirdDerivatives
from seepage.errors import InputError
from seepage.glm.fitting.newton import minimise
from seepage.support.chunks import CHUNK, progress, row_slices

# What two steps leave was below the square of either of these on every table tried: the second step
# beside the first, and how far the changed row's own margin moved.
_SECOND_STEP = 1e-3
_OWN_MOVE = 1e-2
_AFFORDABLE = 1 << 24  # margins: where a third step of every candidate takes no more, all take it
_SETTLED = 1e-7  # what further steps may leave beside the whole way
_MOST_STEPS = 12


class NewtonModels(CandidateModels):
    """Candidate models by warm Newton steps, all computed once and held: K times the rows.

    Attributes
    ----------
    further
        How many candidates took further steps, with gradients over all rows.
    refitted
        How many candidates had to be refitted from scratch.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        m, K = len(self.rows), len(self.attribute)
        self._third = ThirdDerivatives(self.objective, self.family, self.margins, m * K)
        # The level that a row has needs no step.
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
        """Return the differences after two steps, (b, K, P), and where they are enough, (b, K)."""
        change = self.rank_two(rows, levels)
        along, new_along = self._own_margins(change, change.step)
        y = self.objective.target[rows, None]
        left = self.family.slope(change.margin + new_along, y) - change.slope
        left = change.weight * (left - change.new_curvature * new_along)
        # The tensor counts the row as the table has it, which it no longer is.
        counted = 0.5 * self._third.weights[rows, None] * along**2
        residual = self._third.apply(change.step) + self._on_own_row(change, -counted, left)
        second = self._solve(change, residual)
        near = _size(second) <= _SECOND_STEP * _size(change.step)
        near &= np.maximum(np.abs(along), np.abs(new_along)) <= _OWN_MOVE
        return change.step - second, near

    def _further_step(
        self, places: np.ndarray, levels: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Move single candidates on, (b, P), and say which have settled and how far they moved."""
        rows = self.rows[places]
        change = self.rank_two(rows, levels[:, None])
        where = self._differences[places, levels][:, None, :]
        y, margins = self.objective.target[rows, None], self.margins[rows, None]
        with np.errstate(over="ignore", invalid="ignore"):  # steps that run away never settle
            along, new_along = self._own_margins(change, where)
            old = change.weight * self.family.slope(margins + along, y)
            new = change.weight * self.family.slope(change.margin + new_along, y)
            residual = self._gradient(where) + self._on_own_row(change, -old, new)
            step = self._solve(change, residual)
            where = where - step
            size, whole = _size(step)[:, 0], _size(where)[:, 0]
            # Each step shrinks by one factor; the first here by as much as the two before it.
            rate = np.where(np.isnan(last), np.sqrt(size / whole), size / last)
            settled = size * rate <= _SETTLED * (1 - rate) * whole
            settled |= size <= 0.01 * _SETTLED * whole  # as small as rounding lets them be
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
            # Less the gradient at theta, which is zero but for the rounding of so many terms.
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
        """Fit the candidates that no steps settled, given by place and level, from the start."""
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


def _size(steps: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(steps, axis=2))
