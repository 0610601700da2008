"""Networks in the numbers people train with, on the device they train on, against float64.

Where there is a graphics card, all of it runs there, too: ``pytest tests/nn -k "cuda or CUDA"``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from elusive_networks import Gate
from torch import Tensor, nn

import seepage as sp

torch.set_num_threads(1)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card"),
    ),
]
KINDS = [torch.float32, torch.bfloat16]
CLOSE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the convolutions of float32 whole, which torch rounds to TF32 on a card."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def smooth(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), *middle, nn.LayerNorm(16), nn.Linear(16, 4))


def images(activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), activation(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 4)
    )


def batch(shape: tuple[int, ...], kind: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(16, *shape).to(device, kind), (torch.arange(16) % 4).to(device)


def leakage(net: nn.Module, x: Tensor, y: Tensor, **how: Any) -> Any:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 0.5, "clip": "hard"}
    return sp.nn.leakage(net, "cross_entropy", x, y, **given | how)


def in_double(net: nn.Module, x: Tensor, y: Tensor, **how: Any) -> Any:
    wide = copy.deepcopy(net).double().cpu()
    return leakage(wide, x.double().cpu(), y.cpu(), **how)


NETWORKS = {
    "vectors": (smooth, (6,)),
    "images": (lambda: images(nn.GELU), (1, 6, 6)),
    "kinks": (lambda: images(nn.ReLU), (1, 6, 6)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::seepage.nn.KinkWarning")
@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_leakage_is_that_of_float64(device: str, kind: torch.dtype, name: str) -> None:
    make, shape = NETWORKS[name]
    net, (x, y) = make().to(device, kind), batch(shape, kind, device)
    # Over finite steps 36 unknowns have too many directions; the probes' are the same in both.
    asked = {"probes": 20} if name == "kinks" else {"method": "exact"}
    for how in ({}, {"max_grad_norm": None}):
        found = leakage(net, x, y, scale=0.01, **how).rows("dfil", **asked)
        truth = in_double(net, x, y, scale=0.01, **how).rows("dfil", **asked)
        np.testing.assert_allclose(np.asarray(found.values.cpu()), np.asarray(truth), CLOSE[kind])
    if name != "kinks":
        found, truth = leakage(net, x, y).rows("fil"), in_double(net, x, y).rows("fil")
        np.testing.assert_allclose(np.asarray(found.values.cpu()), np.asarray(truth), CLOSE[kind])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_hidden_is_found_in_short_numbers(device: str, kind: torch.dtype) -> None:
    net, (x, y) = smooth(Gate()).to(device, kind), batch((6,), kind, device)
    for clip in (0.5, None):
        with pytest.warns(sp.nn.FallbackWarning, match=r"\.detach\(\) in Gate '2'"):
            leakage(net, x, y, max_grad_norm=clip).rows("dfil", probes=2)


@pytest.mark.filterwarnings("ignore::seepage.nn.KinkWarning")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["images", "kinks"])
def test_a_run_is_accounted_for_as_in_float64(device: str, kind: torch.dtype, name: str) -> None:
    make, shape = NETWORKS[name]
    net, (x, y) = make().to(device, kind), batch(shape, kind, device)
    told = []
    for here, records, labels in ((net, x, y), (copy.deepcopy(net).double(), x.double(), y)):
        run = sp.nn.FisherAccountant(
            here,
            "cross_entropy",
            n=16,
            sample_rate=1.0,
            noise_multiplier=1.0,
            max_grad_norm=0.5,
            amplification="none",
            scale=0.01,
        )
        run.observe(range(16), records, labels, update=True)
        told.append(np.asarray(run.records("dfil")))
    np.testing.assert_allclose(told[0], told[1], rtol=CLOSE[kind])


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_and_short_products_are_left_out_of_checks(device: str) -> None:
    net, (x, y) = images(nn.GELU).to(device), batch((1, 6, 6), torch.float32, device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast(device, torch.bfloat16):
            found = leakage(net, x, y).rows("dfil", probes=2)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert np.isfinite(np.asarray(found.values.float().cpu())).all()


class Block(nn.Module):
    """Attention with two heads and a perceptron, each behind a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(self.first(x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).flatten(2))
        return x + self.outer(nn.functional.gelu(self.inner(self.second(x))))


def convolutions() -> tuple[nn.Module, Tensor, Tensor]:
    layers = [nn.Conv2d(2, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3, stride=2), nn.SiLU(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(72, 3))
    return net, torch.randn(6, 2, 9, 9), torch.tensor([0, 1, 2, 0, 1, 2])


def blocks() -> tuple[nn.Module, Tensor, Tensor]:
    net = nn.Sequential(Block(16), Block(16), nn.LayerNorm(16), nn.Flatten(), nn.Linear(80, 3))
    return net, torch.randn(6, 5, 16), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("place", DEVICES)
@pytest.mark.parametrize("made", [convolutions, blocks])
def test_pulls_along_the_gradient_under_autocast(
    made: Callable[[], tuple[nn.Module, Tensor, Tensor]], place: str
) -> None:
    torch.manual_seed(0)
    net, x, y = (part.to(place) for part in made())
    single = sp.nn.Engine(net, "cross_entropy").radial_pull(x, y)[0]
    with torch.autocast(place, torch.bfloat16):
        short = sp.nn.Engine(net, "cross_entropy").radial_pull(x, y)[0]
    apart = (short.float() - single).flatten(1).norm(dim=1) / single.flatten(1).norm(dim=1)
    assert float(apart.max()) < 0.05
