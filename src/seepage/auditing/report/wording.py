"""Numbers and names as readers see them: short, plain, and harmless whatever the table holds."""

from __future__ import annotations

import math
import unicodedata

SHORT = 48  # characters of a name that fit a table cell
LONG = 400  # characters of a sentence that may quote a long name

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Controls and lone surrogates cannot be written; direction overrides would turn the page around.
_UNPRINTABLE = {"Cc", "Cs", "Cn", "Co"}
_OVERRIDES = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_MARKDOWN = {c: "\\" + c for c in "\\`*_{}[]#|~!:@$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def number(value: float) -> str:
    """Write a number with three digits that count: ``0.142``, ``12,300``, ``4.2 × 10⁻⁵``, ``∞``."""
    value = float(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 < exponent < 6:
        rounded = float(f"{value:.3g}")
        text = f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"
        return text.replace("-", "−")
    mantissa, power = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    return f"{mantissa} × 10{str(int(power)).translate(_SUPERSCRIPT)}"


def count(value: int) -> str:
    """Write a count with thousands separated."""
    return f"{int(value):,}"


def counted(value: int, thing: str) -> str:
    """Write a count with its noun: ``1 record``, ``12 records``."""
    return f"{count(value)} {thing}" if value == 1 else f"{count(value)} {thing}s"


def plain(text: object) -> str:
    """Return a caller's name or value as one printable line."""
    safe = "".join(
        " " if c in _OVERRIDES or unicodedata.category(c) in _UNPRINTABLE else c for c in str(text)
    )
    return " ".join(safe.split()) or "(no name)"


def short(text: object, width: int = SHORT) -> str:
    """Return a caller's name or value as one printable line of at most ``width`` characters."""
    line = plain(text)
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def sentence(text: object) -> str:
    """Return a sentence that may quote names, cut where a name made it far too long."""
    return short(text, LONG)


def markdown(text: object) -> str:
    """Return a caller's name as Markdown that shows it and does nothing else."""
    return "".join(_MARKDOWN.get(c, c) for c in short(text))
