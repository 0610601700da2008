"""Stores one number per attribute and record; computes norms over attributes and image regions.

The PLIS of a record, a group of attributes or a super-pixel is the Euclidean norm of the
corresponding part of the array (Mueller et al. 2022).
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.core.noise import Gaussian, Noise
from seepage.core.result import Result
from seepage.errors import InputError, nearest
from seepage.tables.names import counted, listed
from seepage.tables.result_table import PlottedNumbers, ResultTable
from seepage.tables.source import as_numpy

Part = Any  # a column (number or name), several of them, a slice, or a mask


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(ResultTable):
    """One number per attribute of each record, as an array of shape ``(B, …)``.

    Parameters
    ----------
    values
        The values, one for every attribute of every record.
    noise
        The standard deviation of the noise on the sum of the gradients; ``None`` without noise.
    about
        A description of the attributes.
    kind
        The kind of result, ``exact``.
    index
        The records' labels; ``None`` if records are identified by position.
    names
        The names of the columns, if records are rows of a table.
    library
        The data frame library that the caller used.
    """

    values: Tensor
    noise: float | None = None
    about: str = "the input"
    kind: str = "exact"
    index: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    library: str = "torch"

    def to_numpy(self) -> np.ndarray:
        """Return the values as an array in the shape of the records."""
        return as_numpy(self.values)

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with the norm over each whole record."""
        return self.records().table(library)

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the norm over each record, in descending order."""
        return self.records().drawing()

    def __repr__(self) -> str:
        count = counted(len(self), "record")
        return f"<{repr(self.records())[1:-1]}, of {count} about {self.about}>"

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def records(self) -> Result:
        """Return the norm over each whole record."""
        return self._result(self.values.flatten(1).norm(dim=1), "rows")

    def attributes(self, parts: Mapping[str, Part] | None = None) -> Result:
        """Return the norm over each named part of each record, with one column per part.

        Parameters
        ----------
        parts
            For each name, one or more columns (numbers or names), a slice, a tuple of slices, or a
            boolean mask over a record's entries (for images, also over pixels). An entry that is
            named twice is counted once. ``None`` treats every column of a table as a part.

        Examples
        --------
        >>> import torch
        >>> from seepage.nn.susceptibility.attribution import Attribution
        >>> found = Attribution(torch.tensor([[3.0, 4.0, 1.0]]), names=("age", "height", "dose"))
        >>> found.attributes({"body": ["age", "height"], "drug": "dose"}).values
        tensor([[5., 1.]])
        """
        if parts is None:
            if self.values.dim() != 2:
                raise InputError(
                    f"Records of shape {tuple(self.values.shape[1:])} have no columns; name their "
                    "parts, or use patches(size) or superpixels(labels)."
                )
            names = self._columns()
            return self._result(self.values.abs(), "cells", names)
        if not isinstance(parts, Mapping) or not parts:
            raise InputError(
                "Name at least one part of the record, such as {'body': ['age', 'height']}."
            )
        squares = self.values.square().flatten(1)
        shape = tuple(self.values.shape[1:])
        columns = self._columns() if len(shape) == 1 else None
        norms = []
        for name, part in parts.items():
            mask = entries_of(part, shape, columns, name).flatten().to(squares.device)
            norms.append(squares[:, mask].sum(1))
        return self._result(torch.stack(norms, 1).sqrt(), "cells", tuple(map(str, parts)))

    def patches(self, size: int | tuple[int, int]) -> Tensor:
        """Return the norm over each patch of the images, ``(B, patches down, patches across)``.

        The norm is over all channels. Patches at an edge may be smaller.

        Parameters
        ----------
        size
            The side length of a square patch, or the height and width of a patch, in pixels.
        """
        sides = size if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2 or any(
            not isinstance(side, numbers.Integral) or isinstance(side, bool) or side < 1
            for side in sides
        ):
            raise InputError(
                "A patch size must be a positive whole number of pixels, or a pair (height, width) "
                f"of such numbers, not {size!r}."
            )
        tall, wide = int(sides[0]), int(sides[1])
        squares = self._pixels()
        height, width = squares.shape[1:]
        padded = torch.nn.functional.pad(squares, (0, -width % wide, 0, -height % tall))
        blocks = padded.unflatten(2, (-1, wide)).unflatten(1, (-1, tall))
        return blocks.sum((2, 4)).sqrt()

    def superpixels(self, labels: Any) -> Result:
        """Return the norm over each segment of the images, with one column per label.

        Parameters
        ----------
        labels
            The segment of each pixel: ``(H, W)`` for all records, or ``(B, H, W)``. The norm over a
            segment that does not occur in a record is NaN.
        """
        squares = self._pixels()
        given = as_numpy(labels)
        if given.shape not in (tuple(squares.shape), tuple(squares.shape[1:])):
            raise InputError(
                f"Labels for {counted(len(squares), 'image')} of {squares.shape[1]} by "
                f"{squares.shape[2]} pixels cannot have the shape {given.shape}; give (H, W) or "
                "(B, H, W)."
            )
        known, places = np.unique(given, return_inverse=True)
        where = torch.as_tensor(places.reshape(given.shape), device=squares.device)
        where = where.expand(squares.shape).flatten(1)
        sums = squares.new_zeros(len(squares), len(known))
        norms = sums.scatter_add(1, where, squares.flatten(1)).sqrt()
        there = sums.scatter(1, where, 1.0) > 0
        names = tuple(str(label) for label in known)
        return self._result(torch.where(there, norms, torch.nan), "cells", names)

    def _result(self, values: Tensor, view: str, names: tuple[str, ...] | None = None) -> Result:
        noise: tuple[Noise, ...] = () if self.noise is None else (Gaussian(self.noise),)
        return Result(
            values,
            view,
            "plis",
            self.kind,
            self.about,
            self.index,
            names,
            library=self.library,
            noise=noise,
        )

    def _columns(self) -> tuple[str, ...]:
        return self.names or tuple(f"x{j}" for j in range(self.values.shape[1]))

    def _pixels(self) -> Tensor:
        """Return the squared values of images, summed over channels, ``(B, H, W)``."""
        if self.values.dim() not in (3, 4):
            raise InputError(
                f"Records of shape {tuple(self.values.shape[1:])} are not images, which have two "
                "axes, or a channel axis and two more. Use attributes() instead."
            )
        squares = self.values.square()
        return squares.sum(1) if squares.dim() == 4 else squares


def entries_of(
    part: Part, shape: tuple[int, ...], columns: tuple[str, ...] | None, name: str
) -> Tensor:
    """Return a mask of a record's entries that belong to a part.

    A part is one or more columns (numbers or names), a slice, a tuple of slices, or a boolean mask.
    For images, the mask may have one value per pixel, which is used for all channels. ``name`` is
    the name of the part in error messages.
    """
    mask = torch.zeros(shape, dtype=torch.bool)
    cuts = (part,) if isinstance(part, slice) else part
    if isinstance(cuts, tuple) and cuts and all(isinstance(cut, slice) for cut in cuts):
        if len(cuts) > len(shape):
            raise InputError(
                f"{name!r} slices {len(cuts)} axes, but records of shape {shape} have only "
                f"{len(shape)}; give at most one slice per axis."
            )
        try:
            mask[cuts] = True
        except (TypeError, ValueError) as error:
            raise InputError(
                f"The slices of {name!r} are invalid ({error}); give slices of integers with a "
                "positive step."
            ) from None
    else:
        listed = _listed(part, name)
        # Several values of true and false, perhaps in rows, are a mask.
        flat = [value for row in listed for value in (row if isinstance(row, list) else [row])]
        if hasattr(part, "shape"):
            flat = as_numpy(part).ravel().tolist()
        single = isinstance(part, str | numbers.Number) or getattr(part, "shape", None) == ()
        if flat and not single and all(isinstance(value, bool | np.bool_) for value in flat):
            mask = torch.tensor(as_numpy(part))
            # Images also take one mask for all channels, (height, width) or (1, height, width).
            alike = {shape[1:], (1, *shape[1:])} if len(shape) == 3 else set()
            if tuple(mask.shape) not in {shape, *alike}:
                raise InputError(
                    f"The mask of {name!r} has the shape {tuple(mask.shape)}, but records have the "
                    f"shape {shape}; give a mask of the same shape."
                )
            mask = mask.expand(shape)
        else:
            mask[[_position(column, shape, columns, name) for column in listed]] = True
    if not bool(mask.any()):
        raise InputError(
            f"The part {name!r} selects no entry of records with shape {shape}; select at least "
            "one entry."
        )
    return mask


def _listed(part: Part, name: str) -> list[Any]:
    """Return the columns of a part as a list; array entries become plain Python numbers."""
    if isinstance(part, str | numbers.Number):
        return [part]
    if hasattr(part, "shape") or hasattr(part, "to_numpy"):
        return list(np.atleast_1d(as_numpy(part)).tolist())
    if isinstance(part, Iterable):
        return list(part)
    raise InputError(
        f"The part {name!r} must be columns (numbers or names), slices, or a boolean mask over the "
        f"entries, not {part!r}."
    )


def _position(
    column: Any, shape: tuple[int, ...], columns: tuple[str, ...] | None, name: str
) -> int:
    """Return the position of a column, given its number or its name."""
    if columns is None:
        raise InputError(
            f"{name!r} names columns, but records of shape {shape} have none; give a mask or "
            "slices."
        )
    if isinstance(column, str):
        if column not in columns:
            advice = nearest(column, columns) or f"; choose from {listed(columns)}"
            raise InputError(f"There is no column {column!r}{advice}.")
        return columns.index(column)
    if not isinstance(column, numbers.Integral) or isinstance(column, bool):
        raise InputError(
            f"{column!r} in {name!r} is not a column; give a column's number or name, or a boolean "
            "mask over a record's entries."
        )
    place = int(column)
    if not -len(columns) <= place < len(columns):
        raise InputError(
            f"There is no column {place}; choose columns from 0 to {len(columns) - 1}."
        )
    return place
