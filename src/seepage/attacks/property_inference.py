"""Property inference: infer which updates come from data with a property (Melis et al. 2019).

The adversary stores snapshots of the global model. At each snapshot, the adversary computes
gradients on auxiliary data with and without the property, and trains a classifier on the gradients
of one layer or of all layers. The classifier then scores the client's observed updates. If many
clients were recorded, the updates of clients whose property is known serve as auxiliary data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from seepage.attacks.intervals import ConfidenceInterval, area_under_curve
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.client_identity import same_client
from seepage.layers.federated.gradients import JOINED, LayerGradients
from seepage.layers.measures.classifiers import find_classifier
from seepage.layers.measures.per_layer import PerLayer
from seepage.layers.measures.property_batches import read_property
from seepage.layers.measures.v_information import PropertyTask
from seepage.layers.recording_audit import KnownUpdates, Recording
from seepage.support.chunks import progress
from seepage.tables.result_table import SummaryTable
from seepage.tables.source import as_numpy


@dataclass(frozen=True, eq=False, repr=False)
class PropertyInferenceResult(SummaryTable):
    """The success rates of a property inference attack on updates.

    The scores depend on the data and are themselves sensitive: do not publish them.

    Parameters
    ----------
    layer
        The layer whose gradients the adversary observed.
    scores
        The predicted probability of each class of the property for every update, ``(n, classes)``.
    truth
        The true property of every update, as a position in ``classes``.
    classes
        The classes of the property.
    kind
        ``attack``: a lower bound on what can be inferred, never an upper bound.
    groups
        The group of each update (a client, or a batch observed at several snapshots), if known. The
        interval does not assume that updates of one group are independent.
    """

    layer: str
    scores: np.ndarray
    truth: np.ndarray
    classes: tuple[Any, ...]
    kind: str = "attack"
    groups: np.ndarray | None = None

    mark = (0.5, "chance (AUC)")

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return the area under the ROC curve with its 95 % interval, and the accuracy."""
        return {"AUC": (self.auc, *self.interval), "accuracy": (self.accuracy, np.nan, np.nan)}

    @property
    def auc(self) -> float:
        """The area under the ROC curve; for several classes, the mean of one-vs-rest areas."""
        return float(np.mean([area for area, _ in self._areas()]))

    @property
    def interval(self) -> ConfidenceInterval:
        """The 95 % interval of the AUC of this trained adversary on updates from new groups.

        For several classes, the ends are the means over the classes' intervals, which is
        conservative.
        """
        ends = np.mean([interval for _, interval in self._areas()], axis=0)
        return ConfidenceInterval(float(ends[0]), float(ends[1]))

    @property
    def accuracy(self) -> float:
        """The share of updates whose most likely class is the true class."""
        return float(np.mean(self.scores.argmax(axis=1) == self.truth))

    def _areas(self) -> list[tuple[float, ConfidenceInterval]]:
        columns = [1] if len(self.classes) == 2 else range(len(self.classes))
        return [
            area_under_curve(self.scores[:, k], self.truth == k, groups=self.groups)
            for k in columns
        ]

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"<property inference from {self.layer}: AUC {self.auc:.4f}, 95 % interval "
            f"{low:.4f} to {high:.4f}, {len(self.truth):,} updates>"
        )


@accepts_other_names
class PropertyInference:
    """An adversary who infers a property of a client from its updates.

    Parameters
    ----------
    layer
        The layer whose gradients the adversary observes, or ``"all layers"``.
    classifier
        Any scikit-learn classifier with ``predict_proba``, or the name of a predictor family; by
        default, a random forest.
    seed
        The seed of a classifier given by name.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> draw = np.random.default_rng(0)
    >>> p = np.arange(200) % 2
    >>> seen = {"fc1": draw.standard_normal((200, 4)) + p[:, None]}
    >>> adversary = sp.attacks.PropertyInference("fc1").fit(seen, p)
    >>> fresh = {"fc1": draw.standard_normal((200, 4)) + p[:, None]}
    >>> adversary.attack(fresh, p).auc > 0.85
    True
    """

    def __init__(
        self, layer: str = JOINED, classifier: Any = "random_forest", *, seed: int = 0
    ) -> None:
        self.layer, self.classifier, self.seed = layer, classifier, seed

    def fit(self, gradients: LayerGradients | Mapping[str, Any] | Any, property: Any) -> Self:
        """Train the classifier on gradients of auxiliary data, each with a property label.

        For one layer, the gradients may be a single array, (n, size).
        """
        seen = self._read(gradients)
        self.classes_, target = read_property(property, len(seen), "gradients")
        if len(self.classes_) < 2:
            raise InputError(
                "All auxiliary data have the same property value; add data with another value."
            )
        self.learnt_ = seen.rows(slice(0))  # the layers and projections, without any record
        self.model_ = find_classifier(self.classifier, self.seed).fit(seen[self.layer], target)
        return self

    def predict_proba(self, gradients: LayerGradients | Mapping[str, Any]) -> np.ndarray:
        """Return the predicted probability of each property class for every update."""
        if not hasattr(self, "model_"):
            raise InputError(
                "This adversary has not been fitted; call fit with auxiliary gradients first."
            )
        seen = self._read(gradients)
        if dict(seen.sizes) != dict(self.learnt_.sizes):
            raise InputError(
                "The updates and the auxiliary gradients have different layers or layer sizes; "
                "record the same layers of the same network."
            )
        self.learnt_.check_same_projection(seen)
        return np.asarray(self.model_.predict_proba(seen[self.layer]))

    def attack(
        self, gradients: LayerGradients | Mapping[str, Any], property: Any, *, groups: Any = None
    ) -> PropertyInferenceResult:
        """Score observed updates and compare the predictions with the true property.

        ``groups`` assigns each update to a group; the default is the recording's nodes, if any, and
        ``False`` means no groups. The groups affect only the interval.
        """
        scores = self.predict_proba(gradients)
        levels, level = read_property(property, len(scores), "updates")
        unknown = set(levels.tolist()) - set(self.classes_.tolist())
        if unknown:
            raise InputError(
                f"The updates have the property value {unknown.pop()!r}, which does not occur in "
                "the auxiliary data; add data with this value."
            )
        truth = np.searchsorted(self.classes_, levels)[level]
        if groups is None and isinstance(gradients, LayerGradients):
            groups = same_client(gradients)
        if groups is not None and groups is not False:
            groups = read_property(groups, len(scores), "updates", called="groups")[1]
        return PropertyInferenceResult(
            self.layer,
            scores,
            truth,
            tuple(self.classes_.tolist()),
            groups=None if groups is False else groups,
        )

    def _read(self, gradients: Any) -> LayerGradients:
        """Return gradients by layer; a single array belongs to the observed layer."""
        if not isinstance(gradients, LayerGradients | Mapping):
            layer = "gradients" if self.layer == JOINED else self.layer
            return LayerGradients.of({layer: as_numpy(gradients)})
        return LayerGradients.of(gradients)


