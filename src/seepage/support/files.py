"""Write files and folders completely or not at all, and never touch one not written here.

They hold per-record numbers, so a file is readable by its owner only.

A folder of results holds a manifest: the names of its files with their SHA-256. Only a folder that
is empty, or holds exactly what its manifest says, is replaced. The new one is written beside it
under a hidden name; then the two exchange their names, which Linux does in one step
(``renameat2``), so that whoever looks sees either the old folder or the new one. Where that is not
possible (another system, a mounted folder, the working directory) the new files are written to a
hidden folder inside; renaming it to :data:`_READY` says that they are complete, and they are then
moved to their places, by the next run if this one is killed.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from seepage.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

Writer = Callable[[BinaryIO], object]

# A suffix that nobody else gives a file: it marks what a killed writer left.
HALF_WRITTEN = ".seepage-part"

MANIFEST = "manifest.json"
_FORMAT = "seepage-folder/1"
_NEW = ".seepage-new"  # the suffix of a folder that is being written
_READY = ".seepage-ready"  # a folder inside the results, its files still to be moved


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path that the system itself cannot follow, such as a link that leads back to itself.

    Whether there is anything at its end is another question: a file to be written is not there yet.
    """
    place = Path(os.fsdecode(path))
    name = _shown(place.name)
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(
                f"{name} cannot be opened: the links on its path lead back to themselves; name the "
                "file or folder itself."
            ) from error
        raise InputError(f"{name} cannot be opened: {error.strerror or error}.") from error
    except ValueError as error:  # a zero byte
        raise InputError(f"{name} is not the name of a file.") from error


def check_input(path: str | os.PathLike[str]) -> None:
    """Refuse a path to read from that cannot be followed, or whose name is not text."""
    name = os.fsdecode(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"The name {_shown(name)} is not UTF-8, so not every library can open it; rename the "
            "file or folder."
        ) from error
    check_path(path)


def write_private(path: Path, write: Writer) -> None:
    """Let ``write`` fill a temporary file beside ``path`` (mode 0600), then rename it.

    Leftovers of killed writers of the same file are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_half_written(path)
    handle = -1
    while handle < 0:
        # Private to its owner whatever the umask
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=HALF_WRITTEN
        )
        temporary = Path(name)
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not os.fstat(handle).st_nlink:  # removed by another process before it was locked
                os.close(handle)
                handle = -1
    try:
        # The lock ends with the handle, and so only after the file has its name.
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            if fcntl is not None:
                temporary.replace(path)
        if fcntl is None:  # Windows renames no open file
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text, whatever it holds, to a file that only its owner can read."""
    write_private(path, lambda file: file.write(text.encode("utf-8", "replace")))


def remove_half_written(path: Path) -> None:
    """Remove what killed writers of ``path`` left beside it; running ones keep theirs."""
    ours = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}" + re.escape(HALF_WRITTEN))
    for left in path.parent.iterdir() if path.parent.is_dir() else ():
        if ours.fullmatch(left.name) and left.is_file() and not left.is_symlink():
            with open_if_deserted(left) as deserted:
                if deserted:
                    left.unlink(missing_ok=True)


@contextmanager
def open_if_deserted(path: Path) -> Iterator[bool]:
    """Hold the lock of a file or folder while inside, if no living process holds it.

    The system releases the lock of a dead process. Without locks (on Windows) nothing counts as
    abandoned.
    """
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)


