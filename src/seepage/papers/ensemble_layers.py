"""Layers of many small networks at once, differentiated by hand as far as dFIL needs it.

All networks of an ensemble have the same shape and see the same batch, each with parameters of its
own. Values are ``(G, B, …)`` for G networks and B examples; tangents, one for each of P directions
of the input, are ``(P, G, B, …)``. A layer has four passes, called in this order: values forward,
tangents forward, gradients backward, tangents of the gradients backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input


class Layer(ABC):
    """One layer of all networks; it keeps what later passes need until the next batch."""

    @abstractmethod
    def forward(self, values: Tensor) -> Tensor:
        """Return the outputs."""

    @abstractmethod
    def tangent(self, change: Tensor) -> Tensor:
        """Return the change of the outputs for a change of the inputs."""

    @abstractmethod
    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient at the inputs, given that at the outputs."""

    @abstractmethod
    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return the change of the gradient at the inputs, given that at the outputs."""


class Tanh(Layer):
    """``a = tanh(s)``, with ``a′ = 1 − a²`` and ``(a′)′ = −2a a′``."""

    def forward(self, values: Tensor) -> Tensor:
        """Return ``tanh``."""
        self.a = torch.tanh(values)
        self.slope = 1 - self.a**2
        return self.a

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``a′ ds``."""
        self.da = self.slope * change
        return self.da

    def backward(self, gradient: Tensor) -> Tensor:
        """Return ``a′ δ``."""
        self.delta = gradient
        return self.slope * gradient

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return ``a′ dδ − 2 a da δ``."""
        return self.slope * change - 2 * self.a * self.da * self.delta


class Linear(Layer):
    """A layer without parameters whose passes are one linear map and its adjoint."""

    def __init__(self, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> None:
        self._there, self._back = there, back

    def forward(self, values: Tensor) -> Tensor:
        """Apply the map."""
        return self._there(values)

    def tangent(self, change: Tensor) -> Tensor:
        """Apply the map."""
        return self._there(change)

    def backward(self, gradient: Tensor) -> Tensor:
        """Apply the adjoint."""
        return self._back(gradient)

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Apply the adjoint."""
        return self._back(change)


def average_pool(module: nn.AvgPool2d, shape: tuple[int, ...]) -> Linear:
    """Return average pooling of images of that shape (channels, height, width)."""
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)

    def there(values: Tensor) -> Tensor:
        pooled = functional.avg_pool2d(values.reshape(-1, *shape), kernel, stride)
        return pooled.reshape(*values.shape[:-3], *pooled.shape[1:])

    def back(gradient: Tensor) -> Tensor:
        flat = gradient.reshape(-1, *gradient.shape[-3:])
        like = gradient.new_empty(1).expand(len(flat), *shape)
        spread = torch.ops.aten.avg_pool2d_backward(
            flat, like, kernel, stride, (0, 0), False, True, None
        )
        return spread.reshape(*gradient.shape[:-3], *shape)

    return Linear(there, back)


def flatten(shape: tuple[int, ...]) -> Linear:
    """Return the map of images of that shape to rows of numbers."""
    return Linear(lambda a: a.flatten(-3), lambda g: g.reshape(*g.shape[:-1], *shape))


class Affine(Layer):
    """Layers with parameters: ``s = W t + b`` with the columns ``t`` of the inputs.

    A convolution's columns are its patches, ``(…, K, L)`` for L places; a full layer has one. The
    gradient of an example is ``δ tᵀ`` for the weight and ``δ 1`` for the bias.

    Parameters
    ----------
    modules
        The layer of each network.
    first
        Whether nothing comes before, so that no gradient is passed on.
    """

    def __init__(self, modules: Sequence[nn.Linear | nn.Conv2d], first: bool) -> None:
        self.first = first
        self.weight = torch.stack([m.weight.detach().flatten(1) for m in modules])
        self.bias = torch.stack([m.bias.detach() for m in modules if m.bias is not None])

    def to(self, device: torch.device | str) -> None:
        """Move the parameters."""
        self.weight, self.bias = self.weight.to(device), self.bias.to(device)

    @abstractmethod
    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``g·g (G, B)``, ``g·dg`` and ``dg·dg (P, G, B)`` of this layer's gradients."""

    @abstractmethod
    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``Σ_b f_b g_b`` for weight and bias; after :meth:`products`."""


class Full(Affine):
    """Full layers: one product for the whole batch of a network."""

    def forward(self, values: Tensor) -> Tensor:
        """Return ``W t + b``."""
        self.t = values
        return values @ self.weight.transpose(1, 2) + self.bias[:, None]

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``W dt``."""
        self.dt = change
        return change @ self.weight.transpose(1, 2)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return ``Wᵀ δ``."""
        self.delta = gradient
        return gradient if self.first else gradient @ self.weight

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return ``Wᵀ dδ``."""
        self.ddelta = change
        return change if self.first else change @ self.weight

    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return them from those of δ and t, since ``δ tᵀ`` is an outer product."""
        ss, s_ds, ds_ds = _dots(self.delta, self.ddelta, 1)
        tt, t_dt, dt_dt = _dots(self.t, self.dt, 1)
        tt = 1 + tt  # the bias is the weight of a column that is 1
        return ss * tt, s_ds * tt + ss * t_dt, ds_ds * tt + 2 * s_ds * t_dt + ss * dt_dt

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return one product for weights of a network, one sum for biases."""
        scaled = self.delta * factors[..., None]
        t = self.t.expand(len(scaled), *self.t.shape[1:])
        return scaled.transpose(1, 2) @ t, scaled.sum(1)


