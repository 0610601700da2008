"""Where kept results come from: the command, the commit and the machine that made them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UNKNOWN = "not recorded"


def made_by(
    module: str, arguments: Sequence[str], out: Path, device: str, commit: str | None = None
) -> dict[str, str]:
    """Return the provenance of a file of results.

    The command is the one that repeats it, without folders of this machine; the commit is read from
    the repository unless given.
    """
    words = [out.name if word == str(out) else word for word in arguments]
    for option in {"--commit", "--data"} & set(words):  # of that machine, with their values
        place = words.index(option)
        del words[place : place + 2]
    return {
        "command": shlex.join(["python", "-m", module, *words]),
        "commit": commit or _commit(),
        "machine": _machine(device),
    }


def kept_by(name: str, found: Mapping[str, Any]) -> str:
    """State the provenance of kept results, in a line; of every command that added to them."""
    told = []
    for made in (found, *found.get("continued", ())):
        command, commit, machine = (made.get(k, UNKNOWN) for k in ("command", "commit", "machine"))
        told.append(f"`{command}`; commit {commit}; {machine}")
    return f"{name}: {'; continued by '.join(told)}."


def _commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or UNKNOWN


def _machine(device: str) -> str:
    if not device.startswith("cuda"):
        return "a processor"
    import torch

    return str(torch.cuda.get_device_name(device))
