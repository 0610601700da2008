"""Computes the change of every layer's gradient along directions of the target or the input.

Let ``J_l`` be the Jacobian of layer l's gradient for one record with loss ``ℓ``. For a direction
``v`` of the soft target ``ŷ``, ``J_l v`` is the layer's gradient of ``v·∂ℓ/∂ŷ``. With
cross-entropy, ``∂ℓ/∂ŷ_k = −log p_k``, so this gradient needs a plain backward pass, not a
double-backward pass. For a direction of the input, ``J_l v`` is the tangent of the layer's
gradient. The changes are computed for all layers and all records of a batch at once.

With two-class cross-entropy, the gradient and all columns are multiples of the gradient of the
difference between the two outputs, so one backward pass suffices.

The per-record gradients of a convolution's weight are computed by one grouped convolution. The
records of a batch are arranged as groups of channels of one image, so that the weight's gradient
contains every record's gradient side by side. On a CPU the cost is close to that of the gradient of
the summed loss; unfolding patches costs five times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    Key,
    ParameterGradient,
    grouped,
    sum_of,
    value_of,
)
from seepage.nn.gradients.rules.convolution import Geometry
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.tangents import tangents
from seepage.nn.problem.problem import Batch, Loss

Gradients = Iterator[tuple[Key, ParameterGradient]]
Changes = Iterator[tuple[int, Key, ParameterGradient]]


class OutputKeeper:
    """A loss that stores its arguments, so that its dependence on the output can be computed."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.output: Any = None
        self.target: Any = None

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the losses, and store output and target."""
        self.output, self.target = output, target
        return self.loss(output, target)


@dataclass(frozen=True)
class Multiples:
    """One gradient, and the factors that turn it into each column of the Jacobian."""

    gradients: Gradients  # the common gradient, parameter by parameter
    columns: Tensor  # the factors of the columns, ``(B, K)``
    own: Tensor  # the factor of the gradient itself, ``(B,)``


class TargetColumns:
    """One forward pass of a batch, from which the gradient and any number of columns are computed.

    The problem's view is the label, and its loss is an :class:`OutputKeeper`.
    """

    def __init__(self, network: WatchedNetwork, batch: Batch) -> None:
        self._zeros = [s.zeros(len(batch), batch.z.device) for s in network.outputs]
        self._edges: list[Any] = []

        def tap(output: Tensor) -> Tensor:
            if not output.requires_grad:  # a copy, since later code may write into it
                output = output.detach().requires_grad_().clone()
            self._edges.append(get_gradient_edge(output))
            return output

        with torch.enable_grad():
            z = batch.z.detach().requires_grad_()
            with network.running(network.problem.detached(), batch, z, tap) as self._run:
                pass
            self._total = self._run.losses.sum()
            (self._slopes,) = torch.autograd.grad(
                self._total, z, create_graph=True, materialize_grads=True
            )
        self._keeper = network.problem.loss

    def multiples(self) -> Multiples | None:
        """Return the factors if all Jacobian columns are multiples of one gradient, or ``None``."""
        keeper, batch = self._keeper, len(self._slopes)
        if not (isinstance(keeper, OutputKeeper) and isinstance(keeper.output, Tensor)):
            return None
        if not self._slopes.requires_grad or keeper.output.numel() > 4 * batch:
            return None
        try:
            rows = _output_gradients(keeper).reshape(batch, -1, keeper.output[0].numel())
        except RuntimeError:  # a loss with constants in another precision
            return None
        if not bool(rows.isfinite().all()):  # reported once the layer is known
            return None
        sizes = rows.norm(dim=-1)
        most, where = sizes.max(dim=1, keepdim=True)
        direction = rows.take_along_dim(where[:, :, None], 1).squeeze(1)
        direction = direction / most.clamp(min=torch.finfo(rows.dtype).tiny)
        factors = (rows * direction[:, None]).sum(-1)
        aside = (rows - factors[:, :, None] * direction[:, None]).norm(dim=-1)
        # Below this share of the gradient, or of the record's largest one, a component in another
        # direction is rounding: a gradient may be a small difference of such numbers.
        if bool((aside > 1e-9 * sizes + 1e-14 * most).any()):
            return None
        factors = factors.to(keeper.output.dtype)
        direction = direction.to(keeper.output.dtype).reshape(keeper.output.shape)
        with torch.enable_grad():
            scalar = (keeper.output * direction).sum()
        return Multiples(self._of(scalar), factors[:, 1:], factors[:, 0])

    def gradients(self) -> Gradients:
        """Yield the gradient of every parameter."""
        return self._of(self._total)

    def along(self, directions: Tensor) -> Changes:
        """Yield the change of every gradient along each of the directions, ``(K, B, …)``."""
        if not self._slopes.requires_grad:  # the target does not reach the gradient at all
            return
        for k, direction in enumerate(directions):
            with torch.enable_grad():
                scalar = (self._slopes * direction).sum()
            for key, gradient in self._of(scalar):
                yield k, key, gradient

    def _of(self, scalar: Tensor) -> Gradients:
        slopes = torch.autograd.grad(scalar, self._edges, retain_graph=True, allow_unused=True)
        deltas = [
            zero if delta is None else delta
            for delta, zero in zip(slopes, self._zeros, strict=True)
        ]
        with torch.no_grad():
            terms = self._run.terms(deltas)
            for key, members in grouped(terms).items():
                yield key, _gradient([terms[k] for k in members])


class InputColumns:
    """The gradient of a batch, and its changes along directions of the input.

    The parameters are those of :class:`TargetColumns`, with a problem whose view is the input.
    """

    def __init__(self, network: WatchedNetwork, batch: Batch) -> None:
        self._network, self._batch = network, batch

    def gradients(self) -> Gradients:
        """Yield the gradient of every parameter."""
        _, terms = self._network.terms(self._batch)
        for key, members in grouped(terms).items():
            with torch.no_grad():
                yield key, _gradient([terms[k] for k in members])

    def along(self, directions: Tensor) -> Changes:
        """Yield the change of every gradient along each of the directions, ``(K, B, …)``."""
        seen = tangents(self._network, self._batch, directions)
        for key, members in grouped(seen.terms).items():
            uses = [seen.terms[m] for m in members]
            for k in range(len(directions)):
                changes = [[tensor[k] for tensor in seen.changes[m]] for m in members]
                with torch.no_grad():
                    yield k, key, _change(uses, changes)

    def rows(self, names: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
        """Yield, layer by layer, all rows of the Jacobian of small layers, ``(B, size, …)``.

        ``names`` maps parameters to their layers; parameters without a layer are left out.
        """
        if not names:
            return
        z = self._batch.z.detach().requires_grad_()
        _, terms = self._network.differentiable_terms(self._batch, z)
        groups = grouped(terms)
        for layer in dict.fromkeys(names.values()):
            rows = []
            for (name, _), members in groups.items():
                if names.get(name) == layer:
                    with torch.enable_grad():
                        dense = _dense([terms[k] for k in members])
                    rows += [_pull(dense[:, j], z) for j in range(dense.shape[1])]
            if rows:
                yield layer, torch.stack(rows, 1)


def _output_gradients(keeper: OutputKeeper) -> Tensor:
    """Return the output gradients of the loss and its target derivatives, ``(B, 1 + K, …)``.

    These gradients are computed in double precision: they are proportional to ``1 − p``, which is
    lost to rounding in single precision if the network is confident.
    """
    with torch.enable_grad():
        output = keeper.output.detach().double().requires_grad_()
        target = keeper.target.detach().double().requires_grad_()
        total = keeper.loss(output, target).sum()
        (slopes,) = torch.autograd.grad(total, target, create_graph=True, materialize_grads=True)
        parts = [total, *slopes.reshape(len(output), -1).sum(0)]
        rows = [
            torch.autograd.grad(part, output, retain_graph=True, materialize_grads=True)[0]
            for part in parts
        ]
    return torch.stack(rows, 1)


def _gradient(uses: list[GradientTerm]) -> ParameterGradient:
    """Return the gradient of one parameter."""
    geometry = quick_geometry(uses)
    if geometry is None:
        return value_of(uses)
    delta, inputs = uses[0].tensors
    return ParameterGradient([], weight_gradients(delta, inputs, geometry))


def _change(uses: list[GradientTerm], changes: list[list[Tensor]]) -> ParameterGradient:
    """Return the change of one parameter's gradient, given the changes of its factors."""
    geometry = quick_geometry(uses)
    if geometry is None:
        parts = []
        for use, change in zip(uses, changes, strict=True):
            parts += use.change(use.expanded(), change)
        return ParameterGradient.of(parts)
    (delta, inputs), (moved_delta, moved_inputs) = uses[0].tensors, changes[0]
    first = weight_gradients(moved_delta, inputs, geometry)
    return ParameterGradient([], first + weight_gradients(delta, moved_inputs, geometry))


