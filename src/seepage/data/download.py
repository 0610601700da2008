"""Downloads and unpacks a file; only complete, verified files get their final name.

Partial downloads are stored as ``NAME.part``, and an interrupted download resumes from this file
with an HTTP range request. The partial file is renamed only when its length and SHA-256 match the
published values. An archive is unpacked only into the data set's folder.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path, PurePosixPath

from seepage.data.registry import RemoteFile
from seepage.errors import InputError


class _WrongContentError(Exception):
    """The server sent a file that differs from the published one."""


def download(file: RemoteFile, folder: Path) -> Path:
    """Return the path of the verified file in ``folder``, downloading it if it is missing."""
    target = folder / file.name
    if target.is_file():
        _check(target, file)
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be created ({error.strerror}); choose another with "
            "--folder or SEEPAGE_DATA."
        ) from error
    part = folder / (file.name + ".part")
    failures = []
    for url in file.urls:
        try:
            _continue(url, part, file)
            _verify(part, file)
        except (_WrongContentError, OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {_reason(error)}")
        else:
            part.replace(target)
            return target
    kept = (
        f" The partial download is in {part}; the next attempt resumes from it."
        if part.exists()
        else ""
    )
    raise InputError(
        f"{file.name} could not be downloaded ({'; '.join(failures)}); try again later, or copy "
        f"the file into {folder} yourself.{kept}"
    )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check(target: Path, file: RemoteFile) -> None:
    """Raise an error if an existing file is not the published one."""
    found = digest(target)
    if found != file.sha256:
        raise InputError(
            f"{target} is not the published file (SHA-256 {found} instead of {file.sha256}); "
            "delete it and try again."
        )


def _continue(url: str, part: Path, file: RemoteFile) -> None:
    """Append the missing bytes to ``part``, or start over if the server cannot resume."""
    from tqdm import tqdm

    if not url.startswith(("https://", "http://")):
        raise InputError(f"{url} is not a web address; use one that starts with https://.")
    have = part.stat().st_size if part.exists() else 0
    if have >= file.size:
        return
    # With compressed transfer, range and length would count other bytes.
    headers = {"User-Agent": "seepage", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (scheme checked above)
    # After 30 seconds without a byte the server counts as silent.
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        start = have if _resumes(answer, have) else 0
        with (
            part.open("r+b" if start else "wb") as out,
            tqdm(
                total=file.size,
                initial=start,
                desc=file.name,
                unit="B",
                unit_scale=True,
                disable=None,  # quiet if nobody is watching
            ) as bar,
        ):
            out.seek(start)
            # One byte beyond the published length is enough to know that the file is wrong.
            while block := answer.read(min(1 << 16, file.size + 1 - out.tell())):
                out.write(block)
                bar.update(len(block))
            out.flush()
            os.fsync(out.fileno())
    arrived = part.stat().st_size
    if arrived < file.size:
        raise ConnectionError(f"the connection ended after {arrived:,} of {file.size:,} bytes")


def _resumes(answer: http.client.HTTPResponse, have: int) -> bool:
    """Return whether the server's response starts exactly where the partial file ends."""
    content_range = answer.headers.get("Content-Range") or ""
    return have > 0 and answer.status == 206 and content_range.startswith(f"bytes {have}-")


def _verify(part: Path, file: RemoteFile) -> None:
    size = part.stat().st_size
    if size == file.size:
        found = digest(part)
        if found == file.sha256:
            return
        wrong = f"its SHA-256 is {found}, not {file.sha256}"
    else:
        wrong = f"it is longer than {file.size:,} bytes"
    part.unlink()
    raise _WrongContentError(f"the file differs from the published one: {wrong}; it was deleted")


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"the server cannot be reached ({error.reason})"
    return str(error) or type(error).__name__


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into ``folder``: plain files and folders only, each file complete.

    An archive that contains absolute names, names that escape through ``..``, links or devices
    raises an error before anything is written. Files are unpacked into a temporary folder beside
    their final place and then renamed, so a final name never refers to a partial file.
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
        raise InputError(
            f"{archive} is not unpacked, because its member {member.name!r} would be written "
            "outside the folder; download the archive again from its publisher."
        )
    if not (member.isfile() or member.isdir()):
        raise InputError(
            f"{archive} is not unpacked, because its member {member.name!r} is a link or a "
            "device; download the archive again from its publisher."
        )
