"""Per-example gradients of embeddings: one-hot vectors on the left, ``δ`` on the right."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from seepage.nn.gradients.contributions import Contribution
from seepage.nn.gradients.outer_products import OneHot, Outer
from seepage.nn.gradients.taps import Bound, Call, Layout, Rule


class Embedding(Rule):
    """A table looked up by token numbers, the same for all examples (positions) or not."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return tokens and table; scaling by frequency mixes the examples of a batch."""
        return _bind(*args, **kwargs)

    def covers(self, bound: Bound, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the examples are along the tokens; shared positions are repeated."""
        if layout.axis is None:
            return len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
        return layout.axis < len(shape) - 1

    def contributions(self, call: Call, delta: Tensor) -> list[Contribution]:
        """Return one term per token."""
        layout = call.layout
        tokens = call.bound.input
        rows = layout.by_example(delta).flatten(1, -2)[:, None]
        if tokens.numel() == rows.shape[2]:  # shared by all examples
            index = tokens.reshape(1, 1, -1).expand(rows.shape[0], 1, -1)
        else:
            index = layout.by_example(tokens).flatten(1)[:, None]
        padding = call.bound.options["padding"]
        keep = None if padding is None else index != padding
        table = call.bound.parameters["weight"]
        assert table is not None  # noqa: S101 - it has a name
        tokens_as_rows = OneHot(index, int(table.shape[0]), keep)
        return [Contribution(call.names["weight"], (rows,), partial(Outer, tokens_as_rows))]


def _bind(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Bound | None:
    if max_norm is not None or scale_grad_by_freq:
        return None
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return Bound(input, {"weight": weight}, {"padding": padding_idx})
