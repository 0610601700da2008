"""Figure 5: the standard deviation of the records' leakage over rounds of IRFIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.fil.image_models import data_names, image_models
from reproduction.outcome import Outcome, Quantity
from seepage import glm
from seepage.auditing.report.figures import BLUE, VERMILLION
from seepage.tables.names import counted

ROUNDS = 15
_TOLD = (0, 1, 2, 5, 10, 15)


def reproduce(quick: bool) -> Outcome:
    """Reweight each of the four models and follow the spread."""
    spreads: dict[tuple[str, str], list[float]] = {}
    quantities = []
    for setting in image_models(quick):
        found = glm.reweight(
            setting.estimator, setting.problem.X, setting.target, rounds=ROUNDS, tolerance=0.0
        )
        spread = [stage.spread for stage in found.trajectory]
        spreads[setting.data, setting.kind] = spread
        quantities += [
            Quantity(f"{setting}: standard deviation of η after {counted(k, 'round')}", spread[k])
            for k in _TOLD
        ]
    factors = [spread[0] / spread[5] for spread in spreads.values()]
    ends = [spread[-1] / spread[0] for spread in spreads.values()]
    seen = (
        f"Five rounds divide the standard deviation of η by {min(factors):.0f} to "
        f"{max(factors):,.0f}, and {ROUNDS} rounds leave at most {100 * max(ends):.1g} % of it. "
        "The records' leakages become equal at a geometric rate on both data sets with both models."
    )
    setting_words = f"Data and models as for fil-figure2. {ROUNDS} rounds of IRFIL."
    return Outcome(setting_words, tuple(quantities), seen, _draw(spreads, data_names(quick)))


def _draw(spreads: dict[tuple[str, str], list[float]], datas: tuple[str, ...]) -> Figure:
    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, len(datas), squeeze=False, sharey=True)
        for axes, data in zip(grid[0], datas, strict=True):
            for kind, colour, mark in (("linear", BLUE, "o"), ("logistic", VERMILLION, "s")):
                spread = spreads[data, kind]
                axes.plot(
                    np.arange(len(spread)),
                    spread,
                    f"{mark}-",
                    color=colour,
                    lw=2,
                    ms=5.5,
                    label=kind,
                )
            axes.set_yscale("log")
            axes.set_title(data)
            axes.set_xlabel("rounds of IRFIL")
            axes.set_xticks(range(0, ROUNDS + 1, 3))
            axes.legend(loc="upper right")
        grid[0, 0].set_ylabel("standard deviation of η")
        power_ticks(grid[0, 0].yaxis, every=2)

    alternative = "Standard deviation of the records' leakage over rounds of IRFIL: " + "; ".join(
        f"{data}, {kind} from {spread[0]:.2g} to {spread[-1]:.1g}"
        for (data, kind), spread in spreads.items()
    )
    return draw_figure("fil-figure5", alternative, draw, (5.4 * len(datas), 4.2))
