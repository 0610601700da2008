"""The reference of the command line is what the program says of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from seepage.cli import app

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from make_cli_page import PAGE, _all, _row, page


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
    assert shown.count("- `--encoding TEXT`: A text file's encoding, such as cp1252.") == 1
    assert "(default `refuse`)" in shown
    for name, command in _all(typer.main.get_command(app), "seepage"):
        for option in command.params:
            if option.param_type_name == "option":
                assert _row(option) in shown, (name, option.opts)
    assert "None" not in shown
