"""Kept results say who made them, and a new one does too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduction.provenance import kept_by, made_by

RESULTS = Path(__file__).parents[2] / "reproduction" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_kept_result_names_its_command_commit_and_machine(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["command"].startswith("python -m reproduction.")
    assert "--out " in found["command"]
    assert found["commit"]
    assert found["machine"]


def test_a_command_is_told_without_folders_and_commit(tmp_path):
    out = tmp_path / "found.json"
    given = ["mnist", "--data", "/a", "--out", str(out), "--commit", "abc", "--only", "2,0.1,4"]
    made = made_by("reproduction.x", given, out, "cpu", "abc")
    assert made == {
        "command": "python -m reproduction.x mnist --out found.json --only 2,0.1,4",
        "commit": "abc",
        "machine": "a processor",
    }
    asked = made_by("reproduction.x", [], out, "cpu")["commit"]
    assert asked == "not recorded" or len(asked) == 40
    assert kept_by("a.json", made) == f"a.json: `{made['command']}`; commit abc; a processor."
    assert "not recorded" in kept_by("a.json", {})
    twice = kept_by("a.json", made | {"continued": [made | {"commit": "def"}]})
    assert twice.endswith(f"; continued by `{made['command']}`; commit def; a processor.")
