"""Unpack an archive without letting it write anywhere but into its folder."""

from __future__ import annotations

import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from seepage.errors import InputError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into ``folder``: plain files and folders only, each file whole.

    Members with absolute names, names that climb out by ``..``, links and devices are refused
    before anything is written. Files are unpacked into a temporary folder beside their final
    place and then renamed, so a final name never holds half a file.
    """
    try:
        with (
            tarfile.open(archive) as tar,
            tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as temporary,
        ):
            members = tar.getmembers()
            for member in members:
                _refuse_unsafe(member, archive)
            tar.extractall(temporary, members=members, filter="data")
            for member in members:
                if member.isfile():
                    final = folder / member.name
                    final.parent.mkdir(parents=True, exist_ok=True)
                    (Path(temporary) / member.name).replace(final)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(
            f"{archive} cannot be unpacked ({error}); delete it and fetch it again."
        ) from error


def _refuse_unsafe(member: tarfile.TarInfo, archive: Path) -> None:
    # Backslashes and colons are harmless here but name other places on Windows.
    name = member.name.replace("\\", "/")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or ":" in name:
        raise InputError(f"{archive} is refused: its member {member.name!r} leaves the folder.")
    if not (member.isfile() or member.isdir()):
        raise InputError(f"{archive} is refused: its member {member.name!r} is a link or device.")
