"""Write files whole or not at all, readable by their owner only: they hold per-record numbers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

Writer = Callable[[BinaryIO], object]


def write_private(path: Path, write: Writer) -> None:
    """Let ``write`` fill a temporary file beside ``path`` (mode 0600), then rename it."""
    write_private_together({path: write})


def write_private_together(files: Mapping[Path, Writer]) -> None:
    """Do the same for several files, none of which appears before all have been written."""
    written: dict[Path, Path] = {}
    try:
        for path, write in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # mkstemp creates its file for the owner alone, whatever the umask.
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            written[path] = Path(name)
            with os.fdopen(handle, "wb") as file:
                write(file)
        for path, temporary in written.items():
            temporary.replace(path)
    except BaseException:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
        raise


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
