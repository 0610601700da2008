"""Gives the site its own address and that of the source, from ``[project.urls]``.

As long as an address is a placeholder (``….invalid``), the site goes without.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


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
