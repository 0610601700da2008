"""Closed-form second derivatives of layers for which torch's version needs dozens of kernels.

These formulas are used when a second backward pass differentiates gradients. Each function returns
the same values as torch's; only its backward passes are written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


def layer_norm(
    x: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Return a twice differentiable ``functional.layer_norm`` with constant parameters."""
    constant = not any(t is not None and t.requires_grad for t in (weight, bias))
    if not constant or not x.requires_grad:
        return NotImplemented
    # Made contiguous here, where the copy can be differentiated, and not inside; so is the copy in
    # 32 bits with which autocast normalises on an accelerator.
    if x.dtype.itemsize < 4 and x.is_cuda and torch.is_autocast_enabled("cuda"):
        x = x.float()
    return _LayerNorm.apply(x.contiguous(), list(normalized_shape), weight, bias, eps)


class _LayerNorm(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        # On a GPU, 16-bit numbers have 32-bit statistics.
        whole = weight is None and bias is None
        standard = out if whole else ((x - mean) * scale).to(x.dtype)
        ctx.save_for_backward(x, mean, scale, weight, standard)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        x, mean, scale, weight, standard = ctx.saved_tensors
        constants = (mean, scale, weight, standard.detach(), ctx.shape)
        return _LayerNormBack.apply(delta, x, *constants), None, None, None, None


class _LayerNormBack(Function):  # type: ignore[misc]
    """``P(ĝ) = ς(ĝ − mean ĝ − x̂ mean(ĝx̂))`` with ``ĝ = δw``; ``ς`` is 1/(standard deviation).

    ``P`` is symmetric, so its derivative with respect to ``ĝ`` is ``P`` itself. The product
    ``v·P(ĝ) = ςQ`` with ``Q = Σvĝ − N(mean v·mean ĝ + ab)``, ``a = mean(ĝx̂)``, ``b = mean(vx̂)``,
    has the gradient ``−ς²x̂Q/N − ς(bP(ĝ) + aP(v))`` with respect to ``x``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        delta: Tensor,
        x: Tensor,
        mean: Tensor,
        scale: Tensor,
        weight: Any,
        standard: Tensor,
        shape: Any,
    ) -> Tensor:
        out = _pushed(delta, x, mean, scale, weight, shape)
        ctx.save_for_backward(delta, x, mean, scale, weight, standard, out)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        delta, x, mean, scale, weight, standard, pushed = ctx.saved_tensors
        pv = _pushed(v, x, mean, scale, None, ctx.shape)
        axes = list(range(-len(ctx.shape), 0))
        g = delta if weight is None else delta * weight
        a, b = (g * standard).mean(axes, keepdim=True), (v * standard).mean(axes, keepdim=True)
        q = (v * pushed).mean(axes, keepdim=True)  # ςQ/N
        to_x = torch.addcmul(pushed * b, pv, a).addcmul_(standard, q).mul_(-scale.to(x.dtype))
        to_delta = pv if weight is None else pv * weight
        return to_delta, to_x, None, None, None, None, None


def _pushed(
    delta: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Any, shape: Any
) -> Tensor:
    back = torch.ops.aten.native_layer_norm_backward
    gradient: Tensor = back(
        delta.contiguous(), x, shape, mean, scale, weight, None, [True, False, False]
    )[0]
    return gradient


@dataclass(frozen=True)
class _Activation:
    """An activation ``φ``, given by functions for ``φ(x)``, ``δφ′(x)`` and ``vδφ″(x)``."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    bend: Callable[[Tensor, Tensor, Tensor], Tensor]


class _Activated(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: _Activation) -> Tensor:
        ctx.save_for_backward(x)
        ctx.activation = activation
        return activation.value(x)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        return _ActivatedBack.apply(delta, ctx.saved_tensors[0], ctx.activation), None


class _ActivatedBack(Function):  # type: ignore[misc]
    """Computes ``δφ′(x)``; its derivative with respect to ``x`` maps ``v`` to ``vδφ″(x)``."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, x: Tensor, activation: _Activation) -> Tensor:
        ctx.save_for_backward(delta, x)
        ctx.activation = activation
        return activation.slope(delta, x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        delta, x = ctx.saved_tensors
        return ctx.activation.slope(v, x), ctx.activation.bend(x, v, delta), None


def _gelu_bend(x: Tensor, v: Tensor, delta: Tensor) -> Tensor:
    """Return ``vδφ″(x)`` for ``φ″(x) = (2 − x²) N(x)``, where ``N`` is the normal density."""
    square = x * x
    density = torch.exp(square * -0.5).mul_(1 / math.sqrt(2 * math.pi))
    return density.mul_(2 - square).mul_(v).mul_(delta)


def _gelu_tanh_bend(x: Tensor, v: Tensor, delta: Tensor) -> Tensor:
    """Return ``vδφ″`` for ``φ″ = (1 − t²)(s + 3cκx² − xts²)`` with ``t = tanh(c(x + κx³))``.

    ``s = c(1 + 3κx²)``, ``c = √(2/π)``, ``κ = 0.044715``.
    """
    c, square = math.sqrt(2 / math.pi), x * x
    cubic = c * 0.044715  # κ of torch's formula
    t = (square * cubic).add_(c).mul_(x).tanh_()
    s = (square * (3 * cubic)).add_(c)
    inside = torch.addcmul(torch.add(s, square, alpha=3 * cubic), x * t, s * s, value=-1)
    return inside.mul_(1 - t.square_()).mul_(v).mul_(delta)


def _silu_bend(x: Tensor, v: Tensor, delta: Tensor) -> Tensor:
    """Return ``vδφ″(x)`` for ``φ″ = (1 − t²)(2 − xt)/4`` with ``t = tanh(x/2)``.

    With the sigmoid ``s = (1 + t)/2``, ``φ′ = s + xs(1 − s)`` and ``φ″ = s(1 − s)(2 + x(1 − 2s))``.
    """
    t = (x / 2).tanh_()
    half = torch.full((), 0.5, dtype=x.dtype, device=x.device)
    bend = torch.addcmul(half, x, t, value=-0.25).mul_(v).mul_(delta)
    out: Tensor = torch.ops.aten.tanh_backward(bend, t)
    return out


_GELU = {
    kind: _Activation(
        partial(functional.gelu, approximate=kind),
        partial(torch.ops.aten.gelu_backward, approximate=kind),
        bend,
    )
    for kind, bend in (("none", _gelu_bend), ("tanh", _gelu_tanh_bend))
}
_SILU = _Activation(functional.silu, torch.ops.aten.silu_backward, _silu_bend)


def gelu(x: Tensor, approximate: str = "none") -> Any:
    """Return a twice differentiable ``functional.gelu``."""
    return _Activated.apply(x, _GELU[approximate]) if x.requires_grad else NotImplemented


def silu(input: Tensor, inplace: bool = False) -> Any:
    """Return a twice differentiable ``functional.silu``."""
    return NotImplemented if inplace or not input.requires_grad else _Activated.apply(input, _SILU)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return ``functional.cross_entropy`` for class numbers, one loss per row."""
    plain = weight is None and reduction == "none" and label_smoothing == 0.0
    if not plain or input.dim() != 2 or target.is_floating_point() or not input.requires_grad:
        return NotImplemented
    return _CrossEntropy.apply(input, target, target != ignore_index)


class _CrossEntropy(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, counted: Tensor) -> Tensor:
        logs = torch.log_softmax(logits, -1)
        safe = torch.where(counted, target, 0)
        losses = -logs.gather(1, safe[:, None])[:, 0] * counted
        ctx.save_for_backward(logits, logs.exp_(), safe, counted)
        return losses

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> Any:
        logits, chances, target, counted = ctx.saved_tensors
        return _CrossEntropyBack.apply(c * counted, logits, chances, target), None, None


class _CrossEntropyBack(Function):  # type: ignore[misc]
    """The gradient of the losses with respect to the logits, ``c(p − e_y)``.

    ``p`` are the class probabilities, ``e_y`` is one-hot at the target, and ``c`` is the gradient
    at the loss. The derivative with respect to the logits maps ``v`` to ``cp(v − p·v)``.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, logits: Tensor, chances: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(c, chances, target)
        out = chances * c[:, None]
        return out.scatter_add_(1, target[:, None], -c[:, None])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        c, chances, target = ctx.saved_tensors
        mean = torch.linalg.vecdot(v, chances)
        to_c = mean - v.gather(1, target[:, None])[:, 0]
        back = torch.ops.aten._softmax_backward_data
        to_logits = back(v * c[:, None], chances, -1, chances.dtype)
        return to_c, to_logits, None, None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return ``functional.scaled_dot_product_attention`` for four axes, unmasked or causal.

    Torch's plain version also scales both factors, rebuilds its mask and searches for fully masked
    rows; each of these steps would be differentiated twice.
    """
    ordinary = query.dim() == key.dim() == value.dim() == 4 and query.shape[:2] == key.shape[:2]
    if attn_mask is not None or dropout_p or enable_gqa or not ordinary:
        return NotImplemented
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    rows, columns = query.shape[2], key.shape[2]
    hidden = torch.zeros((), dtype=query.dtype, device=query.device)
    if is_causal:
        hidden = torch.full((rows, columns), -math.inf, dtype=query.dtype, device=query.device)
        hidden = hidden.triu_(1)
    scores = torch.baddbmm(
        hidden, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=factor
    )
    mixed = torch.softmax(scores, -1) @ value.flatten(0, 1)
    return mixed.unflatten(0, query.shape[:2])


@dataclass(frozen=True)
class KernelMovement:
    """The stride, padding and dilation of a kernel along each axis, and its groups."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution."""
        out: Tensor = torch.ops.aten.convolution(x, weight, bias, *self._arguments())
        return out

    def backward(self, delta: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient at inputs of this shape, given the gradient at the outputs."""
        like = delta.new_empty(1).expand(shape)  # only its shape is used
        out: Tensor = torch.ops.aten.convolution_backward(
            # Autocast gave the outputs shorter numbers, but does not reach this function.
            delta,
            like,
            weight.to(delta.dtype),
            None,
            *self._arguments(),
            [True, False, False],
        )[0]
        return out

    def _arguments(self) -> tuple[Any, ...]:
        """Return the arguments of torch's convolution: not transposed, without output padding."""
        return self.stride, self.padding, self.dilation, False, [0] * len(self.stride), self.groups


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, movement: KernelMovement) -> Tensor:
    """Return a twice differentiable convolution with a constant kernel.

    The double-backward pass is a single convolution. Torch's version always computes the weight's
    gradient too, by a convolution with records as channels. On a GPU that convolution takes longer
    than all other parts of the pass.
    """
    return _Convolution.apply(x, weight, bias, movement)


class _Convolution(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, movement: KernelMovement) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.shape, ctx.movement = x.shape, movement
        return movement.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _ConvolutionBack.apply(delta, weight, ctx.shape, ctx.movement), None, None, None


class _ConvolutionBack(Function):  # type: ignore[misc]
    """The transposed convolution, linear in ``δ``; its derivative is the convolution."""

    @staticmethod
    def forward(
        ctx: Any, delta: Tensor, weight: Tensor, shape: torch.Size, movement: KernelMovement
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.movement = movement
        return movement.backward(delta, weight, shape)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return ctx.movement.forward(v, weight.to(v.dtype), None), None, None, None


# Each returns NotImplemented for cases it does not cover.
SUBSTITUTES: dict[Any, Any] = {
    functional.layer_norm: layer_norm,
    functional.gelu: gelu,
    functional.silu: silu,
    functional.cross_entropy: cross_entropy,
    functional.scaled_dot_product_attention: attention,
}
