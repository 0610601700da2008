"""The change of a GLM's minimiser when a record is left out or replaced, for all records.

Let ``H₀`` be the Hessian at ``θ̂`` without record i. Let ``t_j = x̃_jᵀδ`` be the shift of the other
records' margins when the parameters change by ``δ``, and ``ε_j = ω_j[ℓ'(m_j + t_j) − ℓ'(m_j) − a_j
t_j]`` the error of their slopes at fixed curvature. If ``(z, y')`` replaces the record (or nothing
does: σ = 0), the refit changes the parameters by::

    δ = ω r H₀⁻¹x̃ − σ H₀⁻¹z̃ − H₀⁻¹X̃ᵀε,        σ = ω ℓ'(z̃ᵀ(θ̂ + δ), y')

The *centre* (:mod:`~seepage.glm.changes.centres`) omits ε, so that one equation for the record's
own margin remains. For least squares ε = 0, so the centre is exact. The *certificate*
(:mod:`~seepage.glm.changes.certificate`) bounds the distance of the refit from the centre. The
*expansion* (:mod:`~seepage.glm.changes.expansion`) includes ε up to high powers of the shifts.
*Refits* (:mod:`~seepage.glm.changes.batched_refits`) start from these approximations, and are exact
for any family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from seepage.core.finite_changes import (
    Alternatives,
    FiniteChanges,
    Moves,
)
from seepage.core.jacobian import ReleaseJacobian
from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError
from seepage.glm.changes.batched_refits import BatchedRefits, Change, ChangedTables
from seepage.glm.changes.centres import Centres, Replacements, WithoutRecord
from seepage.glm.changes.certificate import (
    Shifts,
    around,
    bound_by_convexity,
    free_shifts,
    one_direction,
    pair_shifts,
    pairs_may_help,
    quadratic_shifts,
    slope_error,
)
from seepage.glm.changes.corrections import correct
from seepage.glm.changes.expansion import AT_ONCE, QUICK, Expansion
from seepage.glm.changes.local_model import LocalModel, callers_moves, in_numpy
from seepage.glm.changes.outputs import JointOutputs
from seepage.glm.jacobian.optimum import Optimum
from seepage.glm.losses import Categorical
from seepage.support.chunks import CHUNK, row_slices, spread
from seepage.support.double_double import EPS

PAIR_WORK = 1e12  # multiplications allowed to passes over pairs for many alternatives
REFIT_WORK = 1e11  # and those up to which priors come from refits without each record


@dataclass(frozen=True)
class RefittedMoves:
    """The releases of refitted models, as vectors in units of the noise."""

    seen: np.ndarray  # (m, K, P)
    radius: np.ndarray  # how far from there each may be, (m, K)
    lost: np.ndarray  # which changes leave no release, (m, K)

    def moves(self) -> Moves:
        """Return the inner products and the radii of the vectors."""
        gram = self.seen @ np.swapaxes(self.seen, 1, 2)
        diagonal = np.arange(gram.shape[1])
        gram[:, diagonal, diagonal] += np.where(self.lost, np.inf, 0.0)
        return Moves(gram, self.radius)


class ChangedRecords(FiniteChanges):
    """The finite changes of a GLM's release.

    If the local model contains only some of the fitted records, refits and passes over pairs of
    records are not available.
    """

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.refits, self.expansion = BatchedRefits(model), Expansion(model)
        self.target, self.records = self.model.target, len(self.model.X)
        # About 40 products of the table with the parameters
        self.work = 40.0 * self.model.X.size * (self.model.theta.size // len(self.model.theta))
        self.certifies = self.model.fit.family.self_concordance is not None

    # Certified --------------------------------------------------------------------------------

    def moves(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return certified bounds on the changes if records, or sets of them, change or leave."""
        rows, K = np.asarray(rows), 1 if others is None else len(others)
        moves = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))
        for which, sets in of_one_size(rows):
            # The decomposition of a large set takes longer than a refit without it.
            large = (sets.shape[1] * self.model.outputs.count) ** 3 > self.work
            if not large or self.model.shifts is not None:
                moves.put(which, self._certified(sets, others))
            else:
                moves.put(which, self.moves_exactly(rows[which], others))
        return moves

    def _certified(self, rows: np.ndarray, others: Alternatives | None) -> Moves:
        """Return changes from increasingly costly bounds, until the bounds are narrow enough.

        ``rows`` holds m sets of k records each, (m, k).
        """
        model, K = self.model, 1 if others is None else len(others)
        moves = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))
        if self.certifies:
            wide, single, quick = np.arange(len(rows)), rows.shape[1] == 1, False
            if single and (quick := self.expansion.affords(len(rows) * K, QUICK)):
                moves = self.expansion.moves(rows[:, 0], others)
                wide = np.flatnonzero(_is_wide(moves))
            bounds = [free_shifts, quadratic_shifts] if model.constant else [free_shifts]
            # Of many records, the expansion is needed only for those not yet known to 0.1 %.
            later = single and not quick
            _put_if_closer(moves, wide, self._bounded(rows[wide], others, bounds, finely=later))
            if later:
                wide = wide[_is_wide(moves, finely=True)[wide]]
                if self.expansion.affords(len(wide) * K):
                    _put_if_closer(moves, wide, self.expansion.moves(rows[wide, 0], others))
            if model.constant and model.shifts is None:
                wide = wide[_is_wide(moves)[wide]]
                wide = self._worth_a_pass(moves, wide, rows, others)
                found = self._bounded(rows[wide], others, [pair_shifts], chunk=CHUNK)
                _put_if_closer(moves, wide, found)
        lost = np.flatnonzero(np.isinf(moves.radius).any(axis=1))
        for piece in row_slices(len(lost), self._width(rows, others)):
            bound_by_convexity(model, moves, lost[piece], rows, others)
        return moves

    def _bounded(
        self,
        rows: np.ndarray,
        others: Alternatives | None,
        bounds: Sequence[Callable[[LocalModel, np.ndarray, Centres], Shifts]],
        *,
        finely: bool = False,
        chunk: int = AT_ONCE,
    ) -> Moves:
        """Return the changes around their centres, each from the first bound that is narrow enough.

        The bounds are in order of their cost; ``finely`` is as in :func:`_is_wide`.
        """
        K = 1 if others is None else len(others)
        every = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))

        def look(piece: slice) -> tuple[slice, Moves]:
            some, wide = rows[piece], np.arange(piece.stop - piece.start)
            closest = Moves(np.zeros((len(some), K, K)), np.full((len(some), K), np.inf))
            centres = Centres.of(self.model, some, others)
            for shifts_of in bounds:
                found = around(self.model, centres, shifts_of(self.model, some[wide], centres))
                closest.put(wide, found)
                still = np.flatnonzero(_is_wide(found, finely=finely))
                if not len(still):
                    break
                wide, centres = wide[still], centres.part(still)
            return piece, closest

        pieces = list(row_slices(len(rows), self._width(rows, others), chunk=chunk))
        # What all pieces share is computed, and kept, with the first.
        for piece, found in chain(map(look, pieces[:1]), spread(look, pieces[1:])):
            every.put(piece, found)
        return every

    def _worth_a_pass(
        self, moves: Moves, wide: np.ndarray, rows: np.ndarray, others: Alternatives | None
    ) -> np.ndarray:
        """Return the records for which a pass over pairs of records may give tighter bounds."""
        model = self.model
        pieces = [wide[piece] for piece in row_slices(len(wide), self._width(rows, others))]
        help_ = [pairs_may_help(model, Centres.of(model, rows[p], others)) for p in pieces]
        wide = wide[np.concatenate([np.zeros(0, dtype=bool), *help_])]
        if one_direction(model, rows, [] if others is None else list(others.columns)):
            return wide
        # A pass for every alternative: as many as are affordable, the largest moves first
        passes = model.outputs.count * moves.radius.shape[1]
        size = moves.expected()[wide].max(axis=1)
        return wide[np.argsort(-size, kind="stable")[: int(PAIR_WORK / (model.X.size * passes))]]

    def _width(self, rows: np.ndarray, others: Alternatives | None) -> int:
        """Return the approximate count of numbers in memory for the centres of a set."""
        c = self.model.outputs.count * int(rows.shape[1])
        K, columns = (1, 0) if others is None else (len(others), len(others.columns))
        solved = 64 if c == 1 and not columns else 2 * len(self.model.inverse)
        return c * (solved + 8 * K * c * (1 + columns))

    # By refits --------------------------------------------------------------------------------

    def moves_exactly(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the changes of :meth:`moves`, computed by refits.

        If several records change together, all of them have the same alternative.
        """
        model, every = self.model, [np.atleast_1d(some) for some in rows]
        if others is None:
            if model.shifts is not None:
                raise InputError(
                    "Refitting the model without several records requires all records in memory, "
                    "but the data are read in chunks; load the rows of the fit into memory first."
                )
            moved, changes = np.ones((len(rows), 1), dtype=bool), [Change(some) for some in every]
        else:
            moved, changes = np.zeros((len(rows), len(others)), dtype=bool), []
            for m, some in enumerate(every):
                change, labels = model.changes(some, others)
                moved[m] = ~model.unchanged(some, change, labels).all(axis=0)
                for k in np.flatnonzero(moved[m]):
                    Z = model.X[some]
                    if others.values is not None:
                        Z[:, list(others.columns)] = model.near(others)[k]
                    changes.append(Change(some, Z, labels[:, k], model.weight[some]))
        return self.refitted(changes, moved, *self.starts(rows, others)).moves()

    def parameter_changes(self, changes: list[Change]) -> np.ndarray:
        """Return the changes of the free parameters, (B, P), computed by refits.

        A change is not finite if no unique minimiser is known to exist.
        """
        model = self.model
        left = np.array([1 - model.gram_solver.largest_share(c.removed) for c in changes])
        starts = np.zeros((len(changes), len(model.inverse)))
        return self._steps(changes, starts, np.clip(left, 0.0, 1.0))[0]

    def starts(
        self, rows: np.ndarray, others: Alternatives | None
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the free parameters' changes at the centres, (m, K, P), if available.

        Also return the remaining records' smallest share of the curvature, of shape (m,).
        """
        model, K = self.model, 1 if others is None else len(others)
        starts, left = np.zeros((len(rows), K, len(model.inverse))), np.ones(len(rows))
        if not self.certifies:
            shares = [model.gram_solver.largest_share(np.atleast_1d(some)) for some in rows]
            return None, np.clip(1 - np.array(shares), 0.0, 1.0)
        for which, sets in of_one_size(rows):
            if (sets.shape[1] * model.outputs.count) ** 3 > self.work:
                # Newton's method takes no longer from where the model is.
                left[which] = [1 - model.gram_solver.largest_share(some) for some in sets]
                continue
            for piece in row_slices(len(sets), self._width(sets, others)):
                centres = Centres.of(model, sets[piece], others)
                begin = centres.moves(model, sets[piece])
                if sets.shape[1] == 1 and self.expansion.affords(centres.energy.size):
                    found = self.expansion.of(sets[piece, 0], others, centres)
                    near = np.isfinite(found.error)[..., None]
                    begin = np.where(near, found.moves @ self.expansion.root.T, begin)
                starts[which[piece]] = begin
                left[which[piece]] = np.where(np.isinf(centres.per_error), 0.0, centres.free)
        return starts, left

    def refitted(
        self,
        changes: list[Change],
        moved: np.ndarray,
        starts: np.ndarray | None,
        left: np.ndarray,
    ) -> RefittedMoves:
        """Return the changes by refits, for the alternatives marked in ``moved (m, K)``.

        ``starts`` and ``left`` are as returned by :meth:`starts`. Rounding errors grow if the
        remaining records have little of the curvature, or lose it during the refit.

        If every parameter is penalised, the minimiser lies within ``‖g‖/ridge`` of ``θ̂``, where g
        is the gradient of the changed objective at ``θ̂``. Where a refit failed, ``‖g‖/ridge`` is
        used as a bound. If some parameter is not penalised, a minimiser may not exist.
        """
        model, refits = self.model, self.refits
        seen = np.zeros((*moved.shape, model.theta.size))
        lost = np.zeros(moved.shape, dtype=bool)
        unknown = lost.copy()
        errors, reach, pull_errors = np.zeros((3, *moved.shape))
        weaker = np.ones(moved.shape)
        if changes:
            places = np.broadcast_to(left[:, None], moved.shape)[moved]
            steps, errors[moved], weaker[moved] = self._steps(
                changes, None if starts is None else starts[moved], places
            )
            unknown[moved], failed = np.isnan(steps).any(axis=1), ~np.isfinite(steps).all(axis=1)
            seen[moved] = model.seen(np.where(failed[:, None], 0.0, steps))
            lost[moved] = failed & ~unknown[moved]
            pull_errors[moved], reach[moved] = self._pull_errors(changes), np.inf
            if model.fit.intercept is None and model.fit.ridge > 0:
                reach[moved] = model.seen.largest * refits.steepness(changes) / model.fit.ridge
        size = np.linalg.norm(seen, axis=2)
        # Rounding does not shrink with the difference of what leaves and what comes.
        stays = np.zeros(moved.shape) + np.clip(left, EPS, 1)[:, None]
        rounding, slopes = model.gram_solver.rounding * weaker / stays, np.zeros(moved.shape)
        if changes:
            slopes[moved] = refits.slope_rounding(changes, stays[moved], weaker[moved])
        if changes and model.fit.ridge > 0:
            rounding[moved] = np.minimum(rounding[moved], 16 * EPS * refits.conditions(changes))
        rounding = (rounding + pull_errors) * model.seen.skew
        rounding = np.maximum(1e-9 * size, rounding * size.max(axis=1, keepdims=True)) + slopes
        radius = np.where(size > 0, rounding, 0.0) + errors
        radius = np.where(unknown, np.inf, radius)
        radius = np.where((lost | unknown) & np.isfinite(reach), reach, radius)
        return RefittedMoves(seen, radius, lost & np.isinf(reach))

    def _steps(
        self, changes: list[Change], starts: np.ndarray | None, left: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return refits' changes, (B, P), their errors in units of the noise, and the weakening.

        The changes are as returned by :meth:`BatchedRefits.moves`, which is called only where
        corrections are not near enough.
        """
        model, refits = self.model, self.refits
        steps = np.zeros((len(changes), len(model.inverse)))
        errors, weaker = np.full(len(changes), np.inf), np.ones(len(changes))
        if self.certifies and model.constant and starts is not None:
            near = correct(refits, changes, starts, left)
            steps, errors, weaker = near.moves, near.radius, near.weaker
        far = np.flatnonzero(~np.isfinite(errors))  # an exponential may have overflowed
        if len(far):
            some = [changes[k] for k in far]
            steps[far], short = refits.moves(some, None if starts is None else starts[far])
            known = np.asarray(np.isfinite(steps[far]).all(axis=1))[:, None]
            errors[far] = np.linalg.norm(model.seen(np.where(known, short, 0.0)), axis=1)
            weaker[far] = refits.weakening(some, np.where(known, steps[far], 0.0))
        return steps, errors, weaker

    def _pull_errors(self, changes: list[Change]) -> np.ndarray:
        """Return the relative errors of the removed records' gradients, of shape (B,)."""
        model, lost = self.model, np.zeros(self.records)
        rows = np.unique(np.concatenate([change.removed for change in changes]))
        for piece in row_slices(len(rows), self._width(rows[:, None], None)):
            some = rows[piece]
            lengths = model.outputs.widest(model.solver.products(some[:, None], [])[0])
            lengths = np.sqrt(np.maximum(lengths, 0.0))
            lost[some] = model.weight[some] * model.slope_errors[some] * lengths
        lost = np.array([np.sum(lost[change.removed]) for change in changes])
        pull = self.refits.size(ChangedTables(self.refits, changes).removed_gradient)
        return np.asarray(np.divide(lost, pull, out=np.zeros_like(lost), where=pull > 0))

    # What the model without a record finds likely ---------------------------------------------

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each alternative's log-likelihood under the fit without the record, with errors.

        The errors are from certificates. The least certain records are refitted, as far as that is
        affordable; for a family without certificates, all records are refitted.
        """
        family = self.model.fit.family
        if family.name not in ("bernoulli", "poisson", "categorical"):
            raise InputError(
                f"The {family.name} family has no probabilities, so the model cannot serve as a "
                "prior; choose 'equal', 'frequencies' or your own probabilities."
            )
        affordable = max(1, int(REFIT_WORK / self.work)) if refits is None else refits
        affordable = affordable if self.model.shifts is None else 0
        if not self.certifies:
            return self._refitted_likelihoods(rows, others)
        scores, off = np.empty((len(rows), len(others))), np.empty(len(rows))
        for which, sets in of_one_size(rows):
            quick = sets.shape[1] == 1 and self.expansion.affords(len(sets), QUICK)
            scores[which], off[which] = self._likelihoods(sets, others, expanded=quick)
            # As for moves: of many records, only those whose odds are not known to 0.1 %.
            wide = np.flatnonzero(~(off[which] <= 0.0005))
            if not quick and sets.shape[1] == 1 and self.expansion.affords(len(wide)):
                found = self._likelihoods(sets[wide], others, expanded=True)
                scores[which[wide]], off[which[wide]] = found
        worst = np.argsort(-off, kind="stable")[:affordable]
        worst = worst[off[worst] > 1e-8]
        if len(worst):
            scores[worst], off[worst] = self._refitted_likelihoods(rows[worst], others)
        return scores, off

    def _likelihoods(
        self, rows: np.ndarray, others: Alternatives, *, expanded: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-likelihoods and their errors without refits, for sets (m, k)."""
        model, scores, off = self.model, np.empty((len(rows), len(others))), np.empty(len(rows))
        for piece in row_slices(len(rows), self._width(rows, others)):
            some, left = rows[piece], Centres.of(model, rows[piece], None)
            E, _ = slope_error(model, left, free_shifts(model, some, left))
            new, joint = self._replacements(some, others)
            widest = np.maximum(joint.each.widest(joint.blocks(new.lengths)), 0.0)
            given = new.given
            if expanded:
                found = self.expansion.of(some[:, 0], None, left)
                shift = np.sum(self.expansion.arriving(some[:, 0], others) * found.beside, axis=2)
                given = np.where(found.error < E, given[..., 0] + shift, given[..., 0])[..., None]
                E = np.minimum(E, found.error)
            with np.errstate(over="ignore", invalid="ignore"):
                span = np.sqrt(widest) * E[:, :, None] + new.given_error[:, :, None]
                scores[piece], off[piece] = self._scores(joint.apart(given), new.labels, span)
        return scores, off

    def _replacements(
        self, rows: np.ndarray, others: Alternatives
    ) -> tuple[Replacements, JointOutputs]:
        """Return the added records in the fit without the removed ones, for sets (m, k)."""
        model, joint = self.model, JointOutputs(self.model.outputs, rows.shape[1])
        by_inverse = model.solver.products(rows, list(others.columns))[0]
        rest = WithoutRecord.of(model, rows, by_inverse[:, : joint.count, : joint.count])
        return Replacements.of(model, rows, others, by_inverse, rest), joint

    def _scores(
        self, margins: np.ndarray, labels: np.ndarray, span: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log-likelihoods, (m, K), at margins (m, K, k, c), and the largest errors, (m,).

        The log-likelihoods of a set's records are added.
        """
        outputs = self.model.outputs
        scores = -np.sum(outputs.loss(margins, labels), axis=2)
        steep = outputs.steepest(margins, labels, np.broadcast_to(span, margins.shape[:-1]))
        off = np.max(np.sum(span * steep, axis=2), axis=1)
        return scores, np.where(np.isnan(off), np.inf, off)

    def _refitted_likelihoods(
        self, rows: np.ndarray, others: Alternatives
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-likelihoods and their errors from refits."""
        model, outputs, columns = self.model, self.model.outputs, list(others.columns)
        starts, left = self.starts(rows, None)
        changes = [Change(np.atleast_1d(some)) for some in rows]
        moves, errors = np.zeros((2, len(changes), len(model.inverse)))
        far, off_by = np.arange(len(changes)), np.zeros(len(changes))
        if model.constant and starts is not None:
            near = correct(self.refits, changes, starts[:, 0], left)
            certain = np.isfinite(near.radius)
            far = np.flatnonzero(~certain)
            # An error of norm 1 in the others' Hessian is ``sight/√left`` in units of the noise.
            off_by = np.where(certain, near.radius, 0.0) * np.sqrt(left) / model.sight
            moves[certain] = near.moves[certain]
        if len(far):
            some = [changes[k] for k in far]
            moves[far], errors[far] = self.refits.moves(
                some, None if starts is None else starts[far, 0]
            )
        known = np.asarray(np.isfinite(moves).all(axis=1))
        moves, errors = (np.where(known[:, None], v, 0.0) for v in (moves, errors))
        scores, off = np.empty((len(rows), len(others))), np.empty(len(rows))
        for which, sets in of_one_size(rows):
            change, labels, _ = model.changes_together(sets, others)
            x = model.solver.design(model.X[sets.reshape(-1)]).reshape(*sets.shape, -1)

            def shifts(
                x: np.ndarray, change: np.ndarray, moves: np.ndarray, which: np.ndarray = which
            ) -> np.ndarray:
                by_column = moves[which].reshape(len(which), -1, outputs.count)
                own = np.einsum("mkd,mdc->mkc", x, by_column)[:, None]
                return np.asarray(own + np.einsum("mKkd,mdc->mKkc", change, by_column[:, columns]))

            margins = model.margins_before(sets, change, columns) + shifts(x, change, moves)
            lost = np.abs(shifts(x, change, errors))
            lost += model.gram_solver.rounding * shifts(np.abs(x), np.abs(change), np.abs(moves))
            # No two outputs lie further apart than √2 times the length in their orthonormal basis.
            span = np.linalg.norm(lost, axis=3) * (1.0 if outputs.basis is None else np.sqrt(2))
            if off_by[which].any():
                new, joint = self._replacements(sets, others)
                widest = joint.each.widest(joint.blocks(new.lengths))
                span = span + np.sqrt(np.maximum(widest, 0.0)) * off_by[which, None, None]
            scores[which], off[which] = self._scores(margins, labels, span)
        return scores, np.where(known, off, np.inf)

    def class_labels(self) -> np.ndarray:
        """Return the labels that a classifier's record may have, of shape (K,) or (K, K)."""
        family = self.model.fit.family
        if isinstance(family, Categorical):
            return np.eye(family.outputs)
        return np.array([0.0, 1.0]) if family.name == "bernoulli" else super().class_labels()


class RecordRefits:
    """The release with one record replaced and all other records unchanged.

    The class implements :class:`~seepage.core.jacobian.Refits` by batched refits. ``jacobian_of``
    returns the Jacobian of a replaced record, given a refitted model, the table, the row, the
    record's features and label, and the noise.
    """

    rounding = 1e-14

    def __init__(
        self, optimum: Optimum, X: Any, jacobian_of: Callable[..., ReleaseJacobian]
    ) -> None:
        self.fit, self.X = in_numpy(optimum.fit, X)
        self.target, self.theta = self.fit.target, np.asarray(self.fit.parameters)
        self._jacobian_of = jacobian_of
        self._changes = ChangedRecords(LocalModel(optimum, X, (Gaussian(1.0),)))

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the difference between each replacement's parameters and the actual ones, (K, P).

        ``features`` has shape (K, d). ``labels`` has shape (K,), or (K, classes) for softmax; by
        default, the record's own label is used. The difference is NaN where no minimiser was found.
        """
        model = self._changes.model
        Z = np.atleast_2d(np.asarray(features, dtype=float))
        own = self.target[row, ...]
        T = np.broadcast_to(own, (len(Z), *np.shape(own)))
        if labels is not None:
            T = np.asarray(labels, dtype=float).reshape(T.shape)
        Z = Z if model.centre is None else Z - model.centre
        removed = np.array([row])
        changes = [
            Change(removed, z[None], t[None], model.weight[removed])
            for z, t in zip(Z, T, strict=True)
        ]
        starts = np.zeros((len(changes), len(model.inverse)))
        left = np.full(len(changes), max(1 - model.gram_solver.largest_share(removed), 0.0))
        moves = self._changes._steps(changes, starts, left)[0]
        known = np.isfinite(moves).all(axis=1, keepdims=True)
        moves = callers_moves(model.outputs.of_all(np.where(known, moves, 0.0)), model.centre)
        return np.where(known, moves, np.nan)

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the parameters for each replacement, of shape (K, P) or (K, P, classes).

        The intercept comes last.
        """
        moves = self.moves(row, features, labels)
        return np.asarray(self.theta + moves.reshape(len(moves), *self.theta.shape))

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Noise
    ) -> ReleaseJacobian:
        """Return the Jacobian for the replaced row, at a refit from :meth:`parameters`."""
        d = self.X.shape[1]
        intercept = None if self.fit.intercept is None else theta[d, ...]
        fit = replace(self.fit, coef=theta[:d, ...], intercept=intercept)
        return self._jacobian_of(fit, self.X, row, features, label, noise)


def of_one_size(rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield groups of records, or of equally large sets: their positions and the sets, (m, k)."""
    if rows.dtype != object:
        yield np.arange(len(rows)), rows[:, None]
        return
    sizes = np.array([len(some) for some in rows])
    for size in np.unique(sizes):
        which = np.flatnonzero(sizes == size)
        yield which, np.stack(list(rows[which]))


def _put_if_closer(moves: Moves, which: np.ndarray, found: Moves) -> None:
    """Put the changes found for some records among all, where their largest radius is smaller."""
    # Of two infinite radii, the one found has a centre.
    before = moves.radius[which].max(axis=1)
    closer = (found.radius.max(axis=1) < before) | np.isinf(before)
    moves.put(which[closer], found.of(closer))


def _is_wide(moves: Moves, *, finely: bool = False) -> np.ndarray:
    """Return a mask of the records whose change has an uncertain length, (m,).

    A half-width above 4.9 % of the distance triggers a tighter bound, since reports show two
    digits; ``finely``, one above 0.1 %.
    """
    share = 0.001 if finely else 0.049
    least, most = moves.distances()
    with np.errstate(invalid="ignore"):
        known = np.isfinite(most) & (most - least <= share * (most + least))
    return np.asarray(~known.all(axis=1))
