"""The hand-written second derivatives against finite differences, and against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.rules import RULES
from seepage.nn.gradients.second_order import SUBSTITUTES, KernelMovement, convolution
from seepage.nn.gradients.watching import Watcher

torch.set_num_threads(1)

FUNCTIONS = {
    "layer norm": lambda x: functional.layer_norm(x, [5], eps=1e-3),
    "layer norm, two axes, scaled": lambda x: functional.layer_norm(
        x.reshape(2, 2, 5),
        [2, 5],
        torch.linspace(0.5, 2, 10).double().reshape(2, 5),
        torch.ones(2, 5).double(),
    ),
    "layer norm, turned": lambda x: functional.layer_norm(x.T, [4], eps=1e-3),
    "gelu": functional.gelu,
    "silu": functional.silu,
    "gelu, turned": lambda x: functional.gelu(x.T),
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "cross-entropy": lambda x: functional.cross_entropy(
        x, torch.tensor([0, 4, -100, 2]), reduction="none"
    ),
}


def inside(function: object) -> object:
    def wrapped(x: Tensor) -> Tensor:
        with Watcher(RULES, {}, SUBSTITUTES):
            return function(x)

    return wrapped


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name: str) -> None:
    torch.manual_seed(0)
    x = (2 * torch.randn(4, 5, dtype=torch.float64)).requires_grad_()
    mine = inside(FUNCTIONS[name])
    torch.testing.assert_close(mine(x), FUNCTIONS[name](x))
    assert torch.autograd.gradcheck(mine, x)
    assert torch.autograd.gradgradcheck(mine, x)
    assert mine(x).grad_fn.name().startswith("_")  # not torch's own


def test_what_it_does_not_cover_is_left_to_torch() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3])
    with Watcher(RULES, {}, SUBSTITUTES):
        smooth = functional.cross_entropy(x, y, label_smoothing=0.1)
        scaled = functional.layer_norm(x, [5], torch.ones(5, requires_grad=True))
        constant = functional.gelu(x.detach())
    assert smooth.grad_fn.name().startswith(("NllLoss", "Add", "Nll"))
    assert scaled.grad_fn.name().startswith("NativeLayerNorm")
    assert constant.grad_fn is None


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_attention(options: dict) -> None:
    torch.manual_seed(0)
    qkv = [torch.randn(2, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def mine(*each: Tensor) -> Tensor:
        with Watcher(RULES, {}, SUBSTITUTES):
            return functional.scaled_dot_product_attention(*each, **options)

    torch.testing.assert_close(mine(*qkv), functional.scaled_dot_product_attention(*qkv, **options))
    assert torch.autograd.gradcheck(mine, qkv)
    assert torch.autograd.gradgradcheck(mine, qkv)
    assert "Flatten" in mine(*qkv).grad_fn.name() or "View" in mine(*qkv).grad_fn.name()
    mask = torch.ones(3, 3, dtype=torch.bool)
    with Watcher(RULES, {}, SUBSTITUTES):
        masked = functional.scaled_dot_product_attention(*qkv, attn_mask=mask)
    assert "Scaled" in masked.grad_fn.name()


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 2, 4), (3, 1, 2, 1)],
)
def test_a_convolution_and_its_second_derivatives_are_those_of_torch(
    axes: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, *[7] * axes, dtype=torch.float64)
    weight = torch.randn(8, 4 // groups, *[3] * axes, dtype=torch.float64)
    bias = torch.randn(8, dtype=torch.float64)
    plain = getattr(torch, f"conv{axes}d")
    movement = KernelMovement([stride] * axes, [padding] * axes, [dilation] * axes, groups)

    def second(convolve: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        z = x.clone().requires_grad_()
        out = convolve(z.tanh())
        (first,) = torch.autograd.grad(out.tanh().square().sum(), z, create_graph=True)
        (again,) = torch.autograd.grad(first.square().sum(), z)
        return out.detach(), first.detach(), again

    ours = second(lambda z: convolution(z, weight, bias, movement))
    torchs = second(lambda z: plain(z, weight, bias, stride, padding, dilation, groups))
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
