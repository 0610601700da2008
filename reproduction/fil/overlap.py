"""Section 6.2: how many of the most leaked records linear and logistic models share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.image_models import SETTING, Vector, data_names, image_model
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, MUTED, ORANGE, VERMILLION, word_ticks

TOP = 100
PRINTED = {"MNIST": "24", "CIFAR-10": "34"}


def reproduce(quick: bool) -> Outcome:
    """Count the records that are among the hundred most leaked ones of both models."""
    from scipy.stats import spearmanr

    found = {
        data: (image_model(data, "linear").eta(), image_model(data, "logistic").eta())
        for data in data_names(quick)
    }
    quantities = []
    for data, (linear, logistic) in found.items():
        shared = int(np.sum(_largest(linear) & _largest(logistic)))
        rank = float(spearmanr(linear, logistic).statistic)
        quantities += [
            Quantity(
                f"{data}: records among the {TOP} largest η of both models", shared, PRINTED[data]
            ),
            Quantity(f"{data}: rank correlation of the two models' η", rank),
        ]
    counts = " and ".join(
        f"{q.measured:.0f} on {data}" for data, q in zip(found, quantities[::2], strict=True)
    )
    ranks = " and ".join(
        f"{q.measured:.2f} on {data}" for data, q in zip(found, quantities[1::2], strict=True)
    )
    seen = (
        f"Of the {TOP} records that leak most from each, the two models share {counts}, although "
        f"their rankings of all records are similar (rank correlation {ranks})."
    )
    return Outcome(SETTING, tuple(quantities), seen, _draw(found))


def _largest(eta: Vector) -> NDArray[np.bool_]:
    chosen = np.zeros(len(eta), dtype=bool)
    chosen[np.argsort(eta, kind="stable")[-TOP:]] = True
    return chosen


def _draw(found: dict[str, tuple[Vector, Vector]]) -> Figure:
    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, len(found), squeeze=False)
        for axes, (data, (linear, logistic)) in zip(grid[0], found.items(), strict=True):
            first, second = _largest(linear), _largest(logistic)
            for chosen, colour, size, words in (
                (~first & ~second, MUTED, 3, "neither"),
                (first & ~second, BLUE, 16, "of the linear model only"),
                (second & ~first, ORANGE, 16, "of the logistic model only"),
                (first & second, VERMILLION, 24, "of both"),
            ):
                axes.scatter(
                    linear[chosen],
                    logistic[chosen],
                    s=size,
                    color=colour,
                    lw=0,
                    label=words,
                    alpha=0.25 if size == 3 else 0.9,
                    rasterized=size == 3,
                )
            shared = int(np.sum(first & second))
            axes.set_title(f"{data}: the {TOP} largest of the two models share {shared}")
            axes.set(xscale="log", yscale="log")
            axes.set_xlabel("leakage η from linear regression")
            axes.set_ylabel("leakage η from logistic regression")
            word_ticks(axes.xaxis)
            word_ticks(axes.yaxis)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        legend = canvas.legend(
            handles,
            labels,
            title=f"Among the {TOP} largest η",
            loc="outside lower center",
            ncols=len(labels),
            handletextpad=0.2,
        )
        for handle in legend.legend_handles:
            handle.set(sizes=[30], alpha=1)

    alternative = "Leakage of each record, logistic against linear regression: " + "; ".join(
        f"on {data} the {TOP} largest share {int(np.sum(_largest(a) & _largest(b)))} records"
        for data, (a, b) in found.items()
    )
    return draw_figure("fil-overlap", alternative, draw, (5.6 * len(found), 5.4))
