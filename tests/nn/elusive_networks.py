"""Networks whose dependence on a record torch's derivatives miss, and the truth about them.

The truth is taken by finite differences of the gradients of single records in float64, and shares
no code with the package.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

CLIP = 0.5
Loss = Callable[[Any, Tensor], Tensor]  # of one record: a number


def records(count: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 4, dtype=torch.float64), torch.randint(0, 3, (count,))


def entropy(output: Any, target: Tensor) -> Tensor:
    logits = output if isinstance(output, Tensor) else output.logits
    return nn.functional.cross_entropy(logits, target, reduction="none")


def jacobians(
    net: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    *,
    clip: float | None = CLIP,
    step: float = 1e-5,
) -> np.ndarray:
    """Return how every record's clipped gradient changes, over the clip, ``(B, P, d)``.

    One record at a time, by central differences in float64.
    """
    gradient, out = clipped_gradient(net, loss, clip), []
    for record, target in zip(x.double(), y, strict=True):
        units = step * torch.eye(record.numel(), dtype=torch.float64).reshape(-1, *record.shape)
        columns = [gradient(record + u, target) - gradient(record - u, target) for u in units]
        out.append(torch.stack(columns, 1) / (2 * step))
    return torch.stack(out).detach().numpy() / (1.0 if clip is None else clip)


def clipped_gradient(
    net: nn.Module, loss: Loss, clip: float | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of a record and its target that gives its clipped gradient, ``(P,)``."""
    net = copy.deepcopy(net).double()
    before = copy.deepcopy(net.state_dict())
    released = [p for p in net.parameters() if p.requires_grad]

    def gradient(record: Tensor, target: Tensor) -> Tensor:
        net.load_state_dict(before)
        total = loss(net(record[None]), target[None]).sum()
        parts = torch.autograd.grad(total, released, allow_unused=True, materialize_grads=True)
        g = torch.cat([part.flatten() for part in parts])
        return g if clip is None else g / max(1.0, float(g.norm()) / clip)

    return gradient


def finite_dfil(
    net: nn.Module, loss: Loss, x: Tensor, y: Tensor, step: float, *, clip: float | None = CLIP
) -> np.ndarray:
    """Return ``√(E‖g̃(z + hv) − g̃(z)‖²/h²d)`` over the clip, over all directions of signs."""
    gradient = clipped_gradient(net, loss, clip)
    out = []
    for record, target in zip(x.double(), y, strict=True):
        own, total = gradient(record, target), 0.0
        for signs in product((-step, step), repeat=record.numel()):
            move = torch.tensor(signs, dtype=torch.float64).reshape(record.shape)
            total += float((gradient(record + move, target) - own).square().sum())
        out.append(math.sqrt(total / 2 ** record.numel() / step**2 / record.numel()))
    return np.array(out) / (1.0 if clip is None else clip)


def dfil(jacobian: np.ndarray) -> np.ndarray:
    return np.sqrt((jacobian**2).sum((1, 2)) / jacobian.shape[2])


def smooth(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *middle, nn.Linear(6, 3)).double()


class Probe(nn.Module):
    """A head on a backbone under ``torch.no_grad()``, frozen or not."""

    def __init__(self, width: int = 6, frozen: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width))
        self.head = nn.Linear(width, 3)
        self.body.requires_grad_(not frozen)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.body(x)
        return self.head(torch.tanh(h))


class Gate(nn.Module):
    """A gate that counts as a constant."""

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(3 * h).detach()


class Tracking(nn.Module):
    """A module that keeps a running mean, or a count, in a buffer."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, h: Tensor) -> Tensor:
        if self.in_place:
            self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        else:
            self.mean = self.mean + 1
        return h


class Output(dict):
    """What a network of Hugging Face returns."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


class WithOutput(nn.Module):
    """A network that returns one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = smooth()

    def forward(self, x: Tensor) -> Output:
        return Output(logits=self.inner(x))


class Squash(torch.autograd.Function):
    """A function with a way back of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return delta * (1 - torch.tanh(x) ** 2)


class Bent(nn.Module):
    """A function of what comes in."""

    def __init__(self, bend: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.bend = bend

    def forward(self, h: Tensor) -> Tensor:
        return self.bend(h)


class Turning(nn.Module):
    """A network with a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex128))
        self.head = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.turn).real)


class OpacusRecurrent(nn.Module):
    """A recurrent layer as Opacus's ``ModuleValidator.fix`` makes it."""

    def __init__(self, kind: str, classes: int = 3) -> None:
        super().__init__()
        layers = pytest.importorskip("opacus.layers")
        torch.manual_seed(4)
        self.inner = getattr(layers, kind)(2, 3, batch_first=True)
        self.head = nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x.reshape(-1, 2, 2))[0][:, -1])


class DropPath(nn.Module):
    """Drops whole records of a branch at random, seldom."""

    def forward(self, h: Tensor) -> Tensor:
        return h * (torch.rand(len(h), 1, dtype=h.dtype) >= 0.1) / 0.9


KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda h: h.clamp(-0.5, 0.5),
    "maximum": lambda h: torch.maximum(h, 0.3 * h),
    "abs": torch.abs,
    "where": lambda h: torch.where(h > 0, h, 0.1 * h),
    "amax": lambda h: h - h.amax(1, keepdim=True),
}


Function = Callable[[Tensor], Tensor]


def by_shift(h: Tensor) -> Tensor:
    """Return a stable log of a sum of exponentials, smooth although it takes a maximum."""
    largest = h.amax(1, keepdim=True)
    return torch.tanh(h) * ((h - largest).exp().sum(1, keepdim=True).log() + largest)


