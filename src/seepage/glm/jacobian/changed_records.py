"""How far a GLM's minimiser moves when a record leaves or is another, for all records at once.

Let ``H₀`` be the Hessian at ``θ̂`` without record i, ``t_j = x̃_jᵀδ`` how far a move ``δ`` shifts the
other margins, and ``ε_j = ω_j[ℓ'(m_j + t_j) − ℓ'(m_j) − a_j t_j]`` what curvature held fixed leaves
out. With ``(z, y')`` in the record's place (or nothing: σ = 0) the refit moves by::

    δ = ω r H₀⁻¹x̃ − σ H₀⁻¹z̃ − H₀⁻¹X̃ᵀε,        σ = ω ℓ'(z̃ᵀ(θ̂ + δ), y')

The *centre* drops ε, which leaves one equation in one number, the record's own margin. Least
squares has ε = 0, and the centre is exact.

**The certificate.** For a family with ``|ℓ‴| ≤ M ℓ″`` (Bach 2010), ``|ε_j|`` is no more than
``ω_j a_j |t_j| κ(M|t_j|)``, ``κ(u) = (eᵘ − 1 − u)/u``. In the norm ``E = (Σ ε_j²/(ω_j a_j))^½``
(``‖X̃ᵀε‖`` in that of ``H₀⁻¹`` is no larger), whichever ε of norm E there is, moves lie within E of
the centre in the norm of ``H₀``; with ``S`` the largest ``|t_j|`` at the centre, ``N`` the norm of
its ``t``, ``Q⁴ = Σ ω_j a_j t_j⁴`` and ``R = max_j ‖x̃_j‖_{H₀⁻¹}``, the ε that belong to such a move
have norm at most::

    f(E) = κ(M (S + R E)) (N + E),     or   M ψ(M (S + R E)) (Q + r E)²,   ψ(u) = κ(u)/u

with ``r`` the largest Q of a move of norm 1. If ``f(E) ≤ E``, the map from ε to the ε of its move
takes the ball of radius E into itself, and has a fixed point there by Brouwer's theorem; the fixed
point is a root of the whole equation, of which there is one only. So the refit lies within ``E`` of
the centre, and in the noise's unit within ``(‖Φ^½H⁻¹X̃ᵀD^½‖ + …)E``. The length of the move is known
better: to first order only what lies along it counts, ``‖D^½X̃H⁻¹Φδ‖/‖Φ^½δ‖`` for each unit of E.

**What it costs.** ``S ≤ R ‖δ‖_{H₀}`` costs nothing. With ``q_j = x̃_jᵀH⁻¹x̃_j`` Cauchy's inequality
gives ``Q⁴ ≤ ‖δ‖_H² Σ ω_j a_j q_j t_j²``, a quadratic form in δ, for two products over all records;
what counts along the move is another. S and Q themselves cost a pass over all pairs, and are taken
for the records that still need it, unless no pass could help: Q is at least ``N/(Σ ω a)^¼``, and no
E satisfies ``f(E) ≤ E`` where ``M r Q > ½``. Such records (labels that flip under a weak penalty)
keep what convexity alone says of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seepage.core.jacobian import Alternatives, FiniteChanges, Moves
from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError
from seepage.glm.fitting.batched_refits import BatchedRefits, Change
from seepage.glm.fitting.objective import (
    FittedGLM,
    Objective,
    bordered_gram,
    cholesky_factor,
)
from seepage.glm.jacobian.optimum import near_zero
from seepage.glm.losses import Categorical, Family
from seepage.support.chunks import by_rows, row_slices
from seepage.tables.source import as_numpy

if TYPE_CHECKING:
    from seepage.glm.jacobian.operator import GLMJacobian

_WIDE = 0.049  # the half width, beside the distance, from which on a closer look is worth its price
_ITERATIONS = 60
_STEADY = 1e-5  # the change of an error, beside its size, that is waited for
_LOST = 1e3  # an error that no certificate comes back from
_TRIED = 2.0 ** -np.arange(12)  # lengths of the centre at which the objective is bounded
_SLACK = 1.0001
_PAIR_WORK = 1e12  # multiplications that passes over pairs may take for many alternatives
_SINGLE = 1e-10  # what rounding may leave in double precision where single is enough for pairs
_PAIRS = 1 << 22  # numbers held at a time in a pass over pairs
_REFIT_ROUNDING = 1e-9  # of a refit, beside how far it moved
_ALONE = 1e-10  # the share of a record's curvature from which on the rest says nothing about it
_REFITTED = 1e11  # multiplications up to which models without each record are fitted for priors
_PER_CHANGE = 24  # numbers held at a time for each change of a record
_EPS = float(np.finfo(float).eps)


class ChangedRecords(FiniteChanges):
    """The finite changes of one GLM's release.

    Parameters
    ----------
    fit
        The model at the exact minimiser on its table.
    X
        The table, (n, d), less the centre.
    noise
        Gaussian noise on the parameters; several for the same parameters released as often.
    shared
        Where these are only some of the rows the model was fitted on: what is known of all. There
        are then no refits, and no passes over pairs.
    centre
        What was subtracted from the caller's columns, (d,); the parameters are released for those.
    """

    def __init__(
        self,
        fit: FittedGLM,
        X: Any,
        noise: tuple[Noise, ...],
        shared: SharedFacts | None = None,
        centre: Any = None,
    ) -> None:
        self.shared = shared
        self.centre = None if centre is None else as_numpy(centre).astype(np.float64, copy=False)
        self.fit, self.X = _in_numpy(fit, X)
        self.target, self.records = self.fit.target, len(self.X)
        self.theta = np.asarray(self.fit.parameters)
        self.work = 40.0 * self.X.size * (self.theta.size // self.theta.shape[0])
        self._whiten = Whitening(noise, self.theta.size, self.centre)
        family = self.fit.family
        # Softmax has a curvature matrix for each record, and is refitted.
        self.constant = None if isinstance(family, Categorical) else family.self_concordance
        given = self.fit.sample_weight
        self.weight: np.ndarray = np.ones(len(self.X)) if given is None else as_numpy(given)

    # By refits --------------------------------------------------------------------------------

    def without_exactly(self, sets: list[np.ndarray]) -> Moves:
        """Return the moves when records leave together, by refits."""
        starts = None
        if self.constant is not None and all(len(rows) == 1 for rows in sets):
            rows = np.concatenate(sets)
            starts = self._moves_at(rows, self._centres(rows, None))[:, 0, :]
        moves = self.refits.moves([Change(np.asarray(rows)) for rows in sets], starts)
        return self._exact(moves[:, None, :])

    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves with each alternative, by refits."""
        K = len(others)
        starts = None
        if self.constant is not None:
            starts = self._moves_at(rows, self._centres(rows, others))
        moves = np.zeros((len(rows), K, self.theta.size))
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
            moves[at] = self.refits.moves(changes, None if starts is None else starts[at])
        return self._exact(moves)

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

    def _exact(self, moves: np.ndarray) -> Moves:
        """Return refits' moves, (m, K, P), as inner products."""
        lost = ~np.isfinite(moves).all(axis=2)
        seen = self._whiten(np.where(lost[:, :, None], 0.0, moves))
        gram = seen @ np.swapaxes(seen, 1, 2)
        radius = _REFIT_ROUNDING * np.sqrt(np.einsum("mkk->mk", gram))
        gram[:, range(gram.shape[1]), range(gram.shape[1])] += np.where(lost, np.inf, 0.0)
        return Moves(gram, radius)

    # Certified --------------------------------------------------------------------------------

    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out, K = 1, certified."""
        return self._certified(np.asarray(rows), None)

    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves when each of some records is each of the alternatives, certified."""
        return self._certified(np.asarray(rows), others)

    def _certified(self, rows: np.ndarray, others: Alternatives | None) -> Moves:
        K = 1 if others is None else len(others)
        if self.constant is None:
            found = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))
            self._bound_the_rest(found, np.arange(len(rows)), rows, None, others)
            return found
        found = Moves(*(np.empty((len(rows), K, *more)) for more in ((K,), (), (), ())))
        looked: list[tuple[np.ndarray, Centres]] = []
        for piece in row_slices(len(rows), self._width(others)):
            centres = self._centres(rows[piece], others)
            here = self._around(centres, self._reach(centres) * centres.energy)
            found.put(piece, here)
            wide = np.flatnonzero(_is_wide(here))
            if self.constant > 0 and len(wide):
                looked.append((piece.start + wide, centres.of(wide)))
        if looked:
            wide = np.concatenate([which for which, _ in looked])
            some, *sizes = self._felt(rows[wide], Centres.joined([c for _, c in looked]))
            closer = self._around(some, *sizes)
            if self.shared is None:
                self._look_at_pairs(rows[wide], some, closer, others)
            found.put(wide, closer)
        lost = np.flatnonzero(np.isinf(found.radius).any(axis=1))
        for piece in row_slices(len(lost), self._width(others)):
            which = lost[piece]
            self._bound_the_rest(found, which, rows, self._centres(rows[which], others), others)
        return found

    def _width(self, others: Alternatives | None) -> int:
        """Return how many numbers the work on one record holds at a time."""
        if others is None:
            return _PER_CHANGE
        columns = len(others.columns)
        return _PER_CHANGE * len(others) * (1 + columns) + (4 * self.theta.size if columns else 0)

    def _around(
        self, centres: Centres, largest: np.ndarray, fourth: np.ndarray | None = None
    ) -> Moves:
        """Return the moves around their centres, given ``S`` (or more) and ``Q``, where known."""
        E, still = self._error(centres, largest, fourth)
        size = np.sqrt(np.maximum(np.einsum("mkk->mk", centres.gram), 0.0))
        with np.errstate(invalid="ignore"):
            own = np.zeros_like(E)
            if centres.own is not None:
                own = centres.own.per_error(self.constant or 0.0, E)
            radius = (centres.per_error[:, None] + own) * E
            along = (centres.per_error_along + own) * E
        lost = ~np.isfinite(radius) | ~np.isfinite(along)
        rounding = self._rounding * size
        radius = np.where(still, 0.0, np.where(lost, np.inf, radius + rounding))
        along = np.where(still, 0.0, np.where(lost, np.inf, along + rounding))
        along = np.minimum(along, radius)
        known = np.where(lost, 0.0, along)
        most = np.sqrt(size**2 + 2 * size * known + radius**2)
        return Moves(centres.gram, radius, np.maximum(size - along, 0.0), most)

    def _look_at_pairs(
        self, rows: np.ndarray, centres: Centres, found: Moves, others: Alternatives | None
    ) -> None:
        """Take S and Q themselves where that may help, by a pass over all pairs of records."""
        # Q is at least N/(Σ ω a)^¼, and with M r Q above ½ no E satisfies f(E) ≤ E.
        M, total = self.constant or 0.0, float(self.weight @ self.curvatures)
        stretch = self._stretch / np.sqrt(centres.free)[:, None]
        floor = M * stretch * centres.norm / max(total, 1e-300) ** 0.25
        wide = np.flatnonzero(_is_wide(found) & np.all(floor <= 0.5, axis=1))
        if others is not None and others.values is not None:  # a pass for every alternative
            affordable = int(_PAIR_WORK / (self.X.size * len(others)))
            size = found.expected()[wide].max(axis=1)
            wide = wide[np.argsort(-size, kind="stable")[:affordable]]
        if len(wide):
            some = centres.of(wide)
            found.put(wide, self._around(some, *self._over_pairs(rows[wide], some)))

    def _bound_the_rest(
        self,
        moves: Moves,
        where: np.ndarray,
        rows: np.ndarray,
        centres: Centres | None,
        others: Alternatives | None,
    ) -> None:
        """Bound the lengths of some moves that have no certificate, by convexity alone.

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
        """Return ``‖g‖`` at ``θ̂``: of what comes less what leaves, (m, K)."""
        own = self.slopes[rows].reshape(len(rows), 1, -1)
        norms = np.sum(self.X[rows] ** 2, axis=1)[:, None]
        if self.fit.intercept is not None:
            norms = norms + 1.0
        weight = self.weight[rows][:, None]
        if others is None:
            return np.asarray(weight * np.sqrt(norms * np.sum(own**2, axis=2)))
        change, labels = self._changes(rows, others)
        margins = self.margins[rows].reshape(len(rows), 1, -1)
        margins = margins + change @ self.theta.reshape(len(self.theta), -1)[list(others.columns)]
        flat = margins.reshape(-1, margins.shape[2])
        tags = labels.reshape(len(flat), -1)
        if not isinstance(self.fit.family, Categorical):
            flat, tags = flat[:, 0], tags[:, 0]
        new = np.asarray(self.fit.family.slope(flat, tags)).reshape(margins.shape)
        gap = new - own
        crossed = np.einsum("mkc,mc->mk", change, self.X[rows][:, list(others.columns)])
        squares = (
            norms * np.sum(gap**2, axis=2)
            + 2 * crossed * np.sum(gap * new, axis=2)
            + np.sum(change**2, axis=2) * np.sum(new**2, axis=2)
        )
        return np.asarray(weight * np.sqrt(np.maximum(squares, 0.0)))

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
        """Return by how much the changed objective falls somewhere along the centre, at least.

        The losses of the others rise by ``N² τ² ψ(M S τ)`` beyond their slopes at most, at τ times
        the centre; what leaves and what comes is known.
        """
        M, S = self.constant or 0.0, self._reach(centres) * centres.energy
        weight, pulled = self.weight[rows][:, None], (self.weight * self.slopes)[rows][:, None]
        penalty = np.maximum(centres.energy**2 - centres.norm**2, 0.0)
        best = np.zeros_like(centres.energy)
        with np.errstate(over="ignore", invalid="ignore"):
            for tau in _TRIED:
                rise = tau**2 * (centres.norm**2 * _psi(M * S * tau) + penalty / 2)
                gained = tau * pulled * centres.on_own
                fall = gained - rise - 16 * _EPS * (np.abs(gained) + rise)
                if centres.own is not None and others is not None:
                    labels = self._changes(rows, others)[1]
                    before, after = (
                        np.asarray(self.fit.family.loss(margin, labels))
                        for margin in (
                            centres.own.margin,
                            centres.own.margin + tau * centres.own.shift,
                        )
                    )
                    rounding = 16 * _EPS * (np.abs(before) + np.abs(after))
                    fall = fall - weight * (after - before + rounding)
                best = np.maximum(best, np.nan_to_num(fall, nan=0.0, posinf=0.0, neginf=0.0))
        return np.asarray(best)

    def _centres(self, rows: np.ndarray, others: Alternatives | None) -> Centres:
        """Return the centres of some records' moves, and what a certificate needs of them.

        They are written in the basis of ``H⁻¹x̃`` and ``H⁻¹e`` of the columns that may change.
        """
        where = [] if others is None else list(others.columns)
        by_inverse, by_noise, by_penalty = self._grams(rows, where)
        weight, pulled, bent, alone, free = self._leaving(rows)
        own = None
        coefs = (pulled / free)[:, None, None]
        if others is not None:
            came = self._coming(rows, others, by_inverse)
            change, labels, before = came.change, came.labels, came.margin
            same = np.all(change == 0, axis=2) & (labels == self.target[rows][:, None])
            margin, new = before.copy(), ~same
            heavy = (weight[:, None] * came.norm)[new]
            margin[new] = own_margin(self._family, came.without[new], heavy, labels[new])
            slope = weight[:, None] * np.asarray(self._family.slope(margin, labels))
            z = np.concatenate([came.along[..., None], change], axis=2)
            coefs = coefs * (np.arange(z.shape[2]) == 0) - slope[..., None] * z
            coefs[same] = 0.0
            own = OwnRecord(
                came.norm,
                weight[:, None] * np.asarray(self._family.curvature(margin, labels)),
                np.sqrt(np.maximum(_quadratic(z, by_noise), 0.0)),
                before,
                margin - before,
            )
        q = by_inverse[:, 0, 0]
        on_own = np.einsum("mkb,mb->mk", coefs, by_inverse[:, 0, :])
        energy = np.maximum(_quadratic(coefs, by_inverse) - bent[:, None] * on_own**2, 0.0)
        norm = np.maximum(energy - self.fit.ridge * _quadratic(coefs, by_penalty), 0.0)
        gram = np.einsum("mkb,mbc,mlc->mkl", coefs, by_noise, coefs)
        sight = np.sqrt(np.maximum(by_noise[:, 0, 0] * q, 0.0))
        per_error = np.where(alone, np.inf, self._spread + bent * sight / free)
        return Centres(
            where,
            np.where(alone[:, None, None], 0.0, gram),
            coefs,
            np.sqrt(energy),
            np.sqrt(norm),
            on_own,
            free,
            per_error,
            np.repeat(per_error[:, None], gram.shape[1], axis=1),
            own,
        )

    def _grams(
        self, rows: np.ndarray, where: list[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return inner products of ``H⁻¹x̃`` and ``H⁻¹e``, (m, 1+c, 1+c) each.

        In the norm of H, in that of the noise, and in that of the penalty.
        """
        forms, features = self._forms[rows], self.X.shape[1]
        if not where:
            return forms[:, 0, None, None], forms[:, 1, None, None], forms[:, 2, None, None]
        V, C = self._solved(self.X[rows]), self.inverse[where]
        seen, seen_C = self._whiten(V), self._whiten(C)
        held, held_C = V[:, :features], C[:, :features]
        return (
            _bordered(forms[:, 0], V[:, where], C[:, where]),
            _bordered(forms[:, 1], seen @ seen_C.T, seen_C @ seen_C.T),
            _bordered(forms[:, 2], held @ held_C.T, held_C @ held_C.T),
        )

    def _leaving(
        self, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return weights, weighted slopes and curvatures of records, and what is left of those.

        These are whether the rest says nothing about a record, and ``1 − ω a x̃ᵀH⁻¹x̃``, (m,) each.
        """
        weight = self.weight[rows]
        bent = weight * self.curvatures[rows]
        share = bent * self._forms[rows, 0]
        alone = (1 - share <= _ALONE) & (weight > 0)
        return weight, weight * self.slopes[rows], bent, alone, np.where(alone, 1.0, 1 - share)

    def _coming(self, rows: np.ndarray, others: Alternatives, by_inverse: np.ndarray) -> _Coming:
        """Return what comes in the places of some records, as the others see it without them."""
        _, pulled, bent, _, free = self._leaving(rows)
        change, labels = self._changes(rows, others)
        xz = by_inverse[:, 0, 0, None] + np.einsum("mkc,mc->mk", change, by_inverse[:, 0, 1:])
        z = np.concatenate([np.ones_like(xz)[..., None], change], axis=2)
        before = self.margins[rows][:, None] + change @ self.theta[list(others.columns)]
        return _Coming(
            change,
            labels,
            1 + (bent / free)[:, None] * xz,
            _quadratic(z, by_inverse) + (bent / free)[:, None] * xz**2,
            before,
            before + (pulled / free)[:, None] * xz,
        )

    def _felt(self, rows: np.ndarray, centres: Centres) -> tuple[Centres, np.ndarray, np.ndarray]:
        """Return some centres with what errors do along them, S (or more), and Q (or more).

        ``Q⁴ ≤ ‖δ‖_H² Σ ω_j a_j q_j t_j²`` with ``q_j = x̃_jᵀH⁻¹x̃_j``, a quadratic form in δ; so is
        what ε makes of the length of the move, ``‖D^½X̃H⁻¹Φδ‖/‖Φ^½δ‖`` for each unit of E.
        """
        C = self.inverse[centres.columns]
        seen_C = self._whiten(C)
        quartic, along = np.empty_like(centres.energy), np.empty_like(centres.energy)
        for piece in row_slices(len(rows), 3 * self.theta.size):
            some, V = centres.coefs[piece], self._solved(self.X[rows[piece]])
            quartic[piece] = _quadratic(some, _gram_under(self._quartic, V, C))
            seen = self._whiten(V)
            along[piece] = _quadratic(some, _gram_under(self._seen, seen, seen_C))
        own = (1 - centres.free)[:, None] * centres.on_own**2  # ω a q (x̃ᵀδ)²
        rest = np.maximum(quartic - own, 0.0)
        bent = (self.weight * self.curvatures)[rows][:, None]
        own = bent * centres.on_own**2
        fourth = ((centres.energy**2 + own) * rest) ** 0.25
        size = np.sqrt(np.maximum(np.einsum("mkk->mk", centres.gram), 0.0))
        share = np.sqrt(np.maximum(along, 0.0)) / np.where(size > 0, size, 1.0)
        better = centres.per_error[:, None] - self._spread + np.minimum(share, self._spread)
        largest = self._reach(centres) * centres.energy
        return replace(centres, per_error_along=better), largest, fourth

    def _error(
        self, centres: Centres, largest: np.ndarray, fourth: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a norm E of ε with ``f(E) ≤ E``, (m, K), infinite where none is found.

        And which changes are none at all.
        """
        M, R = self.constant or 0.0, self._reach(centres)
        alone = np.isinf(centres.per_error)[:, None]
        still = ~alone & np.all(centres.coefs == 0, axis=2)
        if M == 0:
            return np.where(alone, np.inf, np.zeros_like(largest)), still

        E = np.where(still, 0.0, np.inf)
        moved = np.nonzero(~still)
        S, N, R = M * largest[moved], centres.norm[moved], M * R[moved[0], 0]
        if fourth is not None:
            Q, stretch = fourth[moved], self._stretch / np.sqrt(centres.free[moved[0]])

        def image(E: np.ndarray, which: Any) -> np.ndarray:
            psi = _psi(S[which] + R[which] * E)
            first = (S[which] + R[which] * E) * psi * (N[which] + E)
            if fourth is not None:
                first = np.minimum(first, M * psi * (Q[which] + stretch[which] * E) ** 2)
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
            # Overflow is no certificate.
            E[moved] = np.where(image(reached, slice(None)) <= reached, reached, np.inf)
        return E, still

    def _reach(self, centres: Centres) -> np.ndarray:
        """Return ``R``: no record is larger in the norm of ``H₀⁻¹``, (m, 1)."""
        return np.asarray(np.sqrt(self._largest / centres.free))[:, None]

    def _over_pairs(self, rows: np.ndarray, centres: Centres) -> tuple[np.ndarray, np.ndarray]:
        """Return ``S`` and ``Q`` of some records' centres, by a pass over all other records."""
        m, K = centres.energy.shape
        bent = self.weight * self.curvatures
        largest, fourth = np.empty((m, K)), np.empty((m, K))
        # Where all moves are along H⁻¹x̃, one direction stands for all of a record's.
        single = not centres.columns
        # Upper ends are asked for, so single precision does, with what it may lose added.
        kind = np.float32 if self._rounding < _SINGLE else np.float64
        lost = (self.theta.size + 2) * float(np.finfo(kind).eps)
        unit = np.sqrt(np.diag(self.inverse))
        table = (self._extended(self.X) * unit).astype(kind)
        table[self.weight == 0] = 0.0
        longest = float(np.linalg.norm(table, axis=1).max())
        felt = bent.astype(kind)
        more = 1 + 2 * len(table) * float(np.finfo(kind).eps)
        for piece in row_slices(m, len(self.X) * (1 if single else K), chunk=_PAIRS):
            some = centres.of(piece)
            if single:
                directions = self._solved(self.X[rows[piece]])
            else:
                directions = self._moves_at(rows[piece], some).reshape(-1, self.theta.size)
            directions = directions / unit
            length = np.linalg.norm(directions, axis=1, keepdims=True)
            directions /= np.where(length > 0, length, 1.0)
            shift = table @ directions.T.astype(kind)
            own = np.repeat(rows[piece], 1 if single else K)
            shift[own, np.arange(len(own))] = 0.0
            shift *= shift
            S = np.sqrt(np.max(shift, axis=0)).astype(float) + lost * longest
            shift *= shift
            Q = (more * (felt @ shift).astype(float)) ** 0.25
            Q += lost * longest * float(bent.sum()) ** 0.25
            scale = length.reshape(len(rows[piece]), -1)
            if single:
                scale = np.abs(some.coefs[:, :, 0]) * scale
            largest[piece] = S.reshape(len(scale), -1) * scale
            fourth[piece] = Q.reshape(len(scale), -1) * scale
        return largest, fourth

    def _moves_at(self, rows: np.ndarray, centres: Centres) -> np.ndarray:
        """Return the centres themselves, (m, K, P)."""
        moves = centres.coefs[:, :, :1] * self._solved(self.X[rows])[:, None, :]
        return np.asarray(moves + centres.coefs[:, :, 1:] @ self.inverse[centres.columns])

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how likely the model fitted without a record finds it with each alternative.

        By refits where there are few records or nothing else is known; of more, those that are
        known least are refitted, and the others are as far off as their certificates say.
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
            return self._refitted_likelihoods(rows, others), np.zeros(len(rows))
        scores, off = np.empty((len(rows), len(others))), np.empty(len(rows))
        for piece in row_slices(len(rows), self._width(others)):
            scores[piece], off[piece] = self._likelihoods_without(rows[piece], others)
        worst = np.argsort(-off, kind="stable")[:affordable]
        if len(worst):
            scores[worst], off[worst] = self._refitted_likelihoods(rows[worst], others), 0.0
        return scores, off

    def _likelihoods_without(
        self, rows: np.ndarray, others: Alternatives
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the same from where the centres put the model, and how far off that may be."""
        left, by_inverse = self._centres(rows, None), self._grams(rows, list(others.columns))[0]
        E = self._error(left, self._reach(left) * left.energy, None)[0]
        came, family = self._coming(rows, others, by_inverse), self._family
        with np.errstate(over="ignore", invalid="ignore"):
            shift = np.sqrt(np.maximum(came.norm, 0.0)) * E
            scores = -np.asarray(family.loss(came.without, came.labels))
            steep = [
                np.abs(np.asarray(family.slope(came.without + side * shift, came.labels)))
                for side in (-1.0, 1.0)
            ]
            off = np.max(shift * np.maximum(*steep), axis=1)  # slopes only grow
        return scores, np.where(np.isnan(off), np.inf, off)

    def _refitted_likelihoods(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        moves = self.refits.moves([Change(np.array([i])) for i in rows])
        moves = np.where(np.isfinite(moves), moves, 0.0)
        found = np.empty((len(rows), len(others)))
        for m, i in enumerate(rows):
            Z, T = self._replacements(int(i), others)
            theta = self.theta + moves[m].reshape(self.theta.shape)
            found[m] = -np.asarray(self.fit.family.loss(self._extended(Z) @ theta, T))
        return found

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record of a classifier may have, (K,) or (K, K)."""
        if isinstance(self.fit.family, Categorical):
            return np.eye(self.fit.family.outputs)
        if self.fit.family.name == "bernoulli":
            return np.array([0.0, 1.0])
        return super().class_labels()

    # What all of it is made of ----------------------------------------------------------------

    @cached_property
    def refits(self) -> BatchedRefits:
        """Refits of the model."""
        return BatchedRefits(self.fit, self.X, self.inverse)

    @cached_property
    def inverse(self) -> np.ndarray:
        """``H⁻¹``, (P, P)."""
        if self.shared is not None:
            return self.shared.inverse
        return _inverse_hessian(self.fit, self.X)

    @cached_property
    def margins(self) -> np.ndarray:
        """The margins, (n,)."""
        return np.asarray(self.fit.margins(self.X))

    @cached_property
    def slopes(self) -> np.ndarray:
        """``r`` without the weights, (n,)."""
        return np.asarray(self.fit.family.slope(self.margins, self.target))

    @cached_property
    def curvatures(self) -> np.ndarray:
        """``a`` without the weights, (n,)."""
        return np.asarray(self.fit.family.curvature(self.margins, self.target))

    @property
    def _largest(self) -> float:
        """The largest ``q = x̃ᵀH⁻¹x̃`` of the records that count."""
        return self._sizes[0]

    @property
    def _quartic(self) -> np.ndarray:
        """``Σ ω a q x̃x̃ᵀ``, (P, P)."""
        return self._sizes[1]

    @cached_property
    def _sizes(self) -> tuple[float, np.ndarray]:
        if self.shared is not None:
            return self.shared.largest, self.shared.quartic
        return self.sizes_here()

    def sizes_here(self) -> tuple[float, np.ndarray]:
        """Return the largest ``q = x̃ᵀH⁻¹x̃`` of the records at hand, and ``Σ ω a q x̃x̃ᵀ``."""
        q = self._forms[:, 0]
        felt = np.maximum(self.weight * self.curvatures * q, 0.0)
        quartic = bordered_gram(self.X, felt, self.fit.intercept is not None)
        return float(np.max(q[self.weight > 0], initial=0.0)), np.asarray(quartic)

    @cached_property
    def _forms(self) -> np.ndarray:
        """``x̃ᵀH⁻¹x̃``, ``‖Φ^½H⁻¹x̃‖²`` and ``‖H⁻¹x̃‖²`` but for the intercept, of records, (n, 3)."""
        features = self.X.shape[1]

        def forms(piece: slice) -> np.ndarray:
            x = self.X[piece]
            V = self._solved(x)
            q = np.einsum("np,np->n", V[:, :features], x)
            if self.fit.intercept is not None:
                q += V[:, -1]
            seen, held = self._whiten(V), V[:, :features]
            sizes = (np.einsum("np,np->n", v, v) for v in (seen, held))
            return np.stack([q, *sizes], axis=1)

        return np.asarray(by_rows(forms, len(self.X), 3 * self.theta.size))

    @cached_property
    def _stretch(self) -> float:
        """The root of ``max_e (Σ ω a q t²)^½`` over e of norm 1 in that of H: of errors' own Q."""
        root = np.linalg.cholesky(self.inverse)
        values = np.linalg.eigvalsh(root.T @ self._quartic @ root)
        return float(max(values[-1], 0.0) ** 0.25)

    @cached_property
    def _seen(self) -> np.ndarray:
        """``Φ^½H⁻¹X̃ᵀDX̃H⁻¹Φ^½``: the square of what an error of the slopes makes of the move."""
        penalised = self.inverse[:, : self.X.shape[1]]
        inner = self.inverse - self.fit.ridge * penalised @ penalised.T
        seen = self._whiten(self._whiten(inner).T)
        return np.asarray((seen + seen.T) / 2)

    @cached_property
    def _spread(self) -> float:
        """``‖Φ^½H⁻¹X̃ᵀD^½‖``: what an error of the slopes makes of the move, at most."""
        return float(np.sqrt(max(np.linalg.eigvalsh(self._seen)[-1], 0.0)))

    @cached_property
    def _rounding(self) -> float:
        """What rounding may leave of a move, beside its size."""
        sizes = np.sqrt(np.diag(self.inverse))
        values = np.linalg.eigvalsh(self.inverse / (sizes[:, None] * sizes[None, :]))
        return 16 * _EPS * float(values[-1] / max(values[0], _EPS))

    @property
    def _family(self) -> Family:
        family = self.fit.family
        assert isinstance(family, Family)  # noqa: S101 - told to the type checker
        return family

    def _extended(self, x: np.ndarray) -> np.ndarray:
        return x if self.fit.intercept is None else np.hstack([x, np.ones((len(x), 1))])

    def _solved(self, x: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` of rows, (m, P)."""
        if self.fit.intercept is None:
            return np.asarray(x @ self.inverse)
        return np.asarray(x @ self.inverse[:-1] + self.inverse[-1])


class RecordRefits:
    """The release made again with one record replaced, all others kept.

    What :class:`~seepage.core.jacobian.Refits` asks of every release, answered by batched refits.
    """

    rounding = 1e-14

    def __init__(self, fit: FittedGLM, X: Any) -> None:
        self.fit, self.X = _in_numpy(fit, X)
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

        ``features`` are (K, d), and ``labels`` (K,), or (K, classes) for softmax; the label it has
        where not given. NaN where no minimiser exists.
        """
        Z = np.atleast_2d(np.asarray(features, dtype=float))
        own = self.target[row, ...]
        T = np.broadcast_to(own, (len(Z), *np.shape(own)))
        if labels is not None:
            T = np.asarray(labels, dtype=float).reshape(T.shape)
        centre = self._near[2]
        Z = Z if centre is None else Z - centre
        weight, gone = float(self._refits.weight[row]), np.array([row])
        changes = [Change(gone, z, t, weight) for z, t in zip(Z, T, strict=True)]
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
    ) -> GLMJacobian:
        """Return the Jacobian about the replaced row, at a refit that :meth:`parameters` gave."""
        from seepage.glm.leakage import jacobian_of_replaced

        d = self.X.shape[1]
        intercept = None if self.fit.intercept is None else theta[d, ...]
        fit = replace(self.fit, coef=theta[:d, ...], intercept=intercept)
        return jacobian_of_replaced(fit, self.X, row, features, label, noise)


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
    found = np.asarray(factor.solve(np.eye(len(H))))
    return np.asarray((found + found.T) / 2)


@dataclass(frozen=True)
class SharedFacts:
    """What moves of single records need to know of all records a model was fitted on."""

    inverse: np.ndarray  # H⁻¹, (P, P)
    largest: float  # q = x̃ᵀH⁻¹x̃ over all of them
    quartic: np.ndarray  # Σ ω a q x̃x̃ᵀ, (P, P)


class _Coming(NamedTuple):
    """What comes in the places of m records under K changes, as a model without them sees it."""

    change: np.ndarray  # of the columns, (m, K, c)
    labels: np.ndarray  # (m, K)
    along: np.ndarray  # H₀⁻¹z̃ = along·H⁻¹x̃ + change·H⁻¹e, (m, K)
    norm: np.ndarray  # z̃ᵀH₀⁻¹z̃, (m, K)
    margin: np.ndarray  # under θ̂, (m, K)
    without: np.ndarray  # where the record as it is has left, and nothing came, (m, K)


@dataclass(frozen=True)
class OwnRecord:
    """What the record in another's place adds to the error, (m, K) each."""

    norm: np.ndarray  # z̃ᵀH₀⁻¹z̃
    curvature: np.ndarray  # at the centre, with its weight
    sight: np.ndarray  # ‖Φ^½H₀⁻¹z̃‖
    margin: np.ndarray  # under θ̂
    shift: np.ndarray  # and how far the centre moves it

    def per_error(self, constant: float, E: np.ndarray) -> np.ndarray:
        """Return how far an error of the others moves the release through this record's slope.

        Its margin shifts by ``√norm·E`` at most, over which the curvature grows by a factor.
        """
        root = np.sqrt(np.maximum(self.norm, 0.0))
        bent = self.curvature * np.exp(constant * root * E)
        share = np.where(np.isinf(bent), 1 / np.maximum(self.norm, 1e-300), bent)
        share = np.where(np.isinf(bent), share, bent / (1 + self.norm * bent))
        return np.asarray(share * self.sight * root)


@dataclass(frozen=True)
class Centres:
    """The moves of m records under K changes where the others' curvature is held fixed."""

    columns: list[int]
    gram: np.ndarray  # (m, K, K), whitened
    coefs: np.ndarray  # (m, K, 1 + c), of H⁻¹x̃ and H⁻¹e
    energy: np.ndarray  # ‖δ‖ in the norm of H₀, (m, K)
    norm: np.ndarray  # N, (m, K)
    on_own: np.ndarray  # x̃ᵀδ, of the record as it is, (m, K)
    free: np.ndarray  # 1 − ω a x̃ᵀH⁻¹x̃, (m,)
    per_error: np.ndarray  # how far E moves the release; infinite where the rest says nothing, (m,)
    per_error_along: np.ndarray  # and how far along the move itself, (m, K)
    own: OwnRecord | None

    def of(self, which: Any) -> Centres:
        """Return those of some records."""
        parts = {name: getattr(self, name)[which] for name in _PER_RECORD}
        own = None if self.own is None else OwnRecord(*(p[which] for p in _parts(self.own)))
        return Centres(columns=self.columns, own=own, **parts)

    @classmethod
    def joined(cls, pieces: list[Centres]) -> Centres:
        """Return the centres of several pieces, one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        own = None
        if pieces[0].own is not None:
            parts = zip(*(_parts(piece.own) for piece in pieces if piece.own), strict=True)
            own = OwnRecord(*(np.concatenate(part) for part in parts))
        joined = {name: np.concatenate([getattr(p, name) for p in pieces]) for name in _PER_RECORD}
        return cls(columns=pieces[0].columns, own=own, **joined)


_PER_RECORD = (
    "gram",
    "coefs",
    "energy",
    "norm",
    "on_own",
    "free",
    "per_error",
    "per_error_along",
)


def _parts(own: OwnRecord) -> tuple[np.ndarray, ...]:
    return own.norm, own.curvature, own.sight, own.margin, own.shift


def _is_wide(moves: Moves) -> np.ndarray:
    """Say which records have a move whose length is not known well, (m,)."""
    least, most = moves.distances()
    with np.errstate(invalid="ignore"):
        known = np.isfinite(most) & (most - least <= _WIDE * (most + least))
    return np.asarray(~known.all(axis=1))


class Whitening:
    """``Φ^½``, applied to rows: the unit of Gaussian noise, or of several on the same numbers.

    The rows are parameters of columns less a centre; what is released is of the caller's columns.
    """

    def __init__(
        self, noise: tuple[Noise, ...], size: int, centre: np.ndarray | None = None
    ) -> None:
        self.centre = centre
        for one in noise:
            if not isinstance(one, Gaussian):
                raise InputError(
                    f"Risks are told from Gaussian noise, whose trade-off curve depends on one "
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
        """Return ``‖Φ^½‖``: how long a unit of the release is at most."""
        if self.root.ndim == 2:
            return float(np.linalg.norm(self.root, 2))
        return float(np.max(self.root))

    def smallest(self) -> float:
        """Return how long a unit of the release is at least."""
        if self.root.ndim == 2:
            return float(np.linalg.norm(self.root, -2))
        return float(np.min(self.root))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return ``Φ^½v`` of vectors along the last axis."""
        rows = callers_moves(rows, self.centre)
        return np.asarray(rows @ self.root.T if self.root.ndim == 2 else rows * self.root)


def own_margin(
    family: Family, given: np.ndarray, weight: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Return the roots ``m`` of ``m + weight·ℓ'(m, y) = given``, each unique as ``ℓ'`` grows.

    The root lies between ``given`` and the first step from there; Newton's method, kept between.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        first = given - weight * np.asarray(family.slope(given, labels))
        low, high = np.minimum(given, first), np.maximum(given, first)
        # A slope that overflows says nothing of how far: a step of one is doubled instead.
        reach = 1.0
        while not np.all(np.isfinite(low)):
            low = np.where(np.isfinite(low), low, given - reach)
            off = low + weight * np.asarray(family.slope(low, labels)) - given
            low, reach = np.where(off > 0, -np.inf, low), 2 * reach
        m = np.where(np.isfinite(first), 0.5 * (low + high), low)
        for _ in range(200):
            off = m + weight * np.asarray(family.slope(m, labels)) - given
            low, high = np.where(off <= 0, m, low), np.where(off >= 0, m, high)
            step = m - off / (1 + weight * np.asarray(family.curvature(m, labels)))
            inside = (step > low) & (step < high)
            new = np.where(inside, step, 0.5 * (low + high))
            done = np.abs(new - m) <= 4 * _EPS * (1 + np.abs(m))
            m = new
            if np.all(done):
                break
    return np.asarray(m)


def _bordered(corner: np.ndarray, side: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Return symmetric matrices of a number and a row for each record, (m, 1+c, 1+c).

    The rest, (c, c), they share.
    """
    out = np.empty((len(side), 1 + len(shared), 1 + len(shared)))
    out[:, 0, 0] = corner
    out[:, 0, 1:] = out[:, 1:, 0] = side
    out[:, 1:, 1:] = shared
    return out


def _gram_under(A: np.ndarray, V: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Return inner products, through a matrix, of a vector for each record and c shared ones."""
    through = V @ A
    return _bordered(np.sum(through * V, axis=1), through @ C.T, C @ A @ C.T)


def _quadratic(coefs: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return ``cᵀGc`` of each, (m, K)."""
    return np.asarray(np.einsum("mkb,mbc,mkc->mk", coefs, gram, coefs))


def _psi(u: np.ndarray) -> np.ndarray:
    """Return ``(eᵘ − 1 − u)/u²``, by its series where the difference would cancel."""
    series = 0.5 + u / 6 + u * u / 24 + u**3 / 120 + u**4 / 720
    safe = np.where(u > 1e-2, u, 1.0)
    return np.asarray(np.where(u > 1e-2, (np.expm1(safe) - safe) / (safe * safe), series))
