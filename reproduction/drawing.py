"""How the figures of the papers are drawn: the report's style, as SVG and as a small PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

from seepage.auditing.report.figures import MUTED, house_style

_DOTS_PER_INCH = 150
_COLOURS = 256  # of a PNG: lines and text need no more, and the file is a third as large

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# Dark to light for an ordered quantity such as λ; distinguishable in grey too.
RAMP = ("#12355b", "#1f78b4", "#45a9a3", "#b5a33a")


@dataclass(frozen=True)
class Figure:
    """A drawing in both formats, and a description in words."""

    alternative: str
    svg: str
    png: bytes


def draw_figure(
    name: str, alternative: str, draw: Callable[[Any], None], size: tuple[float, float]
) -> Figure:
    """Draw a figure; ``draw`` fills an empty matplotlib figure of ``size`` inches.

    The same input gives the same bytes, with the same versions of matplotlib and pillow.
    """
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with house_style(name):
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        canvas = Canvas(figsize=size, layout=layout, dpi=_DOTS_PER_INCH)
        draw(canvas)
        text = io.StringIO()
        details = {"Date": None, "Creator": None, "Title": alternative}
        canvas.savefig(text, format="svg", metadata=details)
        picture = io.BytesIO()
        canvas.savefig(picture, format="png", metadata={"Software": None})
    svg = text.getvalue().replace(
        "<svg ", f"<svg role='img' aria-label={quoteattr(alternative)} ", 1
    )
    return Figure(alternative, svg, _shrink(picture, alternative))


def caption_picture(axes: Any, words: str) -> None:
    """Put a few quiet words above a picture, and take its frame and ticks away."""
    axes.set_title(words, fontsize=9, weight="normal", loc="center", color=MUTED, pad=3)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def power_ticks(axis: Any, every: int = 1) -> None:
    """Label the ticks of a logarithmic axis over many decades with powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = (math.log10(end) for end in sorted(axis.get_view_interval()))
    powers = [k for k in range(math.ceil(low), math.floor(high) + 1) if k % every == 0]
    axis.set_major_locator(FixedLocator([10.0**k for k in powers]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(round(math.log10(value)))))
    axis.set_minor_locator(NullLocator())


def power(exponent: int) -> str:
    """Write a power of ten: ``10⁻³``, and ``1`` for its zeroth.

    Examples
    --------
    >>> from reproduction.drawing import power
    >>> power(-3)
    '10⁻³'
    """
    return f"10{str(exponent).translate(_SUPERSCRIPT)}" if exponent else "1"


def _shrink(picture: io.BytesIO, alternative: str) -> bytes:
    """Return the PNG with a palette instead of full colours, and with its description."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    picture.seek(0)
    with Image.open(picture) as full:
        small = full.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    words = PngInfo()
    words.add_itxt("Description", alternative)
    shrunk = io.BytesIO()
    small.save(shrunk, format="png", optimize=True, pnginfo=words)
    return shrunk.getvalue()
