"""Paper 001, Table 1: the leakage and the accuracy of four models before and after IRFIL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.image_models import SETTING, ImageModel, data_names, image_models
from reproduction.outcome import Outcome, Quantity
from seepage import glm
from seepage.auditing.report.figures import BLUE, INK, MUTED, VERMILLION

ROUNDS = 15
# The mean and the standard deviation of η, and the test accuracy in percent, as printed.
PRINTED = {
    "MNIST, linear": ("0.040", "0.014", "100"),
    "MNIST, linear + IRFIL": ("0.047", "0.000", "99.8"),
    "MNIST, logistic": ("0.027", "0.012", "99.8"),
    "MNIST, logistic + IRFIL": ("0.024", "0.000", "99.7"),
    "CIFAR-10, linear": ("0.26", "0.08", "79.8"),
    "CIFAR-10, linear + IRFIL": ("0.30", "0.00", "80.7"),
    "CIFAR-10, logistic": ("0.32", "0.15", "79.9"),
    "CIFAR-10, logistic + IRFIL": ("0.25", "0.00", "79.1"),
}


@dataclass(frozen=True)
class Line:
    """One line of the table for one data set."""

    name: str
    mean: float
    spread: float
    accuracy: float

    def quantities(self) -> tuple[Quantity, ...]:
        """Return its three numbers beside the printed ones."""
        mean, spread, accuracy = PRINTED[self.name]
        return (
            Quantity(f"{self.name}: mean η", self.mean, mean),
            Quantity(f"{self.name}: standard deviation of η", self.spread, spread),
            Quantity(f"{self.name}: test accuracy (%)", self.accuracy, accuracy),
        )


def reproduce(quick: bool) -> Outcome:
    """Fit each model, then again in fifteen rounds of reweighting."""
    lines = [line for setting in image_models(quick) for line in _measure(setting)]
    quantities = tuple(quantity for line in lines for quantity in line.quantities())
    differing = [q.name for q in quantities if not q.agrees]
    after = [line for line in lines if line.name.endswith("IRFIL")]
    moved = max(abs(a.accuracy - b.accuracy) for a, b in zip(lines[::2], lines[1::2], strict=True))
    seen = (
        f"After {ROUNDS} rounds every record leaks the same (the largest standard deviation is "
        f"{max(line.spread for line in after):.1e}), the accuracy moves by at most {moved:.1f} "
        f"points, and {len(quantities) - len(differing)} of {len(quantities)} numbers are the "
        "printed ones" + (f"; not so: {', '.join(differing)}." if differing else ".")
    )
    setting = f"{SETTING} {ROUNDS} rounds of IRFIL."
    return Outcome(setting, quantities, seen, _draw(lines, data_names(quick)))


def _measure(setting: ImageModel) -> tuple[Line, Line]:
    plain = setting.fit()
    eta, name = setting.eta(), str(setting)
    evened = glm.reweight(setting.estimator, setting.problem.X, setting.target, rounds=ROUNDS)
    even = np.asarray(evened.eta)
    return (
        Line(name, float(eta.mean()), float(eta.std()), setting.accuracy(plain)),
        Line(
            f"{name} + IRFIL", float(even.mean()), float(even.std()), setting.accuracy(evened.model)
        ),
    )


def _draw(lines: list[Line], datas: tuple[str, ...]) -> Figure:
    def draw(canvas: Any) -> None:
        grid = canvas.subplots(2, len(datas), squeeze=False, height_ratios=(1.15, 1))
        for column, data in enumerate(datas):
            chosen = [line for line in lines if line.name.startswith(data)]
            places = np.array([0.0, 1.0, 2.4, 3.4])
            colours = [BLUE, VERMILLION] * 2
            upper, lower = grid[:, column]
            for place, line, colour in zip(places, chosen, colours, strict=True):
                mean, spread, accuracy = map(float, PRINTED[line.name])
                upper.errorbar(
                    line.mean,
                    place,
                    xerr=line.spread,
                    fmt="o",
                    ms=8,
                    lw=3,
                    capsize=5,
                    capthick=2,
                    color=colour,
                )
                upper.errorbar(
                    mean,
                    place - 0.32,
                    xerr=spread,
                    fmt="D",
                    ms=5,
                    lw=1.2,
                    capsize=3,
                    color=MUTED,
                    mfc="white",
                )
                lower.plot(line.accuracy, place, "o", ms=8, color=colour)
                lower.plot(accuracy, place - 0.32, "D", ms=5, color=MUTED, mfc="white")
            upper.set_title(data)
            upper.set_xlim(left=0)
            upper.set_xlabel("leakage η: mean ± standard deviation over the records")
            lower.set_xlabel("test accuracy (%)")
            lower.margins(x=0.12)
            names = [line.name.partition(", ")[2] for line in chosen]
            for axes in (upper, lower):
                axes.set_ylim(4.0, -0.9)
                axes.set_yticks(places, names if column == 0 else [""] * 4)
                axes.tick_params(axis="y", colors=INK, length=0)
                axes.grid(axis="y", visible=False)
        for label, shape, colour, fill in (
            ("measured, before IRFIL", "o", BLUE, BLUE),
            ("measured, after IRFIL", "o", VERMILLION, VERMILLION),
            ("printed in the paper", "D", MUTED, "white"),
        ):
            grid[0, 0].plot([], [], shape, ms=7, color=colour, mfc=fill, label=label)
        canvas.legend(loc="outside upper left", ncols=3)

    alternative = "Mean leakage ± standard deviation, and test accuracy: " + "; ".join(
        f"{line.name} {line.mean:.3g} ± {line.spread:.2g}, {line.accuracy:.2f} %" for line in lines
    )
    return draw_figure("fil-table1", alternative, draw, (5.6 * len(datas) + 0.8, 5.8))
