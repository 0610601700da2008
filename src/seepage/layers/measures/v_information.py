"""V-information: how much a family of predictors can infer about a property from each layer.

For a family V of predictors (Mo et al. 2021, equation 1, after Xu et al. 2020)::

    I_V(G_l → p) = inf_f mean(−log f[∅](p)) − inf_f mean(−log f[g_l](p))

Here ``G_l`` are the gradients of layer l, ``p`` is the property, and ``f[∅]`` is a prediction
without the gradient. The first term is the entropy of the property. The second term is estimated on
held-out gradients: by cross-fitting over folds, with probabilities recalibrated on other folds. The
paper computes both infima on the training set; that estimate is stored as
``training_set_estimate``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, ndtri, softmax, stdtrit

from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.client_identity import same_client
from seepage.layers.federated.gradients import WIDTH, LayerGradients
from seepage.layers.measures.classifiers import find_classifier
from seepage.layers.measures.independence_test import (
    LEVEL,
    TIE,
    Exchange,
    in_turn,
    over_all_groups,
)
from seepage.layers.measures.per_layer import PerLayer
from seepage.layers.measures.property_batches import read_property
from seepage.support.chunks import progress
from seepage.support.number_check import check_choice, check_count
from seepage.tables.names import counted

_UNITS = {"nats": 1.0, "bits": math.log(2)}
_BELOW = "If there is no information, a held-out estimate can be negative."


class FewGroupsWarning(UserWarning):
    """Warns that there are too few groups of gradients for the requested test or interval."""


@accepts_other_names
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
    """Return the V-information of each layer's gradients about a property.

    **The interval** has a nominal probability of 95 % of covering the family's information, if
    there are enough gradients to train on. In wide layers, for which gradients are too few, the
    interval covers the information attained by predictors trained on this many gradients. The
    interval is a bootstrap interval over gradients (or groups), widened for few groups
    (:func:`small_sample_factor`). The upper end is raised by two costs: learning from few gradients
    (extrapolated from predictors trained on fewer) and recalibration. The lower end, if above zero,
    is raised by the cost of recalibration alone. If the gain over a constant prediction is almost
    the same for all gradients (no information, or perfect prediction), the interval is widened. For
    example, ``0.000 (0.000 to 0.024)`` means that up to 0.024 nats may have been missed.

    **The column** ``p_value`` is from a test of independence between the layer and the property.
    Under independence, the P-value is below α with probability α (at most α for few groups), for
    any family. Predictors are trained on earlier folds and tested on later folds, in which labels
    are permuted. If all gradients in a group have one label, the group is permuted as a whole; in
    other groups, labels are shuffled within the group. Similarity within a group is therefore not
    mistaken for information. If every group has one label and a fold contains too few groups,
    labels are permuted over all groups, and a kernel ridge regression replaces the family. Ten
    groups, five in each class, can be labelled in 252 ways; five groups, of which two are in one
    class, can be labelled in 10 ways. If no P-value below 0.05 is possible, the result has a note
    and a :class:`FewGroupsWarning` is issued. P-values are not adjusted for the number of layers.

    Parameters
    ----------
    gradients
        Recorded gradients (:func:`record_gradients`), a mapping of layer names to arrays ``(n,
        size)``, or one array; lists are also accepted.
    property
        The property of every gradient, ``(n,)``, with two or more classes.
    family
        ``"logistic"``, ``"random_forest"``, ``"gradient_boosting"``, ``"mlp"``, or any scikit-learn
        classifier with ``predict_proba``.
    groups
        The group of each gradient (client, person, pool of records), ``(n,)``; gradients of one
        group are in the same fold. Without groups, a predictor can recognise gradients by the
        records they share. The default is the clients of the recording, if known. If a class of the
        property comes from only one client, there are no groups, and a warning is issued. ``False``
        means no groups.
    folds
        The number of folds for cross-fitting.
    unit
        ``"nats"`` or ``"bits"``.
    resamples, permutations
        The number of resamples for the interval, and of permutations for the test.
    width
        The largest number of columns; wider arrays are randomly projected to this width, with a
        note in the result.
    seed
        The seed of folds, projections, predictors, resamples and permutations.

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
    check_choice(unit, "unit", _UNITS)
    check_count(resamples, "resamples")
    check_count(permutations, "permutations")
    if not isinstance(gradients, LayerGradients | Mapping):
        gradients = {"gradient": gradients}
    seen = LayerGradients.of(gradients, width=width, seed=seed)
    classifier = find_classifier(family, seed)
    task, said = PropertyTask.grouped(property, groups, seen, folds, seed)
    exchange = Exchange.of(task.labels, task.fold, task.groups)
    ways = exchange.arrangements()
    if 1 / ways > LEVEL:
        said.append(_too_few(exchange, ways))
    for sentence in said:
        warnings.warn(sentence, FewGroupsWarning, stacklevel=2)
    draw = np.random.default_rng((seed, 2))
    drawn = [] if exchange.over_all() else exchange.drawn(permutations, draw)
    probabilities, logs, costs, trained, p_values = [], [], [], [], []
    for layer in progress(seen.layers, "V-information"):
        block = seen[layer]
        probabilities.append(task.held_out(classifier, block))
        earlier = task.in_turn(classifier, block, probabilities[-1][task.fold == task.fold.max()])
        calibrated, cost = task.recalibrated(probabilities[-1], earlier)
        logs.append(calibrated)
        costs.append(cost)
        trained.append(task.entropy() - task.training_loss(classifier, block))
        if exchange.over_all():
            p_values.append(over_all_groups(exchange, block, permutations, draw))
        else:
            p_values.append(in_turn(exchange, drawn, earlier, draw))
    losses = -np.stack(logs)[:, np.arange(len(seen)), task.labels]
    values = task.entropy() - losses.mean(axis=1)
    low, high = task.interval(losses, resamples)
    for k, scores in enumerate(probabilities):
        low[k], high[k] = task.true_at_the_extremes(low[k], high[k], losses[k], scores)
        high[k] = min(high[k] + costs[k], task.entropy())
        if low[k] > 0:
            low[k] = min(low[k] + task.recalibration_cost(), values[k])
    scale = _UNITS[unit]
    name = family.replace("_", " ") if isinstance(family, str) else type(family).__name__
    return PerLayer.of(
        f"V-information, {name}",
        seen.layers,
        np.stack([values, low, high]) / scale,
        tuple(seen.sizes.values()),
        kind="estimate",
        unit=unit,
        columns={
            "p_value": np.array(p_values),
            "training_set_estimate": np.array(trained) / scale,
            "entropy": np.full(len(seen.layers), task.entropy() / scale),
            "columns": [seen[layer].shape[1] for layer in seen.layers],
        },
        notes=(_BELOW, *said, *task.notes, *seen.projection_notes()),
        negligible=5e-4,  # reports give three decimals
    )


