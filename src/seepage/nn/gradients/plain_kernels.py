"""Replaces torch's fused layers, which cannot be differentiated twice, by plain arithmetic.

Fused recurrent layers have no second derivative, and ``jvp(vmap(grad))`` of LayerNorm and
InstanceNorm is silently wrong (torch 2.13).
"""

from __future__ import annotations

import inspect
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
    """Run a recurrent layer step by step, by the formulas of ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``.

    ``product(x, weight, bias)`` replaces ``functional.linear``. The result is ``NotImplemented``
    for packed sequences, dropout between layers and projected states.
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
    """Run one layer in one time direction, and return its outputs and its last state."""
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


_NORMS = {f: inspect.signature(f) for f in (functional.layer_norm, functional.instance_norm)}


class PlainNorms(TorchFunctionMode):  # type: ignore[misc]
    """Replaces LayerNorm, InstanceNorm and weight normalisation by plain arithmetic."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch._weight_norm:
            return weight_norm(*args, **kwargs)
        if function not in _NORMS:
            return function(*args, **kwargs)
        bound = _NORMS[function].bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not given.get("use_input_stats", True):
            return function(*args, **kwargs)
        x, weight, bias = given["input"], given["weight"], given["bias"]
        if function is functional.layer_norm:
            axes = list(range(-len(given["normalized_shape"]), 0))
        else:
            axes, channels = list(range(2, x.dim())), (-1, *[1] * (x.dim() - 2))
            weight, bias = (p if p is None else p.reshape(channels) for p in (weight, bias))
        long = x if x.dtype.itemsize >= 4 else x.float()  # as torch does inside
        centred = long - long.mean(axes, keepdim=True)
        variance = (centred * centred).mean(axes, keepdim=True)
        out = (centred / torch.sqrt(variance + given["eps"])).to(x.dtype)
        out = out if weight is None else out * weight
        return out if bias is None else out + bias


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return ``g v/‖v‖``, with one norm per index of an axis, or a single norm if ``dim`` is −1.

    torch's own function supports neither forward mode nor ``vmap``.
    """
    axes = [axis for axis in range(v.dim()) if axis != dim]
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())
