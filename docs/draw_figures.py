"""Draw the figures of pages anew, by the code that stands on them: ``make figures``.

A page's code saves a figure under a name, and the page shows ``assets/`` and that name. Names of
pages after the command draw theirs alone: ``python docs/draw_figures.py docs/gallery.md``.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in a file, so that changes can be read

import matplotlib

DOCS = Path(__file__).parent
STYLE = {"svg.hashsalt": "seepage", "svg.fonttype": "none", "font.size": 9}
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Return the pages whose code saves figures."""
    return [page for page in sorted(DOCS.rglob("*.md")) if "savefig(" in page.read_text("utf-8")]


def draw(page: Path, folder: Path) -> list[Path]:
    """Run the code of a page in a folder; return the figures that it saved there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with matplotlib.rc_context(STYLE), redirect_stdout(io.StringIO()):
            exec("\n".join(CODE.findall(page.read_text("utf-8"))), {"__name__": "__main__"})  # noqa: S102
    finally:
        os.chdir(before)
    return sorted(folder.glob("*.svg"))


def main() -> None:
    """Draw the figures of the pages that are named, or of all."""
    matplotlib.use("svg")
    named = [Path(name).resolve() for name in sys.argv[1:]]
    for page in named or pages():
        with tempfile.TemporaryDirectory() as folder:
            for figure in draw(page, Path(folder)):
                # Lines without blanks at their ends, as everywhere else.
                lines = (line.rstrip() for line in figure.read_text("utf-8").splitlines())
                (DOCS / "assets" / figure.name).write_text("\n".join(lines) + "\n", "utf-8")
                print(f"docs/assets/{figure.name}")


if __name__ == "__main__":
    main()
