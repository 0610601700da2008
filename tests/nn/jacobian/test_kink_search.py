"""The search for kinks alone: it sees every kink without its name, and nothing smooth."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from elusive_networks import KINKED, SMOOTH, Bent, made
from torch import Tensor, nn

import seepage as sp
from sampled import sampled
from seepage.nn.jacobian.kink_search import jumps_somewhere, line_count


def measured(net: nn.Module, x: Any, y: Tensor, loss: Any = "cross_entropy", view: Any = None):
    """Return whether a kink is seen in the losses, whatever the functions are called."""
    engine = sp.nn.Engine(net, loss, view=view)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = engine._validator.watched(x, y, rules=False)
    return engine._look_for_kinks(network, x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("widths", [(5, 32, 32, 3), (5, 4, 3), (64, 128, 10)])
@pytest.mark.parametrize("name", sampled(list(KINKED), 4))
def test_every_kink_is_seen_without_its_name(name: str, widths: Any, dtype: torch.dtype) -> None:
    for seed in range(5):
        net, x, y = made(KINKED[name][0], *widths, seed=seed)
        assert measured(net.to(dtype), x.to(dtype), y), seed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("widths", [(5, 32, 32, 3), (5, 4, 3), (64, 128, 10)])
@pytest.mark.parametrize("name", sampled(list(SMOOTH), 6))
def test_nothing_smooth_is_taken_for_a_kink(name: str, widths: Any, dtype: torch.dtype) -> None:
    for seed in range(5):
        net, x, y = made(SMOOTH[name], *widths, seed=seed)
        assert not measured(net.to(dtype), x.to(dtype), y), seed


class Sequence(nn.Module):
    """A small language model in the manner of GPT."""

    def __init__(self, tokens: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        n = self.first(h)
        causal = torch.full((tokens.shape[1],) * 2, -math.inf).triu(1).to(h.dtype)
        h = h + self.attention(n, n, n, need_weights=False, attn_mask=causal)[0]
        return self.head(h + self.wide(self.second(h)))


def images(*activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), *activation),
        *(nn.AvgPool2d(2), nn.Conv2d(6, 8, 3), *activation, nn.Flatten(), nn.Linear(32, 4)),
    )


@pytest.mark.parametrize("short", [False, True])
def test_networks_of_other_kinds(short: bool) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        tokens, places = torch.randint(20, (6, 7)), sp.nn.Embedding("embed")
        text = Sequence()
        bent = Sequence()
        bent.wide[1] = Bent(lambda h: h * (h > 0))
        x, y = torch.rand(8, 1, 8, 8), torch.randint(4, (8,))
        plain, kinked = images(nn.SiLU()), images(Bent(lambda h: (h * h).sqrt()))
        if short:
            half = (net.bfloat16() for net in (text, bent, plain, kinked))
            text, bent, plain, kinked = half
            x = x.bfloat16()
        assert not measured(text, tokens, tokens, view=places)
        assert measured(bent, tokens, tokens, view=places)
        assert not measured(plain, x, y)
        assert measured(kinked, x, y)


def test_losses_count_and_what_is_known_does_not() -> None:
    net, x, y = made(torch.tanh, 5, 8, 3)
    target = torch.randn(40, 3)

    def absolute(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2).sqrt().sum(1)

    assert measured(net, x, target, loss=absolute)
    assert not measured(net, x, target, loss=nn.SmoothL1Loss())  # whose slope is continuous
    assert not measured(net, x, y, view=sp.nn.Label())
    bent, _, _ = made(lambda h: h * (h > 0), 5, 8, 3)
    assert not measured(bent, x, y, view=sp.nn.Label())  # the kinks are in known numbers


def test_single_and_equal_records_and_constant_columns() -> None:
    for count in (1, 2, 3):
        net, x, y = made(lambda h: h * (h > 0), 5, 16, 3, records=count)
        assert measured(net, x, y)
        assert measured(net, torch.ones_like(x), y)
        smooth, _, _ = made(torch.tanh, 5, 16, 3)
        assert not measured(smooth, torch.ones_like(x), y)


def test_a_network_that_runs_on_its_records_alone_is_left_as_it_is() -> None:
    def strict(h: Tensor) -> Tensor:
        if bool((h.abs() > 5).any()):
            raise ValueError("such numbers are not for me")
        return torch.tanh(h)

    net, x, y = made(torch.tanh, 5, 8, 3)
    x = 4.9 * torch.tanh(3 * x)
    assert not measured(nn.Sequential(Bent(strict), net), x, y)
    root = nn.Sequential(Bent(lambda h: h.sqrt()), net)  # not a number below zero
    assert not measured(root, x.abs(), y)


@pytest.mark.parametrize("seed", range(3))
def test_differences_of_known_functions(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    lines = 6
    at = torch.rand(lines, 1, generator=draw, dtype=torch.float64) * 0.6 + 0.2

    def seen(function: Callable[[Tensor], Tensor]) -> bool:
        def values(which: Tensor, places: Tensor) -> Tensor:
            return torch.exp(places) + function(places - at[which])

        return jumps_somewhere(values, lines, torch.device("cpu"))

    assert seen(torch.abs)
    assert seen(lambda t: 1e-3 * torch.abs(t))  # small beside the rest
    assert seen(lambda t: 1e-2 * (t > 0))  # a jump of the loss itself
    assert seen(lambda t: torch.abs(t) * torch.sin(8 * t + 1))
    assert not seen(lambda t: t * torch.abs(t))  # of the second derivative alone
    assert not seen(lambda t: torch.tanh(1e4 * t))  # steep, but resolved
    assert not seen(lambda t: torch.sqrt(t * t + 1e-8))  # nearly a kink, but rounded
    assert not seen(lambda t: 1e-9 * (t > 0))  # of no consequence
    assert not seen(lambda t: 1e-7 * torch.sin(1e12 * t))  # rounding as in float32
    assert not seen(lambda t: torch.where(t > 0, torch.nan, t))


def test_the_larger_a_network_the_fewer_lines() -> None:
    assert [line_count(held) for held in (0, 64, 400, 10**9)] == [48, 48, 20, 4]