def hold(path: Path) -> int | None:
    """Lock a file or folder until the handle is closed; ``None`` where there are no locks."""
    if fcntl is None:
        return None
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Wait until no other process or thread is in here for the same path.

    For code that reads a file, adds to it and writes it back. The lock is on a hidden file beside
    ``path``, which stays there; the system releases it when a process dies. Without such locks (on
    Windows) nobody waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def whole_folder(
    out: Path,
    kind: str,
    keep: Sequence[Path] = (),
    complete: Callable[[Path], object] | None = None,
) -> Iterator[Path]:
    """Give an empty folder to fill, which replaces ``out`` when everything is written.

    Parameters
    ----------
    out
        The folder of results; it must not exist, be empty, or be one of the same kind written
        here before and unchanged since.
    kind
        What the folder holds, in one word for people: ``report``.
    keep
        Files and folders that must not change: the results are computed from them.
    complete
        Called with the folder when everything is written in it, before it takes its place; if that
        fails, it does not.

    Raises
    ------
    InputError
        If the folder holds anything else, or something to keep; nothing has been changed then.
    """
    check_path(out)
    out = out.resolve()
    check_folder(out, kind, keep)
    if (out / _READY).is_dir():  # a run was killed while it moved files to their places
        _move_into_place(out)
        check_folder(out, kind, keep)
    made = [folder for folder in out.parents if not folder.exists()]  # the innermost first
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remove_leftovers(out)
        new, handle = _start(out)
        try:
            yield new
            files = {name: _digest(new / name) for name in sorted(_files_of(new))}
            manifest = {"format": _FORMAT, "kind": kind, "files": files}
            write_text(new / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            check_folder(out, kind, keep)
            if complete is not None:
                complete(new)
            _take_place(new, out)
        finally:
            if new.is_dir():  # by now the old one, or one never completed
                _remove(new)
            if handle is not None:
                os.close(handle)
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_folder(out: Path, kind: str, keep: Sequence[Path] = ()) -> None:
    """Refuse a folder of results that would replace anything else."""
    for path in (out, *keep):
        check_path(path)
    out = out.resolve()
    name = _shown(out.name)
    if out.exists() and not out.is_dir():
        raise InputError(f"{name} is a file: name a folder for the {kind} with --out.")
    for source in keep:
        real = source.resolve()
        if real.is_relative_to(out) or (real.is_dir() and out.is_relative_to(real)):
            raise InputError(
                f"{_shown(source.name)} is being read, so the {kind} cannot be written to {name}: "
                "one lies within the other; name another folder with --out."
            )
    if not out.is_dir() or (out / _READY).is_dir():
        return
    found = _files_of(out)
    if not found:
        return
    own, held = _manifest_of(out)
    foreign = sorted(found - set(own) - {MANIFEST})
    if held is not None and held != kind:
        raise InputError(
            f"{name} holds a {held}, which a {kind} must not replace; name another "
            "folder with --out."
        )
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise InputError(
            f"{name} holds files not written by seepage "
            f"({', '.join(map(_shown, foreign[:3]))}{more}) and was left unchanged; name another "
            "folder with --out, or an empty one."
        )
    inputs = [source.stat() for source in keep if source.exists()]
    for file, digest in own.items():
        path = out / file
        if not path.is_file():
            continue
        if any(os.path.samestat(path.stat(), other) for other in inputs):
            raise InputError(
                f"{_shown(file)} in {name} is the file being read; name another folder with --out."
            )
        if _digest(path) != digest:
            raise InputError(
                f"{_shown(file)} in {name} was changed since it was written, and is kept; "
                "name another folder with --out, or remove the file."
            )


def read_manifest(folder: Path, kind: str, wanted: Sequence[str] = ()) -> dict[str, str]:
    """Return the files of a folder with their SHA-256, after comparing each.

    A folder is refused that lacks a listed file, holds one that is not listed, or does not list one
    of the ``wanted``, which are going to be read.
    """
    own, held = _manifest_of(folder)
    if held != kind:
        raise InputError(f"{_shown(folder.name)} is not a {kind} written by seepage.")
    name = _shown(folder.name)
    for file in wanted:
        if file not in own:
            raise InputError(
                f"The manifest of {name} does not list {_shown(file)}, so nobody can tell whether "
                f"it is as it was written; get the {kind} again."
            )
    foreign = sorted(_files_of(folder) - set(own) - {MANIFEST})
    if foreign:
        raise InputError(
            f"{_shown(foreign[0])} in {name} is not in the manifest of the {kind}; remove it, or "
            f"get the {kind} again."
        )
    for file, digest in own.items():
        path = folder / file
        if not path.is_file() or _digest(path) != digest:
            raise InputError(
                f"{_shown(file)} in {name} is missing or not as it was written; get the {kind} "
                "again."
            )
    return own


def _files_of(folder: Path) -> set[str]:
    """Return everything in a folder except plain folders and what is being written in it."""
    paths = set()
    for root, folders, files in os.walk(folder):
        inside = Path(root)
        if inside == folder:
            folders[:] = [d for d in folders if not _being_written(folder).fullmatch(d)]
        names = [*files, *(d for d in folders if (inside / d).is_symlink())]
        paths |= {(inside / n).relative_to(folder).as_posix() for n in names}
    return paths


def _manifest_of(folder: Path) -> tuple[dict[str, str], str | None]:
    """Return the files that a folder's manifest lists, and its kind; nothing without one."""
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file():
        return {}, None
    try:
        manifest = json.loads(path.read_text("utf-8"))
        files = {str(name): str(digest) for name, digest in manifest["files"].items()}
        # A name that leaves the folder, or might on another system, makes a manifest worthless.
        parts = {part for name in files for part in name.split("/")}
        good = manifest["format"] == _FORMAT and parts.isdisjoint(("", ".", ".."))
        return (files, str(manifest["kind"])) if good and "\\" not in "".join(parts) else ({}, None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _start(out: Path) -> tuple[Path, int | None]:
    """Return a new folder to fill, with a lock that says it is in use."""
    # Another folder can take the name of one that is neither mounted nor the working directory.
    fixed = out.is_mount() or not os.access(out.parent, os.W_OK) or Path.cwd().is_relative_to(out)
    inside = out.is_dir() and fixed
    while True:
        new = Path(
            tempfile.mkdtemp(dir=out if inside else out.parent, prefix=f".{out.name}.", suffix=_NEW)
        )
        with suppress(FileNotFoundError):  # removed by another process before it was locked
            handle = hold(new)
            if new.is_dir():
                return new, handle
            if handle is not None:
                os.close(handle)


def _take_place(new: Path, out: Path) -> None:
    """Let a complete folder take the place of ``out``."""
    if not out.exists():
        new.rename(out)
    elif new.parent == out or not _exchange(new, out):
        new.rename(out / _READY)
        _move_into_place(out)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return whether the system could."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _move_into_place(out: Path) -> None:
    """Move the files that are ready to their places; a second run resumes where it stopped."""
    ready = out / _READY
    before, _ = _manifest_of(out)
    after, _ = _manifest_of(ready)
    if after:
        for name in before:
            if name not in after:
                (out / name).unlink(missing_ok=True)
        _remove_empty_folders(out, before)
        for name in after:
            if (ready / name).exists():
                (out / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                (ready / name).replace(out / name)
        (ready / MANIFEST).replace(out / MANIFEST)
    shutil.rmtree(ready)


def _remove_leftovers(out: Path) -> None:
    """Remove the folders that runs into ``out`` left when they were killed."""
    ours = _being_written(out)
    for folder in (out.parent, out):
        for left in folder.iterdir() if folder.is_dir() else ():
            if ours.fullmatch(left.name) and stat.S_ISDIR(left.lstat().st_mode):
                with open_if_deserted(left) as deserted:
                    if deserted:
                        _remove(left)


def _being_written(out: Path) -> re.Pattern[str]:
    """Return the pattern of the names of folders that are to replace ``out``."""
    return re.compile(re.escape(f".{out.name}.") + r"[a-z0-9_]{8}" + re.escape(_NEW))


def _remove(folder: Path) -> None:
    """Remove a folder of ours; if it was complete, only the files its manifest lists."""
    own, _ = _manifest_of(folder)
    if not own:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in own:
        (folder / name).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    _remove_empty_folders(folder, own)
    with suppress(OSError):  # somebody put a file of their own there in the meantime
        folder.rmdir()


def _remove_empty_folders(folder: Path, names: Sequence[str] | dict[str, str]) -> None:
    above = {parent for name in names for parent in (folder / name).parents}
    for empty in sorted(above, key=lambda path: -len(path.parts)):
        if empty != folder and empty.is_relative_to(folder):
            with suppress(OSError):
                empty.rmdir()


def _shown(name: str) -> str:
    return ascii(name) if not name.isprintable() else repr(name)
