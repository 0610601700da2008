"""Layers of many small networks at once, differentiated by hand as far as dFIL needs.

All networks of an ensemble have the same shape and see the same batch, each with its own
parameters. Values are ``(G, B, …)`` for G networks and B examples; tangents, one for each of P
directions of the input, are ``(P, G, M, …)`` for the first M examples; images have their channels
last, so that patches are copied in long runs. A layer has four passes, called in this order: values
forward, tangents forward, gradients backward, tangents of the gradients backward. All of them
compute in the type of the values; sums over an example are in single precision at least.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

_ALIGNED = 8  # numbers: rows that start at multiples of this are multiplied faster
_BYTES = 16  # copied at a time


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
        return self.a

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``a′ ds``."""
        self.da = _slope_times(change, _first(self.a, change))
        return self.da

    def backward(self, gradient: Tensor) -> Tensor:
        """Return ``a′ δ``."""
        self.delta = gradient
        return _slope_times(gradient, self.a)

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return ``a′ dδ − 2 a da δ``."""
        a, delta = (_first(kept, change) for kept in (self.a, self.delta))
        return _slope_times(change, a).addcmul_(a * self.da, delta, value=-2)


def _slope_times(change: Tensor, a: Tensor) -> Tensor:
    """Return ``(1 − a²) change`` in one pass over the memory."""
    return torch.ops.aten.tanh_backward(change, a)


def _first(kept: Tensor, change: Tensor) -> Tensor:
    """Return the kept values of the examples that have tangents."""
    return kept[:, : change.shape[2]]


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
    (tall, broad), (_, height, width) = kernel, shape
    tiled = kernel == stride and height % tall == 0 and width % broad == 0

    def there(values: Tensor) -> Tensor:
        pooled = functional.avg_pool2d(_channels_first(values), kernel, stride)
        return _channels_last(pooled, values.shape[:-3])

    def back(gradient: Tensor) -> Tensor:
        """Add every mean's share to the entries it averages."""
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

    def tiles(gradient: Tensor) -> Tensor:
        """Copy every mean's share to its tile, which no other mean covers."""
        part = _wide((gradient / (tall * broad)).contiguous())[..., :, None, :, None, :]
        spread = part.expand(*part.shape[:-4], tall, -1, broad, -1)
        return spread.reshape(*gradient.shape[:-3], height, width, -1).view(gradient.dtype)

    return LinearMap(there, tiles if tiled else back)


def flatten(shape: tuple[int, ...]) -> LinearMap:
    """Return the map from images of that shape to rows of numbers, in torch's order."""
    return LinearMap(
        lambda a: a.movedim(-1, -3).flatten(-3),
        lambda g: g.reshape(*g.shape[:-1], *shape).movedim(-3, -1),
    )


