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