class Convolution(Affine):
    """Convolutions: torch's own, network by network, and gradients from the patches.

    Parameters
    ----------
    modules, first
        As for :class:`Affine`.
    shape
        The shape of one example's input: channels, height, width.
    """

    def __init__(self, modules: Sequence[nn.Conv2d], first: bool, shape: tuple[int, ...]) -> None:
        super().__init__(modules, first)
        self.model, self.shape = modules[0], shape
        self.stride, self.padding = _pair(self.model.stride), _pair(self.model.padding)

    def forward(self, values: Tensor) -> Tensor:
        """Return ``W ∗ a + b``."""
        self.values = values
        return self._convolved(values) + self.bias[:, None, :, None, None]

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``W ∗ da``."""
        self.change = change
        return self._convolved(change)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient at the inputs, and keep that at the outputs."""
        self.delta = gradient
        return self._back(gradient)

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return the change of that, and keep the one at the outputs."""
        self.ddelta = change
        return self._back(change)

    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Form the gradients of the batch, and what the directions change in them."""
        t = _patches(self.values, self.model).transpose(-1, -2)
        delta, ddelta = self.delta.flatten(-2), self.ddelta.flatten(-2)
        gg, gd, dd = _dots(delta.sum(-1), ddelta.sum(-1), 1)  # of the biases
        self.g = delta @ t
        gg = gg + _dot(self.g, self.g, 2)
        for p in range(len(ddelta)):  # one direction at a time: these are the largest tensors
            dg = ddelta[p] @ t
            dg += delta @ _patches(self.change[p], self.model).transpose(-1, -2)
            gd[p] += _dot(self.g, dg, 2)
            dd[p] += _dot(dg, dg, 2)
        return gg, gd, dd

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the gradients that were formed."""
        bias = torch.einsum("gb,gbo->go", factors, self.delta.sum((-2, -1)))
        return torch.einsum("gb,gbok->gok", factors, self.g), bias

    def _convolved(self, images: Tensor) -> Tensor:
        def one(batch: Tensor, weight: Tensor) -> Tensor:
            return functional.conv2d(batch, weight, None, self.stride, self.padding)

        return self._each(one, images)

    def _back(self, gradient: Tensor) -> Tensor:
        if self.first:
            return gradient

        def one(batch: Tensor, weight: Tensor) -> Tensor:
            size = (len(batch), *self.shape)
            return conv2d_input(size, weight, batch, self.stride, self.padding)

        return self._each(one, gradient)

    def _each(self, one: Callable[[Tensor, Tensor], Tensor], images: Tensor) -> Tensor:
        """Apply something to the images ``(…, G, B, C, H, W)`` and weight of each network."""
        networks = len(self.weight)
        images = images.expand(*images.shape[:-5], networks, *images.shape[-4:])
        kernel = (-1, *self.model.weight.shape[1:])
        out = []
        for g in range(networks):
            mine = images[..., g, :, :, :, :]
            found = one(mine.reshape(-1, *mine.shape[-3:]), self.weight[g].reshape(kernel))
            out.append(found.reshape(*mine.shape[:-3], *found.shape[1:]))
        return torch.stack(out, -5)


def _patches(images: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return the patches under a convolution's kernel as columns, ``(…, C·tall·broad, L)``.

    Torch's own ``unfold`` starts a kernel for every image on a graphics card; a view does not.
    """
    (up, side), (tall, broad), (down, right) = (
        _pair(v) for v in (layer.padding, layer.kernel_size, layer.stride)
    )
    padded = functional.pad(images, (side, side, up, up))
    seen = padded.unfold(-2, tall, down).unfold(-2, broad, right)
    ordered = seen.movedim((-2, -1), (-4, -3))  # the places last, the kernel before them
    return ordered.reshape(*images.shape[:-3], -1, seen.shape[-4] * seen.shape[-3])


def _dots(a: Tensor, da: Tensor, axes: int) -> tuple[Tensor, Tensor, Tensor]:
    return _dot(a, a, axes), _dot(a, da, axes), _dot(da, da, axes)


def _dot(a: Tensor, b: Tensor, axes: int) -> Tensor:
    return (a * b).flatten(-axes).sum(-1)


def _pair(value: object) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type,return-value]
