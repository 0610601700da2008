"""Reads a property: one class for every record, gradient or update, and none missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.tables.frames import as_numpy


def read_property(
    property: Any, count: int, what: str, *, called: str = "property"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes of a property, sorted, and for every entry the number of its class.

    Parameters
    ----------
    property
        Any array, series or list, ``(count,)``.
    count
        How many entries there must be.
    what
        What they are about: "gradients", "records".
    called
        The name under which the caller handed it in.

    Examples
    --------
    >>> from seepage.layers.measures.property_labels import read_property
    >>> read_property(["no", "yes", "no"], 3, "records")
    (array(['no', 'yes'], dtype='<U3'), array([0, 1, 0]))
    """
    raw = as_numpy(property)
    if raw.shape != (count,):
        raise InputError(
            f"There are {count} {what}, but {called} has the shape {raw.shape}; give one label for "
            "each."
        )
    missing = _missing(raw)
    if missing.any():
        raise InputError(
            f"{called} is missing (None, NaN or infinity) for {int(missing.sum())} of the {count} "
            f"{what}, the first at position {int(missing.argmax())}; drop those {what}."
        )
    try:
        levels, labels = np.unique(raw, return_inverse=True)
    except TypeError:
        raise InputError(
            f"{called} mixes kinds of labels, such as words and numbers; make them all the same."
        ) from None
    return levels, labels


def _missing(raw: np.ndarray) -> np.ndarray:
    if raw.dtype.kind == "f":
        return np.asarray(~np.isfinite(raw))
    if raw.dtype.kind == "O":
        # What is missing (None, NaN, pandas.NA) is not equal to itself, or does not say.
        return np.array([value is None or (value == value) is not True for value in raw], bool)
    return np.zeros(len(raw), bool)
