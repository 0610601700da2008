"""Rules for operations whose per-record gradients have a closed form, one file per kind of layer.

Each file defines :class:`~seepage.nn.gradients.watching.Rule` objects and their parts. ``RULES``
maps each torch function to its rule. A rule uses only a call's arguments and the gradient at its
output, not networks, losses or views.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.plain_kernels import CELLS, Cell, run_recurrent
from seepage.nn.gradients.rules.attention import attention
from seepage.nn.gradients.rules.broadcasting import AdditionRule, MultiplicationRule, RepetitionRule
from seepage.nn.gradients.rules.convolution import ConvolutionRule
from seepage.nn.gradients.rules.embedding import EmbeddingRule
from seepage.nn.gradients.rules.linear import (
    AddedProductRule,
    LinearRule,
    ProductRule,
    watched_linear,
)
from seepage.nn.gradients.rules.normalisation import NormRule
from seepage.nn.gradients.watching import RuleBook, Watcher


def _recurrent(cell: Cell, watcher: Watcher, *args: Any, **kwargs: Any) -> Any:
    """Run a recurrent layer while its matrix products are traced."""
    return run_recurrent(cell, partial(watched_linear, watcher), *args, **kwargs)


RULES = RuleBook(
    rules={
        functional.linear: LinearRule(),
        torch.matmul: ProductRule(),
        Tensor.matmul: ProductRule(),
        Tensor.__matmul__: ProductRule(),
        torch.addmm: AddedProductRule(),
        torch.conv1d: ConvolutionRule(1),
        torch.conv2d: ConvolutionRule(2),
        torch.conv3d: ConvolutionRule(3),
        functional.embedding: EmbeddingRule(),
        functional.layer_norm: NormRule(functional.layer_norm, channels=False),
        functional.rms_norm: NormRule(functional.rms_norm, channels=False),
        functional.group_norm: NormRule(functional.group_norm, channels=True),
        functional.instance_norm: NormRule(functional.instance_norm, channels=True),
        functional.batch_norm: NormRule(functional.batch_norm, channels=True),
        torch.add: AdditionRule(),
        Tensor.add: AdditionRule(),
        Tensor.__add__: AdditionRule(),
        Tensor.__radd__: AdditionRule(),
        torch.mul: MultiplicationRule(),
        Tensor.mul: MultiplicationRule(),
        Tensor.__mul__: MultiplicationRule(),
        Tensor.__rmul__: MultiplicationRule(),
        Tensor.expand: RepetitionRule(),
    },
    composites={
        "multi_head_attention_forward": attention,
        **{name: partial(_recurrent, cell) for name, cell in CELLS.items()},
    },
)
