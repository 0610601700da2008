"""Count the lines of code in src/: neither blank, nor comment, nor docstring.

``python benchmarks/lines_of_code.py`` prints the count of each room, with ``--files`` of each file.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "seepage"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines_of_code(text: str) -> int:
    r"""Return how many lines of a module hold code.

    >>> lines_of_code('"About."\n\n# why\nx = 1  # one\n')
    1
    """
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            code.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(code)


def main() -> None:
    """Print the counts."""
    counts: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE)
        name = str(inside) if "--files" in sys.argv[1:] else inside.parts[0]
        counts[name] += lines_of_code(path.read_text("utf-8"))
    for name, count in counts.most_common():
        print(f"{count:7,}  {name}")
    print(f"{counts.total():7,}  in all")


if __name__ == "__main__":
    main()
