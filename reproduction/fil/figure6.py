"""Figure 6: attribute inversion on IWPC against leakage, for four penalties.

The attribute is the VKORC1 genotype, and η measures the leakage about its two indicator columns.
The figure compares six adversaries: the paper's white-box and black-box ones, the white-box one
with the prior's logarithm added, the prior alone, one who learns the genotype from the other
columns and the dose, and the exact optimum. No adversary who sees the release and knows everything
but the genotype, of which only the frequencies are known, beats the optimum (the black-box
adversary also knows how doses depend on genotypes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from reproduction.drawing import RAMP, Figure, draw_figure, power, power_ticks
from reproduction.fil.attribute_problems import AttributeProblem, warfarin
from reproduction.fil.best_guesses import Beside, beside_the_optimum
from reproduction.outcome import Outcome, Quantity
from seepage import attacks, glm
from seepage.auditing.report.figures import MUTED, word_ticks
from seepage.core.noise import Gaussian
from seepage.glm.leakage import leakage
from seepage.support.chunks import progress

Vector = NDArray[np.float64]

PENALTIES = (1e-5, 1e-3, 1e-1, 1.0)
SCALES = (*(m * 10.0**e for e in range(-5, 0) for m in (1, 2, 5)), 1.0)
TRIALS = 100
_SHOWN = (1, 10)  # mean η at which the exact optimum is reported
_MARKS = ("o", "s", "D", "^")
ADVERSARIES = ("white-box", "white-box with prior", "black-box")
_WHO = {"prior": "the prior alone", "ideal": "the ideal adversary", "chance": "pure chance"}


@dataclass(frozen=True, eq=False)
class PenaltyCurve:
    """The results of one penalty; arrays run over noise scales, accuracies also over trials."""

    l2: float
    rows: Vector  # η of every record at σ = 1
    eta: Vector  # (S,): the mean over the records
    error: Vector  # (S, T): test mean squared error
    noiseless: float  # the error without noise
    accuracy: dict[str, Vector]  # (S, T) for each adversary
    beside: tuple[Beside, ...] = ()  # the optimum at each noise scale, and two rules beside it

    @property
    def name(self) -> str:
        """The penalty in words."""
        return f"λ = {power(round(math.log10(self.l2)))}"


def reproduce(quick: bool) -> Outcome:
    """Attack releases at every penalty and noise scale."""
    scales, trials = (SCALES[::3], 5) if quick else (SCALES, TRIALS)
    target = warfarin()
    curves = [_curve(target, l2, scales, trials) for l2 in progress(PENALTIES, "penalties")]
    levels = {"prior": _prior(target), "ideal": _ideal(target), "chance": 1 / len(target.attribute)}
    ranks = {name: rank_correlation(curves, name) for name in ADVERSARIES}
    gaps = {name: gap_across_penalties(curves, name) for name in ADVERSARIES}
    white, prior, black = ADVERSARIES
    last = curves[-1]
    recommended = half_gain(last, levels["prior"])
    excesses = [
        found.excess(rule)
        for curve in curves
        for found in curve.beside
        for rule in (found.plain, found.weighed)
    ]
    quantities = [
        Quantity(
            "patients",
            len(target.problem.y) + len(target.problem.y_test),
            "4819",
            kind="count",
        ),
        Quantity("features", target.problem.X.shape[1], "14", kind="count"),
        Quantity(
            f"{last.name}: mean η at which the black-box adversary's gain over the prior is halved",
            recommended,
            "0.001",
        ),
        Quantity(
            f"{last.name}: test MSE there, over that without noise",
            _error_at(last, recommended) / last.noiseless,
        ),
        *(Quantity(f"rank correlation of {name} accuracy and η", ranks[name]) for name in ranks),
        *(
            Quantity(f"gap of {name} accuracy between penalties at equal η, of its range", gap)
            for name, gap in gaps.items()
        ),
        *(Quantity(f"accuracy of {who}", levels[name]) for name, who in _WHO.items()),
        Quantity(
            "largest excess of a rule's accuracy over the exact optimum's, in standard errors",
            max(excesses),
        ),
        Quantity(
            f"Bonferroni threshold for {len(excesses)} comparisons at the 1 % level, in standard "
            "errors",
            float(ndtri(1 - 0.01 / len(excesses))),
        ),
        *(
            Quantity(
                f"{curve.name}: {what} at {where}", float(np.mean(getattr(curve.beside[k], of)))
            )
            for curve in curves
            for where, k in ((f"mean η near {eta}", _near(curve, eta)) for eta in _SHOWN)
            for what, of in (
                ("exact optimum", "optimum"),
                ("the paper's white-box rule, levels drawn,", "plain"),
            )
        ),
        *(quantity for curve in curves for quantity in _numbers(curve)),
    ]
    reached = [
        [100 * curve.beside[_near(curve, eta)].share(levels["prior"]) for curve in curves]
        for eta in _SHOWN
    ]
    ends = [(f"{min(each):.0f}", f"{max(each):.0f}") for each in reached]
    spans = [low if low == high else f"{low} to {high}" for low, high in ends]
    safe = [float(curve.error[_safe(curve)].mean()) for curve in curves]
    seen = (
        f"As η falls, white-box accuracy falls from {_mean(curves, white, 0):.2f} to "
        f"{_mean(curves, white, -1):.2f} (chance: {levels['chance']:.2f}), or to "
        f"{_mean(curves, prior, -1):.2f} with the prior. Across penalties, white-box accuracy "
        f"tracks η more closely (rank correlation {ranks[white]:.2f}) than black-box accuracy does "
        f"({ranks[black]:.2f}). No rule's accuracy exceeds that of the exact optimum by more than "
        f"{max(excesses):.1f} standard errors (Bonferroni threshold for {len(excesses)} "
        f"comparisons at the 1 % level: {ndtri(1 - 0.01 / len(excesses)):.1f}). The accuracy of "
        f"the paper's rule covers {spans[0]} % of the way from the prior's to the optimum at a "
        f"mean η near {_SHOWN[0]} and {spans[1]} % near {_SHOWN[1]}; with the log-prior added, "
        "this rule is the optimum. At a mean η near 10⁻³, which the paper recommends, the test MSE "
        f"is {safe[-1]:.2f} for λ = 1 and at least {min(safe[:-1]):.1f} for smaller penalties."
    )
    setting = (
        f"IWPC, {len(target.problem.y):,} patients for training and {len(target.problem.y_test)} "
        "for testing, 14 features; linear regression of the dose with λ = 10⁻⁵, 10⁻³, 10⁻¹ and 1; "
        f"{len(scales)} noise scales from 10⁻⁵ to 1, {trials} releases each. The attacker infers "
        "the VKORC1 genotype (three values) of every training patient; η measures the leakage "
        "about the two indicator columns that encode it. The exact optimum is Bayes' rule for an "
        "attacker who knows everything except one patient's genotype, for which only the "
        "frequencies are known; rules are compared with it on genotypes drawn from these "
        "frequencies. The ideal attacker (imputation without the model) learns from half of the "
        "patients and is tested on the other half. The paper recommends a mean η near 10⁻³ without "
        "a criterion; our criterion is that the black-box attacker loses half of the gain over the "
        "prior at λ = 1."
    )
    return Outcome(setting, tuple(quantities), seen, _draw(curves, levels, ranks))


def rank_correlation(curves: list[PenaltyCurve], adversary: str) -> float:
    """Return Spearman's correlation of accuracy and mean η over all penalties and noise scales."""
    from scipy.stats import spearmanr

    eta = np.concatenate([curve.eta for curve in curves])
    accuracy = np.concatenate([curve.accuracy[adversary].mean(axis=1) for curve in curves])
    return float(spearmanr(eta, accuracy).statistic)


