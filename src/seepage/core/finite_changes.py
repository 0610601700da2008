"""Finite changes: how far a release moves if records are left out or replaced.

A record is left out, or has another category, class or number. With noise of information ``Φ``, a
change of the release by ``δ`` has length ``‖Φ^½δ‖`` in units of the noise; :mod:`seepage.risks`
needs only inner products of these changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from seepage.errors import InputError


@dataclass(frozen=True)
class Moves:
    """The differences (moves) of a release under each of K changes to m records.

    Parameters
    ----------
    gram
        Inner products of the whitened moves, ``(m, K, K)``; the diagonal is infinite if the changed
        data have no unique fit.
    radius
        A bound on the error of each move, ``(m, K)``: only rounding if exact, infinite if unknown.
    least, most
        Bounds on the length of each move, ``(m, K)``, if tighter than those from the radius.
    """

    gram: np.ndarray
    radius: np.ndarray
    least: np.ndarray = None  # type: ignore[assignment]
    most: np.ndarray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.least is not None:
            return
        centre = self.expected()
        with np.errstate(invalid="ignore"):
            least = np.where(np.isinf(self.radius), 0.0, np.maximum(centre - self.radius, 0.0))
        least = np.where(np.isinf(centre) & np.isfinite(self.radius), np.inf, least)
        object.__setattr__(self, "least", least)
        object.__setattr__(self, "most", centre + self.radius)

    def __add__(self, other: Moves) -> Moves:
        """Return the joint moves of two independent releases: squared distances add up."""
        return Moves(
            self.gram + other.gram,
            np.hypot(self.radius, other.radius),
            np.hypot(self.least, other.least),
            np.hypot(self.most, other.most),
        )

    def put(self, where: np.ndarray | slice, other: Moves) -> None:
        """Replace the moves of some records."""
        self.gram[where], self.radius[where] = other.gram, other.radius
        self.least[where], self.most[where] = other.least, other.most

    def expected(self) -> np.ndarray:
        """Return the best estimate of how far each change moves the release, ``(m, K)``."""
        return np.asarray(np.sqrt(np.maximum(np.einsum("mkk->mk", self.gram), 0.0)))

    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on how far each change moves the release, ``(m, K)`` each."""
        return self.least, self.most

    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on the distance between the releases under two changes, ``(m,)`` each."""
        with np.errstate(invalid="ignore"):
            square = self.gram[:, 0, 0] + self.gram[:, 1, 1] - 2 * self.gram[:, 0, 1]
            between = np.sqrt(np.maximum(square, 0.0))
            radius = self.radius.sum(axis=1)
            least, most = np.maximum(between - radius, 0.0), between + radius
        lost = np.isinf(self.expected()).any(axis=1)
        least, most = np.where(lost, np.inf, least), np.where(lost, np.inf, most)
        for still, moved in ((0, 1), (1, 0)):  # one of them is the record as it is
            here = self.most[:, still] == 0
            least[here], most[here] = self.least[here, moved], self.most[here, moved]
        return least, most

    def between(self) -> np.ndarray:
        """Return upper bounds on the distance between every two changed releases, ``(m, K, K)``."""
        lengths = np.einsum("mkk->mk", self.gram)
        with np.errstate(invalid="ignore"):
            square = lengths[:, :, None] + lengths[:, None, :] - 2 * self.gram
            most = np.sqrt(np.maximum(square, 0.0))
            most += self.radius[:, :, None] + self.radius[:, None, :]
        still = self.most == 0  # the record as it is: the other's length is known best
        most = np.where(still[:, :, None], self.most[:, None, :], most)
        most = np.where(still[:, None, :], self.most[:, :, None], most)
        lost = np.isinf(self.expected())
        most = np.where(lost[:, :, None] | lost[:, None, :], np.inf, most)
        most[:, range(lengths.shape[1]), range(lengths.shape[1])] = 0.0
        return np.asarray(most)

    def of(self, where: np.ndarray) -> Moves:
        """Return the moves of the selected records."""
        return Moves(self.gram[where], self.radius[where], self.least[where], self.most[where])

    def scaled(self, factor: float) -> Moves:
        """Return the moves in units of a noise that is smaller by this factor."""
        if factor == 1:
            return self
        lengths = (factor * numbers for numbers in (self.radius, self.least, self.most))
        return Moves(factor**2 * self.gram, *lengths)


@dataclass(frozen=True)
class Alternatives:
    """The candidate values of a record: K rows of values for some columns, or K labels.

    Parameters
    ----------
    columns
        The columns that may differ, by position.
    values
        Their values, ``(K, len(columns))``.
    labels
        The labels in the model's format, ``(K, …)``; by default the record's own.
    """

    columns: tuple[int, ...] = ()
    values: np.ndarray | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels if self.values is None else self.values)  # type: ignore[arg-type]


class FiniteChanges(ABC):
    """Measures how far one release moves under finite changes to records.

    ``rows`` are positions of single records, or an object array of position arrays for records that
    are removed or changed together.

    Attributes
    ----------
    records
        The number of records.
    work
        The approximate number of multiplications in one refit.
    target
        The labels in the form the model uses.
    """

    records: int
    work: float
    target: np.ndarray

    @abstractmethod
    def moves(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return certified bounds on the moves if each record takes each alternative value.

        Without ``others``, each record is left out (K is 1).
        """

    @abstractmethod
    def moves_exactly(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the moves of :meth:`moves`, computed by refits."""

    @abstractmethod
    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the likelihood of each alternative under the model fitted without the record.

        Returns the log-likelihoods, ``(m, K)``, up to a constant for each record, and a bound on
        each record's error, ``(m,)``. ``refits`` limits the number of refits if there is also a
        method without refits.
        """

    @property
    def fixed(self) -> FiniteChanges:
        """The finite changes with the preprocessing and other choices held fixed."""
        return self

    def class_labels(self) -> np.ndarray:
        """Return the possible labels of a classifier's record, ``(K, …)``."""
        raise InputError("The label of this model is a number, not a class; use leak.within().")


class Reruns(FiniteChanges):
    """Measures how far a release moves if the whole procedure is rerun on changed records.

    Attributes
    ----------
    fits
        The number of models that one run fits.
    learnt
        What each run learns from the data in addition to the released numbers, as terms of
        ``Result.held``.
    kept
        Values that stay fixed in every run.
    """

    fits: int
    learnt: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @abstractmethod
    def released(self, kept: np.ndarray) -> np.ndarray:
        """Return the numbers that a fit on only these records releases, ``(P,)``.

        The numbers are NaN if no fit exists, or if they are not comparable with the original
        release.
        """


class ComposedChanges(FiniteChanges):
    """Measures the joint moves of several independent releases under the same changes."""

    def __init__(self, parts: list[FiniteChanges]) -> None:
        self.parts = parts
        self.records, self.target = parts[0].records, parts[0].target
        self.work = sum(part.work for part in parts)

    def moves(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the moves if each record takes each alternative value, or is left out."""
        self._check(others)
        return _sum([part.moves(rows, others) for part in self.parts])

    def moves_exactly(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the moves of :meth:`moves`, computed by refits."""
        self._check(others)
        return _sum([part.moves_exactly(rows, others) for part in self.parts])

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Raise an error, since several models give different predictions."""
        raise InputError("The prior 'model' needs a single release; give another prior.")

    @property
    def fixed(self) -> FiniteChanges:
        """The finite changes with all learnt values except the released numbers held fixed."""
        return ComposedChanges([part.fixed for part in self.parts])

    def class_labels(self) -> np.ndarray:
        """Return the labels that a record may have."""
        return self.parts[0].class_labels()

    def _check(self, others: Alternatives | None) -> None:
        same = all(
            part.target.shape == self.target.shape and bool(np.all(part.target == self.target))
            for part in self.parts
        )
        if others is not None and others.labels is not None and not same:
            raise InputError(
                "These releases have different labels, so there is no common label to guess; "
                "measure each release separately."
            )


def _sum(moves: list[Moves]) -> Moves:
    total = moves[0]
    for other in moves[1:]:
        total = total + other
    return total
