"""The networks of the benchmarks on an accelerator: a WideResNet, GPT-2's shape and Llama's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class WideBlock(nn.Module):
    """A pre-activation residual block with GroupNorm and SiLU."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        h = functional.silu(self.norm1(x))
        return self.conv2(functional.silu(self.norm2(self.conv1(h)))) + self.short(h)


def wide_resnet(depth: int = 16, widen: int = 4, classes: int = 10) -> nn.Module:
    """Return WideResNet-depth-widen for 32×32 images, with GroupNorm in place of BatchNorm."""
    blocks = (depth - 4) // 6
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    before = 16
    for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
        for block in range(blocks):
            layers.append(WideBlock(before, width, 2 if stage > 0 and block == 0 else 1))
            before = width
    layers += [nn.GroupNorm(16, before), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(before, classes))


def wide_batch(device: torch.device, small: bool) -> tuple[str, nn.Module, Tensor, Tensor]:
    """Return what WideResNet-16-4 is called, the network, and a batch of random images for it."""
    torch.manual_seed(0)
    batch, widen = (4, 1) if small else (1024, 4)
    net = wide_resnet(16, widen).to(device)
    x = torch.rand(batch, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    return f"WideResNet-16-{widen}, GroupNorm", net, x, y


class GPTBlock(nn.Module):
    """Attention and a two-layer perceptron, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A decoder of GPT-2's shape, its output tied to its token embeddings."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(_start)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of every next token."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


# Layers, width, heads, and records in a batch.
GPT_SIZES = {"124M": (12, 768, 12, 16), "1.3B": (24, 2048, 16, 8)}


def gpt_batch(
    device: torch.device, small: bool, size: str = "124M"
) -> tuple[str, nn.Module, Tensor, Tensor]:
    """Return what GPT-2's shape is called, the network, and a batch of random tokens for it."""
    torch.manual_seed(0)
    layers, width, heads, batch = (2, 16, 2, 2) if small else GPT_SIZES[size]
    tokens, length = (50, 8) if small else (50257, 256)
    with torch.device(device):
        net = GPT(layers, width, heads, tokens, length)
    x = torch.randint(0, tokens, (batch, length), device=device)
    y = torch.randint(0, tokens, (batch, length), device=device)
    return f"GPT-2's shape, sequence {length}", net, x, y


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


class LoRALinear(nn.Module):
    """A frozen linear layer with a trained change of low rank beside it."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        kind = {"bias": False, "device": frozen.weight.device, "dtype": torch.float32}
        self.down = nn.Linear(frozen.in_features, rank, **kind)
        self.up = nn.Linear(rank, frozen.out_features, **kind)
        nn.init.normal_(self.down.weight, std=0.02)
        nn.init.normal_(self.up.weight, std=0.02)  # as after a few steps

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        return self.frozen(x) + self.up(self.down(x))


class LlamaBlock(nn.Module):
    """Rotary attention and a gated perceptron, each after an RMSNorm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        square = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.q, self.k, self.v, self.out = square
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the block's output."""
        h = self.norm1(x).to(x.dtype)
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = (part * cos + _turned(part) * sin for part in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x).to(x.dtype)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Llama(nn.Module):
    """A decoder of Llama's shape; its blocks can be rerun in the backward pass to save memory."""

    def __init__(
        self, layers: int, width: int, heads: int, inner: int, tokens: int, checkpointed: bool
    ) -> None:
        super().__init__()
        self.checkpointed, self.size = checkpointed, width // heads
        self.tokens = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, tokens, bias=False)
        self.apply(_start)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of every next token."""
        h = self.tokens(x)
        speeds = 1e4 ** -(torch.arange(0, self.size, 2, device=x.device) / self.size)
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), speeds)
        cos, sin = (torch.cat((a, a), -1).to(h.dtype) for a in (angles.cos(), angles.sin()))
        for block in self.blocks:
            if self.checkpointed:
                h = checkpoint(block, h, cos, sin, use_reentrant=False)
            else:
                h = block(h, cos, sin)
        return self.head(self.norm(h).to(h.dtype))


def with_adapters(net: nn.Module, names: tuple[str, ...], rank: int) -> nn.Module:
    """Freeze a network, and add an adapter to every linear layer of these names."""
    net.requires_grad_(False)
    for module in list(net.modules()):
        for name in names:
            layer = getattr(module, name, None)
            if isinstance(layer, nn.Linear):
                setattr(module, name, LoRALinear(layer, rank))
    return net
