"""Writes the description of the package: the README, whose links work away from the repository.

The repository's own viewer needs relative links, an index of packages absolute ones. The address
is ``Source`` of ``[project.urls]`` in ``pyproject.toml``, and stands nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^]]*\])\((?!https?:|mailto:|#)([^)\s]+)\)")


def absolute(text: str, source: str) -> str:
    """Return a page with links into the repository at an address; pictures are raw files."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}{found[2]}({source}/{kind}/HEAD/{found[3]})"

    return _LINK.sub(link, text)


class Description(MetadataHookInterface):
    """Sets ``readme`` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README with absolute links."""
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["urls"]["Source"]),
        }
