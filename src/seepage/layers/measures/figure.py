"""Draws per-layer results one above another, with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from seepage.layers.measures.per_layer import PerLayer

_BAR, _WORST, _INK = "#0072b2", "#d55e00", "#1c2530"  # told apart with every colour vision


def draw_layers(results: Sequence[PerLayer]) -> Any:
    """Return a matplotlib figure with one panel per result, the highest layer in another colour."""
    from matplotlib.figure import Figure

    width = max(4.5, 1.5 + 0.55 * len(results[0].layers))
    figure = Figure(figsize=(width, 2.6 * len(results)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(results), 1, sharex=True))
    for panel, result in zip(panels, results, strict=True):
        highest = result.ranking()[0]
        places = np.arange(len(result.layers))
        colours = [_WORST if name == highest else _BAR for name in result.layers]
        panel.bar(places, result.values, color=colours, width=0.7)
        reach = np.abs(np.stack([result.values - result.low, result.high - result.values]))
        panel.errorbar(
            places, result.values, yerr=np.nan_to_num(reach), fmt="none", ecolor=_INK, capsize=3
        )
        panel.set_xticks(places, result.layers, rotation=45, ha="right")
        panel.set_ylabel(result.unit)
        panel.set_title(result.measure, loc="left", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    return figure
