"""Write the reference of the command line from the program itself: ``make cli-page``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from seepage.cli import app

PAGE = Path(__file__).parent / "api" / "command-line.md"
_HEAD = """\
# The command line

*The program itself writes this page (`make cli-page`); `seepage COMMAND --help` prints the same.*

| exit status | meaning |
|---|---|
| 0 | done, and within the limits that were set |
| 1 | over one of the limits |
| 2 | bad input: one line on the standard error says what to do |
| 3 | seepage itself failed |
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_commands(typer.main.get_command(app), "seepage")])


def _commands(command: Any, name: str) -> Iterator[str]:
    """Yield what a command does and takes, and then the same of the commands below it."""
    yield f"## {name}\n" if name.count(" ") < 2 else f"### {name}\n"
    yield f"{' '.join(_paragraphs(command)[:1])}\n"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    below = getattr(command, "commands", {})
    words = [name, *(_placeholder(p) for p in arguments)]
    words += ["COMMAND"] * bool(below) + ["[OPTIONS]"] * bool(options)
    yield f"```bash\n{' '.join(words)}\n```\n"
    for paragraph in _paragraphs(command)[1:]:
        yield f"{paragraph}\n"
    if arguments:
        yield "| argument | meaning |\n|---|---|"
        yield from (f"| `{_placeholder(p)}` | {_cell(p.help)} |" for p in arguments)
        yield ""
    if options:
        yield "| option | value | meaning |\n|---|---|---|"
        yield from (_option(p) for p in options)
        yield ""
    for under, each in below.items():
        yield from _commands(each, f"{name} {under}")


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(words.split()) for words in (command.help or "").split("\n\n")]


def _placeholder(parameter: Any) -> str:
    shown = parameter.name.upper()
    return shown if parameter.required else f"[{shown}]"


def _option(parameter: Any) -> str:
    value = "" if parameter.is_flag else f"`{parameter.type.name.upper()}`"
    remarks = ["required"] * parameter.required
    if not parameter.is_flag and not parameter.required and parameter.default not in (None, ""):
        remarks.append(f"default `{parameter.default}`")
    meaning = _cell(parameter.help) + (f" ({', '.join(remarks)})" if remarks else "")
    names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.strip()]
    return f"| `{names[0]}` | {value} | {meaning} |"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
