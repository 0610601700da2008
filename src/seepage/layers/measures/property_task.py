"""A property to be predicted from gradients: folds, held-out predictions, intervals and tests."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.layers.measures.property_labels import read_property
from seepage.layers.measures.recalibration import recalibrated

_FLOOR = 1e-6  # of probabilities in the paper's estimate, whose logarithms are taken as they come


@dataclass(frozen=True)
class PropertyTask:
    """A property to predict, and the folds in which it is predicted."""

    labels: np.ndarray
    classes: int
    fold: np.ndarray
    groups: np.ndarray | None
    seed: int

    @staticmethod
    def read(property: Any, groups: Any, count: int, folds: int, seed: int) -> PropertyTask:
        """Check what was handed in, and assign the folds."""
        from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

        levels, labels = read_property(property, count, "gradients")
        if len(levels) < 2:
            raise InputError(
                "All gradients have the same property: there is nothing to tell apart."
            )
        if levels.dtype.kind == "f" and len(levels) > max(20, count // 10):
            raise InputError(
                f"property takes {len(levels)} different values; V-information is about classes, "
                "so put them into classes first (numpy.digitize)."
            )
        if folds < 2:
            raise InputError(f"folds must be at least 2, not {folds}.")
        fewest = int(np.bincount(labels).min())
        if fewest < folds:
            raise InputError(
                f"{folds} folds need at least {folds} gradients of every class of the property, "
                f"but the rarest, {levels[np.bincount(labels).argmin()]}, has {fewest}; record "
                "more, or use fewer folds."
            )
        member = None if groups is None else _read_groups(groups, count, folds)
        splitter = StratifiedKFold if member is None else StratifiedGroupKFold
        fold = np.empty(count, dtype=int)
        cut = splitter(folds, shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # classes rarer than groups are met below
            for k, (_, rows) in enumerate(cut.split(labels[:, None], labels, member)):
                fold[rows] = k
        for k in range(folds):
            if len(np.unique(labels[fold != k])) < len(levels):
                raise InputError(
                    "A class of the property occurs in too few groups: some fold leaves none of it "
                    "to learn from. Use fewer folds."
                )
        return PropertyTask(labels, len(levels), fold, member, seed)

    def entropy(self) -> float:
        """Return the entropy of the property, the loss of the best constant prediction."""
        shares = np.bincount(self.labels) / len(self.labels)
        return float(-np.sum(shares * np.log(shares)))

    def held_out(self, classifier: Any, block: np.ndarray) -> np.ndarray:
        """Return log-probabilities for every record by predictors that have not seen it."""
        found = np.empty((len(block), self.classes))
        for k in np.unique(self.fold):
            out = self.fold == k
            found[out] = self._predict(classifier, block, ~out, out)
        logs = np.empty_like(found)
        for k in np.unique(self.fold):
            out = self.fold == k
            logs[out] = recalibrated(found[~out], self.labels[~out], found[out])
        return logs

    def training_loss(self, classifier: Any, block: np.ndarray) -> float:
        """Return the mean log-loss on the very records that the predictor has learnt from."""
        rows = np.ones(len(block), dtype=bool)
        found = self._predict(classifier, block, rows, rows)
        own = found[np.arange(len(block)), self.labels]
        return float(-np.log(np.clip(own, _FLOOR, 1.0)).mean())

    def interval(self, losses: np.ndarray, resamples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the 95 % interval of every layer's information.

        The information is the mean over the records of ``log f[g](p) − log f[∅](p)``; records, or
        groups of them, are drawn anew. The ends of the percentile interval are then moved away from
        the estimate by :func:`small_sample_factor`, the upper one no further than the entropy.
        Where there is nothing to find, the estimates are skewed and the interval stays too short:
        that question is for :meth:`permuted`.
        """
        draw = np.random.default_rng((self.seed, 1))
        units = np.arange(len(self.labels)) if self.groups is None else self.groups
        number = int(units.max()) + 1
        shares = np.bincount(self.labels) / len(self.labels)
        gains = -np.log(shares)[self.labels] - losses
        found = np.empty((resamples, len(losses)))
        for k in range(resamples):
            weights = np.bincount(draw.integers(number, size=number), minlength=number)[units]
            found[k] = gains @ weights / max(1, weights.sum())
        ends = np.percentile(found, [2.5, 97.5], axis=0)
        middle = gains.mean(axis=1)
        low, high = middle + small_sample_factor(number) * (ends - middle)
        return low, np.minimum(high, self.entropy())

    def permuted(self, logs: np.ndarray, observed: np.ndarray, permutations: int) -> np.ndarray:
        """Return for every layer the share of permutations that do as well, plus one of each."""
        draw = np.random.default_rng((self.seed, 2))
        relabelled = self._within_folds if self.groups is None else self._among(self.groups)
        as_good = np.ones(len(logs))
        rows = np.arange(len(self.labels))
        for _ in range(permutations):
            loss = -logs[:, rows, relabelled(draw)].mean(axis=1)
            as_good += loss <= observed + 1e-12
        return np.asarray(as_good / (permutations + 1))

    def _within_folds(self, draw: np.random.Generator) -> np.ndarray:
        return np.asarray(self.labels[_shuffled_within(self.fold, draw)])

    def _among(self, groups: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Return what permutes labels without tearing groups of one label apart."""
        _, first = np.unique(groups, return_index=True)
        label, fold = self.labels[first], self.fold[first]
        number = len(first)
        alike = np.bincount(groups, self.labels == label[groups], number)
        uniform = alike == np.bincount(groups, minlength=number)
        # Groups of several labels are each a fold of their own here: they keep their place.
        cell = np.where(uniform, fold, self.fold.max() + 1 + np.arange(number))
        own = uniform[groups]

        def relabelled(draw: np.random.Generator) -> np.ndarray:
            exchanged = label[_shuffled_within(cell, draw)]
            within = self.labels[_shuffled_within(groups, draw)]
            return np.asarray(np.where(own, exchanged[groups], within))

        return relabelled

    def _predict(
        self, classifier: Any, block: np.ndarray, learn: np.ndarray, apply: np.ndarray
    ) -> np.ndarray:
        from sklearn.base import clone
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # any member of the family will do
            try:
                model = clone(classifier).fit(block[learn], self.labels[learn])
            except ValueError as error:
                raise InputError(
                    f"The family cannot learn from {int(learn.sum())} gradients ({error}); record "
                    "more, or use another family."
                ) from error
        found = np.zeros((int(apply.sum()), self.classes))
        found[:, model.classes_] = model.predict_proba(block[apply])
        return found


def small_sample_factor(units: int) -> float:
    """Return ``√(G/(G−1)) · t/z``, by which a percentile bootstrap of ``G`` units is too narrow.

    Resampled means of ``G`` units vary by ``(G−1)/G`` of the estimated variance of their mean, and
    the quantiles belong to Student's law with ``G − 1`` degrees of freedom, not to the normal one:
    with both put right, the interval for a mean is Student's.

    Examples
    --------
    >>> from seepage.layers.measures.property_task import small_sample_factor
    >>> round(small_sample_factor(5), 3), round(small_sample_factor(1000), 3)
    (1.584, 1.002)
    """
    from scipy.special import ndtri, stdtrit

    ratio = stdtrit(units - 1, 0.975) / ndtri(0.975)
    return float(math.sqrt(units / (units - 1)) * ratio)


def _shuffled_within(cells: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return a random permutation that leaves every position in its cell."""
    shuffled = np.empty(len(cells), dtype=int)
    # Sorting random numbers within each cell shuffles it.
    shuffled[np.argsort(cells, kind="stable")] = np.lexsort((draw.random(len(cells)), cells))
    return shuffled


def _read_groups(groups: Any, count: int, folds: int) -> np.ndarray:
    levels, member = read_property(groups, count, "gradients", called="groups")
    if len(levels) < folds:
        raise InputError(
            f"{len(levels)} groups cannot be dealt out to {folds} folds; use fewer folds."
        )
    return member
