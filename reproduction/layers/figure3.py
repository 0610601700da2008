"""Figure 3: sensitivity relative to its largest layer, under different main tasks."""

from __future__ import annotations

from typing import Any

from reproduction.drawing import Figure, draw_figure
from reproduction.layers.runs import (
    LayerCurve,
    Runs,
    first_full,
    kept_runs,
    ordinal,
    plot_curve,
)
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, GREEN, VERMILLION

TASKS = {"Gender": (VERMILLION, "o"), "Glasses": (BLUE, "s"), "Hair": (GREEN, "D")}
NETWORKS = {"AlexNet": "4", "VGG11Net": "9"}  # with the printed highest layer


def reproduce(quick: bool) -> Outcome:
    """Draw the kept results (fast in either mode)."""
    runs = kept_runs()
    quantities, told = [], []
    for network, printed in NETWORKS.items():
        curves = _curves(runs, network)
        first = first_full(curves["Gender"].layers)
        for task, curve in curves.items():
            quantities += [
                Quantity(
                    f"{network}, {task}: most sensitive layer",
                    curve.highest,
                    printed,
                    "Without ψ, the printed layer is the most sensitive "
                    "(`reproduction/results/layers_lfw.json`; see layers-figure1).",
                    comparable=False,
                ),
                Quantity(
                    f"{network}, {task}: most sensitive layer, without ψ",
                    runs.without_size(network, task).highest,
                ),
            ]
            quantities.append(
                Quantity(
                    f"{network}, {task}: first dense layer relative to it",
                    float(curve.mean[first - 1]),
                )
            )
        for place, words, wanted in ((first, "lowest", True), (first + 1, "highest", False)):
            others = [c.mean[place - 1] for task, c in curves.items() if task != "Gender"]
            own = curves["Gender"].mean[place - 1]
            held = own < min(others) if wanted else own > max(others)
            name = curves["Gender"].layers[place - 1]
            claim = f"{network}: gender {words} of the tasks at {name} (1: yes)"
            why, apart = _order(runs, network, place, words)
            # Undecided where gender is not clearly apart from both other tasks.
            tied = len(apart) < len(others)
            found = Quantity(claim, float(held), "1", why, comparable=False, tied=tied)
            quantities.append(found)
        places = sorted({curve.highest for curve in curves.values()})
        told.append(f"{network}'s {' or '.join(map(ordinal, places))}")
    seen = (
        "In the paper, the first dense layer is the most sensitive (AlexNet's 4th and VGG11Net's "
        f"9th). Here, the most sensitive is {' and '.join(told)} layer; without the correction ψ "
        "for layer sizes, it is the first dense layer."
    )
    cases = [(network, task) for network in NETWORKS for task in TASKS]
    return Outcome(runs.setting(cases), tuple(quantities), seen, _draw(runs), runs.kept())


def _order(runs: Runs, network: str, place: int, which: str) -> tuple[str, list[str]]:
    """Compare the tasks at a layer, counted from 1; return the words, and who differs from gender.

    Beside the share of the largest layer, the task that is ``which`` (lowest or highest) by the
    share of the sum of all layers, and without ψ.
    """
    curves = _curves(runs, network)
    means = [_at(task, curve, place) for task, curve in curves.items()]
    ends = {
        task: tuple(float(end[place - 1]) for end in curve.ends) for task, curve in curves.items()
    }
    low, high = ends.pop("Gender")
    apart = [task.lower() for task, (a, b) in ends.items() if a > high or b < low]
    ways = []
    for words, other in (
        ("As a share of the sum over layers", {n: _of_sum(runs, network, n) for n in TASKS}),
        ("Without ψ", {n: runs.without_size(network, n) for n in TASKS}),
    ):
        values = {task: float(curve.mean[place - 1]) for task, curve in other.items()}
        ranked = sorted(values, key=values.__getitem__)
        task = ranked[-1 if which == "highest" else 0]
        # Relative to the most sensitive layer, which is this one for every task
        alike = max(values.values()) - min(values.values()) < 1e-9
        one = "all three values are 1, the largest possible"
        ways.append(f"{words}, {one if alike else f'{task.lower()} is {which}'}")
    *first, last = means
    return (
        "Sensitivity relative to the most sensitive layer: "
        f"{', '.join(first)} and {last} (± two standard errors). "
        f"{'. '.join(ways)} (`reproduction/results/layers_lfw.json`).",
        apart,
    )


def _at(task: str, curve: LayerCurve, place: int) -> str:
    each = curve.each[:, place - 1]
    error = 2 * each.std(ddof=1) / len(each) ** 0.5
    return f"{task.lower()} {each.mean():.3f} ± {error:.3f}"


def _of_sum(runs: Runs, network: str, task: str) -> LayerCurve:
    """Return the sensitivity of every layer as a share of the sum over the layers."""
    plain = runs.curve(network, task, "sensitivity")
    return LayerCurve(plain.layers, plain.each / plain.each.sum(axis=1, keepdims=True))


def _curves(runs: Runs, network: str) -> dict[str, LayerCurve]:
    return {task: runs.sensitivity(network, task) for task in TASKS}


def _draw(runs: Runs) -> Figure:
    def fill(canvas: Any) -> None:
        for axes, network in zip(canvas.subplots(1, 2), NETWORKS, strict=True):
            for task, curve in _curves(runs, network).items():
                plot_curve(axes, curve, *TASKS[task], task)
            axes.set_title(f"{network}: sensitivity relative to its largest")
            axes.legend(title="main task", fontsize=9)
            axes.set_ylim(bottom=0)

    alternative = "Sensitivity of every layer relative to the most sensitive one. " + "; ".join(
        f"{network}, {task}: highest at {curve.layers[curve.highest - 1]}"
        for network in NETWORKS
        for task, curve in _curves(runs, network).items()
    )
    return draw_figure("layers-figure3", alternative, fill, (12, 4.2))
