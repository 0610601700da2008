"""What longer training and a second data set change: kept results beside those of the figures.

``layers_accuracy.json`` has the accuracy round by round until it no longer rises, and
``layers_cifar10.json`` the experiment on CIFAR-10 (animal or vehicle; what flies; dogs).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from reproduction.layers.runs import KEPT, UNSTATED, LayerCurve, Runs, first_full
from reproduction.outcome import Quantity
from reproduction.provenance import kept_by
from seepage.tables.names import counted

ACCURACY, OTHER = (KEPT.with_name(f"layers_{name}.json") for name in ("accuracy", "cifar10"))
SPLITS = {"people": "people apart", "images": "random images"}
_BY = {"people": "split by person", "images": "by image"}
_KEYS = {"auc": "AUC", "v_information": "V-information"}


@dataclass(frozen=True, eq=False)
class AccuracyCurves:
    """The accuracies of one network and split, (seeds, points), in percent."""

    rounds: np.ndarray
    test: np.ndarray
    train: np.ndarray

    @property
    def plateau(self) -> np.ndarray:
        """Every seed's mean test accuracy over the last quarter of the training."""
        return np.asarray(self.test[:, self._from(0.75) :].mean(axis=1))

    @property
    def rise(self) -> np.ndarray:
        """Every seed's change from the third quarter to the last."""
        third = self.test[:, self._from(0.5) : self._from(0.75)].mean(axis=1)
        return np.asarray(self.plateau - third)

    def _from(self, share: float) -> int:
        return int(np.searchsorted(self.rounds, share * self.rounds[-1], side="right"))


@dataclass(frozen=True, eq=False)
class LongTraining:
    """The kept accuracies."""

    record: Mapping[str, Any]

    def curves(self, network: str, split: str) -> AccuracyCurves:
        """Return the accuracies of one network and split."""
        runs = [r for r in self.record["runs"] if (r["network"], r["split"]) == (network, split)]
        test, train = (100 * np.array([run[key] for run in runs]) for key in ("test", "train"))
        return AccuracyCurves(np.array(runs[0]["rounds"]), test, train)

    def quantities(self, network: str) -> list[Quantity]:
        """Return what the curves say of a network."""
        out = []
        for split, words in SPLITS.items():
            found = self.curves(network, split)
            name = f"{network}, {self.record['rounds']:,} rounds, {words}"
            out += [
                Quantity(f"{name}: test accuracy at the plateau", float(found.plateau.mean())),
                Quantity(f"{name}: change over the last two quarters", float(found.rise.mean())),
                Quantity(f"{name}: training accuracy at the end", float(found.train[:, -1].mean())),
                Quantity(f"{name}: seeds", len(found.test)),
            ]
        return out

    def why(self, network: str) -> str:
        """State the plateau, and that no longer training would change it."""
        told = []
        for split in SPLITS:
            found = self.curves(network, split)
            low, high = found.plateau.min(), found.plateau.max()
            ends = dict.fromkeys(f"{end:.1f}" for end in (low, high))
            span = " to ".join(ends)
            told.append(f"{span} % ({_BY[split]}, {counted(len(found.test), 'seed')})")
        apart, mixed = (self.curves(network, split) for split in SPLITS)
        rise = max(abs(float(found.rise.mean())) for found in (apart, mixed))
        return (
            f"{UNSTATED}. In the last quarter of {self.record['rounds']:,} rounds, the test "
            f"accuracy is {' and '.join(told)}, at most {rise:.1f} percentage points from the "
            f"third quarter's (training accuracy: {apart.train[:, -1].mean():.1f} %; "
            f"`reproduction/results/{ACCURACY.name}`)."
        )


def layer_quantities(runs: Runs, words: str, task: str, name: str) -> list[Quantity]:
    """Return the highest layers of every network that was kept at least twice."""
    out = []
    for network in networks(runs, task):
        for key, measure in _KEYS.items():
            curve = curve_of(runs, network, task, key, name)
            first = first_full(curve.layers)
            out += [
                Quantity(f"{network}, {words}: layer with the highest {measure}", curve.highest),
                Quantity(f"{network}, {words}: highest {measure}", float(curve.mean.max())),
                Quantity(
                    f"{network}, {words}: {measure} at the first dense layer",
                    float(curve.mean[first - 1]),
                ),
            ]
        sensitive = runs.sensitivity(network, task)
        bare = runs.without_size(network, task)
        out += [
            Quantity(f"{network}, {words}: layer with the highest sensitivity", sensitive.highest),
            Quantity(
                f"{network}, {words}: layer with the highest sensitivity, without ψ", bare.highest
            ),
            Quantity(f"{network}, {words}: test accuracy", runs.accuracy(network, task)),
            Quantity(f"{network}, {words}: repetitions", len(runs.select(network, task))),
        ]
    return out


def curve_of(runs: Runs, network: str, task: str, key: str, name: str) -> LayerCurve:
    """Return a quantity; the confounded AUC where a property belongs to one label alone."""
    kept = runs.select(network, task)[0]["properties"][name]
    return runs.curve(network, task, key if key in kept else f"{key}_confounded", name)


def networks(runs: Runs, task: str) -> list[str]:
    """Return the networks that were kept at least twice, in the paper's order."""
    names = [run["network"] for run in runs.record["runs"] if run["task"] == task]
    return [name for name in ("AlexNet", "VGG11Net", "FCNet") if names.count(name) > 1]


def highest_in_words(runs: Runs, task: str, name: str, key: str = "auc") -> str:
    """State the layer with the highest value of every network, and how far the first dense is.

    The repetitions are paired: two standard errors are those of the difference.
    """
    told = []
    for network in networks(runs, task):
        curve = curve_of(runs, network, task, key, name)
        first = first_full(curve.layers)
        words = f"{network} {curve.layers[curve.highest - 1]} {curve.mean.max():.2f}"
        if curve.highest != first:
            gap = curve.each[:, curve.highest - 1] - curve.each[:, first - 1]
            error = 2 * float(np.std(gap, ddof=1)) / len(gap) ** 0.5
            words += f" ({curve.layers[first - 1]} lower by {gap.mean():.2f} ± {error:.2f})"
        told.append(f"{words}, {len(curve.each)} repetitions")
    return "; ".join(told)


def kept_lines(files: Sequence[Any] = (ACCURACY, OTHER)) -> tuple[str, ...]:
    """Return where the results come from."""
    return tuple(kept_by(path.name, _read(path)) for path in files)


def long_training() -> LongTraining:
    """Return the kept accuracies."""
    return LongTraining(_read(ACCURACY))


def other_runs() -> Runs:
    """Return the layers on CIFAR-10."""
    return Runs(_read(OTHER))


@cache
def _read(path: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
