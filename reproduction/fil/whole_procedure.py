"""Section 5, and beyond: the leakage of IRFIL when the choice of its weights counts.

The paper's η takes the weights as constants. They are chosen by looking at the data, and the
leakage of the whole procedure counts that choice (:meth:`seepage.glm.Reweighting.whole_procedure`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.attribute_problems import warfarin
from reproduction.fil.image_models import MODELS, Vector, image_model
from reproduction.outcome import Outcome, Quantity
from seepage import glm
from seepage.auditing.report.figures import BLUE, MUTED, VERMILLION
from seepage.core.noise import Gaussian
from seepage.glm.leakage import leakage

ROUNDS = 60
_BINS = 60


@dataclass(frozen=True, eq=False)
class WeightingComparison:
    """The leakage of every record in one setting, at σ = 1."""

    name: str
    ordinary: Vector  # without reweighting
    constant: Vector  # reweighted, the weights taken as constants
    whole: Vector  # reweighted, the choice of the weights included

    @property
    def ratio(self) -> Vector:
        """The leakage of the whole procedure over the paper's number."""
        return self.whole / self.constant

    def quantities(self) -> Iterator[Quantity]:
        """Yield the numbers of the comparison."""
        worse = float(np.mean(self.whole > self.ordinary))
        for words, value in (
            ("mean η without reweighting", self.ordinary.mean()),
            ("largest η without reweighting", self.ordinary.max()),
            ("mean η, weights as constants", self.constant.mean()),
            ("mean η of the whole procedure", self.whole.mean()),
            ("largest η of the whole procedure", self.whole.max()),
            ("whole procedure over weights as constants, smallest", self.ratio.min()),
            ("whole procedure over weights as constants, median", np.median(self.ratio)),
            ("whole procedure over weights as constants, largest", self.ratio.max()),
            ("share of records that leak more than without reweighting", worse),
        ):
            yield Quantity(f"{self.name}: {words}", float(value))


def reproduce(quick: bool) -> Outcome:
    """Reweight until the weights have converged, and measure both ways."""
    found = list(_comparisons(quick))
    quantities = tuple(quantity for each in found for quantity in each.quantities())
    seen = (
        "If the choice of the weights is counted, records do not leak equally. Their leakage "
        "divided by that with constant weights, and the largest leakage divided by the largest "
        "without reweighting, are " + "; ".join(map(_tell, found)) + "."
    )
    setting = (
        "IWPC, linear regression with λ = 10⁻², η about the VKORC1 genotype; MNIST and its models "
        "as for fil-figure2. Noise σ = 1; rounds of IRFIL until the weights change by less than "
        f"10⁻⁶, at most {ROUNDS}."
    )
    return Outcome(setting, quantities, seen, _draw(found))


def _comparisons(quick: bool) -> Iterator[WeightingComparison]:
    gene = warfarin()
    model = glm.LinearRegression(l2=gene.l2)
    yield _compare("IWPC", model, gene.problem.X, gene.problem.y, gene.columns)
    for kind in () if quick else MODELS:
        digits = image_model("MNIST", kind)
        yield _compare(str(digits), digits.estimator, digits.problem.X, digits.target, None)


def _compare(
    name: str, model: Any, X: Vector, y: Vector, columns: list[int] | None
) -> WeightingComparison:
    fair = glm.reweight(model, X, y, columns=columns, rounds=ROUNDS)
    first = leakage(model.fit(X, y), X, y, noise=Gaussian(1.0)).rows(columns=columns)
    return WeightingComparison(
        name, np.asarray(first), fair.eta, np.asarray(fair.whole_procedure())
    )


def _tell(found: WeightingComparison) -> str:
    return (
        f"{found.ratio.min():.2f} to {found.ratio.max():.2f} (median "
        f"{np.median(found.ratio):.2f}) and {found.whole.max() / found.ordinary.max():.2f} for "
        f"{found.name}"
    )


def _draw(found: list[WeightingComparison]) -> Figure:
    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, len(found), squeeze=False)
        for axes, each in zip(grid[0], found, strict=True):
            end = 1.1 * max(float(np.quantile(each.ordinary, 0.99)), float(each.whole.max()))
            edges = np.linspace(0, end, _BINS + 1)
            for eta, colour, words in (
                (each.ordinary, MUTED, "without reweighting"),
                (each.whole, BLUE, "the whole procedure"),
            ):
                axes.hist(eta, edges, color=colour, alpha=0.35, lw=0)
                axes.hist(eta, edges, histtype="step", color=colour, lw=1.3, label=words)
            axes.axvline(
                each.constant.mean(),
                color=VERMILLION,
                lw=2,
                ls=(0, (4, 2)),
                label="reweighted, weights as constants",
            )
            axes.set_title(each.name)
            axes.set_xlim(0, end)
            axes.locator_params(axis="x", nbins=5)
            axes.grid(axis="x", visible=False)
            axes.set_xlabel("leakage η of a record")
        grid[0, 0].set_ylabel("number of records")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3)

    alternative = "Histograms of the records' leakage with and without IRFIL: " + "; ".join(
        f"{each.name}, mean {each.ordinary.mean():.3g} without reweighting, "
        f"{each.constant.mean():.3g} with the weights as constants, {each.whole.mean():.3g} of the "
        "whole procedure"
        for each in found
    )
    return draw_figure("fil-whole-procedure", alternative, draw, (4.6 * len(found), 4.4))
