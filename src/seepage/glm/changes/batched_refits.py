"""Batched refits of one GLM on changed tables, each started from the fitted model.

Let ``θ̂`` be the minimiser on the unchanged table. A refit changes θ̂ by the root ``δ`` of::

    Σ_j ω_j [ℓ'(m_j + x̃_jᵀδ) − ℓ'(m_j)] x̃_j + ridge δ − Σ_removed ω r x̃ + Σ_added ω ℓ'(z̃ᵀ(θ̂+δ)) z̃

The first sum omits the removed records. If a change has a ridge of its own, its difference from the
fit's ridge, times ``ŵ``, is added. The equation is in differences, so no precision is lost where a
record has little effect on the model. Newton's method finds the root. Newton steps are computed by
conjugate gradients, preconditioned by the inverse Hessian of the unchanged table. Conjugate
gradients converge fast, because the Hessians differ by a matrix of low rank. Batches form no
Hessian of a changed table. An iteration costs two products of the table with a matrix that has one
column per refit. Changes refer to the free parameters
(:class:`~seepage.glm.changes.outputs.Outputs`), with one row of P numbers per refit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seepage.errors import InputError, NotConvergedError
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective, cholesky_factor, damped_factor, gauge_fixed
from seepage.glm.losses import Categorical
from seepage.support.chunks import by_rows, row_slices
from seepage.support.double_double import EPS

_CONVERGED = 1e-11  # the distance left, relative to the whole move
_ROUNDING = 1e-8  # and up to which steps that no longer help are rounding, not a failure
_IN_CACHE = 1 << 16  # numbers that a pass works on at a time
_DECIDED = ("gaussian", "bernoulli", "poisson")  # where labels alone say if there is an intercept


@dataclass(frozen=True)
class Change:
    """A changed table: the rows to remove, and the records that replace them, if any."""

    removed: np.ndarray
    features: np.ndarray | None = None  # (a, d), less the centre of the model's columns
    labels: Any = None  # (a, …)
    weight: Any = None  # (a,)
    ridge: float | None = None  # of the changed objective, if it is not that of the fit


class BatchedRefits:
    """Refits of a model on tables with changed records."""

    def __init__(self, model: LocalModel) -> None:
        self.model, self.inverse, self.outputs = model, model.inverse, model.outputs
        # In differences of slopes the same formula has to be on both sides, even where the slopes
        # that the records have pulled with are known better.
        rest = np.zeros((len(model.X), 1, model.outputs.count))
        self.slopes_at_rest = model.outputs.slopes_at(model.margins, rest, model.target)[:, 0]

    def moves(
        self, changes: list[Change], starts: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the parameter changes, and the last Newton steps as error estimates, each (B, P).

        Changes are infinite where no unique minimiser remains, and NaN where one may exist but was
        not found. ``starts (B, P)`` are initial guesses.
        """
        moves, errors = np.zeros((2, len(changes), len(self.inverse)))
        starts = np.zeros_like(moves) if starts is None else starts
        starts = np.where(np.isfinite(starts), starts, 0.0)
        undecided = max(1e-9, 10 * self.model.gram_solver.rounding)  # a share as good as 1
        for some in self.passes(changes):
            moves[some], errors[some], left = self._newton(changes[some], starts[some])
            for k, change in enumerate(changes[some], start=some.start):
                if not self._holds_intercept(change):
                    moves[k], errors[k] = np.inf, 0.0
                elif (
                    not left[k - some.start] <= _ROUNDING
                    or self._share(change.removed) >= 1 - undecided
                ):
                    moves[k], errors[k] = self._alone(change, starts[k])
        return moves, errors

    def passes(self, changes: list[Change]) -> Iterator[slice]:
        """Yield slices of changes whose margins fit in the processor's cache, or of two changes."""
        size = max(2, (1 << 18) // (len(self.model.X) * self.outputs.count))
        return (slice(k, k + size) for k in range(0, len(changes), size))

    def weakening(self, changes: list[Change], moves: np.ndarray) -> np.ndarray:
        """Return the factor by which a refit may have less curvature than the full table, (B,).

        The factor is the largest ratio ``a/a′`` of a remaining record's curvatures, a at the full
        fit and a′ at the refit. For softmax, the upper bound ``exp(s)`` is used, where s is the
        largest span of a record's margin shift. An error that is small relative to the full table's
        curvature may be larger by this factor relative to the refit's curvature.
        """
        weaker = np.ones(len(changes))
        counted = self._curved > 0
        for some in self.passes(changes):
            shift = ChangedTables(self, changes[some]).shifts(moves[some])[: len(self.model.X)]
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                if self.outputs.count > 1 or self.outputs.basis is not None:
                    weaker[some] = np.exp(self.outputs.spans(shift[counted]).max(axis=0))
                    continue
                labels = self.model.target[:, None]
                a = self.outputs.curvature(self.model.margins[:, None] + shift, labels)[..., 0, 0]
                ratio = np.where(counted[:, None], self.model.curvatures[:, :, 0] / a, 1.0)
            for k, change in enumerate(changes[some]):
                ratio[change.removed, k] = 1.0
            weaker[some] = np.fmax(ratio.max(axis=0), 1.0)
        return weaker

    def steepness(self, changes: list[Change]) -> np.ndarray:
        """Return the norms of the gradients of the changed objectives at ``θ̂``, (B,)."""
        return np.asarray(np.linalg.norm(ChangedTables(self, changes).at_rest(), axis=1))

    def least_curvatures(self, changes: list[Change]) -> np.ndarray:
        """Return lower bounds on the eigenvalues of the refits' Hessians, (B,).

        Without an intercept, the bound is the ridge. With an intercept, the bound is the smaller of
        the ridge and the remaining records' total curvature, divided by the largest ``‖x̃‖²``.
        """
        least = ridge = self.ridges(changes)
        if self.model.fit.intercept is not None:
            total, longest = float(np.sum(self._curved)), float(np.max(self._squares))
            stays = np.array([total - np.sum(self._curved[c.removed]) for c in changes])
            least = np.clip(stays, 0.0, ridge) / longest
        return np.asarray(least)

    def conditions(self, changes: list[Change]) -> np.ndarray:
        """Return upper bounds on the condition numbers of the refits' Hessians, (B,)."""
        largest = float(self._curved @ self._squares) + self.ridges(changes)
        with np.errstate(divide="ignore"):
            return np.asarray(largest / self.least_curvatures(changes))

    def ridges(self, changes: list[Change]) -> np.ndarray:
        """Return the ridge of every changed objective, (B,)."""
        own = self.model.fit.ridge
        return np.array([own if change.ridge is None else change.ridge for change in changes])

    def slope_rounding(
        self, changes: list[Change], left: np.ndarray, weaker: np.ndarray
    ) -> np.ndarray:
        """Return the effect of the slopes' rounding errors on refits, in units of the noise, (B,).

        The absolute error of a difference of slopes does not shrink with the difference. Errors e
        of the slopes change the full fit by at most ``Σ ω e ‖Φ^½H⁻¹x̃‖``. For a refit, this bound
        grows in inverse proportion to the remaining share ``left`` of the curvature, and in
        proportion to ``weaker`` (:meth:`weakening`). Two more bounds apply to any fit. In the norm
        of the fit's Hessian, the change is at most ``(Σ ω e²/a′)^½``, where a′ are the fit's
        curvatures. The change is also at most ``Σ ω e ‖x̃‖`` divided by the fit's smallest
        curvature.
        """
        whiten, (moved, energy, steep) = self.model.seen, self._rounded_slopes
        least = self.least_curvatures(changes)
        with np.errstate(divide="ignore", invalid="ignore"):
            anywhere = np.fmin(energy * np.sqrt(weaker / least), steep / least)
        return np.asarray(np.fmin(whiten.skew * moved * weaker / left, whiten.reach * anywhere))

    @cached_property
    def _rounded_slopes(self) -> tuple[float, float, float]:
        """The three sums of :meth:`slope_rounding`, for slope errors e of a few rounding errors."""
        model, moved = self.model, 0.0
        parameters = np.abs(model.outputs.within(model.theta))

        def largest_margin(rows: slice) -> np.ndarray:
            design = np.abs(model.gram_solver.design(model.X[rows]))
            return np.asarray((design @ parameters).max(axis=1))

        largest = by_rows(largest_margin, *model.X.shape, threads=True)
        steep = np.linalg.norm(self.slopes_at_rest, axis=1)
        curved = np.einsum("nkk->n", model.curvatures)
        e = 4 * EPS * (steep + curved * (1 + largest))
        if self.outputs.count == 1:
            reach = np.sqrt(np.maximum(model.gram_solver.own_products[1], 0.0))
            moved = float(np.sum(model.weight * e * reach))
            least = np.maximum(model.curvatures[:, 0, 0], 0.0)
        else:
            for piece in row_slices(len(model.X), 2 * self.outputs.count * len(self.inverse)):
                rows = np.arange(*piece.indices(len(model.X)))
                solved = model.gram_solver.solved(rows[:, None])
                reach = np.linalg.norm(model.seen(solved), axis=(1, 2))
                moved += float(np.sum(model.weight[piece] * e[piece] * reach))
            least = np.maximum(np.linalg.eigvalsh(model.curvatures)[:, 0], 0.0)
        with np.errstate(divide="ignore"):
            each = np.where(model.weight * e > 0, model.weight * e**2 / least, 0.0)
        together = float(np.sum(model.weight * e * np.sqrt(self._squares)))
        return moved, float(np.sqrt(np.sum(each))), together

    @cached_property
    def _squares(self) -> np.ndarray:
        """``‖x̃‖²`` of every record, (n,)."""
        X = self.model.X
        return np.asarray(np.einsum("nd,nd->n", X, X) + self.model.gram_solver.intercept)

    def size(self, gradient: np.ndarray) -> np.ndarray:
        """Return an estimate of the distance to the minimiser, ``‖g‖`` in the norm of ``H⁻¹``."""
        return np.asarray(np.sqrt(np.abs(np.sum(gradient * (gradient @ self.inverse), axis=1))))

    # One by one -------------------------------------------------------------------------------

    def _share(self, rows: np.ndarray) -> float:
        """Return these records' largest share of the curvature in any unpenalised direction.

        If the share is near 1, the refit without these records may not be unique. With a penalty,
        the intercept is the only unpenalised direction.
        """
        model = self.model
        if model.fit.ridge > 0:
            if model.fit.intercept is None:
                return 0.0
            return float(self._curved[rows].sum() / self._curved.sum())
        if len(rows) * self.outputs.count > 300:  # more than is worth the decomposition
            return 1.0
        return model.gram_solver.largest_share(rows)

    @cached_property
    def _curved(self) -> np.ndarray:
        """The curvature of every record, summed over all outputs, (n,)."""
        return np.asarray(np.einsum("nkk->n", self.model.gram_solver.curvature))

    def _holds_intercept(self, change: Change) -> bool:
        """Return whether the labels of a changed table allow a finite intercept.

        The intercept, which is not penalised, diverges to minus infinity for a class without
        records, and if all counts are zero. In these cases Newton's method may stop early, once the
        gradient is as small as the rounding errors.
        """
        if self.model.fit.intercept is None:
            return True
        there = self._anchored.sum(axis=0) - self._anchored[change.removed].sum(axis=0)
        if change.features is not None:
            labels, weight = np.asarray(change.labels, dtype=float), np.asarray(change.weight)
            there = there + self._anchors(labels, weight).sum(axis=0)
        return bool(np.all(there > 0))

    @property
    def _labels_decide(self) -> bool:
        """Whether the labels alone show if the intercept of a penalised fit is finite."""
        family = self.model.fit.family
        return isinstance(family, Categorical) or family.name in _DECIDED

    @cached_property
    def _anchored(self) -> np.ndarray:
        """Which of the e conditions for a finite intercept each record meets, (n, e)."""
        return self._anchors(self.model.target, self.model.weight)

    def _anchors(self, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return whether each label has each class or, for counts, is above zero, (n, e)."""
        family = self.model.fit.family
        if isinstance(family, Categorical):
            held = labels > 0
        elif family.name == "bernoulli":
            held = np.stack([labels < 1, labels > 0], axis=1)
        elif family.name == "poisson":
            held = labels[:, None] > 0
        else:
            held = np.ones((len(labels), 1), dtype=bool)
        return np.asarray(held & (weight > 0)[:, None])

    def _alone(self, change: Change, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return one refit's change and its error, by Newton's method with factorised Hessians.

        The checks of an ordinary fit show whether the changed records determine the parameters. If
        the labels do not show whether the intercept is finite, a diverging intercept is recognised
        by its vanishing curvature.
        """
        model, outputs = self.model, self.outputs
        kept = np.setdiff1d(np.arange(len(model.X)), change.removed)
        X, target, weight = model.X[kept], model.target[kept], model.weight[kept]
        if change.features is not None:
            X = np.vstack([X, change.features])
            target = np.concatenate([target, np.asarray(change.labels, dtype=float)])
            weight = np.append(weight, change.weight)
        ridge = float(self.ridges([change])[0])
        fit = replace(model.fit, target=target, sample_weight=weight, ridge=ridge)
        guess = model.theta + outputs.of_all(start).reshape(model.theta.shape)
        objective = Objective.of(fit, X)
        with np.errstate(over="ignore", invalid="ignore"):
            curved = np.isfinite(objective.hessian(objective.margins(guess))).all()
        guess = guess if curved else model.theta  # a start too far away, as of exponentials
        nothing = np.full(start.shape, np.inf), np.zeros(start.shape)
        unknown = np.full(start.shape, np.nan), np.zeros(start.shape)
        if not len(X):
            return nothing
        theta = None
        missed = held = fit.ridge > 0 and (fit.intercept is None or self._labels_decide)
        # Under a penalty there is a minimiser; a start far off may have kept it from being found.
        for begin in (guess, model.theta) if fit.ridge > 0 else (guess,):
            try:
                theta = np.asarray(minimise(objective, begin, fit.feature_names).parameters)
                break
            except NotConvergedError:
                missed = True
            except InputError:  # no minimiser, or none that is found from there
                missed = held
        if theta is None:
            return unknown if missed else nothing
        margins = objective.margins(theta)
        if fit.ridge > 0 and fit.intercept is not None and not self._labels_decide:
            curvature = outputs.curvature(outputs.within(margins), target)
            free = np.linalg.eigvalsh(np.einsum("n,nbc->bc", weight, curvature))
            if not free[0] > 1e-9 * self._curved.sum():
                return nothing
        sums = objective.at(theta, ("hessian",))
        H = gauge_fixed(sums.hessian, objective.family)
        factor = cholesky_factor(H)
        if factor is None and fit.ridge == 0:  # no curvature is left along some direction
            return unknown
        factor = factor or damped_factor(H)
        step = factor.solve(sums.gradient.reshape(-1))
        # Where a slope dies away exponentially, steps go on by about 1 in its margin, and the last
        # says nothing of how many are left.
        jump = np.abs(objective.margins(step.reshape(theta.shape))).max()
        if not self._bend * jump < 0.1:
            return unknown
        # A difference of two sets of parameters, each as exact as rounding leaves its gradient.
        lost = (4 * np.abs(step) + 4e-15 * np.abs(theta).reshape(-1)).reshape(theta.shape)
        lost = lost if outputs.basis is None else lost @ np.abs(outputs.basis)
        return outputs.within(theta - model.theta).reshape(-1), lost.reshape(-1)

    @property
    def _bend(self) -> float:
        """The largest change of the log-curvatures when a margin shifts by 1."""
        constant = self.model.fit.family.self_concordance
        return 1.0 if constant is None else constant

    # Many at a time ---------------------------------------------------------------------------

    def _newton(self, changes: list[Change], start: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the changes and last steps, (B, P), and the errors before the last steps, (B,).

        An error is relative to the size of the change, and infinite if the steps remain long.
        """
        whole, moved = ChangedTables(self, changes), start.copy()
        left, last = np.full(len(changes), np.inf), np.zeros(len(changes))
        active, rest = np.arange(len(changes)), np.zeros_like(moved)
        span = np.zeros(len(changes))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            size = self.size(whole.at_rest())
            size[size == 0] = 1.0
            for _ in range(60):
                batch, here = whole.of(active), moved[active]
                shift = batch.shifts(here)
                gradient, curvature = batch.derivatives(here, shift)
                pull, rest[active] = batch.pull(shift), gradient
                span[active] = self.outputs.spans(shift).max(axis=0)
                scale = np.where(pull > 0, np.minimum(size[active], pull), size[active])
                now = self.size(gradient) / scale
                better = now < 0.9 * left[active]
                left[active] = np.where(np.isfinite(now), now, np.inf)
                going = (now > _CONVERGED) & np.isfinite(now) & (better | (now > _ROUNDING))
                if not going.any():
                    break
                batch, here, shift = batch.of(going), here[going], shift[:, going]
                gradient, curvature = gradient[going], curvature[..., going]
                active = active[going]
                step, _ = self._solve(batch, curvature, -gradient, np.minimum(0.1, now[going]))
                near = now[going] < 1e-3  # a whole step is right; only rounding interferes
                length = 1.0 if near.all() else batch.length(here, shift, step, gradient)
                step *= np.where(near, 1.0, length)[:, None]
                moved[active] = here + step
                # The first step is the whole move, however short; it says nothing yet.
                moving = np.any(here != 0, axis=1)
                ratio = np.linalg.norm(step, axis=1) / np.linalg.norm(here + step, axis=1)
                last[active] = np.where(moving, ratio, 0.0)
            # Near in the norm of the table's Hessian need not be near in that of the noise, which
            # may see an intercept far from all records, nor where the refit's own curvature is
            # down to exp(−M|t|) of it: the last step is measured there, and taken.
            seen, constant = self.model.seen, self.model.fit.family.self_concordance
            lost, size = (np.linalg.norm(seen(v), axis=1) for v in (rest @ self.inverse, moved))
            curved = 0.0 if constant is None else np.exp(-constant * span)
            step = np.zeros_like(moved)
            late = np.isfinite(left)
            late &= (left > _CONVERGED) | (lost > _CONVERGED * curved * size)
            if late.any():
                batch, here = whole.of(late), moved[late]
                gradient, curvature = batch.derivatives(here, batch.shifts(here))
                tolerance = 0.1 * np.maximum(np.broadcast_to(curved, late.shape)[late], EPS)
                step[late], rest_of_it = self._solve(batch, curvature, -gradient, tolerance)
                moved[late] += step[late]
                jump = self.outputs.spans(batch.shifts(step[late])).max(axis=0)
                # A refit that hardly anything determines is beyond conjugate gradients.
                unsolved = rest_of_it > (1e-8 if constant is None else 10 * tolerance)
                jump = np.where(unsolved, np.inf, self._bend * jump)
                last[late] = np.maximum(last[late], jump)
        # Where classes are separable the gradient dies away, but steps do not.
        return moved, step, np.where(last > 1e-2, np.inf, left)

    def _solve(
        self, batch: ChangedTables, curvature: np.ndarray, right: np.ndarray, tolerance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Solve a system with each refit's Hessian by preconditioned conjugate gradients, (B, P).

        Also return the relative residual in the norm of ``H⁻¹``, of shape (B,).
        """
        solution, residual = np.zeros_like(right), right.copy()
        direction = z = residual @ self.inverse
        first = old = np.sum(residual * z, axis=1)
        for _ in range(60):
            seen = batch.hessian_times(curvature, direction)
            curved = np.sum(direction * seen, axis=1)
            rate = np.where(curved > 0, old / np.where(curved > 0, curved, 1.0), 0.0)[:, None]
            solution += rate * direction
            residual -= rate * seen
            z = residual @ self.inverse
            new = np.sum(residual * z, axis=1)
            if np.all(new <= tolerance**2 * first):
                break
            rate = np.where(old > 0, new / np.where(old > 0, old, 1.0), 0.0)[:, None]
            direction, old = z + rate * direction, new
        return solution, np.sqrt(np.abs(new) / np.where(first > 0, first, np.inf))


class ChangedTables:
    """The changes of one model's table, as arrays.

    Arrays of records have shape (n, B, …), with zeros for removed records. With added records, the
    shape is (n + a, B, …), where a is the largest number of records added in any change. Unused
    places have weight zero.
    """

    def __init__(self, refits: BatchedRefits, changes: list[Change], room: int = 0) -> None:
        self.refits, self.changes, self.model = refits, changes, refits.model
        model, solver, B = refits.model, refits.model.gram_solver, len(changes)
        removed = [np.asarray(change.removed) for change in changes]
        self.rows = np.concatenate(removed)
        self.columns = np.repeat(np.arange(B), [len(r) for r in removed])
        pull = model.weight[self.rows, None] * model.slopes[self.rows]
        x = solver.design(model.X[self.rows])
        parameters = model.outputs.within(model.theta)
        self.ridge = refits.ridges(changes)
        # What the gradient at θ̂ loses: the removed records' part, and that of a smaller penalty
        self.removed_gradient = np.zeros((B, len(refits.inverse)))
        kept = model.X.shape[1] * model.outputs.count
        lighter = (model.fit.ridge - self.ridge)[:, None]
        self.removed_gradient[:, :kept] = lighter * parameters.reshape(-1)[:kept]
        np.add.at(
            self.removed_gradient,
            self.columns,
            (x[:, :, None] * pull[:, None, :]).reshape(len(x), -1),
        )
        self.z: np.ndarray | None = None
        self.room = 0  # places for added records
        coming = [change for change in changes if change.features is not None]
        if coming or room:
            arrivals = [0 if c.features is None else len(np.asarray(c.features)) for c in changes]
            self.room = max(room, *arrivals, 1)
            shape = (self.room, B)
            self.z = np.zeros((*shape, len(parameters)))
            self.labels = np.empty((*shape, *model.target.shape[1:]))
            self.own_weight = np.zeros(shape)
            self.labels[:] = model.target[0]
            places = np.concatenate([np.arange(count) for count in arrivals])
            owners = np.repeat(np.arange(B), arrivals)
            if coming:
                added = solver.design(np.concatenate([np.asarray(c.features) for c in coming]))
                labels = np.concatenate([np.asarray(c.labels, dtype=float) for c in coming])
                self.z[places, owners], self.labels[places, owners] = added, labels
                self.own_weight[places, owners] = np.concatenate([c.weight for c in coming])
            self.own_margins = self.z @ parameters.reshape(len(parameters), -1)

    def of(self, which: np.ndarray) -> ChangedTables:
        """Return some of the changes, with the same number of places for added records."""
        chosen = np.arange(len(self.changes))[which]
        if len(chosen) == len(self.changes):
            return self
        return ChangedTables(self.refits, [self.changes[k] for k in chosen], self.room)

    def shifts(self, moved: np.ndarray) -> np.ndarray:
        """Return the margin shifts due to parameter changes, ``X̃ δ``, (B, P) → (n, B, c)."""
        X, B, c = self.model.X, len(moved), self.model.outputs.count
        by_output = np.ascontiguousarray(moved.reshape(B, -1, c).transpose(2, 1, 0))
        d = X.shape[1]
        out = np.empty((c, len(X) + self.room, B))  # as :class:`Outputs` works
        np.matmul(X, by_output[:, :d], out=out[:, : len(X)])
        out[:, : len(X)] += by_output[:, d:].sum(axis=1)[:, None]  # the intercept's, if any
        if self.z is not None:
            out[:, len(X) :] = np.einsum("abp,cpb->cab", self.z, by_output)
        return np.moveaxis(out, 0, -1)

    def _back(self, values: np.ndarray) -> np.ndarray:
        """Return ``X̃ᵀ v``, (n, B, c) → (B, P), over the records that are not removed."""
        X, B = self.model.X, values.shape[1]
        values[self.rows, self.columns] = 0.0
        table = np.moveaxis(values[: len(X)], -1, 0)
        out = X.T @ table
        if self.model.fit.intercept is not None:
            out = np.concatenate([out, table.sum(axis=1, keepdims=True)], axis=1)
        out = out.transpose(2, 1, 0)
        if self.z is not None:
            out = out + np.einsum("abp,abc->bpc", self.z, values[len(X) :])
        return np.asarray(out.reshape(B, -1))

    def _penalty(self, moved: np.ndarray) -> np.ndarray:
        """Return each ridge times the parameter change, with zero for the intercept."""
        out = self.ridge[:, None] * moved
        out[:, self.model.X.shape[1] * self.model.outputs.count :] = 0.0
        return np.asarray(out)

    def _pieces(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield records with their margins, labels and weights, for broadcasting.

        The table is split into pieces that fit in the processor's cache; the added records follow.
        """
        model = self.model
        for rows in row_slices(
            len(model.X), len(self.changes) * model.outputs.count, chunk=_IN_CACHE
        ):
            yield (
                rows,
                model.margins[rows, None],
                model.target[rows, None],
                model.weight[rows, None],
            )
        if self.z is not None:
            last = slice(len(model.X), len(model.X) + len(self.z))
            yield last, self.own_margins, self.labels, self.own_weight

    def _slopes(self, shift: np.ndarray) -> np.ndarray:
        """Return the weighted changes of the slopes due to margin shifts, of shape (n, B, c)."""
        outputs, model, last = self.model.outputs, self.model, len(self.model.X)
        slopes = np.empty_like(shift)
        width = len(self.changes) * outputs.count
        for rows in row_slices(last, width, chunk=_IN_CACHE):
            new = outputs.slopes_at(model.margins[rows], shift[rows], model.target[rows])
            new -= self.refits.slopes_at_rest[rows, None]
            np.multiply(model.weight[rows, None, None], new, out=slopes[rows])
        if self.z is not None:
            new = outputs.slope(self.own_margins + shift[last:], self.labels)
            slopes[last:] = self.own_weight[:, :, None] * new
        slopes[self.rows, self.columns] = 0.0
        return slopes

    def largest_spans(self, shift: np.ndarray) -> np.ndarray:
        """Return the largest span of the other records' margin shifts, for each change, (B,)."""
        model, largest = self.model, np.zeros(len(self.changes))
        for piece in row_slices(len(model.X), shift[0].size, chunk=_IN_CACHE):
            spans = model.outputs.spans(shift[piece])
            spans[model.weight[piece] <= 0] = 0.0
            here = (self.rows >= piece.start) & (self.rows < piece.stop)
            spans[self.rows[here] - piece.start, self.columns[here]] = 0.0
            largest = np.maximum(largest, spans.max(axis=0))
        return largest

    def at_rest(self) -> np.ndarray:
        """Return the gradients of the changed objectives at the unchanged model, (B, P)."""
        shift = np.zeros((self.room, len(self.changes), self.model.outputs.count))
        return self._arrivals(shift) - self.removed_gradient

    def _arrivals(self, shift: np.ndarray) -> np.ndarray:
        """Return the gradients of the added records, (B, P); ``shift`` ends with their shifts."""
        if self.z is None:
            return np.zeros_like(self.removed_gradient)
        slopes = self.model.outputs.slope(self.own_margins + shift[-len(self.z) :], self.labels)
        slopes = self.own_weight[:, :, None] * slopes
        return np.asarray(np.einsum("abp,abc->bpc", self.z, slopes).reshape(slopes.shape[1], -1))

    def pull(self, shift: np.ndarray) -> np.ndarray:
        """Return the gradient norms of the removed and added records after these shifts, (B,).

        An added record's gradient may be orders of magnitude larger at the old model than at the
        new model.
        """
        size = self.refits.size
        return np.asarray(size(self.removed_gradient) + size(self._arrivals(shift)))

    def gradient(self, moved: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return the gradients of the changed objectives, (B, P), for these changes and shifts."""
        gradient = self._back(self._slopes(shift)) + self._penalty(moved)
        return np.asarray(gradient - self.removed_gradient)

    def derivatives(self, moved: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients, (B, P), and the curvatures, for these changes and shifts."""
        outputs, gradient = self.model.outputs, self.gradient(moved, shift)
        curvature = [
            outputs.curvature_parts(margins + shift[rows], labels, weight)
            for rows, margins, labels, weight in self._pieces()
        ]
        return gradient, np.concatenate(curvature, axis=1)

    def hessian_times(self, curvature: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return each refit's Hessian times its direction, of shape (B, P)."""
        values = self.model.outputs.curvature_times(curvature, self.shifts(direction))
        return np.asarray(self._back(values) + self._penalty(direction))

    def length(
        self, moved: np.ndarray, shift: np.ndarray, step: np.ndarray, gradient: np.ndarray
    ) -> np.ndarray:
        """Return the lengths of steps that end before the objective rises steeply again.

        At the end of a step, the slope along the step is at most 0.9 times the initial descent.
        """
        along = self.shifts(step)
        downhill = np.abs(np.sum(gradient * step, axis=1))
        base = np.sum((self._penalty(moved) - self.removed_gradient) * step, axis=1)
        rise = np.sum(self._penalty(step) * step, axis=1)
        taken = np.ones(len(step))
        for _ in range(40):
            slopes = self._slopes(shift + taken[:, None] * along)
            slope = base + taken * rise + np.sum(slopes * along, axis=(0, 2))
            steep = ~(slope <= 0.9 * downhill)
            if not steep.any():
                break
            secant = downhill / (downhill + slope)
            secant = np.where(np.isfinite(secant), np.clip(secant, 0.1, 0.9), 0.1)
            taken = np.where(steep, taken * secant, taken)
        return taken