@accepts_other_names
def attack_layers(
    auxiliary: LayerGradients | Mapping[str, Any],
    auxiliary_property: Any,
    seen: LayerGradients | Mapping[str, Any],
    seen_property: Any,
    *,
    classifier: Any = "random_forest",
    groups: Any = None,
    seed: int = 0,
) -> PerLayer:
    """Return the AUC of the attack on each layer alone, and on all layers together.

    Parameters
    ----------
    auxiliary, auxiliary_property
        The gradients of the adversary's auxiliary data, and the property of each.
    seen, seen_property
        The client's updates, and the true property of each update.
    classifier, seed
        As for :class:`PropertyInference`.
    groups
        The group of each of the client's updates (a batch observed at several snapshots, or a
        client), ``(n,)``. The intervals do not assume that updates of one group are independent.
        The default is the recording's nodes, if any; ``False`` means no groups.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> draw = np.random.default_rng(0)
    >>> p = np.arange(200) % 2
    >>> def gradients():
    ...     noise = draw.standard_normal((2, 200, 4))
    ...     return {"fc1": noise[0] + p[:, None], "fc2": noise[1]}
    >>> sp.attacks.attack_layers(gradients(), p, gradients(), p).ranking()[-1]
    'fc2'
    """
    for side in (auxiliary, seen):
        if not isinstance(side, LayerGradients | Mapping):
            raise InputError(
                "Give the gradients by layer, {name: array}, or the result of record_gradients, "
                f"not {type(side).__name__}."
            )
    known, victim = LayerGradients.of(auxiliary), LayerGradients.of(seen)
    known.check_same_projection(victim)
    results = []
    for layer in progress((*known.layers, JOINED), "property inference"):
        adversary = PropertyInference(layer, classifier, seed=seed).fit(known, auxiliary_property)
        results.append(adversary.attack(victim, seen_property, groups=groups))
    return _by_layer(results, known)


@accepts_other_names
def attack_recording(
    recording: Recording,
    property: Any,
    *,
    classifier: Any = "random_forest",
    folds: int = 5,
    seed: int = 0,
) -> PerLayer:
    """Return the AUC by layer and overall if the adversary knows other clients and their property.

    The clients are divided into folds, and every update is scored by a classifier trained on the
    clients in the other folds. The classifier uses one layer alone, the metrics alone, or
    everything that was sent. If some property value occurs in only one client, updates are divided
    into folds instead.

    Parameters
    ----------
    recording, property
        A recording with nodes, or the path of its file; and the clients' property, as for
        :func:`seepage.layers.audit_recording`.
    classifier, seed
        As for :class:`PropertyInference`.
    folds
        The number of folds; fewer are used if a property value is rare.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> import seepage as sp
    >>> draw = np.random.default_rng(0)
    >>> client = np.tile(np.arange(20), 4)
    >>> seen = {"fc1": draw.standard_normal((80, 5)) + 9 * (client % 2)[:, None]}
    >>> seen = replace(sp.layers.LayerGradients.of(seen), nodes=client)
    >>> glasses = {node: node % 2 == 1 for node in range(20)}
    >>> sp.attacks.attack_recording(seen, glasses, classifier="logistic")["all layers"]
    1.0
    """
    known = KnownUpdates.read(recording, property, folds)
    seen = known.seen.with_metrics()
    groups = None if known.alone else known.who.client
    task = PropertyTask.read(known.values, groups, len(seen), known.folds, seed)
    used = find_classifier(classifier, seed)
    results = []
    for layer in progress((*seen.layers, JOINED), "property inference"):
        scores = task.held_out(used, seen[layer])
        classes = tuple(known.shares)
        results.append(PropertyInferenceResult(layer, scores, task.labels, classes, groups=groups))
    return _by_layer(results, seen)


def _by_layer(results: Sequence[PropertyInferenceResult], seen: LayerGradients) -> PerLayer:
    """Return the results for each layer alone and for all layers together."""
    return PerLayer.of(
        "property inference, AUC",
        (*seen.layers, JOINED),
        np.array([(result.auc, *result.interval) for result in results]).T,
        (*seen.sizes.values(), sum(seen.sizes.values())),
        kind="attack",
        columns={"accuracy": np.array([result.accuracy for result in results])},
        notes=seen.projection_notes(),
    )
