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
its ``t`` and
``R = max_j ‖x̃_j‖_{H₀⁻¹}``, the ε that belong to such a move have norm at most::

    f(E) = κ(M (S + R E)) (N + E),     or   M ψ(M (S + R E)) (Q + √R E)²,   ψ(u) = κ(u)/u

with ``Q⁴ = Σ ω_j a_j t_j⁴``. If ``f(E) ≤ E``, the map from ε to the ε of its move takes the ball of
radius E into itself, and has a fixed point there by Brouwer's theorem; the fixed point is a root of
the whole equation, of which there is one only. So the refit lies within ``E`` of the centre, and in
the noise's unit within ``(‖Φ^½H⁻¹X̃ᵀD^½‖ + …)E``. ``S ≤ R ‖δ‖_{H₀}`` costs nothing; S and Q
themselves cost one pass over all pairs, and are taken for the records that need it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.core.jacobian import Alternatives, FiniteChanges, Moves
from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError
from seepage.glm.fitting.batched_refits import BatchedRefits, Change
from seepage.glm.fitting.objective import FittedGLM, Objective, cholesky_factor
from seepage.glm.jacobian.optimum import near_zero
from seepage.glm.losses import Categorical, Family
from seepage.support.chunks import row_slices
from seepage.tables.source import as_numpy

if TYPE_CHECKING:
    from seepage.glm.jacobian.operator import GLMJacobian

