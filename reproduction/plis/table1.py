"""Table 1: the similarity of reconstructions to records, at low and at high PLIS.

The paper compares two records; here the same is asked of 128.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.outcome import Outcome, Quantity
from reproduction.plis.chest import SETTING, Correlation, Study, chest_study, rank_correlation
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
    quantities = []
    for measure in ("SSIM", "HaarPSI"):
        values = getattr(study.plain.quality, MEASURES[measure])
        why = _why(study, found)
        for words, record in (("low", study.low), ("high", study.high)):
            name, printed = f"{measure}, {words} PLIS", PRINTED[measure, words]
            found_here = float(values[record])
            quantities.append(Quantity(name, found_here, printed, why, comparable=False))
    quantities += [q for name, value in found.items() for q in value.quantities(name)]
    for kind, attacked in (("without DP", study.plain), ("with DP", study.private)):
        for measure in ("SSIM", "HaarPSI"):
            values = getattr(attacked.quality, MEASURES[measure])
            for words, share in (("smallest", 0.0), ("median", 0.5), ("largest", 1.0)):
                label = f"{kind}: {measure} of all records, {words}"
                quantities.append(Quantity(label, float(np.quantile(values, share))))
    quantities.append(Quantity("records", len(study.rows)))
    return Outcome(SETTING, tuple(quantities), _seen(study, found), _draw(study, found))


def _why(study: Study, found: dict[str, Correlation]) -> str:
    ssim = study.plain.quality.ssim
    rank = found["without DP: rank correlation of PLIS and SSIM"]
    return (
        "The paper names neither its network nor its attack's options nor its two records, and its "
        "“chest x-ray subset of MedMNIST” could be ChestMNIST instead of PneumoniaMNIST; over "
        f"{len(study.rows)} records here SSIM ranges from {ssim.min():.2f} to {ssim.max():.2f} and "
        f"has a rank correlation with PLIS of only {rank}, so two records can show either order."
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


def _seen(study: Study, found: dict[str, Correlation]) -> str:
    pairs = [
        (measure, found[f"without DP: rank correlation of PLIS and {measure}"])
        for measure in MEASURES
    ]
    ways = {value.verdict for _, value in pairs}
    judged = {
        frozenset({"up"}): "Over all records quality rises with PLIS by every measure",
        frozenset({"down"}): "Over all records quality falls with PLIS by every measure",
        frozenset({"no clear way"}): "Over all records PLIS does not predict the quality",
    }.get(frozenset(ways), "Over all records the result depends on the quality measure")
    low, high = (study.plain.quality.ssim[k] for k in (study.low, study.high))
    two = "agree with" if high > low else "differ from"
    within = [value for name, value in found.items() if "only" in name]
    lost = ways != {"no clear way"} and {value.verdict for value in within} == {"no clear way"}
    classes = " Within the classes, the correlation with SSIM is not significant." if lost else ""
    listed = ", ".join(f"{value} for {measure}" for measure, value in pairs)
    return (
        f"{judged}: rank correlation {listed} ({len(study.rows)} records, 95 % intervals)."
        f"{classes} The two extreme records {two} the paper's: SSIM {low:.2f} at the "
        f"lowest and {high:.2f} at the highest PLIS. Two records are no evidence either way."
    )


def _draw(study: Study, found: dict[str, Correlation]) -> Figure:
    panels = (("without DP", study.plain), ("with DP", study.private))

    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, 2, sharey=True)
        for axes, (kind, attacked) in zip(grid, panels, strict=True):
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
            axes.set_title(f"{kind}: rank correlation {rank}")
            edge = f", at the left edge {number(least)} or less" if shown.min() == least else ""
            axes.set_xlabel(f"PLIS of the record{edge}")
            if high > 10 * low:
                power_ticks(axes.xaxis, every=2)
        grid[0].set_ylabel("SSIM of its reconstruction")

    alternative = "SSIM of each reconstruction against the record's PLIS; " + "; ".join(
        f"{kind}: rank correlation "
        f"{number(found[f'{kind}: rank correlation of PLIS and SSIM'].value)}, SSIM from "
        f"{attacked.quality.ssim.min():.2f} to {attacked.quality.ssim.max():.2f}"
        for kind, attacked in panels
    )
    return draw_figure("plis-table1", alternative, draw, (11, 4.2))
