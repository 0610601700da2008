"""LiRA against the exact limit: one record in or out at random, all others fixed.

A logistic model on 80 records of 4 columns is released with Gaussian noise, 4,000 times with each
of 12 records and 4,000 times without it, after as many releases of either kind for LiRA to learn
from. ``leak.membership()`` gives the limit for any adversary; LiRA sees the released model's
log-odds for the record. Printed for every record: the area under LiRA's curve with its standard
error, the limit ``Φ(μ/√2)``, and by how many standard errors LiRA lies above it. Claimed, at a
level of 99 % for all records together: no area above the limit (normal law), and no point of any
curve above the limit's (the Dvoretzky–Kiefer–Wolfowitz inequality for both rates, with Massart's
constant).

The figures are kept in ``results/lira_limit.json``; ``--figure FILE`` draws the curves of three
records.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

import seepage as sp
from keeping import keep
from measuring import show
from seepage.attacks.intervals import area_under_curve
from seepage.attacks.membership.scores import lira
from seepage.risks.guessing import true_positive_rate

RECORDS, DRAWS, SIGMA = 12, 4000, 0.1
WIDTHS = (8, 10, 18, 10, 22)
KEPT = Path(__file__).parent / "results" / "lira_limit.json"


def released(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return many releases of parameters with noise."""
    return theta + SIGMA * rng.standard_normal((DRAWS, len(theta)))


def curve(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positive rates at every threshold."""
    thresholds = np.sort(np.concatenate([inside, outside]))[::-1]
    false = np.searchsorted(np.sort(-outside), -thresholds, side="right") / len(outside)
    true = np.searchsorted(np.sort(-inside), -thresholds, side="right") / len(inside)
    return false, true


def main() -> int:
    """Attack, print, compare with the claim, and keep the figures."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 4)) * [1.0, 1.0, 1.0, 2.0]
    y = (X @ [1.0, -1.0, 0.5, 0.2] + rng.logistic(size=80) > 0).astype(float)
    model = sp.glm.LogisticRegression(l2=0.01).fit(X, y)
    mu = np.asarray(sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA)).membership())
    chosen = np.argsort(-mu)[np.linspace(0, 79, RECORDS).astype(int)]
    # Each rate is within this of its expectation at every threshold, for all records at once.
    band = math.sqrt(math.log(2 * 2 * RECORDS / 0.01) / (2 * DRAWS))
    print(f"{DRAWS:,} releases with and without each record; chance allows {band:.4f} in each rate")
    show("record", "μ", "AUC of LiRA", "limit", "standard errors above", widths=WIDTHS)
    outside, furthest = False, -math.inf
    gaps, curves = [], []
    with_all = np.asarray(model.coef_).reshape(-1)
    for i in chosen:
        kept = np.arange(80) != i
        without = sp.glm.LogisticRegression(l2=0.01 * 80 / 79).fit(X[kept], y[kept])
        thetas = {True: with_all, False: np.asarray(without.coef_).reshape(-1)}
        sign = 2 * y[i] - 1
        signals = {side: sign * (released(theta, rng) @ X[i]) for side, theta in thetas.items()}
        shadows = np.concatenate([signals[True], signals[False]])[:, None]
        member = (np.arange(2 * DRAWS) < DRAWS)[:, None]
        scores = {
            side: lira(sign * (released(theta, rng) @ X[i]), shadows, member)
            for side, theta in thetas.items()
        }
        false, true = curve(scores[True], scores[False])
        # Above the limit even if both rates are off by the band.
        limits = true_positive_rate(mu[i], np.minimum(false + band, 1))
        outside |= bool(np.any(true - band > limits))
        area, interval = area_under_curve(
            np.concatenate([scores[True], scores[False]]), np.arange(2 * DRAWS) < DRAWS
        )
        error = (interval.high - interval.low) / (2 * ndtri(0.975))
        limit = float(ndtr(mu[i] / math.sqrt(2)))
        above = (area - limit) / error
        furthest = max(furthest, above)
        if limit > 0.6:
            gaps.append((area - 0.5) / (limit - 0.5))
        curves.append((mu[i], false, true))
        measured = f"{area:.4f} ± {error:.4f}"
        show(int(i), f"{mu[i]:.3f}", measured, f"{limit:.4f}", f"{above:+.2f}", widths=WIDTHS)
    print(
        f"LiRA goes {100 * min(gaps):.0f} to {100 * max(gaps):.0f} % of the way from a coin to the "
        f"limit (the {len(gaps)} records whose limit is above 0.6)"
    )
    allowed = float(ndtri(1 - 0.01 / RECORDS))
    met = furthest <= allowed and not outside
    print(
        f"{'kept' if met else 'MISSED':<7} not above the limit: by {furthest:+.2f} standard errors "
        f"at most, {allowed:.2f} are chance; {'some' if outside else 'no'} point of a curve is"
    )
    keep(
        {
            "records": RECORDS,
            "releases of each": 2 * DRAWS,
            "least and most of the way to the limit": [min(gaps), max(gaps)],
            "standard errors above the limit, at most": furthest,
            "standard errors that are chance": allowed,
            "holds": met,
        },
        KEPT,
    )
    if "--figure" in sys.argv:
        draw(curves, sys.argv[sys.argv.index("--figure") + 1])
    return 0 if met else 1


def draw(curves: list[tuple[float, np.ndarray, np.ndarray]], path: str) -> None:
    """Draw LiRA's curves and their limits for three of the records."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
    grid = np.linspace(0, 1, 400)
    for (mu, false, true), colour in zip(curves[::4], ("C3", "C0", "C2"), strict=False):
        axes.plot(grid, true_positive_rate(mu, grid), colour, label=f"limit, μ = {mu:.2f}")
        axes.plot(false, true, colour, linestyle="--", label="LiRA")
    axes.plot([0, 1], [0, 1], "0.7", linewidth=0.8)
    axes.set(xlabel="others taken for members", ylabel="members found")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
