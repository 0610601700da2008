"""Writes the documentation's page of reproductions from the results, so that nobody types a number.

``python -m reproduction.page RESULTS DOCS`` reads ``RESULTS/NAME/result.json`` of every
experiment and writes ``DOCS/reproduction.md`` and the figures in ``DOCS/reproduction/``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from reproduction import EXPERIMENTS
from reproduction.outcome import Quantity, quantity_rows
from reproduction.reproducing import PNG, RESULT, write_whole
from seepage.errors import InputError

_LONG = 12  # rows of a table that a reader takes in at a glance
_HEAD = """\
# Tables and figures of the papers, made again

This page was written by a program from the results of `seepage reproduce all`; `make reproduce`
makes the results and the page again. `seepage reproduce --list` shows the names, and
`seepage reproduce NAME` makes one of them: from the data, or from kept results where the *Setting*
says that they were trained on an accelerator. Numbers that a paper prints stand beside what was
measured here. *Agrees* says whether the measured number, rounded like the printed one, is the
printed one. The [list of papers](papers.md) says which is which, and where this software differs.
"""


def write_page(results: Path, docs: Path) -> Path:
    """Write the page and copy its figures; refuse a quick result, and say which are missing."""
    made = [name for name in EXPERIMENTS if (results / name / RESULT).is_file()]
    if not made:
        raise InputError(f"There are no results in {results}; run `seepage reproduce all` first.")
    found = [_read(results / name / RESULT, name) for name in made]
    figures = {entry["name"]: (results / entry["name"] / PNG).read_bytes() for entry in found}
    page = docs / "reproduction.md"
    for name, picture in figures.items():
        write_whole(docs / "reproduction" / f"{name}.png", picture)
    write_whole(page, ("\n".join(_lines(found)) + "\n").encode())
    for left in (docs / "reproduction").glob("*.png"):  # of an experiment that is gone
        if left.stem not in figures:
            left.unlink()
    return page


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is broken; run `seepage reproduce {name}` again.") from error
    if found["quick"]:
        raise InputError(
            f"{path} is of a quick run, which is not for publication; run "
            f"`seepage reproduce {name}` without --quick."
        )
    return found


def _lines(found: list[dict[str, Any]]) -> Iterator[str]:
    yield _HEAD
    total = agreeing = 0
    for entry in found:
        judged = [q["agrees"] for q in entry["quantities"] if q["agrees"] is not None]
        total, agreeing = total + len(judged), agreeing + sum(judged)
    yield f"Of {total} printed numbers, {agreeing} agree.\n"
    yield "| name | paper | what it shows |"
    yield "|---|---|---|"
    for entry in found:
        yield (
            f"| [`{entry['name']}`](#{entry['name']}) | {entry['paper']}, {entry['place']} | "
            f"{entry['title']} |"
        )
    for entry in found:
        yield from _section(entry)
    made = {entry["name"] for entry in found}
    missing = [experiment for name, experiment in EXPERIMENTS.items() if name not in made]
    if missing:
        yield "\n## Not made yet\n"
        yield "What these need was not at hand when the page was written:\n"
        for experiment in missing:
            where = f"paper {experiment.paper}, {experiment.place}"
            yield f"- `{experiment.name}`: {experiment.title} ({where})"


def _section(entry: dict[str, Any]) -> Iterator[str]:
    name = entry["name"]
    yield f"\n## {name}\n"
    yield f"**{entry['title']}** (paper {entry['paper']}, {entry['place']}).\n"
    yield f"![{_inline(entry['alternative'])}](reproduction/{name}.png)\n"
    yield f"{_inline(entry['seen'])}\n"
    yield f"*Setting.* {_inline(entry['setting'])}\n"
    yield from _table([Quantity.from_json(q) for q in entry["quantities"]])


def _table(quantities: list[Quantity]) -> Iterator[str]:
    """Yield a table; a long one that has nothing to compare is folded up."""
    head, *rows = quantity_rows(quantities)
    if len(rows) > _LONG and len(head) == 2:
        yield f"<details><summary>{len(rows)} numbers</summary>"
        yield f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>"
        for row in rows:
            yield f"<tr>{_cells('td', row)}</tr>"
        yield "</tbody></table></details>"
        return
    yield f"| {' | '.join(head)} |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield f"| {' | '.join(map(_inline, row))} |"


def _cells(tag: str, row: tuple[str, ...]) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


def _inline(text: str) -> str:
    """Keep words from being read as Markdown."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")


def main(arguments: list[str]) -> int:
    """Write the page; answer bad input with one line."""
    if len(arguments) != 2:
        print("usage: python -m reproduction.page RESULTS DOCS", file=sys.stderr)
        return 2
    try:
        print(write_page(Path(arguments[0]), Path(arguments[1])))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
