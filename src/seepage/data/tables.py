"""Tables of people: UCI Adult, IWPC, and the small ones that come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seepage.data.obtain import Folder, locate
from seepage.data.readers import read_csv
from seepage.data.registry import DATA_SETS, broken
from seepage.data.structures import Records, Tabular
from seepage.errors import InputError, nearest

ADULT_CONTINUOUS = (
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
)
ADULT_COLUMNS = (
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


def load_adult(folder: Folder = None, *, download: bool = True) -> Adult:
    """Read ``adult.data`` and ``adult.test``, fetching them where they are missing.

    People of the 1994 census, and whether they earn more than $50,000 a year. The test file's
    labels carry a full stop, which is taken off.
    Where it is looked for, and whether it may be fetched, is as for :func:`locate`.
    """
    home = locate("adult", folder, download=download)
    return Adult(
        train=_read_adult(home / "adult.data", 32_561),
        test=_read_adult(home / "adult.test", 16_281),
    )


def _read_adult(path: Path, count: int) -> Records:
    rows = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            # The test file opens with a line that starts with "|"; both end with an empty one.
            if not text or text.startswith("|"):
                continue
            fields = [field.strip() for field in text.split(",")]
            if len(fields) != len(ADULT_COLUMNS):
                what = f"has {len(fields)} fields instead of {len(ADULT_COLUMNS)} in line {number}"
                raise broken(path, what, "adult")
            fields[-1] = fields[-1].removesuffix(".")
            if fields[-1] not in ("<=50K", ">50K"):
                what = f"has {fields[-1]!r} for an income in line {number}"
                raise broken(path, what, "adult")
            rows.append(fields)
    if len(rows) != count:
        raise broken(path, f"has {len(rows):,} records instead of {count:,}", "adult")
    columns = {}
    for name, values in zip(ADULT_COLUMNS, zip(*rows, strict=True), strict=True):
        if name in ADULT_CONTINUOUS:
            try:
                columns[name] = np.asarray(values, dtype=np.float64)
            except ValueError as error:
                raise broken(path, f"has text in its column {name} ({error})", "adult") from error
        else:
            columns[name] = np.asarray(values)
    return Records(columns)


_IWPC_COLUMNS = "race age height weight amiodarone decr cyp2c9 vkorc1 dose"
# The genotype cyp2c9 looks like a number (11, 12, …) and is a name.
IWPC_NOMINAL = ("cyp2c9", "race", "vkorc1")
_PATIENTS = 4_819


def load_iwpc(folder: Folder = None, *, download: bool = True) -> Records:
    """Read ``iwpc-scaled.csv``, fetching it where it is missing; the target is ``dose``.

    The stable warfarin dose of 4,819 patients from clinical and genetic traits, as Yeom et al.
    (2018) prepared it: age, height, weight and dose are whitened.
    Where it is looked for, and whether it may be fetched, is as for :func:`locate`.
    """
    path = locate("iwpc", folder, download=download) / "iwpc-scaled.csv"
    records = read_csv(path, "iwpc", leading=_IWPC_COLUMNS.split(), further=None, text=IWPC_NOMINAL)
    if len(records) != _PATIENTS:
        raise broken(path, f"has {len(records):,} rows instead of {_PATIENTS:,}", "iwpc")
    return records


def load_bundled(name: str) -> Tabular:
    """Return ``breast_cancer``, ``diabetes``, ``digits``, ``iris`` or ``wine``.

    scikit-learn's linnerud is left out: it has three targets at once, and every model here one.
    """
    known = [data_set.name for data_set in DATA_SETS.values() if data_set.bundled]
    if name not in known:
        raise InputError(
            f"scikit-learn bundles no data set called {name!r}{nearest(name, known)}; there are "
            f"{', '.join(known)}."
        )
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    return Tabular(
        name=name,
        X=np.ascontiguousarray(bunch.data, dtype=np.float64),
        y=bunch.target,
        names=tuple(str(feature) for feature in bunch.feature_names),
        classes=tuple(str(c) for c in getattr(bunch, "target_names", ())),
    )
