"""Write the reference of the command line from the program itself: ``make cli-page``."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import typer

from seepage.cli import app

PAGE = Path(__file__).parent / "api" / "command-line.md"
_HEAD = """\
# The command line

`seepage COMMAND --help` prints the same text.

| exit status | meaning |
|---|---|
| 0 | success, all limits met |
| 1 | a limit is exceeded |
| 2 | bad input; one line on standard error |
| 3 | internal failure |

## Shared options
"""


def page() -> str:
    """Return the page: options of several commands first, then every command with its own."""
    program = typer.main.get_command(app)
    takers: dict[str, list[str]] = {}
    for name, command in _all(program, "seepage"):
        rows = [*map(_argument, _arguments(command)), *map(_row, _options(command))]
        for row in rows:
            takers.setdefault(row, []).append(name.removeprefix("seepage "))
    shared: dict[tuple[str, ...], list[str]] = {}
    for row, names in takers.items():
        if len(names) > 1:
            shared.setdefault(tuple(names), []).append(row)
    lines = [_HEAD]
    for names, rows in shared.items():
        lines += [f"For {', '.join(f'`{name}`' for name in names)}:\n", *rows, ""]
    own = {row for row, names in takers.items() if len(names) == 1}
    for name, command in _all(program, "seepage"):
        lines += _command(command, name, own)
    return "\n".join(lines)


def _all(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and those below it, by the names people type."""
    yield name, command
    for under, each in getattr(command, "commands", {}).items():
        yield from _all(each, f"{name} {under}")


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option"]


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "argument"]


def _command(command: Any, name: str, own: Set[str]) -> Iterator[str]:
    """Yield what a command does, and what it alone takes."""
    yield f"## {name}\n" if name.count(" ") < 2 else f"### {name}\n"
    for paragraph in _paragraphs(command):
        yield f"{paragraph}\n"
    arguments = _arguments(command)
    rows = [_row(p) for p in _options(command)]
    words = [name, *(_placeholder(p) for p in arguments)]
    words += ["COMMAND"] * hasattr(command, "commands") + ["[OPTIONS]"] * bool(rows)
    yield f"`{' '.join(words)}`\n"
    for argument in arguments:
        if _argument(argument) in own:
            yield _argument(argument).removeprefix("- ") + "\n"
    mine = [row for row in rows if row in own]
    if mine:
        yield "\n".join([*mine, ""])


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(words.split()) for words in (command.help or "").split("\n\n")]


def _placeholder(parameter: Any) -> str:
    shown = parameter.name.upper()
    return shown if parameter.required else f"[{shown}]"


def _argument(parameter: Any) -> str:
    return f"- `{_placeholder(parameter)}`: {parameter.help}"


def _row(parameter: Any) -> str:
    names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.strip()]
    value = "" if parameter.is_flag else f" {parameter.type.name.upper()}"
    remarks = ["required"] * parameter.required
    if not parameter.is_flag and not parameter.required and parameter.default not in (None, ""):
        remarks.append(f"default `{parameter.default}`")
    words = parameter.help
    if remarks:
        stop = "." * words.endswith(".")
        words = f"{words.removesuffix('.')} ({', '.join(remarks)}){stop}"
    return f"- `{names[0]}{value}`: {words}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
