"""One repetition of Mo et al. 2021's experiment: train in rounds, then measure every layer.

Half of the people outside the test set belong to the adversary, the other half to the client under
attack, so that no person is on both sides, unless images are split at random. Snapshots are taken
over the second half of the training; V-information and sensitivity are measured on the last model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reproduction.layers.image_sets import LabelledImages
from reproduction.layers.networks import alexnet, fcnet, vgg11net
from seepage.attacks import attack_layers
from seepage.layers import (
    FederatedRun,
    LayerGradients,
    property_batches,
    record_gradients,
    sensitivity,
    simulate,
    v_information,
)
from seepage.layers.federated.gradients import joined
from seepage.nn.training.private_sgd import measure_accuracy

NETWORKS = {"AlexNet": alexnet, "VGG11Net": vgg11net, "FCNet": fcnet}


@dataclass(frozen=True)
class LayerSetting:
    """A network, its main task, and the properties that are inferred.

    Parameters
    ----------
    network, task
        A name in :data:`NETWORKS`, and a label of the images.
    properties
        Labels of the images; none if only the sensitivity is wanted.
    confounded
        Whether batches with each property's own mix of labels are attacked too.
    split
        What is kept apart between adversary, client and test: ``"people"``, or only ``"images"``.
    attacker
        The classifier of the attack, by its name in :func:`seepage.attacks.attack_layers`.
    """

    network: str
    task: str
    properties: tuple[str, ...] = ()
    confounded: bool = False
    split: str = "people"
    attacker: str = "random_forest"

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.network}, {self.task}"


@dataclass(frozen=True)
class Amounts:
    """How much is trained and drawn.

    Parameters
    ----------
    rounds, lr, batch_size
        Of FedSGD with two clients.
    snapshots
        Global models that the adversary keeps.
    known, seen
        Batches per snapshot and class of a property: the adversary's own, and the client's.
    measured
        Batches per class of a property for V-information.
    samples
        Images for the sensitivity.
    width
        Numbers kept of a layer's gradient.
    """

    rounds: int = 1500
    lr: float = 0.05
    batch_size: int = 32
    snapshots: int = 10
    known: int = 20
    seen: int = 15
    measured: int = 150
    samples: int = 256
    width: int = 2048


class LayerRepetition:
    """One setting with one seed.

    Parameters
    ----------
    data
        The images.
    setting, amounts
        The setting, and its sizes.
    number
        Of the repetition: the seed of the split, of the start and of all draws.
    """

    def __init__(
        self, data: LabelledImages, setting: LayerSetting, amounts: Amounts, number: int
    ) -> None:
        self.data, self.setting, self.amounts, self.number = data, setting, amounts, number
        known = ~np.isnan(data.labels[setting.task])
        for name in setting.properties:
            known &= ~np.isnan(data.labels[name])
        draw = np.random.default_rng(number)
        place = draw.permutation(data.people.max() + 1) / (data.people.max() + 1)
        place = place[data.people]
        self.adversary = np.flatnonzero(known & (place < 0.4))
        self.client = np.flatnonzero(known & (place >= 0.4) & (place < 0.8))
        self.test = np.flatnonzero(known & (place >= 0.8))
        if setting.split == "images":  # as many on each side, whoever they show
            parts = [self.adversary, self.client, self.test]
            drawn = np.random.default_rng(number).permutation(np.concatenate(parts))
            ends = np.cumsum([len(part) for part in parts[:2]]).tolist()
            self.adversary, self.client, self.test = (np.sort(p) for p in np.split(drawn, ends))

    def run(self) -> dict[str, Any]:
        """Train, measure, attack; return plain numbers."""
        device = self.data.images.device
        (xa, ya), (xc, yc), (xt, yt) = map(self.task, (self.adversary, self.client, self.test))
        torch.manual_seed(self.number)
        net = started(NETWORKS[self.setting.network](size=self.data.size)).to(device)
        last = self.amounts.rounds
        kept = np.linspace(last // 2, last, self.amounts.snapshots + 1).round().astype(int).tolist()
        run = simulate(
            net,
            "cross_entropy",
            [(xa, ya), (xc, yc)],
            rounds=last,
            batch_size=self.amounts.batch_size,
            lr=self.amounts.lr,
            snapshots=kept,
            seed=self.number,
        )
        few = np.random.default_rng((self.number, 1)).permutation(len(yt))[: self.amounts.samples]
        rows = torch.from_numpy(few).to(device)
        found = sensitivity(run.net, "cross_entropy", xt[rows], yt[rows])
        answer: dict[str, Any] = {
            "network": self.setting.network,
            "task": self.setting.task,
            "repetition": self.number,
            "accuracy": measure_accuracy(run.net, xt, yt),
            "majority": float(max(yt.double().mean(), 1 - yt.double().mean())),
            "layers": list(found.layers),
            "sizes": list(found.sizes),
            # The median: a mean would be dominated by the few samples that the network is surest
            # of.
            "sensitivity": rounded(found.columns["median"]),
            "properties": {},
        }
        for name in self.setting.properties:
            answer["properties"][name] = self._property(name, run, (xa, ya), (xc, yc))
        return answer

    def _property(
        self,
        name: str,
        run: FederatedRun,
        adversary: tuple[Tensor, Tensor],
        client: tuple[Tensor, Tensor],
    ) -> dict[str, list[float]]:
        answer = {}
        mixes = self.mixes(name)
        for mix in mixes:
            parts = []
            for rows, side, count, seed in (
                (self.adversary, adversary, self.amounts.known, 2),
                (self.client, client, self.amounts.seen, 3),
            ):
                parts.append(self.at_snapshots(name, run, rows, side, count, mix, seed))
            (known, known_property), (seen, seen_property) = parts
            attack = attack_layers(
                known,
                known_property,
                seen,
                seen_property,
                classifier=self.setting.attacker,
                seed=self.number,
            )
            answer["auc" if mix == "matched" else "auc_confounded"] = rounded(attack.values)
        both = np.concatenate([self.adversary, self.client])
        x, y = (torch.cat(pair) for pair in zip(adversary, client, strict=True))
        batches = property_batches(
            y.cpu().numpy(),
            self.data.labels[name][both],
            batch_size=self.amounts.batch_size,
            count=self.amounts.measured,
            mix=mixes[0],
            pools=5,
            people=self.data.people[both],
            seed=(self.number * 10 + 4),
        )
        recorded = record_gradients(
            run.net, "cross_entropy", list(batches.of(x, y)), width=self.amounts.width
        )
        information = v_information(
            recorded, batches.property, groups=batches.pool, resamples=2, seed=self.number
        )
        answer["v_information"] = rounded(information.values)
        answer["training_set_estimate"] = rounded(information.columns["training_set_estimate"])
        answer["p_value"] = rounded(information.columns["p_value"])
        return answer

    def mixes(self, name: str) -> tuple[str, ...]:
        """Return the mixes of labels to attack; a property of one task label alone has one."""
        labels = self.data.labels[self.setting.task], self.data.labels[name]
        pairs = {tuple(pair) for pair in np.stack(labels, 1)[self.client].tolist()}
        if len(pairs) < 4:  # a batch with the property tells the label, so none can be matched
            return ("confounded",)
        return ("matched", "confounded") if self.setting.confounded else ("matched",)

    def at_snapshots(
        self,
        name: str,
        run: FederatedRun,
        rows: np.ndarray,
        side: tuple[Tensor, Tensor],
        count: int,
        mix: str,
        seed: int,
    ) -> tuple[LayerGradients, np.ndarray]:
        """Return gradients of batches by property, at every snapshot but the last."""
        x, y = side
        recordings, truths = [], []
        for k, (_, net) in enumerate(list_but_last(run)):
            batches = property_batches(
                y.cpu().numpy(),
                self.data.labels[name][rows],
                batch_size=self.amounts.batch_size,
                count=count,
                mix=mix,
                seed=self.number * 1000 + k * 10 + seed,
            )
            recordings.append(
                record_gradients(
                    net, "cross_entropy", list(batches.of(x, y)), width=self.amounts.width
                )
            )
            truths.append(batches.property)
        return joined(recordings), np.concatenate(truths)

    def task(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return some images with their labels of the main task."""
        labels = torch.from_numpy(self.data.labels[self.setting.task][rows]).long()
        return self.data.inputs(rows), labels.to(self.data.images.device)


def list_but_last(run: FederatedRun) -> Any:
    """Yield all snapshots but the last."""
    number = max(run.snapshots)
    return ((k, net) for k, net in run.models() if k != number)


def started(net: nn.Module) -> nn.Module:
    """Return the network with He's initialisation (2015), from which plain SGD learns at once."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return net


def rounded(values: Any) -> list[float]:
    """Return numbers with five digits, to keep the file small."""
    return [float(f"{value:.5g}") for value in np.asarray(values, dtype=float)]
