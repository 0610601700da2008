"""The case table: small modules with a corner each, and six whole networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import seepage.nn as snn
from reproduction.private_sgd.networks import cifar_cnn, mnist_cnn


class Sequences(nn.Module):
    """A module on sequences (B, S, F), then its mean over positions."""

    def __init__(self, inner: nn.Module, pick: Callable[[Any], Tensor] = lambda out: out) -> None:
        super().__init__()
        self.inner, self.pick = inner, pick

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.pick(self.inner(x))).mean(1)


class Turned(nn.Module):
    """Sequences with the records second."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class SelfAttention(nn.Module):
    """Self-attention with a causal mask, through torch's own module."""

    def __init__(self, packed: bool = True) -> None:
        super().__init__()
        sizes = {} if packed else {"kdim": 4, "vdim": 4}
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True, **sizes)
        self.side = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        other = x if self.inner._qkv_same_embed_dim else self.side(x)
        return self.inner(x, other, other, attn_mask=mask)[0].mean(1)


class Twice(nn.Module):
    """One layer used twice, at different depths."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class TiedText(nn.Module):
    """Token and position embeddings, causal attention, and an output tied to the tokens."""

    def __init__(self, tokens: int = 7, width: int = 6, length: int = 5) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Embedding(length, width)
        self.project = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        q, k, v = self.project(self.norm(h)).chunk(3, -1)
        h = h + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h)


class HandMade(nn.Module):
    """Parameters that are added, multiplied and repeated, a folded batch, and a plain product."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 1, 4))
        self.places = nn.Parameter(torch.randn(5, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.shift = nn.Parameter(torch.randn(4))
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.start.expand(len(x), -1, -1), x], 1) + self.places
        x = torch.tanh(self.scale * x) @ self.matrix
        folded = torch.addmm(self.shift, x.reshape(-1, 4), self.matrix)
        return self.inner(torch.tanh(folded)).reshape(len(x), -1, 3).mean(1)


class Curious(nn.Module):
    """A parameter used in a way that no rule covers, inside a network with normalising layers."""

    def __init__(self) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.rand(4) + 0.5)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(x)) * torch.exp(-self.power))


class Residual(nn.Module):
    """A block of a GroupNorm ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, before), nn.GroupNorm(2, after)])
        self.short = (
            nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.silu(self.norms[0](x))
        out = self.second(nn.functional.silu(self.norms[1](self.first(h))))
        return out + self.short(x)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        Residual(4, 4, 1),
        Residual(4, 6, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True)
    return nn.Sequential(nn.Linear(3, 6), nn.TransformerEncoder(layer, 2), Mean(), nn.Linear(6, 3))


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Recurrent(nn.Module):
    """An LSTM read at its last position."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


@dataclass(frozen=True)
class Case:
    """A network, the shape of one input, and what goes with it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Any = "mse"
    tokens: int = 0
    view: Any = field(default_factory=snn.Input)
    fallback: bool = False
    classes: bool = False

    def build(self, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
        """Return network, inputs and targets in float64, parameters away from their start."""
        torch.manual_seed(seed)
        net = self.make().double()
        with torch.no_grad():
            for p in net.parameters():
                p.add_(0.3 * torch.randn_like(p))
        batch = 3
        if self.tokens:
            x = torch.randint(0, self.tokens, (batch, *self.shape))
        else:
            x = torch.randn(batch, *self.shape, dtype=torch.float64)
        with torch.no_grad():
            out = net(x)
        if self.classes:
            y = torch.randint(0, out.shape[-1], tuple(out.shape[:-1]))
        else:
            y = torch.randn_like(out)
        return net, x, y


MODULES = {
    "linear": Case(lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": Case(lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear on sequences": Case(lambda: Sequences(nn.Linear(4, 3)), (5, 4)),
    "conv1d dilated, grouped": Case(
        lambda: nn.Conv1d(4, 4, 2, padding=1, dilation=2, groups=2), (4, 5)
    ),
    "conv2d strided": Case(lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 5, 4)),
    "conv2d padded same": Case(lambda: nn.Conv2d(1, 2, (2, 3), padding="same"), (1, 4, 3)),
    "conv3d": Case(lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 2)),
    "conv2d many channels": Case(lambda: nn.Conv2d(6, 8, 2), (6, 2, 3)),
    "embedding": Case(
        lambda: Sequences(nn.Embedding(5, 3, padding_idx=1)),
        (4,),
        tokens=5,
        view=snn.Embedding("inner"),
    ),
    "layer norm": Case(lambda: Sequences(nn.LayerNorm(4)), (3, 4)),
    "group norm": Case(lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "instance norm": Case(lambda: nn.InstanceNorm2d(2, affine=True), (2, 3, 3)),
    "rms norm": Case(lambda: Sequences(nn.RMSNorm(4)), (3, 4)),
    "batch norm in eval": Case(lambda: nn.BatchNorm1d(4).eval(), (4,)),
    "attention": Case(SelfAttention, (3, 6)),
    "attention, separate sizes": Case(lambda: SelfAttention(packed=False), (3, 6)),
    "used twice": Case(Twice, (5,)),
    "tied text": Case(TiedText, (5,), "cross_entropy", 7, snn.Embedding("tokens"), classes=True),
    "hand-made": Case(HandMade, (4, 4)),
    "gru, two ways": Case(
        lambda: Sequences(nn.GRU(3, 2, batch_first=True, bidirectional=True), lambda o: o[0]),
        (3, 3),
    ),
    "two-layer lstm, sequence first": Case(
        lambda: nn.Sequential(
            Turned(), Sequences(nn.LSTM(3, 2, 2), lambda o: o[0].transpose(0, 1))
        ),
        (2, 3),
    ),
    "rnn without bias": Case(
        lambda: Sequences(nn.RNN(3, 3, bias=False, batch_first=True), lambda o: o[0]), (6, 3)
    ),
    "lstm with projection": Case(
        lambda: Sequences(nn.LSTM(3, 3, proj_size=2, batch_first=True), lambda o: o[0]),
        (2, 3),
        fallback=True,
    ),
    "transposed convolution": Case(lambda: nn.ConvTranspose2d(2, 2, 2), (2, 3, 2), fallback=True),
    "without a rule": Case(Curious, (4,), fallback=True),
}

NETWORKS = {
    "mlp": Case(
        lambda: nn.Sequential(
            nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)
        ),
        (6,),
        "cross_entropy",
        classes=True,
    ),
    "mnist cnn of 004": Case(
        lambda: mnist_cnn((2, 3), side=11, classes=3), (1, 11, 11), "cross_entropy", classes=True
    ),
    "cifar cnn of 004": Case(
        lambda: cifar_cnn((2, 2, 3), side=8, hidden=4, classes=3),
        (3, 8, 8),
        "cross_entropy",
        classes=True,
    ),
    "group norm resnet": Case(resnet, (2, 5, 5), "cross_entropy", classes=True),
    "transformer encoder": Case(transformer, (3, 3), "cross_entropy", classes=True),
    "lstm": Case(Recurrent, (4, 3), "cross_entropy", classes=True),
}

CASES = MODULES | NETWORKS

# Of the others a dense Jacobian is made in no time.
LARGE = (
    "two-layer lstm, sequence first",
    "mnist cnn of 004",
    "cifar cnn of 004",
    "group norm resnet",
    "transformer encoder",
)
SMALL = [name for name in CASES if name not in LARGE]
