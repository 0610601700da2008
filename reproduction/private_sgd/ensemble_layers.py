"""Layers of many small networks at once, differentiated by hand as far as dFIL needs it.

All networks of an ensemble have the same shape and see the same batch, each with parameters of its
own. Values are ``(G, B, …)`` for G networks and B examples; tangents, one for each of P directions
of the input, are ``(P, G, B, …)``; images have their channels last, so that patches are cut out in
long runs. A layer has four passes, called in this order: values forward, tangents forward,
gradients backward, tangents of the gradients backward.
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
        return (self.slope * change).addcmul_(self.a * self.da, self.delta, value=-2)


class LinearMap(Layer):
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


def average_pool(module: nn.AvgPool2d, shape: tuple[int, ...]) -> LinearMap:
    """Return average pooling of images of that shape (channels, height, width)."""
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)

    def there(values: Tensor) -> Tensor:
        pooled = functional.avg_pool2d(_channels_first(values), kernel, stride)
        return _channels_last(pooled, values.shape[:-3])

    def back(gradient: Tensor) -> Tensor:
        flat = _channels_first(gradient)
        like = torch.empty(
            (len(flat), *shape),
            dtype=flat.dtype,
            device=flat.device,
            memory_format=torch.channels_last,
        )
        spread = torch.ops.aten.avg_pool2d_backward(
            flat, like, kernel, stride, (0, 0), False, True, None
        )
        return _channels_last(spread, gradient.shape[:-3])

    return LinearMap(there, back)


def flatten(shape: tuple[int, ...]) -> LinearMap:
    """Return the map of images of that shape to rows of numbers, in torch's order."""
    return LinearMap(
        lambda a: a.movedim(-1, -3).flatten(-3),
        lambda g: g.reshape(*g.shape[:-1], *shape).movedim(-3, -1),
    )


class Affine(Layer):
    """Layers with parameters: ``s = W t + b`` at every place, ``t`` being the inputs seen there.

    A convolution sees a patch at each of its places; a full layer has one place, and sees all. The
    gradient of an example is the sum of ``δ tᵀ`` over the places for the weight, of ``δ`` for the
    bias.

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


class FullLayers(Affine):
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


class Convolutions(Affine):
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
        model = modules[0]
        self.shape, self.kernel = shape, tuple(model.weight.shape[1:])
        self.stride, self.padding = _pair(model.stride), _pair(model.padding)

    def forward(self, values: Tensor) -> Tensor:
        """Return ``W ∗ a + b``."""
        self.values = values
        return self._convolved(values) + self.bias[:, None, None, None]

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
        t = self._patches(self.values)
        delta, ddelta = (d.flatten(-3, -2).transpose(-1, -2) for d in (self.delta, self.ddelta))
        gg, gd, dd = _dots(delta.sum(-1), ddelta.sum(-1), 1)  # of the biases
        self.g = delta @ t
        gg = gg + _squared(self.g)
        for p in range(len(ddelta)):  # one direction at a time: these are the largest tensors
            dg = ddelta[p] @ t
            dg += delta @ self._patches(self.change[p])
            gd[p] += _dot(self.g, dg, 2)
            dd[p] += _squared(dg)
        return gg, gd, dd

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the gradients that were formed."""
        bias = torch.einsum("gb,gbo->go", factors, self.delta.sum((-3, -2)))
        channels, *window = self.kernel
        weight = torch.einsum("gb,gbok->gok", factors, self.g).unflatten(-1, (*window, channels))
        return weight.movedim(-1, -3).flatten(-3), bias

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
        """Apply something to the images ``(…, G, B, H, W, C)`` and weight of each network."""
        weights = self.weight.unflatten(-1, self.kernel)
        images = images.expand(*images.shape[:-5], len(weights), *images.shape[-4:])
        out = []
        for weight, mine in zip(weights, images.unbind(-5), strict=True):
            last = weight.contiguous(memory_format=torch.channels_last)
            out.append(_channels_last(one(_channels_first(mine), last), mine.shape[:-3]))
        return torch.stack(out, -5)

    def _patches(self, images: Tensor) -> Tensor:
        """Return the patches under the kernel as rows, ``(…, L, tall·broad·C)``.

        Torch's own ``unfold`` starts a kernel for every image on a graphics card; a view does not.
        """
        (down, right), (up, side) = self.stride, self.padding
        channels, tall, broad = self.kernel
        padded = functional.pad(images, (0, 0, side, side, up, up)).flatten(-2)
        seen = padded.unfold(-2, tall, down).unfold(-2, broad * channels, right * channels)
        return seen.flatten(-4, -3).flatten(-2)


def _channels_first(images: Tensor) -> Tensor:
    """Return images ``(…, H, W, C)`` in the shape that torch's functions take, without a copy."""
    return images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)


def _channels_last(images: Tensor, leading: Sequence[int]) -> Tensor:
    """Return what such a function gave as ``(…, H, W, C)`` again."""
    last = images.permute(0, 2, 3, 1)
    return last.reshape(*leading, *last.shape[1:])


def _squared(a: Tensor) -> Tensor:
    """Return the squared norms over the last two axes, without a product of this size in memory."""
    return torch.linalg.vector_norm(a, dim=(-2, -1)) ** 2


def _dots(a: Tensor, da: Tensor, axes: int) -> tuple[Tensor, Tensor, Tensor]:
    return _dot(a, a, axes), _dot(a, da, axes), _dot(da, da, axes)


def _dot(a: Tensor, b: Tensor, axes: int) -> Tensor:
    return (a * b).flatten(-axes).sum(-1)


def _pair(value: object) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type,return-value]
