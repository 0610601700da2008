"""How figures are kept: as JSON, with the command, the commit and the machine that made them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]


def made_here(device: str = "cpu") -> dict[str, Any]:
    """Return the provenance of figures made now."""
    return {**made_by(), "machine": _machine(device)}


def made_by() -> dict[str, str]:
    """Return command and commit; a + after the latter marks uncommitted changes."""
    words = [str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]]
    return {
        "command": " ".join(["python", *words]),
        "commit": _COMMIT,
    }


def keep(figures: dict[str, Any], path: Path, device: str = "cpu") -> None:
    """Write figures, preceded by their provenance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"made": made_here(device), **figures}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")


def _machine(device: str) -> dict[str, Any]:
    if device.startswith("cuda"):
        return {"device": torch.cuda.get_device_name(device)}
    found = Path("/proc/cpuinfo")
    lines = found.read_text("utf-8").splitlines() if found.exists() else []
    named = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    name = named[0] if named else platform.processor() or platform.machine()
    return {"device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def _git(*words: str) -> str:
    """Return git's answer, or "?" outside a clone."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return "?"
    return done.stdout.strip()


# As a benchmark starts: the code may have changed when a long one ends.
_COMMIT = _git("rev-parse", "--short", "HEAD") + "+" * bool(_git("diff", "HEAD", "*.py"))
