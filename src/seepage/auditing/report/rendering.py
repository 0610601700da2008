"""Renders audits with templates, as sentences, pages, terminal output, JSON and folders.

Page templates are escaped throughout and share one style; an undefined name is an error in all
templates.
"""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import typer
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import seepage.auditing.report.words as words
from seepage.auditing.findings import OVER_ALL, RELEASED_OR_NOT, WIDEST
from seepage.auditing.report.figures import Drawing
from seepage.auditing.report.words import MANY, ONE, Verdict
from seepage.core.result import NOTICE, round_down, round_up
from seepage.errors import InputError
from seepage.support.files import whole_folder, write_text
from seepage.support.text_table import text_table
from seepage.tables.names import counted, escaped, shown

TEMPLATES = files("seepage.auditing.report") / "templates"

_FILTERS = (
    "number plain short markdown protection in_100 percent bits interval several called quoted "
    "capital level_error"
)
_CALLED = (
    "relative_error count_over find_limit say_error error_at spread_kept spread_kept_of number_of "
    "whom tried"
)


def render(name: str, **values: Any) -> str:
    """Return the text of the template ``name``."""
    return environment().get_template(name).render(**values)


def tell(what: str, *about: Any, of: str = "sentences.j2") -> str:
    """Return the paragraph ``what`` of the template file ``of``; line breaks become spaces."""
    paragraph = getattr(environment().get_template(of).module, what)
    return re.sub(r"\s*\n\s*", " ", paragraph(*about)).strip()


@cache
def environment() -> Environment:
    """Return the template environment."""
    made = Environment(
        autoescape=lambda name: name is not None and ".html" in name,  # noqa: S701 - cards, screens
        loader=FunctionLoader(lambda name: (TEMPLATES / name).read_text("utf-8")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # folding constants takes longer than it saves
    )
    made.filters |= {name: getattr(words, name) for name in _FILTERS.split()}
    made.filters |= {"count": "{:,.0f}".format, "one": ONE.get, "many": MANY.get}
    made.filters["at_most"] = partial(words.coarse, rounded=round_up)
    made.filters["at_least"] = partial(words.coarse, rounded=round_down)
    made.filters["rate"] = lambda share: f"{100 * share:.1f} %"
    # Of a prior's width, which is never all kept
    made.filters["share"] = lambda kept: words.number(kept) if kept < 0.9995 else "more than 0.999"
    # A sentence may quote names, which may make it far too long.
    made.filters["sentence"] = lambda text, width=2000: words.short(text, width)
    # Our own style and script, and matplotlib's SVG, which escapes its text itself
    made.filters["trusted"] = Markup
    made.filters |= {"shown": shown, "escaped": escaped, "table": partial(text_table, indent=2)}
    made.globals |= {name: getattr(words, name) for name in _CALLED.split()}
    made.globals |= {"counted": counted, "notice": NOTICE, "widest": WIDEST, "over_all": OVER_ALL}
    made.globals["released_or_not"] = RELEASED_OR_NOT
    return made


class Report(ABC):
    """The report of an audit of any kind; its parts are computed on demand."""

    verdict: Verdict
    screen: str  # the template of what a terminal shows

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the findings for JSON, without per-record findings."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return the context of the terminal template."""

    @abstractmethod
    def page(self, figures: tuple[Drawing, ...]) -> str:
        """Return the page."""

    @abstractmethod
    def write_records(self, folder: Path) -> None:
        """Write the table of single records into a folder."""

    def figures(self) -> tuple[Drawing, ...]:
        """Return the figures of the page."""
        return ()

    def texts(self) -> Mapping[str, str]:
        """Return additional texts for the folder, by file name."""
        return {}

    def write(self, out: str | os.PathLike[str], keep: Sequence[Path] = ()) -> Path:
        """Write the report into the folder ``out`` and return the path of its page.

        The folder contains ``report.html``, ``summary.json``, a table of single records, any
        figures and additional texts, and ``manifest.json``, which lists them; only their owner can
        read them. All contents are computed before anything is written. An earlier report in the
        folder is replaced in one step; a folder with other content raises an error. ``keep`` lists
        the input files, which must not change.
        """
        out, figures = Path(out), self.figures()
        texts = {f"figures/{figure.name}.svg": figure.file for figure in figures}
        texts |= {"summary.json": json_text(self.summary()), "report.html": self.page(figures)}
        texts |= self.texts()
        try:
            with whole_folder(out, "report", keep) as folder:
                self.write_records(folder)
                for name, text in texts.items():
                    write_text(folder / name, text)
        except OSError as error:
            raise InputError(
                f"The report cannot be written to {out.name!r}: {error.strerror or error}; no "
                "files were left behind. Choose another folder."
            ) from error
        return out / "report.html"

    def tell(self, page: Path | None, *, as_json: bool, private: str | None = None) -> bool:
        """Print the main findings, or JSON; return whether every limit is met.

        With JSON, exceeded limits are listed on standard error. ``private`` names the data values
        that the report shows, if any.
        """
        if as_json:
            typer.echo(json_text(self.summary()), nl=False)
        else:
            screen = render(self.screen, verdict=self.verdict, page=page, **self.about())
            typer.echo(screen, nl=False)
        if private is not None:
            typer.echo(f"warning: the report shows {private}; do not share it.", err=True)
        for gate, text in self.verdict.gates if as_json else ():
            if not gate.passed:
                typer.echo(f"over the limit {gate.name}: {text}", err=True)
        return self.verdict.passed


def json_text(summary: Mapping[str, Any]) -> str:
    """Return a summary as JSON text that ends in a newline; non-finite numbers are ``null``."""
    return json.dumps(to_plain(summary), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def to_plain(value: Any) -> Any:
    """Return plain JSON values; non-finite numbers become ``None``."""
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
