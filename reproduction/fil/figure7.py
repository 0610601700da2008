"""Figure 7: leakage and white-box accuracy by decile of leakage, over rounds of IRFIL.

Deciles are those of η before any reweighting, in ascending order. The adversary knows the weights
and keeps them in every refit. The exact optimum beside it cannot be beaten by anybody who sees the
release and knows everything but the attribute, and of that only its frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.drawing import Figure, draw_figure
from reproduction.fil.attribute_problems import AttributeProblem, census, warfarin
from reproduction.fil.best_guesses import Beside, beside_the_optimum
from reproduction.outcome import Outcome, Quantity
from seepage import attacks, glm
from seepage.attacks import Accuracy, InversionResult
from seepage.auditing.report.figures import BLUE, MUTED, ORANGE, VERMILLION
from seepage.core.noise import Gaussian
from seepage.support.chunks import progress

Vector = NDArray[np.float64]
Positions = NDArray[np.intp]

SIGMA = 1e-3
ROUNDS = 10
ATTACKED = (0, 2, 10)
DECILES = 10
TRIALS = 100
_STAGES = {0: (VERMILLION, "o"), 2: (ORANGE, "s"), 10: (BLUE, "D")}


@dataclass(frozen=True, eq=False)
class Course:
    """The results for one data set; ``eta`` is at σ = 10⁻³, by round and record."""

    target: AttributeProblem
    eta: Vector
    deciles: Positions
    results: dict[int, InversionResult]  # by round
    # The exact optimum, by round
    beside: dict[int, Beside] = field(default_factory=dict)

    def accuracies(self, stage: int) -> list[Accuracy]:
        """Return the accuracy in each decile after some rounds."""
        return self.results[stage].by(self.deciles)

    def gap(self, stage: int) -> tuple[float, float]:
        """Return the last decile's accuracy less the first's, and half its 95 % interval."""
        gap, (low, high) = self.results[stage].difference(self.deciles, DECILES - 1, 0)
        return gap, (high - low) / 2

    def gap_by_level(self, stage: int) -> tuple[float, float]:
        """Return the same, comparing only records of the same level.

        Levels are not equally hard to tell (the middle one of three lies between the others), and
        the deciles hold them in different shares.
        """
        levels = self.target.attribute.read(self.target.problem.X)
        gap, (low, high) = self.results[stage].difference(self.deciles, DECILES - 1, 0, levels)
        return gap, (high - low) / 2

    def bar(self, stage: int, decile: int) -> float:
        """Return the standard deviation of a decile's accuracy over the releases.

        These are the bars of the paper's figure.
        """
        hits = self.results[stage].hits[:, self.deciles == decile]
        return float(hits.mean(axis=1).std(ddof=1))

    def overlap(self, stage: int) -> bool:
        """Return whether the 95 % intervals of the first and the last decile overlap."""
        found = self.accuracies(stage)
        first, last = found[0].interval, found[-1].interval
        return first.high >= last.low and last.high >= first.low


def reproduce(quick: bool) -> Outcome:
    """Reweight, attack after some rounds, and compare the deciles."""
    makers = (warfarin,) if quick else (warfarin, census)
    courses = [_follow(make()) for make in progress(makers, "data sets")]
    quantities = [q for course in courses for q in _sizes(course.target)]
    quantities += [q for course in courses for stage in ATTACKED for q in _numbers(course, stage)]
    seen = " ".join(_compare(course) for course in courses)
    setting = (
        "Linear regression on IWPC (λ = 10⁻²; the VKORC1 genotype, three values) and Adult (λ = "
        "10⁻³, targets −1 and 1; married or not): η is about the columns of the attribute, and "
        "each round of IRFIL equalises η over the records. Gaussian noise σ = 10⁻³, "
        f"{TRIALS} releases. Intervals are at 95 %, over records and releases. Deciles are of η "
        "before reweighting. The exact optimum is defined as in fil-figure6, on drawn values. η is "
        "about small changes and the attacker compares whole levels, so equal η need not mean "
        "equal accuracy."
    )
    return Outcome(setting, tuple(quantities), seen, _draw(courses))


def _sizes(target: AttributeProblem) -> list[Quantity]:
    """Return the numbers of records and features, beside those that section 6.1 prints for Adult.

    Those of IWPC are under Figure 6.
    """
    if target.name != "Adult":
        return []
    found = target.problem
    return [
        Quantity("Adult: training records", len(found.y), "30162", kind="count"),
        Quantity("Adult: test records", len(found.y_test), "15060", kind="count"),
        Quantity("Adult: features", found.X.shape[1], "86", kind="count"),
    ]


def _follow(target: AttributeProblem) -> Course:
    X, y = target.problem.X, target.problem.y
    model = glm.LinearRegression(l2=target.l2)
    weights = np.ones(len(y))
    eta, results, beside = [], {}, {}
    for stage in progress(range(ROUNDS + 1), target.name):
        # Continuing from the current weights is the next round of the same algorithm.
        step = glm.reweight(
            model,
            X,
            y,
            rounds=min(stage, 1),
            columns=target.columns,
            sample_weight=weights,
            tolerance=0.0,
        )
        weights = step.weights
        eta.append(step.eta / SIGMA)
        if stage in ATTACKED:
            adversary = attacks.WhiteBox(target.attribute, model).fit(X, y, weights)
            # The same noise after every round: what differs is the reweighting.
            noise = Gaussian(SIGMA)
            releases = attacks.draw_releases(adversary.model_, noise, TRIALS, seed=0)
            results[stage] = adversary.attack(X, y, releases)
            beside[stage] = beside_the_optimum(adversary, len(y), SIGMA, TRIALS, stage)
    return Course(target, np.array(eta), deciles_of(eta[0]), results, beside)


def deciles_of(values: Vector) -> Positions:
    """Return the decile of each value, 0 to 9, in ascending order, in nearly equal numbers."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return DECILES * ranks // len(values)


