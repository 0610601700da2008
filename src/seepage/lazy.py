"""Imports the public names of a package when they are first used, so that importing it is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], known: dict[str, Any], needs_torch: bool = False
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Parameters
    ----------
    package
        Its name.
    homes
        The module of each public name.
    known
        The package's ``globals()``: a name stays there once it was used.
    needs_torch
        Whether nothing in it works without torch.
    """

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if needs_torch and find_spec("torch") is None:
            raise ImportError(
                f"{package} needs torch, which is not installed; run: pip install 'seepage[nn]'"
            )
        known[name] = getattr(import_module(f"{package}.{homes[name]}"), name)
        return known[name]

    return look_up
