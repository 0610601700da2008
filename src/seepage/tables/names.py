"""Makes names of columns and categories unique, printable and short enough to display.

Escaping for a web page or a shell is left to the code that writes the output. Characters that no
output can display safely are replaced by spaces: control codes, which move a terminal's cursor, and
marks that reverse the direction of the surrounding text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

SHOWN = 60  # the most characters of a name in a sentence

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(name: str) -> str:
    """Return a name without control codes, direction marks or surrounding spaces."""
    return _UNSAFE.sub(" ", name).strip()


def escaped(text: str) -> str:
    r"""Return a text with control codes and direction marks written as escapes like ``\x1b``."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def unique(names: Iterable[str]) -> list[str]:
    """Return the names in order, with repeated names changed to ``name (2)``, ``name (3)``, …."""
    wanted = list(names)
    taken = set(wanted)
    seen: set[str] = set()
    count: dict[str, int] = {}
    out = []
    for name in wanted:
        fresh = name
        while fresh in seen:
            count[name] = count.get(name, 1) + 1
            fresh = f"{name} ({count[name]})"
            # A later column may be called "name (2)" already, and keeps that name.
            if fresh in taken:
                fresh = name
        seen.add(fresh)
        out.append(fresh)
    return out


def shown(name: object) -> str:
    """Return a name in quotation marks, shortened if it is too long for a sentence."""
    text = printable(str(name))
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")


def listed(names: Sequence[object], most: int = 5) -> str:
    """Return the first few names, quoted and separated by commas, and the count of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(shown(name) for name in names[:most])}{more}"


def counted(number: int, what: str, many: str | None = None) -> str:
    """Return a number with its noun, such as ``1 row`` or ``1,234 rows``."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"
