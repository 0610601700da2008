"""UCI Adult: people of the 1994 census, and whether they earn more than $50,000 a year."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.structures import Records

CONTINUOUS = (
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
)
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)


@dataclass(frozen=True, eq=False)
class Adult:
    """Both files, every row; unknown values are ``"?"``, the target is the column ``income``."""

    train: Records
    test: Records


def load_adult(folder: str | os.PathLike[str] | None = None, *, download: bool = True) -> Adult:
    """Read ``adult.data`` and ``adult.test``, fetching them where they are missing.

    The test file's labels carry a full stop, which is taken off.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether missing files may be fetched.
    """
    home = locate("adult", folder, download=download)
    return Adult(
        train=_read(home / "adult.data", 32_561),
        test=_read(home / "adult.test", 16_281),
    )


def _read(path: Path, count: int) -> Records:
    rows = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            # The test file opens with a line that starts with "|"; both end with an empty one.
            if not text or text.startswith("|"):
                continue
            fields = [field.strip() for field in text.split(",")]
            if len(fields) != len(COLUMNS):
                what = f"has {len(fields)} fields instead of {len(COLUMNS)} in line {number}"
                raise broken(path, what, "adult")
            fields[-1] = fields[-1].removesuffix(".")
            if fields[-1] not in ("<=50K", ">50K"):
                what = f"has {fields[-1]!r} for an income in line {number}"
                raise broken(path, what, "adult")
            rows.append(fields)
    if len(rows) != count:
        raise broken(path, f"has {len(rows):,} records instead of {count:,}", "adult")
    columns = {}
    for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        if name in CONTINUOUS:
            try:
                columns[name] = np.asarray(values, dtype=np.float64)
            except ValueError as error:
                raise broken(path, f"has text in its column {name} ({error})", "adult") from error
        else:
            columns[name] = np.asarray(values)
    return Records(columns)
