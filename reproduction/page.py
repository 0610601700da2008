"""Writes the documentation's reproduction pages from results, so that nobody types a number.

``python -m reproduction.page RESULTS DOCS`` reads ``RESULTS/NAME/result.json`` of every
experiment and writes ``DOCS/reproduction/index.md``, beside it the pages of every paper with their
figures, and the results they were written from.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction import EXPERIMENTS, PAPERS, Experiment
from reproduction.claims import CLAIMS
from reproduction.outcome import AGREES, KINDS, VERDICTS, Quantity, reasons
from reproduction.reproducing import PNG, RESULT, write_whole
from seepage.errors import InputError

_UP = "../../"  # from a page to the repository
_OF_A_RUN = ("seconds", "processor_seconds", "versions")  # differ where the numbers do not
_FILE = re.compile(r"(?:reproduction|benchmarks)/[\w*/.-]+\.(?:py|json)")
_HEAD = """\
# Reproductions of the papers

These pages reproduce tables and figures of the [four papers](../papers.md) and compare printed
with measured numbers. A measured number *agrees* if it rounds to the printed number. A number
*differs* only if data, split, training and units are the paper's; if these are not known, or errors
are too large, the number is *undecided*. Notes, numbered in brackets, state the reason and link the
computation or kept runs. Numbers are results unless marked as a count or a setting (fixed by the
set-up or an algorithm's goal).

`seepage reproduce --list` lists all names. `seepage reproduce NAME` runs one experiment, from the
data or, if the *Setting* states this, from kept results; `--json` prints numbers, kinds and
verdicts. `make reproduce` runs all experiments and writes these pages.
"""


def write_pages(results: Path, docs: Path) -> Path:
    """Write the index and the pages of every paper; return the index.

    Quick results are refused, and numbers that differ from the printed ones without a reason.
    An experiment without a new result (its data are not at hand, say) keeps the one beside its
    page, and so does one whose new result differs only in its times, its versions or the last
    digits, which depend on the machine. Experiments that have no result at all are named.
    """
    home = docs / "reproduction"
    new = [name for name in EXPERIMENTS if (results / name / RESULT).is_file()]
    if not new:
        raise InputError(f"There are no results in {results}; run `seepage reproduce all` first.")
    files = {}
    for name in EXPERIMENTS:
        earlier = home / f"{name}.json"
        if name in new:
            files[name] = results / name / RESULT, results / name / PNG
            if earlier.is_file() and _alike(_read(files[name][0], name), _json(earlier)):
                files[name] = earlier, files[name][1]
        elif earlier.is_file():
            files[name] = earlier, home / f"{name}.png"
    found = {name: _read(result, name) for name, (result, _) in files.items()}
    written = {}
    for name, (result, picture) in files.items():
        written[home / f"{name}.png"] = picture.read_bytes()
        written[home / f"{name}.json"] = result.read_bytes()
    for page in {experiment.page for experiment in EXPERIMENTS.values()}:
        own = {name: entry for name, entry in found.items() if EXPERIMENTS[name].page == page}
        if own:
            written[home / f"{page}.md"] = _bytes(_page(own))
    written[home / "index.md"] = _bytes(_index(found))
    for path, content in written.items():
        write_whole(path, content)
    for left in home.glob("*.*"):  # of an experiment that was removed
        if left.suffix in (".png", ".json", ".md") and left not in written:
            left.unlink()
    return home / "index.md"


def _bytes(lines: Iterator[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


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
    for quantity in _quantities(found):
        if not quantity.settled:
            raise InputError(
                f"{quantity.name!r} of {name} is {quantity.measured} where the paper prints "
                f"{quantity.printed}, and no computation says why; name it in the reason."
            )
    return found


def _json(path: Path) -> Any:
    """Return the content of a file, or nothing if it is broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def _alike(one: Any, other: Any) -> bool:
    """Return whether two results have the same words, and the same numbers to six digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {*one, *_OF_A_RUN} == {*other, *_OF_A_RUN} and all(
            key in _OF_A_RUN or _alike(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


def _quantities(entry: dict[str, Any]) -> list[Quantity]:
    return [Quantity.from_json(q) for q in entry["quantities"]]


def _index(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield _HEAD
    yield f"{_count(found.values())}\n"
    yield "|paper|printed|agree: results|counts|settings|differ|undecided|not available here|"
    yield "|---|" + "---:|" * 7
    for paper in sorted({EXPERIMENTS[name].paper for name in found}):
        own = {name: entry for name, entry in found.items() if EXPERIMENTS[name].paper == paper}
        topics = {EXPERIMENTS[name].page: EXPERIMENTS[name].topic for name in own}
        links = [
            f"[{topic or PAPERS[paper].topic}]({page}.md)"
            for page, topic in sorted(topics.items(), key=lambda pair: pair[1])
        ]
        cells = "|".join(map(str, _tally(own.values())))
        yield f"|{paper}: {', '.join(links)}|{cells}|"
    yield "\nBy name:"
    yield from (f"[`{name}`]({EXPERIMENTS[name].page}.md#{name})" for name in found)
    missing = [experiment for name, experiment in EXPERIMENTS.items() if name not in found]
    if missing:
        yield "\n## Not made yet\n"
        yield "The data for these were not available when the pages were written:\n"
        for experiment in missing:
            where = f"{experiment.paper}, {experiment.place}"
            yield f"- `{experiment.name}`: {experiment.title} ({where})"


def _tally(entries: Any) -> list[int]:
    """Return how many numbers are printed, agree by kind, and have each other verdict."""
    judged = [q for entry in entries for q in _quantities(entry) if q.printed is not None]
    agreeing = [sum(q.verdict == AGREES and q.kind == kind for q in judged) for kind in KINDS]
    others = [sum(q.verdict == verdict for q in judged) for verdict in VERDICTS[1:]]
    return [len(judged), *agreeing, *others]


def _count(entries: Any) -> str:
    printed, *rest = _tally(entries)
    by_kind, others = rest[: len(KINDS)], rest[len(KINDS) :]
    agree = sum(by_kind)
    words = f"Of {printed} printed numbers, {agree or 'none'} agree{'s' * (agree < 2)}"
    if any(by_kind[1:]):
        kinds = [f"{n} {kind}{'s' * (n > 1)}" for n, kind in zip(by_kind, KINDS, strict=True) if n]
        words += f" ({', '.join(kinds)})"
    said = ("differs" if others[0] == 1 else "differ", "undecided", "not available here")
    left = [f"{n} {word}" for n, word in zip(others, said, strict=True) if n]
    return f"{words}; {', '.join(left)}." if left else f"{words}."


def _page(own: dict[str, dict[str, Any]]) -> Iterator[str]:
    first = EXPERIMENTS[next(iter(own))]
    paper = PAPERS[first.paper]
    yield f"# {first.paper}: {first.topic or paper.topic}\n"
    title = "the paper" if first.topic else f"*{paper.title}*"  # on a paper's first page
    yield f"This page reproduces [{title}]({paper.address}) ([all papers](index.md))."
    yield _count(own.values())
    if not first.topic:
        yield from ("", *CLAIMS[first.paper].lines())
    settings: dict[str, str] = {}
    for name, entry in own.items():
        yield from _section(EXPERIMENTS[name], entry, settings)
        settings[name] = entry["setting"]


def _section(
    experiment: Experiment, entry: dict[str, Any], settings: Mapping[str, str]
) -> Iterator[str]:
    name = experiment.name
    yield f"\n## {name}\n"
    links = f"[numbers]({name}.json), [code]({_UP}{experiment.code})"
    yield f"**{experiment.title}** ({experiment.place}; {links}).\n"
    # The figure's own description has numbers too; here the sentences below it give them.
    short = re.split(r"[.:;] | \(", entry["alternative"])[0]
    yield f"![{_inline(short)}]({name}.png)\n"
    yield f"{_inline(entry['seen'])}\n"
    kept = f" Based on [kept results]({name}.json)." * bool(entry["kept"])
    yield f"*Setting.* {_setting(entry['setting'], settings)}{kept}\n"
    yield from _table([q for q in _quantities(entry) if q.printed is not None])


def _setting(words: str, before: Mapping[str, str]) -> str:
    """Return a setting; one that an earlier section of the page has as a part is not repeated."""
    sentences = words.removesuffix(".").split(". ")
    for name, other in before.items():
        known = other.removesuffix(".").split(". ")
        if set(known) <= set(sentences):
            own = [f"{_inline(one)}. " for one in sentences if one not in known]
            return f"{''.join(own)}{'Otherwise as' if own else 'As'} for [{name}](#{name})."
    return _inline(words)


def _table(quantities: Sequence[Quantity]) -> Iterator[str]:
    """Yield printed beside measured numbers, and the reasons; the others are in the results."""
    if not quantities:
        return
    said = reasons(quantities)
    crossed = _crossed(quantities)
    if crossed:
        columns = [name.rpartition(": ")[2] for name in crossed[0]]
        yield f"|printed / measured|{'|'.join(map(_inline, columns))}|"
        yield "|---|" + "---:|" * len(columns)
        for row in crossed:
            cells = "|".join(_cell(quantity, said) for quantity in row.values())
            yield f"|{_inline(next(iter(row)).rpartition(': ')[0])}|{cells}|"
        yield ""
    left = [q for q in quantities if not any(q.name in row for row in crossed)]
    if left:
        yield "|quantity|printed / measured|\n|---|---:|"
        yield from (f"|{_inline(q.name)}|{_cell(q, said)}|" for q in left)
        yield ""
    for k, reason in enumerate(said, start=1):
        yield f"{k}. {_inline(reason)}"
    yield ""


def _crossed(quantities: Sequence[Quantity]) -> list[dict[str, Quantity]]:
    """Return the rows of a table of several columns: quantities named ``row: column``."""
    rows: dict[str, dict[str, Quantity]] = {}
    for quantity in quantities:
        rows.setdefault(quantity.name.rpartition(": ")[0], {})[quantity.name] = quantity
    alike: dict[tuple[str, ...], list[dict[str, Quantity]]] = {}
    for row in rows.values():
        alike.setdefault(tuple(name.rpartition(": ")[2] for name in row), []).append(row)
    return next(
        (found for columns, found in alike.items() if min(len(columns), len(found)) > 2), []
    )


def _cell(quantity: Quantity, said: Sequence[str]) -> str:
    """Return the printed number, the measured one, and the kind unless it is a result.

    A number in brackets names the reason.
    """
    _, printed, measured, _, kind, _ = quantity.cells()
    measured += f", {kind}" * (kind != KINDS[0])
    why = f" ({said.index(quantity.reason) + 1})" if quantity.reason else ""
    return f"{printed.replace('/', ' or ')} / {measured}{why}"


def _inline(text: str) -> str:
    """Escape words for Markdown, except code; code that names a file is linked.

    Names with a star stand for several files; their folder is linked.
    """
    parts = text.replace("|", "\\|").split("`")
    for k, part in enumerate(parts):
        if k % 2 == 0:
            parts[k] = part.replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
        elif _FILE.fullmatch(part):
            place = part.rpartition("/")[0] if "*" in part else part
            parts[k] = f"[`{part}`]({_UP}{place})"
        else:
            parts[k] = f"`{part}`"
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the pages; answer bad input with one line."""
    if len(arguments) != 2:
        print("usage: python -m reproduction.page RESULTS DOCS", file=sys.stderr)
        return 2
    try:
        print(write_pages(Path(arguments[0]), Path(arguments[1])))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
