"""Plain arithmetic in place of torch's fused layers, which cannot be differentiated twice.

Fused recurrent layers have no second derivative, and ``jvp(vmap(grad))`` of LayerNorm and
InstanceNorm is silently wrong (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Cell = Callable[[Tensor, State, Callable[[Tensor], Tensor]], State]


def _lstm_cell(given: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
    i, f, g, o = (given + recur(state[0])).chunk(4, -1)
    memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def _gru_cell(given: Tensor, state: State, recur: Callable[[Tensor], Tensor]) -> State:
    (r, z, n), (hr, hz, hn) = given.chunk(3, -1), recur(state[0]).chunk(3, -1)
    keep = torch.sigmoid(z + hz)
    new = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return ((1 - keep) * new + keep * state[0],)


def _plain_cell(
    squash: Callable[[Tensor], Tensor],
    given: Tensor,
    state: State,
    recur: Callable[[Tensor], Tensor],
) -> State:
    return (squash(given + recur(state[0])),)


# By name, since versions of torch differ in which object they call.
CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": partial(_plain_cell, torch.tanh),
    "rnn_relu": partial(_plain_cell, torch.relu),
}


class PlainRecurrence(TorchFunctionMode):  # type: ignore[misc]
    """Runs recurrent layers step by step."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        cell = CELLS.get(getattr(function, "__name__", ""))
        if cell is not None:
            output = run_recurrent(cell, functional.linear, *args, **kwargs)
            if output is not NotImplemented:
                return output
        return function(*args, **kwargs)


def run_recurrent(
    cell: Cell,
    product: Product,
    input: Tensor,
    first: Any,
    weights: Any,
    biased: Any,
    layers: Any,
    dropout: float = 0.0,
    train: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
) -> Any:
    """Run a recurrent layer step by step: the formulas of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``.

    ``product(x, weight, bias)`` replaces ``functional.linear``. Packed sequences, dropout
    between the layers and projected states are not covered (``NotImplemented``).
    """
    if not isinstance(weights, list | tuple) or not isinstance(biased, bool):
        return NotImplemented  # a packed sequence, which has another order of arguments
    ways = 2 if bidirectional else 1
    per_way = 4 if biased else 2
    if len(weights) != layers * ways * per_way or (dropout and train) or input.dim() != 3:
        return NotImplemented  # projected states have further weights
    starts: State = tuple(first) if isinstance(first, list | tuple) else (first,)
    time = 1 if batch_first else 0
    each = iter(weights)
    ends: list[State] = []
    for layer in range(layers):
        sides = []
        for way in range(ways):
            k = layer * ways + way
            out, end = _direction(
                cell,
                product,
                input,
                tuple(s[k] for s in starts),
                [next(each) for _ in range(per_way)],
                time,
                backwards=way == 1,
            )
            sides.append(out)
            ends.append(end)
        input = torch.cat(sides, -1) if ways == 2 else sides[0]
    last = tuple(torch.stack([end[k] for end in ends]) for k in range(len(starts)))
    return (input, *last)


def _direction(
    cell: Cell,
    product: Product,
    input: Tensor,
    state: State,
    weights: list[Tensor],
    time: int,
    backwards: bool,
) -> tuple[Tensor, State]:
    """Run one layer in one direction of time; return its outputs and its last state."""
    of_input, of_state = weights[0], weights[1]
    shifts: tuple[Any, Any] = (weights[2], weights[3]) if len(weights) == 4 else (None, None)
    given = product(input, of_input, shifts[0])
    steps = given.unbind(time)
    outputs = []
    for now in reversed(steps) if backwards else steps:
        state = cell(now, state, lambda h: product(h, of_state, shifts[1]))
        outputs.append(state[0])
    if backwards:
        outputs.reverse()
    return torch.stack(outputs, time), state


class PlainNorms(TorchFunctionMode):  # type: ignore[misc]
    """Replaces LayerNorm, InstanceNorm and weight normalisation by plain arithmetic."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.layer_norm:
            return _layer_norm(*args, **kwargs)
        if function is functional.instance_norm and kwargs.get("use_input_stats", True):
            return _instance_norm(*args, **kwargs)
        if function is torch._weight_norm:
            return weight_norm(*args, **kwargs)
        return function(*args, **kwargs)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return ``g v/‖v‖``, with one norm for each entry of an axis, or one for all if ``dim`` is −1.

    torch's own function has no forward mode, and no rule under ``vmap``.
    """
    axes = [axis for axis in range(v.dim()) if axis != dim]
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())


def _layer_norm(
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out = _standard(x, list(range(-len(shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    out = _standard(x, list(range(2, x.dim())), eps)
    channels = (1, -1, *[1] * (x.dim() - 2))
    out = out if weight is None else out * weight.reshape(channels)
    return out if bias is None else out + bias.reshape(channels)


def _standard(x: Tensor, axes: list[int], eps: float) -> Tensor:
    long = x if x.dtype.itemsize >= 4 else x.float()  # as torch does inside
    centred = long - long.mean(axes, keepdim=True)
    return (centred / torch.sqrt((centred * centred).mean(axes, keepdim=True) + eps)).to(x.dtype)