def _dense(terms: list[GradientTerm]) -> Tensor:
    parts = [term.value() for term in terms]
    return sum_of([p.flatten(1) if isinstance(p, Tensor) else p.written_out() for p in parts])


def _pull(entries: Tensor, z: Tensor) -> Tensor:
    if not entries.requires_grad:
        return torch.zeros_like(z)
    (row,) = torch.autograd.grad(entries.sum(), z, retain_graph=True, materialize_grads=True)
    return row.detach()


def quick_geometry(uses: Sequence[GradientTerm]) -> Geometry | None:
    """Return the geometry of the only convolution that uses a weight, if grouping makes it fast.

    The result is ``None`` for other layers, on an accelerator, and for several images per record.
    """
    square = uses[0].square
    if len(uses) > 1 or not isinstance(square, partial):
        return None
    geometry = square.keywords.get("geometry")
    delta = uses[0].tensors[0]
    if not isinstance(geometry, Geometry) or delta.device.type != "cpu" or len(delta) == 0:
        return None
    return None if geometry.multiple > 1 else geometry


def weight_gradients(delta: Tensor, inputs: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight gradient of every record, ``(B, size of the weight)``.

    ``delta`` contains the gradients at the layer's outputs; both ``delta`` and the layer's inputs
    are ``(B, channels, …)``.
    """
    padding = [pad // 2 for pad in geometry.padding]
    if any(pad % 2 for pad in geometry.padding):  # torch pads both sides equally
        sides = [side for pad in reversed(geometry.padding) for side in (pad // 2, pad - pad // 2)]
        inputs, padding = functional.pad(inputs, sides), [0] * len(padding)
    channels = inputs.shape[1] // geometry.groups
    gradients: Tensor = torch.ops.aten.convolution_backward(
        delta.reshape(1, -1, *delta.shape[2:]),
        inputs.reshape(1, -1, *inputs.shape[2:]),
        delta.new_empty(len(delta) * delta.shape[1], channels, *geometry.kernel),
        None,
        geometry.stride,
        padding,
        geometry.dilation,
        False,
        [0] * len(padding),
        len(delta) * geometry.groups,
        (False, True, False),
    )[1]
    return gradients.reshape(len(delta), -1)
