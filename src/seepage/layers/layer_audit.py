"""Audits a network's layers: sensitivity, V-information, layers to protect, and remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from seepage.core.result import NOTICE
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.client_identity import same_client
from seepage.layers.federated.gradients import JOINED, METRICS, WIDTH, LayerGradients
from seepage.layers.federated.recording import record_gradients
from seepage.layers.inputs_and_targets import check_labels, read_pair
from seepage.layers.measures.classifiers import find_classifier
from seepage.layers.measures.client_scores import areas
from seepage.layers.measures.independence_test import LEVEL
from seepage.layers.measures.per_layer import PerLayer, Span, draw_layers
from seepage.layers.measures.property_batches import property_batches
from seepage.layers.measures.sensitivity import sensitivity
from seepage.layers.measures.v_information import PropertyTask, v_information
from seepage.nn.gradients.network_checks import refuse_modes, unwrapped
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.views import Inputs, rows_of
from seepage.nn.problem.views import batch_size as size_of
from seepage.support.number_check import check_count, check_not_negative
from seepage.support.text_table import text_table
from seepage.tables.names import counted, listed
from seepage.tables.result_table import ResultTable
from seepage.tables.source import as_numpy, build_frame

_NEED_RECORDS = {
    "sensitivity": "which is the derivative of one gradient with respect to its records' targets, "
    "but a recording contains no records and its updates may combine several steps",
    "Fisher information": "which is defined for single records, but a recording contains none",
    "PLIS": "which is defined for single records, but a recording contains none",
}


@dataclass(frozen=True)
class LayerRemedy:
    """The V-information of an update under a remedy.

    ``value`` is the larger of two values: that of the whole update, and the largest of the layers
    to protect. A family of predictors may infer less from a whole update than from one layer.
    """

    name: str  # the remedy
    # The largest V-information of any part about the property, and its 95 % interval
    value: float
    low: float
    high: float
    p_value: float  # of the test that no part reveals the property, adjusted for their number
    layer: str = JOINED  # the part that reveals most: a layer, or "all layers"
    auc: float = 0.5  # of property inference from that part, by an attacker who knows other clients


@dataclass(frozen=True, eq=False, repr=False)
class LayerAudit(ResultTable):
    """The leakage of each layer, and the effect of remedies.

    Parameters
    ----------
    sensitivity, v_information
        The two measures, layer by layer; sensitivity is ``None`` if it could not be measured (see
        ``refused``).
    protect
        The layers whose V-information is clearly above zero and whose interval overlaps that of the
        layer with the highest V-information. "Clearly" means that the test is significant after
        adjustment for the number of layers. In addition, the interval must be above zero, or the
        estimate must be at least half the highest estimate. If no layer is named, layers may still
        leak: with few groups, the test has low power. The rule considers each layer alone. The
        remedies show how much the update leaks without the named layers;
        :func:`seepage.attacks.compare_remedies` shows the effect over a whole training run.
    remedies
        The V-information of the update, without and with each remedy: the largest value of the
        whole update and of the layers to protect.
    mix
        How the batches were drawn: ``"matched"`` or ``"confounded"``; ``"recorded"`` for recorded
        updates.
    notes
        Caveats about the remedies, such as the reasons why some could not be tested.
    refused
        The measures that do not apply, with reasons.
    """

    sensitivity: PerLayer | None
    v_information: PerLayer
    protect: tuple[str, ...]
    remedies: tuple[LayerRemedy, ...]
    mix: str
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    value_column = "v_information"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per layer: its measures, and whether to protect it."""
        information = self.v_information
        sensitive = {} if self.sensitivity is None else {"sensitivity": self.sensitivity.values}
        columns = {
            "layer": list(information.layers),
            "size": list(information.sizes),
            **sensitive,
            "v_information": information.values,
            "low": information.low,
            "high": information.high,
            "p_value": information.columns["p_value"],
            "protect": [name in self.protect for name in information.layers],
        }
        return build_frame(columns, library or "pyarrow")

    def plot(self, ax: Any = None) -> Any:
        """Plot one panel per measure, and return the array of matplotlib axes.

        ``ax`` contains one matplotlib axis per measure (one or two).
        """
        sensitive = [] if self.sensitivity is None else [self.sensitivity]
        return draw_layers([self.v_information, *sensitive], ax)

    def __str__(self) -> str:
        information, sensitive = self.v_information, self.sensitivity
        own = [] if sensitive is None else ["sensitivity"]
        heads = ["layer", *own, f"V-information ({information.unit})", "p", ""]
        lines = []
        for k, name in enumerate(information.layers):
            own = [] if sensitive is None else [f"{sensitive[name]:.4g}"]
            mark = "protect" if name in self.protect else ""
            p_value = f"{information.columns['p_value'][k]:.3f}"
            lines.append([name, *own, str(information.span(name)), p_value, mark])
        left = [
            (r.name, str(Span(r.value, r.low, r.high)), "" if r.layer == JOINED else r.layer)
            for r in self.remedies
        ]
        refused = [f"Not measured: {name}, {reason}." for name, reason in self.refused.items()]
        heading = (
            f"Leakage of a whole update, or of the layer that reveals more ({information.unit}):"
        )
        text = [text_table(lines, heads), "", heading, text_table(left, indent=2), ""]
        return "\n".join([*text, *self.notes, *refused, NOTICE])

    def __repr__(self) -> str:
        named = ", ".join(self.protect) if self.protect else "none"
        return f"<audit of {len(self.v_information)} layers, {self.mix} batches: protect {named}>"


