"""Write files whole or not at all, readable by their owner only: they hold per-record numbers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

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
