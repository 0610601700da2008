"""Computes tangents and pullbacks; three scalars give the exact norm of a clipped tangent.

For a direction ``v`` of the record, ``∂g = (∂g/∂z)v = Jv`` follows from the tangents of the layers'
inputs and output gradients, in one forward-over-reverse pass for the whole batch. The scalars
``g·g``, ``g·∂g`` and ``∂g·∂g`` follow without forming per-record gradients.

Pullbacks ``Jᵀw`` accept a separate parameter direction ``w`` for each record. ``w`` has the same
factors as the gradients, so ``g(z)·w`` does not need per-record gradients either. A double-backward
pass differentiates ``g(z)·w``. With ``w = g``, the result is ``Jᵀg = ½∇_z‖g‖²``, which exact
clipping requires.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from seepage.nn.gradients.norms import squared_norms
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    GramMatrices,
    Key,
    OuterProducts,
    ParameterGradient,
    RecordGradients,
    at_least_single,
    gradients_of,
    grouped,
    sum_of,
    weighted_sums,
)
from seepage.nn.gradients.plain_kernels import PlainNorms
from seepage.nn.gradients.watching import NetworkRun, WatchedNetwork, differentiable_backends
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch

Pieces = list[tuple[Tensor, ...]]
RadialPull = tuple[Tensor, Tensor, Tensor]  # Jᵀg, norms, losses
_Parts = tuple[ParameterGradient, ParameterGradient]  # a gradient, and its change


@dataclass(frozen=True)
class InnerProducts:
    """The scalars needed to clip K changes of the gradient, with losses and gradients.

    ``gg = g·g``, its root ``norms`` and ``losses`` have shape ``(B,)``; ``gd = g·∂g`` and
    ``dd = ∂g·∂g`` have shape ``(K, B)``.
    """

    gg: Tensor
    norms: Tensor
    gd: Tensor
    dd: Tensor
    losses: Tensor
    gradients: dict[Key, ParameterGradient]

    def clipped(self, clip: Clip) -> Tensor:
        """Return ``‖(∂g̃/∂z)v‖²`` of every record and direction, ``(K, B)``."""
        return clip.squared(self.norms, self.gg, self.gd, self.dd)


@dataclass(frozen=True)
class Tangents:
    """The terms of a batch's gradients, with their changes along K directions."""

    losses: Tensor  # ``(B,)``
    terms: list[GradientTerm]  # the terms themselves
    # For each term, the tangents of its tensors, stacked along a first axis of length K
    changes: list[tuple[Tensor, ...]]
    directions: int  # K

    def gradients(self, members: list[int]) -> tuple[ParameterGradient, list[ParameterGradient]]:
        """Return a parameter's gradient, and the change of that gradient along every direction."""
        uses = [(self.terms[m], self.terms[m].expanded()) for m in members]
        value = ParameterGradient.of([use.joined(expanded) for use, expanded in uses])
        changes = []
        for k in range(self.directions):
            parts: list[RecordGradients] = []
            for member, (use, expanded) in zip(members, uses, strict=True):
                parts += use.change(expanded, [tensor[k] for tensor in self.changes[member]])
            changes.append(ParameterGradient.of(parts))
        return value, changes


