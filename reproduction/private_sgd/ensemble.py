"""Many small networks trained privately at once, each with its own hyperparameters.

A network of paper 004 is far too small to keep a graphics card busy. All settings of a grid go
through the same layers together, on the same batch: one pass serves a hundred runs. What a step
gives is what :class:`seepage.nn.Engine` gives for each network alone; the tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """What one batch gives, for every network.

    Parameters
    ----------
    norms
        The norms of the gradients before clipping, ``(G, B)``.
    lengths
        The norms after clipping, ``(G, B)``.
    traces
        Estimates of ``‖∂g̃/∂x‖_F²``, one for each direction, ``(P, G, B)``.
    gradients
        The sums of the clipped gradients: for each layer weight ``(G, O, K)`` and bias ``(G, O)``.
    """

    norms: Tensor
    lengths: Tensor
    traces: Tensor
    gradients: list[tuple[Tensor, Tensor]]


class Ensemble:
    """Networks of one shape: convolutions, full layers, tanh and average pooling.

    Parameters
    ----------
    make
        Returns a network, a new one at each call.
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

    def to(self, device: torch.device | str) -> Ensemble:
        """Move all parameters to a device."""
        for layer in self.affine:
            layer.to(device)
        return self

    @property
    def parameters(self) -> list[Tensor]:
        """Weights and biases of all networks, layer by layer, to be changed in place."""
        return [tensor for layer in self.affine for tensor in (layer.weight, layer.bias)]

    def logits(self, x: Tensor) -> Tensor:
        """Return the outputs of every network for the same examples, ``(G, B, classes)``."""
        values = _with_channels_last(x)[None]
        for layer in self.layers:
            values = layer.forward(values)
        return values

    def step(self, x: Tensor, y: Tensor, directions: Tensor, thresholds: Tensor) -> EnsembleStep:
        """Return gradient norms, traces and clipped sums of a batch.

        Parameters
        ----------
        x, y
            The batch, the same for all networks.
        directions
            Directions of the inputs, ``(P, B, …)``: random signs, or coordinates times ``√d``.
        thresholds
            The clipping threshold of each network, ``(G,)``.
        """
        logits = self.logits(x)
        change = _with_channels_last(directions)[:, None]
        for layer in self.layers:
            change = layer.tangent(change)
        p = torch.softmax(logits, -1)
        gradient = p - functional.one_hot(y, p.shape[-1])
        # The tangent of softmax: p ∘ (da − p·da).
        dgradient = p * (change - (p * change).sum(-1, keepdim=True))
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        for layer in reversed(self.layers):
            dgradient = layer.backward_tangent(dgradient)
        parts = [layer.products() for layer in self.affine]
        gg, gd, dd = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        norms = gg.sqrt()
        # The clip is one of lengths relative to the threshold: C = 1 and everything divided by C.
        clip, scale = SmoothClip(1.0), thresholds[:, None]
        relative = norms / scale
        traces = clip.squared(relative, gg / scale**2, gd / scale**2, dd / scale**2) * scale**2
        factors = clip.factor(relative)
        gradients = [layer.summed(factors) for layer in self.affine]
        return EnsembleStep(norms, norms * factors, traces, gradients)


def _with_channels_last(x: Tensor) -> Tensor:
    """Return images in the order of the layers; rows of numbers stay as they are."""
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
