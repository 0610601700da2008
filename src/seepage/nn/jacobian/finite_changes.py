"""Finite tangents: how far clipped gradients move over a step of a stated size.

With ``g̃₊`` and ``g̃₋`` the clipped gradients of a record at ``z + hv`` and ``z − hv``,

    J̃v ≈ (g̃₊ − g̃₋)/2h,      δ₊t₊ᵀ − δ₋t₋ᵀ = Δδ t̄ᵀ + δ̄ Δtᵀ

where ``Δ`` is the difference and a bar the mean of the two sides: exact, without cancellation, for
every term of a gradient (a term is linear in each of at most two tensors). Each side is clipped by
its own factor, which scales its ``δ``. This takes plain training passes only, so that it tells the
truth at the scale ``h`` where there is no derivative (ReLU, max pooling) or none that torch sees
(``torch.no_grad()``, ``.detach()``, functions with a way back of their own).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.nn.gradients.norms import squared_norms, weighted_gradient
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    GramMatrices,
    ParameterGradient,
    RecordGradients,
    grouped,
    sum_of,
)
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch, NetworkProblem

_CONDITION = (
    "The derivative of the gradient is its change over a step of {0:g} to either side in what is "
    "unknown: what changes of that size show, not what smaller or larger ones do."
)
_LARGEST_COPY = 50_000_000  # parameters of which a copy in float64 is made


@dataclass(frozen=True)
class FiniteChange:
    """How far every record's clipped gradient moves over a step, per unit of the step.

    ``squared`` is ``‖g̃₊ − g̃₋‖²/4h²``; ``ahead`` and ``behind`` are the norms of the unclipped
    gradients on the two sides; all ``(B,)``.
    """

    squared: Tensor
    ahead: Tensor
    behind: Tensor


def finite_change(
    problem: NetworkProblem,
    network: WatchedNetwork | None,
    batch: Batch,
    v: Tensor,
    h: float,
    clip: Clip,
) -> FiniteChange:
    """Return the change of every record's clipped gradient along its direction ``v (B, …)``.

    Without a ``network`` that can be watched, every record is run on its own.
    """
    sides = [replace(batch, z=batch.z + sign * h * v) for sign in (1, -1)]
    if network is None:
        squared, norms = _one_by_one(problem, sides, clip)
    else:
        squared, norms = _watched(network, sides, clip)
    return FiniteChange(squared / (2 * h) ** 2, *norms)


def precise_change(
    problem: NetworkProblem,
    network: WatchedNetwork | None,
    batch: Batch,
    v: Tensor,
    h: float,
    clip: Clip,
) -> FiniteChange:
    """Return :func:`finite_change` in float64 where the network is small and takes it.

    The rounding of a gradient in float32 is multiplied by ``1/h``.
    """
    if not worth_doubling(problem, batch):
        return finite_change(problem, network, batch, v, h, clip)
    wide = None if network is None else network.double()
    at = replace(problem, doubled=True)
    try:
        found = finite_change(at, wide, batch.double(), v.double(), h, clip)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # it holds numbers of a type that was not to be seen from here
        return finite_change(problem, network, batch, v, h, clip)
    return FiniteChange(*(t.to(batch.z.dtype) for t in (found.squared, found.ahead, found.behind)))


def worth_doubling(problem: NetworkProblem, batch: Batch) -> bool:
    """Return whether a network is in short numbers, and small enough for a copy in long ones."""
    held = sum(p.numel() for p in problem.net.parameters())
    return bool(batch.z.dtype != torch.float64 and held <= _LARGEST_COPY)


def over_steps(about: str, h: float) -> str:
    """Return what a result over finite steps is about, in words."""
    return f"{about}, over steps of {h:g}"


def condition_of_steps(h: float) -> str:
    """Return what a result over finite steps rests on, in a sentence."""
    return _CONDITION.format(h)


def record_gradients(problem: NetworkProblem, batch: Batch) -> Tensor:
    """Return the gradient of every record, ``(B, P)``, by a training pass for each of them."""
    rows = []
    for k in range(len(batch)):
        one = batch.records(torch.tensor([k], device=batch.z.device))
        _, found = weighted_gradient(problem, one, torch.ones((), device=one.z.device))
        rows.append(torch.cat([part.flatten() for part in found.values()]))
    return torch.stack(rows)


def _one_by_one(
    problem: NetworkProblem, sides: Sequence[Batch], clip: Clip
) -> tuple[Tensor, list[Tensor]]:
    gradients = [record_gradients(problem, side) for side in sides]
    norms = [g.norm(dim=1) for g in gradients]
    ahead, behind = (g * clip.factor(n)[:, None] for g, n in zip(gradients, norms, strict=True))
    return (ahead - behind).square().sum(1), norms


def _watched(
    network: WatchedNetwork, sides: Sequence[Batch], clip: Clip
) -> tuple[Tensor, list[Tensor]]:
    ahead, behind = (network.terms(side)[1] for side in sides)
    with torch.no_grad():
        norms = [squared_norms(terms).sqrt() for terms in (ahead, behind)]
        factors = [clip.factor(n) for n in norms]
        squares = []
        for members in grouped(ahead).values():
            parts: list[RecordGradients] = []
            for k in members:
                pair = _scaled(ahead[k], factors[0]), _scaled(behind[k], factors[1])
                means = tuple((a + b) / 2 for a, b in zip(*pair, strict=True))
                gaps = [a - b for a, b in zip(*pair, strict=True)]
                parts += ahead[k].change(replace(ahead[k], tensors=means).expanded(), gaps)
            change = ParameterGradient.of(parts)
            squares.append(change.dot(change, GramMatrices()))
    return sum_of(squares), norms


def _scaled(term: GradientTerm, factor: Tensor) -> tuple[Tensor, ...]:
    """Return a term's tensors with its gradients scaled, through the first of them."""
    first, *others = term.tensors
    each = factor.repeat_interleave(len(first) // len(factor))  # a record may hold several images
    return (first * each.reshape(-1, *[1] * (first.dim() - 1)), *others)
