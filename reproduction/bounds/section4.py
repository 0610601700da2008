"""Sections 2 to 4 and appendix C: the numbers its text works out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, VERMILLION
from seepage.bounds import from_renyi
from seepage.nn.problem.clipping import SmoothClip

DIAMETER = 100.0  # of the example in section 4: ages, say
_SETTING = (
    "No data. Membership inference at even odds succeeds with probability at most e^ε/(1 + e^ε) "
    "(section 2); an unbiased estimate of a number between 0 and 100 has a variance of at least "
    "100²/(4(e^ε − 1)) (section 4). The largest gradient norm after the smooth clip is C times the "
    "maximum of n/(GELU(n − 1) + 1), where n is the norm before the clip over C (appendix C); as a "
    "bound, it must be rounded up, to 1.116."
)


def reproduce(quick: bool) -> Outcome:
    """Compute them (fast in either mode)."""
    variance = float(from_renyi(2.0, DIAMETER))
    quantities = (
        Quantity(
            "success rate of membership inference at ε = 0.1, in percent",
            100 * member(0.1),
            "53",
            "e^0.1/(1 + e^0.1) is 52.498 %, which the paper rounds up "
            "(`reproduction/bounds/section4.py`).",
        ),
        Quantity(
            "success rate of membership inference at ε = 2, in percent", 100 * member(2.0), "> 88"
        ),
        Quantity(
            "smallest variance of an unbiased estimate of a number between 0 and 100 at ε = 2",
            variance,
            "391",
        ),
        Quantity(
            "its standard deviation",
            math.sqrt(variance),
            "19",
            "√391 is 19.8, which the paper truncates instead of rounding "
            "(`reproduction/bounds/section4.py`).",
        ),
        Quantity(
            "largest gradient norm after the smooth clip, over C",
            SmoothClip(1.0).sensitivity,
            "1.115",
        ),
    )
    seen = (
        f"At ε = 2, membership inference may succeed up to {100 * member(2.0):.1f} % of the time, "
        "but an unbiased estimate of a number between 0 and 100 has a standard error of at least "
        f"{math.sqrt(variance):.1f}."
    )
    return Outcome(_SETTING, quantities, seen, _draw())


def member(epsilon: float) -> float:
    """Return the largest probability of telling members from others at even odds."""
    return 1 / (1 + math.exp(-epsilon))


def _draw() -> Figure:
    epsilons = np.linspace(0.05, 4, 200)
    chances = [100 * member(e) for e in epsilons]
    spreads = [math.sqrt(float(from_renyi(e, DIAMETER))) for e in epsilons]

    def draw(canvas: Any) -> None:
        left, right = canvas.subplots(1, 2)
        left.plot(epsilons, chances, color=VERMILLION, lw=2)
        left.set(xlabel="ε", ylabel="percent", ylim=(48, 100))
        left.set_title("Membership guessed correctly, at most")
        right.plot(epsilons, spreads, color=BLUE, lw=2)
        right.set(xlabel="ε", ylabel="standard deviation", ylim=(0, 100))
        right.set_title("A number between 0 and 100, at least")
        for axes in (left, right):
            axes.axvline(2.0, color="#55606d", lw=1, ls=":")

    alternative = (
        "Bounds on membership inference and on the standard error of a number, over ε from 0 to 4: "
        f"the success rate rises from 50 to {chances[-1]:.0f} percent, the standard error of a "
        f"number between 0 and 100 falls to {spreads[-1]:.0f}; at ε = 2 they are at "
        f"{100 * member(2.0):.0f} percent and {math.sqrt(float(from_renyi(2.0, DIAMETER))):.0f}."
    )
    return draw_figure("bounds-section4", alternative, draw, (9, 3.4))