@accepts_other_names
def audit(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Inputs,
    y: Any,
    property: Any,
    *,
    batch_size: int = 32,
    batches: int = 100,
    mix: str = "matched",
    people: Any = None,
    family: Any = "random_forest",
    layers: Sequence[str] | None = None,
    records: int = 64,
    noise: float = 1.0,
    folds: int = 5,
    unit: str = "nats",
    width: int = WIDTH,
    seed: int = 0,
) -> LayerAudit:
    """Measure layers' sensitivity and V-information, choose layers to protect, and test remedies.

    Batches with and without the property are drawn from the records with the same mix of labels
    (unless ``mix`` is changed). There is one pool of records per fold, and pools share no record.
    Remedies are tested on the recorded gradients. One kind of remedy drops the layers to protect,
    one by one (if there are at most 8) and all together (if other layers remain). Two other
    remedies clip the gradients to their median norm, without noise or with Gaussian noise whose
    standard deviation is ``noise`` times that norm. The network is used in its current mode. In
    training mode, with BatchNorm or dropout, per-record gradients are not defined, so sensitivity
    is not measured, and ``refused`` states this.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    x, y, property
        The records, their main-task classes, and the property of each record; tensors or NumPy
        arrays.
    batch_size, batches
        The number of records per batch, and the number of batches per class of the property.
    mix, people
        As for :func:`property_batches`.
    family, folds, unit, width
        As for :func:`v_information`.
    layers
        The names of modules; by default, every module that has its own parameters.
    records
        The number of records used to measure the sensitivity.
    noise
        The noise multiplier for the last remedy.
    seed
        The seed of all random draws.

    Examples
    --------
    >>> import torch, seepage.layers as layers
    >>> _ = torch.manual_seed(0)
    >>> property = torch.arange(400) % 4 < 2
    >>> x = torch.randn(400, 6) + 2 * property[:, None]
    >>> y = torch.arange(400) % 2
    >>> net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> found = layers.audit(net, "cross_entropy", x, y, property, batches=20, family="logistic")
    >>> "0" in found.protect
    True
    """
    check_count(records, "records")
    check_not_negative(noise, "noise")
    x, y = read_pair((x, y), unwrapped(net), loss, "The table")
    check_labels(unwrapped(net), loss, x, y, "y")
    drawn = property_batches(
        as_numpy(y),
        property,
        batch_size=batch_size,
        count=batches,
        mix=mix,
        pools=folds,
        people=people,
        seed=seed,
    )
    recorded = record_gradients(net, loss, drawn.of(x, y), layers=layers, width=width, seed=seed)
    options = {"family": family, "groups": drawn.pool, "folds": folds, "unit": unit, "seed": seed}
    tried = _tried(recorded, drawn.property, options, noise)
    few = np.random.default_rng((seed, 3)).permutation(size_of(x))[:records]
    refused = _refused(unwrapped(net))
    sensitive = None
    if not refused:
        sensitive = sensitivity(net, loss, rows_of(x, few), y[few], layers=layers, seed=seed)
    return replace(tried, sensitivity=sensitive, mix=mix, refused=refused)


