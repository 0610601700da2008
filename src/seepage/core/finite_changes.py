"""How far a release moves when a record leaves or is another: what a release must answer for risks.

Small changes are the Jacobian's business; here a record leaves the table altogether, or has another
category, class or number. With noise of information ``Φ``, a change that moves the release by ``δ``
puts it ``‖Φ^½δ‖`` away from where it is, in the noise's own unit, and inner products of such
moves are all that :mod:`seepage.risks` asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from seepage.errors import InputError


@dataclass(frozen=True)
class Moves:
    """Where K changes of each of m records put the release, seen from where it is.

    Parameters
    ----------
    gram
        Inner products of the whitened moves, ``(m, K, K)``; infinite on the diagonal where a change
        leaves no release at all.
    radius
        How far from there each may truly be, ``(m, K)``: zero but for rounding where exact, and
        infinite where nothing is known.
    """

    gram: np.ndarray
    radius: np.ndarray

    def __add__(self, other: Moves) -> Moves:
        """Return the moves of two independent releases together: squared distances add."""
        return Moves(self.gram + other.gram, np.hypot(self.radius, other.radius))

    def put(self, where: np.ndarray, other: Moves) -> None:
        """Replace the moves of some records."""
        self.gram[where], self.radius[where] = other.gram, other.radius

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the most that each change moves the release, ``(m, K)`` each."""
        centre = np.sqrt(np.maximum(np.einsum("mkk->mk", self.gram), 0.0))
        with np.errstate(invalid="ignore"):
            least = np.where(np.isinf(self.radius), 0.0, np.maximum(centre - self.radius, 0.0))
        least = np.where(np.isinf(centre) & np.isfinite(self.radius), np.inf, least)
        return least, centre + self.radius


@dataclass(frozen=True)
class Alternatives:
    """What a record might have been: K values of some columns, or K labels.

    Parameters
    ----------
    columns
        The columns that may be others, by position.
    values
        Their values, ``(K, len(columns))``.
    labels
        The labels as the model takes them, ``(K, …)``; the record's own where not given.
    """

    columns: tuple[int, ...] = ()
    values: np.ndarray | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels if self.values is None else self.values)  # type: ignore[arg-type]


class FiniteChanges(ABC):
    """How far one release moves under finite changes of single records.

    Attributes
    ----------
    records
        How many records there are.
    work
        About how many multiplications one refit takes.
    target
        The labels as the model takes them.
    """

    records: int
    work: float
    target: np.ndarray

    @abstractmethod
    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out, K = 1, certified."""

    @abstractmethod
    def without_exactly(self, sets: list[np.ndarray]) -> Moves:
        """Return the moves when records leave together, by refits."""

    @abstractmethod
    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves when each of some records is each of the alternatives, certified."""

    @abstractmethod
    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the same by refits."""

    @abstractmethod
    def log_likelihoods(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        """Return how likely the model fitted without a record finds it with each alternative.

        Logarithms, up to a constant for each record, ``(m, K)``.
        """

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record of a classifier may have, ``(K, …)``."""
        raise InputError("The label of this model is a number, not a class; use leak.within().")


class ComposedChanges(FiniteChanges):
    """Several independent releases under the same changes."""

    def __init__(self, parts: list[FiniteChanges]) -> None:
        self.parts = parts
        self.records, self.target = parts[0].records, parts[0].target
        self.work = sum(part.work for part in parts)

    def without(self, rows: np.ndarray) -> Moves:
        """Return the moves when each of some records is left out."""
        return _sum([part.without(rows) for part in self.parts])

    def without_exactly(self, sets: list[np.ndarray]) -> Moves:
        """Return the moves when records leave together, by refits."""
        return _sum([part.without_exactly(sets) for part in self.parts])

    def replaced(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the moves when each of some records is each of the alternatives."""
        self._check(others)
        return _sum([part.replaced(rows, others) for part in self.parts])

    def replaced_exactly(self, rows: np.ndarray, others: Alternatives) -> Moves:
        """Return the same by refits."""
        self._check(others)
        return _sum([part.replaced_exactly(rows, others) for part in self.parts])

    def log_likelihoods(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        """Refuse: several models predict differently."""
        raise InputError("What the model predicts is asked of one release; give another prior.")

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record may have."""
        return self.parts[0].class_labels()

    def _check(self, others: Alternatives) -> None:
        same = all(
            part.target.shape == self.target.shape and bool(np.all(part.target == self.target))
            for part in self.parts
        )
        if others.labels is not None and not same:
            raise InputError(
                "These releases have different labels, so a guess of the label is no guess about "
                "all of them; ask one by one."
            )


def _sum(moves: list[Moves]) -> Moves:
    total = moves[0]
    for other in moves[1:]:
        total = total + other
    return total
