"""Changes of a model when its balanced class weights are recomputed for changed records.

Removing record i of class c has two effects: the class weights become those for one record fewer in
class c, and the objective loses the record's term. So one fit on all records, with these new
weights, serves all records of the class. Let ``θ_c`` be its minimiser and ``δ_i`` the change of
that fit when record i is removed. The release changes by::

    (θ_c − θ̂) + δ_i

The first term is the same for the whole class. The certificates and refits for ``δ_i`` are those of
:mod:`~seepage.glm.changes.changed_records`. For groups and changed labels, each change of the class
sizes requires a separate ``θ``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from seepage.core.finite_changes import (
    Alternatives,
    FiniteChanges,
    Moves,
)
from seepage.core.noise import Noise
from seepage.errors import InputError
from seepage.glm.changes.batched_refits import Change
from seepage.glm.changes.changed_records import ChangedRecords, RefittedMoves
from seepage.glm.changes.local_model import LocalModel, in_numpy
from seepage.glm.fitting.balance import ClassBalance
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective
from seepage.glm.jacobian.optimum import Optimum, optimum
from seepage.support.double_double import EPS


class _Shifted(NamedTuple):
    """A fit with different class weights, and its difference from the release."""

    changes: ChangedRecords
    offset: np.ndarray  # ``θ_c − θ̂`` in units of the noise, (P,)
    error: float  # of its length


class RebalancedRecords(FiniteChanges):
    """The finite changes of a GLM's release with ``class_weight="balanced"``."""

    def __init__(
        self,
        found: Optimum,
        X: Any,
        noise: tuple[Noise, ...],
        balance: ClassBalance,
    ) -> None:
        self._fixed = ChangedRecords(LocalModel(found, X, noise))  # with the weights as they are
        self.records, self.work = self._fixed.records, self._fixed.work
        self.target = self._fixed.target
        self._balance, self._optimum, self._noise = balance, found, noise
        self._fit, self._X = in_numpy(found.fit, X)
        self._known: dict[bytes, _Shifted | None] = {}

    @property
    def fixed(self) -> ChangedRecords:
        """The finite changes with fixed class weights."""
        return self._fixed

    def class_labels(self) -> np.ndarray:
        """Return the labels that a classifier's record may have."""
        return self._fixed.class_labels()

    def moves(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return certified bounds on the changes if each record changes, or is left out.

        Class weights depend only on labels. The errors are therefore infinite for changed labels,
        which require refits.
        """
        if others is None:
            moves = Moves(np.full((len(rows), 1, 1), np.inf), np.zeros((len(rows), 1)))
            for fit, which in self._by_fit(rows):
                if fit is not None:
                    moves.put(which, self._certified(fit, rows[which]))
            return moves
        if others.labels is None:
            return self._fixed.moves(rows, others)
        if rows.dtype == object:
            return self.moves_exactly(rows, others)
        model = self._fixed.model
        still = model.unchanged(rows, *model.changes(rows, others))
        moves = self._fixed.moves(rows, others)
        return Moves(moves.gram, np.where(still, 0.0, np.inf))

    def moves_exactly(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the changes of :meth:`moves`, computed by refits."""
        if others is None:
            return self._left_out(rows)
        if others.labels is None:
            return self._fixed.moves_exactly(rows, others)
        return self._relabelled(rows, others)

    # Records that leave -----------------------------------------------------------------------

    def _certified(self, fit: _Shifted, rows: np.ndarray) -> Moves:
        """Return the changes when records are removed from one fit, relative to the release."""
        changes = fit.changes
        moves = changes.moves(rows)
        centres, _ = changes.starts(rows, None)
        if centres is None:  # no family with a certificate; what is known surrounds the fit
            centres = np.zeros((len(rows), 1, len(changes.model.inverse)))
        seen, size = changes.model.seen(centres), moves.expected()
        # Where the other records determine nothing, or without a centre, there is no bound.
        same = np.abs(np.linalg.norm(seen, axis=2) - size) <= 1e-6 * size
        radius = np.where(same, moves.radius + fit.error, np.inf)
        return RefittedMoves(seen + fit.offset, radius, np.isinf(size)).moves()

    def _left_out(self, rows: np.ndarray) -> Moves:
        """Return the changes when records are left out, alone or together, computed by refits."""
        moves = Moves(np.full((len(rows), 1, 1), np.inf), np.zeros((len(rows), 1)))
        for fit, which in self._by_fit(rows):
            if fit is None:
                continue
            leaving = [Change(np.atleast_1d(some)) for some in rows[which]]
            every = np.ones((len(leaving), 1), dtype=bool)
            found = fit.changes.refitted(leaving, every, *fit.changes.starts(rows[which], None))
            moves.put(which, _from_release(found, fit, every).moves())
        return moves

    def _by_fit(self, rows: np.ndarray) -> Iterator[tuple[_Shifted | None, np.ndarray]]:
        """Yield the fits from which records are removed, and the positions of these records."""
        left = [self._balance.sizes - self._balance.of(np.atleast_1d(some)) for some in rows]
        yield from self._by_sizes(np.stack(left))

    # Records that change ----------------------------------------------------------------------

    def _relabelled(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the changes for each alternative label, computed by refits."""
        model, balance, K = self._fixed.model, self._balance, len(others)
        places, every = self._classes_of(others), [np.atleast_1d(some) for some in rows]
        seen = np.zeros((len(every), K, model.theta.size))
        found = RefittedMoves(seen, np.zeros(seen.shape[:2]), np.zeros(seen.shape[:2], dtype=bool))
        moved, sizes = [], []
        for m, some in enumerate(every):
            changed = balance.classes[some][:, None] != places
            for k in np.flatnonzero(changed.any(axis=0)):
                moved.append((m, k))
                sizes.append(balance.sizes - balance.of(some))
                sizes[-1][places[k]] += balance.counted[some].sum()
        at, left = np.array(moved, dtype=int).reshape(-1, 2), np.array(sizes)
        labels = np.asarray(others.labels, dtype=float)
        for fit, which in self._by_sizes(left):
            m, k = at[which].T
            if fit is None:
                found.lost[m, k] = True
                continue
            # The records come back with the weight of their new class.
            factors = balance.factors(left[which[0]])
            changes = []
            for some, new in zip((every[i] for i in m), k, strict=True):
                own = np.repeat(labels[new][None], len(some), axis=0)
                weight = balance.own[some] * factors[places[new]]
                changes.append(Change(some, fit.changes.model.X[some], own, weight))
            alone = np.ones((len(which), 1), dtype=bool)
            _, stay = fit.changes.starts(rows[m], None)
            there = _from_release(fit.changes.refitted(changes, alone, None, stay), fit, alone)
            found.seen[m, k], found.radius[m, k] = there.seen[:, 0], there.radius[:, 0]
            found.lost[m, k] = there.lost[:, 0]
        return found.moves()

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each alternative's log-likelihood in the fit without the record, with errors."""
        scores, off = np.zeros((len(rows), len(others))), np.zeros(len(rows))
        for fit, which in self._by_fit(rows):
            if fit is None:
                raise InputError(
                    f"Row {np.atleast_1d(rows[which[0]])[0]} is the only record of its class, so "
                    "no model fitted without it predicts that class; choose another prior, or "
                    "exclude the row with rows=."
                )
            scores[which], off[which] = fit.changes.log_likelihoods(rows[which], others, refits)
        return scores, off

    def _classes_of(self, others: Alternatives) -> np.ndarray:
        """Return the class position of each label, of shape (K,)."""
        labels = np.asarray(others.labels, dtype=float)
        known = np.asarray(self.target, dtype=float)
        return np.array(
            [self._balance.classes[_first_equal(known, label)] for label in labels], dtype=int
        )

    # Fits with other weights ------------------------------------------------------------------

    def _by_sizes(self, sizes: np.ndarray) -> Iterator[tuple[_Shifted | None, np.ndarray]]:
        """Yield one fit for all changes that lead to the same class sizes."""
        if not len(sizes):
            return
        different, which = np.unique(sizes, axis=0, return_inverse=True)
        for k, left in enumerate(different):
            yield self._fit_with(left), np.flatnonzero(which.reshape(-1) == k)

    def _fit_with(self, sizes: np.ndarray) -> _Shifted | None:
        """Return the fit with the class weights for these class sizes, if it exists."""
        key = sizes.tobytes()
        if key not in self._known:
            if len(self._known) >= 16:  # each holds about as much as the table
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._found(sizes)
        return self._known[key]

    def _found(self, sizes: np.ndarray) -> _Shifted | None:
        balance, plain = self._balance, self._fixed.model
        if balance.empties(sizes):  # a class without records: another model, or none
            return None
        fit = replace(self._fit, sample_weight=balance.weights(sizes), balance=None)
        objective = Objective.of(fit, self._X)
        theta = minimise(objective, np.asarray(fit.parameters), fit.feature_names).parameters
        found = optimum(fit.at(theta), objective, self._noise[0], "warn")
        here, there = (np.asarray(one.fit.parameters) for one in (self._optimum, found))
        outputs = plain.outputs
        moved = outputs.of_all(outputs.within(there - here).reshape(-1))
        # Both are minimisers up to rounding.
        rounding = 8 * EPS * max(found.condition, self._optimum.condition)
        error = plain.seen.largest * min(rounding, 1.0) * float(np.linalg.norm(here))
        changes = ChangedRecords(LocalModel(found, self._X, self._noise))
        return _Shifted(changes, _released(plain, moved), error)


def _released(model: LocalModel, moved: np.ndarray) -> np.ndarray:
    """Convert a parameter change for the caller's columns to units of the noise."""
    root = model.seen.root
    return np.asarray(moved @ root.T if root.ndim == 2 else moved * root)


def _from_release(found: RefittedMoves, fit: _Shifted, moved: np.ndarray) -> RefittedMoves:
    """Convert changes of another fit to changes of the release."""
    return replace(
        found,
        seen=np.where(moved[:, :, None], found.seen + fit.offset, found.seen),
        radius=np.where(moved, found.radius + fit.error, found.radius),
    )


def _first_equal(known: np.ndarray, label: np.ndarray) -> int:
    """Return the first record with a given label; every class has at least one."""
    same = known == label
    return int(np.argmax(same if same.ndim == 1 else same.all(axis=1)))
