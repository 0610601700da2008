"""The templates of sentences, pages, screens and cards, and what they may call.

Those of pages are escaped throughout and share one style; all fail on an undefined name.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from io import StringIO
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from seepage.auditing.findings import WIDEST
from seepage.auditing.report import words
from seepage.core.result import NOTICE
from seepage.tables.names import counted, escaped, shown

_FILTERS = (
    "number count plain short sentence markdown protection in_100 percent rate share at_most "
    "at_least bits interval"
)
_CALLED = (
    "relative_error count_over find_limit inverse row_name say_error error_said spread_kept "
    "spread_kept_of"
)


def render(name: str, **values: Any) -> str:
    """Return a text from the template of this name."""
    return environment().get_template(name).render(**values)


def tell(what: str, *about: Any) -> str:
    """Return the paragraph of this name among the sentences; line breaks become spaces."""
    paragraph = getattr(environment().get_template("sentences.j2").module, what)
    return re.sub(r"\s*\n\s*", " ", paragraph(*about)).strip()


@cache
def environment() -> Environment:
    """Return what templates are made in."""
    made = Environment(
        autoescape=lambda name: name is not None and ".html" in name,  # noqa: S701 - cards, screens
        loader=FunctionLoader(read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {name: getattr(words, name) for name in _FILTERS.split()}
    made.filters |= {"shown": shown, "escaped": escaped, "trusted": trusted, "table": table}
    made.globals |= {name: getattr(words, name) for name in _CALLED.split()}
    made.globals |= {"counted": counted, "notice": NOTICE, "widest": WIDEST}
    made.globals["style"] = trusted(read_template("style.css"))
    return made


def trusted(text: str) -> Markup:
    """Mark our own style and script and matplotlib's SVG, which escapes its text itself."""
    return Markup(text)  # noqa: S704


def read_template(name: str) -> str:
    """Return the text of a file among the templates."""
    return (files("seepage.auditing.report") / "templates" / name).read_text("utf-8")


def table(rows: Iterable[Sequence[str]], heads: Sequence[str], indent: int = 2) -> str:
    """Return lines of cells below their heads, folded on a terminal and never cut elsewhere."""
    from rich.console import Console
    from rich.table import Table

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for head in heads:
        drawn.add_column(head, no_wrap=False, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    out = StringIO()
    Console(file=out, width=width - indent, markup=False, emoji=False, highlight=False).print(drawn)
    return "".join(f"{' ' * indent}{line}".rstrip() + "\n" for line in out.getvalue().splitlines())