def tangents(network: WatchedNetwork, batch: Batch, directions: Tensor) -> Tangents:
    """Return the changes of all terms along record directions of shape ``(K, B, …)``."""
    made: list[GradientTerm] = []
    parameters = network.problem.detached()

    def pieces(z: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        runs: list[NetworkRun] = []

        def total(shifts: list[Tensor]) -> tuple[Tensor, Tensor]:
            each = iter(shifts)

            def shifted(output: Tensor) -> Tensor:
                return output + next(each)

            with network.running(parameters, batch, z, shifted, versions=False) as run:
                runs.append(run)
            return run.losses.sum(), run.losses

        zeros = [shape.zeros(len(batch), batch.z.device) for shape in network.outputs]
        value, pull, losses = vjp(total, zeros, has_aux=True)
        (deltas,) = pull(torch.ones_like(value))
        made[:] = runs[0].terms(deltas)
        return losses, [term.tensors for term in made]

    def one(direction: Tensor) -> tuple[tuple[Tensor, Pieces], Pieces]:
        primal, (_, changes) = jvp(pieces, (batch.z,), (direction,))
        return primal, changes

    # On a GPU, torch's tangents of a 16-bit LayerNorm have 32 bits.
    norms = PlainNorms() if batch.z.dtype.itemsize < 4 else nullcontext()
    with differentiable_backends(network.problem.net), norms:
        if len(directions) == 1:
            (losses, values), changes = one(directions[0])
            changes = [tuple(t[None] for t in tensors) for tensors in changes]
        else:
            # The primal values do not depend on the direction: vmap computes them once.
            (losses, values), changes = vmap(one, out_dims=(None, 0), randomness="same")(directions)
    terms = [replace(term, tensors=tensors) for term, tensors in zip(made, values, strict=True)]
    return Tangents(losses, terms, changes, len(directions))


def inner_products(
    network: WatchedNetwork, batch: Batch, directions: Tensor, keep: bool = False
) -> InnerProducts:
    """Return ``g·g``, ``g·∂g`` and ``∂g·∂g`` of every record for changes along these directions.

    With ``keep``, the gradients are also returned, for the released sum.
    """
    seen = tangents(network, batch, directions)
    gg = torch.zeros_like(seen.losses, dtype=at_least_single(seen.losses))
    gd = torch.zeros(len(directions), len(gg), dtype=gg.dtype, device=gg.device)
    dd = torch.zeros_like(gd)
    gradients: dict[Key, ParameterGradient] = {}
    with torch.no_grad():
        for key, members in grouped(seen.terms).items():
            value, changes = seen.gradients(members)
            grams = GramMatrices()
            gg += value.dot(value, grams)
            for k, change in enumerate(changes):
                gd[k] += value.dot(change, grams)
                dd[k] += change.dot(change, grams)
            if keep:
                gradients[key] = value
            for k in members:  # a layer is freed once its scalars are computed
                seen.changes[k] = ()
                seen.terms[k] = replace(seen.terms[k], tensors=())
    return InnerProducts(gg, gg.sqrt(), gd, dd, seen.losses, gradients)


def _summed_parts(seen: Tangents) -> tuple[Tensor, Tensor, dict[Key, _Parts]]:
    """Return ``g·g`` and ``g·∂g`` of one direction, with each parameter's ``g`` and ``∂g``."""
    gg = torch.zeros_like(seen.losses, dtype=at_least_single(seen.losses))
    gd = torch.zeros_like(gg)
    parts: dict[Key, _Parts] = {}
    for key, members in grouped(seen.terms).items():
        value, (change,) = seen.gradients(members)
        parts[key] = value, change
        grams = GramMatrices()
        gg += value.dot(value, grams)
        gd += value.dot(change, grams)
    return gg, gd, parts


def _along(gg: Tensor, gd: Tensor) -> Tensor:
    """Return ``g·∂g/g·g``, or zero for a zero gradient."""
    return torch.where(gg > 0, gd / torch.where(gg > 0, gg, 1.0), 0.0)


def summed_change(
    network: WatchedNetwork, batch: Batch, v: Tensor, clip: Clip
) -> dict[str, Tensor]:
    """Return ``Σ_i ∂g̃_i`` by parameter name, for a change of every record along ``v (B, …)``.

    With ``∂g = Jv``, ``∂g̃ = (∂g − (1 − ρ) ĝ ĝᵀ∂g)/φ`` (see ``clipping``).
    """
    seen = tangents(network, batch, v[None])
    with torch.no_grad():
        gg, gd, parts = _summed_parts(seen)
        norms = gg.sqrt()
        back = (clip.radial(norms) - 1) * _along(gg, gd) * clip.factor(norms)
        like = network.problem.detached()
        values, changes = ({key: pair[k] for key, pair in parts.items()} for k in (0, 1))
        across = weighted_sums(changes, clip.factor(norms), like)
        radial = weighted_sums(values, back, like)
    return {name: across[name] + radial[name] for name in like}


def radial_pull(network: WatchedNetwork, batch: Batch) -> RadialPull:
    """Return ``Jᵀg``, the norms of the gradients and the losses."""
    z = batch.z.detach().requires_grad_()
    losses, terms = network.differentiable_terms(batch, z)
    with torch.enable_grad():
        squared = squared_norms(terms)
        (pull,) = torch.autograd.grad(squared.sum() / 2, z, materialize_grads=True)
    return pull, squared.detach().sqrt(), losses.detach()


def information_product(network: WatchedNetwork, batch: Batch, v: Tensor, clip: Clip) -> Tensor:
    """Return ``J̃ᵀJ̃v`` of every record, by a tangent pass and then a pullback.

    With ``∂g = Jv``, ``J̃ᵀJ̃v = Jᵀw`` for ``w = (∂g − (1 − ρ²) ĝ ĝᵀ∂g)/φ²`` (see ``clipping``).
    """
    seen = tangents(network, batch, v[None])
    with torch.no_grad():
        w = _clipped_twice(seen, clip)
    z = batch.z.detach().requires_grad_()
    _, again = network.differentiable_terms(batch, z)
    with torch.enable_grad():
        gradients = gradients_of(again).items()
        each = [gradient.dot(w[key], GramMatrices()) for key, gradient in gradients]
        (pull,) = torch.autograd.grad(sum_of(each).sum(), z, materialize_grads=True)
    return pull


def _clipped_twice(seen: Tangents, clip: Clip) -> dict[Key, ParameterGradient]:
    """Return ``w`` for every parameter, given the gradients and their changes."""
    gg, gd, parts = _summed_parts(seen)
    norms = gg.sqrt()
    inside = 1 / clip.phi(norms) ** 2
    back = (clip.radial(norms) ** 2 - 1) * _along(gg, gd) * inside
    return {
        key: ParameterGradient(
            _scaled(change.outers, inside) + _scaled(value.outers, back),
            _weighted(change.plain, inside, value.plain, back),
        )
        for key, (value, change) in parts.items()
    }


def _scaled(outers: list[OuterProducts], by: Tensor) -> list[OuterProducts]:
    """Return outer products, with each record scaled by its own factor."""
    return [
        OuterProducts(outer.left, outer.right * by.to(outer.right.dtype)[:, None, None, None])
        for outer in outers
    ]


def _weighted(a: Tensor | None, by: Tensor, b: Tensor | None, times: Tensor) -> Tensor | None:
    """Return ``by·a + times·b``; a missing tensor counts as zero."""
    pairs = ((a, by), (b, times))
    parts = [value * factor[:, None] for value, factor in pairs if value is not None]
    return sum_of(parts) if parts else None
