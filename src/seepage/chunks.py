"""Work through the rows of a table in pieces, with a progress bar for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from array_api_compat import array_namespace
from tqdm import tqdm

Array = Any

# Numbers in one chunk: enough rows to keep a matrix product at full speed, few enough that what is
# made of them stays far below the size of the table.
CHUNK = 1 << 20

# Numbers in a core's cache, where passes over an array cost a fraction of those in memory.
CACHE = 1 << 16


def row_slices(rows: int, width: int, *, chunk: int = CHUNK, what: str = "") -> Iterator[slice]:
    """Cut ``rows`` rows of ``width`` numbers each into slices of about ``chunk`` numbers.

    With ``what``, a bar of that name shows the progress of work that takes longer than two seconds
    (on a terminal only: pipes stay quiet).
    """
    step = max(1, chunk // max(1, width))
    starts = range(0, rows, step)
    shown = tqdm(starts, desc=what, delay=2, disable=None if what else True, leave=False)
    for start in shown:
        yield slice(start, min(start + step, rows))


def by_rows(
    function: Callable[[slice], Array], rows: int, width: int, *, chunk: int = CHUNK, what: str = ""
) -> Array:
    """Apply ``function`` to the slices of :func:`row_slices` and join what it returns."""
    parts = [function(piece) for piece in row_slices(rows, width, chunk=chunk, what=what)]
    return parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts, axis=0)