def _numbers(course: Course, stage: int) -> list[Quantity]:
    """Return the leakage and the ends of the deciles; ± is half a 95 % interval."""
    found = course.accuracies(stage)
    gap, reach = course.gap(stage)
    alike, alike_reach = course.gap_by_level(stage)
    overlap = int(course.overlap(stage))
    name = f"{course.target.name}, {_when(stage)}"
    quantities = [
        Quantity(f"{name}: mean η", float(course.eta[stage].mean())),
        Quantity(f"{name}: standard deviation of η", float(course.eta[stage].std())),
    ]
    for words, k in (("first", 0), ("last", DECILES - 1)):
        half = (found[k].interval.high - found[k].interval.low) / 2
        what = f"{name}: accuracy in the {words} decile"
        quantities += [
            Quantity(what, found[k].accuracy),
            Quantity(f"{what}, ±", half),
            Quantity(f"{what}, standard deviation over releases", course.bar(stage, k)),
        ]
    beside = course.beside[stage]
    ends = {"first": course.deciles == 0, "last": course.deciles == DECILES - 1}
    return [
        *quantities,
        *(
            Quantity(
                f"{name}: exact optimum in the {words} decile", float(beside.optimum[k].mean())
            )
            for words, k in ends.items()
        ),
        *(
            Quantity(
                f"{name}: the white-box rule in the {words} decile, levels drawn",
                float(beside.plain[:, k].mean()),
            )
            for words, k in ends.items()
        ),
        Quantity(
            f"{name}: the most that a rule lies above the optimum, in standard errors",
            max(beside.excess(beside.plain), beside.excess(beside.weighed)),
        ),
        Quantity(f"{name}: last less first decile", gap),
        Quantity(f"{name}: last less first decile, ±", reach),
        Quantity(f"{name}: last less first decile, like levels compared", alike),
        Quantity(f"{name}: last less first decile, like levels compared, ±", alike_reach),
        Quantity(f"{name}: the two deciles' intervals overlap (1: yes)", overlap),
    ]


def _compare(course: Course) -> str:
    """State how the first and the last decile differ, before and after."""
    words = []
    for stage in (0, ROUNDS):
        found, (gap, reach) = course.accuracies(stage), course.gap(stage)
        alike, alike_reach = course.gap_by_level(stage)
        words.append(
            f"{found[0].accuracy:.2f} and {found[-1].accuracy:.2f} {_when(stage)}"
            f"{' reweighting' * (stage == 0)} (difference "
            f"{gap:+.3f} ± {reach:.3f}; at equal values {alike:+.3f} ± {alike_reach:.3f})"
        )
    both = "; it is ".join(words).replace("-", "−")
    beside = [course.beside[stage] for stage in (0, ROUNDS)]
    shares = [f"{each.plain.mean():.3f} (optimum {each.optimum.mean():.3f})" for each in beside]
    return (
        f"On {course.target.name}, white-box accuracy in the first and the last decile is {both}. "
        f"Over all records, with drawn values, it is {shares[0]} before and {shares[1]} after "
        "reweighting."
    )


