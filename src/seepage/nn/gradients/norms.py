"""Per-record gradient norms, and the clipped sum that is released.

None of these forms a gradient per record, except of layers where that is the cheaper way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    GramMatrices,
    Key,
    at_least_single,
    gradients_of,
    grouped,
    sum_of,
    value_of,
    weighted_sums,
)
from seepage.nn.gradients.watching import Call, WatchedNetwork
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch, NetworkProblem


@dataclass(frozen=True)
class ClippedSum:
    """The sum of the clipped gradients of a batch, with each record's norm and loss."""

    gradient: dict[str, Tensor]
    norms: Tensor
    losses: Tensor


def squared_norms(terms: Sequence[GradientTerm]) -> Tensor:
    """Return ``‖g_i‖²`` of every record from all terms."""
    groups = grouped(terms).values()
    return sum_of([_squared_norm([terms[k] for k in members]) for members in groups])


def _squared_norm(uses: Sequence[GradientTerm]) -> Tensor:
    """Return the squared norms of one parameter's gradients."""
    if len(uses) == 1 and uses[0].square is not None:
        return uses[0].square(*uses[0].tensors)
    gradient = value_of(uses)
    return gradient.dot(gradient, GramMatrices())


def norms(network: WatchedNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the norm of every record's gradient, and the losses."""
    with torch.enable_grad():
        losses, squared = _NormPass(network, batch).run()
    return squared.sqrt(), losses


def clipped_gradient(network: WatchedNetwork, batch: Batch, clip: Clip) -> ClippedSum:
    """Return ``Σ_i g_i/φ(‖g_i‖)`` from one backward pass.

    What the norms were taken from is kept until they are all known, and then summed with their
    weights (Bu, Wang, Zha and Karypis 2023), so no second pass is needed.
    """
    losses, terms = network.terms(batch)
    with torch.no_grad():
        gradients = gradients_of(terms)
        size = sum_of([g.dot(g, GramMatrices()) for g in gradients.values()]).sqrt()
        total = weighted_sums(gradients, clip.factor(size), network.problem.detached())
    return ClippedSum(total, size, losses)


def weighted_gradient(
    problem: NetworkProblem, batch: Batch, weights: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return losses and ``Σ_i c_i g_i``, the weights being known, by one plain training pass."""
    parameters = {n: p.requires_grad_() for n, p in problem.detached().items()}
    with torch.enable_grad():
        losses = problem.losses(parameters, batch, batch.z)
        total = (losses * weights).sum()
        found = torch.autograd.grad(total, list(parameters.values()), materialize_grads=True)
    return losses.detach(), dict(zip(parameters, found, strict=True))


class _NormPass:
    """One forward and one backward pass in which every layer is freed once its norm is taken."""

    def __init__(self, network: WatchedNetwork, batch: Batch) -> None:
        self.network, self.batch = network, batch
        dtype = at_least_single(batch.z)
        self.total = torch.zeros(len(batch), dtype=dtype, device=batch.z.device)
        self.remaining: Counter[Key] = Counter()
        self.waiting: dict[Key, list[GradientTerm]] = {}
        self.open: dict[int, _OpenCall] = {}  # by the number of an output

    def run(self) -> tuple[Tensor, Tensor]:
        """Return losses and squared norms."""
        anchor = torch.zeros((), dtype=self.batch.z.dtype, device=self.batch.z.device)
        anchor.requires_grad_()
        places = iter(range(len(self.network.outputs)))

        def hook(output: Tensor) -> Tensor:
            place = next(places)
            if self.network.outputs[place].first:
                output = output + anchor.to(output.dtype)
            output.register_hook(lambda delta: self._receive(place, delta))
            return output

        parameters = self.network.problem.detached()
        run = self.network.run(parameters, self.batch, self.batch.z, hook)
        first = 0
        for call in run.calls:
            self.remaining.update(call.keys())
            unfinished = _OpenCall(call, first, [None] * call.outputs)
            self.open.update(dict.fromkeys(range(first, first + call.outputs), unfinished))
            first += call.outputs
        losses = run.losses
        del run, call, unfinished
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

    def _take(self, unfinished: _OpenCall) -> None:
        count = len(unfinished.deltas)
        for place in range(unfinished.first, unfinished.first + count):
            self.open.pop(place, None)
        deltas = [
            self.network.outputs[unfinished.first + k].zeros(len(self.batch), self.total.device)
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
                    self.total += _squared_norm(self.waiting.pop(key))


@dataclass
class _OpenCall:
    """A call whose output gradients have not all arrived."""

    call: Call
    first: int
    deltas: list[Tensor | None]
