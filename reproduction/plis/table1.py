"""Table 1: the similarity of reconstructions to records, at low and at high PLIS.

The paper compares two records. Its numbers are judged by the full attack on 256 records, which was
kept; a shorter one on 128 is repeated here, with and without differential privacy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.outcome import Outcome, Quantity
from reproduction.plis.chest import SETTING, Correlation, Study, chest_study, rank_correlation
from reproduction.plis.whole_attack import (
    ATTACKS,
    CLASSES,
    KEPT,
    OTHER_LENGTHS,
    WholeAttacks,
    whole_attacks,
)
from seepage.auditing.report.figures import BLUE, INK, VERMILLION
from seepage.auditing.report.words import number

PRINTED = {
    ("SSIM", "low"): "0.8536",
    ("SSIM", "high"): "0.9912",
    ("HaarPSI", "low"): "0.7323",
    ("HaarPSI", "high"): "0.7779",
}
_EDGE = 1e-8  # of the largest PLIS: smaller and vanishing values are drawn here
MEASURES = {"SSIM": "ssim", "HaarPSI": "haarpsi", "PSNR": "psnr"}


def reproduce(quick: bool) -> Outcome:
    """Compare the two records of the figure, then all of them."""
    study = chest_study(quick)
    found = correlations(study)
    whole = whole_attacks()
    quantities = []
    for measure in ("SSIM", "HaarPSI"):
        means = whole.extremes(measure).mean(axis=0)
        short = getattr(study.plain.quality, MEASURES[measure])
        for place, (words, record) in enumerate((("low", study.low), ("high", study.high))):
            name, printed = f"{measure}, {words} PLIS", PRINTED[measure, words]
            value = float(means[place])
            quantities += [
                Quantity(name, value, printed, _why(whole), comparable=False),
                Quantity(f"{name}, shorter attack", float(short[record])),
            ]
    quantities += [
        Quantity("full attacks in which the highest PLIS has the higher SSIM", whole.better()),
        Quantity(
            "a quarter or twice the steps: rank correlation of the records' errors, at least",
            whole.settled()[0],
        ),
        Quantity(
            "a quarter or twice the steps: change of the median SSIM, at most", whole.settled()[1]
        ),
        Quantity(
            "a quarter or twice the steps: change of the two records' SSIM, at most",
            whole.extremes_settled(),
        ),
        *(
            q
            for among in ("", *CLASSES)
            for measure in MEASURES
            for q in whole.correlation("plis", measure, among).quantities(
                f"full attack{f', {among} only' * bool(among)}: "
                f"rank correlation of PLIS and {measure}"
            )
        ),
    ]
    quantities += [q for name, value in found.items() for q in value.quantities(name)]
    for kind, attacked in (("without DP", study.plain), ("with DP", study.private)):
        for measure in ("SSIM", "HaarPSI"):
            values = getattr(attacked.quality, MEASURES[measure])
            for words, share in (("smallest", 0.0), ("median", 0.5), ("largest", 1.0)):
                label = f"{kind}: {measure} of all records, {words}"
                quantities.append(Quantity(label, float(np.quantile(values, share))))
    quantities.append(Quantity("records", len(study.rows)))
    seen, figure = _seen(whole), _draw(study, found, whole)
    return Outcome(SETTING, tuple(quantities), seen, figure, whole.kept())


def _why(whole: WholeAttacks) -> str:
    low, high = whole.extremes("SSIM").T
    each = ", ".join(f"{a:.2f} and {b:.2f}" for a, b in zip(low, high, strict=True))
    return (
        "The paper does not state the network, the attack options or the two records, and the "
        "“chest x-ray subset of MedMNIST” could be ChestMNIST instead of PneumoniaMNIST. Numbers "
        f"are means of {len(low)} full attacks, with an SSIM at the lowest and the highest PLIS "
        f"of {each} (`benchmarks/results/{KEPT.name}`)."
    )


def correlations(study: Study) -> dict[str, Correlation]:
    """Return the rank correlation of PLIS and quality, over all records and within each class."""
    found = {}
    plain, private = study.plain, study.private
    for measure, name in MEASURES.items():
        found[f"without DP: rank correlation of PLIS and {measure}"] = rank_correlation(
            plain.subjects, getattr(plain.quality, name)
        )
    found["with DP: rank correlation of PLIS and SSIM"] = rank_correlation(
        private.subjects, private.quality.ssim
    )
    for label, words in ((0, "normal"), (1, "pneumonia")):
        own = study.labels == label
        if own.sum() >= 10:  # with fewer, an interval is meaningless
            found[f"without DP, {words} only: rank correlation of PLIS and SSIM"] = (
                rank_correlation(plain.subjects[own], plain.quality.ssim[own])
            )
    found["without DP: rank correlation of gradient norm and SSIM"] = rank_correlation(
        plain.norms, plain.quality.ssim
    )
    contrast = study.originals.std(axis=(1, 2))
    found["without DP: rank correlation of the image's contrast and SSIM"] = rank_correlation(
        contrast, plain.quality.ssim
    )
    return found


def _seen(whole: WholeAttacks) -> str:
    *first, last = [f"{whole.correlation('plis', m)} for {m}" for m in MEASURES]
    ranks = f"{', '.join(first)} and {last}"
    others = [whole.correlation(score, "SSIM").value for score in ("loss", "gradient_norm")]
    order = "as in the paper" if 2 * whole.better() > len(ATTACKS) else "unlike in the paper"
    within = " and ".join(
        f"{whole.correlation('plis', 'SSIM', among)} and {whole.correlation('plis', 'PSNR', among)}"
        f" among {words}"
        for among, words in zip(CLASSES, ("normal X-rays", "those with pneumonia"), strict=True)
    )
    alike, change = whole.settled()
    return (
        f"The full attack of Geiping et al. 2020 ({whole.records()} records, two networks, two "
        f"seeds, {whole.steps():,} steps; over the last eighth the cost fell by at most "
        f"{100 * whole.fall():.1f} %) reconstructs the record of highest PLIS better than that of "
        f"lowest in {whole.better()} of {len(ATTACKS)} cases, {order}. With a quarter or twice the "
        f"steps, the median SSIM changes by at most {change:.3f}, that of these two records by at "
        f"most {whole.extremes_settled():.2f}, and the errors keep their ranks (correlation "
        f"{alike:.2f}). Over all records, the rank correlation with PLIS is {ranks} (95 % "
        f"intervals). For SSIM and PSNR, it is {within}. Loss and gradient norm correlate as "
        f"highly with SSIM ({others[0]:.2f}, {others[1]:.2f})."
    )


def _draw(study: Study, found: dict[str, Correlation], whole: WholeAttacks) -> Figure:
    panels = (("without DP", study.plain), ("with DP", study.private))

    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, 3)
        for axes, (kind, attacked) in zip(grid[:2], panels, strict=True):
            rank = found[f"{kind}: rank correlation of PLIS and SSIM"]
            least = _EDGE * attacked.subjects.max()
            shown = np.maximum(attacked.subjects, least)
            axes.scatter(
                shown, attacked.quality.ssim, s=14, color=BLUE, lw=0, alpha=0.6, rasterized=True
            )
            for record, words in ((study.low, "A"), (study.high, "B")):
                place = shown[record], attacked.quality.ssim[record]
                axes.scatter(*place, s=60, facecolor="none", edgecolor=VERMILLION, lw=1.5)
                axes.annotate(words, place, xytext=(7, 5), textcoords="offset points", color=INK)
            axes.set(xscale="log", ylim=(-0.15, 1.05))
            low, high = shown.min(), shown.max()
            axes.set_xlim(low / 2, high * 2)
            axes.set_title(f"{kind}: correlation {rank}")
            edge = f", at the left edge {number(least)} or less" if shown.min() == least else ""
            axes.set_xlabel(f"PLIS of the record{edge}")
            if high > 10 * low:
                power_ticks(axes.xaxis, every=2)
        grid[0].set_ylabel("SSIM of its reconstruction")
        _draw_costs(grid[2], whole)

    alternative = "SSIM of each reconstruction against the record's PLIS; " + "; ".join(
        f"{kind}: rank correlation "
        f"{number(found[f'{kind}: rank correlation of PLIS and SSIM'].value)}, SSIM from "
        f"{attacked.quality.ssim.min():.2f} to {attacked.quality.ssim.max():.2f}"
        for kind, attacked in panels
    )
    return draw_figure("plis-table1", alternative, draw, (15, 4.2))


def _draw_costs(axes: Any, whole: WholeAttacks) -> None:
    """Draw the cost of the full attacks by step: that it settles is what makes them whole."""
    from matplotlib.ticker import FixedLocator, NullLocator

    labelled = set()
    for name, (steps, cost) in whole.curves().items():
        network = name.partition("-")[0]
        other = name in OTHER_LENGTHS
        label = f"{network} network{', other lengths' * other}"
        axes.plot(
            steps / whole.steps(),
            cost,
            color={"deep": BLUE, "strided": VERMILLION}[network],
            ls=":" if other else "-",
            lw=1.2,
            label="_nolegend_" if label in labelled else label,
        )
        labelled.add(label)
    axes.set(yscale="log", xscale="log", ylim=(0.9, 40))  # room above for the legend
    for axis, ticks in ((axes.xaxis, (0.02, 0.1, 0.5, 2)), (axes.yaxis, (1, 2, 5, 10))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.set_title("full attack: median cost, relative to the end")
    axes.set_xlabel(f"steps, in units of {whole.steps():,}")
    axes.legend(fontsize=9, loc="upper right")
