"""Table 1: the leakage and the accuracy of four models before and after IRFIL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.image_models import (
    MODELS,
    ImageModel,
    Vector,
    data_names,
    image_models,
)
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
RECORDS = {"MNIST": "12665", "CIFAR-10": "10000"}  # as printed in section 6.1
_STEPS = [m * 10.0**e for e in range(0, -6, -1) for m in (8, 4, 2, 1)]  # penalties, falling


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
        why = (
            "Evaluating equation 18 for every record with singular values of dense Jacobians "
            "(`reproduction/fil/table1.py`) gives the same mean, and this row's standard deviation "
            "and accuracy agree with the paper's. The printed 0.26 is the root mean square of η; "
            "the other rows print the mean."
        )
        return (
            Quantity(f"{self.name}: mean η", self.mean, mean, why),
            Quantity(
                f"{self.name}: standard deviation of η",
                self.spread,
                spread,
                # Reweighting exists to remove the spread.
                kind="setting" if "IRFIL" in self.name else "result",
            ),
            Quantity(f"{self.name}: test accuracy (%)", self.accuracy, accuracy),
        )


def reproduce(quick: bool) -> Outcome:
    """Fit each model, then again in fifteen rounds of reweighting."""
    settings = list(image_models(quick))
    lines = [line for setting in settings for line in _measure(setting)]
    table = tuple(quantity for line in lines for quantity in line.quantities())
    differing = [q.name for q in table if not q.agrees]
    after = [line for line in lines if line.name.endswith("IRFIL")]
    moved = max(abs(a.accuracy - b.accuracy) for a, b in zip(lines[::2], lines[1::2], strict=True))
    seen = (
        f"After {ROUNDS} rounds, all records leak the same amount (the largest standard deviation "
        f"is {max(line.spread for line in after):.1e}) and the accuracy has changed by at most "
        f"{moved:.1f} percentage points. Of the table's {len(table)} numbers, "
        f"{len(table) - len(differing)} agree with the printed numbers"
        + (f" (all but {', '.join(differing)})." if differing else ".")
        + " The penalties are those of the authors' code, not those by the paper's rule."
    )
    setting = f"Data and models as for fil-figure2. {ROUNDS} rounds of IRFIL."
    quantities = (*_sizes(settings), *table, *_checks(settings))
    return Outcome(setting, quantities, seen, _draw(lines, data_names(quick)))


def _sizes(settings: list[ImageModel]) -> Iterator[Quantity]:
    for setting in settings[:: len(MODELS)]:
        count = len(setting.target)
        printed = RECORDS[setting.data]
        yield Quantity(f"{setting.data}: training records", count, printed, kind="count")


def _checks(settings: list[ImageModel]) -> Iterator[Quantity]:
    """Yield the evidence: η from dense Jacobians, and the penalties of the paper's rule."""
    for linear, logistic in zip(settings[::2], settings[1::2], strict=True):
        eta = dense_eta(linear)
        yield Quantity(f"{linear}: mean η by dense singular values", float(eta.mean()))
        yield Quantity(f"{linear}: root mean square of η", float(np.sqrt(np.mean(eta**2))))
        yield Quantity(f"{logistic}: λ used", logistic.estimator.l2)
        yield Quantity(f"{logistic}: λ by the paper's rule", ruled_penalty(linear, logistic))


def dense_eta(linear: ImageModel) -> Vector:
    """Return η of every record from its whole Jacobian, as equations 18 and 22 are printed."""
    X, w = linear.problem.X, np.ravel(linear.fit().coef_)
    inverse = np.linalg.inv(X.T @ X)
    residuals = X @ w - linear.target
    about_features = np.einsum("ij,nj,k->nik", inverse, X, w)
    about_features += residuals[:, None, None] * inverse
    about_label = -(X @ inverse)[:, :, None]
    jacobians = np.concatenate([about_features, about_label], axis=2)
    return np.asarray(np.linalg.norm(jacobians, 2, axis=(1, 2)))


def ruled_penalty(linear: ImageModel, logistic: ImageModel) -> float:
    """Return the largest λ (1, 2, 4 or 8 times a power of ten) of the paper's rule."""
    X, y = linear.problem.X, linear.problem.y

    def accuracy(model: Any) -> str:
        return f"{100 * np.mean((X @ np.ravel(model.coef_) > 0) == (y == 1)):.2g}"

    wanted = accuracy(linear.fit())
    fitting = (l2 for l2 in _STEPS if accuracy(glm.LogisticRegression(l2=l2).fit(X, y)) == wanted)
    return next(fitting)


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
