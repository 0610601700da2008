"""Figure 2: the attack on several properties, and its correlation with two metrics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from reproduction.drawing import Figure, draw_figure
from reproduction.layers.runs import (
    UNSTATED_BATCHES,
    Runs,
    correlation,
    first_full,
    kept_runs,
    ordinal,
    plot_curve,
    significance,
    written,
)
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, MUTED

NETWORK, TASK = "VGG11Net", "Glasses"
PROPERTIES = ("Age", "Gender", "Hair")
_OTHER_TASK, _OTHER = "Gender", "Glasses"  # of Figure 1, whose AUC the paper's ΔR refers to
_HIGHEST = "9"  # printed: the first dense layer, for every property


def reproduce(quick: bool) -> Outcome:
    """Draw the kept results (fast in either mode)."""
    runs = kept_runs()
    sensitive = runs.sensitivity(NETWORK, TASK)
    quantities = [Quantity("test accuracy in percent", runs.accuracy(NETWORK, TASK))]
    highest, areas, agree = [], [], 0
    elsewhere = runs.curve(NETWORK, _OTHER_TASK, "auc", _OTHER)
    changes: dict[str, list[float]] = {"V-information": [], "sensitivity": []}
    for name in PROPERTIES:
        attack = runs.curve(NETWORK, TASK, "auc", name)
        informed = runs.curve(NETWORK, TASK, "v_information", name)
        first = first_full(attack.layers)
        agree += attack.reaches_the_highest(first)
        why = f"{UNSTATED_BATCHES} (`reproduction/results/layers_lfw.json`; see layers-figure1)."
        quantities += [
            Quantity(
                f"{name}: layer with the highest AUC",
                attack.highest,
                _HIGHEST,
                why,
                comparable=False,
            ),
            Quantity(f"{name}: AUC at its highest layer", float(attack.mean.max())),
            Quantity(f"{name}: AUC at the first dense layer", float(attack.mean[first - 1])),
        ]
        for words, metric in (("V-information", informed), ("sensitivity", sensitive)):
            own = correlation(metric, attack)
            quantities += [
                Quantity(f"{name}: correlation R of {words} and AUC", own),
                Quantity(f"{name}: p of R, {words}", significance(metric, attack)),
                Quantity(
                    f"{name}: ΔR of {words}, against the AUC of Figure 1",
                    correlation(metric, elsewhere) - own,
                ),
            ]
            changes[words].append(correlation(metric, elsewhere) - own)
        highest.append(attack.highest)
        areas.append((name.lower(), attack.mean.max(), attack.mean[first - 1]))
    quantities += [
        Quantity(
            f"correlation of the V-information about {one.lower()} with the AUC for {two.lower()}",
            correlation(
                runs.curve(NETWORK, TASK, "v_information", one),
                runs.curve(NETWORK, TASK, "auc", two),
            ),
        )
        for one, two in permutations(PROPERTIES, 2)
    ]
    shifts = " and ".join(
        f"with {words} changes by {written(min(found))} to {written(max(found))}"
        for words, found in changes.items()
    )
    claim = {
        3: "not significantly below the highest for any property",
        0: "significantly below the highest for all three properties",
    }
    some = f"not significantly below the highest for {agree} of the three properties"
    seen = (
        f"The AUC is highest {_places(highest, areas)}. The AUC of the first dense layer is "
        f"{claim.get(agree, some)}. If the AUC of Figure 1 replaces each property's own, the "
        f"correlation {shifts}. In the paper, it falls for V-information and rises for "
        "sensitivity."
    )
    setting = f"Main task glasses, network {NETWORK}. {runs.setting([(NETWORK, TASK)])}"
    return Outcome(setting, tuple(quantities), seen, _draw(runs), runs.kept())


def _places(highest: Sequence[int], areas: Sequence[tuple[str, float, float]]) -> str:
    """State every property's layer with the highest AUC, and this AUC beside the first dense's."""
    each = [f"{most:.2f} for {name} ({dense:.2f})" for name, most, dense in areas]
    name, most, dense = areas[0]
    each[0] = f"{most:.2f} for {name} (first dense layer {dense:.2f})"
    if len(set(highest)) == 1:
        where = f"at the {ordinal(highest[0])} layer for all three properties: "
        return f"{where}{', '.join(each[:-1])} and {each[-1]}"
    each = [f"at the {ordinal(k)} layer, {one}" for k, one in zip(highest, each, strict=True)]
    return f"{'; '.join(each[:-1])}; and {each[-1]}"


def _draw(runs: Runs) -> Figure:
    sensitive = runs.sensitivity(NETWORK, TASK)

    def fill(canvas: Any) -> None:
        for axes, name in zip(canvas.subplots(1, 3, sharey=True), PROPERTIES, strict=True):
            attack = runs.curve(NETWORK, TASK, "auc", name)
            informed = runs.curve(NETWORK, TASK, "v_information", name)
            plot_curve(axes, attack, BLUE)
            axes.axhline(0.5, color=MUTED, lw=1)
            axes.set_title(
                f"{name}\nR = {written(correlation(informed, attack))} with V-information, "
                f"{written(correlation(sensitive, attack))} with sensitivity",
                fontsize=9.5,
            )
            axes.set_ylabel("AUC of the attack" if name == PROPERTIES[0] else "")

    alternative = f"AUC of the attack on every layer of {NETWORK}. " + "; ".join(
        f"{name}: from {curve.mean.min():.2f} to {curve.mean.max():.2f}, highest at "
        f"{curve.layers[curve.highest - 1]}"
        for name, curve in ((n, runs.curve(NETWORK, TASK, "auc", n)) for n in PROPERTIES)
    )
    return draw_figure("layers-figure2", alternative, fill, (13, 4.2))