def gap_across_penalties(curves: list[PenaltyCurve], adversary: str) -> float:
    """Return how far the penalties' accuracies differ at equal η, as a share of their range.

    The accuracies are interpolated over log η where all penalties have been measured; at each η
    the gap is the largest less the smallest, and the mean of the gaps is divided by the range of
    all accuracies of this adversary.
    """
    low = max(float(curve.eta.min()) for curve in curves)
    high = min(float(curve.eta.max()) for curve in curves)
    grid = np.linspace(np.log(low), np.log(high), 200)
    accuracies = [curve.accuracy[adversary].mean(axis=1) for curve in curves]
    lines = [
        np.interp(grid, np.log(curve.eta[::-1]), accuracy[::-1])
        for curve, accuracy in zip(curves, accuracies, strict=True)
    ]
    gap = np.mean(np.max(lines, axis=0) - np.min(lines, axis=0))
    return float(gap / np.ptp(np.concatenate(accuracies)))


def _curve(
    target: AttributeProblem, l2: float, scales: tuple[float, ...], trials: int
) -> PenaltyCurve:
    problem = target.problem
    data = (problem.X, problem.y)
    model = glm.LinearRegression(l2=l2)
    white = attacks.WhiteBox(target.attribute, model).fit(*data)
    informed = attacks.WhiteBox(target.attribute, model, prior=True).fit(*data)
    black = attacks.BlackBox(target.attribute).fit(*data)
    leak = leakage(white.model_, *data, noise=Gaussian(1.0))
    rows = np.asarray(leak.rows(columns=target.columns))
    adversaries = dict(zip(ADVERSARIES, (white, informed, black), strict=True))
    accuracy: dict[str, list[Vector]] = {name: [] for name in ADVERSARIES}
    errors, beside = [], []
    for seed, sigma in enumerate(scales):
        releases = attacks.draw_releases(white.model_, Gaussian(sigma), trials, seed=seed)
        beside.append(beside_the_optimum(white, len(problem.y), sigma, trials, seed))
        errors.append(np.mean((releases.predict(problem.X_test) - problem.y_test) ** 2, axis=1))
        for name, adversary in adversaries.items():
            accuracy[name].append(adversary.attack(*data, releases).trial_accuracy)
    noiseless = float(np.mean((white.model_.predict(problem.X_test) - problem.y_test) ** 2))
    together = {name: np.array(found) for name, found in accuracy.items()}
    mean = rows.mean() / np.array(scales)
    return PenaltyCurve(l2, rows, mean, np.array(errors), noiseless, together, tuple(beside))


