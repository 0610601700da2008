"""Parts of a record, however a caller names them: columns, slices or masks."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError, nearest
from seepage.tables.source import as_numpy

Part = Any  # a column (number or name), several of them, a slice, or a mask


def entries_of(
    part: Part, shape: tuple[int, ...], columns: tuple[str, ...] | None, name: str
) -> Tensor:
    """Return which entries of a record of that shape a part holds, as true and false.

    A part is a column (its number or name), several of them, a slice, a tuple of slices, or true
    and false for every entry; of images also for every pixel, all channels alike. ``name`` is what
    the caller calls it.
    """
    cuts = (part,) if isinstance(part, slice) else part
    if isinstance(cuts, tuple) and cuts and all(isinstance(cut, slice) for cut in cuts):
        mask = _cut(cuts, shape, name)
    else:
        listed = _listed(part, name)
        if _is_mask(part, listed):
            mask = _mask(part, shape, name)
        else:
            mask = torch.zeros(shape, dtype=torch.bool)
            mask[_numbers(listed, shape, columns, name)] = True
    if not bool(mask.any()):
        raise InputError(f"The part {name!r} holds nothing of a record of shape {shape}.")
    return mask


def _cut(cuts: tuple[slice, ...], shape: tuple[int, ...], name: str) -> Tensor:
    if len(cuts) > len(shape):
        raise InputError(f"{name!r} cuts {len(cuts)} axes, but records have fewer.")
    mask = torch.zeros(shape, dtype=torch.bool)
    try:
        mask[cuts] = True
    except (TypeError, ValueError) as error:
        raise InputError(f"The slices of {name!r} cannot be taken: {error}.") from None
    return mask


def _listed(part: Part, name: str) -> list[Any]:
    """Return the columns one by one; of arrays as plain numbers."""
    if isinstance(part, str | numbers.Number):
        return [part]
    if hasattr(part, "shape") or hasattr(part, "to_numpy"):
        found = as_numpy(part).tolist()
        return found if isinstance(found, list) else [found]
    if isinstance(part, Iterable):
        return list(part)
    raise InputError(
        f"The part {name!r} must be columns (numbers or names), slices, or true and false for "
        f"every entry, not {part!r}."
    )


def _is_mask(part: Part, listed: list[Any]) -> bool:
    if hasattr(part, "dtype"):
        values = as_numpy(part)
        return values.dtype == bool and values.ndim > 0
    nested = [value for row in listed for value in (row if isinstance(row, list) else [row])]
    several = not isinstance(part, numbers.Number) and bool(nested)
    return several and as_numpy(nested).dtype == bool


def _mask(part: Part, shape: tuple[int, ...], name: str) -> Tensor:
    mask = torch.tensor(as_numpy(part))
    # Images also take one mask for all channels, (height, width) or (1, height, width).
    alike = {shape[1:], (1, *shape[1:])} if len(shape) == 3 else set()
    if tuple(mask.shape) not in {shape, *alike}:
        raise InputError(
            f"The mask of {name!r} has the shape {tuple(mask.shape)}, but records have {shape}."
        )
    return mask.expand(shape)


def _numbers(
    listed: list[Any], shape: tuple[int, ...], columns: tuple[str, ...] | None, name: str
) -> list[int]:
    if columns is None:
        raise InputError(
            f"{name!r} names columns, but records of shape {shape} have none; give a mask or "
            "slices."
        )
    found = []
    for column in listed:
        if isinstance(column, str):
            if column not in columns:
                raise InputError(f"There is no column {column!r}{nearest(column, columns)}.")
            found.append(columns.index(column))
        elif isinstance(column, numbers.Integral) and not isinstance(column, bool):
            found.append(int(column))
            if not -len(columns) <= found[-1] < len(columns):
                raise InputError(
                    f"There is no column {column}: records have {len(columns)} columns."
                )
        else:
            raise InputError(
                f"{column!r} in {name!r} is no column: give its number or its name, or true and "
                "false for every entry of a record."
            )
    return found
