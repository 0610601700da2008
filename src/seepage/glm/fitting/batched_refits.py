"""Refits of one GLM with records changed, many at a time, each started from the model as it is.

With ``θ̂`` the minimiser on the table as it is, a refit moves it by the root ``δ`` of::

    Σ_j ω_j [ℓ'(m_j + x̃_jᵀδ) − ℓ'(m_j)] x̃_j + ridge δ − Σ_removed ω r x̃ + Σ_added ω ℓ'(z̃ᵀ(θ̂+δ)) z̃

where the first sum omits the removed records. Written in differences, it keeps its digits where
one record moves the model little. Newton's method finds the root; its systems are solved by
conjugate gradients, preconditioned by the inverse Hessian of the unchanged table, which differs by
a few ranks; so no other matrix is ever formed, and a step costs two products of the table with as
many columns as there are refits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import (
    CholeskyFactor,
    FittedGLM,
    Objective,
    cholesky_factor,
    damped_factor,
)
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices

_HELD = 1 << 17  # numbers held at a time for the margins of all refits
_TOGETHER = 2  # refits that share a pass over the table, however long it is
_CACHED = 1 << 16  # numbers that are worked on at a time
_MOST_STEPS = 60
_MOST_PRODUCTS = 60  # iterations of one step's conjugate gradients
_CONVERGED = 1e-11  # the distance left, relative to the whole move
_NEAR = 1e-3
_ROUNDING = 1e-8  # and where to stop when steps no longer help
_MANY = 300  # up to how many records the share of the curvature is checked
_ALL = 1e-9
_UNIQUE = 1e-7  # the smallest pivot of a Hessian that determines its minimiser
_STILL_GOING = 1e-2  # the last step, relative to the whole move, of a refit that diverges
_LOST = 4e-15  # the rounding of parameters, relative to them
_GIVEN_UP = 1e-6  # and above which Newton's method with factorised Hessians takes over


@dataclass(frozen=True)
class Change:
    """One changed table: rows that leave, and at most one record that replaces them."""

    removed: np.ndarray
    features: np.ndarray | None = None
    label: Any = None
    weight: float = 1.0


class BatchedRefits:
    """Refits of a model on tables in which some records are changed.

    Parameters
    ----------
    fit
        The model at its minimiser on the table, in NumPy's float64.
    X
        The table, (n, d).
    inverse
        The inverse of the Hessian there, (P, P), definite along softmax's gauge as well.
    slopes
        The slopes there, (n,), where they are known better than by ordinary margins: they say how
        hard the records that leave have pulled.
    """

    def __init__(
        self,
        fit: FittedGLM,
        X: np.ndarray,
        inverse: np.ndarray,
        slopes: np.ndarray | None = None,
    ) -> None:
        self.fit, self.X, self.inverse = fit, X, inverse
        self.outputs = fit.family.outputs if isinstance(fit.family, Categorical) else 1
        self.theta = np.asarray(fit.parameters)
        self.margins = np.asarray(fit.margins(X)).reshape(len(X), self.outputs)
        self.weight = np.ones(len(X)) if fit.sample_weight is None else fit.sample_weight
        self.slopes = self._slope(self.margins[:, :, None], fit.target)[:, :, 0]
        self.pulls = self.slopes if slopes is None else slopes.reshape(self.slopes.shape)

    def moves(self, changes: list[Change], starts: np.ndarray | None = None) -> np.ndarray:
        """Return how far the parameters move under each change, (B, P).

        Infinite where no unique minimiser is left. ``starts (B, P)`` are first guesses.
        """
        return self.moves_and_errors(changes, starts)[0]

    def moves_and_errors(
        self, changes: list[Change], starts: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the moves and the steps that Newton's method had still to take, (B, P) each."""
        P = self.theta.size
        out, open_ = np.zeros((2, len(changes), P))
        size = max(_TOGETHER, _HELD // (len(self.X) * self.outputs))
        for begin in range(0, len(changes), size):
            some = changes[begin : begin + size]
            start = np.zeros((len(some), P)) if starts is None else starts[begin : begin + size]
            moves, step, left = self._newton(some, start)
            for k, change in enumerate(some):
                if not left[k] <= _GIVEN_UP or self._decides(change.removed):
                    moves[k], step[k] = self._alone(change, start[k])
            out[begin : begin + size], open_[begin : begin + size] = moves, step
        return self._gauge_free(out), self._gauge_free(open_)

    def pull_of_removed(self, changes: list[Change]) -> np.ndarray:
        """Return how strongly the records that leave have pulled, in the norm of ``H⁻¹``, (B,)."""
        return self._size(_Batch(self, changes).removed_gradient)

    def steepness(self, changes: list[Change]) -> np.ndarray:
        """Return the norms of the gradients of the changed objectives at ``θ̂``, (B,)."""
        return np.asarray(np.linalg.norm(_Batch(self, changes).at_rest(), axis=0))

    def _gauge_free(self, moves: np.ndarray) -> np.ndarray:
        """Return moves without the part softmax leaves open: the same vector added to every class.

        Where nothing is penalised, no fit determines that part, and it does not move.
        """
        if self.outputs == 1:
            return moves
        free = 0 if self.fit.ridge == 0 else self.X.shape[1]
        by_class = moves.reshape(len(moves), -1, self.outputs)
        with np.errstate(invalid="ignore"):  # infinite moves stay infinite
            mean = by_class[:, free:].mean(axis=2, keepdims=True)
            by_class[:, free:] -= np.where(np.isfinite(mean), mean, 0.0)
        return moves

    def _decides(self, rows: np.ndarray) -> bool:
        """Say whether removing some records may leave the parameters undetermined.

        Along some direction, all of the curvature is then theirs: with a penalty, only along that
        of the intercept.
        """
        if self.fit.ridge > 0:
            return self.fit.intercept is not None and self._holds_all(rows)
        if len(rows) * self.outputs > _MANY:
            return True
        x = self.X[rows]
        if self.fit.intercept is not None:
            x = np.hstack([x, np.ones((len(x), 1))])
        margins, target = self.margins[rows], self.fit.target[rows]
        if self.outputs == 1:
            margins = margins[:, 0]
        curvature = np.asarray(self.fit.family.curvature(margins, target))
        curvature = curvature.reshape(len(rows), self.outputs, self.outputs)
        curvature = curvature * self.weight[rows][:, None, None]
        values, vectors = np.linalg.eigh(curvature)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        weighted = np.einsum("np,nkl->nlpk", x, root).reshape(len(rows) * self.outputs, -1)
        share = np.linalg.eigvalsh(weighted @ self.inverse @ weighted.T)[-1]
        return bool(share >= 1 - _ALL)

    def _holds_all(self, rows: np.ndarray) -> bool:
        """Say whether the other records have as good as no curvature."""
        return bool(np.sum(self._curved[rows]) >= (1 - _ALL) * self._all_curved)

    @cached_property
    def _curved(self) -> np.ndarray:
        """The curvature of every record, over all outputs, (n,)."""
        margins = self.margins[:, 0] if self.outputs == 1 else self.margins
        curvature = np.asarray(self.fit.family.curvature(margins, self.fit.target))
        return np.asarray(
            self.weight * curvature.reshape(len(curvature), -1)[:, :: self.outputs + 1].sum(1)
        )

    @cached_property
    def _all_curved(self) -> float:
        return float(np.sum(self._curved))

    def _alone(self, change: Change, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the move of one change by Newton's method with factorised Hessians.

        And the error of that. Whether the records determine the parameters is asked
        only of those that no penalty reaches.
        """
        kept = np.setdiff1d(np.arange(len(self.X)), change.removed)
        X, target, weight = self.X[kept], self.fit.target[kept], self.weight[kept]
        if change.features is not None:
            X = np.vstack([X, change.features[None, :]])
            target = np.concatenate([target, np.asarray(change.label, dtype=float)[None, ...]])
            weight = np.append(weight, change.weight)
        fit = replace(self.fit, target=target, sample_weight=weight)
        guess = self.theta + np.where(np.isfinite(start), start, 0.0).reshape(self.theta.shape)
        objective = Objective.of(fit, X)
        nothing = np.full(self.theta.size, np.inf), np.zeros(self.theta.size)
        try:
            theta = np.asarray(minimise(objective, start=guess).parameters)
        except InputError:  # no minimiser
            return nothing
        margins = objective.margins(theta)
        H = objective.definite(objective.hessian(margins))
        factor = cholesky_factor(H)
        penalised = self.X.shape[1] * self.outputs if self.fit.ridge > 0 else 0
        if not self._determined(H[penalised:, penalised:], factor):
            return nothing
        factor = damped_factor(H) if factor is None else factor
        step = factor.solve(objective.gradient(theta, objective.slopes(margins)).reshape(-1))
        # A difference of two sets of parameters, each as exact as rounding leaves its gradient.
        lost = 4 * np.abs(step) + _LOST * np.abs(theta).reshape(-1)
        return np.asarray((theta - self.theta).reshape(-1)), np.asarray(lost)

    def _determined(self, free: np.ndarray, factor: CholeskyFactor | None) -> bool:
        """Say whether a Hessian, of block ``free``, determines the parameters without penalty.

        With a penalty on the others these are intercepts: one that runs off to infinity (that of a
        class without records) takes its curvature with it.
        """
        if len(free) < self.theta.size:
            if not len(free):
                return True
            if not np.trace(free) > _ALL * self._all_curved:
                return False
            factor = cholesky_factor(free)
        return factor is not None and factor.smallest_pivot >= _UNIQUE

    # Newton's method over many refits; the arrays are (…, outputs, B) -------------------------

    def _newton(self, changes: list[Change], start: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the moves and the steps still to take, (B, P), and how far off they are, (B,).

        Relative to their size.
        """
        whole = _Batch(self, changes)
        moved = np.where(np.isfinite(start), start, 0.0).T.copy()
        left, last = np.full(len(changes), np.inf), np.zeros(len(changes))
        active = np.arange(len(changes))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            size = self._size(whole.at_rest())
            size[size == 0] = 1.0
            for _ in range(_MOST_STEPS):
                batch = whole.of(active)
                here = moved[:, active]
                shift = self.times(here)
                gradient, curvature = batch.derivatives(here, shift)
                pull = batch.pull(here)
                scale = np.where(pull > 0, np.minimum(size[active], pull), size[active])
                now = self._size(gradient) / scale
                better = now < 0.9 * left[active]
                left[active] = np.where(np.isfinite(now), now, np.inf)
                going = (now > _CONVERGED) & np.isfinite(now) & (better | (now > _ROUNDING))
                if not going.any():
                    break
                batch, here, shift = batch.of(going), here[:, going], shift[:, :, going]
                gradient, active = gradient[:, going], active[going]
                curvature = curvature.of(going)
                step = self._solve(batch, curvature, -gradient, np.minimum(0.1, now[going]))
                near = now[going] < _NEAR  # a whole step is right; only rounding interferes
                length = 1.0 if near.all() else batch.length(here, shift, step, gradient)
                step *= np.where(near, 1.0, length)
                moved[:, active] = here + step
                # The first step is the whole move, however short; it says nothing yet.
                moving = np.any(here != 0, axis=0)
                ratio = np.linalg.norm(step, axis=0) / np.linalg.norm(here + step, axis=0)
                last[active] = np.where(moving, ratio, 0.0)
            step, late = np.zeros_like(moved), np.isfinite(left) & (left > _CONVERGED)
            if late.any():
                batch, here = whole.of(late), moved[:, late]
                gradient, curvature = batch.derivatives(here, self.times(here))
                tenth = np.full(here.shape[1], 0.1)
                step[:, late] = self._solve(batch, curvature, -gradient, tenth)
        # Where classes are separable the gradient dies away, but steps do not.
        return moved.T, step.T, np.where(last > _STILL_GOING, np.inf, left)

    def _size(self, gradient: np.ndarray) -> np.ndarray:
        """Return ``‖g‖`` in the norm of the inverse Hessian, (B,): about the distance left."""
        squares = np.sum(gradient * (self.inverse @ gradient), axis=0)
        return np.asarray(np.sqrt(np.abs(squares)))

    def _solve(
        self, batch: _Batch, curvature: _Curvatures, right: np.ndarray, tolerance: np.ndarray
    ) -> np.ndarray:
        """Solve with each refit's own Hessian by preconditioned conjugate gradients, (P, B)."""
        solution, residual = np.zeros_like(right), right.copy()
        z = self._preconditioned(residual)
        direction = z.copy()
        old = np.sum(residual * z, axis=0)
        first = old.copy()
        for _ in range(_MOST_PRODUCTS):
            seen = batch.hessian_times(curvature, direction)
            curved = np.sum(direction * seen, axis=0)
            rate = np.where(curved > 0, old / np.where(curved > 0, curved, 1.0), 0.0)
            solution += rate * direction
            residual -= rate * seen
            z = self._preconditioned(residual)
            new = np.sum(residual * z, axis=0)
            if np.all(new <= tolerance**2 * first):
                break
            direction = z + np.where(old > 0, new / np.where(old > 0, old, 1.0), 0.0) * direction
            old = new
        return solution

    def _preconditioned(self, residual: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹`` times residuals, (P, B), with exact zeros where there is no curvature."""
        step = self.inverse @ residual
        if self.outputs == 1:
            return np.asarray(step)
        return self._gauge_free(np.ascontiguousarray(step.T)).T

    def times(self, moved: np.ndarray) -> np.ndarray:
        """Return ``X̃ δ`` for parameters in columns, (P, B) → (n, outputs, B)."""
        d, B = self.X.shape[1], moved.shape[1]
        shift = self.X @ moved[: d * self.outputs].reshape(d, self.outputs * B)
        shift = shift.reshape(len(self.X), self.outputs, B)
        if self.fit.intercept is not None:
            shift += moved[d * self.outputs :].reshape(1, self.outputs, B)
        return np.asarray(shift)

    def back(self, values: np.ndarray) -> np.ndarray:
        """Return ``X̃ᵀ v``, (n, outputs, B) → (P, B)."""
        n, K, B = values.shape
        out = (self.X.T @ values.reshape(n, K * B)).reshape(-1, B)
        if self.fit.intercept is None:
            return np.asarray(out)
        return np.concatenate([out, values.sum(axis=0)], axis=0)

    def penalty(self, moved: np.ndarray) -> np.ndarray:
        """Return the ridge times the move, without the intercept's."""
        out = self.fit.ridge * moved
        out[self.X.shape[1] * self.outputs :] = 0.0
        return out

    def _slope(self, margins: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return ``∂ℓ/∂m``, (n, outputs, B)."""
        if self.outputs == 1:
            y = np.asarray(target).reshape(-1, 1, 1)
            return np.asarray(self.fit.family.slope(margins, y))
        n, K, B = margins.shape
        flat = np.moveaxis(margins, 2, 0).reshape(B * n, K)
        labels = np.tile(np.asarray(target), (B, 1)) if len(target) == n else np.asarray(target)
        slopes = np.asarray(self.fit.family.slope(flat, labels)).reshape(B, n, K)
        return np.asarray(np.moveaxis(slopes, 0, 2))

    def _curvature(self, margins: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the weighted curvature; for softmax, the probabilities it is made from."""
        if self.outputs == 1:
            y = np.asarray(target).reshape(-1, 1, 1)
            return np.asarray(weight * np.asarray(self.fit.family.curvature(margins, y)))
        powers = np.exp(margins - margins.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def _curvature_times(
        self, curvature: np.ndarray, weight: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Return the weighted curvature times some changes of the margins."""
        if self.outputs == 1:
            return np.asarray(curvature * values)
        mean = np.sum(curvature * values, axis=1, keepdims=True)
        return np.asarray(weight * curvature * (values - mean))


@dataclass
class _Curvatures:
    """The curvatures of all records, and those of the records that came in."""

    table: np.ndarray
    own: np.ndarray | None

    def of(self, which: np.ndarray) -> _Curvatures:
        return _Curvatures(
            self.table[:, :, which], None if self.own is None else self.own[:, :, which]
        )


class _Batch:
    """Some changes of one model's table, as arrays."""

    def __init__(self, refits: BatchedRefits, changes: list[Change]) -> None:
        self.refits = refits
        self.changes = changes
        rows = [np.asarray(change.removed) for change in changes]
        self.rows = np.concatenate(rows)
        self.columns = np.repeat(np.arange(len(changes)), [len(r) for r in rows])
        fit, K = refits.fit, refits.outputs
        weighted = refits.weight[self.rows, None] * refits.pulls[self.rows]
        x = refits.X[self.rows]
        if fit.intercept is not None:
            x = np.hstack([x, np.ones((len(x), 1))])
        removed_gradient = (x[:, :, None] * weighted[:, None, :]).reshape(len(x), -1)
        self.removed_gradient = np.zeros((refits.theta.size, len(changes)))
        np.add.at(self.removed_gradient.T, self.columns, removed_gradient)
        self.z: np.ndarray | None = None
        if changes[0].features is not None:
            z = np.stack([np.asarray(change.features) for change in changes])
            self.z = np.hstack([z, np.ones((len(z), 1))]) if fit.intercept is not None else z
            self.label = np.stack([np.asarray(c.label, dtype=float) for c in changes])
            self.own_weight = np.array([change.weight for change in changes])
            self.own_margins = (self.z @ refits.theta.reshape(self.z.shape[1], K)).T[None, :, :]

    def of(self, which: np.ndarray) -> _Batch:
        """Return some of the changes."""
        chosen = np.arange(len(self.changes))[which]
        if len(chosen) == len(self.changes):
            return self
        return _Batch(self.refits, [self.changes[k] for k in chosen])

    def at_rest(self) -> np.ndarray:
        """Return the gradients at the unchanged model, (P, B)."""
        if self.z is None:
            return -self.removed_gradient
        return (
            self._spread(self.own_weight * self._own_slope(self.own_margins))
            - self.removed_gradient
        )

    def pull(self, moved: np.ndarray) -> np.ndarray:
        """Return how strongly the records removed and added pull at some moves, (B,).

        An added record may pull orders of magnitude harder at the old model than at the new one.
        """
        removed_gradient = self.refits._size(self.removed_gradient)
        if self.z is None:
            return removed_gradient
        own = self.own_weight * self._own_slope(self.own_margins + self._own(moved))
        return np.asarray(removed_gradient + self.refits._size(self._spread(own)))

    def derivatives(self, moved: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, _Curvatures]:
        """Return the gradients, (P, B), and the curvatures, at some moves and their margins."""
        refits, target = self.refits, self.refits.fit.target
        slopes, curvature = np.empty_like(shift), np.empty_like(shift)
        for rows in row_slices(len(shift), shift[0].size, chunk=_CACHED):
            weight = refits.weight[rows, None, None]
            margins = refits.margins[rows, :, None] + shift[rows]
            slopes[rows] = refits._slope(margins, target[rows]) - refits.slopes[rows, :, None]
            slopes[rows] *= weight
            curvature[rows] = refits._curvature(margins, target[rows], weight)
        slopes[self.rows, :, self.columns] = 0.0
        curvature[self.rows, :, self.columns] = 0.0
        gradient = refits.back(slopes) + refits.penalty(moved) - self.removed_gradient
        if self.z is None:
            return gradient, _Curvatures(curvature, None)
        own = self.own_margins + self._own(moved)
        gradient += self._spread(self.own_weight * self._own_slope(own))
        return gradient, _Curvatures(curvature, self._own_curvature(own))

    def hessian_times(self, curvature: _Curvatures, direction: np.ndarray) -> np.ndarray:
        """Return each refit's Hessian times its own direction, (P, B)."""
        refits = self.refits
        weight = refits.weight[:, None, None]
        values = refits._curvature_times(curvature.table, weight, refits.times(direction))
        out = refits.back(values) + refits.penalty(direction)
        if curvature.own is not None:
            out += self._spread(
                refits._curvature_times(curvature.own, self.own_weight, self._own(direction))
            )
        return np.asarray(out)

    def length(
        self, moved: np.ndarray, shift: np.ndarray, step: np.ndarray, gradient: np.ndarray
    ) -> np.ndarray:
        """Return how much of each step to take: to where the slope along it has about vanished."""
        refits = self.refits
        along = refits.times(step)
        downhill = np.sum(gradient * step, axis=0)
        weight = refits.weight[:, None, None]
        base = np.sum((refits.penalty(moved) - self.removed_gradient) * step, axis=0)
        rise = np.sum(refits.penalty(step) * step, axis=0)
        taken = np.ones(step.shape[1])
        for _ in range(40):
            margins = refits.margins[:, :, None] + shift + taken * along
            slopes = refits._slope(margins, refits.fit.target) - refits.slopes[:, :, None]
            slopes = slopes * weight
            slopes[self.rows, :, self.columns] = 0.0
            slope = base + taken * rise + np.sum(slopes * along, axis=(0, 1))
            if self.z is not None:
                own = self.own_margins + self._own(moved + taken * step)
                own_slope = self.own_weight * self._own_slope(own)
                slope += np.sum(own_slope * self._own(step), axis=(0, 1))
            steep = ~(slope <= 0.9 * np.abs(downhill))
            if not steep.any():
                break
            secant = np.abs(downhill) / (np.abs(downhill) + slope)
            secant = np.where(np.isfinite(secant), np.clip(secant, 0.1, 0.9), 0.1)
            taken = np.where(steep, taken * secant, taken)
        return taken

    def _own(self, moved: np.ndarray) -> np.ndarray:
        """Return the margins of the records that came in, (1, outputs, B)."""
        K = self.refits.outputs
        z = self.z
        assert z is not None  # noqa: S101 - told to the type checker
        return np.asarray(np.einsum("bp,pkb->kb", z, moved.reshape(z.shape[1], K, -1))[None, :, :])

    def _spread(self, values: np.ndarray) -> np.ndarray:
        """Return ``z̃ v`` of each, (1, outputs, B) → (P, B)."""
        z = self.z
        assert z is not None  # noqa: S101 - told to the type checker
        return np.asarray(np.einsum("bp,kb->pkb", z, values[0]).reshape(-1, len(z)))

    def _own_slope(self, margins: np.ndarray) -> np.ndarray:
        family = self.refits.fit.family
        if self.refits.outputs == 1:
            return np.asarray(family.slope(margins, self.label[None, None, :]))
        return np.asarray(np.asarray(family.slope(margins[0].T, self.label)).T[None, :, :])

    def _own_curvature(self, margins: np.ndarray) -> np.ndarray:
        if self.refits.outputs == 1:
            curvature = self.refits.fit.family.curvature(margins, self.label[None, None, :])
            return np.asarray(self.own_weight * np.asarray(curvature))
        powers = np.exp(margins - margins.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