def half_gain(curve: PenaltyCurve, prior: float) -> float:
    """Return the largest mean η at which the black-box adversary's gain is at most half.

    The gain is over the prior's accuracy, and largest at the least noise; between noise scales it
    is interpolated over log η.
    """
    gain = curve.accuracy["black-box"].mean(axis=1) - prior
    below = int(np.argmax(gain <= gain[0] / 2))
    logs = np.log(curve.eta)
    at = np.interp(gain[0] / 2, gain[[below, below - 1]], logs[[below, below - 1]])
    return float(np.exp(at))


def _error_at(curve: PenaltyCurve, eta: float) -> float:
    """Return the test error at a mean η, interpolated over log η."""
    logs, errors = np.log(curve.eta[::-1]), curve.error.mean(axis=1)[::-1]
    return float(np.interp(np.log(eta), logs, errors))


def _safe(curve: PenaltyCurve) -> int:
    """Return the noise scale nearest the mean η of 1e-3 that the paper recommends."""
    return _near(curve, 1e-3)


def _near(curve: PenaltyCurve, eta: float) -> int:
    """Return the noise scale whose mean η is nearest a given one."""
    return int(np.argmin(np.abs(np.log(curve.eta / eta))))


def _numbers(curve: PenaltyCurve) -> tuple[Quantity, ...]:
    """Return a penalty's numbers: its leakage, accuracies and error."""
    white, _, black = ADVERSARIES
    name = curve.name
    return (
        Quantity(f"{name}: mean η at σ = 1", float(curve.rows.mean())),
        Quantity(f"{name}: standard deviation of η at σ = 1", float(curve.rows.std())),
        Quantity(f"{name}: test MSE without noise", curve.noiseless),
        *(
            Quantity(f"{name}: {who} accuracy at {where}", float(curve.accuracy[who][k].mean()))
            for where, k in (("σ = 10⁻⁵", 0), ("σ = 1", -1), ("mean η near 10⁻³", _safe(curve)))
            for who in (white, black)
        ),
        Quantity(f"{name}: test MSE at mean η near 10⁻³", float(curve.error[_safe(curve)].mean())),
    )


