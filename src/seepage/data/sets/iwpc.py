"""IWPC: the stable warfarin dose of 4,819 patients from clinical and genetic traits.

The file is the one Yeom et al. (2018) prepared: age, height, weight and dose are whitened.
"""

from __future__ import annotations

import os

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.readers.csv_table import read_csv
from seepage.data.structures import Records

COLUMNS = (
    "race",
    "age",
    "height",
    "weight",
    "amiodarone",
    "decr",
    "cyp2c9",
    "vkorc1",
    "dose",
)
# The genotype cyp2c9 looks like a number (11, 12, …) and is a name.
NOMINAL = ("cyp2c9", "race", "vkorc1")
_PATIENTS = 4_819


def load_iwpc(folder: str | os.PathLike[str] | None = None, *, download: bool = True) -> Records:
    """Read ``iwpc-scaled.csv``, fetching it where it is missing; the target is ``dose``.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether a missing file may be fetched.
    """
    path = locate("iwpc", folder, download=download) / "iwpc-scaled.csv"
    records = read_csv(path, "iwpc", leading=COLUMNS, further=None, text=NOMINAL)
    if len(records) != _PATIENTS:
        raise broken(path, f"has {len(records):,} rows instead of {_PATIENTS:,}", "iwpc")
    return records
