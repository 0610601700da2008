"""The Jacobian of a linear model's release with respect to raw columns, through preprocessing.

With ``x = T(z; φ)`` and the model's own Jacobian ``J_i`` by the features of record i, the Jacobian
by its raw columns is ``J_i ∂T/∂z`` if what the steps learnt, φ, counts as public (frozen). If the
whole procedure is rerun, φ moves as well, and all records with it (refitted)::

    J_i ∂T_i/∂z_i + K ∂φ/∂z_i,      K = Σ_k J_k ∂T_k/∂φ
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core.jacobian import (
    Alternatives,
    EntryJacobian,
    FiniteChanges,
    MeasuredRelease,
    Moves,
    ReleaseJacobian,
    every_row,
)
from seepage.core.noise import Noise
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.glm.changes.changed_records import RefittedMoves
from seepage.glm.changes.local_model import Whitening
from seepage.glm.preprocessing.raw_columns import FollowedColumns
from seepage.tables.source import Array, Chunk

_FEATURES = Unknowns(None, False)
_EVERYTHING = Unknowns(None, True)


class RawJacobian(EntryJacobian):
    """The Jacobian by the directions of raw columns; a record has ``features`` of them.

    Parameters
    ----------
    inner
        The Jacobian by the features.
    followed
        The raw columns.
    X
        The raw table as numbers, (n, t), for showing records.
    refitted
        Whether what the preprocessing learnt moves with the records.
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
        """Return the whitened Jacobians of some rows in full, ``(m, P, q)``."""
        which = np.arange(self.rows)[rows]
        J = np.asarray(self.inner.row_jacobians(_EVERYTHING, which))
        width = J.shape[2] - self.label_size
        raw = J[:, :, :width] @ self.followed.moves[which]
        if self._by_learnt is not None:
            raw = raw + self._by_learnt @ self.followed.learnt_moves[which]
        raw = unknowns.of(raw, axis=2)
        return np.concatenate([raw, J[:, :, width:]], axis=2) if unknowns.label else raw

    def with_label_step(self, step: float) -> RawJacobian:
        """Return the same Jacobian with the label counted in steps of this size."""
        other = copy(self)
        other.inner = self.inner.with_label_step(step)
        return other


@dataclass(frozen=True)
class RawRelease(MeasuredRelease):
    """The parameters of a model with noise, as the raw columns of its pipeline see them."""

    inner: MeasuredRelease
    template: RawJacobian
    refitted: bool
    noise: tuple[Noise, ...] = ()

    @property
    def anew(self) -> tuple[str, ...]:  # type: ignore[override]
        """What finite changes of the model choose anew."""
        return self.inner.anew

    @property
    def kept(self) -> tuple[str, ...]:  # type: ignore[override]
        """What they hold fixed besides when a record leaves."""
        return self.inner.kept

    @property
    def model(self) -> Any:
        """None: bounds that ask for the model's features would mistake the raw columns for them."""
        return None

    def jacobian(self, chunk: Chunk) -> RawJacobian:
        """Return the Jacobian about the table in memory, which is one chunk."""
        return self.template

    def finite_changes(self) -> FiniteChanges:
        """Return how far the release moves when a record leaves, with preprocessing frozen."""
        if self.refitted:
            raise InputError(
                "What the whole procedure would release without a record takes rerunning it; "
                "leave out refit='model', or take preprocessing='frozen'."
            )
        return RawChanges(self.inner.finite_changes(), self)


class RawChanges(FiniteChanges):
    """Records that leave, or change their label or a raw column, with the preprocessing frozen."""

    def __init__(self, inner: FiniteChanges, release: RawRelease) -> None:
        self.inner, self._release = inner, release
        self.records, self.work, self.target = inner.records, inner.work, inner.target

    @property
    def fixed(self) -> FiniteChanges:
        """The same with everything held fixed."""
        return RawChanges(self.inner.fixed, self._release)

    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out."""
        return self.inner.without(rows)

    def without_exactly(self, rows: np.ndarray) -> Moves:
        """Return the same by refits."""
        return self.inner.without_exactly(rows)

    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves with each alternative; of a raw column by refits, which are exact."""
        if not others.columns:
            return self.inner.replaced(rows, others)
        return self.replaced_exactly(rows, others)

    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the same by refits."""
        if not others.columns:
            return self.inner.replaced_exactly(rows, others)
        if rows.dtype == object:
            raise InputError(
                "With the preprocessing held fixed, a raw column of all records of a person is not "
                "guessed; leave out person=, or let the procedure be refitted."
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
        """Return how likely the model fitted without a record finds it with each label."""
        if others.columns:
            raise InputError(
                "With the preprocessing held fixed, what the model believes of a raw column is not "
                "known; choose 'equal', 'frequencies' or probabilities of your own."
            )
        return self.inner.log_likelihoods(rows, others, refits)

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record of a classifier may have."""
        return self.inner.class_labels()
