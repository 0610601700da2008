"""Probes of the release for networks with wide layers: two backward passes and thin products.

``g_i·u`` follows from the contributions of the layers, ``Σ_s (Aᵀδ_s)·(Bᵀt_s)`` for a thin direction
``ABᵀ``, at next to no cost; a second backward pass then gives ``J_iᵀu = ∇_z (g_i·u)``. In matrix
products this costs four passes where a training step costs three. With the norms ``‖g_i‖²`` in the
same graph, one backward pass gives the exactly clipped ``J̃ᵀu = ∇_z (g·u/φ(‖g‖))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.contributions import (
    Contribution,
    grouped,
    sum_of,
    value_of,
    weighted_sums,
)
from seepage.nn.gradients.norms import squared_norms
from seepage.nn.gradients.outer_products import OneHot, Outer
from seepage.nn.gradients.recording import Layers
from seepage.nn.gradients.rules.linear import summed
from seepage.nn.jacobian.directions import Direction, Directions, Draw
from seepage.nn.problem.clipping import Clip, NoClip
from seepage.nn.problem.problem import Batch


@dataclass(frozen=True)
class Pulled:
    """What K clipped probes of one batch gave.

    ``J̃ᵀu (K, B, …)``, ``‖g‖`` and losses ``(B,)``, and the sum of the clipped gradients.
    """

    pulls: Tensor
    norms: Tensor
    losses: Tensor
    gradient: dict[str, Tensor] | None


def thin_probe(layers: Layers, batch: Batch, us: Draw, clip: Clip, keep: bool = False) -> Pulled:
    """Return ``J̃ᵀu`` for every direction, exactly clipped; with ``keep`` the clipped sum too."""
    z = batch.z.detach().requires_grad_()
    losses, contributions = layers.differentiable(batch, z)
    with torch.enable_grad():
        along = [gradient_along(contributions, u) for u in us()]
        if isinstance(clip, NoClip):
            norms = torch.full_like(losses.detach(), torch.nan)
            scaled = along
        else:
            squared = squared_norms(contributions)
            norms = squared.detach().sqrt()
            scaled = [_clipped(a, squared, norms, clip) for a in along]
        gradient = None
        if keep:
            weights = clip.factor(norms) if not isinstance(clip, NoClip) else torch.ones_like(norms)
            gradient = _weighted_sums(layers, contributions, weights)
        del contributions
        pulls = []
        for k, value in enumerate(scaled):
            more = k + 1 < len(scaled)
            (pull,) = torch.autograd.grad(value.sum(), z, retain_graph=more, materialize_grads=True)
            pulls.append(pull)
    return Pulled(torch.stack(pulls), norms, losses.detach(), gradient)


def _weighted_sums(
    layers: Layers, contributions: Sequence[Contribution], weights: Tensor
) -> dict[str, Tensor]:
    with torch.no_grad():
        gradients = {
            key: value_of([contributions[k] for k in members])
            for key, members in grouped(contributions).items()
        }
        return weighted_sums(gradients, weights, layers.problem.detached())


def _clipped(along: Tensor, squared: Tensor, norms: Tensor, clip: Clip) -> Tensor:
    """Return something whose gradient is that of ``(g·u)/φ(n)``: its part in each of the two."""
    phi = clip.phi(norms)
    steep = clip.slope(norms) / (2 * phi**2 * torch.where(norms > 0, norms, 1.0))
    return along / phi - steep * along.detach() * squared


def gradient_along(contributions: Sequence[Contribution], u: Directions) -> Tensor:
    """Return ``g_i·u`` of every example."""
    biases = {id(c.tensors[0]): c for c in contributions if c.expand == (summed,)}
    terms, plain, against = [], [], []
    for contribution in contributions:
        if contribution.expand == (summed,) and id(contribution.tensors[0]) not in biases:
            continue  # went along with its weight
        part = contribution.join(*contribution.expanded())
        name, row = contribution.key
        if isinstance(part, Outer) and u[name].full is None:
            bias = biases.pop(id(part.left), None)
            shift = (
                None
                if bias is None
                else _piece(u[bias.key[0]].full, bias.key[1], part.left.shape[3])
            )
            terms.append(_thin_along(part, u[name], row, shift))
        elif isinstance(part, Outer):
            terms.append(_full_along(part, u[name].full, row))
        elif u[name].full is None:  # a wide matrix without a rule for its use
            terms.append(((part @ u[name].right) * u[name].left).flatten(1).sum(1))
        else:
            plain.append(part.reshape(len(part), -1))
            against.append(_piece(u[name].full, row, plain[-1].shape[1]))
    if plain:  # the many small parameters in one product
        terms.append(torch.cat(plain, 1) @ torch.cat(against))
    return sum_of(terms)


def _piece(full: Any, row: int, size: int) -> Tensor:
    start = row * (full.numel() // len(full)) if row else 0
    piece: Tensor = full.flatten()[start : start + size]
    return piece


def _thin_along(part: Outer, u: Direction, row: int, shift: Tensor | None) -> Tensor:
    """Return ``Σ_s (Aᵀl_s)·(Bᵀr_s)``; a bias is the last column of ``A`` against ones."""
    if shift is None:
        return (_rows(part.left, u.left, row) * (part.right @ u.right)).flatten(1).sum(1)
    columns = torch.cat([u.left[row : row + len(shift), :-1], shift[:, None]], 1)
    thin = functional.linear(part.right, u.right.T, u.last)
    return ((part.left @ columns) * thin).flatten(1).sum(1)


def _full_along(part: Outer, full: Any, row: int) -> Tensor:
    left, right = part.left, part.right
    blocks = right.shape[1]
    size = left.size if isinstance(left, OneHot) else blocks * left.shape[3]
    matrix = full.reshape(len(full), -1)[row : row + size]
    if isinstance(left, OneHot):
        return (_rows(left, matrix, 0) * right).flatten(1).sum(1)
    return ((left @ matrix.unflatten(0, (blocks, -1))) * right).flatten(1).sum(1)


def _rows(left: Tensor | OneHot, matrix: Tensor, row: int) -> Tensor:
    """Return the product of a left factor with a matrix of as many rows as the parameter."""
    if isinstance(left, OneHot):
        picked = matrix[left.index]
        return picked if left.keep is None else picked * left.keep[..., None]
    return left @ matrix[row : row + left.shape[3]]
