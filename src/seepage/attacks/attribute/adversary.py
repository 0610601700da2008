"""Base class of attribute inference adversaries, and the result of their attacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from seepage.attacks.attribute.nominal import NominalAttribute
from seepage.attacks.intervals import ConfidenceInterval, accuracy_interval, stratified_difference
from seepage.attacks.noisy_releases import Releases
from seepage.errors import InputError
from seepage.support.chunks import row_slices
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, ResultNumbers
from seepage.tables.source import (
    Table,
    as_numpy,
    build_frame,
    check_finite,
    check_length,
    read_table,
)


class AttributeInversion(ABC):
    """An adversary who infers a nominal attribute of records from a release and known columns.

    ``fit`` accepts the data that the adversary knows. ``predict`` guesses the level of every target
    row from the label and the other columns. ``attack`` also compares the guesses with the
    attribute's true values. A subclass defines the score of each level.

    Parameters
    ----------
    attribute
        The attribute to infer.
    """

    name = "adversary"

    def __init__(self, attribute: NominalAttribute) -> None:
        self.attribute = attribute

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the adversary on rows ``X``, which include the attribute, and labels ``y``."""
        self._known = read_table(X)
        self._levels = self.attribute.read(self._known.values)
        self._labels = as_numpy(y)
        check_length(self._labels, self._known, "y")
        self.n_features_in_ = self._known.values.shape[1]
        with np.errstate(divide="ignore"):  # −∞ for a level that no record has
            counts = np.bincount(self._levels, minlength=len(self.attribute))
            self.log_prior_ = np.log(counts / len(self._levels))
        return self

    def _prepare(self, release: Any) -> tuple[Any, int]:
        """Return the properties of the releases that scoring needs, and the number of releases.

        By default, the adversary ignores the releases: the result is ``(None, 1)``.
        """
        return None, 1

    @abstractmethod
    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        """Return the scores of all K levels for a chunk of b target rows.

        The scores have the shape (T, b, K) for T releases, or (1, b, K) if the adversary ignores
        the releases. ``X``, (b, d), and ``y``, (b,), are the rows and labels of the chunk, with
        zeros in the attribute's columns; ``rows`` is the chunk's slice of the target rows. The
        level with the highest score is guessed.
        """

    def predict(self, X: Any, y: Any, release: Any = None) -> np.ndarray:
        """Guess the level of every target row.

        Parameters
        ----------
        X
            The target rows, (n, d). The attribute's columns are ignored, and may be NaN.
        y
            Their labels, (n,).
        release
            A released model, or many releases (:class:`Releases`). :class:`Prior` and
            :class:`Ideal` ignore this argument.

        Returns
        -------
        numpy.ndarray
            The position of the guessed level in ``attribute.levels``, (n,); (T, n) for T releases
            (:class:`Releases`). If levels tie, the first is guessed.
        """
        guesses = self._guess(X, y, release)
        if isinstance(release, Releases):
            return np.broadcast_to(guesses, (len(release), len(guesses[0])))
        return np.asarray(guesses[0])

    def attack(self, X: Any, y: Any, release: Any = None) -> InversionResult:
        """Guess the level of every target row and compare the guess with the true level.

        The parameters are those of :meth:`predict`, but the attribute's columns must contain the
        true values.
        """
        truth = self.attribute.read(X)
        hits = self._guess(X, y, release) == truth
        return InversionResult(self.name, self.attribute.name, len(self.attribute), hits)

    def _guess(self, X: Any, y: Any, release: Any) -> np.ndarray:
        """Return the guessed levels, (T, n)."""
        if not hasattr(self, "n_features_in_"):
            raise InputError(
                f"This {type(self).__name__} has not been fitted; call fit with the adversary's "
                "data first."
            )
        table, labels = self._read_targets(X, y)
        prepared, trials = self._prepare(release)
        d, K = table.values.shape[1], len(self.attribute)
        guesses = np.empty((trials, len(table)), dtype=np.min_scalar_type(K))
        width = self._chunk_width(d, trials)
        for rows in row_slices(len(table), width, what=f"{self.name} attack"):
            chunk = self._without_attribute(table, rows)
            guesses[:, rows] = np.argmax(self._scores(chunk, labels[rows], rows, prepared), axis=2)
        return guesses

    def _chunk_width(self, d: int, trials: int) -> int:
        """Return the approximate number of values stored in memory to score one row."""
        return d + 3 * trials * len(self.attribute)

    def _read_targets(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        table = read_table(X, check=False)
        if table.values.shape[1] != self.n_features_in_:
            raise InputError(
                "The adversary was fitted on a table with "
                f"{counted(self.n_features_in_, 'column')}, but X has {table.values.shape[1]}; "
                "pass rows with the same columns."
            )
        labels = as_numpy(y)
        check_length(labels, table, "y")
        return table, labels

    def _without_attribute(self, table: Table, rows: slice) -> np.ndarray:
        """Return a chunk of the table with zeros in the attribute's columns."""
        chunk = np.array(as_numpy(table.values[rows, :]), dtype=float)
        chunk[:, self.attribute.columns] = 0.0
        check_finite(Table(chunk, table.names, None, table.library))
        return chunk

    def __repr__(self) -> str:
        return f"<{self.name} adversary on {self.attribute!r}>"


@dataclass(frozen=True)
class Accuracy:
    """The accuracy in one group of records, with its 95 % confidence interval."""

    group: Hashable
    rows: int
    accuracy: float
    interval: ConfidenceInterval


@dataclass(frozen=True, eq=False, repr=False)
class InversionResult(ResultNumbers):
    """The result of an attribute inference attack: which guesses are correct.

    The per-record accuracies depend on the data and are themselves sensitive: do not publish them.

    Parameters
    ----------
    adversary
        The name of the adversary.
    attribute
        The name of the attribute.
    levels
        The number of levels of the attribute.
    hits
        Whether the guess was correct, by release and record, (T, n); T = 1 if the adversary ignores
        the release.
    kind
        ``attack``: a lower bound on what can be inferred, never an upper bound.
    """

    adversary: str
    attribute: str
    levels: int
    hits: np.ndarray
    kind: str = "attack"

    value_column = "accuracy"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with the share of correct guesses about each record."""
        columns = {"row": np.arange(self.hits.shape[1]), "accuracy": self.row_accuracy}
        return build_frame(columns, library or "pyarrow")

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: every record's accuracy, in descending order."""
        order = np.argsort(-self.row_accuracy, kind="stable")
        name = f"{self.attribute}: accuracy of {self.adversary}"
        return PlottedNumbers(self.row_accuracy[order], order, name)

    @property
    def accuracy(self) -> float:
        """The share of correct guesses over all releases and records."""
        return float(self.hits.mean())

    @property
    def interval(self) -> ConfidenceInterval:
        """The 95 % confidence interval of :attr:`accuracy`, over releases and records.

        The formula is in :mod:`seepage.attacks.intervals`.
        """
        return accuracy_interval(self.hits)

    @property
    def row_accuracy(self) -> np.ndarray:
        """The share of releases from which each record's attribute is guessed correctly, (n,)."""
        return np.asarray(self.hits.mean(axis=0))

    @property
    def trial_accuracy(self) -> np.ndarray:
        """The share of records whose attribute is guessed correctly from each release, (T,)."""
        return np.asarray(self.hits.mean(axis=1))

    def by(self, groups: Any) -> list[Accuracy]:
        """Return the accuracy in each group of records, sorted by group label.

        Parameters
        ----------
        groups
            One label per record, such as the decile of the record's leakage.
        """
        labels = self._labels(groups)
        out = []
        for label in np.unique(labels).tolist():
            hits = self.hits[:, labels == label]
            out.append(Accuracy(label, hits.shape[1], float(hits.mean()), accuracy_interval(hits)))
        return out

    def difference(
        self, groups: Any, first: Hashable, second: Hashable, strata: Any = None
    ) -> tuple[float, ConfidenceInterval]:
        """Return the difference in accuracy between two groups.

        The result includes a 95 % confidence interval, which accounts for the releases that both
        groups share.

        Parameters
        ----------
        groups
            One label per record.
        first, second
            The two groups to compare.
        strata
            One label per record, such as the true level. Only records with the same label are
            compared, and each label is weighted by its share of all attacked records.
        """
        labels = self._labels(groups)
        layers = np.zeros(len(labels)) if strata is None else self._labels(strata, "strata")
        for group in (first, second):
            for layer in np.unique(layers):
                if not np.any((labels == group) & (layers == layer)):
                    where, each = "", ""
                    if strata is not None:
                        where, each = f" in the stratum {layer.item()!r}", " in every stratum"
                    raise InputError(
                        f"No record{where} belongs to the group {group!r}; name a group with "
                        f"records{each}."
                    )
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

    def _labels(self, groups: Any, name: str = "groups") -> np.ndarray:
        labels = as_numpy(groups)
        if labels.shape != self.hits.shape[1:]:
            raise InputError(
                f"{counted(self.hits.shape[1], 'record was', 'records were')} attacked, but {name} "
                f"has the shape {labels.shape}; give one label per record."
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
