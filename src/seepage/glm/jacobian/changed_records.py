"""How far a GLM's minimiser moves when a record is left out or replaced, for all records at once.

Let ``H₀`` be the Hessian at ``θ̂`` without record i, ``t_j = x̃_jᵀδ`` how far a move ``δ`` shifts the
other margins, and ``ε_j = ω_j[ℓ'(m_j + t_j) − ℓ'(m_j) − a_j t_j]`` what a fixed curvature leaves
out. With ``(z, y')`` in the record's place (or nothing: σ = 0) the refit moves by::

    δ = ω r H₀⁻¹x̃ − σ H₀⁻¹z̃ − H₀⁻¹X̃ᵀε,        σ = ω ℓ'(z̃ᵀ(θ̂ + δ), y')

The *centre* drops ε, which leaves one equation in one number, the record's own margin. Least
squares has ε = 0, and the centre is exact.

**The certificate.** For a family with ``|ℓ‴| ≤ M ℓ″`` (Bach 2010), ``|ε_j|`` is no more than
``ω_j a_j |t_j| κ(M|t_j|)``, ``κ(u) = (eᵘ − 1 − u)/u``. In the norm ``E = (Σ ε_j²/(ω_j a_j))^½``
(``‖X̃ᵀε‖`` in that of ``H₀⁻¹`` is no larger), for every ε of norm E the move lies within E of
the centre in the norm of ``H₀``; with ``S`` the largest ``|t_j|`` at the centre, ``N`` the norm of
its ``t``, ``Q⁴ = Σ ω_j a_j t_j⁴`` and ``R = max_j ‖x̃_j‖_{H₀⁻¹}``, the ε of such a move
has norm at most::

    f(E) = κ(M (S + R E)) (N + E),     or   M ψ(M (S + R E)) (Q + r E)²,   ψ(u) = κ(u)/u

with ``r`` the largest Q of a move of norm 1. If ``f(E) ≤ E``, the map from ε to the ε of its move
takes the ball of radius E into itself, and has a fixed point there by Brouwer's theorem; the fixed
point is a root of the whole equation, which has only one. So the refit lies within ``E`` of the
centre, and in units of the noise within ``(‖Φ^½H⁻¹X̃ᵀD^½‖ + …)E``. The length of the move is known
better: to first order only the error along it counts, ``‖D^½X̃H⁻¹Φδ‖/‖Φ^½δ‖`` for each unit of E.

**Several outputs.** Softmax has K margins for each record, of which only the differences matter
(:class:`Outputs`): slopes are then vectors, curvatures ``a_j`` matrices, ``ω_j a_j t_j²`` is
``ω_j t_jᵀa_jt_j``, and along a path curvatures change by a factor of ``e^±u`` at most, with u the
span of the shift, its largest entry less its smallest. So ``|t_j|`` is the span in S and R,
``Q⁴ = Σ ω_j span(t_j)² t_jᵀa_jt_j``, and as Q is no longer a norm, two terms replace ``2 Q r``.

**What it costs.** ``S ≤ R ‖δ‖_{H₀}`` costs nothing. With ``q_j = x̃_jᵀH⁻¹x̃_j`` Cauchy's inequality
gives ``Q⁴ ≤ ‖δ‖_H² Σ ω_j a_j q_j t_j²``, a quadratic form in δ, for two products over all records;
the error along the move is another. S and Q themselves cost a pass over all pairs, and are computed
for the records that still need them, unless no pass could help: Q is at least ``N/(Σ ω a)^¼``, and
no E satisfies ``f(E) ≤ E`` where ``M r Q > ½``. Such records (labels that flip under a weak
penalty) keep the bounds that convexity alone gives.

**Rounding.** With κ the condition number of H, the inverse gives ``H⁻¹x̃`` to about ``εκ``, and so
``1 − h``, the share of the others in the curvature along x̃, to ``εκh/(1 − h)`` of itself. Under a
weak penalty on more columns than records ``1 − h`` falls like the penalty and κ grows like its
reciprocal. Where too little is left, :class:`SingularValues` has the same numbers without the
difference; where there is none (several outputs, chunks, large tables) every radius has that error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from seepage.core.jacobian import Alternatives, FiniteChanges, Moves, ReleaseJacobian
from seepage.core.noise import Gaussian, Noise
from seepage.core.unknowns import simplex_basis
from seepage.errors import InputError
from seepage.glm.fitting.batched_refits import BatchedRefits, Change
from seepage.glm.fitting.objective import FittedGLM, Objective, cholesky_factor, hessian
from seepage.glm.jacobian.optimum import near_zero
from seepage.glm.jacobian.singular_values import SingularValues
from seepage.glm.losses import Categorical, Family
from seepage.support.chunks import row_slices, spread
from seepage.tables.source import as_numpy

_WIDE = 0.049  # half width, relative to the distance, above which a closer look is worth its cost
_ITERATIONS = 60
_STEADY = 1e-5  # the relative change of an error at which iteration stops
_LOST = 1e3  # an error too large for any certificate
_TRIED = 2.0 ** -np.arange(12)  # lengths of the centre at which the objective is bounded
_SLACK = 1.0001
_PAIR_WORK = 1e12  # multiplications allowed to passes over pairs for many alternatives
_SINGLE = 1e-10  # rounding in double precision up to which single is enough for pairs
_AT_ONCE = 1 << 18  # numbers that a core works on at a time
_FAR = 1e6  # a first step of a margin that halving does not make short in time
_PAIRS = 1 << 22  # numbers held at a time in a pass over pairs
_REFIT_ROUNDING = 1e-9  # the error of a refit, relative to how far it moved
_ALONE = 1e-10  # the others' share of the curvature below which they say nothing about a record
_UNKNOWN = 0.5  # the relative error of that share above which it is as good as unknown
_PRECISE = 1e-8  # the error of products with the inverse above which the table is decomposed
_DECOMPOSED = 1e10  # multiplications up to which that is affordable, and
_DECOMPOSED_SIZE = 1 << 26  # numbers of a table
_REFITTED = 1e11  # multiplications up to which priors come from refits without each record
_ENDLESS = 1e150  # a curvature as good as infinite
_HALVINGS = 60
_SOLVED = 1e-14  # the residual of a root, relative to the terms of its equation
_ROOT = 1e-12  # and the largest that still counts as one
_EPS = float(np.finfo(float).eps)


class ChangedRecords(FiniteChanges):
    """The finite changes of one GLM's release.

    Parameters
    ----------
    fit
        The model at the exact minimiser on its table.
    X
        The table less the centre, (n, d).
    noise
        Gaussian noise on the parameters, or several for parameters released more than once.
    shared
        What is known of all rows, where these are only some of those the model was fitted on.
        There are then no refits, and no passes over pairs.
    centre
        What was subtracted from the caller's columns, (d,), whose parameters are released.
    slopes
        The slopes ``r`` of one output without the weights, and their errors, (n,) each, where they
        are known better than by ordinary margins.
    """

    def __init__(
        self,
        fit: FittedGLM,
        X: Any,
        noise: tuple[Noise, ...],
        shared: SharedFacts | None = None,
        centre: Any = None,
        slopes: tuple[Any, Any] | None = None,
    ) -> None:
        self.shared = shared
        self._known_slopes: tuple[np.ndarray, np.ndarray] | None = None
        if slopes is not None:
            self._known_slopes = as_numpy(slopes[0]), as_numpy(slopes[1])
        self.centre = None if centre is None else as_numpy(centre).astype(np.float64, copy=False)
        self.fit, self.X = _in_numpy(fit, X)
        self.target, self.records = self.fit.target, len(self.X)
        self.theta = np.asarray(self.fit.parameters)
        self.work = 40.0 * self.X.size * (self.theta.size // self.theta.shape[0])
        self._whiten = Whitening(noise, self.theta.size, self.centre)
        self.constant = self.fit.family.self_concordance
        self.outputs = Outputs(self.fit.family)
        given = self.fit.sample_weight
        self.weight: np.ndarray = np.ones(len(self.X)) if given is None else as_numpy(given)

    # By refits --------------------------------------------------------------------------------

    def without_exactly(self, sets: list[np.ndarray]) -> Moves:
        """Return the moves when records leave together, by refits."""
        starts = None
        if self.constant is not None and all(len(rows) == 1 for rows in sets):
            starts = self._starts(np.concatenate(sets), None)[:, 0, :]
        changes = [Change(np.asarray(rows)) for rows in sets]
        moves, left = self.refits.moves_and_errors(changes, starts)
        limits = (self._reach_of(changes)[:, None], self._pull_errors(changes)[:, None])
        return self._exact(moves[:, None, :], left[:, None, :], *limits)

    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves with each alternative, by refits."""
        K = len(others)
        starts = None if self.constant is None else self._starts(rows, others)
        moves, left = np.zeros((2, len(rows), K, self.theta.size))
        reach, pulled = np.zeros((2, len(rows), K))
        changes: list[Change] = []
        where: list[tuple[int, int]] = []
        for m, i in enumerate(rows):
            Z, T = self._replacements(int(i), others)
            for k in range(K):
                if np.array_equal(Z[k], self.X[i]) and np.array_equal(T[k], self.target[i]):
                    continue  # as it is
                changes.append(Change(np.array([i]), Z[k], T[k], float(self.weight[i])))
                where.append((m, k))
        if changes:
            at = tuple(np.array(where).T)
            given = None if starts is None else starts[at]
            moves[at], left[at] = self.refits.moves_and_errors(changes, given)
            reach[at], pulled[at] = self._reach_of(changes), self._pull_errors(changes)
        return self._exact(moves, left, reach, pulled)

    def _starts(self, rows: np.ndarray, others: Alternatives | None) -> np.ndarray:
        """Return where the centres put the parameters, (m, K, P)."""
        pieces = [
            self._moves_at(rows[piece], self._centres(rows[piece], others))
            for piece in row_slices(len(rows), self._width(others))
        ]
        return self.outputs.of_all(np.concatenate(pieces))

    def _replacements(self, row: int, others: Alternatives) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and labels of every alternative, (K, d) and (K, …)."""
        K = len(others)
        Z = np.repeat(self.X[row : row + 1], K, axis=0)
        if others.values is not None:
            Z[:, list(others.columns)] = self._near(others)
        own = self.target[row]
        T = np.broadcast_to(own, (K, *np.shape(own))) if others.labels is None else others.labels
        return Z, np.asarray(T, dtype=float)

    def _near(self, others: Alternatives) -> np.ndarray:
        """Return the values of alternatives less the centre, (K, c)."""
        values = np.asarray(others.values)
        return values if self.centre is None else values - self.centre[list(others.columns)]

    def _reach_of(self, changes: list[Change]) -> np.ndarray:
        """Return how far no refit can move the release, whitened, (B,).

        Where every parameter is penalised no minimiser is further than ``‖g‖/ridge``, with g the
        gradient of the changed objective at ``θ̂``; elsewhere there may be none at all.
        """
        if self.fit.intercept is not None or not self.fit.ridge > 0:
            return np.full(len(changes), np.inf)
        return self._whiten.largest() * self.refits.steepness(changes) / self.fit.ridge

    def _pull_errors(self, changes: list[Change]) -> np.ndarray:
        """Return the errors of what the records that leave pull, relative to it, (B,)."""
        rows, lost = np.unique(np.concatenate([c.removed for c in changes])), np.zeros(self.records)
        for piece in row_slices(len(rows), self._width(None)):
            some = rows[piece]
            lengths = np.sqrt(np.maximum(self.outputs.widest(self._products(some, [])[0]), 0.0))
            lost[some] = self.weight[some] * self.slope_errors[some] * lengths
        lost = np.array([np.sum(lost[change.removed]) for change in changes])
        pull = self.refits.pull_of_removed(changes)
        return np.asarray(np.divide(lost, pull, out=np.zeros_like(lost), where=pull > 0))

    def _exact(
        self, moves: np.ndarray, left: np.ndarray, reach: np.ndarray, pulled: np.ndarray
    ) -> Moves:
        """Return the moves of refits, (m, K, P), as inner products.

        ``left`` are the steps that Newton's method had still to take, and ``reach (m, K)`` is all
        that is known where it failed. ``pulled (m, K)`` is the error of the pull of the records
        that leave.
        """
        lost = ~np.isfinite(moves).all(axis=2)
        seen = self._whiten(np.where(lost[:, :, None], 0.0, moves))
        gram = seen @ np.swapaxes(seen, 1, 2)
        size = np.sqrt(np.einsum("mkk->mk", gram))
        # Rounding does not shrink with the difference of what leaves and what comes.
        rounding = (self._rounding + pulled) * self._whiten.skew * size.max(axis=1, keepdims=True)
        radius = np.where(size > 0, np.maximum(_REFIT_ROUNDING * size, rounding), 0.0)
        radius += np.linalg.norm(self._whiten(np.where(lost[:, :, None], 0.0, left)), axis=2)
        radius = np.where(lost & np.isfinite(reach), reach, radius)
        diagonal = np.arange(gram.shape[1])
        gram[:, diagonal, diagonal] += np.where(lost & np.isinf(reach), np.inf, 0.0)
        return Moves(gram, radius)

    # Certified --------------------------------------------------------------------------------

    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out, K = 1, certified."""
        return self._certified(np.asarray(rows), None)

    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves when each of some records becomes each alternative, certified."""
        return self._certified(np.asarray(rows), others)

    def _certified(self, rows: np.ndarray, others: Alternatives | None) -> Moves:
        K = 1 if others is None else len(others)
        if self.constant is None:
            moves = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))
            self._bound_the_rest(moves, np.arange(len(rows)), rows, None, others)
            return moves
        moves = Moves(*(np.empty((len(rows), K, *more)) for more in ((K,), (), (), ())))
        looked: list[tuple[np.ndarray, Centres]] = []

        def around(piece: slice) -> tuple[slice, Moves, np.ndarray, Centres | None]:
            centres = self._centres(rows[piece], others)
            here = self._around(centres, Sizes(self._reach(centres) * centres.energy))
            wide = np.flatnonzero(_is_wide(here)) if self.constant else np.zeros(0, dtype=int)
            return piece, here, piece.start + wide, centres.of(wide) if len(wide) else None

        first, *rest = row_slices(max(1, len(rows)), self._width(others), chunk=_AT_ONCE)
        # What all pieces share is computed, and kept, with the first.
        for piece, here, wide, centres in chain([around(first)], spread(around, rest)):
            moves.put(piece, here)
            if centres is not None:
                looked.append((wide, centres))
        if looked:
            wide = np.concatenate([which for which, _ in looked])
            some, sizes = self._shift_sizes(rows[wide], Centres.joined([c for _, c in looked]))
            closer = self._around(some, sizes)
            if self.shared is None:
                self._look_at_pairs(rows[wide], some, sizes, closer)
            moves.put(wide, closer)
        lost = np.flatnonzero(np.isinf(moves.radius).any(axis=1))
        for piece in row_slices(len(lost), self._width(others)):
            which = lost[piece]
            self._bound_the_rest(moves, which, rows, self._centres(rows[which], others), others)
        return moves

    def _width(self, others: Alternatives | None) -> int:
        """Return about how many numbers the work on one record's centres keeps in memory."""
        c = self.outputs.count
        K, columns = (1, 0) if others is None else (len(others), len(others.columns))
        solved = 64 if self._alike(columns) else 2 * len(self.inverse)
        return c * (solved + 8 * K * c * (1 + columns))

    def _around(self, centres: Centres, sizes: Sizes) -> Moves:
        """Return the moves around their centres, given the sizes of the others' shifts."""
        E, still = self._error(centres, sizes)
        size = np.sqrt(np.maximum(np.einsum("mkk->mk", centres.gram), 0.0))
        with np.errstate(invalid="ignore"):
            own = np.zeros_like(E)
            if centres.own is not None:
                own = centres.own.per_error(self.constant or 0.0, E)
            radius = (centres.per_error[:, None] + own) * E
            along = (centres.per_error_along + own) * E
        lost = ~np.isfinite(radius) | ~np.isfinite(along)
        rounding = centres.rounding
        radius = np.where(still, 0.0, np.where(lost, np.inf, radius + rounding))
        along = np.where(still, 0.0, np.where(lost, np.inf, along + rounding))
        along = np.minimum(along, radius)
        known = np.where(lost, 0.0, along)
        most = np.sqrt(size**2 + 2 * size * known + radius**2)
        return Moves(centres.gram, radius, np.maximum(size - along, 0.0), most)

    def _look_at_pairs(
        self, rows: np.ndarray, centres: Centres, sizes: Sizes, found: Moves
    ) -> None:
        """Compute S and Q themselves where that may help, by a pass over all pairs of records."""
        # Q is at least N/(Σ ω v)^¼, and with M r Q above ½ no E satisfies f(E) ≤ E.
        M, total = self.constant or 0.0, float(self.weight @ self._per_span)
        stretch = self._stretch / np.sqrt(centres.free)[:, None]
        floor = M * stretch * centres.norm / max(total, 1e-300) ** 0.25
        wide = np.flatnonzero(_is_wide(found) & np.all(floor <= 0.5, axis=1))
        if not self._one_direction(centres):  # a pass for every alternative
            passes = self.outputs.count * centres.energy.shape[1]
            affordable = int(_PAIR_WORK / (self.X.size * passes))
            size = found.expected()[wide].max(axis=1)
            wide = wide[np.argsort(-size, kind="stable")[:affordable]]
        if len(wide):
            some, weighed = centres.of(wide), sizes.weighed
            assert weighed is not None  # noqa: S101 - told to the type checker
            closer = Sizes(*self._over_pairs(rows[wide], some), weighed[wide])
            found.put(wide, self._around(some, closer))

    def _bound_the_rest(
        self,
        moves: Moves,
        where: np.ndarray,
        rows: np.ndarray,
        centres: Centres | None,
        others: Alternatives | None,
    ) -> None:
        """Bound the lengths of moves that have no certificate, by convexity alone.

        Where every parameter is penalised no minimiser is further than ``‖g‖/ridge``, with g the
        gradient of the changed objective at ``θ̂``; and where it is known to fall by D somewhere
        along the centre, none is nearer than the least ℓ with ``‖g‖ℓ − ridge ℓ²/2 ≥ D``.
        """
        open_ = np.isinf(moves.radius[where])
        ridge = 0.0 if self.fit.intercept is not None else self.fit.ridge
        steep = self._steepness(rows[where], others)
        least = np.zeros_like(steep)
        if centres is not None:
            fall = self._fall(rows[where], centres, others)
            turn = np.sqrt(np.maximum(steep**2 - 2 * ridge * fall, 0.0))
            known = (steep > 0) & np.isfinite(centres.per_error)[:, None]
            nearest = np.divide(2 * fall, steep + turn, out=least, where=known)
            least = self._whiten.smallest() * nearest
        most = self._whiten.largest() * steep / ridge if ridge > 0 else np.full_like(steep, np.inf)
        moves.least[where] = np.where(open_, least, moves.least[where])
        moves.most[where] = np.where(open_, most, moves.most[where])
        radius = most + moves.expected()[where]
        moves.radius[where] = np.where(open_, radius, moves.radius[where])

    def _steepness(self, rows: np.ndarray, others: Alternatives | None) -> np.ndarray:
        """Return ``‖g‖`` at ``θ̂``, of the record that comes less the one that leaves, (m, K)."""
        own = self.slopes[rows][:, None, :]
        norms = np.sum(self.X[rows] ** 2, axis=1)[:, None]
        if self.fit.intercept is not None:
            norms = norms + 1.0
        weight = self.weight[rows][:, None]
        rounding = np.sqrt(norms) * self.slope_errors[rows][:, None]
        if others is None:
            return np.asarray(weight * (np.sqrt(norms * np.sum(own**2, axis=2)) + rounding))
        change, labels = self._changes(rows, others)
        new = self.outputs.slope(self._margins_before(rows, change, others.columns), labels)
        gap = new - own
        crossed = np.einsum("mkc,mc->mk", change, self.X[rows][:, list(others.columns)])
        squares = (
            norms * np.sum(gap**2, axis=2)
            + 2 * crossed * np.sum(gap * new, axis=2)
            + np.sum(change**2, axis=2) * np.sum(new**2, axis=2)
        )
        return np.asarray(weight * (np.sqrt(np.maximum(squares, 0.0)) + rounding))

    def _margins_before(
        self, rows: np.ndarray, change: np.ndarray, columns: Sequence[int]
    ) -> np.ndarray:
        """Return the margins of changed records under ``θ̂``, (m, K, c)."""
        slope = self.outputs.within(self.theta[list(columns)])
        return np.asarray(self.margins[rows][:, None, :] + change @ slope)

    def _changes(self, rows: np.ndarray, others: Alternatives) -> tuple[np.ndarray, np.ndarray]:
        """Return how the columns differ in each alternative, (m, K, c), and its labels."""
        shape = (len(rows), len(others))
        change = np.zeros((*shape, 0))
        if others.values is not None:
            change = self._near(others)[None, :, :] - self.X[rows][:, None, list(others.columns)]
        own = self.target[rows][:, None, ...]
        labels = own if others.labels is None else np.asarray(others.labels)[None, ...]
        return change, np.broadcast_to(labels, (*shape, *own.shape[2:]))

    def _fall(self, rows: np.ndarray, centres: Centres, others: Alternatives | None) -> np.ndarray:
        """Return a lower bound on how far the changed objective falls along the centre.

        At τ times the centre, the losses of the others rise at most ``N² τ² ψ(M S τ)`` beyond their
        slopes; the losses of the records that leave and come are known.
        """
        M, S = self.constant or 0.0, self._reach(centres) * centres.energy
        weight = self.weight[rows][:, None]
        penalty = np.maximum(centres.energy**2 - centres.norm**2, 0.0)
        best = np.zeros_like(centres.energy)
        with np.errstate(over="ignore", invalid="ignore"):
            for tau in _TRIED:
                rise = tau**2 * (centres.norm**2 * _psi(M * S * tau) + penalty / 2)
                gained = tau * centres.pull
                lost = 16 * _EPS + 4 * centres.error[:, None]
                fall = gained - rise - lost * (np.abs(gained) + rise)
                own = centres.own
                if own is not None and others is not None:
                    labels = self._changes(rows, others)[1]
                    before, after = (
                        self.outputs.loss(margin, labels)
                        for margin in (own.margin, own.margin + tau * own.shift)
                    )
                    rounding = 16 * _EPS * (np.abs(before) + np.abs(after))
                    fall = fall - weight * (after - before + rounding)
                best = np.maximum(best, np.nan_to_num(fall, nan=0.0, posinf=0.0, neginf=0.0))
        return np.asarray(best)

    def _centres(self, rows: np.ndarray, others: Alternatives | None) -> Centres:
        """Return the centres of some records' moves, with what a certificate needs.

        They are written in the basis of ``H⁻¹x̃`` and of ``H⁻¹e`` for the columns that may change,
        for every output.
        """
        outputs, c = self.outputs, self.outputs.count
        where = [] if others is None else list(others.columns)
        by_inverse, by_noise, by_penalty = self._products(rows, where)
        rest = self._without_record(rows, by_inverse)
        weight, pulled, curvature, modes, shares, left, error, off, alone, update, removal = rest
        by_own = by_noise[:, :c, :c]
        size = np.sqrt(np.maximum(_quadratic(removal[:, None, :], by_own), 0.0))
        rounding = off[:, None] * size
        added = by_inverse.shape[1] - c
        coefs = np.concatenate([removal, np.zeros((len(rows), added))], axis=1)[:, None, :]
        own, unsolved = None, np.zeros((len(rows), 1), dtype=bool)
        if others is not None:
            Z, xz, zz, before, given = self._replacement_terms(
                rows, others, by_inverse, update, removal
            )
            change, labels = self._changes(rows, others)
            Z[:, :, :c, :] += update[:, None] @ xz  # H₀⁻¹z̃
            margin, slope, solved = self._own_slope(given, weight, zz, labels)
            same = labels == self.target[rows][:, None]
            still = np.all(change == 0, axis=2) & same.reshape(*change.shape[:2], -1).all(axis=2)
            coefs = np.where(still[:, :, None], 0.0, coefs - _times(Z, slope))
            unsolved = ~solved & ~still
            curved = weight[:, None, None, None] * outputs.curvature(margin, labels)
            curved = np.minimum(curved, _ENDLESS)
            noise_zz = np.swapaxes(Z, 2, 3) @ (by_noise[:, None] @ Z)
            lost = self._margin_errors(rows, given, rest, xz)
            rounding = rounding + _replacement_rounding(error, noise_zz, slope, curved, zz, lost)
            own = OwnRecord.at(
                curved,
                zz,
                noise_zz,
                outputs.widest(zz),
                before,
                np.where(unsolved[:, :, None], np.nan, margin - before),
            )
        on_own = coefs @ by_inverse[:, :, :c]
        own_energy, length = _quadratic(on_own, curvature), _quadratic(coefs, by_inverse)
        # Differences, and upper ends: what rounding may have taken is added.
        lost = 4 * (_EPS + error * left.min(axis=1))[:, None] * length
        energy = np.maximum(length - own_energy, 0.0) + lost
        norm = np.maximum(energy - self.fit.ridge * _quadratic(coefs, by_penalty), 0.0) + lost
        gram = coefs @ by_noise @ np.swapaxes(coefs, 1, 2)
        sight = np.einsum("mbk,mbc,mck->mk", modes, by_own, modes)
        spread = np.sqrt(np.maximum(np.sum(sight * shares / left**2, axis=1), 0.0))
        per_error = np.where(alone, np.inf, self._spread + spread)
        return Centres(
            where,
            np.where(alone[:, None, None], 0.0, gram),
            coefs,
            np.sqrt(energy),
            np.sqrt(norm),
            own_energy,
            np.sum(pulled[:, None, :] * on_own, axis=2),
            np.asarray(left.min(axis=1)),
            outputs.widest(by_inverse[:, :c, :c]),
            per_error,
            np.where(unsolved, np.inf, per_error[:, None]),
            error,
            np.broadcast_to(self._whiten.skew * rounding, coefs.shape[:2]),
            own,
        )

    def _own_slope(
        self, given: np.ndarray, weight: np.ndarray, zz: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the margins of the records that come, their weighted slopes, and which are solved.

        Where the record outweighs the others the slope follows from how far it is from the margin
        that they give it, ``z̃ᵀH₀⁻¹z̃ σ = given − m``; the slope at m would be the difference of a
        prediction and a label that are nearly equal there.
        """
        weight = weight[:, None, None]
        margin, solved = self.outputs.own_margin(given, weight[..., None] * zz, labels)
        slope = weight * self.outputs.slope(margin, labels)
        if self.outputs.count == 1:
            curvature = weight * self.outputs.curvature(margin, labels)[..., 0]
            with np.errstate(over="ignore", invalid="ignore"):
                outweighs = curvature * zz[..., 0] > 1
            slope = np.where(
                outweighs, (given - margin) / np.where(outweighs, zz[..., 0], 1.0), slope
            )
        return margin, slope, solved

    def _margin_errors(
        self, rows: np.ndarray, given: np.ndarray, rest: WithoutRecord, xz: np.ndarray
    ) -> np.ndarray:
        """Return the errors of the margins of records that come, without the one that left."""
        shift = np.linalg.norm(xz, axis=(2, 3)) * np.linalg.norm(rest.removal, axis=1)[:, None]
        curvature = np.einsum("mkk->m", self.curvatures[rows])
        slope = self.slope_errors[rows]
        before = np.divide(slope, curvature, out=np.zeros_like(slope), where=curvature > 0)[:, None]
        largest = (
            1 + np.max(np.abs(given), axis=2) + np.abs(self.margins[rows]).max(axis=1)[:, None]
        )
        root = 8 * _EPS if self.outputs.count == 1 else _ROOT
        return np.asarray(before + rest.off[:, None] * shift + root * largest)

    def _without_record(self, rows: np.ndarray, by_inverse: np.ndarray) -> WithoutRecord:
        """Return what the other records make of the fit without each of some records."""
        c = self.outputs.count
        weight, G = self.weight[rows], by_inverse[:, :c, :c]
        pulled = weight[:, None] * self.slopes[rows]
        curvature = weight[:, None, None] * self.curvatures[rows]
        modes, shares = _modes(curvature, G)
        if self._spectrum is None:
            left = 1 - shares
            with np.errstate(divide="ignore"):
                error = self._rounding * (1 + np.max(shares / np.maximum(left, 0.0), axis=1))
            alone = (left.min(axis=1) <= _ALONE) | ~(error < _UNKNOWN)
        else:
            left, error = self._spectrum.left[rows, None], self._spectrum.error[rows]
            alone = ~(error < _UNKNOWN)
        alone &= weight > 0
        left, error = np.where(alone[:, None], 1.0, left), np.where(alone, 1.0, error)
        update = (modes / left[:, None, :]) @ np.swapaxes(modes, 1, 2)
        factor = np.eye(c) + update @ G
        removal, size = _times(factor, pulled), np.linalg.norm(factor, axis=(1, 2))
        lost = weight * self.slope_errors[rows] * size
        length = np.linalg.norm(removal, axis=1)
        off = error + np.divide(lost, length, out=np.zeros_like(lost), where=length > 0)
        return WithoutRecord(
            weight, pulled, curvature, modes, shares, left, error, off, alone, update, removal
        )

    def _replacement_terms(
        self,
        rows: np.ndarray,
        others: Alternatives,
        by_inverse: np.ndarray,
        update: np.ndarray,
        removal: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Return where replacement records lie, as seen from the records that are left.

        ``z̃`` in the basis of the centres, ``x̃ᵀH⁻¹z̃`` and ``z̃ᵀH₀⁻¹z̃``, and the margins before and
        after the record has gone, (m, K, …) each.
        """
        c, where = self.outputs.count, list(others.columns)
        change, _ = self._changes(rows, others)
        distinct = change if where else change[:, :1]  # one stands for all where none changes
        Z = np.concatenate([np.ones((*distinct.shape[:2], 1)), distinct], axis=2)
        Z = (Z[:, :, :, None, None] * np.eye(c)).reshape(*Z.shape[:2], -1, c)
        xz = by_inverse[:, None, :c, :] @ Z
        zx = np.swapaxes(xz, 2, 3)
        zz = np.swapaxes(Z, 2, 3) @ (by_inverse[:, None] @ Z) + zx @ (update[:, None] @ xz)
        before = self._margins_before(rows, change, where)
        return Z, xz, zz, before, before + _times(zx, removal[:, None, :])

    def _shift_sizes(self, rows: np.ndarray, centres: Centres) -> tuple[Centres, Sizes]:
        """Return some centres with the effect of errors along them, and upper bounds on S, Q and W.

        ``Q⁴ ≤ ‖δ‖_H² W²`` with ``W² = Σ ω_j q_j t_jᵀa_jt_j``, a quadratic form in δ; so is the
        effect of ε on the length of the move, ``‖D^½X̃H⁻¹Φδ‖/‖Φ^½δ‖`` for each unit of E.
        """
        C = self._solved_columns(centres.columns)
        seen_C = self._seen_as(C)
        quartic, along = np.empty_like(centres.energy), np.empty_like(centres.energy)
        for piece in row_slices(len(rows), 3 * self.outputs.count * self.theta.size):
            some, V = centres.coefs[piece], self._solved(rows[piece])
            quartic[piece] = _quadratic(some, _gram_of(V, C, self._quartic))
            along[piece] = _quadratic(some, _gram_of(self._seen_as(V), seen_C, self._seen))
        rest = np.maximum(quartic - centres.widest[:, None] * centres.own_energy, 0.0)
        size = np.sqrt(np.maximum(np.einsum("mkk->mk", centres.gram), 0.0))
        share = np.sqrt(np.maximum(along, 0.0)) / np.where(size > 0, size, 1.0)
        better = centres.per_error_along - self._spread + np.minimum(share, self._spread)
        sizes = Sizes(
            self._reach(centres) * centres.energy,
            ((centres.energy**2 + centres.own_energy) * rest) ** 0.25,
            np.sqrt(rest),
        )
        return replace(centres, per_error_along=better), sizes

    def _error(self, centres: Centres, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
        """Return a norm E of ε with ``f(E) ≤ E``, (m, K), infinite where none is found.

        And which changes change nothing.
        """
        M, R = self.constant or 0.0, self._reach(centres)
        alone = np.isinf(centres.per_error)[:, None]
        still = ~alone & np.all(centres.coefs == 0, axis=2)
        if M == 0:
            return np.where(alone, np.inf, np.zeros_like(sizes.largest)), still

        E = np.where(still, 0.0, np.inf)
        moved = np.nonzero(~still)
        S, N, R = M * sizes.largest[moved], centres.norm[moved], M * R[moved[0], 0]
        if sizes.fourth is not None:
            Q, stretch = sizes.fourth[moved], self._stretch / np.sqrt(centres.free[moved[0]])
            crossed = self._crossed(centres, sizes)[moved]

        def image(E: np.ndarray, which: Any) -> np.ndarray:
            psi = _psi(S[which] + R[which] * E)
            first = (S[which] + R[which] * E) * psi * (N[which] + E)
            if sizes.fourth is not None:
                square = Q[which] ** 2 + crossed[which] * E + (stretch[which] * E) ** 2
                first = np.minimum(first, M * psi * square)
            return np.asarray(first)

        reached, active = np.zeros_like(S), np.arange(len(S))
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(_ITERATIONS):
                before = reached[active]
                reached[active] = now = image(before, active)
                active = active[(now - before > _STEADY * now) & (now < _LOST)]
                if not len(active):
                    break
            reached *= _SLACK
            # An overflow certifies nothing.
            E[moved] = np.where(image(reached, slice(None)) <= reached, reached, np.inf)
        return E, still

    def _crossed(self, centres: Centres, sizes: Sizes) -> np.ndarray:
        """Return the mixed term of a centre's shifts and those of an error of norm 1.

        With one output Q is a norm: the term is ``2rQ``. With more, a shift has a span and a norm
        of its own, and there are two such terms: the error's span with the centre's norm, and the
        centre's span with the error's norm.
        """
        assert sizes.fourth is not None  # noqa: S101 - told to the type checker
        assert sizes.weighed is not None  # noqa: S101 - told to the type checker
        free = np.sqrt(centres.free)[:, None]
        if self.outputs.count == 1:
            return np.asarray(2 * sizes.fourth * self._stretch / free)
        length = np.sqrt(centres.energy**2 + centres.own_energy)
        spans = np.minimum(sizes.largest, length * self._stretch**2 / free)
        return np.asarray(sizes.weighed / free + spans)

    def _reach(self, centres: Centres) -> np.ndarray:
        """Return ``R``: no record is larger in the norm of ``H₀⁻¹``, (m, 1)."""
        return np.asarray(np.sqrt(self._largest / centres.free))[:, None]

    def _one_direction(self, centres: Centres) -> bool:
        """Say whether every move of a record lies along one vector, ``H⁻¹x̃``."""
        return not centres.columns and self.outputs.count == 1

    def _over_pairs(self, rows: np.ndarray, centres: Centres) -> tuple[np.ndarray, np.ndarray]:
        """Return ``S`` and ``Q`` of some records' centres, by a pass over all other records."""
        (m, K), c = centres.energy.shape, self.outputs.count
        largest, fourth = np.empty((m, K)), np.empty((m, K))
        single = self._one_direction(centres)
        # Upper ends suffice, so single precision will do, with its largest loss added.
        kind = np.float32 if self._rounding < _SINGLE else np.float64
        lost = 2 * (self.theta.size + 2) * float(np.finfo(kind).eps)
        unit = np.sqrt(np.diag(self.inverse).reshape(-1, c).mean(axis=1))
        table = (self._extended(self.X) * unit).astype(kind)
        table[self.weight == 0] = 0.0
        lost *= float(np.linalg.norm(table, axis=1).max())
        root = np.sqrt(self.weight * self._per_span).astype(kind)[:, None]
        curvature = (self.weight[:, None, None] * self.curvatures).astype(kind)
        more = 1 + 2 * len(table) * float(np.finfo(kind).eps)
        for piece in row_slices(m, len(self.X) * (1 if single else K * c), chunk=_PAIRS):
            some = centres.of(piece)
            which = rows[piece]
            directions = self._solved(which) if single else self._moves_at(which, some)
            directions = directions.reshape(-1, len(unit), c) / unit[:, None]
            length = np.linalg.norm(directions.reshape(len(directions), -1), axis=1)
            directions /= np.where(length > 0, length, 1.0)[:, None, None]
            columns = np.swapaxes(directions, 0, 1).reshape(len(unit), -1).astype(kind)
            shift = (table @ columns).reshape(len(table), -1, c)
            own = np.repeat(rows[piece], 1 if single else K)
            shift[own, np.arange(len(own))] = 0.0
            spans = self.outputs.spans(shift) + kind(lost)
            S = np.max(spans, axis=0).astype(float)
            if c == 1:
                norms = root * spans
            else:
                norms = np.sqrt(np.maximum(np.sum((shift @ curvature) * shift, axis=2), 0.0))
                norms += root * kind(lost)
            spans *= norms
            Q = (more * np.einsum("nb,nb->b", spans, spans).astype(float)) ** 0.25
            scale = length.reshape(len(rows[piece]), -1)
            if single:
                scale = np.abs(some.coefs[:, :, 0]) * scale
            largest[piece] = S.reshape(len(scale), -1) * scale
            fourth[piece] = Q.reshape(len(scale), -1) * scale
        return largest, fourth

    def _moves_at(self, rows: np.ndarray, centres: Centres) -> np.ndarray:
        """Return the centres themselves, (m, K, P)."""
        c = self.outputs.count
        moves = centres.coefs[:, :, :c] @ self._solved(rows)
        return np.asarray(moves + centres.coefs[:, :, c:] @ self._solved_columns(centres.columns))

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how likely the model fitted without a record finds it with each alternative.

        By refits where there are few records or nothing else is known; with more, the records
        known least well are refitted, and the others are as exact as their certificates say.
        """
        family = self.fit.family
        if family.name not in ("bernoulli", "poisson", "categorical"):
            raise InputError(
                f"The {family.name} family states no probabilities, so the model gives no prior; "
                "choose 'equal', 'frequencies' or probabilities of your own."
            )
        affordable = max(1, int(_REFITTED / self.work)) if refits is None else refits
        affordable = affordable if self.shared is None else 0
        if self.constant is None or len(rows) <= affordable:
            return self._refitted_likelihoods(rows, others)
        pieces = [
            self._likelihoods(rows[piece], others)
            for piece in row_slices(len(rows), self._width(others))
        ]
        scores, off = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        worst = np.argsort(-off, kind="stable")[:affordable]
        if len(worst):
            scores[worst], off[worst] = self._refitted_likelihoods(rows[worst], others)
        return scores, off

    def _likelihoods(self, rows: np.ndarray, others: Alternatives) -> tuple[np.ndarray, np.ndarray]:
        """Return the same from the expansion."""
        left = self._centres(rows, None)
        E = self._error(left, Sizes(self._reach(left) * left.energy))[0]
        by_inverse = self._products(rows, list(others.columns))[0]
        rest = self._without_record(rows, by_inverse)
        _, xz, zz, _, without = self._replacement_terms(
            rows, others, by_inverse, rest.update, rest.removal
        )
        labels = self._changes(rows, others)[1]
        rounding = self._margin_errors(rows, without, rest, xz)
        with np.errstate(over="ignore", invalid="ignore"):
            span = np.sqrt(np.maximum(self.outputs.widest(zz), 0.0)) * E + rounding
            scores = -self.outputs.loss(without, labels)
            off = np.max(span * self.outputs.steepest(without, labels, span), axis=1)
        return scores, np.where(np.isnan(off), np.inf, off)

    def _refitted_likelihoods(
        self, rows: np.ndarray, others: Alternatives
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the same from refits."""
        starts = None if self.constant is None else self._starts(rows, None)[:, 0, :]
        moves, left = self.refits.moves_and_errors([Change(np.array([i])) for i in rows], starts)
        known = np.isfinite(moves).all(axis=1, keepdims=True)
        moves, left = np.where(known, moves, 0.0), np.where(known, left, 0.0)
        likelihoods, off = np.empty((len(rows), len(others))), np.empty(len(rows))
        for m, i in enumerate(rows):
            Z, T = self._replacements(int(i), others)
            Z = self._extended(Z)
            move, step = (v[m].reshape(self.theta.shape) for v in (moves, left))
            margins = Z @ (self.theta + move)
            lost = np.abs(Z @ step) + self._rounding * (np.abs(Z) @ np.abs(move))
            span = lost.reshape(len(Z), -1).max(axis=1)
            likelihoods[m] = -np.asarray(self.fit.family.loss(margins, T))
            off[m] = np.max(span * self.outputs.steepest(self.outputs.within(margins), T, span))
        return likelihoods, off

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record of a classifier may have, (K,) or (K, K)."""
        if isinstance(self.fit.family, Categorical):
            return np.eye(self.fit.family.outputs)
        if self.fit.family.name == "bernoulli":
            return np.array([0.0, 1.0])
        return super().class_labels()

    # The common ingredients -------------------------------------------------------------------

    @cached_property
    def refits(self) -> BatchedRefits:
        """Refits of the model."""
        slopes = self.slopes if self.outputs.basis is None else None
        return BatchedRefits(self.fit, self.X, self._definite, slopes)

    @cached_property
    def _definite(self) -> np.ndarray:
        """``H⁻¹`` of all parameters, definite along softmax's gauge as well."""
        return _inverse_hessian(self.fit, self.X)

    @cached_property
    def inverse(self) -> np.ndarray:
        """``H⁻¹`` of the parameters that matter (see :class:`Outputs`), (P, P)."""
        if self.shared is not None:
            return self.shared.inverse
        return self.outputs.inverse_within(self._definite)

    @cached_property
    def margins(self) -> np.ndarray:
        """The margins, (n, c)."""
        return self.outputs.within(np.asarray(self.fit.margins(self.X)))

    @cached_property
    def slopes(self) -> np.ndarray:
        """``r`` without the weights, (n, c)."""
        return self._slopes_and_errors[0]

    @cached_property
    def slope_errors(self) -> np.ndarray:
        """The errors of ``r`` from rounding, (n,)."""
        return self._slopes_and_errors[1]

    @cached_property
    def _slopes_and_errors(self) -> tuple[np.ndarray, np.ndarray]:
        if self._known_slopes is None:
            slopes, d = self.outputs.slope(self.margins, self.target), self.X.shape[1]
            margin = np.abs(self.X) @ np.abs(self.theta[:d]).reshape(d, -1)
            curvature = np.einsum("nkk->n", self.curvatures)
            # Slopes of classes are no differences of predictions and labels; others are.
            own = slopes if isinstance(self.fit.family, Categorical) else self.target
            sizes = np.abs(own).reshape(len(self.X), -1).max(axis=1)
            errors = 4 * _EPS * (curvature * margin.max(axis=1) + sizes)
        else:
            slopes, errors = self._known_slopes[0][:, None], self._known_slopes[1]
        if self._spectrum is not None and self.fit.family.name == "gaussian":
            by_values, off = self._spectrum.least_squares_slopes(self.target)
            # The same but for rounding, unless the model is not the minimiser.
            better = (off < errors) & (np.abs(by_values - slopes[:, 0]) <= off + errors)
            slopes = np.where(better, by_values, slopes[:, 0])[:, None]
            errors = np.where(better, off, errors)
        return slopes, errors

    @cached_property
    def curvatures(self) -> np.ndarray:
        """``a`` without the weights, (n, c, c)."""
        return self.outputs.curvature(self.margins, self.target)

    @cached_property
    def _per_span(self) -> np.ndarray:
        """``v``: the largest ``tᵀa t`` of a shift of span 1, (n,)."""
        return self.outputs.per_span(self.margins, self.curvatures)

    @property
    def _largest(self) -> float:
        """The largest ``q`` of the records of positive weight."""
        return self._sizes[0]

    @property
    def _quartic(self) -> np.ndarray:
        """``Σ ω q x̃ a x̃ᵀ``, (P, P)."""
        return self._sizes[1]

    @cached_property
    def _sizes(self) -> tuple[float, np.ndarray]:
        if self.shared is not None:
            return self.shared.largest, self.shared.quartic
        return self.sizes_here()

    def sizes_here(self) -> tuple[float, np.ndarray]:
        """Return the largest ``q`` of the records at hand, and ``Σ ω q x̃ a x̃ᵀ``.

        ``q`` is ``x̃ᵀH⁻¹x̃``, or for several outputs its largest value between two of them.
        """
        c = self.outputs.count
        largest, quartic = 0.0, np.zeros_like(self.inverse)
        for piece in row_slices(len(self.X), c * c * self.X.shape[1]):
            x, weight = self.X[piece], self.weight[piece]
            q = self.outputs.widest(self._products(np.arange(len(self.X))[piece], [])[0])
            largest = max(largest, float(np.max(q[weight > 0], initial=0.0)))
            curvature = np.maximum(weight * q, 0.0)[:, None, None] * self.curvatures[piece]
            curvature = curvature[:, 0, 0] if c == 1 else curvature
            quartic += hessian(x, curvature, ridge=0.0, intercept=self.fit.intercept is not None)
        return largest, quartic

    @cached_property
    def _stretch(self) -> float:
        """The root of ``max_e (Σ ω q tᵀa t)^½`` over e of H-norm 1: for the Q of errors."""
        root = np.linalg.cholesky(self.inverse)
        values = np.linalg.eigvalsh(root.T @ self._quartic @ root)
        return float(max(values[-1], 0.0) ** 0.25)

    @cached_property
    def _seen(self) -> np.ndarray:
        """``Φ^½H⁻¹X̃ᵀDX̃H⁻¹Φ^½``: the squared effect of an error of the slopes on the move."""
        penalised = self.inverse[:, : self.outputs.count * self.X.shape[1]]
        inner = self.inverse - self.fit.ridge * penalised @ penalised.T
        seen = self._seen_as(self._seen_as(inner).T)
        return np.asarray((seen + seen.T) / 2)

    @cached_property
    def _spread(self) -> float:
        """``‖Φ^½H⁻¹X̃ᵀD^½‖``: the largest effect of an error of the slopes on the move."""
        return float(np.sqrt(max(np.linalg.eigvalsh(self._seen)[-1], 0.0)))

    @cached_property
    def _rounding(self) -> float:
        """The rounding error of a move, relative to its size."""
        sizes = np.sqrt(np.diag(self.inverse))
        values = np.linalg.eigvalsh(self.inverse / (sizes[:, None] * sizes[None, :]))
        return 16 * _EPS * float(values[-1] / max(values[0], _EPS))

    def _alike(self, columns: int) -> bool:
        """Say whether records that change in this many columns have one number per product."""
        return self.outputs.count == 1 and not columns

    def _products(self, rows: np.ndarray, columns: list[int]) -> tuple[np.ndarray, ...]:
        """Return the products of ``H⁻¹x̃`` and ``H⁻¹e`` of columns, (m, c+w, c+w), in three norms.

        The norms of the Hessian, of the noise and of the penalty; one vector for every output.
        """
        if self._alike(len(columns)):
            of_hessian, of_noise, of_penalty = self._own_products[:, rows, None, None]
            return of_hessian, of_noise, of_penalty
        return self._products_of(rows, columns, self._spectrum)

    @property
    def _own_products(self) -> np.ndarray:
        """The products of every record's ``H⁻¹x̃`` with itself, of one output, (3, n)."""
        return self._products_by_inverse if self._spectrum is None else self._products_by_spectrum

    @cached_property
    def _products_by_inverse(self) -> np.ndarray:
        return self._own_products_of(None)

    @cached_property
    def _products_by_spectrum(self) -> np.ndarray:
        return self._own_products_of(self._spectrum)

    def _own_products_of(self, spectrum: SingularValues | None) -> np.ndarray:
        products = np.empty((3, len(self.X)))
        for piece in row_slices(len(self.X), 2 * len(self.inverse)):
            rows = np.arange(len(self.X))[piece]
            products[:, piece] = [one[:, 0, 0] for one in self._products_of(rows, [], spectrum)]
        return products

    @cached_property
    def _spectrum(self) -> SingularValues | None:
        """The decomposition of the table, where the inverse loses too many digits of a record."""
        size = self.X.size
        affordable = size * min(self.X.shape) <= _DECOMPOSED and size <= _DECOMPOSED_SIZE
        if self.shared is not None or self.outputs.count > 1 or not affordable:
            return None
        curvature = self.weight * self.curvatures[:, 0, 0]
        shares = curvature * self._products_by_inverse[0]
        lost = self._rounding / np.maximum(1 - shares, _EPS)
        worst = np.max(lost, initial=0.0, where=curvature > 0)
        if not worst > _PRECISE:
            return None
        spectrum = SingularValues(self.X, curvature, self.fit.ridge, self.fit.intercept is not None)
        return spectrum if np.max(spectrum.error) < worst else None

    def _products_of(
        self, rows: np.ndarray, columns: list[int], spectrum: SingularValues | None
    ) -> tuple[np.ndarray, ...]:
        c, places = self.outputs.count, self._places(columns)
        V, C = self._solved_by(spectrum, rows), self._columns_by(spectrum, columns)
        by_inverse = np.empty((len(rows), c + len(C), c + len(C)))
        if spectrum is None:
            by_inverse[:, :c, :c] = self._on(V, self.X[rows])
        else:
            by_inverse[:, :c, :c] = spectrum.lengths[rows, None, None]
        by_inverse[:, :c, c:] = V[:, :, places]
        by_inverse[:, c:, :c] = np.swapaxes(V[:, :, places], 1, 2)
        by_inverse[:, c:, c:] = C[:, places]
        penalised = c * self.X.shape[1]
        by_penalty = _gram_of(V[:, :, :penalised], C[:, :penalised])
        return by_inverse, _gram_of(self._seen_as(V), self._seen_as(C)), by_penalty

    def _seen_as(self, rows: np.ndarray) -> np.ndarray:
        """Return ``Φ^½v`` of vectors of the parameters that matter, along the last axis."""
        return self._whiten(self.outputs.of_all(rows))

    def _extended(self, x: np.ndarray) -> np.ndarray:
        return x if self.fit.intercept is None else np.hstack([x, np.ones((len(x), 1))])

    def _on(self, vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the shifts of the margins of rows under c vectors for each, (m, c, c)."""
        c = self.outputs.count
        by_column = vectors.reshape(len(x), c, -1, c)
        return np.asarray(np.sum(by_column * self._extended(x)[:, None, :, None], axis=2))

    def _solved(self, rows: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` of some records, one vector for each output, (m, c, P)."""
        return self._solved_by(self._spectrum, rows)

    def _solved_by(self, spectrum: SingularValues | None, rows: np.ndarray) -> np.ndarray:
        if spectrum is not None:
            return spectrum.solved(rows)[:, None, :]
        x, c, P = self.X[rows], self.outputs.count, len(self.inverse)
        by_column = self.inverse.reshape(P // c, c * P)
        if self.fit.intercept is None:
            return np.asarray(x @ by_column).reshape(len(x), c, P)
        return np.asarray(x @ by_column[:-1] + by_column[-1]).reshape(len(x), c, P)

    def _places(self, columns: list[int]) -> np.ndarray:
        """Return where the parameters of some columns are, one for each output."""
        c = self.outputs.count
        return (np.array(columns, dtype=int)[:, None] * c + np.arange(c)).reshape(-1)

    def _solved_columns(self, columns: list[int]) -> np.ndarray:
        """Return ``H⁻¹e`` of columns, for each and each output, (len(columns)·c, P)."""
        return self._columns_by(self._spectrum, columns)

    def _columns_by(self, spectrum: SingularValues | None, columns: list[int]) -> np.ndarray:
        if spectrum is not None:
            return spectrum.solved_columns(columns)
        return np.asarray(self.inverse[self._places(columns)])


class RecordRefits:
    """The release made again with one record replaced and all others kept.

    What :class:`~seepage.core.jacobian.Refits` asks of every release, answered by batched refits.
    ``jacobian_of`` makes the Jacobian about a record that replaces the one in a row, of a refitted
    model, the table, the row, the record's features and label, and the noise.
    """

    rounding = 1e-14

    def __init__(self, fit: FittedGLM, X: Any, jacobian_of: Callable[..., ReleaseJacobian]) -> None:
        self.fit, self.X = _in_numpy(fit, X)
        self._jacobian_of = jacobian_of
        self.target, self.theta = self.fit.target, np.asarray(self.fit.parameters)

    @cached_property
    def _near(self) -> tuple[FittedGLM, np.ndarray, np.ndarray | None]:
        """The model and its table less a centre, and the centre."""
        return near_zero(self.fit, self.X)

    @cached_property
    def _refits(self) -> BatchedRefits:
        fit, X, _ = self._near
        return BatchedRefits(fit, X, _inverse_hessian(fit, X))

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return how far the parameters of each replacement lie from the actual ones, (K, P).

        ``features`` are (K, d), and ``labels`` (K,), or (K, classes) for softmax; the record's own
        label if not given. NaN where no minimiser exists.
        """
        Z = np.atleast_2d(np.asarray(features, dtype=float))
        own = self.target[row, ...]
        T = np.broadcast_to(own, (len(Z), *np.shape(own)))
        if labels is not None:
            T = np.asarray(labels, dtype=float).reshape(T.shape)
        centre = self._near[2]
        Z = Z if centre is None else Z - centre
        weight, removed = float(self._refits.weight[row]), np.array([row])
        changes = [Change(removed, z, t, weight) for z, t in zip(Z, T, strict=True)]
        moves = callers_moves(self._refits.moves(changes), centre)
        return np.where(np.isfinite(moves).all(axis=1, keepdims=True), moves, np.nan)

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the parameters of each replacement, (K, P) or (K, P, classes).

        The intercept comes last.
        """
        moves = self.moves(row, features, labels)
        return np.asarray(self.theta + moves.reshape(len(moves), *self.theta.shape))

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Noise
    ) -> ReleaseJacobian:
        """Return the Jacobian about the replaced row, at a refit that :meth:`parameters` gave."""
        d = self.X.shape[1]
        intercept = None if self.fit.intercept is None else theta[d, ...]
        fit = replace(self.fit, coef=theta[:d, ...], intercept=intercept)
        return self._jacobian_of(fit, self.X, row, features, label, noise)


def _in_numpy(fit: FittedGLM, X: Any) -> tuple[FittedGLM, np.ndarray]:
    """Return a model and its table, whose arrays may be another library's, in float64."""
    local = replace(
        fit,
        coef=as_numpy(fit.coef),
        intercept=None if fit.intercept is None else as_numpy(fit.intercept),
        sample_weight=None if fit.sample_weight is None else as_numpy(fit.sample_weight),
        target=as_numpy(fit.target),
    )
    return local, as_numpy(X).astype(np.float64, copy=False)


def callers_moves(moves: np.ndarray, centre: np.ndarray | None) -> np.ndarray:
    """Return moves of the parameters of columns less a centre, (…, P), as those of the columns."""
    if centre is None:
        return moves
    features = len(centre)
    outputs = moves.shape[-1] // (features + 1)
    out = moves.reshape(*moves.shape[:-1], features + 1, outputs).copy()
    out[..., features, :] -= np.einsum("...jk,j->...k", out[..., :features, :], centre)
    return np.asarray(out.reshape(moves.shape))


def _inverse_hessian(fit: FittedGLM, X: np.ndarray) -> np.ndarray:
    """Return ``H⁻¹`` at the minimiser, (P, P)."""
    objective = Objective.of(fit, X)
    H = objective.definite(objective.hessian(objective.margins(np.asarray(fit.parameters))))
    factor = cholesky_factor(H)
    if factor is None:
        raise InputError("The Hessian of this model is not definite: no refit is unique.")
    inverse = np.asarray(factor.solve(np.eye(len(H))))
    return np.asarray((inverse + inverse.T) / 2)


@dataclass(frozen=True)
class SharedFacts:
    """What the moves of single records need to know of all records of the fit."""

    inverse: np.ndarray  # H⁻¹, (P, P)
    largest: float  # q = x̃ᵀH⁻¹x̃ over all of them
    quartic: np.ndarray  # Σ ω a q x̃x̃ᵀ, (P, P)


@dataclass(frozen=True)
class Sizes:
    """Upper bounds on the shifts of the others' margins under a centre, (m, K) each."""

    largest: np.ndarray  # S
    fourth: np.ndarray | None = None  # Q
    weighed: np.ndarray | None = None  # W


@dataclass(frozen=True)
class OwnRecord:
    """What the replacement record adds to the error, (m, K, …) each."""

    shares: np.ndarray  # the curvature at the centre along its principal directions, relative to H₀
    sights: np.ndarray  # and their squared length in the noise's norm, where it is 1 in that of H₀
    widest: np.ndarray  # z̃ᵀH₀⁻¹z̃
    margin: np.ndarray  # under θ̂
    shift: np.ndarray  # and how far the centre moves it

    @classmethod
    def at(
        cls, curvature: np.ndarray, by_inverse: np.ndarray, by_noise: np.ndarray, *rest: np.ndarray
    ) -> OwnRecord:
        """Return it from the curvature, ``z̃ᵀH₀⁻¹z̃`` and the same product for the noise."""
        modes, shares = _modes(curvature, by_inverse)
        sights = np.sum(modes * (by_noise @ modes), axis=-2)
        sights = np.divide(sights, shares, out=np.zeros_like(shares), where=shares > 0)
        return cls(shares, sights, *rest)

    def per_error(self, constant: float, E: np.ndarray) -> np.ndarray:
        """Return how far an error of the others moves the release through this record's slope.

        Its margin shifts by a span of ``√widest·E`` at most, over which the curvature grows by a
        factor.
        """
        growth = np.exp(constant * np.sqrt(np.maximum(self.widest, 0.0)) * E)[:, :, None]
        with np.errstate(divide="ignore", over="ignore"):
            taken = 1 / (1 + 1 / np.where(self.shares > 0, growth * self.shares, 0.0))
        seen = np.sum(np.maximum(self.sights, 0.0) * taken, axis=2)
        return np.asarray(np.sqrt(taken.max(axis=2) * seen))


class WithoutRecord(NamedTuple):
    """Some records, and the fit of the others without each of them, (m, …) each."""

    weight: np.ndarray
    pulled: np.ndarray  # ω r
    curvature: np.ndarray  # ω a
    modes: np.ndarray  # W with WWᵀ = ω a, and Wᵀx̃ᵀH⁻¹x̃W diagonal
    shares: np.ndarray  # that diagonal: the record's share of the curvature
    left: np.ndarray  # and the share of the others
    error: np.ndarray  # the rounding of these numbers, relative to them
    off: np.ndarray  # and that of ``removal``, with the error of r
    alone: np.ndarray  # where theirs is nothing
    update: np.ndarray  # U in H₀⁻¹ = H⁻¹ + H⁻¹x̃ U x̃ᵀH⁻¹
    removal: np.ndarray  # u in H₀⁻¹x̃ ω r = H⁻¹x̃ u


@dataclass(frozen=True)
class Centres:
    """The moves of m records under K changes with the others' curvature held fixed."""

    columns: list[int]
    gram: np.ndarray  # (m, K, K), whitened
    coefs: np.ndarray  # of H⁻¹x̃ and of H⁻¹e, for every output, (m, K, …)
    energy: np.ndarray  # ‖δ‖ in the norm of H₀, (m, K)
    norm: np.ndarray  # N, (m, K)
    own_energy: np.ndarray  # ω tᵀa t with t = x̃ᵀδ, of the record as it is, (m, K)
    pull: np.ndarray  # ω rᵀt, (m, K)
    free: np.ndarray  # the smallest share of the others in the curvature along x̃, (m,)
    widest: np.ndarray  # q of the record as it is, (m,)
    per_error: np.ndarray  # how far E moves the release; infinite where the rest says nothing, (m,)
    per_error_along: np.ndarray  # and how far along the move itself, (m, K)
    error: np.ndarray  # the rounding of the products, relative to them, (m,)
    rounding: np.ndarray  # and of the whitened move, (m, K)
    own: OwnRecord | None

    def of(self, which: Any) -> Centres:
        """Return the centres of some records."""
        parts = {name: getattr(self, name)[which] for name in _PER_RECORD}
        own = None if self.own is None else OwnRecord(*(p[which] for p in _parts(self.own)))
        return Centres(columns=self.columns, own=own, **parts)

    @classmethod
    def joined(cls, pieces: list[Centres]) -> Centres:
        """Return the centres of several pieces, concatenated."""
        if len(pieces) == 1:
            return pieces[0]
        own = None
        if pieces[0].own is not None:
            parts = zip(*(_parts(piece.own) for piece in pieces if piece.own), strict=True)
            own = OwnRecord(*(np.concatenate(part) for part in parts))
        joined = {name: np.concatenate([getattr(p, name) for p in pieces]) for name in _PER_RECORD}
        return cls(columns=pieces[0].columns, own=own, **joined)


_PER_RECORD = tuple(f.name for f in fields(Centres) if f.name not in ("columns", "own"))


def _parts(own: OwnRecord) -> tuple[np.ndarray, ...]:
    return own.shares, own.sights, own.widest, own.margin, own.shift


def _is_wide(moves: Moves) -> np.ndarray:
    """Say which records have a move whose length is poorly known, (m,)."""
    least, most = moves.distances()
    with np.errstate(invalid="ignore"):
        known = np.isfinite(most) & (most - least <= _WIDE * (most + least))
    return np.asarray(~known.all(axis=1))


class Whitening:
    """``Φ^½``, applied to rows: the unit of one or several Gaussian noises on the same numbers.

    The rows are parameters of columns less a centre; those of the caller's columns are released.
    """

    def __init__(
        self, noise: tuple[Noise, ...], size: int, centre: np.ndarray | None = None
    ) -> None:
        self.centre = centre
        for one in noise:
            if not isinstance(one, Gaussian):
                raise InputError(
                    f"Risks are computed for Gaussian noise, whose trade-off curve depends on one "
                    f"distance; {one!r} has another curve. Use sp.Gaussian."
                )
        if len(noise) == 1:
            self.root = noise[0].root(size)
            return
        informations = [one.information(size) for one in noise]
        if all(np.ndim(information) < 2 for information in informations):
            self.root = np.sqrt(sum(informations))
        else:
            full = [np.diag(np.broadcast_to(i, (size,))) if i.ndim < 2 else i for i in informations]
            self.root = np.linalg.cholesky(sum(full)).T

    def largest(self) -> float:
        """Return ``‖Φ^½‖``: the greatest length of a unit of the release."""
        if self.root.ndim == 2:
            return float(np.linalg.norm(self.root, 2))
        return float(np.max(self.root))

    @cached_property
    def skew(self) -> float:
        """How much more an error of one number may count than the numbers it belongs to."""
        if self.root.ndim == 2:
            return float(np.linalg.cond(self.root))
        return float(np.max(self.root) / np.min(self.root))

    def smallest(self) -> float:
        """Return the least length of a unit move of the parameters of columns less their centre.

        Moving the centre ``c`` back into the intercept shortens it to no less than
        ``(√(‖c‖² + 4) − ‖c‖)/2``.
        """
        kept = 1.0
        if self.centre is not None:
            far = float(np.linalg.norm(self.centre))
            kept = 2 / (math.hypot(far, 2.0) + far)
        if self.root.ndim == 2:
            return kept * float(np.linalg.norm(self.root, -2))
        return kept * float(np.min(self.root))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return ``Φ^½v`` of vectors along the last axis."""
        rows = callers_moves(rows, self.centre)
        return np.asarray(rows @ self.root.T if self.root.ndim == 2 else rows * self.root)


class Outputs:
    """The part of a record's margins that matters, and the unit of its self-concordance.

    With one margin all of it matters, and a shift ``t`` has the span ``|t|``. For softmax only the
    differences of the K margins matter: everything is written in an orthonormal basis of the
    directions that sum to zero, in which curvatures are definite. With ``π`` at margins
    ``m + st``, ``d/ds Var_π(h) = Cov_π((h − Eh)², t) ≤ Var_π(h)·span(t)``, where the span of t is
    its largest entry less its smallest: so its constant is 1.
    """

    def __init__(self, family: Family | Categorical) -> None:
        self.family = family
        self.basis = simplex_basis(family.outputs) if isinstance(family, Categorical) else None
        self.count = 1 if self.basis is None else self.basis.shape[1]

    def within(self, values: np.ndarray) -> np.ndarray:
        """Return the part of margins or slopes, (…) or (…, K), that matters, (…, c)."""
        return np.asarray(values[..., None] if self.basis is None else values @ self.basis)

    def of_all(self, moves: np.ndarray) -> np.ndarray:
        """Return moves of the part that matters, (…, D·c), as moves of all parameters, (…, D·K)."""
        if self.basis is None:
            return moves
        features = moves.shape[-1] // self.count
        every = moves.reshape(*moves.shape[:-1], features, self.count) @ self.basis.T
        return np.asarray(every.reshape(*moves.shape[:-1], features * len(self.basis)))

    def inverse_within(self, inverse: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹`` of all parameters, restricted to the part that matters.

        The Hessian has no entries between that part and the rest.
        """
        if self.basis is None:
            return inverse
        K, c = self.basis.shape
        half = inverse.reshape(len(inverse), -1, K) @ self.basis
        both = half.reshape(-1, K, half.shape[1] * c).transpose(0, 2, 1) @ self.basis
        inverse = both.transpose(0, 2, 1).reshape(half.shape[1] * c, -1)
        return np.asarray((inverse + inverse.T) / 2)

    def loss(self, m: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses, (…)."""
        margins, labels = self._flat(m, labels)
        return np.asarray(self.family.loss(margins, labels)).reshape(m.shape[:-1])

    def slope(self, m: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the slopes, (…, c)."""
        margins, labels = self._flat(m, labels)
        return self.within(np.asarray(self.family.slope(margins, labels))).reshape(m.shape)

    def curvature(self, m: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the curvatures, (…, c, c)."""
        margins, labels = self._flat(m, labels)
        matrices = np.asarray(self.family.curvature(margins, labels))
        if self.basis is not None:
            matrices = self.basis.T @ matrices @ self.basis
        return matrices.reshape(*m.shape, self.count)

    def _flat(self, m: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return margins and labels in the family's shapes, one record after the other."""
        flat = m.reshape(-1, self.count)
        if self.basis is None:
            return flat[:, 0], np.broadcast_to(labels, m.shape[:-1]).reshape(-1)
        K = len(self.basis)
        return flat @ self.basis.T, np.broadcast_to(labels, (*m.shape[:-1], K)).reshape(-1, K)

    def spans(self, shifts: np.ndarray) -> np.ndarray:
        """Return the spans of shifts, (…, c) → (…)."""
        if self.count == 1:
            unit = 1.0 if self.basis is None else np.ptp(self.basis)
            return np.asarray(np.abs(shifts[..., 0]) * shifts.dtype.type(unit))
        every = shifts @ self.basis.T.astype(shifts.dtype)  # type: ignore[union-attr]
        return np.asarray(every.max(axis=-1) - every.min(axis=-1))

    def widest(self, products: np.ndarray) -> np.ndarray:
        """Return the largest ``(u − v)ᵀG(u − v)`` over outputs u and v, (…, c, c) → (…)."""
        if self.basis is None:
            return np.asarray(products[..., 0, 0])
        G = self.basis @ products @ self.basis.T
        own = np.einsum("...kk->...k", G)
        return np.asarray((own[..., :, None] + own[..., None, :] - 2 * G).max(axis=(-2, -1)))

    def per_span(self, m: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """Return the largest ``tᵀa t`` of a shift of span 1: a variance, which is ¼ at most."""
        if self.basis is None:
            return np.asarray(curvatures[:, 0, 0])
        powers = np.asarray(self.family.mean(m @ self.basis.T))
        top = powers.max(axis=1)
        return np.where(top > 0.5, top * (1 - top), 0.25)

    def steepest(self, m: np.ndarray, labels: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return the most by which a loss rises per span, for shifts up to that span, (…)."""
        if self.basis is None:
            ends = [np.abs(self.slope(m + side * span[..., None], labels)) for side in (-1, 1)]
            return np.asarray(np.maximum(*ends)[..., 0])  # slopes are monotone
        # No sum of entries of π moves by more than a quarter of the span.
        off = np.sum(np.abs(self.slope(m, labels) @ self.basis.T), axis=-1) / 2
        return np.asarray(np.minimum(off + span / 4, 1.0))

    def own_margin(
        self, given: np.ndarray, weight: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the roots ``m`` of ``m + weight·ℓ'(m, y) = given``, and which were found.

        Each is unique as ``ℓ'`` grows. Shapes are (m, K, c), (m, K, c, c) and (m, K, …).
        """
        shape = labels.shape[:2]
        given = np.broadcast_to(given, (*shape, self.count))
        if self.count == 1:
            return self._bracketed(given, weight[..., 0], labels), np.ones(shape, dtype=bool)
        weight = np.broadcast_to(weight, (*shape, self.count, self.count))
        flat = (a.reshape(-1, *a.shape[2:]) for a in (given, weight, labels))
        margin, solved = self._damped(*flat)
        return margin.reshape(given.shape), solved.reshape(shape)

    def _bracketed(self, given: np.ndarray, weight: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the roots for one output.

        Each lies between ``given`` and the first step from there: Newton's method, kept in between,
        and the middle where its steps do not shrink, as where a slope grows by e with each of them.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            first = given - weight * self.slope(given, labels)
            low, high = np.minimum(given, first), np.maximum(given, first)
            # A slope that overflows gives no step length: a step of one is doubled instead.
            far = ~(given - low <= _FAR)
            low, reach = np.where(far, -np.inf, low), 1.0
            while not np.all(np.isfinite(low)):
                low = np.where(np.isfinite(low), low, given - reach)
                off = low + weight * self.slope(low, labels) - given
                low, reach = np.where(off > 0, -np.inf, low), 2 * reach
            m, moved = np.where(far, low, 0.5 * (low + high)), np.full_like(low, np.inf)
            for _ in range(200):
                pull = weight * self.slope(m, labels)
                off = m + pull - given
                low, high = np.where(off <= 0, m, low), np.where(off >= 0, m, high)
                step = m - off / (1 + weight * self.curvature(m, labels)[..., 0])
                rounding = 4 * _EPS * (1 + np.abs(m))
                shrinks = np.abs(step - m) <= np.maximum(0.5 * moved, rounding)
                inside = (step > low) & (step < high) & shrinks
                # A root to rounding stays: a step from there may leave the bracket by a rounding.
                there = np.abs(off) <= _EPS * (np.abs(m) + np.abs(pull) + np.abs(given))
                there &= np.isfinite(off)
                new = np.where(inside | there, np.where(there, m, step), 0.5 * (low + high))
                m, moved = new, np.abs(new - m)
                if np.all(moved <= rounding):
                    break
        return np.asarray(m)

    def _damped(
        self, given: np.ndarray, weight: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the roots for several outputs, and which were found.

        With ``m = given + weight^½v`` they minimise ``‖v‖²/2 + ℓ(m, y)``: by Newton's method, with
        steps that are halved until it falls.
        """
        root = _root(weight)
        v, left = np.zeros_like(given), np.full(len(given), np.inf)
        active = np.arange(len(given))
        for _ in range(_ITERATIONS):
            R, y, here = root[active], labels[active], v[active]
            m = given[active] + _times(R, here)
            pull = _times(R, self.slope(m, y))
            gradient = here + pull
            size = np.linalg.norm(here, axis=1) + np.linalg.norm(pull, axis=1)
            left[active] = now = np.linalg.norm(gradient, axis=1) / np.where(size > 0, size, 1.0)
            going = now > _SOLVED
            if not going.any():
                break
            active, R, y, here, gradient = (a[going] for a in (active, R, y, here, gradient))
            start = given[active]
            curved = np.eye(self.count) + R @ self.curvature(m[going], y) @ R
            step = -np.linalg.solve(curved, gradient[..., None])[..., 0]
            slope = np.sum(step * gradient, axis=1)
            value = np.sum(here**2, axis=1) / 2 + self.loss(m[going], y)
            length = np.ones(len(active))
            for _ in range(_HALVINGS):
                tried = here + length[:, None] * step
                new = np.sum(tried**2, axis=1) / 2 + self.loss(start + _times(R, tried), y)
                high = new > value + 1e-4 * length * slope + 4 * _EPS * np.abs(value)
                if not high.any():
                    break
                length = np.where(high, length / 2, length)
            v[active] = here + length[:, None] * step
        return given + _times(root, v), left <= _ROOT


def _root(matrices: np.ndarray) -> np.ndarray:
    """Return the symmetric roots of semidefinite matrices, (…, c, c)."""
    if matrices.shape[-1] == 1:
        return np.asarray(np.sqrt(np.maximum(matrices, 0.0)))
    values, vectors = np.linalg.eigh(matrices)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return np.asarray(scaled @ np.swapaxes(vectors, -1, -2))


def _modes(curvature: np.ndarray, products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``W`` with ``WWᵀ = curvature`` and ``WᵀGW`` diagonal, (…, c, c), and that diagonal."""
    root = _root(curvature)
    if root.shape[-1] == 1:
        return root, (root * products * root)[..., 0]
    values, vectors = np.linalg.eigh(root @ products @ root)
    return root @ vectors, np.maximum(values, 0.0)


def _replacement_rounding(
    error: np.ndarray,
    by_noise: np.ndarray,
    slope: np.ndarray,
    curvature: np.ndarray,
    by_inverse: np.ndarray,
    lost: np.ndarray,
) -> np.ndarray:
    """Return the error of the move by records that come, whitened, (m, K).

    That of the products, relative to the move; and that of the slope σ, from the error ``lost`` of
    the margin at which the record is met: ``∂σ = ω a/(1 + ω a z̃ᵀH₀⁻¹z̃)`` of it.
    """
    size = np.sqrt(np.maximum(np.einsum("mkb,mkbc,mkc->mk", slope, by_noise, slope), 0.0))
    if curvature.shape[-1] == 1:
        rate = (curvature / (1 + curvature * by_inverse))[..., 0, 0]
    else:
        rate = np.linalg.norm(curvature, axis=(2, 3))
    seen = np.sqrt(np.maximum(np.einsum("mkbb->mk", by_noise), 0.0))
    return np.asarray(error[:, None] * size + rate * lost * seen)


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the product of each matrix with its vector."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])


def _gram_of(V: np.ndarray, C: np.ndarray, between: np.ndarray | None = None) -> np.ndarray:
    """Return the inner products of c vectors for each record and w shared ones, (m, c+w, c+w).

    With a matrix in between, if one is given.
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


def _quadratic(coefs: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return ``cᵀGc`` of each, (m, K)."""
    return np.asarray(np.sum((coefs @ gram) * coefs, axis=2))


def _psi(u: np.ndarray) -> np.ndarray:
    """Return ``(eᵘ − 1 − u)/u²``, by its series where the difference would cancel."""
    series = 0.5 + u / 6 + u * u / 24 + u**3 / 120 + u**4 / 720
    safe = np.where(u > 1e-2, u, 1.0)
    return np.asarray(np.where(u > 1e-2, (np.expm1(safe) - safe) / (safe * safe), series))
