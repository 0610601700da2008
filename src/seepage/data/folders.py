"""Where data sets are looked for on this computer, and whether they are there."""

from __future__ import annotations

import os
from pathlib import Path

from seepage.data.registry import DataSet

VARIABLE = "SEEPAGE_DATA"


def cache_folder() -> Path:
    """Return the per-user folder of the XDG convention: ``$XDG_CACHE_HOME/seepage/data``."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The convention says that a relative path there is to be ignored.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "seepage" / "data"


def searched_folders(folder: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Return the folders searched, in order; what is downloaded goes into the first.

    A folder that is named is the only one searched; otherwise ``$SEEPAGE_DATA`` comes before
    the per-user cache.
    """
    if folder is not None:
        return (Path(folder).expanduser(),)
    configured = os.environ.get(VARIABLE, "")
    named = (Path(configured).expanduser(),) if configured else ()
    return (*named, cache_folder())


def find(data_set: DataSet, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the first folder that holds every file the set's loader reads, or ``None``."""
    for root in searched_folders(folder):
        home = root / data_set.folder
        if all((home / name).is_file() for name in data_set.files):
            return home
    return None
