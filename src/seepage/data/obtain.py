"""Finds a data set on this computer, or fetches it from its publisher."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from seepage.data.download import download as download_file
from seepage.data.download import unpack
from seepage.data.registry import DataSet, data_set
from seepage.errors import InputError

Folder: TypeAlias = "str | os.PathLike[str] | None"  # the folder that holds the sets' folders


def cache_folder() -> Path:
    """Return the per-user cache folder (XDG convention): ``$XDG_CACHE_HOME/seepage/data``."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The convention says to ignore a relative path there.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "seepage" / "data"


def searched_folders(folder: Folder = None) -> tuple[Path, ...]:
    """Return the folders to search, in order; downloads are stored in the first.

    If ``folder`` is given, only that folder is searched; otherwise ``$SEEPAGE_DATA`` is searched
    before the per-user cache.
    """
    if folder is not None:
        return (Path(folder).expanduser(),)
    configured = os.environ.get("SEEPAGE_DATA", "")
    named = (Path(configured).expanduser(),) if configured else ()
    return (*named, cache_folder())


def find(data_set: DataSet, folder: Folder = None) -> Path | None:
    """Return the first folder that contains all files needed by the loader, or ``None``."""
    for root in searched_folders(folder):
        home = root / data_set.folder
        if all((home / name).is_file() for name in data_set.files):
            return home
    return None


def locate(name: str, folder: Folder = None, *, download: bool = True) -> Path:
    """Return the folder that contains the data set's files, fetching them if necessary.

    Parameters
    ----------
    name
        One of the names that ``seepage data list`` prints.
    folder
        The folder of the data sets; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether a missing data set may be fetched from its publisher.
    """
    wanted = _with_files(name)
    if not download and find(wanted, folder) is None:
        places = " or ".join(str(root / wanted.folder) for root in searched_folders(folder))
        how = wanted.by_hand or f"run `seepage data fetch {name}`"
        raise InputError(f"The data set {name} is not in {places}; {how}.")
    return fetch(name, folder)


def fetch(name: str, folder: Folder = None) -> Path:
    """Download the missing files of a data set into the first search folder; return its folder.

    Existing files are not downloaded again; the loaders check their structure.
    """
    wanted = _with_files(name)
    found = find(wanted, folder)
    if found is not None:
        return found
    home = searched_folders(folder)[0] / wanted.folder
    if not wanted.downloads:
        raise InputError(
            f"The data set {name} cannot be downloaded and is not in {home}; {wanted.by_hand}."
        )
    for file in wanted.downloads:
        was_there = (home / file.name).exists()
        if was_there and not file.archive:
            continue
        path = download_file(file, home)
        if file.archive:
            unpack(path, home)
            if not was_there:
                path.unlink()
    missing = [file for file in wanted.files if not (home / file).is_file()]
    if missing:
        raise InputError(
            f"After fetching {name}, {home} still lacks {', '.join(missing)}; fetch it again."
        )
    return home


def _with_files(name: str) -> DataSet:
    wanted = data_set(name)
    if wanted.bundled:
        raise InputError(
            f"The data set {wanted.name} is part of scikit-learn and has no separate files; call "
            f"seepage.data.load_bundled({wanted.name!r})."
        )
    return wanted
