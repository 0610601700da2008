"""Write files whole or not at all, readable by their owner only: they hold per-record numbers."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

Writer = Callable[[BinaryIO], object]

# The end of a name that nobody else gives a file: what a killed writer left can be told by it.
HALF_WRITTEN = ".seepage-part"


def write_private(path: Path, write: Writer) -> None:
    """Let ``write`` fill a temporary file beside ``path`` (mode 0600), then rename it.

    What writers of the same file left there when they were killed is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_half_written(path)
    handle, temporary = _locked_temporary(path)
    try:
        # The lock goes with the handle, and with that only after the file has its name.
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


def remove_half_written(path: Path) -> None:
    """Remove what killed writers of ``path`` left beside it; those at work keep theirs."""
    ours = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}" + re.escape(HALF_WRITTEN))
    for left in path.parent.iterdir() if path.parent.is_dir() else ():
        if ours.fullmatch(left.name) and left.is_file() and not left.is_symlink():
            with open_if_deserted(left) as deserted:
                if deserted:
                    left.unlink(missing_ok=True)


@contextmanager
def open_if_deserted(path: Path) -> Iterator[bool]:
    """Hold the lock of a file or folder while inside, if no living process holds it.

    The system lets go of a dead process's lock. Where there are no locks (on Windows) nothing is
    known to be deserted.
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


def _locked_temporary(path: Path) -> tuple[int, Path]:
    """Return a new file of the owner's alone, whatever the umask, which nobody takes for left."""
    while True:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=HALF_WRITTEN
        )
        if fcntl is None:
            return handle, Path(name)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # not removed by another before it was locked
            return handle, Path(name)
        os.close(handle)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Wait until no other process or thread is in here for the same path.

    For those who read a file, add to it and write it back. The lock is on a hidden file beside
    ``path``, which stays there; the system lets go of it when a process dies. Without such locks
    (on Windows) nobody waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
