"""The lock file: hashes for what CI installs, of the versions that the constraints name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def pins(name):
    lines = (ROOT / name).read_text("utf-8").replace("\\\n", " ").splitlines()
    found = [line.split() for line in lines if line and not line.startswith("#")]
    return {
        re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower(): (pin.partition("==")[2], hashes)
        for pin, *hashes in found
    }


def test_every_locked_package_has_its_constrained_version_and_hashes():
    locked, constrained = pins("lock.txt"), pins("constraints.txt")
    assert len(locked) > 100
    for name, (version, hashes) in locked.items():
        assert version == constrained[name][0], f"{name}: run make lock"
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", h) for h in hashes)
    # A build of one machine has other hashes than those of the index.
    assert "torch" not in locked


def test_no_registry_is_named():
    assert "://" not in (ROOT / "lock.txt").read_text("utf-8")
