"""Computes per-record gradient norms and the sum of clipped gradients, which is released.

Per-record gradients are formed only in layers where this is cheaper than Gram matrices. If they
were formed in all layers, a batch would need many times the memory of the network. To save memory,
:func:`layer_by_layer` frees every layer once its gradients are processed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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
from seepage.nn.gradients.watching import Call, OnRecord, WatchedNetwork, connected
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.nn.problem.sharding import GatheredGradients

Take = Callable[[Key, list[GradientTerm]], None]


def layer_by_layer(
    network: WatchedNetwork,
    batch: Batch,
    take: Take,
    thin: Mapping[str, Tensor] = MappingProxyType({}),
    on_record: OnRecord | None = None,
) -> Tensor:
    """Call ``take`` with each parameter's terms once these are complete; return the losses.

    ``thin`` maps the names of weights to the random matrices that narrow their gradients.
    ``on_record`` receives ``∇_z Σ_i ℓ_i`` from the same backward pass.
    """
    with torch.enable_grad():
        return _LayerwisePass(network, batch, take).run(thin, on_record)


class _LayerwisePass:
    def __init__(self, network: WatchedNetwork, batch: Batch, take: Take) -> None:
        self.network, self.batch, self.take = network, batch, take
        self.remaining: Counter[Key] = Counter()
        self.waiting: dict[Key, list[GradientTerm]] = {}
        self.open: dict[int, _OpenCall] = {}  # by the number of an output

    def run(self, thin: Mapping[str, Tensor], on_record: OnRecord | None) -> Tensor:
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

        parameters, z = self.network.problem.detached(), self.batch.z.detach().requires_grad_()
        with self.network.running(parameters, self.batch, connected(z), hook, thin=thin) as run:
            losses = run.losses
            self._open(run.calls)
            run.calls.clear()  # a call is kept only by its outputs, and freed with them
            wanted = (anchor,) if on_record is None else (anchor, z)
            gradients = torch.autograd.grad(losses.sum(), wanted, materialize_grads=True)
        while self.open:  # the remaining calls have outputs that the loss does not depend on
            self._finish(next(iter(self.open.values())))
        if on_record is not None:
            on_record(gradients[1])
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
    """A call for which some output gradients have not been received yet."""

    call: Call
    first: int
    deltas: list[Tensor | None]


def squared_norms(terms: Sequence[GradientTerm]) -> Tensor:
    """Return ``‖g_i‖²`` of every record, computed from all terms."""
    groups = grouped(terms).values()
    return sum_of([_squared_norm([terms[k] for k in members]) for members in groups])


def _squared_norm(uses: Sequence[GradientTerm]) -> Tensor:
    """Return the squared norms of one parameter's gradients."""
    if len(uses) == 1 and uses[0].square is not None:
        return uses[0].square(*uses[0].tensors)
    gradient = value_of(uses)
    return gradient.dot(gradient, GramMatrices())


def norms(
    network: WatchedNetwork, batch: Batch, on_record: OnRecord | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of every record's gradient, and the losses."""
    squared = torch.zeros(len(batch), dtype=at_least_single(batch.z), device=batch.z.device)

    def take(_: Key, terms: list[GradientTerm]) -> None:
        squared.add_(_squared_norm(terms))

    losses = layer_by_layer(network, batch, take, on_record=on_record)
    return squared.sqrt(), losses


def clipped_gradient(
    network: WatchedNetwork, batch: Batch, clip: Clip, on_record: OnRecord | None = None
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return ``Σ_i g_i/φ(‖g_i‖)`` by parameter, the norms and the losses, in one backward pass.

    The terms are stored until all norms are known, and then summed with their weights (Bu, Wang,
    Zha and Karypis 2023), so a second pass is not needed.
    """
    losses, terms = network.terms(batch, on_record)
    with torch.no_grad():
        gradients = gradients_of(terms)
        kind = at_least_single(batch.z)
        size = sum_of([g.dot(g, GramMatrices()).to(kind) for g in gradients.values()]).sqrt()
        total = weighted_sums(gradients, clip.factor(size), network.problem.detached())
    return total, size, losses


def weighted_gradient(
    problem: NetworkProblem, batch: Batch, weights: Tensor, on_record: OnRecord | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return losses and ``Σ_i c_i g_i`` for known weights ``c``, in one plain training pass.

    ``on_record`` receives ``∇_z Σ_i c_i ℓ_i``; it is not available if parameters are sharded.
    """
    parameters = {n: p.requires_grad_() for n, p in problem.detached().items()}
    every = list(parameters.values())
    apart = GatheredGradients() if problem.sharded else None
    z = batch.z
    if on_record is not None:
        z = z.detach().requires_grad_()
        every.append(z)
    held = problem.in_place(parameters, batch, z if on_record is None else connected(z), apart)
    with torch.enable_grad(), held as losses_of_run:
        losses = losses_of_run()
        total = (losses * weights).sum()
        if apart is None:
            gradients: Sequence[Tensor] = torch.autograd.grad(total, every, materialize_grads=True)
        else:
            gradients = apart.of(total, every)
    if on_record is not None:
        *gradients, slopes = gradients
        on_record(slopes)
    return losses.detach(), dict(zip(parameters, gradients, strict=True))


def record_gradients(problem: NetworkProblem, batch: Batch) -> Tensor:
    """Return the gradient of every record, ``(B, P)``, in one training pass per record."""
    rows = []
    for k in range(len(batch)):
        one = batch.records(torch.tensor([k], device=batch.z.device))
        _, gradient = weighted_gradient(problem, one, torch.ones((), device=one.z.device))
        rows.append(torch.cat([part.flatten() for part in gradient.values()]))
    return torch.stack(rows)
