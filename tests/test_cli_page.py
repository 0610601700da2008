"""The reference of the command line is what the program says of itself."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from make_cli_page import PAGE, page


def test_the_page_of_the_command_line_is_fresh():
    assert PAGE.read_text("utf-8") == page(), "run: make cli-page"


def test_the_page_has_every_command_and_option():
    shown = page()
    for command in (
        "audit",
        "release",
        "columns",
        "calibrate",
        "explain",
        "layers",
        "reproduce",
        "demo",
    ):
        assert f"\n## seepage {command}\n" in shown
    for command in ("list", "where", "fetch"):
        assert f"\n### seepage data {command}\n" in shown
    assert "| `--encoding` | `TEXT` | A text file's encoding, such as cp1252. |" in shown
    assert "(default `refuse`)" in shown
    assert "None" not in shown
