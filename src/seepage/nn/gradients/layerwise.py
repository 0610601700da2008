"""One forward and backward pass that frees every layer once its gradients are processed.

The gradients of a whole batch, record by record, would take many times the memory of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from seepage.nn.gradients.per_record_gradients import GradientTerm, Key
from seepage.nn.gradients.watching import Call, WatchedNetwork, connected
from seepage.nn.problem.problem import Batch

Take = Callable[[Key, list[GradientTerm]], None]


def layer_by_layer(
    network: WatchedNetwork,
    batch: Batch,
    take: Take,
    thin: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:
    """Hand the terms of each parameter to ``take`` when they are complete; return the losses.

    ``thin`` are random matrices by the names of weights whose gradients are narrowed by them.
    """
    with torch.enable_grad():
        return _LayerwisePass(network, batch, take).run(thin)


class _LayerwisePass:
    def __init__(self, network: WatchedNetwork, batch: Batch, take: Take) -> None:
        self.network, self.batch, self.take = network, batch, take
        self.remaining: Counter[Key] = Counter()
        self.waiting: dict[Key, list[GradientTerm]] = {}
        self.open: dict[int, _OpenCall] = {}  # by the number of an output

    def run(self, thin: Mapping[str, Tensor]) -> Tensor:
        """Return the losses."""
        anchor = torch.zeros((), dtype=self.batch.z.dtype, device=self.batch.z.device)
        anchor.requires_grad_()
        places = iter(range(len(self.network.outputs)))

        def hook(output: Tensor) -> Tensor:
            place = next(places)
            if self.network.outputs[place].first:
                output = output + anchor.to(output.dtype)
            output.register_hook(lambda delta: self._receive(place, delta))
            return output

        parameters, z = self.network.problem.detached(), connected(self.batch.z)
        with self.network.running(parameters, self.batch, z, hook, thin=thin) as run:
            losses = run.losses
            self._open(run.calls)
            run.calls.clear()  # a call is kept only by its outputs, and freed with them
            torch.autograd.grad(losses.sum(), anchor, materialize_grads=True)
        while self.open:  # the remaining calls have outputs that the loss does not depend on
            self._finish(next(iter(self.open.values())))
        return losses.detach()

    def _open(self, calls: list[Call]) -> None:
        first = 0
        for call in calls:
            self.remaining.update(call.keys())
            unfinished = _OpenCall(call, first, [None] * call.outputs)
            self.open.update(dict.fromkeys(range(first, first + call.outputs), unfinished))
            first += call.outputs

    def _receive(self, place: int, delta: Tensor) -> None:
        unfinished = self.open[place]
        unfinished.deltas[place - unfinished.first] = delta
        if all(value is not None for value in unfinished.deltas):
            self._finish(unfinished)

    def _finish(self, unfinished: _OpenCall) -> None:
        count, device = len(unfinished.deltas), self.batch.z.device
        for place in range(unfinished.first, unfinished.first + count):
            self.open.pop(place, None)
        deltas = [
            self.network.outputs[unfinished.first + k].zeros(len(self.batch), device)
            if delta is None
            else delta
            for k, delta in enumerate(unfinished.deltas)
        ]
        for term in unfinished.call.terms(deltas):
            key = term.key
            self.waiting.setdefault(key, []).append(term)
            self.remaining[key] -= 1
            if self.remaining[key] == 0:
                with torch.no_grad():
                    self.take(key, self.waiting.pop(key))


@dataclass
class _OpenCall:
    """A call whose output gradients have not all arrived."""

    call: Call
    first: int
    deltas: list[Tensor | None]
