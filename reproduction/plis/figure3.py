"""Figure 3: chest X-rays with low and high PLIS, reconstructed from their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.drawing import Figure, caption_picture, draw_figure
from reproduction.outcome import Outcome, Quantity
from reproduction.plis.chest import (
    SETTING,
    Array,
    Attacked,
    Correlation,
    Study,
    chest_study,
    mean_of,
)

_BRIGHT = 0.1  # share of the pixels with the largest PLIS
_SLIGHT = 0.1  # a correlation that explains a hundredth of the spread


def reproduce(quick: bool) -> Outcome:
    """Show two records, their reconstructions, and their PLIS by pixel."""
    study = chest_study(quick)
    quantities = [
        Quantity("test accuracy without DP in percent", 100 * study.plain.accuracy),
        Quantity("test accuracy with DP in percent", 100 * study.private.accuracy),
        Quantity("noise multiplier at ε = 1", study.noise_multiplier),
    ]
    for words, record in (("low PLIS", study.low), ("high PLIS", study.high)):
        for kind, found in (("without DP", study.plain), ("with DP", study.private)):
            quantities += [
                Quantity(f"{words}, {kind}: PLIS of the record", float(found.subjects[record])),
                Quantity(f"{words}, {kind}: SSIM", float(found.quality.ssim[record])),
            ]
    where = mean_of(places(study.plain, study.originals))
    low = study.low
    alone = places(study.plain, study.originals)[low]
    noise = np.random.default_rng(0).standard_normal(study.private.heat.shape)
    quantities += [
        *where.quantities("rank correlation over the pixels of |PLIS| and error, mean of records"),
        Quantity("the same for the record with the lowest PLIS", float(alone)),
        Quantity("the same with DP", mean_of(places(study.private, study.originals)).value),
        *_spread("without DP", study.plain.heat),
        *_spread("with DP", study.private.heat),
        *_spread("white noise", noise),
        Quantity("records whose PLIS vanishes with DP", int(np.sum(study.private.subjects == 0))),
    ]
    return Outcome(SETTING, tuple(quantities), _seen(study, where), _draw(study))


def places(found: Attacked, originals: Array) -> Array:
    """Return, for every record, the rank correlation over its pixels of |PLIS| and error, (n,)."""
    from scipy.stats import spearmanr

    error = np.abs(found.images - originals)
    pairs = zip(np.abs(found.heat), error, strict=True)
    return np.array([float(spearmanr(a.ravel(), b.ravel()).statistic) for a, b in pairs])


def _spread(kind: str, heat: Array) -> list[Quantity]:
    top, beside = concentration(heat)
    return [
        Quantity(f"{kind}: share of PLIS² in a tenth of the pixels, median", top),
        Quantity(f"{kind}: correlation of |PLIS| next to one another, median", beside),
    ]


def concentration(heat: Array) -> tuple[float, float]:
    """Return medians of the heat maps' concentration and neighbouring pixels' similarity."""
    size = np.abs(heat)
    flat = np.sort((size**2).reshape(len(size), -1), axis=1)
    top = flat[:, -round(_BRIGHT * flat.shape[1]) :].sum(axis=1) / flat.sum(axis=1)
    beside = [np.corrcoef(m[:, 1:].ravel(), m[:, :-1].ravel())[0, 1] for m in size]
    return float(np.median(top)), float(np.median(beside))


def _finding3(study: Study) -> str:
    """Judge whether PLIS with DP is "essentially randomly distributed over the image space"."""
    (top, beside), (top_plain, beside_plain) = (
        concentration(found.heat) for found in (study.private, study.plain)
    )
    verdict = "does not hold" if beside > beside_plain / 2 else "holds"
    return (
        f"The claim that PLIS with DP is randomly distributed over the image {verdict}. "
        f"The absolute PLIS of neighbouring pixels has a correlation of {beside:.2f} (without DP "
        f"{beside_plain:.2f}, white noise 0), and a tenth of the pixels contains {100 * top:.0f} % "
        f"of the squared PLIS (without DP {100 * top_plain:.0f} %)."
    )


def _seen(study: Study, where: Correlation) -> str:
    # One digit: a hundred evaluations of L-BFGS carry a processor's rounding into the second.
    low, high = (study.plain.quality.ssim[k] for k in (study.low, study.high))
    better = "better" if high > low else "worse, not better,"
    claim = {
        "down": "smaller where PLIS is larger, as the paper states for one record",
        "up": "larger where PLIS is larger, unlike what the paper states for one record",
        "no clear way": "neither larger nor smaller where PLIS is larger",
    }[where.verdict]
    if abs(where.value) < _SLIGHT:
        claim = f"only slightly {claim}" if where.verdict != "no clear way" else claim
    worst = study.private.quality.ssim.max()
    return (
        f"This shorter attack reconstructs the record with the highest PLIS {better} than the one "
        f"with the lowest (SSIM {high:.1f} against {low:.1f}); for the full attack, see "
        f"plis-table1. Within a record, the error is {claim} (mean "
        f"rank correlation over the pixels {where}). With DP, nothing is reconstructed: SSIM is "
        f"at most {worst:.2f} over all {len(study.rows)} records. {_finding3(study)}"
    )


def _draw(study: Study) -> Figure:
    columns = (
        ("record", study.originals, False),
        ("rebuilt without DP", study.plain.images, False),
        ("PLIS without DP", study.plain.heat, True),
        ("rebuilt with DP", study.private.images, False),
        # Of the released gradient: zero if the clip fixes its norm.
        ("PLIS with DP", study.private.heat * (study.private.subjects > 0)[:, None, None], True),
    )
    shown = ((study.low, "A: lowest PLIS"), (study.high, "B: highest PLIS"))

    def draw(canvas: Any) -> None:
        grid = canvas.subplots(len(shown), len(columns))
        canvas.get_layout_engine().set(w_pad=0.04, h_pad=0.05, wspace=0, hspace=0)
        for line, (record, words) in zip(grid, shown, strict=True):
            line[0].set_ylabel(words, fontsize=10)
            for axes, (title, images, signed) in zip(line, columns, strict=True):
                image = images[record]
                if signed:
                    reach = float(np.abs(image).max())  # each map has its own scale
                    if not reach:
                        title = f"{title}: zero, clipped"
                    axes.imshow(image, cmap="RdBu_r", vmin=-(reach or 1.0), vmax=reach or 1.0)
                else:
                    axes.imshow(image, cmap="gray", vmin=0, vmax=1)
                    if "rebuilt" in title:
                        found = study.plain if "without" in title else study.private
                        title = f"{title}, SSIM {found.quality.ssim[record]:z.1f}"
                caption_picture(axes, title.replace("-", "−"))

    alternative = "Two chest X-rays with their reconstructions and PLIS. " + "; ".join(
        f"{words}: SSIM {study.plain.quality.ssim[k]:.1f} without DP, "
        f"{study.private.quality.ssim[k]:z.1f} with DP"
        for k, words in shown
    )
    return draw_figure("plis-figure3", alternative, draw, (11, 4.7))
