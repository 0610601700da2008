"""Figure 6: the CIFAR-10 images that a private network leaks most and least about."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, caption_picture, draw_figure
from reproduction.fil.image_models import load_images
from reproduction.outcome import Outcome, Quantity
from reproduction.private_sgd.results import FAILURE, load_results, runs_in_words
from reproduction.private_sgd.settings import SHOWN, SHOWN_STEPS
from reproduction.provenance import kept_by
from seepage.auditing.report.words import number
from seepage.errors import InputError
from seepage.nn.sampling.amplification import paper_epsilon, theorem4_factor

_SETTING = (
    "The network of Table 2 on CIFAR-10 with Glorot initialisation, as in the authors' code; "
    "Poisson batches of 200, T = 5,000, σ = 0.5, ρ = 0.1, C = 1 (symbols as for bounds-figure5). "
    "The dFIL η̄ is in units of a pixel scaled to [0, 1], and includes the factor κ of theorem 4."
)


def reproduce(quick: bool) -> Outcome:
    """Show the images at both ends (fast in either mode)."""
    results = load_results("private_sgd_figure6", "cifar10-as-run --shown --share 1 --runs 10")
    row = _row(results)
    rate = results["batch_size"] / results["records"]
    kappa = theorem4_factor(rate, paper_epsilon(SHOWN.noise_multiplier, FAILURE / SHOWN_STEPS))
    ends = {
        name: [(int(i), float(np.sqrt(kappa * value))) for i, value in row[name]]
        for name in ("highest", "lowest")
    }
    accuracy = 100 * float(np.mean(row["accuracy"]))
    train = load_images("CIFAR-10").train
    classes = load_images("CIFAR-10").classes
    high, low = ends["highest"], ends["lowest"]
    quantities = (
        Quantity("test accuracy in percent", accuracy),
        Quantity("largest dFIL", high[0][1]),
        Quantity("eighth largest dFIL", high[-1][1]),
        Quantity("smallest dFIL", low[0][1]),
        Quantity("median dFIL", float(np.sqrt(kappa * row["plain"]["median"]))),
        Quantity("classes among the eight largest", _kinds(train.labels, high)),
        Quantity("classes among the eight smallest", _kinds(train.labels, low)),
    )
    named = [_either({classes[train.labels[i]] for i, _ in end}) for end in (high, low)]
    seen = (
        "The dFIL of the most exposed image is "
        f"{number(high[0][1] / max(low[0][1], 1e-12))} times that of the least exposed. The eight "
        f"most exposed images are of class {named[0]}, the eight least exposed of class "
        f"{named[1]}. In the paper, hard-to-recognise images leak most and typical images least."
    )
    machine = row.get("machine", results["machine"])
    setting = f"{_SETTING} {runs_in_words(row).capitalize()}, on {machine}."
    kept = kept_by("private_sgd_figure6.json", results)
    return Outcome(setting, quantities, seen, _draw(ends, train.pixels), (kept,))


def _row(results: dict[str, Any]) -> dict[str, Any]:
    wanted = vars(SHOWN) | {"steps": SHOWN_STEPS}
    for row in results["rows"]:
        if all(row[name] == value for name, value in wanted.items()) and "highest" in row:
            return dict(row)
    raise InputError(
        f"The kept results of CIFAR-10 hold no run with {wanted}; run private_sgd_grid again."
    )


def _either(names: set[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} or {last}" if first else last


def _kinds(labels: np.ndarray, end: list[tuple[int, float]]) -> int:
    return len({int(labels[i]) for i, _ in end})


def _draw(ends: dict[str, list[tuple[int, float]]], pixels: np.ndarray) -> Figure:
    def draw(canvas: Any) -> None:
        rows = canvas.subplots(2, len(ends["highest"]))
        canvas.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0, hspace=0)
        for line, (name, end) in zip(rows, ends.items(), strict=True):
            line[0].set_ylabel(f"{name} η̄", fontsize=9)
            for axes, (index, value) in zip(line, end, strict=True):
                axes.imshow(pixels[index], interpolation="nearest")
                caption_picture(axes, f"{value:#.2g}")

    alternative = "Images with the highest and the lowest dFIL: " + "; ".join(
        f"{name} {number(end[0][1])} to {number(end[-1][1])}" for name, end in ends.items()
    )
    return draw_figure("bounds-figure6", alternative, draw, (9, 2.7))