class Affine(Layer):
    """Layers with parameters: ``s = W t + b`` at every place, with ``t`` the inputs there.

    A convolution sees a patch at each of its places; a full layer has one place, and sees
    everything. The gradient of an example is the sum of ``δ tᵀ`` over the places for the weight, of
    ``δ`` for the bias.

    Parameters
    ----------
    modules
        The layer of each network.
    first
        Whether it is the first layer, so that no gradient is passed on.
    """

    def __init__(self, modules: Sequence[nn.Linear | nn.Conv2d], first: bool) -> None:
        self.first = first
        self.weight = torch.stack([m.weight.detach().flatten(1) for m in modules])
        self.bias = torch.stack([m.bias.detach() for m in modules if m.bias is not None])

    @abstractmethod
    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``g·g (G, B)``, ``g·dg`` and ``dg·dg (P, G, M)`` of this layer's gradients."""

    @abstractmethod
    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``Σ_b f_b g_b`` for weight and bias; after :meth:`products`."""


class FullLayers(Affine):
    """Full layers: one product for the whole batch of a network."""

    def forward(self, values: Tensor) -> Tensor:
        """Return ``W t + b``."""
        self.t = values
        self.w = self.weight.to(values.dtype)
        return torch.baddbmm(
            self.bias[:, None].to(values.dtype),
            values.expand(len(self.w), *values.shape[1:]),
            self.w.transpose(1, 2),
        )

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``W dt``."""
        self.dt = change
        return change @ self.w.transpose(1, 2)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return ``Wᵀ δ``."""
        self.delta = gradient
        return gradient if self.first else gradient @ self.w

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return ``Wᵀ dδ``."""
        self.ddelta = change
        return change if self.first else change @ self.w

    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Use that the gradient is a single outer product, without forming it."""
        ss, tt = _squared(self.delta, 1), 1 + _squared(self.t, 1)  # 1: the column of the bias
        delta, t = (_first(kept, self.ddelta) for kept in (self.delta, self.t))
        few = slice(delta.shape[1])
        s_ds, ds_ds = _dot(delta, self.ddelta, 1), _squared(self.ddelta, 1)
        t_dt, dt_dt = _dot(t, self.dt, 1), _squared(self.dt, 1)
        gd = s_ds * tt[:, few] + ss[:, few] * t_dt
        dd = ds_ds * tt[:, few] + 2 * s_ds * t_dt + ss[:, few] * dt_dt
        return ss * tt, gd, dd

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return one product for weights of a network, one sum for biases."""
        scaled = self.delta * factors[..., None].to(self.delta.dtype)
        t = self.t.expand(len(scaled), *self.t.shape[1:])
        return scaled.transpose(1, 2) @ t, _sum(scaled, (1,))


class Convolutions(Affine):
    """Convolutions as products with the patches that they see, which gradients need anyway.

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
        _, *size = model(torch.zeros(1, *shape)).shape[1:]
        self.places = tuple(size)
        self.seen = self.weight.shape[-1]  # numbers under the kernel
        self.columns = _ALIGNED * (
            self.seen // _ALIGNED + 1
        )  # with one for the bias, padded with zeros

    def forward(self, values: Tensor) -> Tensor:
        """Return ``W ∗ a + b``."""
        last = self.weight.unflatten(-1, self.kernel).movedim(-3, -1).flatten(-3)
        both = torch.cat((last, self.bias[..., None]), -1)
        self.w = functional.pad(both, (0, self.columns - self.seen - 1)).to(values.dtype)
        self.t = self._patches(values, 1.0)
        return self._seen(self.t)

    def tangent(self, change: Tensor) -> Tensor:
        """Return ``W ∗ da``."""
        self.dt = self._patches(change, 0.0)
        return _stacked([self._seen(dt) for dt in self.dt])

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient at the inputs, and keep that at the outputs."""
        self.delta = gradient
        return self._back(gradient)

    def backward_tangent(self, change: Tensor) -> Tensor:
        """Return the change of that gradient, and keep the one at the outputs."""
        self.ddelta = change
        return self._back(change)

    def products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Form the gradients of the batch, and their changes along the directions."""
        self.g = _outer(self.delta, self.t)
        delta, t, g = (_first(kept, self.ddelta) for kept in (self.delta, self.t, self.g))
        gd, dd = [], []
        for ddelta, dt in zip(self.ddelta, self.dt, strict=True):  # one direction at a time
            dg = _outer(ddelta, t).add_(_outer(delta, dt))
            gd.append(_dot(g, dg, 2))
            dd.append(_squared(dg, 2))
        return _squared(self.g, 2), _stacked(gd), _stacked(dd)

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the gradients formed before."""
        both = torch.einsum("gb,gbok->gok", factors.to(self.g.dtype), self.g)
        channels, *window = self.kernel
        last = both[..., : self.seen].unflatten(-1, (*window, channels))
        return last.movedim(-1, -3).flatten(-3), both[..., self.seen]

    def _seen(self, patches: Tensor) -> Tensor:
        """Return the products of patches ``(G, B, L, K)`` with the weights, as images."""
        out = patches.flatten(1, 2) @ self.w.transpose(1, 2)
        return out.unflatten(1, (patches.shape[1], *self.places))

    def _back(self, gradient: Tensor) -> Tensor:
        """Return the gradient at the images ``(…, G, B, H, W, C)``, network by network."""
        if self.first:
            return gradient
        weights = self.weight.to(gradient.dtype).unflatten(-1, self.kernel)
        out = []
        for weight, mine in zip(weights, gradient.unbind(-5), strict=True):
            flat = _channels_first(mine)
            last = weight.contiguous(memory_format=torch.channels_last)
            size = (len(flat), *self.shape)
            back = conv2d_input(size, last, flat, self.stride, self.padding)
            out.append(_channels_last(back, mine.shape[:-3]))
        return _stacked(out, -5)

    def _patches(self, images: Tensor, bias: float) -> Tensor:
        """Return the patches under the kernel as rows ``(…, L, K)``, followed by one for the bias.

        On a GPU torch's own ``unfold`` launches a kernel for every image; a view does not, and it
        is copied in wide words.
        """
        (down, right), (up, side) = self.stride, self.padding
        _, tall, broad = self.kernel
        wide = _wide(images)
        if up or side:
            wide = functional.pad(wide, (0, 0, side, side, up, up))
        channels = wide.shape[-1]
        flat = wide.contiguous().flatten(-2)
        seen = flat.unfold(-2, tall, down).unfold(-2, broad * channels, right * channels)
        rows = images.new_empty(*images.shape[:-3], *self.places, self.columns)
        rows[..., self.seen + 1 :].zero_()
        rows[..., self.seen].fill_(bias)
        into = rows[..., : self.seen].view(wide.dtype)
        into.unflatten(-1, (tall, broad * channels)).copy_(seen)
        return rows.flatten(-3, -2)


