"""Cuts images into the patches that a kernel sees, and adds patches up to images again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over its inputs.

    Parameters
    ----------
    kernel, stride, dilation
        One number for each axis of an image.
    padding
        For each axis the zeros on both sides together.
    groups
        Blocks of channels that do not meet.
    places
        The shape of the output.
    multiple
        How many consecutive images belong to one example.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    places: tuple[int, ...]
    multiple: int

    def cut(self, inputs: Tensor) -> Tensor:
        """Return the patches, ``(B, groups, size, positions)``, in one copy.

        The order of the entries within a patch is this class's own affair.
        """
        sides = [side for pad in reversed(self.padding) for side in (pad // 2, pad - pad // 2)]
        padded = functional.pad(inputs, sides)
        first, channel, *others = padded.stride()
        over_kernel = [o * d for o, d in zip(others, self.dilation, strict=True)]
        over_places = [o * s for o, s in zip(others, self.stride, strict=True)]
        count, channels = padded.shape[:2]
        start = padded.storage_offset()
        if self.keeps_channels_last(inputs):
            shape = (count, *self.places, *self.kernel, channels)
            view = padded.as_strided(shape, (first, *over_places, *over_kernel, channel), start)
            return view.reshape(count, 1, math.prod(self.places), -1).mT
        shape = (count, channels, *self.kernel, *self.places)
        view = padded.as_strided(shape, (first, channel, *over_kernel, *over_places), start)
        return self._by_example(view.reshape(count, self.groups, -1, math.prod(self.places)))

    def paste(self, patches: Tensor, like: Tensor) -> Tensor:
        """Return the sum of patches at their places, in images of the shape of ``like``."""
        count, channels = like.shape[:2]
        size = [n + pad for n, pad in zip(like.shape[2:], self.padding, strict=True)]
        if self.keeps_channels_last(like):
            cuts = patches.mT.reshape(count, *self.places, -1, channels).movedim(-1, 1)
            out = patches.new_zeros(count, *size, channels).movedim(-1, 1)
            self._add(out, cuts)
        elif len(size) <= 2:  # torch's own way for images, and for rows of one
            front = (1,) * (2 - len(size))
            shapes = ((*front, *n) for n in (size, self.kernel, self.dilation, self.stride))
            whole, kernel, dilation, stride = shapes
            flat = self._by_image(patches).flatten(1, 2)
            out = functional.fold(flat, whole, kernel, dilation, 0, stride)
            out = out.reshape(count, channels, *size)
        else:
            cuts = self._by_image(patches).reshape(count, channels, -1, *self.places)
            out = patches.new_zeros(count, channels, *size)
            self._add(out, cuts.movedim(2, -1))
        inside = (
            slice(pad // 2, pad // 2 + n)
            for pad, n in zip(self.padding, like.shape[2:], strict=True)
        )
        return out[(..., *inside)]

    def outputs(self, delta: Tensor) -> Tensor:
        """Return output gradients as ``(B, groups, size, positions)``."""
        if has_channels_last(delta) and self.groups == self.multiple == 1:
            return delta.movedim(1, -1).flatten(1, -2)[:, None].mT
        return self._by_example(delta.flatten(2).unflatten(1, (self.groups, -1)))

    def whole(self, left: Tensor, like: Tensor) -> Tensor:
        """Return what is laid out as by :meth:`outputs` in the shape of output gradients."""
        if has_channels_last(like) and self.groups == self.multiple == 1:
            return left[:, 0].mT.unflatten(1, self.places).movedim(-1, 1)
        return self._by_image(left).reshape(like.shape)

    def keeps_channels_last(self, inputs: Tensor) -> bool:
        """Return whether patches are laid out with the channels last, as their images are."""
        return self.groups == self.multiple == 1 and has_channels_last(inputs)

    def _by_example(self, blocks: Tensor) -> Tensor:
        """Return ``(N, groups, size, places)`` as ``(B, groups, size, positions)``."""
        if self.multiple == 1:
            return blocks
        return blocks.unflatten(0, (-1, self.multiple)).permute(0, 2, 3, 1, 4).flatten(3)

    def _by_image(self, blocks: Tensor) -> Tensor:
        if self.multiple == 1:
            return blocks
        apart = blocks.unflatten(3, (self.multiple, -1)).permute(0, 3, 1, 2, 4)
        return apart.flatten(0, 1)

    def _add(self, out: Tensor, cuts: Tensor) -> None:
        """Add cuts ``(N, channels, *places, taps)`` to images at their places."""
        for k, offset in enumerate(product(*map(range, self.kernel))):
            where = tuple(
                slice(o * d, o * d + s * (n - 1) + 1, s)
                for o, d, s, n in zip(offset, self.dilation, self.stride, self.places, strict=True)
            )
            out[(..., *where)] += cuts[..., k]


def has_channels_last(images: Tensor) -> bool:
    """Return whether the channels of a pixel lie together in memory, and not its row."""
    if images.dim() != 4 or images.is_contiguous():
        return False
    return bool(images.is_contiguous(memory_format=torch.channels_last))
