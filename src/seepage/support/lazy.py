"""Imports a package's public names lazily, so that importing the package is fast.

Lower-level packages can also call a function of a higher-level package without importing it. The
``__init__`` of the higher-level package, which may import everything, registers the function with
:func:`offer`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, known: dict[str, Any], needs_torch: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package, and set its ``__all__``.

    The package's public names are those imported under ``if TYPE_CHECKING:``, one per line. Type
    checkers read those lines (``as`` marks a re-export). This function reads the module of each
    name from the same lines, so no second list is needed. ``known`` is the package's ``globals()``,
    in which each name is cached on first use.
    """
    homes = _imports_for_type_checkers(Path(known["__file__"]))
    known["__all__"] = sorted(name for name in homes if not name.startswith("_"))

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs_torch and find_spec("torch") is None:
            raise ImportError(
                f"{package} needs torch, which is not installed; run: pip install 'seepage[nn]'"
            )
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        known[name] = getattr(import_module(homes[name]), name)
        return known[name]

    return look_up, lambda: list(known["__all__"])


_OFFERED: dict[str, Callable[..., Any]] = {}


def offer(name: str, function: Callable[..., Any]) -> None:
    """Register a higher-level package's function under a name, for use in lower-level packages."""
    _OFFERED[name] = function


def offered(name: str) -> Callable[..., Any]:
    """Return the function that was registered under a name.

    >>> offer("greeting", lambda who: f"good day, {who}")
    >>> offered("greeting")("reader")
    'good day, reader'
    """
    return _OFFERED[name]


def _imports_for_type_checkers(init: Path) -> dict[str, str]:
    """Return the module of every name that a package imports under ``if TYPE_CHECKING:``."""
    tree = ast.parse(init.read_text(encoding="utf-8"))
    return {
        alias.name: str(node.module)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
