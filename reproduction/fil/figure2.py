"""Figure 2: histograms of the records' leakage, separated by class."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.image_models import (
    CLASSES,
    MODELS,
    SETTING,
    ImageModel,
    Vector,
    data_names,
    image_models,
)
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, VERMILLION

_BINS = 60


def reproduce(quick: bool) -> Outcome:
    """Measure every record, and compare the classes' means."""
    found = [(setting, _by_class(setting)) for setting in image_models(quick)]
    quantities, ratios = [], []
    for setting, classes in found:
        means = [float(eta.mean()) for eta in classes]
        for name, mean in zip(CLASSES[setting.data], means, strict=True):
            quantities.append(Quantity(f"{setting}: mean η of {name}", mean))
        ratios.append(means[0] / means[1])
    seen = "On average, " + "; ".join(
        _compare(data, *ratios[2 * k : 2 * k + 2]) for k, data in enumerate(data_names(quick))
    )
    seen += "."
    return Outcome(SETTING, tuple(quantities), seen, _draw(found, quick))


def _by_class(setting: ImageModel) -> tuple[Vector, Vector]:
    eta = setting.eta()
    return eta[setting.problem.y == 0], eta[setting.problem.y == 1]


def _compare(data: str, linear: float, logistic: float) -> str:
    """State which class leaks more; ratios are of the first class to the second."""
    first, second = CLASSES[data]
    if linear < 1:
        first, second, linear, logistic = second, first, 1 / linear, 1 / logistic
    return (
        f"a {first} of {data} leaks {linear:.2f} times (linear) and {logistic:.2f} times "
        f"(logistic) as much as a {second}"
    )


def _draw(found: list[tuple[ImageModel, tuple[Vector, Vector]]], quick: bool) -> Figure:
    datas = data_names(quick)

    def draw(canvas: Any) -> None:
        grid = canvas.subplots(len(datas), len(MODELS), squeeze=False)
        for axes, (setting, classes) in zip(grid.flat, found, strict=True):
            edges = np.linspace(0, max(float(eta.max()) for eta in classes), _BINS + 1)
            for eta, name, colour in zip(
                classes, CLASSES[setting.data], (BLUE, VERMILLION), strict=True
            ):
                axes.hist(eta, edges, color=colour, alpha=0.35, lw=0)
                axes.hist(eta, edges, histtype="step", color=colour, lw=1.3)
                axes.axvline(
                    eta.mean(),
                    color=colour,
                    lw=2,
                    ls=(0, (4, 2)),
                    label=f"{name}: mean {eta.mean():.3f}",
                )
            axes.set_title(str(setting))
            axes.set_xlim(0, np.quantile(np.concatenate(classes), 0.999))
            axes.grid(axis="x", visible=False)
            axes.legend(loc="upper right")
            axes.set_xlabel("leakage η of a record")
        for axes in grid[:, 0]:
            axes.set_ylabel("number of records")

    alternative = "Histograms of the leakage by class. Means: " + "; ".join(
        f"{setting}: "
        + ", ".join(
            f"{name} {eta.mean():.3g}"
            for name, eta in zip(CLASSES[setting.data], classes, strict=True)
        )
        for setting, classes in found
    )
    return draw_figure("fil-figure2", alternative, draw, (11, 3.6 * len(datas)))
