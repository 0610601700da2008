"""The lists of versions: hashes of what CI installs, and the oldest versions that are allowed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

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


@pytest.mark.parametrize("name", ["lock.txt", "lowest.txt"])
def test_no_registry_is_named(name):
    assert "://" not in (ROOT / name).read_text("utf-8")


def test_the_oldest_versions_allowed_are_those_that_make_test_lowest_installs():
    """A floor that cannot be installed beside the others would not be tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    left_out = {"lint", "docs", "release", "flower"}
    named = [line for extra, lines in extras.items() if extra not in left_out for line in lines]
    wanted = [Requirement(line) for line in (*project["dependencies"], *named)]
    lowest, constrained = pins("lowest.txt"), pins("constraints.txt")
    for requirement in wanted:
        if requirement.name == "seepage":
            continue
        (floor,) = requirement.specifier
        assert floor.operator == ">="
        found = Version(lowest[requirement.name][0])
        assert found == Version(floor.version), f"{requirement}: {found} (run make lock)"
    # Flower asks for younger versions of others; its own oldest is that of the other list.
    (flower,) = Requirement(extras["flower"][1]).specifier
    assert Version(constrained["flwr"][0]).release[:2] == Version(flower.version).release
    assert "flwr" not in lowest
