"""Property inference with shadow clients, trained from the models that were sent.

The attacker of Melis et al. 2019 and Mo et al. 2021 has data like the clients', with and without
the property, and sees the model of every round. From several of these models, the attacker trains
shadow clients in the same way as the real clients are trained: some whose data have the property,
and some whose data do not. A classifier then learns to distinguish the updates of the two kinds,
for each layer and for all layers together, and scores the real clients. No real client's property
is used, so the scores can be tested exactly (:mod:`seepage.layers.measures.client_scores`).

In every round and layer, updates are centred on the mean over the clients and scaled. The scaled
updates and their absolute values are averaged over a client's rounds. A property need not shift the
mean update: brighter inputs x, for example, enlarge the gradients δ xᵀ of the weights that read
them, but the sign of the error δ differs from client to client. One classifier learns from the
updates, one from the absolute values, and a logistic regression on their held-out predictions
weighs both (stacking, Wolpert 1992). Real and shadow clients each have their own mean and scale, so
a learning rate that differs slightly from the real one does little harm. In a round with fewer than
four real clients, the mean and scale of the shadow clients are used.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from seepage.attacks.intervals import area_under_curve
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.client_identity import one_run
from seepage.layers.federated.client_means import ClientRounds
from seepage.layers.federated.gradients import JOINED, LayerGradients
from seepage.layers.federated.recording import record_updates
from seepage.layers.federated.rounds import Client, Update, simulate
from seepage.layers.federated.sent_models import Models, Sent, model_of
from seepage.layers.federated.sent_names import with_own_names
from seepage.layers.federated.stored_recordings import load_models
from seepage.layers.inputs_and_targets import read_pair
from seepage.layers.layer_parameters import layer_parameters
from seepage.layers.measures.classifiers import find_classifier
from seepage.layers.measures.client_scores import (
    ClientScores,
    areas,
    labellings,
    standardised,
    stepped_down,
)
from seepage.layers.measures.per_layer import PerLayer
from seepage.layers.measures.property_batches import property_batches, read_property
from seepage.layers.recording_audit import KnownUpdates, Recording, read_recording
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.problem.problem import Loss
from seepage.support.chunks import progress
from seepage.support.number_check import check_count, check_positive
from seepage.tables.names import counted, listed
from seepage.tables.source import as_numpy

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_RECORDS = ("num-examples", "num_examples", "num_samples")  # metrics with a client's size


@accepts_other_names
@dataclass(eq=False)
class ShadowClients:
    """An attacker who trains shadow clients from the models sent, on data like the clients' data.

    Parameters
    ----------
    net, loss
        The network as the clients train it (LoRA, BatchNorm, frozen layers), and its loss as for
        :class:`seepage.nn.Engine`. The network's parameters are replaced by those of the models
        sent.
    auxiliary
        The attacker's data: inputs and targets.
    property
        The property of every auxiliary record, ``(n,)``, with the same values as the clients'
        property.
    lr, batch_size, local_epochs, local_steps, optimizer
        The clients' training, as for :func:`seepage.layers.simulate`; ``optimizer`` may also be
        ``"sgd"``, ``"adam"`` or ``"adamw"``. By default, clients train for one epoch.
    method
        ``"fedavg"``, or ``"fedsgd"`` if clients send the gradient of one batch.
    records
        The number of records of a shadow client; by default, the median of the metric
        ``num-examples``, if the clients sent it.
    clients
        The number of shadow clients for each value of the property.
    rounds
        The number of rounds to train in, evenly spaced; more are used if a client would otherwise
        be left out.
    mix
        ``"confounded"``: labels as they occur together with the property. ``"matched"``: the same
        mix of labels for every value, as in :func:`seepage.layers.property_batches`.
    classifier
        As for :class:`PropertyInference`.
    seed
        The seed of all random draws.

    Examples
    --------
    >>> import numpy as np, torch, seepage as sp
    >>> draw, _ = torch.Generator().manual_seed(0), torch.manual_seed(0)
    >>> def client(bright, records=32):
    ...     x = torch.randn(records, 4, generator=draw) + torch.tensor([0, 0, 0, 3.0 * bright])
    ...     return x, (x[:, 0] > 0).long()
    >>> net, seen = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)), []
    >>> run = sp.layers.simulate(
    ...     net, "cross_entropy", [client(k % 2) for k in range(12)], rounds=2, method="fedavg",
    ...     local_epochs=1, batch_size=8, snapshots=range(2), observe=seen.append
    ... )
    >>> x, y = (torch.cat(part) for part in zip(client(0, 200), client(1, 200)))
    >>> attacker = sp.attacks.ShadowClients(
    ...     net, "cross_entropy", (x, y), np.repeat([0, 1], 200), lr=0.01, batch_size=8, records=32
    ... )
    >>> bright = {k: k % 2 for k in range(12)}
    >>> seen = sp.layers.record_updates(net, seen)
    >>> attacker.attack(seen, bright, models=run.snapshots)["0.buffers"] > 0.9
    True
    """

    net: nn.Module
    loss: str | nn.Module | Loss
    auxiliary: tuple[Any, Any]
    property: Any
    lr: float = 0.01
    batch_size: int = 32
    local_epochs: int | None = None
    local_steps: int | None = None
    optimizer: str | Callable[[list[Tensor]], torch.optim.Optimizer] | None = None
    method: str = "fedavg"
    records: int | None = None
    clients: int = 45
    rounds: int = 8
    mix: str = "confounded"
    classifier: Any = "logistic"
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        check_count(self.clients, "clients", 2)
        check_count(self.rounds, "rounds")
        self.net = unwrapped(self.net)
        self.auxiliary = read_pair(self.auxiliary, self.net, self.loss, "The auxiliary data")
        levels, _ = read_property(self.property, len(self.auxiliary[1]), "auxiliary records")
        if len(levels) < 2:
            raise InputError(
                "All auxiliary records have the same property; add records with another value."
            )
        find_classifier(self.classifier, self.seed)
        if isinstance(self.optimizer, str):
            if self.optimizer not in OPTIMIZERS:
                raise InputError(
                    f"optimizer must be {listed(list(OPTIMIZERS))}, or a function that creates "
                    f"an optimiser, not {self.optimizer!r}."
                )
            self.optimizer = partial(OPTIMIZERS[self.optimizer], lr=self.lr)

    def scores(self, recording: Recording, *, models: Any = None) -> ClientScores:
        """Return the score of every client of a recording, for each layer and for all layers.

        ``models`` are the models sent, ``{round: state}``; by default, those of the recording's
        folder or file.
        """
        seen = read_recording(recording)
        seen = seen.rows(one_run(seen)[0])
        sent = _models(recording, models)
        who = ClientRounds.of(seen)
        data, values = self._shadow_data(seen)
        stages = self._stages(who)
        total: dict[str, np.ndarray] = {}
        own: dict[str, np.ndarray] = {}
        count = np.zeros(len(who.clients))
        left_out: set[str] = set()
        for place, (number, run) in enumerate(progress(stages, "shadow clients")):
            rows = np.flatnonzero((who.round == number) & (who.run == run))
            state = model_of(sent, Sent(who.rounds[number], int(run)))
            recorded = self._trained(state, data, seen, self.seed + place)
            left_out |= set(seen.layers) - set(recorded.layers)
            np.add.at(count, who.client[rows], 1)
            for layer in recorded.layers:
                moves, block = np.asarray(recorded[layer], float), np.asarray(seen[layer], float)
                centred, scale, mean = _standard(moves)
                moved = block[rows]
                moved = _standard(moved)[0] if len(rows) >= 4 else (moved - mean) / scale
                total[layer] = total.get(layer, 0.0) + _with_sizes(centred) / len(stages)
                own.setdefault(layer, np.zeros((2, len(who.clients), block.shape[1])))
                for part, each in zip(own[layer], _with_sizes(moved), strict=True):
                    np.add.at(part, who.client[rows], each)
        shadow = {**total, JOINED: np.concatenate(list(total.values()), axis=2)}
        real = {layer: each / np.maximum(count, 1)[:, None] for layer, each in own.items()}
        real[JOINED] = np.concatenate(list(real.values()), axis=2)
        classes, target = np.unique(values, return_inverse=True)
        found = [self._log_chances(shadow[layer], target, real[layer]) for layer in shadow]
        notes = [
            f"The attacker trained {counted(len(values), 'shadow client')}, each with "
            f"{counted(len(data[0][1]), 'record')}, in {counted(len(stages), 'round')}."
        ]
        if left_out:
            notes.append(f"Left out, as not sent by shadow clients: {listed(sorted(left_out))}.")
        return ClientScores(
            tuple(map(str, who.clients)),
            tuple(shadow),
            np.stack(found),
            tuple(map(str, classes)),
            len(values),
            tuple(notes),
        )

    def attack(
        self,
        recording: Recording,
        property: Any,
        *,
        models: Any = None,
        permutations: int = 999,
    ) -> PerLayer:
        """Return the AUC over clients, for each layer and for all layers together, with intervals.

        The column ``p_value`` is adjusted for the number of layers. ``property`` is that of the
        clients, as for :func:`seepage.layers.audit_recording`; it must have the same value for all
        updates of a client.
        """
        known = KnownUpdates.read(recording, property, 2)
        if not known.by_client:
            raise InputError(
                "A client has several values of the property, but each shadow client has only one; "
                "give each client one value."
            )
        given = _models(recording, models)
        return area_by_layer(
            self.scores(known.seen, models=given), known, permutations=permutations, seed=self.seed
        )

    def _log_chances(self, shadow: np.ndarray, target: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return the log-probability of each class for real clients, from both classifiers."""
        folds = StratifiedKFold(min(5, self.clients), shuffle=True, random_state=self.seed)
        held_out, own = [], []
        for moves, moved in zip(shadow, real, strict=True):
            model = find_classifier(self.classifier, self.seed)
            options: dict[str, Any] = {"cv": folds, "method": "predict_proba"}
            held_out.append(_log(cross_val_predict(model, moves, target, **options)))
            own.append(_log(model.fit(moves, target).predict_proba(moved)))
        weighing = make_pipeline(StandardScaler(), LogisticRegression())
        weighing.fit(np.concatenate(held_out, axis=1), target)
        return _log(weighing.predict_proba(np.concatenate(own, axis=1)))

    def _shadow_data(self, seen: LayerGradients) -> tuple[list[Client], np.ndarray]:
        """Return the data of every shadow client, and its property."""
        x, y = self.auxiliary
        labels = as_numpy(y)
        if labels.ndim != 1 or labels.dtype.kind not in "iub":
            labels = np.zeros(len(labels), dtype=int)  # quantities have no mix
        sizes = [seen.metrics[name] for name in _RECORDS if name in seen.metrics]
        if self.records is None and not sizes:
            raise InputError(
                "The recording does not state how many records a client has (metric "
                "'num-examples'); give records= (on the command line, --client-size)."
            )
        records = self.records or int(np.nanmedian(sizes[0]))
        batches = property_batches(
            labels,
            as_numpy(self.property),
            batch_size=records,
            count=self.clients,
            mix=self.mix,
            seed=self.seed,
        )
        return list(batches.of(x, y)), np.asarray(batches.property)

    def _stages(self, who: ClientRounds) -> list[tuple[int, int]]:
        """Return the rounds and runs to train in; every client takes part in at least one."""
        every = sorted({(int(k), int(run)) for k, run in zip(who.round, who.run, strict=True)})
        spaced = np.linspace(0, len(every) - 1, min(self.rounds, len(every)))
        chosen = {every[round(float(k))] for k in spaced}
        stage = list(zip(who.round.tolist(), who.run.tolist(), strict=True))
        for client in range(len(who.clients)):
            own = [stage[k] for k in np.flatnonzero(who.client == client)]
            if not chosen & set(own):
                chosen.add(own[0])
        return sorted(chosen)

    def _trained(
        self, state: Mapping[str, Tensor], data: list[Client], seen: LayerGradients, seed: int
    ) -> LayerGradients:
        """Return the updates of shadow clients that start from a sent model."""
        net = copy.deepcopy(self.net)
        own = with_own_names(net, state)
        missing = [k for k, p in net.named_parameters() if p.requires_grad and k not in own]
        if missing:
            raise InputError(
                f"The model that was sent lacks the parameter {missing[0]!r} of this network; give "
                "the network that the clients trained."
            )
        try:
            net.load_state_dict(own, strict=False)
        except RuntimeError as error:
            raise InputError(
                "The parameters that were sent differ in shape from this network's; give the "
                f"network that the clients trained ({str(error).splitlines()[-1].strip()})."
            ) from None
        updates: list[Update] = []
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # of dropout
            simulate(
                net,
                self.loss,
                data,
                rounds=1,
                observe=updates.append,
                seed=seed,
                **self._recipe(),
            )
        named = layer_parameters(net)
        layers = None if set(seen.parameters) <= set(named) else list(seen.parameters)
        recorded = record_updates(net, updates, layers=layers, like=seen)
        shared = [layer for layer in recorded.layers if layer in seen.layers]
        if not shared:
            raise InputError(
                "The recording and this network have no layer in common; give the network that the "
                "clients trained."
            )
        recorded = recorded.only(*shared)
        seen.only(*shared).check_same_projection(recorded)
        return recorded

    def _recipe(self) -> dict[str, Any]:
        recipe: dict[str, Any] = {"method": self.method, "lr": self.lr}
        recipe["batch_size"] = self.batch_size
        if self.method == "fedsgd":
            return recipe
        if self.local_steps is not None:
            recipe["local_steps"] = self.local_steps
        else:
            recipe["local_epochs"] = self.local_epochs or 1
        return recipe | {"optimizer": self.optimizer}


