"""Figure 2: what RDP and dFIL promise against reconstruction of MNIST digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.bounds.pixel_models import DATA, L2, Bounds, bounds, model, problem
from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, INK, VERMILLION
from seepage.auditing.report.words import number
from seepage.bounds import from_privacy, from_renyi
from seepage.core.noise import Gaussian
from seepage.glm.leakage import leakage
from seepage.privacy import epsilon_printed_by_guo_2022, output_perturbation

SIGMA = 1e-2
RUNS = 10
_BINS = 80
_SETTING = (
    f"{DATA} Logistic regression without an intercept, λ = 0.01, noise σ = 0.01; accuracy over "
    f"{RUNS} releases. For n records, the paper prints ε = 2/(nλσ) for output perturbation. "
    "Replacing a record moves the minimiser by up to 2L/(nλ), where L is the largest norm of a "
    "record for logistic loss, so the Rényi divergence of order 2 is at most ε(2) = 4L²/(nλσ)². "
    "Here L is 17.2, not 1, so differential privacy guarantees almost nothing."
)


def reproduce(quick: bool) -> Outcome:
    """Measure every record's dFIL, the promises of RDP, and the accuracy of noisy models."""
    data = problem()
    fitted = model().fit(data.X, data.y)
    found = bounds(fitted, data.X, data.y, SIGMA)
    leak = leakage(fitted, data.X, data.y, noise=Gaussian(SIGMA))
    rigorous = output_perturbation(leak)
    printed = epsilon_printed_by_guo_2022(len(data.y), L2, SIGMA)
    promised = float(from_renyi(printed, 1.0))
    noise = Gaussian(SIGMA).draw((2 if quick else RUNS, data.X.shape[1]), seed=0)
    margins = data.X_test @ (np.ravel(fitted.coef_) + noise).T
    accuracy = 100 * np.mean((margins > 0) == (data.y_test[:, None] == 1), axis=0)
    quantities = (
        Quantity("test accuracy in percent, mean of the releases", float(accuracy.mean()), "99.95"),
        Quantity("ε as the paper prints it, 2/(nλσ)", printed, "1.58", kind="setting"),
        Quantity("RDP bound from the printed ε", promised, "0.1"),
        Quantity("ε(2) of output perturbation, 4L²/(nλσ)²", rigorous.renyi()),
        Quantity("RDP bound from that ε(2)", float(from_privacy(rigorous, 1.0))),
        Quantity("dFIL bound: smallest", float(found.dfil.min())),
        Quantity("dFIL bound: median", float(np.median(found.dfil))),
        Quantity("dFIL bound: largest", float(found.dfil.max())),
        Quantity("dFIL bounds above 1, in percent", 100 * float(np.mean(found.dfil > 1)), "100"),
        Quantity("exact Cramér–Rao bound: smallest", float(found.exact.min())),
    )
    seen = (
        "Every record's dFIL bound exceeds 1, the largest squared error of a guess in [0, 1]: the "
        f"smallest is {number(found.dfil.min())}, the median {number(np.median(found.dfil))}. The "
        f"RDP bound is {number(promised)} with the printed ε, and almost zero with the rigorous "
        f"ε(2) = {number(rigorous.renyi())}."
    )
    return Outcome(_SETTING, quantities, seen, _draw(found, promised))


def _draw(found: Bounds, promised: float) -> Figure:
    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        edges = np.geomspace(found.dfil.min(), found.dfil.max(), _BINS + 1)
        axes.hist(found.dfil, edges, color=BLUE, alpha=0.35, lw=0)
        axes.hist(found.dfil, edges, histtype="step", color=BLUE, lw=1.3, label="dFIL, per record")
        axes.set_xscale("log")
        axes.set_xlim(promised / 10, found.dfil.max() * 2)
        axes.axvline(
            promised, color=VERMILLION, lw=2, ls=(0, (4, 2)), label="RDP, with the printed ε"
        )
        axes.axvline(1.0, color=INK, lw=1.5, ls=":", label="a guess within [0, 1]")
        power_ticks(axes.xaxis, every=2)
        axes.set_xlabel("least mean squared error per pixel")
        axes.set_ylabel("number of records")
        axes.grid(axis="x", visible=False)
        axes.legend(loc="upper right")

    alternative = (
        f"Histogram of the records' dFIL bounds on the mean squared error per pixel, from "
        f"{number(found.dfil.min())} to {number(found.dfil.max())}, all above "
        f"1; the RDP bound is {number(promised)}."
    )
    return draw_figure("bounds-figure2", alternative, draw, (7.5, 4.2))
