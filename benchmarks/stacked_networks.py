"""Many networks of one shape trained at once, each on its own half of the records.

The parameters of ``M`` networks are stacked along a first axis, and every layer is one batched
matrix product over them. Activations have the shape ``(M, B, height, width, channels)``. Needs
NumPy and torch alone, so that it runs on a bare machine with an accelerator; ``single`` gives one
of the networks as an ordinary torch module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

DAMPING = 1e-3  # of the mean eigenvalue, as in seepage.nn.exposure_scores
SKETCH = 2048


class Layer(NamedTuple):
    """A 3×3 convolution, normalised over the record, with a bias and a ReLU."""

    width: int
    stride: int
    skip: bool = False  # whether the input of the layer before is added before the ReLU


SHAPES = {
    "small": (Layer(32, 2), Layer(64, 1), Layer(128, 2), Layer(128, 2)),
    "large": (
        Layer(64, 1),
        Layer(64, 2),
        Layer(64, 1),
        Layer(64, 1, skip=True),
        Layer(128, 2),
        Layer(128, 1),
        Layer(128, 1, skip=True),
        Layer(256, 2),
        Layer(256, 1),
        Layer(256, 1, skip=True),
    ),
}


class Columns(torch.autograd.Function):
    """The 3×3 neighbourhoods of every place, padded by zeros, as rows of a matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        """Return ``(M, B, height', width', 9 channels)``."""
        ctx.stride, ctx.shape = stride, x.shape
        padded = functional.pad(x, (0, 0, 1, 1, 1, 1))
        high, wide = (1 + (size - 1) // stride for size in x.shape[2:4])
        return torch.cat([padded[place] for place in _places(high, wide, stride)], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        """Add each neighbour's gradient to its place."""
        (gradient,) = gradients
        if not ctx.needs_input_grad[0]:
            return None, None
        models, batch, high, wide, channels = ctx.shape
        total = gradient.new_zeros(models, batch, high + 2, wide + 2, channels)
        parts = gradient.split(channels, -1)
        places = _places(gradient.shape[2], gradient.shape[3], ctx.stride)
        for place, part in zip(places, parts, strict=True):
            total[place] += part
        return total[:, :, 1:-1, 1:-1], None


def _places(high: int, wide: int, stride: int) -> Iterator[tuple[slice, ...]]:
    every = slice(None)
    for i in range(3):
        for j in range(3):
            rows = slice(i, i + stride * (high - 1) + 1, stride)
            yield every, every, rows, slice(j, j + stride * (wide - 1) + 1, stride)


def initial(
    shape: str, models: int, channels: int, classes: int, seed: int, device: str
) -> list[Tensor]:
    """Return random parameters, those of each network from a seed of its own."""
    stacks: list[list[Tensor]] = []
    for model in range(models):
        generator = torch.Generator().manual_seed(1000 * seed + model)
        own, inputs = [], channels
        for layer in SHAPES[shape]:
            size = (9 * inputs, layer.width)
            own += [torch.randn(size, generator=generator) * math.sqrt(2 / size[0])]
            own += [torch.zeros(layer.width)]
            inputs = layer.width
        own += [torch.randn(inputs, classes, generator=generator) / math.sqrt(inputs)]
        own += [torch.zeros(classes)]
        stacks.append(own)
    return [torch.stack(parts).to(device) for parts in zip(*stacks, strict=True)]


class Trace(NamedTuple):
    """What one pass leaves for per-record gradients: a layer's inputs and its two outputs."""

    columns: Tensor
    product: Tensor
    shifted: Tensor


def outputs(
    shape: str, parameters: list[Tensor], x: Tensor, traces: list[Trace] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logits ``(M, B, classes)`` and the inputs of the last layer ``(M, B, width)``."""
    models, batch = x.shape[:2]
    hidden = before = x
    for k, layer in enumerate(SHAPES[shape]):
        weight, bias = parameters[2 * k : 2 * k + 2]
        columns = Columns.apply(hidden, layer.stride)
        high, wide = columns.shape[2:4]
        product = torch.bmm(columns.flatten(1, 3), weight)
        normal = functional.layer_norm(
            product.view(models * batch, -1), (high * wide * layer.width,)
        )
        shifted = normal.view(models, -1, layer.width) + bias[:, None]
        if traces is not None:
            traces.append(Trace(columns.view(models, batch, high * wide, -1), product, shifted))
        shifted = shifted.view(models, batch, high, wide, layer.width)
        after = functional.relu(shifted + before if layer.skip else shifted)
        before, hidden = hidden, after
    features = hidden.mean((2, 3))
    return torch.baddbmm(parameters[-1][:, None], features, parameters[-2]), features


def train(
    shape: str,
    images: Tensor,
    labels: Tensor,
    inside: np.ndarray,
    *,
    classes: int,
    epochs: int,
    rate: float,
    batch: int,
    seed: int,
) -> list[Tensor]:
    """Train one network for each row of ``inside``; images are ``(n, height, width, channels)``.

    SGD with Nesterov's momentum 0.9, weight decay 5e-4, a rate that rises over the first tenth and
    falls to zero by a cosine; every image is mirrored with probability one half.
    """
    device, models = images.device, len(inside)
    torch.manual_seed(seed)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    parameters = initial(shape, models, images.shape[3], classes, seed, str(device))
    momenta = [torch.zeros_like(p) for p in parameters]
    members = torch.stack([torch.as_tensor(np.flatnonzero(row)) for row in inside]).to(device)
    per_epoch = members.shape[1] // batch
    steps, step = epochs * per_epoch, 0
    for _ in range(epochs):
        order = torch.rand(members.shape, device=device).argsort(1)
        shuffled = members.gather(1, order)
        for start in range(0, per_epoch * batch, batch):
            rows = shuffled[:, start : start + batch]
            x, y = images[rows], labels[rows]
            mirrored = torch.rand(rows.shape, device=device) < 0.5
            x = torch.where(mirrored[..., None, None, None], x.flip(3), x).to(kind)
            leaves = [p.to(kind).requires_grad_() for p in parameters]
            logits, _ = outputs(shape, leaves, x)
            # The mean over each network's own batch, summed over the networks
            loss = functional.cross_entropy(
                logits.float().flatten(0, 1), y.flatten(), reduction="sum"
            )
            gradients = torch.autograd.grad(loss / batch, leaves)
            warm = min(1.0, (step + 1) / (0.1 * steps))
            now = rate * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
            with torch.no_grad():
                slopes = [g.float() for g in gradients]
                torch._foreach_add_(slopes, parameters, alpha=5e-4)
                torch._foreach_mul_(momenta, 0.9)
                torch._foreach_add_(momenta, slopes)
                torch._foreach_add_(slopes, momenta, alpha=0.9)
                torch._foreach_add_(parameters, slopes, alpha=-now)
            step += 1
    return parameters


def log_odds(
    shape: str, parameters: list[Tensor], images: Tensor, labels: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return the log-odds of each record's class, ``(M, n)``, and whether it was predicted."""
    odds, right = [], []
    models = len(parameters[0])
    with torch.no_grad():
        for x, y in zip(images.split(chunk), labels.split(chunk), strict=True):
            logits, _ = outputs(shape, parameters, x.expand(models, *x.shape))
            own = y.expand(models, -1)[..., None]
            mine = logits.gather(-1, own)[..., 0]
            rivals = logits.scatter(-1, own, -math.inf)
            odds.append(mine - rivals.logsumexp(-1))
            right.append(logits.argmax(-1) == y)
    return torch.cat(odds, 1), torch.cat(right, 1)


def one_model_scores(
    shape: str,
    parameters: list[Tensor],
    images: Tensor,
    labels: Tensor,
    inside: Tensor,
    chunk: int,
) -> dict[str, Tensor]:
    """Return the scores of ``seepage.nn.exposure_scores`` of every network, ``(M, n)`` each.

    The sketch of a gradient multiplies it by random signs and adds the entries whose places are
    equal modulo its size.
    """
    models, device = len(parameters[0]), images.device
    generator = torch.Generator().manual_seed(0)
    signs = [
        (2.0 * torch.randint(0, 2, p.shape[1:], generator=generator) - 1).flatten().to(device)
        for p in parameters
    ]
    norms, sketches, features, residuals = [], [], [], []
    frozen = [p.detach() for p in parameters]
    for x, y in zip(images.split(chunk), labels.split(chunk), strict=True):
        traces: list[Trace] = []
        # The first layer's product must be part of the graph
        leaves = [frozen[0].requires_grad_(), *frozen[1:]]
        logits, last = outputs(shape, leaves, x.expand(models, *x.shape), traces)
        own = functional.one_hot(y, logits.shape[-1])
        losses = logits.logsumexp(-1) - (logits * own).sum(-1)
        ends = [end for trace in traces for end in (trace.product, trace.shifted)]
        deltas = torch.autograd.grad(losses.sum(), ends)
        with torch.no_grad():
            residual = logits.softmax(-1) - own
            parts = []
            for k, trace in enumerate(traces):
                there = (models, len(x), trace.columns.shape[2], -1)
                product, shifted = (d.view(there) for d in deltas[2 * k : 2 * k + 2])
                parts += [(trace.columns.mT @ product).flatten(2), shifted.sum(2)]
            parts += [(last[..., :, None] * residual[..., None, :]).flatten(2), residual]
            norms.append(sum(p.square().sum(-1) for p in parts).sqrt())
            total = last.new_zeros(models, len(x), SKETCH)
            for part, sign in zip(parts, signs, strict=True):
                signed = functional.pad(part * sign, (0, -part.shape[-1] % SKETCH))
                total += signed.unflatten(-1, (-1, SKETCH)).sum(2)
            sketches.append(total)
            features.append(functional.pad(last, (0, 1), value=1.0))
            residuals.append(residual)
    frozen[0].requires_grad_(False)
    with torch.no_grad():
        every, rest = torch.cat(features, 1), torch.cat(residuals, 1)
        found = {"norm": torch.cat(norms, 1)}
        kinds: list[list[Tensor]] = [[], [], []]
        sketched = torch.cat(sketches, 1)
        for k in range(models):
            phi, r, was_in = every[k].double(), rest[k].double(), inside[k]
            gradients = (r[:, :, None] * phi[:, None, :]).flatten(1)
            kinds[0].append(_leverage(gradients, was_in))
            kinds[1].append(_leverage(sketched[k].double(), was_in))
            kinds[2].append(_own_shift(phi, r, labels, was_in))
        names = ("last-layer leverage", "sketched leverage", "own shift")
        found |= {n: torch.stack(kind) for n, kind in zip(names, kinds, strict=True)}
    return found


def _leverage(gradients: Tensor, inside: Tensor) -> Tensor:
    """Return ``(g − m)ᵀ(G + λI)⁻¹(g − m)``, mean and scatter of the members without the record."""
    n = int(inside.sum())
    centred = gradients - gradients[inside].mean(0)
    scatter = centred[inside].mT @ centred[inside]
    scatter.diagonal().add_(DAMPING * scatter.diagonal().mean())
    whitened = torch.linalg.solve_triangular(
        torch.linalg.cholesky(scatter), centred.mT, upper=False
    )
    h = whitened.square().sum(0)
    return torch.where(inside, (n / (n - 1)) ** 2 * h / (1 - h * n / (n - 1)), h)


def _own_shift(phi: Tensor, r: Tensor, labels: Tensor, inside: Tensor) -> Tensor:
    """Return how far the last layer's own step for a record moves the record's log-odds."""
    d = phi.shape[1]
    own = functional.one_hot(labels, r.shape[1]).to(r)
    p = r + own
    c = p.shape[1]
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    some, member_spread = phi[inside], spread[inside]
    hessian = torch.zeros(c, d, c, d, dtype=phi.dtype, device=phi.device)
    for a in range(c):
        for b in range(c):
            hessian[a, :, b] = some.mT @ (some * member_spread[:, a, b, None])
    flat = hessian.view(c * d, c * d)
    flat.diagonal().add_(DAMPING * flat.diagonal().mean())
    inverse = torch.linalg.inv(flat).view(c, d, c, d)
    rows = inverse.permute(1, 0, 2, 3).reshape(d, -1)
    blocks = torch.cat(
        [
            ((part @ rows).view(-1, c, c, d) * part[:, None, None]).sum(-1)
            for part in phi.split(1000)
        ]
    )
    eye = torch.eye(c, dtype=phi.dtype, device=phi.device)
    without = torch.linalg.solve(eye - blocks @ spread, blocks)
    blocks = torch.where(inside[:, None, None], without, blocks)
    gap = -(r * own).sum(1)  # 1 − p of the own class
    direction = -r / gap.clamp(min=1e-12)[:, None]
    return gap * torch.einsum("na,nab,nb->n", direction, blocks, direction)


class Single(nn.Module):
    """One of the networks as an ordinary torch module; images are ``(B, channels, h, w)``."""

    def __init__(self, shape: str, parameters: list[Tensor], model: int) -> None:
        super().__init__()
        self.layers = SHAPES[shape]
        self.convolutions, self.normals = nn.ModuleList(), nn.ModuleList()
        for k, layer in enumerate(self.layers):
            weight, bias = (p[model].detach() for p in parameters[2 * k : 2 * k + 2])
            inputs = len(weight) // 9
            convolution = nn.Conv2d(inputs, layer.width, 3, layer.stride, 1, bias=False)
            square = weight.reshape(3, 3, inputs, layer.width).permute(3, 2, 0, 1)
            convolution.weight = nn.Parameter(square.clone())
            normal = nn.GroupNorm(1, layer.width)
            normal.weight.requires_grad_(False)
            normal.bias = nn.Parameter(bias.clone())
            self.convolutions.append(convolution)
            self.normals.append(normal)
        weight, bias = (p[model].detach() for p in parameters[-2:])
        self.last = nn.Linear(*weight.shape)
        self.last.weight = nn.Parameter(weight.T.clone())
        self.last.bias = nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        before = x
        for layer, convolution, normal in zip(
            self.layers, self.convolutions, self.normals, strict=True
        ):
            shifted = normal(convolution(x))
            x, before = functional.relu(shifted + before if layer.skip else shifted), x
        logits: Tensor = self.last(x.mean((2, 3)))
        return logits
