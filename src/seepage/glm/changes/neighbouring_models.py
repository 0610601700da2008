"""The models of tables that differ from a fitted table in a few records, and their largest leakage.

Let ``G_i`` be the Jacobian of record i's gradient (:mod:`seepage.glm.jacobian.operator`), which the
fit whitens by ``A``, and let ``G_i′`` and ``A′`` belong to the model of the other table. For every
record that is in both tables::

    ‖A′G_i′‖ ≤ ‖A′A⁻¹‖ (‖A G_i‖ + ‖A (G_i′ − G_i)‖),      G = [E ⊗ r + x̃ ⊗ a Wᵀ, x̃ ⊗ b]

Let the record's margins shift by t, with a span of s. Then its curvature a changes by a factor
between ``e^−Ms`` and ``e^Ms``. So its slope r, the integral of the curvature, changes by at most
``‖a‖ ‖t‖ e^Ms``, and a by at most ``‖a‖ (e^Ms − 1)``. With a canonical link, b is constant::

    ‖A (G_i′ − G_i)‖ ≤ ‖a‖ [‖A E‖ ‖t‖ e^Ms + ‖A x̃‖ ((e^Ms − 1) ‖W′‖ + ‖W′ − W‖)]

The squares of these bounds add up over the records of a person. A label in units k times as large
multiplies the leakage by at most ``max(1, k)``. Only records whose bound exceeds the largest
leakage computed so far can have a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seepage.core.jacobian import Unknowns
from seepage.core.noise import Gaussian
from seepage.core.questions import members
from seepage.glm.changes.batched_refits import Change
from seepage.glm.changes.changed_records import ChangedRecords
from seepage.glm.changes.local_model import LocalModel, callers_moves
from seepage.glm.fitting.objective import FittedGLM, Objective, sums_at
from seepage.glm.jacobian.operator import PlainJacobians
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices

_CANONICAL = ("bernoulli", "gaussian", "poisson")


class NeighbouringModels:
    """The models of neighbouring tables, at σ = 1.

    Parameters
    ----------
    fit, X
        A model that minimises its objective, and its table.
    unknowns, label_step
        The unknowns of a record, and the unit of the label.
    eta
        The leakage of every record or, if records have owners, of every owner.
    owner
        The number of the owner of every record, if owners may have several records.
    """

    def __init__(
        self,
        fit: FittedGLM,
        X: np.ndarray,
        unknowns: Unknowns,
        label_step: float,
        eta: np.ndarray,
        owner: np.ndarray | None = None,
    ) -> None:
        self.fit, self.X, self.owner = fit, X, owner
        self._unknowns, self._label_step, self._eta = unknowns, label_step, eta
        self.here = PlainJacobians(fit, X, Gaussian(1.0))
        # Without a penalty, or far from zero, there is more to check than these methods do; and the
        # bound has to exceed the errors of ordinary arithmetic.
        self.usable = bool(
            fit.ridge > 0
            and fit.tilt is None
            and (isinstance(fit.family, Categorical) or fit.family.name in _CANONICAL)
            and self.here.optimum.centre is None
            and self.here.optimum.accuracy < 1e-7
        )
        if self.usable:
            self._records = ChangedRecords(LocalModel(self.here.optimum, X, (Gaussian(1.0),)))
            # The sizes of the terms of all records' Jacobians
            terms = self.here(slice(None)).terms
            direct = terms.columns_of(self._unknowns)
            self._direct = float(np.linalg.norm(direct.reshape(len(direct), -1), 2))
            self._unwhitened = np.linalg.inv(self.here.whitener.matrix)
            self._lengths, self._curvature = np.empty((2, len(X)))
            for piece in row_slices(len(X), terms.outputs * terms.size):
                seen, curvature = terms.seen(piece), terms.derivatives(piece)[1]
                self._lengths[piece] = np.linalg.norm(seen, axis=(1, 2))
                self._curvature[piece] = np.linalg.norm(curvature, axis=(1, 2))

    def change(
        self, removed: np.ndarray, features: np.ndarray | None = None, labels: Any = None
    ) -> Change:
        """Return the change that leaves records out, or gives them other features and labels."""
        weight = self._records.model.weight[removed]
        if features is not None:
            return Change(removed, features, labels, weight)
        n = len(self.X)  # the penalty is λ per record
        return Change(removed, ridge=self.fit.ridge * (n - len(removed)) / n)

    def moves(self, changes: list[Change]) -> np.ndarray:
        """Return the changes of the parameters, (B, P); not finite where they are not certain."""
        model = self._records.model
        moves = model.outputs.of_all(self._records.parameter_changes(changes))
        return callers_moves(moves, model.centre)

    def largest(
        self, change: Change, move: np.ndarray, label_step: float, allowed: np.ndarray
    ) -> float:
        """Return the largest ``η/allowed`` in a changed table, whose parameters change by ``move``.

        ``allowed`` has one number for each record, or owner, in the changed table.
        """
        fit, X, owner, removed = self.fit, self.X, self.owner, change.removed
        target, who = np.asarray(fit.target), removed if owner is None else owner[removed]
        bounds = self._bounds(move)
        bounds[who] = np.inf
        if change.features is None:
            X, target = (np.delete(values, removed, axis=0) for values in (X, target))
            bounds = np.delete(bounds, who)
            owner = None if owner is None else np.delete(owner, removed)
        else:
            X, target = X.copy(), target.copy()
            X[removed], target[removed] = change.features, change.labels
        ridge = fit.ridge if change.ridge is None else change.ridge
        theta = fit.parameters + move.reshape(fit.parameters.shape)
        fit = replace(fit, target=target, ridge=ridge).at(theta)
        # Columns near zero are not shifted, as in the whole table.
        sums = sums_at(Objective.of(fit, X), theta, ("hessian",))
        there = PlainJacobians(fit, X, Gaussian(1.0), sums)
        larger = float(np.linalg.norm(there.whitener.matrix @ self._unwhitened, 2))
        larger *= max(1.0, label_step / self._label_step) * (1 + 1e-6)  # for rounding
        blocks: Sequence[np.ndarray] | None = None
        if owner is not None:
            blocks = list(members(owner).values())
        return there.largest_ratio(
            self._unknowns, label_step, allowed, larger * bounds / allowed, blocks
        )

    def _bounds(self, move: np.ndarray) -> np.ndarray:
        """Return the bound in brackets above on the leakage of every record, or owner."""
        fit, d, n = self.fit, self.X.shape[1], len(self.X)
        by_column = move.reshape(-1, *fit.parameters.shape[1:])
        shift = self.X @ by_column[:d]
        if fit.intercept is not None:
            shift += by_column[d]
        shift = shift.reshape(n, -1)
        size = np.linalg.norm(shift, axis=1)
        span = np.ptp(shift, axis=1) if shift.shape[1] > 1 else size
        coef, change = (np.asarray(v).reshape(d, -1) for v in (fit.coef, by_column[:d]))
        after, moved = (
            float(np.linalg.norm(self._unknowns.of(v))) for v in (coef + change, change)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            bent = np.expm1(self._records.model.constant * span)
            off = self._direct * size * (1 + bent) + self._lengths * (bent * after + moved)
            off *= self._curvature
        if self.owner is None:
            return np.asarray(self._eta + off)
        return np.asarray(self._eta + np.sqrt(np.bincount(self.owner, off * off)))
