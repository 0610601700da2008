"""V-information: how much a given kind of adversary can read about a property off each layer.

For a family V of predictors (paper 003, equation 1, after Xu et al. 2020)::

    I_V(G_l → p) = inf_f mean(−log f[∅](p)) − inf_f mean(−log f[g_l](p))

The first term is the entropy of the property. The second is estimated on gradients that the
predictor has not seen: cross-fitting over folds, with probabilities recalibrated on other folds.
The paper takes both infima on the training set; that number comes along as
``training_set_estimate``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.gradients import WIDTH, LayerGradients
from seepage.layers.measures.classifiers import find_classifier
from seepage.layers.measures.per_layer import PerLayer
from seepage.layers.measures.property_batches import read_property
from seepage.support.chunks import progress

_UNITS = {"nats": 1.0, "bits": math.log(2)}
_BELOW = (
    "An estimate on records the predictor has not seen can come out below zero where there is "
    "nothing to find."
)
_FLOOR = 1e-6  # of probabilities in the paper's estimate, whose logarithms are taken as they come
_STEEPEST, _FURTHEST = 5.0, 20.0


def v_information(
    gradients: LayerGradients | Mapping[str, Any] | Any,
    property: Any,
    *,
    family: Any = "random_forest",
    groups: Any = None,
    folds: int = 5,
    unit: str = "nats",
    resamples: int = 1000,
    permutations: int = 999,
    width: int = WIDTH,
    seed: int = 0,
) -> PerLayer:
    """Return the V-information about a property that each layer's gradients carry.

    The intervals are percentile intervals over resampled records (or groups) with the predictors
    held as they are, widened about the estimate by ``√(G/(G−1)) · t/z`` for ``G`` groups (or
    records), with ``t`` and ``z`` the 97.5 % points of Student's law with ``G − 1`` degrees of
    freedom and of the normal law: a bootstrap of few groups falls short of their spread by the
    first factor and does not know that the spread is estimated, which is the second. With five
    groups they cover the mean of the estimate about 92 times in 100, and far less often where there
    is nothing to find, since estimates are skewed there: ask the test.

    The column ``p_value`` tests that a layer carries nothing: labels are permuted within each fold,
    the predictors being those of the other folds. With groups, those whose gradients all have one
    label exchange it as a whole, and the others shuffle theirs within the group, so that likeness
    within a group is not taken for information.

    Parameters
    ----------
    gradients
        Recorded gradients (:func:`record_gradients`), a mapping of layer names to arrays
        ``(n, size)``, or one array; lists will do for arrays.
    property
        The property of every gradient, ``(n,)``: two or more classes.
    family
        ``"logistic"``, ``"random_forest"``, ``"gradient_boosting"``, ``"mlp"``, or any classifier
        of scikit-learn with ``predict_proba``.
    groups
        Gradients of the same group (client, person, pool of records) stay in one fold, ``(n,)``.
        Without this, gradients that share records are told apart by these records.
    folds
        Of the cross-fitting.
    unit
        ``"nats"`` or ``"bits"``.
    resamples, permutations
        For the interval and the test.
    width
        Arrays with more columns are projected to this many at random, which the result says.
    seed
        Of folds, projections, predictors, resamples and permutations.

    Examples
    --------
    >>> import numpy as np, seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> p = np.arange(400) % 2
    >>> seen = {"fc1": draw.standard_normal((400, 3)) + 2 * p[:, None], "fc2": np.ones((400, 2))}
    >>> found = layers.v_information(seen, p, family="logistic")
    >>> found.ranking()
    ['fc1', 'fc2']
    >>> 0.5 < found["fc1"] < 0.694
    True
    """
    if unit not in _UNITS:
        raise InputError(f"unit must be 'nats' or 'bits', not {unit!r}.")
    if resamples < 1 or permutations < 1:
        raise InputError("resamples and permutations must be at least 1.")
    if not isinstance(gradients, LayerGradients | Mapping):
        gradients = {"gradient": gradients}
    seen = LayerGradients.of(gradients, width=width, seed=seed)
    classifier = find_classifier(family, seed)
    task = PropertyTask.read(property, groups, len(seen), folds, seed)
    scores, trained = [], []
    for layer in progress(seen.layers, "V-information"):
        scores.append(task.held_out(classifier, seen[layer]))
        trained.append(task.entropy() - task.training_loss(classifier, seen[layer]))
    logs = np.stack(scores)  # (layers, n, classes)
    losses = -logs[:, np.arange(len(seen)), task.labels]
    values = task.entropy() - losses.mean(axis=1)
    low, high = task.interval(losses, resamples)
    scale = _UNITS[unit]
    name = family.replace("_", " ") if isinstance(family, str) else type(family).__name__
    return PerLayer(
        f"V-information, {name}",
        seen.layers,
        values / scale,
        low / scale,
        high / scale,
        tuple(seen.sizes.values()),
        "estimate",
        unit,
        columns={
            "p_value": task.permuted(logs, losses.mean(axis=1), permutations),
            "training_set_estimate": np.array(trained) / scale,
            "entropy": np.full(len(seen.layers), task.entropy() / scale),
            "columns": [seen[layer].shape[1] for layer in seen.layers],
        },
        notes=(_BELOW, *seen.projection_notes()),
    )


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


def recalibrated(fitted_on: np.ndarray, labels: np.ndarray, applied_to: np.ndarray) -> np.ndarray:
    """Return honest log-probabilities for ``applied_to``, ``(m, K)``, learnt from other gradients.

    From probabilities ``q`` one passes to ``p_k ∝ exp(a log q_k + b_k)`` with ``a ≥ 0``. With a = 0
    this is a constant, so that the best constant prediction always belongs to the family, as the
    definition of V-information asks ("optional ignorance", Xu et al. 2020). A negative slope is
    left out: it would turn the slight opposition between a fold's classes and its complement's
    into information.

    Parameters
    ----------
    fitted_on
        Held-out probabilities, ``(n, K)``.
    labels
        The true classes of these, 0 to K − 1.
    applied_to
        Probabilities to correct, ``(m, K)``.
    """
    n, classes = fitted_on.shape
    floor = 1.0 / (2 * n)
    logs, wanted = _logs(fitted_on, floor), np.eye(classes)[labels]
    shares = (wanted.sum(axis=0) + 0.5) / (n + 0.5 * classes)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scores = _log_softmax(theta[0] * logs + theta[1:])
        errors = np.exp(scores) - wanted
        slope = np.concatenate([[np.sum(errors * logs)], errors.sum(axis=0)]) / n
        return -float(np.sum(scores * wanted)) / n, slope

    from scipy.optimize import minimize

    best = None
    # From the constant as well: a steep start may end on the way down to it.
    for slope in (0.0, 1.0):
        offsets = np.log(shares) * (1 - slope)
        found = minimize(
            objective,
            np.concatenate([[slope], offsets]),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, _STEEPEST)] + [(-_FURTHEST, _FURTHEST)] * classes,
        )
        best = found if best is None or found.fun < best.fun else best
    assert best is not None  # noqa: S101  the loop ran
    sure = np.exp(_log_softmax(best.x[0] * _logs(applied_to, floor) + best.x[1:]))
    # n records never make anyone surer than n to one: a single surprise must not cost the earth.
    doubt = 1.0 / (n + 1)
    return np.asarray(np.log((1 - doubt) * sure + doubt * shares))


def small_sample_factor(units: int) -> float:
    """Return ``√(G/(G−1)) · t/z``, by which a percentile bootstrap of ``G`` units is too narrow.

    Resampled means of ``G`` units vary by ``(G−1)/G`` of the estimated variance of their mean, and
    the quantiles belong to Student's law with ``G − 1`` degrees of freedom, not to the normal one:
    with both put right, the interval for a mean is Student's.

    Examples
    --------
    >>> from seepage.layers.measures.v_information import small_sample_factor
    >>> round(small_sample_factor(5), 3), round(small_sample_factor(1000), 3)
    (1.584, 1.002)
    """
    from scipy.special import ndtri, stdtrit

    ratio = stdtrit(units - 1, 0.975) / ndtri(0.975)
    return float(math.sqrt(units / (units - 1)) * ratio)


def _read_groups(groups: Any, count: int, folds: int) -> np.ndarray:
    levels, member = read_property(groups, count, "gradients", called="groups")
    if len(levels) < folds:
        raise InputError(
            f"{len(levels)} groups cannot be dealt out to {folds} folds; use fewer folds."
        )
    return member


def _shuffled_within(cells: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return a random permutation that leaves every position in its cell."""
    shuffled = np.empty(len(cells), dtype=int)
    # Sorting random numbers within each cell shuffles it.
    shuffled[np.argsort(cells, kind="stable")] = np.lexsort((draw.random(len(cells)), cells))
    return shuffled


def _logs(probabilities: np.ndarray, floor: float) -> np.ndarray:
    kept = np.maximum(probabilities, floor)
    return np.asarray(np.log(kept / kept.sum(axis=1, keepdims=True)))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
