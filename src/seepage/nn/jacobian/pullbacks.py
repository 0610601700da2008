"""Pullbacks to the record, ``Jᵀw``, for directions that differ from record to record.

The direction is given by the same factors as the gradients, so that ``g(z)·w`` needs no gradient
per record; a double-backward pass differentiates it. With ``w = g`` this is ``Jᵀg = ½∇_z‖g‖²``,
which exact clipping needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.nn.gradients.norms import squared_norms
from seepage.nn.gradients.per_record_gradients import (
    GramMatrices,
    Key,
    OuterProducts,
    ParameterGradient,
    at_least_single,
    gradients_of,
    grouped,
    sum_of,
)
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.tangents import Tangents, tangents
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch

RadialPull = tuple[Tensor, Tensor, Tensor]  # Jᵀg, norms, losses


def radial_pull(network: WatchedNetwork, batch: Batch) -> RadialPull:
    """Return ``Jᵀg``, the norms of the gradients and the losses."""
    z = batch.z.detach().requires_grad_()
    losses, terms = network.differentiable_terms(batch, z)
    with torch.enable_grad():
        squared = squared_norms(terms)
        (pull,) = torch.autograd.grad(squared.sum() / 2, z, materialize_grads=True)
    return pull, squared.detach().sqrt(), losses.detach()


def information_product(network: WatchedNetwork, batch: Batch, v: Tensor, clip: Clip) -> Tensor:
    """Return ``J̃ᵀJ̃v`` of every record: a tangent pass, then a pullback.

    With ``∂g = Jv``, ``J̃ᵀJ̃v = Jᵀw`` for ``w = (∂g − (1 − ρ²) ĝ ĝᵀ∂g)/φ²`` (see ``clipping``).
    """
    seen = tangents(network, batch, v[None])
    with torch.no_grad():
        w = _clipped_twice(seen, clip)
    z = batch.z.detach().requires_grad_()
    _, again = network.differentiable_terms(batch, z)
    with torch.enable_grad():
        found = gradients_of(again).items()
        each = [gradient.dot(w[key], GramMatrices()) for key, gradient in found]
        (pull,) = torch.autograd.grad(sum_of(each).sum(), z, materialize_grads=True)
    return pull


def _clipped_twice(seen: Tangents, clip: Clip) -> dict[Key, ParameterGradient]:
    """Return ``w`` for every parameter, given the gradients and their changes."""
    gg = torch.zeros_like(seen.losses, dtype=at_least_single(seen.losses))
    gd = torch.zeros_like(gg)
    found = {}
    for key, members in grouped(seen.terms).items():
        value, (change,) = found[key] = seen.gradients(members)
        grams = GramMatrices()
        gg += value.dot(value, grams)
        gd += value.dot(change, grams)
    norms = gg.sqrt()
    inside = 1 / clip.phi(norms) ** 2
    along = torch.where(gg > 0, gd / torch.where(gg > 0, gg, 1.0), 0.0)
    back = (clip.radial(norms) ** 2 - 1) * along * inside
    return {
        key: ParameterGradient(
            _scaled(change.outers, inside) + _scaled(value.outers, back),
            _weighted(change.plain, inside, value.plain, back),
        )
        for key, (value, (change,)) in found.items()
    }


def _scaled(outers: list[OuterProducts], by: Tensor) -> list[OuterProducts]:
    """Return outer products with every record scaled by its own number."""
    return [
        OuterProducts(outer.left, outer.right * by.to(outer.right.dtype)[:, None, None, None])
        for outer in outers
    ]


def _weighted(a: Tensor | None, by: Tensor, b: Tensor | None, times: Tensor) -> Tensor | None:
    """Return ``by·a + times·b``, either of which may be missing."""
    pairs = ((a, by), (b, times))
    parts = [value * factor[:, None] for value, factor in pairs if value is not None]
    return sum_of(parts) if parts else None
