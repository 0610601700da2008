"""A convolution that a second backward pass crosses with one convolution and nothing else.

On its way back from the way back, torch forms the gradient of the weight too, wanted or not, as a
convolution with the examples for channels: on a graphics card that takes longer than all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


@dataclass(frozen=True)
class Steps:
    """How a kernel moves: stride, zeros on either side and dilation along each axis; groups."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution."""
        out: Tensor = torch.ops.aten.convolution(
            x,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups,
        )
        return out

    def backward(self, delta: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient at inputs of that shape, given the one at the outputs."""
        like = delta.new_empty(1).expand(shape)  # nothing but its shape is looked at
        out: Tensor = torch.ops.aten.convolution_backward(
            delta,
            like,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups,
            [True, False, False],
        )[0]
        return out


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, steps: Steps) -> Tensor:
    """Return the convolution of something to be differentiated with a constant kernel."""
    return _Convolution.apply(x, weight, bias, steps)


class _Convolution(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, steps: Steps) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.shape, ctx.steps = x.shape, steps
        return steps.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _ConvolutionBack.apply(delta, weight, ctx.shape, ctx.steps), None, None, None


class _ConvolutionBack(Function):  # type: ignore[misc]
    """Linear in ``δ``, and the transpose of the convolution: its way back is the convolution."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, weight: Tensor, shape: torch.Size, steps: Steps) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.steps = steps
        return steps.backward(delta, weight, shape)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return ctx.steps.forward(v, weight, None), None, None, None
