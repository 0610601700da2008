"""Formats text tables for the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from io import StringIO


def text_table(rows: Iterable[Sequence[str]], heads: Sequence[str] = (), indent: int = 0) -> str:
    """Return rows of cells below their headers, wrapped to the terminal width but not truncated.

    >>> print(text_table([("fc1", "0.9")], ("layer", "bits")))
    layer  bits
    fc1    0.9
    """
    from rich.console import Console
    from rich.table import Table

    lines = [tuple(row) for row in rows]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    drawn = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="", show_header=bool(heads)
    )
    for head in heads or ("",) * max(map(len, lines), default=0):
        drawn.add_column(head, overflow="fold")
    for line in lines:
        drawn.add_row(*line)
    out = StringIO()
    Console(file=out, width=width - indent, markup=False, emoji=False, highlight=False).print(drawn)
    return "\n".join(f"{' ' * indent}{line}".rstrip() for line in out.getvalue().splitlines())
