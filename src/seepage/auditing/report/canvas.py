"""How every figure is drawn: deterministic SVG, real text, colours that follow the page's theme."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.auditing.report.wording import number

# Okabe and Ito's palette, told apart with every common colour vision.
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
    "text.parse_math": False,  # a column may well be called $x$
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
}

Draw = Callable[[Any, bool], None]


@dataclass(frozen=True)
class Drawing:
    """One figure: for a wide page, for a phone, and in words.

    Parameters
    ----------
    name
        The name of its file, without the ending.
    alternative
        What it shows, for those who do not see it.
    caption
        What to take from it.
    file
        A whole SVG document with fixed colours.
    wide, narrow
        SVG elements for the page, in its theme's colours.
    """

    name: str
    alternative: str
    caption: str
    file: str
    wide: str
    narrow: str


def render(
    name: str, alternative: str, caption: str, draw: Draw, height: tuple[float, float]
) -> Drawing:
    """Draw a figure twice; ``draw(figure, narrow)`` fills it, ``height`` is in inches."""
    wide = _save(name, alternative, draw, (10.0, height[0]), narrow=False)
    narrow = _save(name + "-narrow", alternative, draw, (4.7, height[1]), narrow=True)
    return Drawing(name, alternative, caption, wide, _inline(wide), _inline(narrow))


def _save(name: str, title: str, draw: Draw, size: tuple[float, float], *, narrow: bool) -> str:
    from matplotlib.figure import Figure

    with house_style(name):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure, narrow)
        buffer = io.StringIO()
        details = {"Date": None, "Creator": None, "Title": title}
        figure.savefig(buffer, format="svg", metadata=details)
    return buffer.getvalue()


@contextmanager
def house_style(name: str) -> Iterator[None]:
    """Draw and save as everywhere in the house while this lasts; ``name`` is the figure's own."""
    from matplotlib import rc_context

    # The salt names what is inside the file, so two figures on a page never share a name.
    with rc_context(_STYLE | {"svg.hashsalt": name}), _any_script():
        yield


@contextmanager
def _any_script() -> Iterator[None]:
    # Browsers have the letters that matplotlib's font lacks; only its measure of them is rough.
    with warnings.catch_warnings():
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
    """Write the ticks of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low) if low > 0 else 1.0
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(range(1, 10))
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_locator(NullLocator())
