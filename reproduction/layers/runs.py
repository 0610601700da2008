"""The kept results of Mo et al. 2021's experiment on LFW: what the figures are drawn from.

They were made once, on an accelerator, by :mod:`reproduction.layers.experiment`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.provenance import kept_by
from seepage.errors import InputError
from seepage.layers.measures.per_layer import mean_interval

KEPT = Path(__file__).parents[1] / "results" / "layers_lfw.json"
CHECKS = KEPT.with_name("layers_checks.json")
UNSTATED = "The paper states neither the test split nor the number of rounds"
UNSTATED_BATCHES = (
    "The paper does not state the test split, the number of rounds or the attacker's batches"
)
# Why the most sensitive layers are not the paper's.
SIZE = (
    "Without ψ, which corrects for layer sizes, the most sensitive layer is the "
    "printed one in all seven settings (of layers-figure1 and layers-figure3, "
    "`reproduction/results/layers_lfw.json`): the paper may have left ψ out."
)
TITLES = {
    "v_information": "V-information (nats)",
    "sensitivity": "sensitivity, relative",
    "auc": "AUC of the attack",
}


@dataclass(frozen=True, eq=False)
class LayerCurve:
    """One quantity of every layer: mean over the repetitions, with its 95 % interval."""

    layers: tuple[str, ...]
    each: np.ndarray  # (repetitions, layers)

    @property
    def mean(self) -> np.ndarray:
        """The mean over the repetitions."""
        return mean_interval(self.each)[0]

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The ends of Student's interval."""
        _, low, high = mean_interval(self.each)
        return low, high

    @property
    def highest(self) -> int:
        """The number of the highest layer, counted from 1 as in the paper."""
        return int(np.argmax(self.mean)) + 1

    def reaches_the_highest(self, layer: int) -> bool:
        """Return whether a layer, counted from 1, is not clearly below the highest.

        The repetitions are paired: what counts is the interval of the difference.
        """
        if layer == self.highest:
            return True
        gap = self.each[:, self.highest - 1] - self.each[:, layer - 1]
        return bool(mean_interval(gap[:, None])[1][0] <= 0)

    def relative(self) -> LayerCurve:
        """Return every repetition divided by its largest layer.

        Raw sensitivities of different repetitions cannot be averaged: they grow without bound as
        samples are learnt, by a factor that all layers share.
        """
        return LayerCurve(self.layers, self.each / self.each.max(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Runs:
    """All repetitions, with their provenance."""

    record: dict[str, Any]

    def curve(
        self, network: str, task: str, key: str, property_name: str | None = None
    ) -> LayerCurve:
        """Return one quantity of every layer, over the repetitions.

        ``auc`` and ``auc_confounded`` end with the attack on all layers together, left out here.
        """
        runs = self.select(network, task)
        layers = tuple(runs[0]["layers"])
        if property_name is not None:
            runs = [run["properties"][property_name] for run in runs]
        return LayerCurve(layers, np.array([run[key][: len(layers)] for run in runs]))

    def sensitivity(self, network: str, task: str) -> LayerCurve:
        """Return the sensitivity of every layer relative to the largest of its repetition."""
        return self.curve(network, task, "sensitivity").relative()

    def without_size(self, network: str, task: str) -> LayerCurve:
        """Return the same without the paper's ψ, which divides out a layer's size."""
        plain = self.curve(network, task, "sensitivity")
        root = np.sqrt([self.sizes(network, task)[layer] for layer in plain.layers])
        return LayerCurve(plain.layers, plain.each * root).relative()

    def sizes(self, network: str, task: str) -> dict[str, int]:
        """Return how many numbers each layer's gradient has."""
        run = self.select(network, task)[0]
        return dict(zip(run["layers"], run["sizes"], strict=True))

    def unlike(self, network: str, task: str, property_name: str) -> str:
        """State what is unknown where a layer other than the paper's has the highest risk."""
        return (
            f"{UNSTATED_BATCHES}. Random projection of large layers is not "
            f"the cause ({_seen_whole()})."
        )

    def together(self, network: str, task: str, key: str, property_name: str) -> LayerCurve:
        """Return the attack on all layers together."""
        runs = self.select(network, task)
        values = [[run["properties"][property_name][key][-1]] for run in runs]
        return LayerCurve(("all layers",), np.array(values))

    def accuracy(self, network: str, task: str) -> float:
        """Return the mean test accuracy of the main task, in percent."""
        return 100 * float(np.mean([run["accuracy"] for run in self.select(network, task)]))

    def select(self, network: str, task: str) -> list[dict[str, Any]]:
        """Return the repetitions of a setting."""
        found = [r for r in self.record["runs"] if (r["network"], r["task"]) == (network, task)]
        if len(found) < 2:
            raise InputError(
                f"The kept results hold {len(found)} repetitions of {network} with the main task "
                f"{task}, and two are needed; continue with `python -m "
                "reproduction.layers.experiment`."
            )
        return found

    def setting(self, cases: Sequence[tuple[str, str]]) -> str:
        """Return the setting in words."""
        a = self.record["amounts"]
        counts = sorted({len(self.select(*case)) for case in cases})
        repetitions = "to".join(f" {n} " for n in {counts[0], counts[-1]}).strip()
        return (
            "LFW, 62×47 colour faces. 40 % of the people belong to the attacker, 40 % to the "
            "client, and the others are for testing. Gender was labelled by people; glasses, "
            "age (young) and hair (grey) by a model. FedSGD with two clients, batches of "
            f"{a['batch_size']}, {a['rounds']:,} rounds at learning rate {a['lr']:g} with He "
            "initialisation (paper: rate 0.01, number of rounds not stated). Batches with and "
            "without a property have the same mix of main-task labels, except in results called "
            "confounded. The attacker, a random forest, learns from "
            f"{2 * a['known'] * a['snapshots']} batches over {a['snapshots']} snapshots and is "
            f"tested on {2 * a['seen'] * a['snapshots']} of the client's batches. V-information "
            "(random forest, held out, five pools of people) is estimated from "
            f"{2 * a['measured']} batches at the last model. The median sensitivity over "
            f"{a['samples']} test images (F-norm, target) is relative to the most sensitive layer "
            f"of each repetition. Gradients of more than {a['width']:,} numbers are randomly "
            f"projected to {a['width']:,} dimensions. {repetitions} repetitions."
        )

    def kept(self) -> tuple[str]:
        """Return where the results come from."""
        return (kept_by(KEPT.name, self.record),)


@cache
def kept_runs() -> Runs:
    """Return the kept results."""
    if not KEPT.exists():
        raise InputError(
            f"The kept results {KEPT.name} are not there; make them with `python -m "
            f"reproduction.layers.experiment --device cuda --out {KEPT.name}`."
        )
    return Runs(json.loads(KEPT.read_text(encoding="utf-8")))


@cache
def kept_checks() -> list[dict[str, Any]]:
    """Return what :mod:`reproduction.layers.checks` wrote: a row for every repetition."""
    if not CHECKS.exists():
        raise InputError(
            f"The kept results {CHECKS.name} are not there; make them with `python -m "
            f"reproduction.layers.checks --out {CHECKS.name}`."
        )
    rows: list[dict[str, Any]] = json.loads(CHECKS.read_text(encoding="utf-8"))["rows"]
    return rows


def _seen_whole() -> str:
    """State the effect of showing the adversary all numbers of a large layer."""
    row = kept_checks()[0]
    return (
        f"in one run without it, FCNet's fc1 has an AUC of {row['whole']['fc1']:.2f} instead of "
        f"{row['projected']['fc1']:.2f}, and fc2 has {row['whole']['fc2']:.2f}, "
        "`reproduction/results/layers_checks.json`"
    )


def correlation(a: LayerCurve, b: LayerCurve) -> float:
    """Return Pearson's correlation of two quantities' means over the layers."""
    return float(np.corrcoef(a.mean, b.mean)[0, 1])


def significance(a: LayerCurve, b: LayerCurve) -> float:
    """Return the p-value of that correlation, treating layers as independent as the paper does."""
    from scipy.stats import pearsonr

    return float(pearsonr(a.mean, b.mean).pvalue)


def written(value: float) -> str:
    """Write a correlation with two digits and a proper minus sign.

    Examples
    --------
    >>> from reproduction.layers.runs import written
    >>> written(-0.4567)
    '−0.46'
    """
    return f"{value:z.2f}".replace("-", "−")


def ordinal(layer: int) -> str:
    """Write a layer's number as an ordinal.

    Examples
    --------
    >>> from reproduction.layers.runs import ordinal
    >>> ordinal(1), ordinal(4), ordinal(11)
    ('1st', '4th', '11th')
    """
    return f"{layer}" + {1: "st", 2: "nd", 3: "rd"}.get(layer, "th")


def plot_curve(axes: Any, curve: LayerCurve, colour: str, mark: str = "o", label: str = "") -> None:
    """Draw the means of a curve with their intervals, and a broken line where full layers begin."""
    places = np.arange(1, len(curve.layers) + 1)
    low, high = curve.ends
    axes.errorbar(
        places,
        curve.mean,
        yerr=np.abs(np.stack([curve.mean - low, high - curve.mean])),
        fmt=f"{mark}-",
        color=colour,
        lw=1.5,
        ms=4.5,
        capsize=2.5,
        label=label or None,
    )
    first = first_full(curve.layers)
    if first > 1:
        axes.axvline(first - 0.5, color="#55606d", lw=1, ls=(0, (4, 3)))
    axes.set_xticks(places, curve.layers, rotation=60, ha="right", fontsize=8)


def first_full(layers: Sequence[str]) -> int:
    """Return the number of the first fully connected layer, counted from 1."""
    return layers.index("fc1") + 1
