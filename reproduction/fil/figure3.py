"""Figure 3: the eight images with the smallest and the largest leakage."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.drawing import Figure, caption_picture, draw_figure
from reproduction.fil.image_models import (
    CLASSES,
    SETTING,
    ImageModel,
    Vector,
    image_models,
    load_images,
)
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.words import number

SHOWN = 8
Found = tuple[ImageModel, Vector, NDArray[np.intp]]


def reproduce(quick: bool) -> Outcome:
    """Sort the records of each model by their leakage."""
    found: list[Found] = []
    quantities = []
    for setting in image_models(quick):
        eta = setting.eta()
        order = np.argsort(eta, kind="stable")
        found.append((setting, eta, order))
        least, most = order[:SHOWN], order[-SHOWN:]
        typical = _typical(setting)
        quantities += [
            Quantity(f"{setting}: smallest η", float(eta[order[0]])),
            Quantity(f"{setting}: largest η", float(eta[order[-1]])),
            Quantity(f"{setting}: {typical}s of the eight smallest", _count(setting, least)),
            Quantity(f"{setting}: {typical}s of the eight largest", _count(setting, most)),
        ]
    least_words = ", ".join(
        f"{_count(setting, order[:SHOWN])} {_typical(setting)}s ({setting})"
        for setting, _, order in found
    )
    ratios = [float(eta.max() / eta.min()) for _, eta, _ in found]
    seen = (
        f"The eight images that leak least include {least_words}. The images that leak most are "
        f"unusual; the largest η is {number(min(ratios))} to {number(max(ratios))} times the "
        "smallest."
    )
    return Outcome(SETTING, tuple(quantities), seen, _draw(found))


def _typical(setting: ImageModel) -> str:
    """Return the class that leaks least: the digit 1 on MNIST, planes on CIFAR-10."""
    return CLASSES[setting.data][1 if setting.data == "MNIST" else 0]


def _count(setting: ImageModel, rows: NDArray[np.intp]) -> int:
    wanted = CLASSES[setting.data].index(_typical(setting))
    return int(np.sum(setting.problem.y[rows] == wanted))


def _draw(found: list[Found]) -> Figure:
    pixels = {data: _pixels(data) for data in dict.fromkeys(s.data for s, _, _ in found)}

    def draw(canvas: Any) -> None:
        columns = 2 if len(found) > 1 else 1
        panels = np.ravel(canvas.subfigures(-(-len(found) // columns), columns, wspace=0.02))
        canvas.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0, hspace=0)
        for panel, (setting, eta, order) in zip(panels, found, strict=True):
            panel.suptitle(str(setting), x=0.01, ha="left", fontsize=11, weight="bold")
            rows = panel.subplots(2, SHOWN)
            for line, chosen, words in (
                (rows[0], order[:SHOWN], "smallest η"),
                (rows[1], order[-SHOWN:][::-1], "largest η"),
            ):
                line[0].set_ylabel(words, fontsize=9)
                for axes, row in zip(line, chosen, strict=True):
                    axes.imshow(pixels[setting.data][row], cmap="gray", interpolation="nearest")
                    caption_picture(axes, f"{eta[row]:#.2g}")

    alternative = "Images with the smallest and largest leakage. " + "; ".join(
        f"{setting}: smallest {number(eta[order[0]])} to {number(eta[order[SHOWN - 1]])}, largest "
        f"{number(eta[order[-SHOWN]])} to {number(eta[order[-1]])}"
        for setting, eta, order in found
    )
    return draw_figure("fil-figure3", alternative, draw, (11, 2.1 * (-(-len(found) // 2))))


def _pixels(data: str) -> NDArray[np.uint8]:
    """Return the training images in the order of the prepared problem's rows."""
    train = load_images(data).train
    return train.pixels[np.isin(train.labels, (0, 1))]
