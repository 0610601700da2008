"""Which operations have a closed form for their per-example gradients: one file per family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.rules.attention import attention
from seepage.nn.gradients.rules.broadcasting import Addition, Multiplication, Repetition
from seepage.nn.gradients.rules.convolution import Convolution
from seepage.nn.gradients.rules.embedding import Embedding
from seepage.nn.gradients.rules.linear import AddedProduct, Linear, Product
from seepage.nn.gradients.rules.normalisation import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
)
from seepage.nn.gradients.rules.recurrent import CELLS, recurrent
from seepage.nn.gradients.taps import Rule

RULES: dict[Any, Rule] = {
    functional.linear: Linear(),
    torch.matmul: Product(),
    Tensor.matmul: Product(),
    Tensor.__matmul__: Product(),
    torch.addmm: AddedProduct(),
    torch.conv1d: Convolution(1),
    torch.conv2d: Convolution(2),
    torch.conv3d: Convolution(3),
    functional.embedding: Embedding(),
    functional.layer_norm: LayerNorm(),
    functional.group_norm: GroupNorm(),
    functional.instance_norm: InstanceNorm(),
    functional.batch_norm: BatchNorm(),
    functional.rms_norm: RMSNorm(),
    torch.add: Addition(),
    Tensor.add: Addition(),
    Tensor.__add__: Addition(),
    Tensor.__radd__: Addition(),
    torch.mul: Multiplication(),
    Tensor.mul: Multiplication(),
    Tensor.__mul__: Multiplication(),
    Tensor.__rmul__: Multiplication(),
    Tensor.expand: Repetition(),
}

# Functions made of several uses of parameters, run step by step so that each use is seen.
_COMPOSITES: dict[str, Callable[..., Any]] = {
    "multi_head_attention_forward": attention,
    **{name: partial(recurrent, cell) for name, cell in CELLS.items()},
}


def composite(function: Any) -> Callable[..., Any] | None:
    """Return what runs a function step by step, or ``None`` for a function of a single step."""
    return _COMPOSITES.get(getattr(function, "__name__", ""))
