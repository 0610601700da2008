"""Paper 003, Figure 2: the attack on several properties, and how the two metrics go with it."""

from __future__ import annotations

from typing import Any

from reproduction.drawing import Figure, draw_figure
from reproduction.layers.runs import (
    Runs,
    correlation,
    first_full,
    kept_runs,
    ordinal,
    plot_curve,
    rankings,
    written,
)
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, MUTED

NETWORK, TASK = "VGG11Net", "Glasses"
PROPERTIES = ("Age", "Gender", "Hair")
_HIGHEST = "9"  # printed: the first full layer, for every property


def reproduce(quick: bool) -> Outcome:
    """Draw the kept results; there is nothing to hurry."""
    runs = kept_runs()
    sensitive = runs.sensitivity(NETWORK, TASK)
    quantities = [Quantity("test accuracy in percent", runs.accuracy(NETWORK, TASK))]
    told, agree = [], 0
    ranked = {"sensitivity": sensitive}
    for name in PROPERTIES:
        attack = runs.curve(NETWORK, TASK, "auc", name)
        informed = runs.curve(NETWORK, TASK, "v_information", name)
        first = first_full(attack.layers)
        agree += attack.reaches_the_highest(first)
        quantities += [
            Quantity(f"{name}: layer with the highest AUC", attack.highest, _HIGHEST),
            Quantity(f"{name}: AUC at its highest layer", float(attack.mean.max())),
            Quantity(f"{name}: AUC at the first full layer", float(attack.mean[first - 1])),
            Quantity(
                f"{name}: correlation of V-information and AUC", correlation(informed, attack)
            ),
            Quantity(f"{name}: correlation of sensitivity and AUC", correlation(sensitive, attack)),
        ]
        told.append(
            f"{name.lower()} at the {ordinal(attack.highest)} ({attack.mean.max():.2f}; first full "
            f"layer {attack.mean[first - 1]:.2f})"
        )
        ranked[f"the AUC for {name.lower()}"] = attack
        ranked[f"the V-information about {name.lower()}"] = informed
    claim = {3: "not clearly below the highest for any property", 0: "clearly below for all three"}
    seen = (
        f"The AUC is highest for {', '.join(told)}; the first full layer, the paper's highest, is "
        f"{claim.get(agree, f'not clearly below the highest for {agree} of the three')}. "
        f"The layers from the highest down: {rankings(ranked)}."
    )
    setting = f"Main task glasses, network {NETWORK}. {runs.setting([(NETWORK, TASK)])}"
    return Outcome(setting, tuple(quantities), seen, _draw(runs))


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