def _mean(curves: list[PenaltyCurve], adversary: str, scale: int) -> float:
    return float(np.mean([curve.accuracy[adversary][scale].mean() for curve in curves]))


def _prior(target: AttributeProblem) -> float:
    data = (target.problem.X, target.problem.y)
    return attacks.Prior(target.attribute).fit(*data).attack(*data).accuracy


def _ideal(target: AttributeProblem) -> float:
    """Return the accuracy on one half of the patients of a classifier trained on the other."""
    X, y = target.problem.X, target.problem.y
    taught = attacks.Ideal(target.attribute).fit(X[::2], y[::2])
    return taught.attack(X[1::2], y[1::2]).accuracy


def _draw(
    curves: Sequence[PenaltyCurve], levels: dict[str, float], ranks: dict[str, float]
) -> Figure:
    """Draw the distribution of η, and error and accuracies against its mean."""

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
        "Leakage about the VKORC1 genotype for four penalties; test error and the accuracies of "
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


def _distribution(axes: Any, curves: Sequence[PenaltyCurve]) -> None:
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


def _error(axes: Any, curves: Sequence[PenaltyCurve]) -> None:
    for curve, colour, mark in zip(curves, RAMP, _MARKS, strict=True):
        _line(axes, curve.eta, curve.error, colour, mark)
    axes.set(xscale="log", yscale="log", title="Test mean squared error")
    axes.set_ylim(bottom=min(curve.noiseless for curve in curves) * 0.8)
    axes.set_xlabel("mean leakage η")
    power_ticks(axes.xaxis)
    word_ticks(axes.yaxis)


def _accuracy(
    axes: Any, curves: Sequence[PenaltyCurve], adversary: str, levels: dict[str, float]
) -> None:
    for curve, colour, mark in zip(curves, RAMP, _MARKS, strict=True):
        _line(axes, curve.eta, curve.accuracy[adversary], colour, mark)
        if curve.beside and adversary != "black-box":  # which knows more than the frequencies
            optimum = [found.optimum.mean() for found in curve.beside]
            axes.plot(curve.eta, optimum, color=colour, lw=1.2, ls=(0, (1, 1)))
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
    # The two smallest penalties nearly coincide: the first is drawn larger, to show behind the
    # second.
    large = colour == RAMP[0]
    axes.plot(eta, mean, f"{mark}-", color=colour, lw=3 if large else 1.6, ms=8 if large else 4.5)


def _legend(axes: Any, curves: Sequence[PenaltyCurve], ranks: dict[str, float]) -> None:
    """Use a separate cell for the legend, so that it covers no curve."""
    axes.axis("off")
    for curve, colour, mark in zip(curves, RAMP, _MARKS, strict=True):
        axes.plot([], [], f"{mark}-", color=colour, lw=2.2, ms=7, label=curve.name)
    axes.plot([], [], color=MUTED, lw=1.2, ls=(0, (1, 1)), label="exact optimum")
    label = "± standard deviation over releases"
    axes.fill_between([], [], color=MUTED, alpha=0.25, lw=0, label=label)
    legend = axes.legend(loc="upper left", title="Penalty", alignment="left")
    legend.get_title().set_weight("bold")
    words = "\n".join(f"{name}: {rank:.2f}" for name, rank in ranks.items())
    place = {"transform": axes.transAxes, "va": "top"}
    axes.text(0.04, 0.36, "Rank correlation of accuracy and η", weight="bold", **place)
    axes.text(0.04, 0.27, words, linespacing=1.6, **place)
