"""Figure 4: a record's leakage against its loss and the norm of its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.image_models import CLASSES, Vector, image_model
from reproduction.outcome import Outcome, Quantity
from seepage.auditing.report.figures import BLUE, VERMILLION

SHOWN = 2_000
_TENTH = 0.1


def reproduce(quick: bool) -> Outcome:
    """Compare η with the two heuristics on MNIST with linear regression (fast in either mode)."""
    from scipy.stats import spearmanr

    setting = image_model("MNIST", "linear")
    X = setting.problem.X
    eta = setting.eta()
    residual = X @ setting.fit().coef_ - setting.target
    loss = 0.5 * residual**2
    gradient = np.abs(residual) * np.linalg.norm(X, axis=1)
    ranks = [float(spearmanr(eta, other).statistic) for other in (loss, gradient)]
    found = [float(_recall(eta, other)) for other in (loss, gradient)]
    calm = float(loss[eta <= np.quantile(eta, _TENTH)].max() / loss.max())
    quantities = (
        Quantity("rank correlation of η and loss", ranks[0]),
        Quantity("rank correlation of η and gradient norm", ranks[1]),
        Quantity("share of the tenth with the largest η that loss finds", found[0]),
        Quantity("share of the tenth with the largest η that the gradient norm finds", found[1]),
        Quantity("largest loss in the tenth with the smallest η, of the largest loss", calm),
    )
    seen = (
        f"η correlates with loss and gradient norm (rank correlations {ranks[0]:.2f} and "
        f"{ranks[1]:.2f}), and a small η means a small loss. But the tenth of records with the "
        f"largest loss contains only {100 * found[0]:.0f} % of the tenth that leaks most (gradient "
        f"norm: {100 * found[1]:.0f} %)."
    )
    words = (
        "MNIST digits 0 and 1, linear regression, as for Table 1. The figure shows "
        f"{SHOWN:,} random records."
    )
    chosen = np.random.default_rng(0).choice(len(eta), SHOWN, replace=False)
    parts = (eta[chosen], loss[chosen], gradient[chosen], setting.problem.y[chosen])
    return Outcome(words, quantities, seen, _draw(*parts, ranks))


def _recall(eta: Vector, other: Vector) -> float:
    """Return the share of the tenth with the largest η that the largest ``other`` finds."""
    top = eta > np.quantile(eta, 1 - _TENTH)
    picked = other > np.quantile(other, 1 - _TENTH)
    return float(np.mean(picked[top]))


def _draw(eta: Vector, loss: Vector, gradient: Vector, label: Vector, ranks: list[float]) -> Figure:
    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, 2, sharey=True)
        for axes, other, name, rank in zip(
            grid, (loss, gradient), ("loss", "gradient norm"), ranks, strict=True
        ):
            for value, colour in ((0, BLUE), (1, VERMILLION)):
                chosen = label == value
                axes.scatter(
                    other[chosen],
                    eta[chosen],
                    s=9,
                    color=colour,
                    alpha=0.45,
                    lw=0,
                    label=CLASSES["MNIST"][value],
                )
            axes.set_xlabel(f"{name} of a record")
            axes.set_title(f"Against the {name}: rank correlation {rank:.2f}")
            axes.set(xlim=(0, None), ylim=(0, None))
        grid[0].set_ylabel("leakage η of a record")
        legend = grid[0].legend(loc="lower right", handletextpad=0.2)
        for handle in legend.legend_handles:
            handle.set(sizes=[30], alpha=1)

    alternative = (
        f"Leakage of {len(eta):,} MNIST records against their loss (rank correlation "
        f"{ranks[0]:.2f}) and the norm of their gradient ({ranks[1]:.2f}): large values of η occur "
        "at every loss, small ones at small losses only."
    )
    return draw_figure("fil-figure4", alternative, draw, (11, 4.4))
