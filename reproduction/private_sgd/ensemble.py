"""Many small networks trained privately at once, each with its own hyperparameters.

A network of Guo et al. 2022 is far too small to keep a GPU busy. All settings of a grid run through
the same layers together, on the same batch: one pass serves a hundred runs. The results of a step
are those of :class:`seepage.nn.Engine` for each network alone; the tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reproduction.private_sgd.ensemble_layers import (
    Affine,
    Convolutions,
    FullLayers,
    Layer,
    Tanh,
    average_pool,
    flatten,
)
from seepage.nn.problem.clipping import SmoothClip


@dataclass(frozen=True)
class EnsembleStep:
    """The results of one batch, for every network.

    Parameters
    ----------
    norms
        The norms of the gradients before clipping, ``(G, B)``.
    lengths
        The norms after clipping, ``(G, B)``.
    traces
        Estimates of ``‖∂g̃/∂x‖_F²``, one for each direction, of the first M examples: ``(P, G, M)``.
    gradients
        The sums of the clipped gradients, in the order of :attr:`Ensemble.parameters`.
    """

    norms: Tensor
    lengths: Tensor
    traces: Tensor
    gradients: Tensor


class Ensemble:
    """Networks of one shape: convolutions, full layers, tanh and average pooling.

    They compute in the type of the inputs; their parameters keep their own type.

    Parameters
    ----------
    make
        Returns a new network at each call.
    seeds
        The seed of each network's first parameters.
    shape
        The shape of one example: channels, height, width.
    """

    def __init__(
        self, make: Callable[[], nn.Module], seeds: Sequence[int], shape: tuple[int, ...]
    ) -> None:
        networks = []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                networks.append(list(make().children()))
        self.layers: list[Layer] = []
        for modules in zip(*networks, strict=True):
            self.layers.append(_layer(list(modules), shape, first=not self.layers))
            shape = tuple(modules[0](torch.zeros(1, *shape)).shape[1:])
        self.affine = [layer for layer in self.layers if isinstance(layer, Affine)]
        parts = [
            tensor.flatten(1) for layer in self.affine for tensor in (layer.weight, layer.bias)
        ]
        #: Weights and biases of all networks, layer by layer, ``(G, …)``; changed in place.
        self.parameters = torch.cat(parts, 1)
        self._hand_out()

    def to(self, device: torch.device | str) -> Ensemble:
        """Move all parameters to a device."""
        self.parameters = self.parameters.to(device)
        self._hand_out()
        return self

    def _hand_out(self) -> None:
        """Make the layers' parameters views of the one tensor that holds them all."""
        views = iter(self.parts(self.parameters))
        for layer in self.affine:
            layer.weight, layer.bias = next(views), next(views)

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return views of such a tensor: each layer's weight ``(G, O, K)`` and bias ``(G, O)``."""
        shapes = [part.shape[1:] for layer in self.affine for part in (layer.weight, layer.bias)]
        found = flat.split([shape.numel() for shape in shapes], 1)
        return [part.unflatten(1, shape) for part, shape in zip(found, shapes, strict=True)]

    def logits(self, x: Tensor) -> Tensor:
        """Return the outputs of every network for the same examples, ``(G, B, classes)``."""
        values = _with_channels_last(x)[None]
        for layer in self.layers:
            values = layer.forward(values)
        return values

    def step(
        self,
        x: Tensor,
        y: Tensor,
        directions: Tensor,
        thresholds: Tensor,
        counted: Tensor | None = None,
    ) -> EnsembleStep:
        """Return gradient norms, traces and clipped sums of a batch.

        Parameters
        ----------
        x, y
            The batch, the same for all networks.
        directions
            Directions of the first M inputs, ``(P, M, …)``: random signs, or coordinates times
            ``√d``.
        thresholds
            The clipping threshold of each network, ``(G,)``.
        counted
            One for each example, or zero for one that only pads the batch: the sums leave it out.
        """
        logits = self.logits(x)
        change = _with_channels_last(directions)[:, None]
        for layer in self.layers:
            change = layer.tangent(change)
        p = torch.softmax(logits, -1, dtype=thresholds.dtype)
        classes = torch.arange(p.shape[-1], device=y.device)
        gradient = (p - (y[:, None] == classes).to(p.dtype)).to(x.dtype)
        # The tangent of softmax: p ∘ (da − p·da).
        few = p[:, : change.shape[2]]
        dgradient = (few * (change - (few * change).sum(-1, keepdim=True))).to(x.dtype)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        for layer in reversed(self.layers):
            dgradient = layer.backward_tangent(dgradient)
        parts = [layer.products() for layer in self.affine]
        gg, gd, dd = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        # The clip works on norms relative to the threshold: C = 1 and everything divided by C.
        clip, scale = SmoothClip(1.0), thresholds[:, None]
        norms = gg.sqrt()
        relative, known = norms / scale, slice(gd.shape[-1])
        squares = (gg[:, known] / scale**2, gd / scale**2, dd / scale**2)
        traces = clip.squared(relative[:, known], *squares) * scale**2
        factors = clip.factor(relative)
        lengths = norms * factors
        if counted is not None:
            factors = factors * counted
        sums = [part.flatten(1) for layer in self.affine for part in layer.summed(factors)]
        return EnsembleStep(norms, lengths, traces, torch.cat(sums, 1).to(thresholds.dtype))


def _with_channels_last(x: Tensor) -> Tensor:
    """Return images in the layers' layout; rows of numbers are unchanged."""
    return x.movedim(-3, -1).contiguous() if x.dim() > 3 else x


def _layer(modules: list[nn.Module], shape: tuple[int, ...], first: bool) -> Layer:
    kind = modules[0]
    if isinstance(kind, nn.Conv2d):
        return Convolutions(modules, first, shape)
    if isinstance(kind, nn.Linear):
        return FullLayers(modules, first)
    if isinstance(kind, nn.Tanh):
        return Tanh()
    if isinstance(kind, nn.AvgPool2d):
        return average_pool(kind, shape)
    if isinstance(kind, nn.Flatten):
        return flatten(shape)
    raise TypeError(f"An ensemble has no layer {type(kind).__name__}.")