def _wide(images: Tensor) -> Tensor:
    """Return images as wide words, for faster copies; unchanged if that is not possible."""
    if images.shape[-1] * images.element_size() % _BYTES:
        return images
    return images.contiguous().view(torch.complex128)


def _outer(delta: Tensor, t: Tensor) -> Tensor:
    """Return ``Σ δ tᵀ`` over the places: ``(G, B, O, K)``; patches may be the same for all G."""
    delta = delta.flatten(-3, -2).transpose(-1, -2)
    if len(t) == len(delta):
        return delta @ t
    networks, outputs = delta.shape[0], delta.shape[2]
    together = delta.transpose(0, 1).flatten(1, 2) @ t[0]
    return together.unflatten(1, (networks, outputs)).transpose(0, 1)


def _stacked(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Return the same as ``torch.stack``, without a copy if there is only one tensor."""
    return torch.stack(parts, dim) if len(parts) > 1 else parts[0].unsqueeze(dim)


def _channels_first(images: Tensor) -> Tensor:
    """Return images ``(…, H, W, C)`` in the shape that torch's functions expect, without a copy."""
    return images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)


def _channels_last(images: Tensor, leading: Sequence[int]) -> Tensor:
    """Return the result of such a function as ``(…, H, W, C)`` again."""
    last = images.permute(0, 2, 3, 1)
    return last.reshape(*leading, *last.shape[1:])


def _squared(a: Tensor, axes: int) -> Tensor:
    """Return the squared norms over the last axes, without forming the squares in memory."""
    dims = tuple(range(-axes, 0))
    return torch.linalg.vector_norm(a, dim=dims, dtype=_precise(a)).square()


def _dot(a: Tensor, b: Tensor, axes: int) -> Tensor:
    return _sum(a * b, tuple(range(-axes, 0)))


def _sum(a: Tensor, dims: tuple[int, ...]) -> Tensor:
    return a.sum(dims, dtype=_precise(a))


def _precise(a: Tensor) -> torch.dtype:
    return torch.promote_types(a.dtype, torch.float32)


def _pair(value: object) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type,return-value]
