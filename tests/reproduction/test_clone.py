"""The papers are in a clone of the repository, and in no installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = "from seepage.cli import main; import sys; sys.argv = ['seepage', 'reproduce', {}]; main()"


def ask(what: str, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``seepage reproduce WHAT`` with the package in ``source`` from another folder."""
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", ASK.format(repr(what))],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )


def test_a_clone_has_the_papers_wherever_it_is_asked_from(tmp_path):
    done = ask("--list", ROOT / "src", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fil-table1" in done.stdout


@pytest.mark.parametrize("what", ["--list", "fil-table1", "all"])
def test_elsewhere_one_sentence_says_where_they_are(what, tmp_path):
    installed = tmp_path / "lib" / "site-packages"
    shutil.copytree(
        ROOT / "src" / "seepage",
        installed / "seepage",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    done = ask(what, installed, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: The papers' tables and figures are in seepage's repository, not in the "
        "installed package: clone the repository and run `seepage reproduce` or `make reproduce` "
        "there.\n"
    )
