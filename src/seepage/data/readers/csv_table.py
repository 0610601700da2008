"""Read a comma-separated file with a header into named columns, refusing what does not fit."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seepage.data.problems import broken
from seepage.data.structures import Records


def read_csv(
    path: Path,
    name: str,
    *,
    leading: Sequence[str],
    further: str | None,
    text: Sequence[str],
    allow_missing: bool = False,
) -> Records:
    """Return the columns of ``path``, all of them numbers but for those named in ``text``.

    Parameters
    ----------
    path, name
        The file, and the data set it belongs to.
    leading
        The columns the header must begin with.
    further
        How the name of any further column begins; ``None`` allows no further column.
    text
        Columns that hold text.
    allow_missing
        Whether a field may be empty: NaN in a column of numbers, ``""`` in one of text.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            header, *rows = list(csv.reader(stream, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise broken(path, f"is not a comma-separated text file ({error})", name) from error
    if header[: len(leading)] != list(leading) or not all(
        further is not None and title.startswith(further) for title in header[len(leading) :]
    ):
        expected = ",".join(leading) + ("" if further is None else f",{further}…")
        raise broken(path, f"has the header {','.join(header)!r} instead of {expected!r}", name)
    if not rows:
        raise broken(path, "has no rows", name)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            what = f"has {len(row)} fields instead of {len(header)} in line {number}"
            raise broken(path, what, name)
    columns = {}
    for title, values in zip(header, zip(*rows, strict=True), strict=True):
        if not allow_missing and "" in values:
            what = f"has nothing in column {title} of line {values.index('') + 2}"
            raise broken(path, what, name)
        if title in text:
            columns[title] = np.asarray(values)
            continue
        try:
            columns[title] = np.asarray([value or "nan" for value in values], dtype=np.float64)
        except ValueError as error:
            raise broken(path, f"has text in its column {title} ({error})", name) from error
    return Records(columns)