def area_by_layer(
    scores: ClientScores, known: KnownUpdates, *, permutations: int = 999, seed: int = 0
) -> PerLayer:
    """Return the AUC over clients of every layer of an attacker's scores, with intervals."""
    levels, label = read_property(known.values, len(known.seen), "updates")
    own = np.zeros(len(known.who.clients), dtype=int)
    own[known.who.client] = label
    values = scores.of(known.who.clients, levels)
    tried = labellings(own, permutations, seed)
    p_values = stepped_down(standardised(np.stack([areas(each, tried) for each in values])))
    spans = []
    for each in values:
        pair = each.shape[1] == 2
        found = [
            area_under_curve(each[:, k] - each[:, 1 - k] if pair else each[:, k], own == k)
            for k in ([1] if pair else range(each.shape[1]))
        ]
        spans.append(np.mean([(area, *interval) for area, interval in found], axis=0))
    sizes = {**known.seen.sizes, JOINED: sum(known.seen.sizes.values())}
    return PerLayer.of(
        f"property inference with {counted(scores.shadows, 'shadow client')}, AUC",
        scores.layers,
        np.array(spans).T,
        [sizes[layer] for layer in scores.layers],
        kind="attack",
        columns={"p_value": p_values},
        notes=(*known.seen.projection_notes(), *scores.notes),
    )


