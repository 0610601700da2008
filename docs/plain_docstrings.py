"""Turns the little reStructuredText that docstrings hold into Markdown, for the reference pages."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Writes cross-references as code, and the ``::`` before a formula as a colon."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(":", text)
