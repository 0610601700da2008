"""Figure 1: V-information, sensitivity and attack of every layer of three networks."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from reproduction.drawing import Figure, draw_figure
from reproduction.layers.longer import (
    ACCURACY,
    OTHER,
    SPLITS,
    AccuracyCurves,
    LongTraining,
    highest_in_words,
    kept_lines,
    layer_quantities,
    long_training,
    networks,
    other_runs,
)
from reproduction.layers.runs import (
    SIZE,
    TITLES,
    LayerCurve,
    Runs,
    correlation,
    first_full,
    kept_runs,
    ordinal,
    plot_curve,
    written,
)
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, MUTED, ORANGE
from seepage.data import load_lfw
from seepage.errors import InputError

TASK, PROPERTY = "Gender", "Glasses"
# Main task and property; a single class belongs to one label of the task, what flies to both.
CIFAR10 = (("Animal", "Flies"), ("Animal", "Dog"))
# The paper's numbers for LFW: accuracy in percent, and the layer with the highest risk.
PRINTED = {"AlexNet": ("99", "4"), "VGG11Net": ("99", "9/10"), "FCNet": ("94", "1")}
# Accuracies on the data sets that are not available.
ELSEWHERE = {"CelebA": ("87", "82", "84"), "PubFig": ("97", "98", "92")}
_WORDS = {"auc": "AUC", "v_information": "V-information", "sensitivity": "sensitivity"}


def reproduce(quick: bool) -> Outcome:
    """Draw the kept results (fast in either mode)."""
    runs, longest, others = kept_runs(), long_training(), other_runs()
    quantities = _images()
    verdicts = []
    for network, (accuracy, layer) in PRINTED.items():
        curves = _curves(runs, network)
        quantities += [
            Quantity(
                f"{network}: test accuracy in percent",
                float(longest.curves(network, "people").plateau.mean()),
                accuracy,
                longest.why(network),
                comparable=False,
            ),
            Quantity(f"{network}: test accuracy in the figure", runs.accuracy(network, TASK)),
            *longest.quantities(network),
        ]
        quantities += _numbers(runs, network, curves, layer)
        verdicts.append(_verdict(network, curves))
    seen = (
        "With the main task gender, the property glasses and an equal label mix, "
        f"{'. '.join(verdicts)}. From all layers together, the AUCs are {_each(runs, 'auc')} "
        f"(confounded: {_each(runs, 'auc_confounded')}). On CIFAR-10 (main task: animal or "
        "vehicle; property: it flies; ± two standard errors), the layers with the highest AUC are: "
        f"{highest_in_words(others, *CIFAR10[0])}{_not_run(others)}."
    )
    for task, name in CIFAR10:
        quantities += layer_quantities(others, f"CIFAR-10, {name.lower()}", task, name)
    quantities += [
        Quantity(
            f"{data}, {network}: test accuracy in percent",
            None,
            printed,
            "CelebA and PubFig are distributed only on request. `seepage data fetch celeba` (or "
            "`pubfig`) lists which files to put where; `python -m reproduction.layers.experiment "
            "--set celeba` then runs the experiment.",
        )
        for data, accuracies in ELSEWHERE.items()
        for network, printed in zip(PRINTED, accuracies, strict=True)
    ]
    setting = runs.setting([(n, TASK) for n in PRINTED])
    kept = (*runs.kept(), *kept_lines((ACCURACY, OTHER)))
    return Outcome(setting, tuple(quantities), seen, _draw(runs, longest), kept)


def _not_run(others: Runs) -> str:
    """Name the networks that CIFAR-10 was not given to."""
    missing = [network for network in PRINTED if network not in networks(others, CIFAR10[0][0])]
    return f"; {' and '.join(missing)} {'were' if len(missing) > 1 else 'was'} not run" * bool(
        missing
    )


def _images() -> list[Quantity]:
    """Return the number of images of LFW, if they are available."""
    with suppress(InputError):
        return [Quantity("LFW: images", len(load_lfw().images), "13233", kind="count")]
    return []


def _curves(runs: Runs, network: str) -> dict[str, LayerCurve]:
    curves = {key: runs.curve(network, TASK, key, PROPERTY) for key in ("v_information", "auc")}
    return curves | {"sensitivity": runs.sensitivity(network, TASK)}


def _numbers(runs: Runs, network: str, curves: dict[str, LayerCurve], layer: str) -> list[Quantity]:
    attack = curves["auc"]
    first = first_full(attack.layers)
    out = []
    for key, words in _WORDS.items():
        highest = curves[key].highest
        why = SIZE if key == "sensitivity" else runs.unlike(network, TASK, PROPERTY)
        name = f"{network}: layer with the highest {words}"
        out.append(Quantity(name, highest, layer, why, comparable=False))
    mixed = runs.curve(network, TASK, "auc_confounded", PROPERTY)
    out.append(Quantity(f"{network}: layer with the highest AUC, confounded", mixed.highest))
    bare = runs.without_size(network, TASK)
    out.append(Quantity(f"{network}: layer with the highest sensitivity, without ψ", bare.highest))
    out += [
        Quantity(f"{network}: AUC at its highest layer", float(attack.mean.max())),
        Quantity(f"{network}: AUC at the first dense layer", float(attack.mean[first - 1])),
        Quantity(
            f"{network}: first dense layer not clearly below the highest (1: yes)",
            float(attack.reaches_the_highest(first)),
        ),
        Quantity(f"{network}: AUC from all layers", _mean(runs, network, "auc")),
        Quantity(
            f"{network}: AUC from all layers, confounded", _mean(runs, network, "auc_confounded")
        ),
        Quantity(
            f"{network}: correlation of V-information and AUC over the layers",
            correlation(curves["v_information"], attack),
        ),
        Quantity(
            f"{network}: correlation of sensitivity and AUC over the layers",
            correlation(curves["sensitivity"], attack),
        ),
    ]
    return out


def _each(runs: Runs, key: str) -> str:
    *first, last = [f"{_mean(runs, network, key):.2f}" for network in PRINTED]
    return f"{', '.join(first)} and {last}"


def _mean(runs: Runs, network: str, key: str) -> float:
    return float(runs.together(network, TASK, key, PROPERTY).mean[0])


def _verdict(network: str, curves: dict[str, LayerCurve]) -> str:
    attack = curves["auc"]
    first = first_full(attack.layers)
    name = attack.layers[attack.highest - 1]
    place = f"{network} leaks most at its {ordinal(attack.highest)} layer, {name}"
    value = f"AUC {attack.mean.max():.2f}"
    if attack.highest == first:
        claim = "the first dense layer, as claimed"
    elif attack.reaches_the_highest(first):
        claim = "although not significantly more than at the first dense layer"
    else:
        claim = f"not at the first dense layer ({attack.mean[first - 1]:.2f})"
    goes = " and ".join(
        f"{_WORDS[key]} ({written(correlation(curves[key], attack))})"
        for key in ("v_information", "sensitivity")
    )
    return f"{place} ({value}), {claim}. Over layers, the AUC correlates with {goes}"


def _draw(runs: Runs, longest: LongTraining) -> Figure:
    def fill(canvas: Any) -> None:
        grid = canvas.subplots(3, 4)
        for row, network in zip(grid, PRINTED, strict=True):
            for axes, key in zip(row[:3], TITLES, strict=True):
                curve = _curves(runs, network)[key]
                plot_curve(axes, curve, BLUE, label="same label mix" if key == "auc" else "")
                axes.set_title(f"{network}: {TITLES[key]}")
                if key == "v_information":
                    axes.axhline(0, color=MUTED, lw=1)
                if key == "auc":
                    worse = runs.curve(network, TASK, "auc_confounded", PROPERTY)
                    plot_curve(axes, worse, ORANGE, "s", "confounded")
                    axes.axhline(0.5, color=MUTED, lw=1)
                    axes.legend(fontsize=8)
            _draw_accuracy(row[3], longest, network)

    alternative = "V-information, sensitivity and AUC of the attack by layer. " + "; ".join(
        f"{network}: AUC "
        + ", ".join(
            f"{name} {value:.2f}" for name, value in zip(curve.layers, curve.mean, strict=True)
        )
        for network, curve in ((n, _curves(runs, n)["auc"]) for n in PRINTED)
    )
    return draw_figure("layers-figure1", alternative, fill, (13, 7.4))


def _draw_accuracy(axes: Any, longest: LongTraining, network: str) -> None:
    """Draw the accuracies round by round, one line for each seed."""
    for split, colour in (("people", BLUE), ("images", ORANGE)):
        found = longest.curves(network, split)
        label = f"test, {SPLITS[split]}"
        axes.plot(found.rounds, found.test.T, color=colour, lw=0.9, label=[label, *_none(found)])
    train = longest.curves(network, "people")
    labels = ["training images", *_none(train)]
    axes.plot(train.rounds, train.train.T, color=MUTED, lw=0.9, ls=":", label=labels)
    axes.axhline(float(PRINTED[network][0]), color=MUTED, lw=1, ls=(0, (4, 3)), label="printed")
    axes.set_title(f"{network}: accuracy (%) by round")
    axes.set_ylim(bottom=80, top=100.5)
    axes.legend(fontsize=8, loc="lower right")


def _none(found: AccuracyCurves) -> list[str]:
    """Return no label for all seeds but the first."""
    return ["_nolegend_"] * (len(found.test) - 1)
