"""Draws paper 001's Figure 7: leakage over rounds of IRFIL, and accuracy by decile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from seepage.auditing.report.figures import BLUE, MUTED, ORANGE, VERMILLION

if TYPE_CHECKING:
    from reproduction.fil.figure7 import Course

_STAGES = {0: (VERMILLION, "o"), 2: (ORANGE, "s"), 10: (BLUE, "D")}


def draw(courses: Sequence[Course]) -> Figure:
    """Draw two panels for each data set."""

    def fill(canvas: Any) -> None:
        grid = canvas.subplots(len(courses), 2, squeeze=False)
        for (left, right), course in zip(grid, courses, strict=True):
            _leakage(left, course)
            _accuracy(right, course)

    alternative = "Leakage over rounds of IRFIL and white-box accuracy by decile. " + "; ".join(
        f"{course.target.name}: standard deviation of η from {course.eta[0].std():.2g} to "
        f"{course.eta[-1].std():.2g}, accuracy from first to last decile "
        + ", ".join(
            f"{when(stage)} {ends[0].accuracy:.2f} to {ends[-1].accuracy:.2f}"
            for stage, ends in ((s, course.accuracies(s)) for s in _STAGES)
        )
        for course in courses
    )
    return draw_figure("fil-figure7", alternative, fill, (11, 4.1 * len(courses)))


def _leakage(axes: Any, course: Course) -> None:
    from matplotlib import colormaps

    rounds = np.arange(len(course.eta))
    mean, spread = course.eta.mean(axis=1), course.eta.std(axis=1)
    axes.fill_between(
        rounds,
        np.maximum(mean - spread, 0),
        mean + spread,
        color=MUTED,
        alpha=0.18,
        lw=0,
        label="mean ± standard deviation",
    )
    count = int(course.deciles.max()) + 1
    for decile in range(count):
        line = course.eta[:, course.deciles == decile].mean(axis=1)
        colour = colormaps["plasma"](0.85 * (1 - decile / (count - 1)))
        label = {0: "mean of the first decile", count - 1: "mean of the last decile"}.get(decile)
        axes.plot(rounds, line, color=colour, lw=1.8, label=label)
    axes.plot(rounds, mean, color="black", lw=1.4, ls=(0, (4, 2)), label="mean of all records")
    axes.set_title(f"{course.target.name}: leakage about {course.target.words}")
    axes.set(xlabel="rounds of IRFIL", ylabel="leakage η at σ = 10⁻³", xlim=(0, rounds[-1]))
    axes.set_ylim(bottom=0)
    axes.set_xticks(rounds[::2])
    axes.legend(loc="upper right")


def _accuracy(axes: Any, course: Course) -> None:
    for shift, (stage, (colour, mark)) in zip((-0.12, 0.0, 0.12), _STAGES.items(), strict=True):
        found = course.accuracies(stage)
        places = np.arange(1, len(found) + 1) + shift
        means = np.array([a.accuracy for a in found])
        ends = np.array([a.interval for a in found]).T
        axes.errorbar(
            places,
            means,
            yerr=np.abs(ends - means),
            fmt=f"{mark}-",
            color=colour,
            lw=1.6,
            ms=5,
            elinewidth=1.1,
            capsize=2.5,
            label=when(stage),
        )
    chance = 1 / len(course.target.attribute)
    axes.axhline(chance, color=MUTED, lw=1.2, ls=":")
    axes.annotate(
        "chance",
        (10, chance),
        (0, -4),
        textcoords="offset points",
        color=MUTED,
        ha="center",
        va="top",
    )
    axes.set_title(f"{course.target.name}: white-box accuracy, 95 % intervals")
    axes.set(xlabel="decile of η before reweighting", ylabel="share inferred")
    axes.set_xticks(range(1, 11))
    axes.set_ylim(chance - 0.06, 0.95)
    axes.legend(loc="upper left")


def when(stage: int) -> str:
    """Say which round a stage is."""
    return f"after {stage} rounds" if stage else "before"
