"""What an attribute-inversion attack achieved: its accuracy, by record and by group of records."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.attacks.attribute.intervals import Interval, accuracy_interval, stratified_difference
from seepage.errors import InputError
from seepage.tables.frames import as_numpy


@dataclass(frozen=True)
class Accuracy:
    """The accuracy over one group of records, with its 95 % confidence interval."""

    group: Hashable
    rows: int
    accuracy: float
    interval: Interval


@dataclass(frozen=True, eq=False, repr=False)
class InversionResult:
    """Which guesses of an adversary were right, for every release and record.

    The per-record accuracies depend on the data and are themselves sensitive: do not publish them.

    Parameters
    ----------
    adversary
        Who guessed.
    attribute
        What was to be guessed.
    levels
        How many levels it has.
    hits
        Whether the guess was right, (T, n): by release and record (T = 1 for an adversary that
        looks at no release).
    kind
        ``attack``: a demonstration that this much can be inferred, never that no more can be.
    """

    adversary: str
    attribute: str
    levels: int
    hits: np.ndarray
    kind: str = "attack"

    @property
    def accuracy(self) -> float:
        """The share of right guesses, over all releases and records."""
        return float(self.hits.mean())

    @property
    def interval(self) -> Interval:
        """The 95 % confidence interval of :attr:`accuracy`, over releases and records.

        See :mod:`seepage.attacks.attribute.intervals` for what it counts.
        """
        return accuracy_interval(self.hits)

    @property
    def row_accuracy(self) -> np.ndarray:
        """The share of the releases that give each record away, (n,)."""
        return np.asarray(self.hits.mean(axis=0))

    @property
    def trial_accuracy(self) -> np.ndarray:
        """The share of the records that each release gives away, (T,)."""
        return np.asarray(self.hits.mean(axis=1))

    def by(self, groups: Any) -> list[Accuracy]:
        """Return the accuracy in each group of records, in sorted order of their labels.

        Parameters
        ----------
        groups
            One label per record, such as the decile of its leakage.
        """
        labels = self._labels(groups)
        out = []
        for label in np.unique(labels).tolist():
            hits = self.hits[:, labels == label]
            out.append(Accuracy(label, hits.shape[1], float(hits.mean()), accuracy_interval(hits)))
        return out

    def difference(
        self, groups: Any, first: Hashable, second: Hashable, strata: Any = None
    ) -> tuple[float, Interval]:
        """Return how much more accurate the guesses are in one group than in another.

        With it comes the 95 % confidence interval of the difference, which takes into account that
        both groups were attacked through the same releases.

        Parameters
        ----------
        groups
            One label per record.
        first, second
            The two that are compared.
        strata
            One label per record, such as its true level: records of the same label are compared
            with each other, and each label counts by its share of all records that were attacked.
        """
        labels = self._labels(groups)
        layers = np.zeros(len(labels)) if strata is None else self._labels(strata)
        for group in (first, second):
            for layer in np.unique(layers):
                if not np.any((labels == group) & (layers == layer)):
                    where = "" if strata is None else f" with the label {layer.item()!r}"
                    raise InputError(f"No record{where} belongs to the group {group!r}.")
        return stratified_difference(
            [
                (
                    float(np.mean(layers == layer)),
                    self.hits[:, (labels == first) & (layers == layer)],
                    self.hits[:, (labels == second) & (layers == layer)],
                )
                for layer in np.unique(layers)
            ]
        )

    def _labels(self, groups: Any) -> np.ndarray:
        labels = as_numpy(groups)
        if labels.shape != self.hits.shape[1:]:
            raise InputError(
                f"{self.hits.shape[1]} records were attacked, but groups has the shape "
                f"{labels.shape}; give one label per record."
            )
        return labels

    def __repr__(self) -> str:
        trials, rows = self.hits.shape
        low, high = self.interval
        times = f" in {trials:,} releases" if trials > 1 else ""
        return (
            f"<{self.adversary} on {self.attribute} ({self.levels} levels): accuracy "
            f"{self.accuracy:.4f}, 95 % interval {low:.4f} to {high:.4f}, {rows:,} records{times}>"
        )