_WIDE = 0.04  # the relative width from which on a pass over pairs is worth its price
_ITERATIONS = 60
_SLACK = 1.0001
_PAIR_WORK = 1e12  # multiplications that passes over pairs may take for many alternatives
_PAIRS = 1 << 22  # numbers held at a time in a pass over pairs
_REFIT_ROUNDING = 1e-9  # of a refit, beside how far it moved
_ALONE = 1e-10  # the share of a record's curvature from which on the rest says nothing about it
_REFITTED = 1e11  # multiplications up to which models without each record are fitted for priors
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
            unknown = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))
            return self._at_most(unknown, rows, others)
        width = 2 * self.theta.size + 8 * K * (1 + (0 if others is None else len(others.columns)))
        centres = Centres.joined(
            [self._centres(rows[piece], others) for piece in row_slices(len(rows), width)]
        )
        radius = self._radius(centres, self._reach(centres) * centres.energy, None)
        size = np.sqrt(np.maximum(np.einsum("mkk->mk", centres.gram), 0.0))
        wide = np.flatnonzero(np.any(radius > _WIDE * size, axis=1))
        if not (others is None or others.values is None):  # every alternative is a pass of its own
            affordable = int(_PAIR_WORK / (self.X.size * K))
            wide = wide[np.argsort(-size[wide].max(axis=1), kind="stable")[:affordable]]
        if len(wide) and self.constant > 0 and self.shared is None:
            some = centres.of(wide)
            radius[wide] = np.minimum(
                radius[wide], self._radius(some, *self._over_pairs(rows[wide], some))
            )
        found = Moves(centres.gram, radius + self._rounding * size)
        return self._at_most(found, rows, others)

    def _at_most(self, moves: Moves, rows: np.ndarray, others: Alternatives | None) -> Moves:
        """Put moves without a certificate into the ball that strong convexity leaves them.

        Where every parameter is penalised, no minimiser is further than ``‖∇F'(θ̂)‖/ridge``.
        """
        lost = np.isinf(moves.radius)
        if not lost.any() or self.fit.ridge == 0 or self.fit.intercept is not None:
            return moves
        gram, radius = moves.gram.copy(), moves.radius.copy()
        for m in np.flatnonzero(lost.any(axis=1)):
            i = int(rows[m])
            gradient = -self._own_gradient(self.X[i : i + 1], self.target[i : i + 1], i)
            if others is not None:
                gradient = gradient + self._own_gradient(*self._replacements(i, others), i)
            far = self._whiten.largest() * np.linalg.norm(gradient, axis=1) / self.fit.ridge
            radius[m, lost[m]] = far[lost[m]]
            gram[m, lost[m], :] = 0.0
            gram[m, :, lost[m]] = 0.0
        return Moves(gram, radius)

    def _own_gradient(self, Z: np.ndarray, T: np.ndarray, row: int) -> np.ndarray:
        """Return the gradients of single records with the weight of a row, (K, P)."""
        slope = np.asarray(self.fit.family.slope(self.fit.margins(Z), T)).reshape(len(Z), -1)
        each = self._extended(Z)[:, :, None] * slope[:, None, :]
        return np.asarray(float(self.weight[row]) * each.reshape(len(Z), -1))

    def _centres(self, rows: np.ndarray, others: Alternatives | None) -> Centres:
        """Return the centres of some records' moves, and what a certificate needs of them.

        They are written in the basis of ``H⁻¹x̃`` and ``H⁻¹e`` of the columns that may change.
        """
        family, x = self._family, self.X[rows]
        where = [] if others is None else list(others.columns)
        V = self._solved(x)
        weight, pulled = self.weight[rows], self.weight[rows] * self.slopes[rows]
        bent = self.weight[rows] * self.curvatures[rows]
        by_inverse = np.empty((len(rows), 1 + len(where), 1 + len(where)))
        by_inverse[:, 0, 0] = np.sum(V * self._extended(x), axis=1)
        by_inverse[:, 0, 1:] = by_inverse[:, 1:, 0] = V[:, where]
        by_inverse[:, 1:, 1:] = self.inverse[where][:, where]
        by_noise = _gram_of(self._whiten(V), self._whiten(self.inverse[where]))
        features = self.X.shape[1]
        by_penalty = _gram_of(V[:, :features], self.inverse[where][:, :features])
        q = by_inverse[:, 0, 0]
        alone = (1 - bent * q <= _ALONE) & (weight > 0)
        free = np.where(alone, 1.0, 1 - bent * q)
        own = None
        coefs = (pulled / free)[:, None, None]
        if others is not None:
            change = np.zeros((len(rows), len(others), 0))
            if others.values is not None:
                change = self._near(others)[None, :, :] - x[:, None, where]
            labels = self.target[rows][:, None] if others.labels is None else others.labels[None, :]
            labels = np.broadcast_to(labels, change.shape[:2])
            xz = q[:, None] + np.einsum("mkc,mc->mk", change, by_inverse[:, 0, 1:])
            along = 1 + (bent / free)[:, None] * xz  # H₀⁻¹z̃ = along·H⁻¹x̃ + change·H⁻¹e
            z = np.concatenate([np.ones_like(along)[..., None], change], axis=2)
            zz = _quadratic(z, by_inverse) + (bent / free)[:, None] * xz**2
            given = self.margins[rows][:, None] + change @ self.theta[where]
            given = given + (pulled / free)[:, None] * xz
            margin = own_margin(family, given, weight[:, None] * zz, labels)
            slope = weight[:, None] * np.asarray(family.slope(margin, labels))
            z[:, :, 0] = along
            coefs = coefs * (np.arange(z.shape[2]) == 0) - slope[..., None] * z
            coefs[np.all(change == 0, axis=2) & (labels == self.target[rows][:, None])] = 0.0
            own = OwnRecord(
                zz,
                weight[:, None] * np.asarray(family.curvature(margin, labels)),
                np.sqrt(np.maximum(_quadratic(z, by_noise), 0.0)),
            )
        on_own = np.einsum("mkb,mb->mk", coefs, by_inverse[:, 0, :])
        energy = np.maximum(_quadratic(coefs, by_inverse) - bent[:, None] * on_own**2, 0.0)
        norm = np.maximum(energy - self.fit.ridge * _quadratic(coefs, by_penalty), 0.0)
        gram = np.einsum("mkb,mbc,mlc->mkl", coefs, by_noise, coefs)
        sight = np.sqrt(np.maximum(by_noise[:, 0, 0] * q, 0.0))
        return Centres(
            where,
            np.where(alone[:, None, None], 0.0, gram),
            coefs,
            np.sqrt(energy),
            np.sqrt(norm),
            free,
            np.where(alone, np.inf, self._spread + bent * sight / free),
            own,
        )

    def _radius(
        self, centres: Centres, largest: np.ndarray, fourth: np.ndarray | None
    ) -> np.ndarray:
        """Return how far from its centre each move may be, in the noise's unit, (m, K).

        ``largest`` and ``fourth`` are ``S`` (or more) and ``Q``, where known.
        """
        M, R = self.constant or 0.0, self._reach(centres)
        per_error = np.repeat(centres.per_error[:, None], largest.shape[1], axis=1)
        still = np.isfinite(per_error) & np.all(centres.coefs == 0, axis=2)
        if M == 0:
            return np.where(np.isinf(per_error), np.inf, 0.0)

        def image(E: np.ndarray) -> np.ndarray:
            S = M * (largest + R * E)
            first = _kappa(S) * (centres.norm + E)
            if fourth is not None:
                first = np.minimum(first, M * _psi(S) * (fourth + np.sqrt(R) * E) ** 2)
            return np.asarray(first)

        with np.errstate(over="ignore", invalid="ignore"):
            E = np.zeros_like(largest)
            for _ in range(_ITERATIONS):
                E = image(E)
            E = _SLACK * E
            E = np.where(image(E) <= E, E, np.inf)  # overflow is no certificate
            radius = per_error * E
            if centres.own is not None:
                radius = radius + centres.own.per_error(M, E) * E
        return np.where(still, 0.0, np.where(np.isnan(radius), np.inf, radius))

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
        for piece in row_slices(m, len(self.X) * (1 if single else K), chunk=_PAIRS):
            some = centres.of(piece)
            if single:
                directions = self._solved(self.X[rows[piece]])
            else:
                directions = self._moves_at(rows[piece], some).reshape(-1, self.theta.size)
            shift = self._times(directions.T)
            own = np.repeat(rows[piece], 1 if single else K)
            shift[own, np.arange(len(own))] = 0.0
            shift[self.weight == 0] = 0.0
            shift *= shift
            S = np.sqrt(np.max(shift, axis=0)).reshape(len(rows[piece]), -1)
            shift *= shift
            Q = (bent @ shift).reshape(S.shape) ** 0.25
            scale = np.abs(some.coefs[:, :, 0]) if single else 1.0
            largest[piece], fourth[piece] = S * scale, Q * scale
        return largest, fourth

    def _moves_at(self, rows: np.ndarray, centres: Centres) -> np.ndarray:
        """Return the centres themselves, (m, K, P)."""
        moves = centres.coefs[:, :, :1] * self._solved(self.X[rows])[:, None, :]
        return np.asarray(moves + centres.coefs[:, :, 1:] @ self.inverse[centres.columns])

    def log_likelihoods(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        """Return how likely the model fitted without a record finds it with each alternative."""
        family = self.fit.family
        if family.name not in ("bernoulli", "poisson", "categorical"):
            raise InputError(
                f"The {family.name} family states no probabilities, so the model gives no prior; "
                "choose 'equal', 'frequencies' or probabilities of your own."
            )
        if self.constant is not None and len(rows) * self.work > _REFITTED:
            # A belief, not a measurement: the centre is as good a prediction as the refit.
            moves = self._moves_at(rows, self._centres(rows, None))[:, 0, :]
        else:
            moves = self.refits.moves([Change(np.array([i])) for i in rows])
        moves = np.where(np.isfinite(moves), moves, 0.0)
        found = np.empty((len(rows), len(others)))
        for m, i in enumerate(rows):
            Z, T = self._replacements(int(i), others)
            theta = self.theta + moves[m].reshape(self.theta.shape)
            found[m] = -np.asarray(family.loss(self._extended(Z) @ theta, T))
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

    @cached_property
    def _largest(self) -> float:
        """The largest ``x̃ᵀH⁻¹x̃`` of the records that count."""
        return self.largest_here() if self.shared is None else self.shared.largest

    def largest_here(self) -> float:
        """Return the largest ``x̃ᵀH⁻¹x̃`` of the records at hand."""
        norms = [
            np.sum(self._solved(self.X[rows]) * self._extended(self.X[rows]), axis=1)
            for rows in row_slices(*self.X.shape)
        ]
        return float(np.max(np.concatenate(norms)[self.weight > 0], initial=0.0))

    @cached_property
    def _spread(self) -> float:
        """``‖Φ^½H⁻¹X̃ᵀD^½‖``: what an error of the slopes makes of the move, at most."""
        penalised = self.inverse[:, : self.X.shape[1]]
        inner = self.inverse - self.fit.ridge * penalised @ penalised.T
        seen = self._whiten(self._whiten(inner).T)
        return float(np.sqrt(max(np.linalg.eigvalsh((seen + seen.T) / 2)[-1], 0.0)))

    @cached_property
    def _rounding(self) -> float:
        """What rounding may leave of a move, beside its size."""
        sizes = np.sqrt(np.diag(self.inverse))
        scaled = self.inverse / (sizes[:, None] * sizes[None, :])
        return 16 * _EPS * float(np.linalg.cond(scaled))

    @property
    def _family(self) -> Family:
        family = self.fit.family
        assert isinstance(family, Family)  # noqa: S101 - told to the type checker
        return family

    def _ones(self, x: np.ndarray) -> np.ndarray:
        return np.ones((len(x), 0 if self.fit.intercept is None else 1))

    def _extended(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, self._ones(x)], axis=1)

    def _solved(self, x: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹x̃`` of rows, (m, P)."""
        features = self.X.shape[1]
        return np.asarray(x @ self.inverse[:features] + self.inverse[features:].sum(axis=0))

    def _times(self, directions: np.ndarray) -> np.ndarray:
        """Return ``X̃ D``, (n, B)."""
        features = self.X.shape[1]
        return np.asarray(self.X @ directions[:features] + directions[features:].sum(axis=0))


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
        from seepage.glm.leakage import one_row_jacobian

        X, target, d = self.X.copy(), np.array(self.target), self.X.shape[1]
        X[row], target[row] = features, label
        intercept = None if self.fit.intercept is None else theta[d, ...]
        fit = replace(self.fit, target=target, coef=theta[:d, ...], intercept=intercept)
        return one_row_jacobian(fit, X, row, noise)


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
    largest: float  # x̃ᵀH⁻¹x̃ over all of them


@dataclass(frozen=True)
class OwnRecord:
    """What the record in another's place adds to the error, (m, K) each."""

    norm: np.ndarray  # z̃ᵀH₀⁻¹z̃
    curvature: np.ndarray  # at the centre, with its weight
    sight: np.ndarray  # ‖Φ^½H₀⁻¹z̃‖

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
    free: np.ndarray  # 1 − ω a x̃ᵀH⁻¹x̃, (m,)
    per_error: np.ndarray  # how far E moves the release; infinite where the rest says nothing, (m,)
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


_PER_RECORD = ("gram", "coefs", "energy", "norm", "free", "per_error")


def _parts(own: OwnRecord) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return own.norm, own.curvature, own.sight


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


def _gram_of(V: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Return the inner products of one vector for each record and c shared ones, (m, 1+c, 1+c)."""
    out = np.empty((len(V), 1 + len(C), 1 + len(C)))
    out[:, 0, 0] = np.sum(V * V, axis=1)
    out[:, 0, 1:] = out[:, 1:, 0] = V @ C.T
    out[:, 1:, 1:] = C @ C.T
    return out


def _quadratic(coefs: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return ``cᵀGc`` of each, (m, K)."""
    return np.asarray(np.einsum("mkb,mbc,mkc->mk", coefs, gram, coefs))


def _kappa(u: np.ndarray) -> np.ndarray:
    """Return ``(eᵘ − 1 − u)/u``."""
    return np.asarray(u * _psi(u))


def _psi(u: np.ndarray) -> np.ndarray:
    """Return ``(eᵘ − 1 − u)/u²``, by its series where the difference would cancel."""
    series = 0.5 + u / 6 + u * u / 24 + u**3 / 120 + u**4 / 720
    safe = np.where(u > 1e-2, u, 1.0)
    return np.asarray(np.where(u > 1e-2, (np.expm1(safe) - safe) / (safe * safe), series))
