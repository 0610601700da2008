"""Per-record gradient norms, and the clipped sum that is released.

Gradients per record are formed only for layers where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.nn.gradients.layerwise import layer_by_layer
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    GramMatrices,
    Key,
    gradients_of,
    grouped,
    sum_of,
    value_of,
    weighted_sums,
)
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.nn.problem.sharding import GatheredGradients


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
    squared = torch.zeros(len(batch), dtype=batch.at_least_single(), device=batch.z.device)

    def take(_: Key, terms: list[GradientTerm]) -> None:
        squared.add_(_squared_norm(terms))

    losses = layer_by_layer(network, batch, take)
    return squared.sqrt(), losses


def clipped_gradient(network: WatchedNetwork, batch: Batch, clip: Clip) -> ClippedSum:
    """Return ``Σ_i g_i/φ(‖g_i‖)`` from one backward pass.

    The terms are kept until all norms are known, and then summed with their weights (Bu, Wang, Zha
    and Karypis 2023), so no second pass is needed.
    """
    losses, terms = network.terms(batch)
    with torch.no_grad():
        gradients = gradients_of(terms)
        kind = batch.at_least_single()
        size = sum_of([g.dot(g, GramMatrices()).to(kind) for g in gradients.values()]).sqrt()
        total = weighted_sums(gradients, clip.factor(size), network.problem.detached())
    return ClippedSum(total, size, losses)


def weighted_gradient(
    problem: NetworkProblem, batch: Batch, weights: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return losses and ``Σ_i c_i g_i`` for known weights, by one plain training pass."""
    parameters = {n: p.requires_grad_() for n, p in problem.detached().items()}
    every = list(parameters.values())
    apart = GatheredGradients() if problem.sharded else None
    held = problem.in_place(parameters, batch, batch.z, apart)
    with torch.enable_grad(), held as losses_of_run:
        losses = losses_of_run()
        total = (losses * weights).sum()
        if apart is None:
            found: Sequence[Tensor] = torch.autograd.grad(total, every, materialize_grads=True)
        else:
            found = apart.of(total, every)
    return losses.detach(), dict(zip(parameters, found, strict=True))
