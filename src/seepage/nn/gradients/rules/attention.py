"""``nn.MultiheadAttention`` step by step, so that each of its projections is seen as a product.

The formula is that of ``torch.nn.functional.multi_head_attention_forward``; key and value biases,
added zeros and precomputed keys are left to the fallback.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.rules.linear import LINEAR, watched_linear
from seepage.nn.gradients.watching import Arguments, Watcher


def attention(
    watcher: Watcher,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Return the result of torch's function, sequence axis first: ``(length, batch, features)``."""
    unusual = (bias_k, bias_v, static_k, static_v)
    if any(t is not None for t in unusual) or add_zero_attn or query.dim() != 3:
        return NotImplemented
    size = query.shape[-1]
    weights = [in_proj_weight] * 3
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    projected = [
        _project(watcher, source, weight, in_proj_bias, slice(k * size, (k + 1) * size))
        for k, (source, weight) in enumerate(zip((query, key, value), weights, strict=True))
    ]
    q, k, v = (_heads(p, num_heads) for p in projected)
    scores = q @ k.transpose(-2, -1) / math.sqrt(size // num_heads)
    mask = _mask(attn_mask, key_padding_mask, scores)
    weights_of = torch.softmax(scores if mask is None else scores + mask, -1)
    mixed = (weights_of @ v).permute(2, 0, 1, 3).flatten(2)  # (length, batch, features)
    out = watched_linear(watcher, mixed, out_proj_weight, out_proj_bias)
    if not need_weights:
        return out, None
    return out, weights_of.mean(1) if average_attn_weights else weights_of


def _project(
    watcher: Watcher, source: Tensor, weight: Tensor | None, bias: Tensor | None, rows: slice
) -> Tensor:
    """Run one of the three projections; packed ones use a third of the rows of one weight."""
    assert weight is not None  # noqa: S101 - torch's module always has it
    packed = weight.shape[0] > rows.stop - rows.start
    used = weight[rows] if packed else weight
    shift = None if bias is None else bias[rows]
    arguments = Arguments(source, {"weight": weight, "bias": bias})
    first = {"weight": rows.start if packed else 0, "bias": rows.start}
    return watcher.call(LINEAR, arguments, lambda: functional.linear(source, used, shift), first)


def _heads(projected: Tensor, heads: int) -> Tensor:
    """Return ``(length, batch, features)`` as ``(batch, heads, length, features per head)``."""
    return projected.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _mask(attention_mask: Tensor | None, padding: Tensor | None, scores: Tensor) -> Tensor | None:
    """Return both masks as one that is added to the scores, minus infinity where hidden."""
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
