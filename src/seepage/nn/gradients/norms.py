"""Per-example gradient norms, the clipped sum that is released, and pulls back to the record.

None of these forms a gradient per example, except of layers where that is the cheaper way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.nn.gradients.contributions import (
    Contribution,
    Key,
    grouped,
    sum_of,
    value_of,
    weighted_sums,
)
from seepage.nn.gradients.outer_products import Grams
from seepage.nn.gradients.recording import Layers
from seepage.nn.gradients.rules.fallback import ModuleCall
from seepage.nn.gradients.taps import Call
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch


@dataclass(frozen=True)
class Clipped:
    """The sum of the clipped gradients of a batch, with each example's loss and norm."""

    gradient: dict[str, Tensor]
    norms: Tensor
    losses: Tensor


def squared_norms(contributions: Sequence[Contribution]) -> Tensor:
    """Return ``‖g_i‖²`` of every example from all contributions."""
    totals = []
    for members in grouped(contributions).values():
        totals.append(_squared_norm([contributions[k] for k in members]))
    return sum_of(totals)


def _squared_norm(uses: Sequence[Contribution]) -> Tensor:
    """Return the squared norms of one parameter's gradients."""
    if len(uses) == 1 and uses[0].square is not None:
        return uses[0].square(*uses[0].tensors)
    gradient = value_of(uses)
    return gradient.dot(gradient, Grams())


def norms(layers: Layers, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the norm of every example's gradient, and the losses."""
    with torch.enable_grad():
        losses, squared = _NormPass(layers, batch).run()
    return squared.sqrt(), losses


def clipped_gradient(layers: Layers, batch: Batch, clip: Clip) -> Clipped:
    """Return ``Σ_i g_i/φ(‖g_i‖)`` from one backward pass.

    What the norms were taken from is kept until they are all known, and then summed with their
    weights (Bu, Wang, Zha and Karypis 2023), so no second pass is needed.
    """
    losses, contributions = layers.contributions(batch)
    with torch.no_grad():
        gradients = {
            key: value_of([contributions[k] for k in members])
            for key, members in grouped(contributions).items()
        }
        size = sum_of([g.dot(g, Grams()) for g in gradients.values()]).sqrt()
        total = weighted_sums(gradients, clip.factor(size), layers.problem.detached())
    return Clipped(total, size, losses)


class _NormPass:
    """One forward and one backward pass in which every layer is freed once its norm is taken."""

    def __init__(self, layers: Layers, batch: Batch) -> None:
        self.layers, self.batch = layers, batch
        self.total = torch.zeros(len(batch), dtype=batch.z.dtype, device=batch.z.device)
        self.remaining: Counter[Key] = Counter()
        self.waiting: dict[Key, list[Contribution]] = {}
        self.open: dict[int, _Open] = {}  # by the number of a tap

    def run(self) -> tuple[Tensor, Tensor]:
        """Return losses and squared norms."""
        anchor = torch.zeros((), dtype=self.batch.z.dtype, device=self.batch.z.device)
        anchor.requires_grad_()
        places = iter(range(len(self.layers.taps)))

        def tap(output: Tensor) -> Tensor:
            place = next(places)
            if self.layers.taps[place].first:
                output = output + anchor.to(output.dtype)
            output.register_hook(lambda delta: self._receive(place, delta))
            return output

        parameters = self.layers.problem.detached()
        recording = self.layers.record(parameters, self.batch, self.batch.z, tap)
        first = 0
        for record, taps in recording.records:
            self.remaining.update(record.keys())
            unfinished = _Open(record, first, [None] * taps)
            self.open.update(dict.fromkeys(range(first, first + taps), unfinished))
            first += taps
        losses = recording.losses
        del recording, record, unfinished
        torch.autograd.grad(losses.sum(), anchor, materialize_grads=True)
        while self.open:  # what is left has outputs on which the loss does not depend
            unfinished = next(iter(self.open.values()))
            self._take(unfinished)
        return losses.detach(), self.total

    def _receive(self, place: int, delta: Tensor) -> None:
        unfinished = self.open[place]
        unfinished.deltas[place - unfinished.first] = delta
        if all(value is not None for value in unfinished.deltas):
            self._take(unfinished)

    def _take(self, unfinished: _Open) -> None:
        count = len(unfinished.deltas)
        for place in range(unfinished.first, unfinished.first + count):
            self.open.pop(place, None)
        deltas = [
            self.layers.taps[unfinished.first + k].zeros(len(self.batch), self.total.device)
            if delta is None
            else delta
            for k, delta in enumerate(unfinished.deltas)
        ]
        for contribution in unfinished.record.contributions(deltas):
            key = contribution.key
            self.waiting.setdefault(key, []).append(contribution)
            self.remaining[key] -= 1
            if self.remaining[key] == 0:
                self._add(self.waiting.pop(key))

    def _add(self, contributions: list[Contribution]) -> None:
        with torch.no_grad():
            self.total += _squared_norm(contributions)


@dataclass
class _Open:
    """A record whose output gradients have not all arrived."""

    record: Call | ModuleCall
    first: int
    deltas: list[Tensor | None]
