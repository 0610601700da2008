"""Draw sentences that people read, for an editor to judge.

    python docs/draw_sentences.py --seed 1 --count 100

Sentences come from the README, the documentation's prose, docstrings, messages (errors, warnings
and findings), the report's templates and the command line's help. Every sentence has the same
chance. Each is printed with its file and line. The last lines count how often the literature's
terms occur in the README and the documentation.

The editor gives each sentence one mark. *Print*: it can be published. *Light*: a word, a comma or
an article should change. *Rewrite*: a reader of that page would misunderstand it or need to read it
twice, it states something false, uses a private word for an idea that has a name, or must be
restructured before it can be published. At most 5 of 100 may be marked *rewrite*. The editor did
not write the sentences and reads each in its place.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
TERMS = (
    "membership inference",
    "attribute inference",
    "reconstruction",
    "property inference",
    "threat model",
    "privacy budget",
    "confidence interval",
    "baseline",
    "GDPR",
)
_ENDS = re.compile(r"(?<=[.!?])[”\"')\]*]*\s+(?=[A-Z`*“\"(\[‖ηδσθ{])")
_NO_PROSE = re.compile(r"^\s*([|>#<]|!\[|\.\. |\$ |:::|\[\^)")
_MARKS = re.compile(r"<[^>]+>|\{%.*?%\}|\{#.*?#\}", re.DOTALL)

Sentence = tuple[str, int, str]  # file, line, text


def sentences(text: str, file: str, line: int) -> Iterator[Sentence]:
    """Yield the sentences of a paragraph that have four words or more."""
    for each in _ENDS.split(" ".join(text.split())):
        if len(each.split()) >= 4 and sum(c.isalpha() for c in each) > 0.6 * len(each):
            yield file, line, each


def of_paragraphs(text: str, file: str, start: int = 1) -> Iterator[Sentence]:
    """Yield the sentences of paragraphs, without code, tables and headings."""
    fenced, began = False, start
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        quiet = fenced or not line.strip() or (bool(_NO_PROSE.match(line)) and not item)
        if quiet or item or line.strip().startswith(">>>") or set(line.strip()) <= set("-=~"):
            yield from sentences(" ".join(block), file, began)
            block = []
        if not quiet and not line.strip().startswith((">>>", "...")):
            began = began if block else number
            block.append(line[item.end() :] if item else line)


def of_module(path: Path, file: str) -> Iterator[Sentence]:
    """Yield the sentences of a module's docstrings and of its other strings that are prose."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                docs.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield from _of_docstring(text, file, node.body[0].lineno)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docs and id(node) not in inside:
                yield from _of_message(node.value, file, node.lineno)
        elif isinstance(node, ast.JoinedStr):
            parts = [
                part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values
            ]
            yield from _of_message("".join(map(str, parts)), file, node.lineno)


def _of_docstring(text: str, file: str, line: int) -> Iterator[Sentence]:
    """Yield a docstring's sentences, without indented formulas and doctests."""
    lines, kept, formula = text.splitlines(), [], False
    for each, following in zip(lines, [*lines[1:], ""], strict=True):
        depth = len(each) - len(each.lstrip())
        if each.strip() and depth == 0:
            formula = False
        names_parameter = re.fullmatch(r"[\w*, ]+", each) and following.startswith("    ")
        kept.append("" if formula or names_parameter else each.strip())
        formula = formula or each.rstrip().endswith("::")  # an indented block follows
    yield from of_paragraphs("\n".join(kept), file, line)


def _of_message(text: str, file: str, line: int) -> Iterator[Sentence]:
    """Yield the sentences of a string that reads as one: a capital first, a full stop somewhere."""
    if re.match(r"\s*[A-Z{“]", text) and re.search(r"[a-z}”)][.:!?](\s|$)", text):
        yield from sentences(text, file, line)


def every_sentence() -> list[Sentence]:
    """Return every sentence of the repository that its readers see."""
    found: list[Sentence] = []
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        found += of_paragraphs(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "src").rglob("*.py")):
        found += of_module(path, str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "src").rglob("*.j2")):
        text = _MARKS.sub("\n", path.read_text("utf-8"))
        found += of_paragraphs(text, str(path.relative_to(ROOT)))
    return list(dict.fromkeys(found))


def main() -> None:
    """Print the sample, then the count of the literature's terms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    found = every_sentence()
    drawn = np.random.default_rng(given.seed).choice(len(found), given.count, replace=False)
    for number, (file, line, text) in enumerate((found[k] for k in drawn), 1):
        print(f"{number}. [{file}:{line}] {text}")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    words = " ".join(path.read_text("utf-8").lower() for path in pages)
    print(f"\nof {len(found)} sentences; in README and docs:")
    print(", ".join(f"{term} {words.count(term.lower())}" for term in TERMS))


if __name__ == "__main__":
    main()