def _standard(moves: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Return a round's updates, centred and scaled, with their scale and mean."""
    mean = moves.mean(axis=0)
    scale = float(np.sqrt(np.mean((moves - mean) ** 2))) or 1.0
    return (moves - mean) / scale, scale, mean


def _with_sizes(moves: np.ndarray) -> np.ndarray:
    """Return updates and their absolute values, ``(2, clients, entries)``."""
    return np.stack([moves, np.abs(moves)])


def _log(chances: Any) -> np.ndarray:
    return np.asarray(np.log(np.maximum(chances, np.finfo(float).tiny)))


def _models(recording: Recording, models: Any) -> Models:
    """Return the models sent, given by round or read from the recording."""
    if models is not None:
        return {
            key
            if isinstance(key, Sent)
            else Sent(*key)
            if isinstance(key, tuple)
            else Sent(int(key)): {name: torch.as_tensor(value) for name, value in state.items()}
            for key, state in models.items()
        }
    found: Models = {}
    for place in _paths(recording):
        found |= load_models(place)
    if not found:
        raise InputError(
            "The recording lacks the models sent to the clients, which shadow clients start from. "
            "Record them (UpdateRecorder(…, models=True), or save_gradients(…, "
            "models=run.snapshots)), or give models={round: state}."
        )
    return found


def _paths(recording: Recording) -> Iterator[str | os.PathLike[str]]:
    if isinstance(recording, str | os.PathLike):
        yield recording
    elif not isinstance(recording, LayerGradients):
        for each in recording:
            yield from _paths(each)
