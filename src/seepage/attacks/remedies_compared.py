"""Benefit and cost of per-layer remedies in simulated federated training.

The network is trained again with each remedy. The benefit is measured by a property inference
attack on the sent updates, and by V-information: how well the attack's family of predictors can
infer the property. The cost is the loss in accuracy of the trained network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.property_inference import PropertyInference
from seepage.core.result import NOTICE
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.gradients import JOINED, LayerGradients, joined
from seepage.layers.federated.recording import batch_gradients, record_updates
from seepage.layers.federated.remedies import UpdateRemedy
from seepage.layers.federated.rounds import FederatedRun, Update, simulate
from seepage.layers.inputs_and_targets import read_pair
from seepage.layers.layer_audit import layers_to_protect
from seepage.layers.layer_parameters import layer_parameters, layer_sizes
from seepage.layers.measures.per_layer import Span, mean_interval
from seepage.layers.measures.property_batches import property_batches, read_property
from seepage.layers.measures.v_information import v_information
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.views import Inputs, rows_of
from seepage.nn.training.private_sgd import measure_accuracy
from seepage.support.chunks import progress
from seepage.support.text_table import text_table
from seepage.tables.result_table import BLUE, GREY, ORANGE, ResultTable, new_axes
from seepage.tables.source import as_numpy, build_frame

NONE = "as it is"
QUANTITIES = {
    "auc": "AUC of the attack",
    "v_information": "V-information (bits)",
    "accuracy": "accuracy of the main task",
}


@dataclass(frozen=True)
class RemedyOutcome:
    """The remaining leakage under one remedy, and the remedy's cost in accuracy."""

    name: str
    auc: Span  # of the attack on whole updates
    v_information: Span  # of a whole update about the property, in bits
    accuracy: Span  # of the trained network on the main task
    sent: int  # numbers that a client sends in a round, on average
    runs: int = 1  # the number of runs averaged