def _draw(courses: Sequence[Course]) -> Figure:
    """Draw two panels for each data set."""

    def fill(canvas: Any) -> None:
        grid = canvas.subplots(len(courses), 2, squeeze=False)
        for (left, right), course in zip(grid, courses, strict=True):
            _leakage(left, course)
            _accuracy(right, course)

    alternative = "Leakage over rounds of IRFIL and white-box accuracy by decile. " + "; ".join(
        f"{course.target.name}: standard deviation of η from {course.eta[0].std():.2g} to "
        f"{course.eta[-1].std():.2g}, accuracy from first to last decile "
        + ", ".join(
            f"{_when(stage)} {ends[0].accuracy:.2f} to {ends[-1].accuracy:.2f}"
            for stage, ends in ((s, course.accuracies(s)) for s in _STAGES)
        )
        for course in courses
    )
    return draw_figure("fil-figure7", alternative, fill, (11, 4.1 * len(courses)))


def _leakage(axes: Any, course: Course) -> None:
    from matplotlib import colormaps

    rounds = np.arange(len(course.eta))
    mean, spread = course.eta.mean(axis=1), course.eta.std(axis=1)
    axes.fill_between(
        rounds,
        np.maximum(mean - spread, 0),
        mean + spread,
        color=MUTED,
        alpha=0.18,
        lw=0,
        label="mean ± standard deviation",
    )
    count = int(course.deciles.max()) + 1
    for decile in range(count):
        line = course.eta[:, course.deciles == decile].mean(axis=1)
        colour = colormaps["plasma"](0.85 * (1 - decile / (count - 1)))
        label = {0: "mean of the first decile", count - 1: "mean of the last decile"}.get(decile)
        axes.plot(rounds, line, color=colour, lw=1.8, label=label)
    axes.plot(rounds, mean, color="black", lw=1.4, ls=(0, (4, 2)), label="mean of all records")
    axes.set_title(f"{course.target.name}: leakage about {course.target.words}")
    axes.set(xlabel="rounds of IRFIL", ylabel="leakage η at σ = 10⁻³", xlim=(0, rounds[-1]))
    axes.set_ylim(bottom=0)
    axes.set_xticks(rounds[::2])
    axes.legend(loc="upper right")


def _accuracy(axes: Any, course: Course) -> None:
    for shift, (stage, (colour, mark)) in zip((-0.12, 0.0, 0.12), _STAGES.items(), strict=True):
        found = course.accuracies(stage)
        places = np.arange(1, len(found) + 1) + shift
        means = np.array([a.accuracy for a in found])
        ends = np.array([a.interval for a in found]).T
        axes.errorbar(
            places,
            means,
            yerr=np.abs(ends - means),
            fmt=f"{mark}-",
            color=colour,
            lw=1.6,
            ms=5,
            elinewidth=1.1,
            capsize=2.5,
            label=_when(stage),
        )
        optimum = course.beside[stage].optimum
        best = [optimum[course.deciles == decile].mean() for decile in range(len(found))]
        label = "exact optimum" if stage == 0 else None
        axes.plot(places, best, color=colour, lw=1.2, ls=(0, (1, 1)), label=label)
    chance = 1 / len(course.target.attribute)
    axes.axhline(chance, color=MUTED, lw=1.2, ls=":")
    axes.annotate(
        "chance",
        (10, chance),
        (0, -4),
        textcoords="offset points",
        color=MUTED,
        ha="center",
        va="top",
    )
    axes.set_title(f"{course.target.name}: white-box accuracy, 95 % intervals")
    axes.set(xlabel="decile of η before reweighting", ylabel="share inferred")
    axes.set_xticks(range(1, 11))
    axes.set_ylim(chance - 0.06, 1.0)
    axes.legend(loc="upper left")


def _when(stage: int) -> str:
    """State the round of a stage."""
    return f"after {stage} rounds" if stage else "before"
