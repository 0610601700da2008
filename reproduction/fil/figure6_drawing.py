"""Draws paper 001's Figure 6: leakage, error and accuracies for four penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.drawing import RAMP, Figure, draw_figure, power_ticks
from seepage.auditing.report.figures import MUTED, word_ticks

if TYPE_CHECKING:
    from reproduction.fil.figure6 import Curve

_MARKS = ("o", "s", "D", "^")


def draw(curves: Sequence[Curve], levels: dict[str, float], ranks: dict[str, float]) -> Figure:
    """Draw how η is distributed, and how error and accuracies go with its mean."""

    def fill(canvas: Any) -> None:
        grid = canvas.subplots(2, 3)
        _distribution(grid[0, 0], curves)
        _error(grid[0, 1], curves)
        for axes, adversary, shown in zip(
            grid[1], ranks, (("prior", "chance"), ("prior",), ("prior", "ideal")), strict=True
        ):
            _accuracy(axes, curves, adversary, {name: levels[name] for name in shown})
        _legend(grid[0, 2], curves, ranks)
        grid[1, 0].set_ylabel("share of alleles inferred")

    alternative = (
        "Leakage about the allele of VKORC1 for four penalties; test error and the accuracies of "
        "the white-box and black-box adversaries against the mean leakage. "
        + "; ".join(
            f"{curve.name}: mean η {curve.rows.mean():.2g} at σ = 1, white-box accuracy from "
            f"{curve.accuracy['white-box'][0].mean():.2f} to "
            f"{curve.accuracy['white-box'][-1].mean():.2f}, black-box from "
            f"{curve.accuracy['black-box'][0].mean():.2f} to "
            f"{curve.accuracy['black-box'][-1].mean():.2f}"
            for curve in curves
        )
    )
    return draw_figure("fil-figure6", alternative, fill, (12.5, 7.4))


def _distribution(axes: Any, curves: Sequence[Curve]) -> None:
    for curve, colour in zip(curves, RAMP, strict=True):
        logs = np.log10(curve.rows)
        counts, edges = np.histogram(logs, 50)
        density = counts / (counts.sum() * np.diff(edges))
        axes.stairs(density, 10**edges, color=colour, lw=1.6)
        axes.stairs(density, 10**edges, color=colour, fill=True, alpha=0.15, lw=0)
    axes.set_xscale("log")
    axes.set_title("Leakage of the patients at σ = 1")
    axes.set_xlabel("leakage η about the allele")
    axes.set_ylabel("density over log₁₀ η")
    power_ticks(axes.xaxis)


def _error(axes: Any, curves: Sequence[Curve]) -> None:
    for curve, colour, mark in zip(curves, RAMP, _MARKS, strict=True):
        _line(axes, curve.eta, curve.error, colour, mark)
    axes.set(xscale="log", yscale="log", title="Test mean squared error")
    axes.set_ylim(bottom=min(curve.noiseless for curve in curves) * 0.8)
    axes.set_xlabel("mean leakage η")
    power_ticks(axes.xaxis)
    word_ticks(axes.yaxis)


def _accuracy(axes: Any, curves: Sequence[Curve], adversary: str, levels: dict[str, float]) -> None:
    for curve, colour, mark in zip(curves, RAMP, _MARKS, strict=True):
        _line(axes, curve.eta, curve.accuracy[adversary], colour, mark)
    axes.set(xscale="log", title=f"Accuracy, {adversary}")
    axes.set_ylim(0.2, 1.03)
    axes.set_xlabel("mean leakage η")
    for name, level in levels.items():
        below = name == "chance"
        axes.axhline(level, color=MUTED, lw=1.2, ls=":" if below else "--", zorder=1.5)
        axes.annotate(
            name,
            (axes.get_xlim()[1], level),
            (-3, -3 if below else 3),
            fontsize=10,
            color=MUTED,
            textcoords="offset points",
            ha="right",
            va="top" if below else "bottom",
        )
    power_ticks(axes.xaxis)


def _line(axes: Any, eta: Any, trials: Any, colour: str, mark: str) -> None:
    """Draw the mean over the trials with a band of one standard deviation, as the paper does."""
    mean, spread = trials.mean(axis=1), trials.std(axis=1)
    axes.fill_between(
        eta, np.maximum(mean - spread, 1e-3), mean + spread, color=colour, alpha=0.15, lw=0
    )
    # The two smallest penalties all but coincide: the first is larger and shows behind the second.
    large = colour == RAMP[0]
    axes.plot(eta, mean, f"{mark}-", color=colour, lw=3 if large else 1.6, ms=8 if large else 4.5)


def _legend(axes: Any, curves: Sequence[Curve], ranks: dict[str, float]) -> None:
    """Use a cell of its own for the legend, so that it covers no curve."""
    axes.axis("off")
    for curve, colour, mark in zip(curves, RAMP, _MARKS, strict=True):
        axes.plot([], [], f"{mark}-", color=colour, lw=2.2, ms=7, label=curve.name)
    label = "± standard deviation over releases"
    axes.fill_between([], [], color=MUTED, alpha=0.25, lw=0, label=label)
    legend = axes.legend(loc="upper left", title="Penalty", alignment="left")
    legend.get_title().set_weight("bold")
    words = "\n".join(f"{name}: {rank:.2f}" for name, rank in ranks.items())
    place = {"transform": axes.transAxes, "va": "top"}
    axes.text(0.04, 0.36, "Rank correlation of accuracy and η", weight="bold", **place)
    axes.text(0.04, 0.27, words, linespacing=1.6, **place)
