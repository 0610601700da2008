"""Distinguishes a library's classes from other classes with the same name.

A class belongs to a library if its stated module is loaded, is part of that library and contains
exactly this class. No import is needed, since an object's class is always loaded.

A subclass of a library class counts as equivalent if it overrides nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from inspect import getattr_static
from typing import Any

from seepage.errors import InputError

# What a derived class may define itself without changing what is fitted or computed: settings,
# their checks, names and display. scikit-learn writes some of them into every derived class.
_HARMLESS = re.compile(
    r"__\w+__|set_\w+_request|get_params|set_params|_get_param_names|_get_params_html|score|"
    r"get_feature_names_out|get_metadata_routing|_more_tags|_repr_\w+|_html_repr|"
    r"_doc_link_\w+|_get_doc_link|_parameter_constraints|_sklearn_auto_wrap_output_keys|_abc_impl"
)
# Special methods that can change any of the others
_ACTING = ("__getattribute__", "__getattr__", "__setattr__", "__sklearn_clone__", "__call__")
_NOTHING = object()
_CALLED = {"sklearn": "scikit-learn"}
SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")
WRAPPERS = ("Pipeline", *SEARCHES)


@dataclass(frozen=True)
class LibraryClass:
    """The library class of an object: its own class, or one that it inherits from."""

    library: str
    name: str
    cls: type
    overrides: str | None  # a method that the object has otherwise; ``None`` if it has none

    @property
    def called(self) -> str:
        """The usual name of the class."""
        return f"{_CALLED.get(self.library, self.library)}'s {self.name}"

    def other_than(self, thing: Any) -> str:
        """Return a sentence on how an object differs from this library class."""
        return f"This {type(thing).__name__} overrides {self.overrides} of {self.called}"


def library_of(cls: type) -> str | None:
    """Return the top-level package of this class, or ``None`` if no module contains the class."""
    held: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        held = getattr(held, part, None)
    return cls.__module__.partition(".")[0] if held is cls else None


def library_class(thing: Any, libraries: Container[str]) -> LibraryClass | None:
    """Return the nearest class from these libraries among an object's class and its bases."""
    for cls in type(thing).__mro__[:-1]:
        library = library_of(cls)
        if library is not None and library in libraries:
            return LibraryClass(library, cls.__name__, cls, overridden(thing, cls))
    return None


def overridden(thing: Any, base: type) -> str | None:
    """Return the name of an attribute of the base class that the object overrides, or ``None``.

    Each attribute of the base class, including inherited ones, is compared with that of the
    object's class. Methods replaced on the object itself are also detected. A subclass that defines
    a property for a fitted number, such as ``mean_``, also counts as overriding it.
    """
    cls = type(thing)
    if cls is not base:
        names = [name for name in dir(base) if not _HARMLESS.fullmatch(name)]
        for name in [*names, *_ACTING]:
            if getattr_static(cls, name, _NOTHING) is not getattr_static(base, name, _NOTHING):
                return name
        for name in dir(cls):
            learnt = name.endswith("_") and not name.endswith("__")
            if learnt and getattr_static(base, name, _NOTHING) is _NOTHING:
                return name
    for name in getattr(thing, "__dict__", {}):
        # As getattr_static finds it, at a tenth of the cost: refits ask this of every step.
        method = next((vars(one)[name] for one in base.__mro__ if name in vars(one)), None)
        if hasattr(method, "__get__") and not isinstance(method, cached_property):
            return str(name)
    return None


def own_name(thing: Any, library: str, names: Container[str] | None = None) -> str | None:
    """Return the name of an object's library class, or ``None`` if the object overrides anything.

    ``names`` are the accepted classes (by default, all); for any other, return ``None``.
    """
    known = library_class(thing, (library,))
    if known is None or known.overrides is not None:
        return None
    return known.name if names is None or known.name in names else None


def checked_name(thing: Any, library: str, names: Container[str]) -> str | None:
    """Return what :func:`own_name` returns, but raise an error if anything is overridden."""
    known = library_class(thing, (library,))
    if known is None or known.name not in names:
        return None
    if known.overrides is not None:
        raise InputError(
            f"{known.other_than(thing)}, so its behaviour is unknown; use {known.called}, or audit "
            "the model with attacks: sp.audit(model, X, y)."
        )
    return known.name


def is_pipeline(model: Any) -> bool:
    """Return whether a model is a scikit-learn pipeline; an overridden method raises an error."""
    return checked_name(model, "sklearn", ("Pipeline",)) is not None


def is_search(model: Any) -> bool:
    """Return whether a model is a scikit-learn search; an overridden method raises an error."""
    return checked_name(model, "sklearn", SEARCHES) is not None


def is_network(model: Any) -> bool:
    """Return whether an object is a torch module, without importing torch."""
    return any(base.__module__.startswith("torch.nn") for base in type(model).__mro__)