@dataclass(frozen=True, eq=False, repr=False)
class RemedyComparison(ResultTable):
    """A comparison of remedies; the first row is the training without a remedy.

    For a single run, intervals are over the run's updates and test records; for several runs, they
    are Student's t intervals over the runs.

    Parameters
    ----------
    outcomes
        The outcome of each remedy.
    protect
        The layers that an audit of the updates without a remedy would recommend protecting; with
        several runs, the layers recommended in most runs.
    """

    outcomes: tuple[RemedyOutcome, ...]
    protect: tuple[str, ...] = ()

    @staticmethod
    def averaged(runs: Sequence[RemedyComparison]) -> RemedyComparison:
        """Return each remedy's means over the runs that include it, with Student's t intervals."""
        every = [one for run in runs for one in run.outcomes]
        if not every or any(one.runs != 1 for one in every):
            raise InputError(
                "Only comparisons of single runs can be averaged; give at least one comparison, "
                "and none that is itself an average."
            )
        outcomes = []
        for name in dict.fromkeys(one.name for one in every):
            same = [one for one in every if one.name == name]
            auc, information, accuracy = (
                Span(*map(float, mean_interval(np.array([getattr(one, q).value for one in same]))))
                for q in QUANTITIES
            )
            sent = same[0].sent
            outcomes.append(RemedyOutcome(name, auc, information, accuracy, sent, len(same)))
        often = [
            layer
            for layer in dict.fromkeys(name for run in runs for name in run.protect)
            if 2 * sum(layer in run.protect for run in runs) > len(runs)
        ]
        return RemedyComparison(tuple(outcomes), tuple(often))

    value_column = "auc"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per remedy."""
        columns: dict[str, Any] = {"remedy": [one.name for one in self.outcomes]}
        for quantity in QUANTITIES:
            spans = [getattr(one, quantity) for one in self.outcomes]
            columns[quantity] = [span.value for span in spans]
            columns[f"{quantity} low"] = [span.low for span in spans]
            columns[f"{quantity} high"] = [span.high for span in spans]
        columns["sent"] = [one.sent for one in self.outcomes]
        columns["runs"] = [one.runs for one in self.outcomes]
        return build_frame(columns, library or "pyarrow")

    def plot(self, ax: Any = None) -> Any:
        """Draw one panel per quantity and one line per remedy; return the array of axes.

        ``ax`` is a sequence of three matplotlib axes.
        """
        places = np.arange(len(self.outcomes))[::-1]
        size = (10.5, 1.3 + 0.42 * len(places))
        panels = new_axes(ax, ncols=len(QUANTITIES), sharey=True, figsize=size)
        for panel, (quantity, title) in zip(panels, QUANTITIES.items(), strict=True):
            spans = [getattr(one, quantity) for one in self.outcomes]
            values = np.array([span.value for span in spans])
            reach = np.abs([[s.value - s.low for s in spans], [s.high - s.value for s in spans]])
            colour = BLUE if quantity == "accuracy" else ORANGE
            panel.errorbar(
                values, places, xerr=np.nan_to_num(reach), fmt="o", color=colour, capsize=3
            )
            panel.axvline(values[0], color=GREY, lw=1, ls=":")
            panel.set_title(title, loc="left", fontsize="medium")
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_yticks(places, [one.name for one in self.outcomes])
        return panels

    def __str__(self) -> str:
        heads = ("remedy", "AUC", "V-information (bits)", "accuracy", "sent", "runs")
        lines: list[Sequence[str]] = []
        for one in self.outcomes:
            spans = (str(getattr(one, quantity)) for quantity in QUANTITIES)
            lines.append((one.name, *spans, f"{one.sent:,}", str(one.runs)))
        named = ", ".join(self.protect) if self.protect else "none"
        return "\n".join(
            [
                text_table(lines, heads),
                "",
                f"Layers to protect, according to an audit: {named}.",
                NOTICE,
            ]
        )

    def __repr__(self) -> str:
        runs = max(one.runs for one in self.outcomes)
        over = f" over {runs} runs" if runs > 1 else ""
        return f"<{len(self.outcomes) - 1} remedies compared{over}>"


@accepts_other_names
def compare_remedies(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    adversary: tuple[Any, Any, Any],
    client: tuple[Any, Any, Any],
    test: tuple[Any, Any],
    *,
    layers: str | Sequence[str],
    remedies: Sequence[UpdateRemedy] | None = None,
    rounds: int = 500,
    lr: float = 0.05,
    batch_size: int = 32,
    snapshots: int = 5,
    known: int = 20,
    seen: int = 15,
    measured: int = 100,
    people: tuple[Any, Any] | None = None,
    family: Any = "random_forest",
    width: int = 512,
    seed: int = 0,
) -> RemedyComparison:
    """Train once with each remedy, attack the updates sent, and compare benefits and costs.

    Training is FedSGD with two clients, one of them the adversary (Melis et al. 2019; Mo et al.
    2021). At snapshots in the second half of the run, the adversary trains a classifier on
    gradients of auxiliary batches with and without the property, under the same remedy. The
    adversary then classifies the client's complete updates. Batches with and without the property
    have the same mix of labels. V-information is measured on the last model's updates. Each
    ``seed`` produces one run; average several runs (``RemedyComparison.averaged``) before comparing
    remedies.

    Parameters
    ----------
    net, loss
        The initial network, and its loss as for :class:`seepage.nn.Engine`.
    adversary, client
        The inputs, main-task classes and property of the adversary's and the client's records;
        tensors or NumPy arrays.
    test
        The inputs and classes on which the accuracy is measured.
    layers
        The layers to which the remedies apply.
    remedies
        The remedies to try. By default there are four: noise as large as the median update, frozen
        layers (which are not sent), sending every 5 rounds, and updates of rank 4 (LoRA).
    rounds, lr, batch_size
        The training settings.
    snapshots
        The number of global models that the adversary stores.
    known, seen
        The numbers of the adversary's own batches and of the client's batches, for each snapshot
        and property class.
    measured
        The number of batches per property class for V-information.
    people
        The person to whom each of the adversary's and the client's records belongs; no person is in
        more than one cross-validation fold when V-information is estimated.
    family
        The predictors used by the adversary and for V-information, as for
        :func:`seepage.layers.v_information`.
    width
        Layers with more than ``width`` entries are randomly projected to ``width`` entries.
    seed
        The seed of all random draws.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> def side(n):
    ...     return torch.randn(n, 6), torch.arange(n) % 2, torch.arange(n) % 4 < 2
    >>> net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> found = sp.attacks.compare_remedies(
    ...     net,
    ...     "cross_entropy",
    ...     side(200),
    ...     side(200),
    ...     side(100)[:2],
    ...     layers="0",
    ...     remedies=[sp.layers.UpdateRemedy.freeze("0")],
    ...     rounds=20,
    ...     batch_size=8,
    ...     measured=20,
    ...     family="logistic",
    ... )
    >>> [(one.name, one.sent) for one in found.outcomes]
    [('as it is', 74), ('0 frozen', 18)]
    """
    if min(rounds, snapshots, known, seen, measured) < 1 or rounds < snapshots:
        raise InputError(
            "rounds, snapshots, known, seen and measured must each be at least 1, and snapshots "
            "must not exceed rounds."
        )
    net = unwrapped(net)
    asked = (layers,) if isinstance(layers, str) else tuple(layers)
    layout = layer_parameters(net, asked)
    sides = [
        _read_side(side, net, loss, f"The {who}'s data")
        for who, side in (("adversary", adversary), ("client", client))
    ]
    trial = _Trial(
        net,
        loss,
        sides,
        read_pair(tuple(test), net, loss, "test"),
        people,
        {"rounds": rounds, "lr": lr, "batch_size": batch_size, "seed": seed},
        {"snapshots": snapshots, "known": known, "seen": seen, "measured": measured},
        family,
        width,
    )
    deviations: list[float] = []
    own = [name for names in layout.values() for name in names]

    def measure(update: Update) -> None:
        parts = torch.cat([update.values[name].flatten() for name in own])
        deviations.append(float(parts.norm()) / math.sqrt(len(parts)))

    first, protect = trial.outcome(None, measure)
    if remedies is None:
        remedies = [
            UpdateRemedy.noise(asked, float(np.median(deviations))),
            UpdateRemedy.freeze(asked),
            UpdateRemedy.rarely(asked, 5),
            UpdateRemedy.low_rank(asked, 4),
        ]
    others = [trial.outcome(remedy)[0] for remedy in progress(remedies, "remedies")]
    return RemedyComparison((first, *others), protect)


class _Side(NamedTuple):
    """The records of the adversary or of the client."""

    x: Inputs
    y: Tensor
    property: np.ndarray


def _read_side(side: Any, net: nn.Module, loss: Any, called: str) -> _Side:
    if not isinstance(side, tuple | list) or len(side) != 3:
        raise InputError(
            f"{called} must be a tuple of inputs, classes and the property of every record."
        )
    x, y = read_pair(tuple(side[:2]), net, loss, called)
    levels, level = read_property(side[2], len(y), "records")
    return _Side(x, y, levels[level])


@dataclass(frozen=True, eq=False)
class _Trial:
    """Settings shared by the runs under all remedies."""

    net: nn.Module
    loss: str | nn.Module | Loss
    sides: Sequence[_Side]
    test: tuple[Inputs, Tensor]
    people: tuple[Any, Any] | None
    training: Mapping[str, Any]
    counts: Mapping[str, int]
    family: Any
    width: int

    def outcome(
        self, remedy: UpdateRemedy | None, observe: Any = None
    ) -> tuple[RemedyOutcome, tuple[str, ...]]:
        rounds, count = self.training["rounds"], self.counts["snapshots"]
        kept = np.linspace(rounds // 2, rounds, count, endpoint=False).round().astype(int)
        run = simulate(
            self.net,
            self.loss,
            [(side.x, side.y) for side in self.sides],
            **self.training,
            remedy=remedy,
            snapshots=sorted(set(kept.tolist())),
            observe=observe,
        )
        attack = self._attack(run, remedy)
        information, protect = self._information(run.net, remedy)
        right = measure_accuracy(run.net, *self.test)
        reach = 1.96 * math.sqrt(right * (1 - right) / len(self.test[1]))
        sent = {k: p.numel() for k, p in run.net.named_parameters() if p.requires_grad}
        if remedy is not None and remedy.kind == "rarely":
            own = layer_sizes(run.net, layer_parameters(run.net, remedy.layers))
            sent["less"] = -round(sum(own.values()) * (1 - 1 / remedy.amount))
        accuracy = Span(right, right - reach, right + reach)
        name = NONE if remedy is None else remedy.name
        return RemedyOutcome(name, attack, information, accuracy, sum(sent.values())), protect

    def _attack(self, run: FederatedRun, remedy: UpdateRemedy | None) -> Span:
        recorded = []
        for number, (side, count) in enumerate(zip(self.sides, ("known", "seen"), strict=True)):
            parts, truths = [], []
            for k, (_, model) in enumerate(run.models()):
                key = self._key(number, k)
                batches = self._batches(side, self.counts[count], key)
                parts.append(self._seen(model, side, batches, remedy, key))
                truths.append(batches.property)
            recorded.append((joined(parts), np.concatenate(truths)))
        adversary = PropertyInference(JOINED, self.family, seed=self.training["seed"])
        result = adversary.fit(*recorded[0]).attack(*recorded[1])
        return Span(result.auc, *result.interval)

    def _information(
        self, net: nn.Module, remedy: UpdateRemedy | None
    ) -> tuple[Span, tuple[str, ...]]:
        x, y = (torch.cat([getattr(side, part) for side in self.sides]) for part in ("x", "y"))
        both = _Side(x, y, np.concatenate([side.property for side in self.sides]))
        people = None if self.people is None else np.concatenate([*map(as_numpy, self.people)])
        batches = self._batches(both, self.counts["measured"], self._key(9, 0), 5, people)
        seen = self._seen(net, both, batches, remedy, self._key(9, 1))
        options = {
            "family": self.family,
            "groups": batches.pool,
            "unit": "bits",
            "seed": self.training["seed"],
        }
        whole = v_information(seen[JOINED], batches.property, **options, width=1 << 30)
        protect: tuple[str, ...] = ()
        if remedy is None:
            protect = tuple(layers_to_protect(v_information(seen, batches.property, **options)))
        return whole.span(*whole.layers), protect

    def _batches(
        self, side: _Side, count: int, key: int, pools: int = 1, people: Any = None
    ) -> Any:
        return property_batches(
            as_numpy(side.y),
            side.property,
            batch_size=self.training["batch_size"],
            count=count,
            pools=pools,
            people=people,
            seed=key,
        )

    def _seen(
        self, net: nn.Module, side: _Side, batches: Any, remedy: UpdateRemedy | None, key: int
    ) -> LayerGradients:
        """Return the updates sent for the batches, with the remedy applied."""
        draw = torch.Generator().manual_seed(key)
        pairs = [
            (rows_of(side.x, rows), side.y[rows]) for rows in map(torch.from_numpy, batches.index)
        ]
        updates = enumerate(batch_gradients(net, self.loss, pairs))
        each = len(pairs) // len(np.unique(batches.property))
        if remedy is None:
            return record_updates(net, (update for _, update in updates), width=self.width)
        leaving = (remedy.applied(update, number % each, draw) for number, update in updates)
        return record_updates(net, leaving, width=self.width)

    def _key(self, *parts: int) -> int:
        seeds = np.random.SeedSequence([self.training["seed"], *parts])
        return int(seeds.generate_state(1)[0])
