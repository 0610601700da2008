r"""Turns the formulas of a page into MathML while the site is built.

Browsers draw MathML themselves: the pages need no script and no font for it, and a screen reader
reads it. Write ``$…$`` in a sentence and ``$$…$$`` on lines of its own; the repository's viewer and
notebooks know these marks too. In a table, write ``\lvert x \rvert``: a bare ``|`` ends the cell.
"""

from __future__ import annotations

import html
import logging
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of a formula, in its generic form
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)
_log = logging.getLogger("mkdocs.hooks.typeset_formulas")


def typeset(tex: str, display: str = "inline") -> str:
    """Return a formula as MathML; a command that is not known is an error."""
    made = convert(tex, display=display)
    if unknown := re.search(r"\\[a-zA-Z]+", made):
        raise ValueError(f"{unknown[0]} in {tex!r} is not a known command")
    return made


def on_page_content(text: str, page: Any, **kwargs: Any) -> str:
    """Replace the formulas of a page; one that cannot be read is a warning and ends the build."""

    def made(formula: re.Match[str]) -> str:
        tag, tex = formula[1], html.unescape(formula[2]).strip()
        try:
            return typeset(tex, "block" if tag == "div" else "inline")
        except Exception as error:  # the library has many kinds
            _log.warning(f"{page.file.src_uri}: formula {tex!r}: {error}")
            return formula[0]

    return _FORMULA.sub(made, text)
