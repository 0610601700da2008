"""Gives the site its own address and that of the source, from ``[project.urls]``.

As long as an address is a placeholder (``….invalid``), the site goes without. Pages link files of
the repository outside ``docs/`` by their relative path, as its viewers do; on the site these links
lead to the source, or, without its address, are plain words.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Set ``site_url`` and ``repo_url``."""
    project = tomllib.loads(
        Path(config.config_file_path).with_name("pyproject.toml").read_text("utf-8")
    )
    for setting, name in (("site_url", "Documentation"), ("repo_url", "Source")):
        address = project["project"]["urls"][name]
        if not (urlsplit(address).hostname or "").endswith(".invalid"):
            config[setting] = address
    return config


def on_page_markdown(text: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links to files outside ``docs/`` to the source."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def led(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        source = config["repo_url"]
        return f"[{link[1]}]({source.rstrip('/')}/blob/HEAD/{path})" if source else link[1]

    return _LINK.sub(led, text)
