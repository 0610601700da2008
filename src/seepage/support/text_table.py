"""Lines of cells in columns, for people who read them on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Return lines of cells as text, every column as wide as its widest cell.

    >>> aligned([("layer", "bits"), ("fc1", "0.9")])
    ['layer  bits', 'fc1    0.9']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)) for line in lines)
    return [f"{indent}{line}".rstrip() for line in padded]
