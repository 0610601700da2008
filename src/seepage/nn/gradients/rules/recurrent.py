"""Recurrent layers step by step, so that each use of a weight is seen and can be differentiated.

The formulas are those of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``. Packed sequences, dropout between
the layers and projected states are left to the fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.nn.gradients.rules.linear import Linear
from seepage.nn.gradients.taps import Bound, Watcher

_LINEAR = Linear()
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


# By name: versions of torch differ in which object they call.
CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": partial(_plain_cell, torch.tanh),
    "rnn_relu": partial(_plain_cell, torch.relu),
}


def recurrent(cell: Cell, watcher: Watcher, *args: Any, **kwargs: Any) -> Any:
    """Run a recurrent layer under a watcher that sees each of its products."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        bound = Bound(x, {"weight": weight, "bias": bias})
        return watcher.call(_LINEAR, bound, lambda: functional.linear(x, weight, bias))

    return _run(cell, product, *args, **kwargs)


class PlainRecurrence(TorchFunctionMode):  # type: ignore[misc]
    """Runs recurrent layers step by step: the fused ones of graphics cards have no tangents."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        cell = CELLS.get(getattr(function, "__name__", ""))
        if cell is not None:
            output = _run(cell, functional.linear, *args, **kwargs)
            if output is not NotImplemented:
                return output
        return function(*args, **kwargs)


def _run(
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
    if not isinstance(weights, list | tuple) or not isinstance(biased, bool):
        return NotImplemented  # a packed sequence, whose arguments come in another order
    ways = 2 if bidirectional else 1
    per_way = 4 if biased else 2
    if len(weights) != layers * ways * per_way or (dropout and train) or input.dim() != 3:
        return NotImplemented
    starts: State = tuple(first) if isinstance(first, list | tuple) else (first,)
    if any(start.shape != starts[0].shape for start in starts):
        return NotImplemented  # states that are projected
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