@dataclass(frozen=True)
class PropertyTask:
    """A property to predict, and the folds for cross-fitting."""

    labels: np.ndarray
    classes: int
    fold: np.ndarray
    groups: np.ndarray | None
    seed: int
    notes: tuple[str, ...] = ()

    @staticmethod
    def grouped(
        property: Any, groups: Any, seen: LayerGradients, folds: int, seed: int
    ) -> tuple[PropertyTask, list[str]]:
        """Return the task, grouped as given or by the recording's clients, and warnings."""
        given = None if groups is False else groups
        keys = same_client(seen) if groups is None else None
        if keys is None:
            return PropertyTask.read(property, given, len(seen), folds, seed), []
        nodes = np.unique(keys, return_inverse=True)[1]
        _, labels = read_property(property, len(seen), "gradients")
        if np.bincount(np.unique([labels, nodes], axis=1)[0]).min() < 2:
            words = (
                "A class of the property comes from a single node, so the gradients were not "
                "grouped by nodes. The results show how well that node can be distinguished from "
                "the others, by this property or any other difference."
            )
            return PropertyTask.read(property, None, len(seen), folds, seed), [words]
        count = int(nodes.max()) + 1
        task = PropertyTask.read(property, nodes, len(seen), min(folds, count), seed)
        note = f"The gradients were grouped by their {count} nodes."
        return replace(task, notes=(note,)), []

    @staticmethod
    def read(property: Any, groups: Any, count: int, folds: int, seed: int) -> PropertyTask:
        """Check the arguments, and assign the folds."""
        from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

        levels, labels = read_property(property, count, "gradients")
        if len(levels) < 2:
            raise InputError(
                "All gradients have the same property, so there is nothing to infer; record "
                "gradients of another class too."
            )
        if levels.dtype.kind == "f" and len(levels) > max(20, count // 10):
            raise InputError(
                f"property has {len(levels)} different values; V-information needs classes, so bin "
                "the values first (numpy.digitize)."
            )
        check_count(folds, "folds", 2)
        fewest = int(np.bincount(labels).min())
        if fewest < folds:
            raise InputError(
                f"{folds} folds need at least {folds} gradients of every class of the property, "
                f"but the rarest, {levels[np.bincount(labels).argmin()]}, has {fewest}; record "
                "more gradients, or use fewer folds."
            )
        member = None if groups is None else _read_groups(groups, count, folds)
        splitter = StratifiedKFold if member is None else StratifiedGroupKFold
        fold = np.empty(count, dtype=int)
        cut = splitter(folds, shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # classes in too few groups are refused below
            for k, (_, rows) in enumerate(cut.split(labels[:, None], labels, member)):
                fold[rows] = k
        for k in np.unique(fold):
            if len(np.unique(labels[fold != k])) < len(levels):
                raise InputError(
                    "A class of the property occurs in too few groups, so it is missing from the "
                    "training data of some fold; use fewer folds, or record more groups of it."
                )
        fold = np.unique(fold, return_inverse=True)[1]  # without empty folds
        return PropertyTask(labels, len(levels), fold, member, seed)

    def entropy(self) -> float:
        """Return the entropy of the property, which is the loss of the best constant prediction."""
        shares = np.bincount(self.labels) / len(self.labels)
        return float(-np.sum(shares * np.log(shares)))

    def held_out(self, classifier: Any, block: np.ndarray) -> np.ndarray:
        """Return held-out probabilities for every gradient, (n, K)."""
        probabilities = np.empty((len(block), self.classes))
        for k in np.unique(self.fold):
            out = self.fold == k
            probabilities[out] = self._predict(classifier, block, ~out, out)
        return probabilities

    def in_turn(
        self, classifier: Any, block: np.ndarray, last: np.ndarray | None = None
    ) -> list[np.ndarray | None]:
        """Return predictions for every fold except the first, trained on the earlier folds.

        The predictions are probabilities, ``(m, K)``, or ``None`` if the earlier folds are too
        small. ``last`` contains the predictions for the last fold, if known from cross-fitting.
        """
        predictions: list[np.ndarray | None] = []
        for k in range(1, int(self.fold.max()) + (last is None)):
            try:
                predictions.append(self._predict(classifier, block, self.fold < k, self.fold == k))
            except InputError:
                predictions.append(None)
        return predictions if last is None else [*predictions, last]

    def recalibrated(
        self, held_out: np.ndarray, earlier: Sequence[np.ndarray | None]
    ) -> tuple[np.ndarray, float]:
        """Return log-probabilities, (n, K), recalibrated on other folds, and the learning cost.

        The loss of predictors trained on m gradients is modelled as ``L + c/m``, with L the loss
        for unlimited training data. The constant c is estimated from the losses, on the same
        gradients, of predictors trained only on the ``earlier`` folds; :meth:`recalibration_cost`
        is then added.
        """
        logs = np.empty_like(held_out)
        lost = apart = 0.0
        for k in np.unique(self.fold):
            out, size = self.fold == k, int(np.sum(self.fold == k))
            learnt = len(held_out) - size
            less = earlier[k - 1] if 0 < k < len(earlier) else None
            asked = held_out[out] if less is None else np.concatenate([held_out[out], less])
            answers = recalibrated(held_out[~out], self.labels[~out], asked)
            logs[out] = answers[:size]
            if less is not None:
                own = np.arange(size), self.labels[out]
                lost += float(np.sum(answers[:size][own] - answers[size:][own]))
                apart += size * (1 / int(np.sum(self.fold < k)) - 1 / learnt)
        slope = max(0.0, lost / apart) if apart else 0.0
        return logs, slope / self._learnt_from() + self.recalibration_cost()

    def recalibration_cost(self) -> float:
        """Return ``K/2m``, the expected loss from fitting K free parameters to m gradients.

        This loss comes from the recalibration, not from the family of predictors: it biases
        estimates that are clearly above zero downwards.
        """
        return self.classes / (2 * self._learnt_from())

    def _learnt_from(self) -> float:
        """Return the mean number of gradients on which predictors were trained."""
        return len(self.labels) * (1 - 1 / len(np.unique(self.fold)))

    def training_loss(self, classifier: Any, block: np.ndarray) -> float:
        """Return the mean log-loss on the predictor's own training data."""
        rows = np.ones(len(block), dtype=bool)
        probabilities = self._predict(classifier, block, rows, rows)
        own = probabilities[np.arange(len(block)), self.labels]
        # No probability below 1e-6, since those of the paper are not recalibrated.
        return float(-np.log(np.clip(own, 1e-6, 1.0)).mean())

    def interval(self, losses: np.ndarray, resamples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the 95 % bootstrap interval of every layer's information.

        The information is the mean over the gradients of ``log f[g](p) − log f[∅](p)``; gradients,
        or groups of gradients, are resampled. The half-width is 1.96 standard deviations of
        the resampled means, times :func:`small_sample_factor`; the interval does not exceed the
        entropy. Percentile intervals would be biased downwards, because losses are skewed and the
        cost of learning already lowers the estimates.
        """
        draw = np.random.default_rng((self.seed, 1))
        units, number = self._units()
        gains = self._gains(losses)
        resampled = np.empty((resamples, len(losses)))
        for k in range(resamples):
            weights = np.bincount(draw.integers(number, size=number), minlength=number)[units]
            resampled[k] = gains @ weights / max(1, weights.sum())
        middle = gains.mean(axis=1)
        reach = small_sample_factor(number) * ndtri(0.975) * resampled.std(axis=0)
        return middle - reach, np.minimum(middle + reach, self.entropy())

    def true_at_the_extremes(
        self, low: float, high: float, losses: np.ndarray, probabilities: np.ndarray
    ) -> tuple[float, float]:
        """Return the ends of a layer's interval, widened if the gains are almost constant.

        *With little information*, the recalibrated prediction is constant, and all gains are zero.
        The held-out scores ``s = log q`` then bound the information that was missed. To second
        order, a predictor ``p_k ∝ π_k exp(a s_k)``, with class shares ``π``, gains ``a ū − a²F/2``,
        which is at most ``ū²/2F``; ``ū`` is the mean of ``s_p − Σ_k π_k s_k`` for the true class p,
        and ``F`` is the mean variance of s over π. The upper end of the interval is at least
        ``ū²/2F``, with ``ū`` at the upper end of its own interval.

        *If every gain is above zero*, perfect prediction cannot be excluded, and the upper end is
        the entropy. The lower end allows for a share ε of gradients of an unseen kind, with ``(1 −
        ε)^G = 2.5 %`` for G groups or gradients. Each gradient of an unseen kind may lose ``log(n +
        1)``, the most that recalibration on n gradients allows.
        """
        units, number = self._units()
        gains = self._gains(losses)
        if gains.min() > TIE:
            unseen = 1 - 0.025 ** (1 / number)
            learnt = len(gains) - int(np.bincount(self.fold).min())
            worst = (1 - unseen) * gains.mean() - unseen * math.log(learnt + 1)
            return min(low, worst), self.entropy()
        scores = _logs(probabilities, 1.0 / (2 * len(probabilities)))
        for k in np.unique(
            self.fold
        ):  # what a predictor says of all gradients alike is no information
            scores[self.fold == k] -= scores[self.fold == k].mean(axis=0)
        shares = np.bincount(self.labels) / len(self.labels)
        news = scores[np.arange(len(scores)), self.labels] - scores @ shares
        spread = float(np.mean(scores**2 @ shares - (scores @ shares) ** 2))
        if spread <= TIE:
            return low, high
        mean = float(news.mean())
        sums = np.bincount(units, news - mean, number)
        error = math.sqrt(number / (number - 1) * float(np.sum(sums**2))) / len(news)
        reach = max(0.0, mean) + float(stdtrit(number - 1, 0.975)) * error
        return low, min(max(high, reach**2 / (2 * spread)), self.entropy())

    def _units(self) -> tuple[np.ndarray, int]:
        """Return the independent unit of every gradient: its group, or the gradient itself."""
        units = np.arange(len(self.labels)) if self.groups is None else self.groups
        return units, int(units.max()) + 1

    def _gains(self, losses: np.ndarray) -> np.ndarray:
        shares = np.bincount(self.labels) / len(self.labels)
        return np.asarray(-np.log(shares)[self.labels] - losses)

    def _predict(
        self, classifier: Any, block: np.ndarray, learn: np.ndarray, apply: np.ndarray
    ) -> np.ndarray:
        from sklearn.base import clone
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ConvergenceWarning
            )  # any member of the family may be used
            try:
                model = clone(classifier).fit(block[learn], self.labels[learn])
            except ValueError as error:
                raise InputError(
                    f"The family cannot be trained on {int(learn.sum())} gradients ({error}); "
                    "record more gradients, or use another family."
                ) from error
        probabilities = np.zeros((int(apply.sum()), self.classes))
        probabilities[:, model.classes_] = model.predict_proba(block[apply])
        return probabilities


def recalibrated(fitted_on: np.ndarray, labels: np.ndarray, applied_to: np.ndarray) -> np.ndarray:
    """Return recalibrated log-probabilities, ``(m, K)``, for the probabilities ``applied_to``.

    Held-out probabilities ``q``, ``(n, K)``, become ``p_k ∝ exp(a log q_k + b_k)`` with ``a ≥ 0``.
    With a = 0 the prediction is constant, so the best constant prediction always belongs to the
    family, as the definition of V-information requires ("optional ignorance", Xu et al. 2020). A
    negative slope is excluded: it would misinterpret the slight negative correlation between the
    class shares of a fold and of its complement as information.
    """
    n, classes = fitted_on.shape
    floor = 1.0 / (2 * n)
    logs, wanted = _logs(fitted_on, floor), np.eye(classes)[labels]
    shares = (wanted.sum(axis=0) + 0.5) / (n + 0.5 * classes)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scores = log_softmax(theta[0] * logs + theta[1:], axis=1)
        errors = np.exp(scores) - wanted
        slope = np.concatenate([[np.sum(errors * logs)], errors.sum(axis=0)]) / n
        return -float(np.sum(scores * wanted)) / n, slope

    # Started from the constant too: a steep start may stop on its way there.
    fits = [
        minimize(
            objective,
            np.concatenate([[slope], np.log(shares) * (1 - slope)]),
            jac=True,
            method="L-BFGS-B",
            # Wide enough for any calibration; without bounds, perfect scores have no optimum.
            bounds=[(0.0, 5.0)] + [(-20.0, 20.0)] * classes,
        )
        for slope in (0.0, 1.0)
    ]
    best = min(fits, key=lambda fit: fit.fun)
    sure = softmax(best.x[0] * _logs(applied_to, floor) + best.x[1:], axis=1)
    # n records never justify odds beyond n to one: a single surprise must not cost the earth.
    doubt = 1.0 / (n + 1)
    return np.asarray(np.log((1 - doubt) * sure + doubt * shares))


def small_sample_factor(units: int) -> float:
    """Return the factor ``√(G/(G−1)) · t/z`` that corrects a bootstrap interval of ``G`` units.

    The variance of resampled means of ``G`` units is ``(G−1)/G`` times the estimated variance of
    their mean. The factor ``t/z`` replaces the normal quantile by that of Student's distribution
    with ``G − 1`` degrees of freedom. With both corrections, the interval for a mean is Student's
    interval.

    Examples
    --------
    >>> from seepage.layers.measures.v_information import small_sample_factor
    >>> round(small_sample_factor(5), 3), round(small_sample_factor(1000), 3)
    (1.584, 1.002)
    """
    ratio = stdtrit(units - 1, 0.975) / ndtri(0.975)
    return float(math.sqrt(units / (units - 1)) * ratio)


def _read_groups(groups: Any, count: int, folds: int) -> np.ndarray:
    levels, member = read_property(groups, count, "gradients", called="groups")
    if len(levels) < folds:
        raise InputError(
            f"There are too few groups ({len(levels)}) for {folds} folds; use fewer folds."
        )
    return member


def _too_few(exchange: Exchange, ways: float) -> str:
    unit = "groups" if exchange.grouped else "gradients"
    what = f"{len(exchange.label)} {unit}" if exchange.grouped else unit
    return (
        f"The labels of the {what} can be exchanged in only {counted(round(ways), 'way')}, so no "
        f"P-value can be below {1 / ways:.2g} and the test cannot detect any leakage. Record more "
        f"{unit}."
    )


def _logs(probabilities: np.ndarray, floor: float) -> np.ndarray:
    kept = np.maximum(probabilities, floor)
    return np.asarray(np.log(kept / kept.sum(axis=1, keepdims=True)))
