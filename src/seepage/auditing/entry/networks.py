"""What is a network, told without importing torch."""

from __future__ import annotations

from typing import Any

from seepage.support.library_classes import library_class


def is_network(model: Any) -> bool:
    """Say whether a model is a module of torch, those of Hugging Face included."""
    found = library_class(model, ("torch",))
    return found is not None and hasattr(model, "named_parameters")