def sinc(h: Tensor) -> Tensor:
    """Return sin(h)/h with its series near zero, smooth although it chooses between two."""
    near = h.abs() < 1e-4
    return torch.where(near, 1 - h * h / 6, torch.sin(h) / torch.where(near, 1.0, h))


# Functions with kinks, and what their warning says.
KINKED: dict[str, tuple[Function | nn.Module, str]] = {
    "SELU": (nn.SELU(), "uses SELU"),
    "selu": (functional.selu, "uses SELU"),
    "ELU(0.5)": (nn.ELU(0.5), "uses ELU"),
    "elu(alpha=1.1)": (lambda h: functional.elu(h, alpha=1.1), "uses ELU"),
    "h*(h>0)": (lambda h: h * (h > 0), "slope of the loss jumps"),
    "h*(h>0).float()": (lambda h: h * (h > 0).to(h.dtype), "slope of the loss jumps"),
    "gather at argmax": (
        lambda h: torch.tanh(h) * h.gather(1, h.argmax(1, keepdim=True)),
        "slope of the loss jumps",
    ),
    "cummax": (lambda h: h.cummax(1).values, "uses cummax"),
    "1-norm": (
        lambda h: torch.tanh(h) * h.norm(p=1, dim=1, keepdim=True),
        "slope of the loss jumps",
    ),
    "remainder": (lambda h: torch.remainder(h, 1.0), "uses remainder"),
    "sqrt(h²)": (lambda h: (h * h).sqrt(), "slope of the loss jumps"),
    "norm over one entry": (lambda h: h[..., None].norm(dim=-1), "slope of the loss jumps"),
    "ReLU": (nn.ReLU(), "uses ReLU"),
    "LeakyReLU": (nn.LeakyReLU(0.2), "uses LeakyReLU"),
    "two clamps": (lambda h: h.clamp(min=0) + 0.25 * h.clamp(max=0), "uses clamp"),
    "abs": (torch.abs, "uses abs"),
    "maximum": (lambda h: torch.maximum(h, 0.3 * h), "uses maximum"),
    "where": (lambda h: torch.where(h > 0, h, 0.1 * h), "uses where"),
    "amax": (lambda h: h - h.amax(1, keepdim=True), "uses amax"),
    "Hardtanh": (nn.Hardtanh(-0.5, 0.5), "uses Hardtanh"),
    "Hardswish": (lambda h: functional.hardswish(5 * h), "uses Hardswish"),
    "Softshrink": (nn.Softshrink(0.1), "uses Softshrink"),
    "sort": (lambda h: h.sort(1).values, "uses sort"),
    "median": (lambda h: torch.tanh(h) * h.median(1, keepdim=True).values, "uses median"),
    "sign": (lambda h: h * torch.sign(h), "uses round"),
    "floor": (lambda h: h - torch.floor(h), "uses round"),
    "topk": (lambda h: torch.tanh(h) * h.topk(2, 1).values.sum(1, keepdim=True), "uses sort"),
    "masked_fill": (lambda h: h.masked_fill(h < 0, 0.0), "uses masked_fill"),
    "a weak kink": (lambda h: torch.tanh(h) + 0.2 * h * (h > 0.2), "slope of the loss jumps"),
    "larger of two": (
        lambda h: torch.linalg.vector_norm(h.unflatten(1, (-1, 2)), math.inf, 2).repeat(1, 2),
        "slope of the loss jumps",
    ),
}
SMOOTH: dict[str, Function | nn.Module] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "GELU": nn.GELU(),
    "GELU by tanh": nn.GELU(approximate="tanh"),
    "SiLU": nn.SiLU(),
    "Mish": nn.Mish(),
    "softplus": functional.softplus,  # linear above 20: a jump of 2e-9, which matters to nobody
    "steep softplus": lambda h: functional.softplus(h, beta=50.0),
    "steep tanh": lambda h: torch.tanh(50 * h),
    "ELU": nn.ELU(),  # whose second derivative jumps, but not the slope
    "CELU(2)": nn.CELU(2.0),
    "softsign": functional.softsign,
    "softmax": lambda h: h.softmax(1),
    "logsigmoid": functional.logsigmoid,
    "sine": torch.sin,
    "square": torch.square,
    "2-norm": lambda h: h / h.norm(dim=1, keepdim=True),
    "LayerNorm": lambda h: functional.layer_norm(torch.tanh(h), h.shape[1:]),
    "guarded norm": lambda h: h / h.norm(dim=1, keepdim=True).clamp(min=1e-12),
    "logsumexp by hand": by_shift,
    "sinc": sinc,
    "wide clamp": lambda h: torch.tanh(h.clamp(-1e6, 1e6)),
    "abs of positive numbers": lambda h: (1 + h * h).abs().log(),
    "cube": lambda h: h**3,
    "erf": torch.erf,
    "arctangent": torch.atan,
    "bell": lambda h: torch.exp(-h * h),
    "steeper tanh": lambda h: torch.tanh(500 * h),
    "nan_to_num": lambda h: torch.tanh(h.nan_to_num()),
    "RMSNorm": lambda h: h * torch.rsqrt(h.square().mean(1, keepdim=True) + 1e-6),
}


def made(
    function: Function | nn.Module, *widths: int, seed: int = 0, records: int = 40
) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network of linear layers with a function after all but the last, and records."""
    torch.manual_seed(seed)
    act = function if isinstance(function, nn.Module) else Bent(function)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers += [nn.Linear(fan_in, fan_out), act]
    net = nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))
    return net, torch.randn(records, widths[0]), torch.randint(widths[-1], (records,))
