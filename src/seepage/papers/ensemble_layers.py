"""Layers of many small networks at once, differentiated by hand as far as dFIL needs it.

All networks of an ensemble have the same shape and see the same batch, each with parameters of its
own. Values are ``(G, B, …)`` for G networks and B examples; tangents, one for each of P directions
of the input, are ``(P, G, B, …)``. A layer has four passes, called in this order: values forward,
tangents forward, gradients backward, tangents of the gradients backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


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
    (tall, broad), (down, right) = _pair(module.kernel_size), _pair(module.stride)
    high, wide = (shape[1] - tall) // down + 1, (shape[2] - broad) // right + 1
    places = [
        (slice(i, i + down * (high - 1) + 1, down), slice(j, j + right * (wide - 1) + 1, right))
        for i in range(tall)
        for j in range(broad)
    ]

    def there(values: Tensor) -> Tensor:
        pooled = functional.avg_pool2d(values.reshape(-1, *shape), (tall, broad), (down, right))
        return pooled.reshape(*values.shape[:-3], *pooled.shape[1:])

    def back(gradient: Tensor) -> Tensor:
        spread = gradient.new_zeros(*gradient.shape[:-3], *shape)
        for rows, across in places:
            spread[..., rows, across] += gradient
        return spread / (tall * broad)

    return Linear(there, back)


def flatten(shape: tuple[int, ...]) -> Linear:
    """Return the map of images of that shape to rows of numbers."""
    return Linear(lambda a: a.flatten(-3), lambda g: g.reshape(*g.shape[:-1], *shape))


class Affine(Layer):
    """Convolutions and full layers: ``s = W t + b`` with the columns ``t`` of the inputs.

    A convolution's columns are its patches, ``(…, K, L)`` for L places; a full layer has one. The
    gradient of an example is ``δ tᵀ`` for the weight and ``δ 1`` for the bias.

    Parameters
    ----------
    modules
        The layer of each network.
    shape
        The shape of one example's input.
    first
        Whether nothing comes before, so that no gradient is passed on.
    """

    def __init__(self, modules: list[nn.Module], shape: tuple[int, ...], first: bool) -> None:
        model = modules[0]
        self.convolution = model if isinstance(model, nn.Conv2d) else None
        self.shape, self.first = shape, first
        self.weight = torch.stack([m.weight.detach().flatten(1) for m in modules])
        self.bias = torch.stack([m.bias.detach() for m in modules])

    def to(self, device: torch.device | str) -> None:
        """Move the parameters."""
        self.weight, self.bias = self.weight.to(device), self.bias.to(device)

    def forward(self, values: Tensor) -> Tensor:
        """Return ``W t + b``."""
        self.t = self._columns(values)
        return self._shaped(self._times(self.weight, self.t) + self.bias[:, None, :, None])

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``W dt``."""
        self.dt = self._columns(change)
        return self._shaped(self._times(self.weight, self.dt))

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient at the inputs, and keep that at the outputs."""
        self.delta = self._flat(gradient)
        return self._back(self.delta)

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return the change of that, and keep the one at the outputs."""
        self.ddelta = self._flat(change)
        return self._back(self.ddelta)

    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``g·g (G, B)``, ``g·dg`` and ``dg·dg (P, G, B)`` of this layer's gradients."""
        bias, change = self.delta.sum(-1), self.ddelta.sum(-1)
        gg, gd, dd = _dot(bias, bias, 1), _dot(bias, change, 1), _dot(change, change, 1)
        if self.convolution is None:
            # δ tᵀ is an outer product: its inner products are products of those of its factors.
            (d, t), (dd_, dt) = (self.delta, self.t), (self.ddelta, self.dt)
            tt, t_dt, dt_dt = _dot(t, t), _dot(t, dt), _dot(dt, dt)
            ss, s_ds, ds_ds = _dot(d, d), _dot(d, dd_), _dot(dd_, dd_)
            gg = gg + ss * tt
            gd = gd + s_ds * tt + ss * t_dt
            return gg, gd, dd + ds_ds * tt + 2 * s_ds * t_dt + ss * dt_dt
        self.g = self.delta @ self.t.transpose(-1, -2)
        gg = gg + _dot(self.g, self.g)
        for p in range(len(self.ddelta)):  # one direction at a time: these are the largest tensors
            dg = self.ddelta[p] @ self.t.transpose(-1, -2)
            dg += self.delta @ self.dt[p].transpose(-1, -2)
            gd[p] += _dot(self.g, dg)
            dd[p] += _dot(dg, dg)
        return gg, gd, dd

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``Σ_b f_b g_b`` for weight and bias; after :meth:`products`."""
        scaled = self.delta * factors[:, :, None, None]
        bias = scaled.sum((1, 3))
        if self.convolution is None:
            t = self.t.expand(len(scaled), *self.t.shape[1:]).squeeze(-1)
            return scaled.squeeze(-1).transpose(1, 2) @ t, bias
        return torch.einsum("gb,gbok->gok", factors, self.g), bias

    def _times(self, matrix: Tensor, columns: Tensor) -> Tensor:
        """Return ``matrix (G, m, k)`` times ``columns (…, G, B, k, L)``."""
        if self.convolution is None:  # one product for the whole batch of a network
            return (columns.squeeze(-1) @ matrix.transpose(1, 2))[..., None]
        return matrix[:, None] @ columns

    def _columns(self, values: Tensor) -> Tensor:
        return values[..., None] if self.convolution is None else _patches(values, self.convolution)

    def _shaped(self, outputs: Tensor) -> Tensor:
        if self.convolution is None:
            return outputs.squeeze(-1)
        side = round(outputs.shape[-1] ** 0.5)
        return outputs.unflatten(-1, (side, side))

    def _flat(self, gradient: Tensor) -> Tensor:
        return gradient[..., None] if self.convolution is None else gradient.flatten(-2)

    def _back(self, delta: Tensor) -> Tensor:
        if self.first:
            return delta
        columns = self._times(self.weight.transpose(1, 2), delta)
        if self.convolution is None:
            return columns.squeeze(-1)
        return _from_patches(columns, self.convolution, self.shape)


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


def _from_patches(columns: Tensor, layer: nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """Return the adjoint of :func:`_patches`: every patch added back to its place."""
    (up, side), (tall, broad), (down, right) = (
        _pair(v) for v in (layer.padding, layer.kernel_size, layer.stride)
    )
    channels, height, width = shape
    high, wide = (height + 2 * up - tall) // down + 1, (width + 2 * side - broad) // right + 1
    parts = columns.reshape(*columns.shape[:-2], channels, tall, broad, high, wide)
    padded = columns.new_zeros(*columns.shape[:-2], channels, height + 2 * up, width + 2 * side)
    for i in range(tall):
        for j in range(broad):
            rows = slice(i, i + down * (high - 1) + 1, down)
            across = slice(j, j + right * (wide - 1) + 1, right)
            padded[..., rows, across] += parts[..., i, j, :, :]
    return padded[..., up : up + height, side : side + width]


def _dot(a: Tensor, b: Tensor, axes: int = 2) -> Tensor:
    return (a * b).flatten(-axes).sum(-1)


def _pair(value: object) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type,return-value]
