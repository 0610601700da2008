"""Write files whole or not at all, readable by their owner only: they hold per-record numbers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_private(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path`` (mode 0600), then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp creates its file for the owner alone, whatever the umask.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
