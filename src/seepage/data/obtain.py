"""Find a data set on this computer, or fetch it from its publisher."""

from __future__ import annotations

import os
from pathlib import Path

from seepage.data.archive import unpack
from seepage.data.download import download as download_file
from seepage.data.folders import find, searched_folders
from seepage.data.registry import DataSet, data_set
from seepage.errors import InputError


def locate(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = True
) -> Path:
    """Return the folder that holds the set's files: a local one first, else after fetching it.

    Parameters
    ----------
    name
        One of ``seepage data list``.
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    download
        Whether a set that is not there may be fetched from its publisher.
    """
    wanted = data_set(name)
    _refuse_bundled(wanted)
    found = find(wanted, folder)
    if found is not None:
        return found
    if not download:
        places = " or ".join(str(root / wanted.folder) for root in searched_folders(folder))
        how = wanted.by_hand or f"run `seepage data fetch {name}`"
        raise InputError(f"The data set {name} is not in {places}; {how}.")
    return fetch(name, folder)


def fetch(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Download what is missing of a set into the first folder searched; return the set's folder.

    Files that are there already are left alone; loaders check their structure when they read.
    """
    wanted = data_set(name)
    _refuse_bundled(wanted)
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
        raise InputError(f"After fetching {name}, {home} still lacks {', '.join(missing)}.")
    return home


def _refuse_bundled(wanted: DataSet) -> None:
    if wanted.bundled:
        raise InputError(
            f"The data set {wanted.name} comes with scikit-learn and has no files of its own; "
            f"call seepage.data.load_bundled({wanted.name!r})."
        )
