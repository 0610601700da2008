"""The Jacobian of a linear model's release with respect to raw columns, through preprocessing.

Let ``x = T(z; φ)``, and let ``J_i`` be the model's Jacobian with respect to the features of record
i. The Jacobian with respect to the raw columns is ``J_i ∂T/∂z`` if the learnt parameters φ are
treated as public (frozen). If the whole procedure is rerun, φ also changes, and with it the
features of all records (refitted)::

    J_i ∂T_i/∂z_i + K ∂φ/∂z_i,      K = Σ_k J_k ∂T_k/∂φ
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core.finite_changes import (
    Alternatives,
    FiniteChanges,
    Moves,
)
from seepage.core.jacobian import (
    EntryJacobian,
    MeasuredRelease,
    ReleaseJacobian,
    Unknowns,
    every_row,
)
from seepage.core.noise import Noise
from seepage.errors import InputError
from seepage.glm.changes.changed_records import RefittedMoves
from seepage.glm.changes.local_model import Whitening
from seepage.glm.preprocessing.raw_columns import FollowedColumns
from seepage.tables.source import Array, Chunk

_FEATURES = Unknowns(None, False)
_EVERYTHING = Unknowns(None, True)


class RawJacobian(EntryJacobian):
    """The Jacobian with respect to the raw columns; each record has ``features`` directions.

    Parameters
    ----------
    inner
        The Jacobian with respect to the features.
    followed
        The raw columns.
    X
        The raw table as numbers, (n, t), used to display records.
    refitted
        Whether the learnt parameters of the preprocessing change with the records.
    """

    def __init__(
        self, inner: ReleaseJacobian, followed: FollowedColumns, X: np.ndarray, refitted: bool
    ) -> None:
        self.inner, self.followed, self.X = inner, followed, X
        self.target, self.label_size, self.size = inner.target, inner.label_size, inner.size
        self.rows, self.features = X.shape
        self._by_learnt: np.ndarray | None = None
        if refitted and len(followed.steps.learnt()):
            every = every_row(inner)
            moves = followed.moved_by_learnt
            self._by_learnt = np.stack(
                [np.asarray(inner.forward(move, _FEATURES, every)) for move in moves], axis=1
            )

    def row_jacobians(self, unknowns: Unknowns, rows: slice | Array) -> np.ndarray:
        """Return the full whitened Jacobians of these rows, ``(m, P, q)``."""
        which = np.arange(self.rows)[rows]
        J = np.asarray(self.inner.row_jacobians(_EVERYTHING, which))
        width = J.shape[2] - self.label_size
        raw = J[:, :, :width] @ self.followed.moves[which]
        if self._by_learnt is not None:
            raw = raw + self._by_learnt @ self.followed.learnt_moves[which]
        raw = unknowns.of(raw, axis=2)
        return np.concatenate([raw, J[:, :, width:]], axis=2) if unknowns.label else raw

    def with_label_step(self, step: float) -> RawJacobian:
        """Return the same Jacobian, with the label in units of this step."""
        other = copy(self)
        other.inner = self.inner.with_label_step(step)
        return other


@dataclass(frozen=True)
class RawRelease(MeasuredRelease):
    """The noisy parameters of a model, as a function of its pipeline's raw columns."""

    inner: MeasuredRelease
    template: RawJacobian
    refitted: bool
    noise: tuple[Noise, ...] = ()

    @property
    def anew(self) -> tuple[str, ...]:  # type: ignore[override]
        """The learnt values, such as class weights, that are recomputed when records change."""
        return self.inner.anew

    @property
    def kept(self) -> tuple[str, ...]:  # type: ignore[override]
        """The values, such as the total penalty, that stay fixed when a record is removed."""
        return self.inner.kept

    @property
    def model(self) -> Any:
        """``None``, because bounds from the model would mistake raw columns for features."""
        return None

    def jacobian(self, chunk: Chunk) -> RawJacobian:
        """Return the Jacobian for the table in memory, which is one chunk."""
        return self.template

    def finite_changes(self) -> FiniteChanges:
        """Return the change of the release when a record is removed, with frozen preprocessing."""
        if self.refitted:
            raise InputError(
                "Leaving a record out of the whole procedure requires reruns; omit refit='model', "
                "or use preprocessing='frozen'."
            )
        return RawChanges(self.inner.finite_changes(), self)


class RawChanges(FiniteChanges):
    """Finite changes of a release with frozen preprocessing: records left out or changed."""

    def __init__(self, inner: FiniteChanges, release: RawRelease) -> None:
        self.inner, self._release = inner, release
        self.records, self.work, self.target = inner.records, inner.work, inner.target

    @property
    def fixed(self) -> FiniteChanges:
        """The finite changes with class weights also held fixed."""
        return RawChanges(self.inner.fixed, self._release)

    def moves(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the parameter changes if each record changes, for a raw column by exact refits."""
        if others is None or not others.columns:
            return self.inner.moves(rows, others)
        return self.moves_exactly(rows, others)

    def moves_exactly(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the changes of :meth:`moves`, computed by refits."""
        if others is None or not others.columns:
            return self.inner.moves_exactly(rows, others)
        if rows.dtype == object:
            raise InputError(
                "With frozen preprocessing, guesses about a raw column that all records of a "
                "person share are not supported; omit person=, or use preprocessing='refitted'."
            )
        followed, refits = self._release.template.followed, self._release.inner.refits()
        features, moved = followed.features_with(rows, others)
        whiten = Whitening(self._release.noise, self._release.template.size)
        seen = np.zeros((*moved.shape, self._release.template.size))
        for m, row in enumerate(rows):
            seen[m] = refits.moves(int(row), features[m]).reshape(len(others), -1)
        lost = ~np.isfinite(seen).all(axis=2) & moved
        seen = whiten(np.where((moved & ~lost)[:, :, None], seen, 0.0))
        radius = 1e-9 * np.linalg.norm(seen, axis=2)
        return RefittedMoves(seen, radius, lost).moves()

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each label's log-likelihood under the model fitted without the record."""
        if others.columns:
            raise InputError(
                "With frozen preprocessing, the model cannot serve as a prior for a raw column; "
                "choose 'equal', 'frequencies' or your own probabilities."
            )
        return self.inner.log_likelihoods(rows, others, refits)

    def class_labels(self) -> np.ndarray:
        """Return the labels that a classifier's record may have."""
        return self.inner.class_labels()
