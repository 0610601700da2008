"""Figure 4: the images that leak most and least, and their reconstructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.bounds.figure3 import SIGMA
from reproduction.bounds.pixel_models import SIDE, Vector, bounds, model, problem, with_ones
from reproduction.drawing import Figure, draw_figure
from reproduction.outcome import Outcome, Quantity
from seepage.attacks import InformedAdversary, psnr, ssim
from seepage.auditing.report.figures import MUTED
from seepage.auditing.report.words import number
from seepage.core.noise import Gaussian

SHOWN = 8
_TRIALS = 100  # releases over which medians are taken; the images are from the first
_SETTING = (
    "Data, model, noise and the attacker without the label as for bounds-figure3. Images are from "
    f"one release; numbers are medians over {_TRIALS}."
)


def reproduce(quick: bool) -> Outcome:
    """Reconstruct the records with the largest and the smallest dFIL."""
    data = problem()
    X = with_ones(data.X)
    adversary = InformedAdversary(model(), label="unknown").fit(X, data.y)
    predicted = bounds(adversary.model_, X, data.y, SIGMA).dfil
    order = np.argsort(predicted, kind="stable")
    rows = np.concatenate([order[:SHOWN], order[-SHOWN:]])
    theta = np.ravel(adversary.model_.coef_)
    drawn = Gaussian(SIGMA).draw((5 if quick else _TRIALS, len(theta)), seed=0)
    guesses = adversary.reconstruct(theta + drawn, rows).features[:, :, : SIDE * SIDE]
    images = guesses.reshape(len(guesses), len(rows), SIDE, SIDE)
    truth = data.X[rows].reshape(len(rows), SIDE, SIDE)
    quantities = []
    for words, part in (("most", slice(0, SHOWN)), ("least", slice(SHOWN, None))):
        error = np.mean((images[:, part] - truth[part]) ** 2, axis=(2, 3))
        quantities += [
            Quantity(
                f"eight {words} exposed: largest dFIL bound", float(predicted[rows[part]].max())
            ),
            Quantity(f"eight {words} exposed: squared error per pixel", float(np.median(error))),
            Quantity(f"eight {words} exposed: PSNR in dB", _median(psnr, images, truth, part)),
            Quantity(f"eight {words} exposed: SSIM", _median(ssim, images, truth, part)),
        ]
    most, least = quantities[3].measured, quantities[7].measured
    seen = (
        f"The eight most exposed images are fully reconstructed (structural similarity {most:.2f} "
        "to the originals); for the eight least exposed images, the attack returns the same noise "
        f"({least:.2f})."
    )
    return Outcome(_SETTING, tuple(quantities), seen, _draw(truth, images[0], predicted[rows]))


def _median(measure: Any, images: Vector, truth: Vector, part: slice) -> float:
    return float(np.median(measure(images[:, part], truth[part])))


def _draw(truth: Vector, guesses: Vector, predicted: Vector) -> Figure:
    def draw(canvas: Any) -> None:
        canvas.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0, hspace=0)
        panels = canvas.subfigures(1, 2, wspace=0.03)
        for panel, start, words in ((panels[0], 0, "most"), (panels[1], SHOWN, "least")):
            panel.suptitle(
                f"The {SHOWN} {words} exposed, with their dFIL bounds",
                x=0.01,
                ha="left",
                fontsize=11,
                weight="bold",
            )
            grid = panel.subplots(2, SHOWN)
            for column in range(SHOWN):
                k = start + column
                for line, image in ((0, truth[k]), (1, guesses[k])):
                    axes = grid[line, column]
                    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                    axes.set(xticks=[], yticks=[])
                    axes.spines[:].set_visible(False)
                grid[0, column].set_title(
                    number(predicted[k]),
                    fontsize=7.5,
                    weight="normal",
                    loc="center",
                    color=MUTED,
                    pad=3,
                )
            grid[0, 0].set_ylabel("record", fontsize=9)
            grid[1, 0].set_ylabel("attack", fontsize=9)

    alternative = (
        "Sixteen digits and their reconstructions: the eight with the largest leakage (bounds from "
        f"{number(predicted[0])} to {number(predicted[SHOWN - 1])}) come back as they are, the "
        f"eight with the smallest (up to {number(predicted[-1])}) as noise."
    )
    return draw_figure("bounds-figure4", alternative, draw, (13, 2.3))
