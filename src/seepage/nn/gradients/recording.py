"""Runs a network under a plan and gives the contributions to every per-example gradient.

Three ways to learn the gradients at the outputs, for three purposes: hooks that free each layer as
soon as it is dealt with (norms); edges of the graph (what is to be differentiated again); shifts of
zero added to the outputs (inside torch's transformations, for tangents).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from seepage.errors import InputError
from seepage.nn.gradients.backends import differentiable_backends
from seepage.nn.gradients.contributions import Contribution
from seepage.nn.gradients.planning import SMALL, Look, Plan, Scout, framed, make_plan
from seepage.nn.gradients.rules.fallback import ModuleCall, tapped_modules
from seepage.nn.gradients.taps import Call, Recorder
from seepage.nn.problem.problem import Batch, Problem
from seepage.nn.problem.views import rows_of

Taps = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TapShape:
    """The shape of one tapped output: that for two examples, and the axis that grows."""

    small: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    first: bool  # nothing tapped comes before it

    def zeros(self, batch: int, device: torch.device) -> Tensor:
        """Return zeros of that shape for a batch; they take no memory."""
        shape = list(self.small)
        shape[self.axis] = shape[self.axis] // SMALL * batch
        return torch.zeros((), dtype=self.dtype, device=device).expand(shape)


@dataclass(frozen=True)
class Recording:
    """The losses of a batch, and what was recorded on the way, in the order of the taps."""

    losses: Tensor
    records: list[tuple[Call | ModuleCall, int]]  # with the number of taps of each

    def contributions(self, deltas: list[Tensor]) -> list[Contribution]:
        """Return the contributions, given the gradients at all tapped outputs."""
        out: list[Contribution] = []
        place = 0
        for record, taps in self.records:
            out.extend(record.contributions(deltas[place : place + taps]))
            place += taps
        return out


@dataclass(frozen=True)
class Layers:
    """A problem with its plan: it can record any batch.

    Parameters
    ----------
    problem
        The network, its loss and the view.
    plan
        Where the examples are, and which modules fall back.
    taps
        The shapes of the tapped outputs.
    """

    problem: Problem
    plan: Plan
    taps: list[TapShape]

    @staticmethod
    def of(problem: Problem, batch: Batch) -> Layers:
        """Look at the network with two and with three of these examples."""
        try:
            plan = make_plan(lambda size: _look(problem, small_batch(batch, size)), repeat=True)
            shapes = [_probe(problem, plan, small_batch(batch, n)) for n in (SMALL, SMALL + 1)]
        except _NotRepeatableError:
            plan = make_plan(lambda size: _look(problem, small_batch(batch, size)), repeat=False)
            shapes = [_probe(problem, plan, small_batch(batch, n)) for n in (SMALL, SMALL + 1)]
        taps = [
            TapShape(tuple(a.shape), _grown(a, b), a.dtype, not a.requires_grad)
            for a, b in zip(*shapes, strict=True)
        ]
        return Layers(problem, plan, taps)

    def record(
        self,
        parameters: Mapping[str, Tensor],
        batch: Batch,
        z: Tensor,
        tap: Taps,
        versions: bool = True,
        twice: bool = False,
    ) -> Recording:
        """Run the network on a batch, tapping the outputs of all uses of parameters."""
        return _record(self.problem, self.plan, parameters, batch, z, tap, versions, twice)

    def contributions(self, batch: Batch) -> tuple[Tensor, list[Contribution]]:
        """Return losses and contributions as plain numbers."""
        with torch.enable_grad():
            losses, found = self._contributions(batch, batch.z.detach(), twice=False)
        return losses.detach(), found

    def differentiable(self, batch: Batch, z: Tensor) -> tuple[Tensor, list[Contribution]]:
        """Return losses and contributions whose dependence on ``z`` torch can differentiate."""
        with differentiable_backends(self.problem.net):
            return self._contributions(batch, z, twice=True)

    def _contributions(
        self, batch: Batch, z: Tensor, twice: bool
    ) -> tuple[Tensor, list[Contribution]]:
        edges: list[Any] = []

        def tap(output: Tensor) -> Tensor:
            if not output.requires_grad:  # a copy: what follows may write into it
                output = output.detach().requires_grad_().clone()
            edges.append(get_gradient_edge(output))
            return output

        recording = self.record(self.problem.detached(), batch, z, tap, twice=twice)
        found = torch.autograd.grad(
            recording.losses.sum(), edges, create_graph=twice, allow_unused=True
        )
        deltas = [
            shape.zeros(len(batch), batch.z.device) if delta is None else delta
            for delta, shape in zip(found, self.taps, strict=True)
        ]
        with torch.set_grad_enabled(twice):
            return recording.losses, recording.contributions(deltas)

    def bytes_per_example(self) -> int:
        """Return how much the tapped outputs of one example hold."""
        return sum(math.prod(s.small) // SMALL * s.dtype.itemsize for s in self.taps)

    def zeros(self, batch: Batch) -> list[Tensor]:
        """Return a zero for every tapped output, to be added to it."""
        return [shape.zeros(len(batch), batch.z.device) for shape in self.taps]


def small_batch(batch: Batch, size: int) -> Batch:
    """Return a batch of that size made of the first examples, repeated where there are too few."""
    rows = torch.arange(size, device=batch.z.device) % len(batch)
    return Batch(rows_of(batch.x, rows), batch.y[rows.to(batch.y.device)], batch.z[rows])


def _record(
    problem: Problem,
    plan: Plan,
    parameters: Mapping[str, Tensor],
    batch: Batch,
    z: Tensor,
    tap: Taps,
    versions: bool = True,
    twice: bool = False,
) -> Recording:
    records: list[tuple[Call | ModuleCall, int]] = []
    names = {id(tensor): name for name, tensor in parameters.items()}
    recorder = Recorder(names, plan.layouts, tap, len(batch), versions, twice, records)
    with tapped_modules(plan.fallbacks, problem.net, parameters, tap, records), recorder:
        losses = problem.losses(parameters, batch, z)
    if recorder.seen != len(plan.layouts):
        raise InputError(
            "The network uses its parameters less often than when it was first looked at; its "
            "course must not depend on the data."
        )
    return Recording(losses, records)


def _look(problem: Problem, batch: Batch) -> Look:
    parameters = problem.detached()
    names = {id(tensor): name for name, tensor in parameters.items()}
    with torch.no_grad(), framed(problem.net) as (stack, runs):
        scout = Scout(names, stack)
        with scout:
            problem.losses(parameters, batch, batch.z)
    return scout, runs


class _NotRepeatableError(Exception):
    """An output shared by all examples cannot be repeated for each without changing the losses."""


def _probe(problem: Problem, plan: Plan, batch: Batch) -> list[Tensor]:
    """Run once and return every tapped output, before the tap makes it depend on something."""
    seen: list[Tensor] = []

    def tap(output: Tensor) -> Tensor:
        seen.append(output)
        return output if output.requires_grad else output.detach().requires_grad_().clone()

    repeats = any(layout is not None and layout.axis is None for layout in plan.layouts)
    parameters = problem.detached()
    with torch.enable_grad():
        try:
            found = _record(problem, plan, parameters, batch, batch.z, tap).losses
        except (RuntimeError, InputError):
            if repeats:
                raise _NotRepeatableError from None
            raise
    if repeats:
        with torch.no_grad():
            wanted = problem.losses(parameters, batch, batch.z)
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-3):
            raise _NotRepeatableError
    return seen


def _grown(small: Tensor, large: Tensor) -> int:
    return next(k for k, (a, b) in enumerate(zip(small.shape, large.shape, strict=True)) if a != b)
