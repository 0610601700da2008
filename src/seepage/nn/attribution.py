"""A number for every attribute of every record, and its norms over records, attributes and images.

The PLIS of a subject, of a group of attributes or of a super-pixel is the Euclidean norm of that
part of its array (paper 002, section "Theoretical Results").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.errors import InputError, nearest
from seepage.noise import Gaussian, Noise
from seepage.result import Result
from seepage.tables import as_numpy

Part = Any  # a column (number or name), several of them, a slice, or a mask


@dataclass(frozen=True, eq=False)
class Attribution:
    """An array like the records themselves, ``(B, …)``.

    Parameters
    ----------
    values
        The numbers, one for every attribute of every record.
    noise
        The standard deviation of the noise on the sum of the gradients; ``None`` without noise.
    about
        What the attributes are, in words.
    kind
        ``exact``.
    index
        What each record is called; positions for ``None``.
    names
        The names of the columns, of records that are rows of a table.
    library
        The library of the caller's table.
    """

    values: Tensor
    noise: float | None = None
    about: str = "the input"
    kind: str = "exact"
    index: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    library: str = "torch"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(as_numpy(self.values), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def subjects(self) -> Result:
        """Return the norm over each whole record."""
        return self._result(self.values.flatten(1).norm(dim=1), "rows")

    def attributes(self, parts: Mapping[str, Part] | None = None) -> Result:
        """Return the norm over named parts of each record, one column for each.

        Parameters
        ----------
        parts
            For each name a column (its number or name), several of them, a slice, a tuple of
            slices, or true and false for every entry of a record. Every column of a table by
            itself for ``None``.

        Examples
        --------
        >>> import torch
        >>> from seepage.nn.attribution import Attribution
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
        if not parts:
            raise InputError("Name at least one part of the record.")
        squares = self.values.square()
        norms = [self._picked(squares, name, part) for name, part in parts.items()]
        return self._result(torch.stack(norms, 1).sqrt(), "cells", tuple(map(str, parts)))

    def patches(self, size: int) -> Tensor:
        """Return the norm over each square of ``size`` by ``size`` pixels, ``(B, rows, columns)``.

        All channels count together; squares that reach over an edge hold what there is of them.
        """
        if size < 1:
            raise InputError(f"A patch is at least one pixel wide, not {size}.")
        squares = self._pixels()
        height, width = squares.shape[1:]
        padded = torch.nn.functional.pad(squares, (0, -width % size, 0, -height % size))
        blocks = padded.unflatten(2, (-1, size)).unflatten(1, (-1, size))
        return blocks.sum((2, 4)).sqrt()

    def superpixels(self, labels: Any) -> Result:
        """Return the norm over each segment of the images, one column for each label.

        Parameters
        ----------
        labels
            The segment that each pixel belongs to: ``(H, W)`` for all records alike, or
            ``(B, H, W)``. A segment that a record does not have is nan.
        """
        squares = self._pixels()
        given = as_numpy(labels)
        if given.shape not in (tuple(squares.shape), tuple(squares.shape[1:])):
            raise InputError(
                f"Labels for {len(squares)} images of {squares.shape[1]} by {squares.shape[2]} "
                f"pixels cannot have the shape {given.shape}."
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

    def _picked(self, squares: Tensor, name: str, part: Part) -> Tensor:
        """Return the sum of squares over one part."""
        if not isinstance(part, slice | tuple | str | int):
            listed = as_numpy(part)
            if listed.dtype == bool:
                mask = torch.as_tensor(listed, device=squares.device)
                try:
                    return (squares * mask.expand(squares.shape[1:])).flatten(1).sum(1)
                except RuntimeError:
                    raise InputError(
                        f"The mask of {name!r} has the shape {tuple(mask.shape)}, but records have "
                        f"{tuple(squares.shape[1:])}."
                    ) from None
        if isinstance(part, slice) or (
            isinstance(part, tuple) and all(isinstance(p, slice) for p in part)
        ):
            cut = (part,) if isinstance(part, slice) else part
            if len(cut) > squares.dim() - 1:
                raise InputError(f"{name!r} cuts {len(cut)} axes, but records have fewer.")
            return squares[(slice(None), *cut)].flatten(1).sum(1)
        if squares.dim() != 2:
            raise InputError(
                f"{name!r} names columns, but records of shape {tuple(squares.shape[1:])} have "
                "none; give a mask or slices."
            )
        few: Sequence[Any] = [part] if isinstance(part, str | int) else list(part)
        return squares[:, [self._column(column) for column in few]].sum(1)

    def _column(self, column: Any) -> int:
        width, names = self.values.shape[1], self._columns()
        if isinstance(column, str):
            if column not in names:
                raise InputError(f"There is no column {column!r}{nearest(column, names)}.")
            return names.index(column)
        if not -width <= int(column) < width:
            raise InputError(f"There is no column {column}: records have {width} columns.")
        return int(column)

    def _pixels(self) -> Tensor:
        """Return the squares of images, summed over their channels, ``(B, H, W)``."""
        if self.values.dim() not in (3, 4):
            raise InputError(
                f"Records of shape {tuple(self.values.shape[1:])} are no images: these have two "
                "axes, or channels and two axes."
            )
        squares = self.values.square()
        return squares.sum(1) if squares.dim() == 4 else squares
