"""How a broken data file is reported: the file, what is wrong with it, and the remedy."""

from __future__ import annotations

from pathlib import Path

from seepage.data.registry import DATA_SETS
from seepage.errors import InputError


def broken(path: Path, what: str, name: str) -> InputError:
    """Return the error for a file of the data set ``name`` that is corrupted, cut off or wrong."""
    if DATA_SETS[name].downloads:
        remedy = f"delete it and run `seepage data fetch {name}`"
    else:
        remedy = f"replace it (`seepage data fetch {name}` says what is expected)"
    return InputError(f"{path} {what}; {remedy}.")
