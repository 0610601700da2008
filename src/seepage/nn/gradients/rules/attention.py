"""Runs ``nn.MultiheadAttention`` step by step, so that each projection can be traced.

The formula is that of ``torch.nn.functional.multi_head_attention_forward``. Modules with key and
value biases, added zeros or precomputed keys use ``vmap`` instead.
"""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.rules.linear import LINEAR, watched_linear
from seepage.nn.gradients.watching import Arguments, Watcher

_SIGNATURE = inspect.signature(functional.multi_head_attention_forward)


def attention(watcher: Watcher, *args: Any, **kwargs: Any) -> Any:
    """Return the result of torch's function, or ``NotImplemented`` if ``vmap`` must be used."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    unusual = (given.bias_k, given.bias_v, given.static_k, given.static_v)
    if any(t is not None for t in unusual) or given.add_zero_attn or given.query.dim() != 3:
        return NotImplemented
    size = given.query.shape[-1]
    weights = [given.in_proj_weight] * 3
    if given.use_separate_proj_weight:
        weights = [given.q_proj_weight, given.k_proj_weight, given.v_proj_weight]
    sources = (given.query, given.key, given.value)
    projected = [
        _project(watcher, source, weight, given.in_proj_bias, slice(k * size, (k + 1) * size))
        for k, (source, weight) in enumerate(zip(sources, weights, strict=True))
    ]
    # (length, batch, features) as (batch, heads, length, features per head)
    q, k, v = (p.unflatten(-1, (given.num_heads, -1)).permute(1, 2, 0, 3) for p in projected)
    scores = q @ k.transpose(-2, -1) / math.sqrt(size // given.num_heads)
    mask = _mask(given.attn_mask, given.key_padding_mask, scores)
    weights_of = torch.softmax(scores if mask is None else scores + mask, -1)
    mixed = (weights_of @ v).permute(2, 0, 1, 3).flatten(2)  # (length, batch, features)
    out = watched_linear(watcher, mixed, given.out_proj_weight, given.out_proj_bias)
    if not given.need_weights:
        return out, None
    return out, weights_of.mean(1) if given.average_attn_weights else weights_of


def _project(
    watcher: Watcher, source: Tensor, weight: Tensor | None, bias: Tensor | None, rows: slice
) -> Tensor:
    """Run one of the three projections; packed projections use a third of one weight's rows."""
    assert weight is not None  # noqa: S101 - torch's module always has it
    packed = weight.shape[0] > rows.stop - rows.start
    used = weight[rows] if packed else weight
    shift = None if bias is None else bias[rows]
    arguments = Arguments(source, {"weight": weight, "bias": bias})
    first = {"weight": rows.start if packed else 0, "bias": rows.start}
    return watcher.call(LINEAR, arguments, lambda: functional.linear(source, used, shift), first)


def _mask(attention_mask: Tensor | None, padding: Tensor | None, scores: Tensor) -> Tensor | None:
    """Combine both masks into one to add to the scores; minus infinity hides a position."""
    total = None
    if attention_mask is not None:
        total = _added(attention_mask, scores)
        if total.dim() == 3:
            total = total.unflatten(0, (scores.shape[0], -1))
    if padding is not None:
        hidden = _added(padding, scores)[:, None, None, :]
        total = hidden if total is None else total + hidden
    return total


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)