@accepts_other_names
def audit_updates(
    updates: LayerGradients,
    property: Any,
    *,
    groups: Any = None,
    family: Any = "random_forest",
    noise: float = 1.0,
    folds: int = 5,
    unit: str = "nats",
    seed: int = 0,
) -> LayerAudit:
    """Audit recorded updates of clients, without access to their records.

    V-information is defined regardless of how a client trained (one step or many, momentum, Adam,
    weight decay). Values sent in addition to parameters are measured too: buffers, and metrics
    (number of records, loss) as the entry ``"client metrics"``. The remedies are those of
    :func:`audit`. Measures that need the records are not computed; ``refused`` contains the reason
    for each.

    Updates are analysed as recorded. Clients with and without the property may have different
    labels, so a layer may reveal the property through the labels.

    Parameters
    ----------
    updates
        A recording from :func:`record_updates`, or ``recorder.gradients()`` for Flower.
    property
        The property of every update, ``(n,)``; usually the property of the client.
    groups
        As for :func:`v_information`; by default, the clients of the recording. Updates of one
        client are similar. Without groups, a classifier would learn to recognise clients rather
        than the property. ``False`` means no groups.
    family, folds, unit
        As for :func:`v_information`.
    noise
        The noise multiplier for the last remedy.
    seed
        The seed of all random draws.

    Examples
    --------
    >>> import numpy as np, seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> client = np.arange(80) % 20
    >>> moved = draw.standard_normal((80, 3)) + 4 * (client % 2)[:, None]
    >>> seen = layers.LayerGradients.of({"fc1": moved, "fc2": draw.standard_normal((80, 2))})
    >>> found = layers.audit_updates(seen, client % 2, groups=client, family="logistic")
    >>> found.protect, list(found.refused)
    (('fc1',), ['sensitivity', 'Fisher information', 'PLIS'])
    """
    if not isinstance(updates, LayerGradients):
        raise InputError(
            f"updates must be a recording, not {type(updates).__name__}; create one with "
            "record_updates, or LayerGradients.of for arrays."
        )
    check_not_negative(noise, "noise")
    if groups is None:
        groups = same_client(updates)
    groups = None if groups is False else groups
    options = {"family": family, "groups": groups, "folds": folds, "unit": unit, "seed": seed}
    sizes = [0] if groups is None else np.unique(as_numpy(groups), return_counts=True)[1].tolist()
    return _tried(replace(updates, nodes=None, clients=None), property, options, noise, max(sizes))


def _tried(
    recorded: LayerGradients,
    property: Any,
    options: dict[str, Any],
    noise: float,
    most: int = 0,
) -> LayerAudit:
    """Return the V-information of the updates, without and with remedies.

    ``most`` is the largest number of updates of one client; 0 if clients are unknown.
    """
    sent = recorded.with_metrics()
    information = v_information(sent, property, **options)
    protect = tuple(layers_to_protect(information))
    classifier = find_classifier(options["family"], options["seed"])
    task = PropertyTask.read(
        property, options["groups"], len(recorded), options["folds"], options["seed"]
    )

    def left(name: str, gradients: LayerGradients) -> LayerRemedy:
        seen = gradients.with_metrics()
        parts = {JOINED: v_information(seen[JOINED], property, **options, width=1 << 30)}
        for layer in protect if len(seen.layers) > 1 else ():
            if layer in seen.layers and np.array_equal(seen[layer], sent[layer]):
                parts[layer] = information.select([information.layers.index(layer)])
            elif layer in seen.layers:
                parts[layer] = v_information(seen[layer], property, **options, width=1 << 30)
        most = max(parts, key=lambda part: float(parts[part].values[0]))
        p_value = min(float(found.columns["p_value"][0]) for found in parts.values())
        span = parts[most].span(*parts[most].layers)
        auc = float(areas(task.held_out(classifier, seen[most]), task.labels[None])[0])
        return LayerRemedy(name, *span, min(1.0, len(parts) * p_value), most, auc)

    norm = float(np.median(recorded.parameter_norms()))
    drops, notes = _drops(protect, recorded.layers)
    beside = [*recorded.beside, *([METRICS] if recorded.metrics else [])]
    if beside:
        notes.append(
            "Clipping and noise were tested only on the trained parameters; other values that "
            f"were sent are unchanged: {listed(beside)}."
        )
    remedies = [
        left("as it is", recorded),
        *(left(f"without {', '.join(drop)}", recorded.without(*drop)) for drop in drops),
    ]
    if norm == 0:
        notes.append(
            "At least half of the updates are zero, so the median norm for clipping is zero."
            if recorded.parameters
            else "No trained parameter was sent, so clipping does not apply."
        )
    else:
        clipped, name = recorded.clipped(norm), f"clipped to {norm:.3g}"
        noisy = clipped.noised(noise * norm, seed=options["seed"])
        remedies += [left(name, clipped), left(f"{name}, noise {noise:g} × that", noisy)]
        notes += _guarantee(noise, most)
    return LayerAudit(
        None, information, protect, tuple(remedies), "recorded", tuple(notes), _NEED_RECORDS
    )


