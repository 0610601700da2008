"""The figures of the report, and their style.

Figures are deterministic SVG with real text and colours that follow the page's theme, drawn for a
wide page and for a phone. The figures reproduced from papers have the same style.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from seepage.auditing.findings import NOT_MEASURED, Audit, GroupingFinding
from seepage.auditing.report.words import (
    MANY,
    ONE,
    compared,
    count_over,
    find_limit,
    most_exposed,
    number,
    number_of,
    relative_error,
    short,
)
from seepage.tables.names import counted

# Okabe and Ito's palette, distinct under every common colour vision.
BLUE, VERMILLION, ORANGE, GREEN = "#0072b2", "#d55e00", "#e69f00", "#009e73"
INK, MUTED, GRID, PAPER = "#1c2530", "#55606d", "#dfe3e8", "#ffffff"
_THEME = {
    BLUE: "var(--blue)",
    VERMILLION: "var(--vermillion)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    PAPER: "var(--card)",
}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "text.color": INK,
    "text.parse_math": False,  # a column may be called $x$
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
}

Draw = Callable[[Any, bool], None]


@dataclass(frozen=True)
class Drawing:
    """One figure, drawn for a wide page and for a phone, and described in words."""

    name: str  # the name of its file, without the extension
    alternative: str  # a description for people who cannot see the figure
    caption: str  # the main finding
    file: str  # A complete SVG document with fixed colours
    # SVG elements for the page, in its theme's colours
    wide: str
    narrow: str


def load_beside() -> None:
    """Load the plotting library in the background, which takes a second and 30 MB."""
    Thread(target=import_module, args=("matplotlib.figure",)).start()


def render(
    name: str, alternative: str, caption: str, draw: Draw, height: tuple[float, float]
) -> Drawing:
    """Draw a figure twice; ``draw(figure, narrow)`` fills it, and ``height`` is in inches."""
    wide = _save(name, alternative, draw, (10.0, height[0]), narrow=False)
    narrow = _save(name + "-narrow", alternative, draw, (4.7, height[1]), narrow=True)
    return Drawing(name, alternative, caption, wide, _inline(wide), _inline(narrow))


def _save(name: str, title: str, draw: Draw, size: tuple[float, float], *, narrow: bool) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with house_style(name):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure, narrow)
        buffer = io.StringIO()
        details = {"Date": None, "Creator": None, "Title": title}
        # Figure.savefig lays everything out twice.
        FigureCanvasSVG(figure).print_svg(buffer, metadata=details)
    return buffer.getvalue()


@contextmanager
def house_style(name: str) -> Iterator[None]:
    """Apply the common style to a figure drawn in this context; ``name`` is the figure's name."""
    from matplotlib import rc_context

    # The salt names the parts of the file, so two figures on a page never share a name.
    with rc_context(_STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        # Browsers have the letters that matplotlib's font lacks; only their widths are rough.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def _inline(document: str) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"\s*<title>.*?</title>", "", svg, count=1, flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    svg = opening + ' aria-hidden="true" focusable="false">' + rest
    svg = svg.replace("'DejaVu Sans'", "inherit")
    for colour, variable in _THEME.items():
        svg = svg.replace(colour, variable)
    # Every figure calls its parts figure_1, axes_1, …: on one page names must be unique.
    return re.sub(
        r' id="(figure|axes|patch|text|line2d|xtick|ytick|matplotlib|legend|'
        r'LineCollection|PathCollection|FillBetween)[^"]*"',
        "",
        svg,
    )


def word_ticks(axis: Any) -> None:
    """Label the ticks of a logarithmic axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low) if low > 0 else 1.0
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(range(1, 10))
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_locator(NullLocator())


def name_rows(axes: Any, names: Sequence[str], narrow: bool, width: int = 34) -> None:
    """Label the vertical axis with names, the first at the top, shortened to fit."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [short(name, 16 if narrow else width) for name in names])
    axes.tick_params(axis="y", colors=INK, length=0)


def draw_figures(audit: Audit) -> tuple[Drawing, ...]:
    """Return the figures of an audit; those of the groupings are numbered from 1."""
    drawn = [draw_histogram(audit), draw_attributes(audit)]
    drawn += [draw_grouping(g, i, ONE[audit.unit]) for i, g in enumerate(audit.groupings[:6], 1)]
    drawn.append(draw_curve(audit))
    return tuple(figure for figure in drawn if figure is not None)


def draw_histogram(audit: Audit) -> Drawing:
    """Draw the histogram of the records' leakage, with a line at the limit."""
    limit, over, records = find_limit(audit), count_over(audit), audit.records
    shown = records.span()
    # Far below the rest nothing is shown; a few such records must not squeeze all the others.
    top = max(shown[1], limit.eta) * 1.15 if shown else limit.eta * 2
    low = max(shown[0], top * 1e-5) if shown else limit.eta / 10
    # The limit is the edge of a bin: no bar is partly above it.
    step = np.log(top / min(low, limit.eta / 1.5)) / 45
    first = np.floor(np.log(min(low, limit.eta / 1.5) / limit.eta) / step)
    edges = limit.eta * np.exp(step * np.arange(first, np.ceil(np.log(top / limit.eta) / step) + 1))
    counts = records.histogram(edges)
    centres = np.sqrt(edges[1:] * edges[:-1])

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        colours = [VERMILLION if centre > limit.eta else BLUE for centre in centres]
        axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colours, lw=0)
        axes.set_xscale("log")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, max(counts.max(), 1) * 1.22)
        axes.axvline(limit.eta, color=INK, lw=1.4, ls=(0, (4, 3)))
        at_right = np.log(limit.eta / edges[0]) > 0.5 * np.log(edges[-1] / edges[0])
        axes.annotate(
            f"{limit.words}: η = {number(limit.eta)}\n{over:,} above",
            (limit.eta, 0.985),
            (-7 if at_right else 7, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if at_right else "left",
            va="top",
        )
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(f"leakage η of a {ONE[audit.unit]}")
        axes.set_ylabel(f"number of {MANY[audit.unit]}")
        word_ticks(axes.xaxis)

    median, worst = records.quantile("eta", 0.5), records.quantile("eta", 1)
    caption = (
        f"Half of the {number_of(records.count, audit.unit)} leak at most η = {number(median)}; "
        f"the most exposed {ONE[audit.unit]} leaks η = {number(worst)}."
    )
    alternative = (
        f"Histogram of the leakage of {number_of(records.count, audit.unit)} on a logarithmic axis"
        f": median {number(median)}, largest {number(worst)}; number above {limit.words} "
        f"of {number(limit.eta)}: {over:,}."
    )
    return render("leakage", alternative, caption, draw, (3.7, 3.4))


def draw_attributes(audit: Audit) -> Drawing | None:
    """Draw the least errors of attacks on the easiest columns; ``None`` if none is finite."""
    ranked = [a for a in most_exposed(audit.attributes) if np.isfinite(a.smallest_error)]
    ranked = [a for a in ranked if relative_error(a, a.smallest_error) > 0][:15]
    if not ranked:
        return None
    least = np.array([relative_error(a, a.smallest_error) for a in ranked])
    middle = np.array([relative_error(a, a.median_error) for a in ranked])
    finite = np.isfinite(middle)
    places = np.arange(len(ranked))

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.hlines(places[finite], least[finite], middle[finite], color=MUTED, lw=1.5)
        axes.scatter(
            least, places, s=46, color=VERMILLION, zorder=3, label=f"easiest {ONE[audit.unit]}"
        )
        axes.scatter(
            middle[finite],
            places[finite],
            s=46,
            color=BLUE,
            marker="s",
            zorder=3,
            label=f"median {ONE[audit.unit]}",
        )
        axes.axvline(1, color=INK, lw=1.4, ls=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_xlim(min(least.min(), 1) / 1.6, max(middle[finite].max(initial=1), 1) * 1.6)
        name_rows(axes, [a.name for a in ranked], narrow)
        names = (label.get_text() for label in axes.get_yticklabels())
        marks = (" *" if a.sensitive else "" for a in ranked)
        axes.set_yticks(places, map(str.__add__, names, marks))
        axes.set_xlabel(
            "least error ÷ spread of the column"
            if narrow
            else "least error of an unbiased attack ÷ spread of the column"
        )
        word_ticks(axes.xaxis)
        figure.legend(loc="outside upper left", ncols=2, handletextpad=0.2, columnspacing=1.2)

    most = ranked[0]
    caption = (
        "Columns further left can be estimated more precisely from the release. At the dashed "
        "line, the least error equals the column's spread (for a category: a whole level)."
        + (" * marks sensitive columns." if any(a.sensitive for a in ranked) else "")
    )
    alternative = (
        f"Least error of an unbiased attack on {counted(len(ranked), 'column')}, easiest first, "
        f"divided by each column's spread: from {number(float(least.min()))} for "
        f"{short(most.name)} to "
        f"{number(float(least.max()))} for {short(ranked[-1].name)}. Each error is for the "
        f"{ONE[audit.unit]} that is easiest to attack."
    )
    height = 1.25 + 0.31 * len(ranked)
    return render("attributes", alternative, caption, draw, (height, height))


def draw_grouping(grouping: GroupingFinding, place: int, who: str = "record") -> Drawing:
    """Draw the mean and the largest leakage of one column's groups: at most 12, from both ends."""
    from matplotlib.ticker import MaxNLocator

    ranked = grouping.ranked(12)
    means = np.array([group.mean_eta for group in ranked])
    worst = np.array([group.worst_eta for group in ranked])
    places = np.arange(len(ranked))

    def draw(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.barh(places, means, 0.6, color=BLUE, label="mean of the group")
        axes.scatter(worst, places, s=46, color=VERMILLION, zorder=3, label=f"most exposed {who}")
        axes.set_xlim(0, max(float(worst.max(initial=0)), 1e-300) * 1.08)
        name_rows(axes, [group.label for group in ranked], narrow)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"leakage η of a {who} in the group")
        axes.xaxis.set_major_locator(MaxNLocator(5 if narrow else 8))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles[::-1], labels[::-1], loc="outside upper left", ncols=2, columnspacing=1.2
        )

    caption = ""
    if len(grouping.groups) > len(ranked):
        caption = f"Shown are the {len(ranked)} groups with the largest and smallest means."
    alternative = f"Mean and largest leakage by {short(grouping.column)}: " + "; ".join(
        f"{short(g.label, 24)} {number(g.mean_eta)} and {number(g.worst_eta)}" for g in ranked
    )
    height = 1.25 + 0.36 * len(ranked)
    return render(f"groups-{place}", alternative, caption, draw, (height, height))


def draw_curve(audit: Audit) -> Drawing | None:
    """Draw held-out error and leakage against the noise; ``None`` if there is no curve."""
    curve, limit = audit.curve, find_limit(audit)
    sigma = np.asarray(curve.sigma, float)
    usable = sigma > 0
    if usable.sum() < 2:
        return None
    sigma, error = sigma[usable], np.asarray(curve.error, float)[usable]
    median = np.asarray(curve.median_eta, float)[usable]
    worst = np.asarray(curve.worst_eta, float)[usable]
    marks: list[tuple[float, str, str, Any]] = [(audit.sigma, "this release", INK, "-")]
    if audit.calibrated_sigma and not np.isclose(audit.calibrated_sigma, audit.sigma, rtol=1e-3):
        word = compared(audit, audit.calibrated_sigma)
        useful = word in ("better", NOT_MEASURED)
        meets = ("meets the target", GREEN) if useful else (f"meets the target, {word}", MUTED)
        marks.append((audit.calibrated_sigma, *meets, (0, (4, 3))))
    scales = np.array([*sigma, *(mark[0] for mark in marks if mark[0] > 0)])

    error_name = short(curve.error_name, 80)
    lowest = min(curve.noiseless_error, float(error.min()))
    # Noise can make a regression's error explode; more than twice a constant's is not shown.
    highest = min(max(curve.trivial_error, float(error.max())), 2 * curve.trivial_error - lowest)
    highest = max(highest, curve.trivial_error, lowest * 1.01)

    def draw(figure: Any, narrow: bool) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.axhline(curve.trivial_error, color=MUTED, lw=1.2, ls=":")
        upper.axhline(curve.noiseless_error, color=MUTED, lw=1.2, ls="--")
        upper.plot(sigma, error, "o-", color=BLUE, ms=4.5, lw=2)
        room = 0.16 * (highest - lowest)
        upper.set_ylim(lowest - 1.8 * room, highest + 1.8 * room)
        end = scales.max() * 1.1
        start = scales.min() / 1.1
        _write(upper, start, curve.trivial_error, "constant prediction", "left", above=True)
        _write(upper, end, curve.noiseless_error, "without noise", "right", above=False)
        upper.set_title(f"Usefulness: {short(error_name, 34 if narrow else 80)}")
        lower.plot(
            sigma,
            worst,
            "o-",
            color=VERMILLION,
            ms=4.5,
            lw=2,
            label=f"most exposed {ONE[audit.unit]}",
        )
        lower.plot(
            sigma, median, "s-", color=ORANGE, ms=4.5, lw=2, label=f"median {ONE[audit.unit]}"
        )
        lower.axhline(limit.eta, color=MUTED, lw=1.2, ls="--")
        _write(lower, end, limit.eta, limit.words, "right", above=True)
        lower.set_yscale("log")
        lower.set_xscale("log")
        lower.set_xlim(start, end)
        lower.set_title("Privacy: leakage η (lower is better)")
        lower.set_xlabel("noise σ on every released number")
        for axes in (upper, lower):
            for scale, _, colour, style in marks:
                axes.axvline(scale, color=colour, lw=1.6, ls=style)
        for scale, words, colour, style in marks:
            lower.plot(
                [], [], color=colour, lw=1.6, ls=style, label=f"{words}: σ = {number(scale)}"
            )
        word_ticks(lower.xaxis)
        word_ticks(lower.yaxis)
        figure.legend(loc="outside lower left", ncols=1 if narrow else 4, columnspacing=1.4)

    caption = (
        "At each noise scale on the horizontal axis, the upper panel shows the error and the lower "
        "panel the leakage. The error is that of a model fitted on some of the records and tested "
        "on the others."
    )
    if error.max() > highest:
        caption += (
            " Where the error is beyond the top of the figure, the model is worse than a constant "
            "prediction."
        )
    alternative = (
        f"Error and leakage against the noise σ. From σ = {number(sigma.min())} to "
        f"{number(sigma.max())}, the {error_name} changes from {number(error[0])} to "
        f"{number(error[-1])}, and the leakage of the most exposed {ONE[audit.unit]} from "
        f"{number(worst[0])} to {number(worst[-1])}. This release has σ = {number(audit.sigma)}."
    )
    return render("curve", alternative, caption, draw, (5.4, 6.2))


def _write(axes: Any, x: float, y: float, words: str, side: str, above: bool) -> None:
    """Write a label beside a horizontal line, on a background that covers the curves."""
    axes.annotate(
        words,
        (x, y),
        (5 if side == "left" else -5, 4 if above else -4),
        textcoords="offset points",
        color=MUTED,
        fontsize=10,
        ha=side,
        va="bottom" if above else "top",
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
    )
