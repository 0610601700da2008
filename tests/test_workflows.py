"""The workflows on GitHub run fixed versions of others' actions, and test before they publish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parent.parent / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path):
    """A tag may be moved to other code, a commit may not."""
    lines = re.findall(r"uses: (.+)", path.read_text("utf-8"))
    assert lines
    for line in lines:
        pinned = re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
        assert pinned or line.startswith("./.github/workflows/"), line


def test_one_action_has_one_version():
    lines = {
        line for path in WORKFLOWS for line in re.findall(r"uses: (.+)", path.read_text("utf-8"))
    }
    assert len({line.partition("@")[0] for line in lines}) == len(lines)


def jobs(name):
    """Return the text of every job of a workflow, by its name."""
    (text,) = [path.read_text("utf-8") for path in WORKFLOWS if path.name == name]
    parts = re.split(r"^  ([a-z]+):\n", text.partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_nothing_is_published_untested():
    publish, tests = jobs("publish.yml"), jobs("tests.yml")
    assert publish["tests"].split() == ["uses:", "./.github/workflows/tests.yml"]
    assert "needs: [tests, check]" in publish["publish"]
    for job, command in (("test", "make test\n"), ("lowest", "make test-lowest\n")):
        assert f"run: {command}" in tests[job]
        assert "if:" not in tests[job]