def _guarantee(noise: float, updates: int) -> list[str]:
    """Return a note with the (ε, δ) of this number of clipped, noisy updates of a client.

    Each update is a Gaussian mechanism whose sensitivity is the clipping norm: the client's update
    is present or absent.
    """
    if noise == 0 or updates == 0:
        return []
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    delta = 1e-5  # as is usual; below one in the number of clients
    epsilon = PLDAccountant().compose(GaussianDpEvent(noise), updates).get_epsilon(delta)
    return [
        f"With this clipping and noise, the trained parameters in {counted(updates, 'update')} of "
        f"a client satisfy ({epsilon:.3g}, {delta:g})-differential privacy (client-level, add or "
        "remove; by dp_accounting). This guarantee requires a clipping norm that is chosen without "
        "the data."
    ]


def _refused(net: nn.Module) -> dict[str, str]:
    """Return the measures that are undefined in the network's current mode, with reasons."""
    try:
        refuse_modes(net)
    except InputError as error:
        return {"sensitivity": f"because {str(error).rstrip('.')}"}
    return {}


def _drops(
    protect: Sequence[str], layers: Sequence[str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the sets of layers to drop as remedies, and notes.

    Metrics, which are not a layer, may be dropped too, but at least one layer must remain.
    """
    named, notes = tuple(protect), []
    whole = set(layers) <= set(named)
    if whole and len(layers) == 1:
        others: list[tuple[str, ...]] = [(name,) for name in named if name not in layers]
        return others, [
            f"{layers[0]} is the only layer: if it is dropped, no layer remains to be sent."
        ]
    single: list[tuple[str, ...]] = []
    if len(named) <= 8:  # each takes as long as the whole update
        single = [(name,) for name in named]
    if not single and named:
        notes.append(
            f"With {len(named)} layers to protect, dropping each layer alone was not tested."
        )
    if whole:
        notes.append(
            "Every layer should be protected, but if all are dropped, no layer remains to be sent"
            f"{'; instead, each was dropped alone' if single else ''}."
        )
        return single, notes
    return single + ([named] if len(named) > 1 else []), notes


def layers_to_protect(information: PerLayer) -> list[str]:
    """Return the layers that leak significantly and are not clearly below the highest layer.

    The P-values are adjusted for the number of layers by the rule of Benjamini and Hochberg (1995).
    If no layer leaks, and the tests are independent or positively dependent, the probability that
    any layer is named is at most 5 %. With few clients the interval is wide even if all clients are
    classified correctly. A layer whose interval includes zero may therefore also be named, if its
    estimate is at least half the highest.
    """
    from scipy.stats import false_discovery_control

    raised = false_discovery_control(information.columns["p_value"])
    values = information.values
    much = (values > 0) & ((information.low > 0) | (values >= values.max() / 2))
    sure = {name for k, name in enumerate(information.layers) if much[k] and raised[k] < LEVEL}
    return [name for name in information.foremost() if name in sure]
