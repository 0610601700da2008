"""Probes: ``J̃ᵀu`` for random directions ``u`` of the parameters.

``g_i·u`` is the derivative of record i's loss along ``u``, so ``∇_z Σ_i g_i·u`` gives ``J_iᵀu`` of
all records at once. The whole batch shares one direction, and no per-layer rules are needed. Since
``E[uuᵀ] = I``, ``E‖Jᵀu‖² = ‖J‖_F²`` and ``E[(Jᵀu)_j²] = (JᵀJ)_jj``.

There are two ways to compute ``J̃ᵀu``. :func:`dense_probe` applies forward mode over the parameters
to the gradient with respect to ``z``. (Reverse mode over forward mode costs the same, but in torch
2.13 it is silently wrong for the weights of LayerNorm and InstanceNorm.)

:func:`thin_probe`, for networks with wide layers, uses two backward passes. For a thin direction
``ABᵀ``, ``g_i·u`` follows from the layers' terms, ``Σ_s (Aᵀδ_s)·(Bᵀt_s)``, at almost no cost. A
double-backward pass then gives ``J_iᵀu = ∇_z (g_i·u)``. Counted in matrix products, this costs as
much as four forward passes, and a training step as much as three. If the norms ``‖g_i‖²`` are in
the same graph, one backward pass gives the exactly clipped ``J̃ᵀu = ∇_z (g·u/φ(‖g‖))``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.nn.gradients.norms import squared_norms, weighted_gradient
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    OneHot,
    OuterProducts,
    gradients_of,
    sum_of,
    weighted_sums,
)
from seepage.nn.gradients.plain_kernels import weight_norm
from seepage.nn.gradients.rules.linear import summed
from seepage.nn.gradients.watching import WatchedNetwork, differentiable_backends
from seepage.nn.jacobian.random_directions import Direction, Directions, Draw
from seepage.nn.jacobian.tangents import radial_pull
from seepage.nn.problem.clipping import Clip, NoClip
from seepage.nn.problem.problem import Batch

_EMBEDDING = inspect.signature(functional.embedding)


@dataclass(frozen=True)
class ClippedProbes:
    """The results of K probes of one batch."""

    pulls: Tensor  # ``J̃_iᵀu_k``, ``(K, B, …)``
    # ``‖g_i‖`` before clipping, ``(B,)``; nan without a clip, which does not need them
    norms: Tensor
    losses: Tensor  # ``(B,)``
    gradient: dict[str, Tensor]  # ``Σ_i g̃_i`` by parameter name; empty if it was not asked for


def dense_probe(
    network: WatchedNetwork, batch: Batch, clip: Clip, draw: Draw, keep: bool = False
) -> ClippedProbes:
    """Return ``J̃ᵀu`` for every direction; with ``keep``, also the sum of clipped gradients.

    The effect of the clip is exact: ``J̃ᵀu = Jᵀu/φ − (φ′/(φ²n))(g·u) Jᵀg`` with ``n = ‖g‖``.
    Per-layer rules are needed only for clipping.
    """
    pulls, along, losses = _unclipped(network, batch, draw())
    if isinstance(clip, NoClip):
        norms = torch.full_like(losses, torch.nan)
    else:
        radial, norms, _ = radial_pull(network, batch)
        phi = clip.phi(norms)
        steepness = clip.slope(norms) / (phi**2 * torch.where(norms > 0, norms, 1.0))
        one = [1] * (pulls.dim() - 2)
        along = (steepness * along).reshape(*along.shape, *one)
        pulls = pulls / phi.reshape(-1, *one) - along * radial
    gradient = {}
    if keep:
        gradient = weighted_gradient(network.problem, batch, clip.factor(norms))[1]
    return ClippedProbes(pulls, norms, losses, gradient)


def _unclipped(
    network: WatchedNetwork, batch: Batch, us: Sequence[Directions]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``Jᵀu (K, B, …)``, ``g·u (K, B)`` and the losses, in one pass for all directions."""
    problem = network.problem
    parameters = problem.detached()

    def pulled(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        constants = {id(values[name]): constant for name, constant in parameters.items()}

        def total(z: Tensor) -> tuple[Tensor, Tensor]:
            with ForwardOverParameters(constants):
                losses = problem.losses(values, batch, z)
            return losses.sum(), losses

        return grad(total, has_aux=True)(batch.z)  # type: ignore[no-any-return]

    def one(direction: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        (_, losses), (pull, slopes) = jvp(pulled, (parameters,), (direction,))
        return pull, slopes, losses

    with differentiable_backends(problem.net):
        dense = [{n: u[n].dense(p.shape) for n, p in parameters.items()} for u in us]
        if len(us) == 1:
            pull, slopes, losses = one(dense[0])
            return pull[None], slopes[None], losses
        # The primal values carry no probe axis, so vmap computes them once for all probes.
        stacked = {name: torch.stack([u[name] for u in dense]) for name in parameters}
        pulls, slopes, losses = vmap(one, out_dims=(0, 0, None), randomness="same")(stacked)
        return pulls, slopes, losses


class ForwardOverParameters(TorchFunctionMode):  # type: ignore[misc]
    """Replaces torch functions that lack forward mode over the parameters.

    An embedding's padding row has no gradient in torch, so its gradient is not released. Forward
    mode ignores this convention, so the row is read from constants. Weight normalisation, which has
    no forward mode, is replaced by plain arithmetic.
    """

    def __init__(self, constants: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.constants = constants

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch._weight_norm:
            return weight_norm(*args, **kwargs)
        out = function(*args, **kwargs)
        if function is not functional.embedding:
            return out
        given = _EMBEDDING.bind(*args, **kwargs).arguments
        tokens, table, padding = given["input"], given["weight"], given.get("padding_idx")
        if padding is None or id(table) not in self.constants:
            return out
        fixed = functional.embedding(tokens, self.constants[id(table)])
        return torch.where((tokens == padding % len(table))[..., None], fixed, out)


def thin_probe(
    network: WatchedNetwork, batch: Batch, clip: Clip, draw: Draw, keep: bool = False
) -> ClippedProbes:
    """Return ``J̃ᵀu`` for every direction; with ``keep``, also the sum of clipped gradients."""
    z = batch.z.detach().requires_grad_()
    losses, terms = network.differentiable_terms(batch, z)
    with torch.enable_grad():
        along = [_gradient_along(terms, u) for u in draw()]
        if isinstance(clip, NoClip):
            norms = torch.full_like(losses.detach(), torch.nan)
            scaled = along
        else:
            squared = squared_norms(terms)
            norms = squared.detach().sqrt()
            scaled = [_clipped(a, squared, norms, clip) for a in along]
        gradient = {}
        if keep:
            with torch.no_grad():
                detached = network.problem.detached()
                gradient = weighted_sums(gradients_of(terms), clip.factor(norms), detached)
        del terms
        pulls = []
        for k, value in enumerate(scaled):
            more = k + 1 < len(scaled)
            (pull,) = torch.autograd.grad(value.sum(), z, retain_graph=more, materialize_grads=True)
            pulls.append(pull)
    return ClippedProbes(torch.stack(pulls), norms, losses.detach(), gradient)


def _clipped(along: Tensor, squared: Tensor, norms: Tensor, clip: Clip) -> Tensor:
    """Return a scalar linear in ``g·u`` and ``n²`` that has the gradient of ``(g·u)/φ(n)``."""
    phi = clip.phi(norms)
    steep = clip.slope(norms) / (2 * phi**2 * torch.where(norms > 0, norms, 1.0))
    return along / phi - steep * along.detach() * squared


def _gradient_along(terms: Sequence[GradientTerm], u: Directions) -> Tensor:
    """Return ``g_i·u`` of every record."""
    biases = {id(c.tensors[0]): c for c in terms if c.expand == (summed,)}
    along, plain, against = [], [], []
    for term in terms:
        if term.expand == (summed,) and id(term.tensors[0]) not in biases:
            continue  # included with its weight
        part = term.value()
        name, row = term.key
        if isinstance(part, OuterProducts) and u[name].full is None:
            bias = biases.pop(id(part.left), None)
            shift = None
            if bias is not None:
                shift = _piece(u[bias.key[0]].full, bias.key[1], part.left.shape[3])
            along.append(_thin_along(part, u[name], row, shift))
        elif isinstance(part, OuterProducts):
            along.append(_full_along(part, u[name].full, row))
        elif u[name].full is None:  # a wide matrix whose use has no rule
            along.append(((part @ u[name].right) * u[name].left).flatten(1).sum(1))
        else:
            plain.append(part.reshape(len(part), -1))
            against.append(_piece(u[name].full, row, plain[-1].shape[1]))
    if plain:  # many small parameters in one product
        along.append(torch.cat(plain, 1) @ torch.cat(against))
    return sum_of(along)


def _piece(full: Any, row: int, size: int) -> Tensor:
    start = row * (full.numel() // len(full)) if row else 0
    piece: Tensor = full.flatten()[start : start + size]
    return piece


def _thin_along(part: OuterProducts, u: Direction, row: int, shift: Tensor | None) -> Tensor:
    """Return ``Σ_s (Aᵀl_s)·(Bᵀr_s)``.

    With a bias, the last column of ``A`` is ``shift``, the direction of the bias, whose input is 1.
    """
    if shift is None:
        return (_rows(part.left, u.left, row) * (part.right @ u.right)).flatten(1).sum(1)
    columns = torch.cat([u.left[row : row + len(shift), :-1], shift[:, None]], 1)
    thin = functional.linear(part.right, u.right.T, u.last)
    return ((part.left @ columns) * thin).flatten(1).sum(1)


def _full_along(part: OuterProducts, full: Any, row: int) -> Tensor:
    left, right = part.left, part.right
    blocks = right.shape[1]
    size = left.size if isinstance(left, OneHot) else blocks * left.shape[3]
    matrix = full.reshape(len(full), -1)[row : row + size]
    if isinstance(left, OneHot):
        return (_rows(left, matrix, 0) * right).flatten(1).sum(1)
    return ((left @ matrix.unflatten(0, (blocks, -1))) * right).flatten(1).sum(1)


def _rows(left: Tensor | OneHot, matrix: Tensor, row: int) -> Tensor:
    """Return the product of a left factor and a matrix with as many rows as the parameter."""
    if isinstance(left, OneHot):
        picked = matrix[left.index]
        return picked if left.keep is None else picked * left.keep[..., None]
    return left @ matrix[row : row + left.shape[3]]
