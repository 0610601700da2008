"""How a page is made of its template: escaped throughout, in one style, with nothing missing."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from seepage.auditing.report.words import count, number, plain, protection, sentence, short
from seepage.tables.names import counted


def render_template(name: str, **values: Any) -> str:
    """Return a page from the template of that name."""
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(read_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "count": count,
        "plain": plain,
        "short": short,
        "sentence": sentence,
        "protection": protection,
        "trusted": trusted,
    }
    environment.globals |= {"counted": counted, "style": trusted(read_template("style.css"))}
    return environment.get_template(name).render(**values)


def trusted(text: str) -> Markup:
    """Mark our own style and script and matplotlib's SVG, which escapes its text itself."""
    return Markup(text)  # noqa: S704


def read_template(name: str) -> str:
    """Return the text of a file among the templates."""
    return (files("seepage.auditing.report") / "templates" / name).read_text("utf-8")
