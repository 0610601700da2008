"""Per-record gradients of convolutions: products with the patches that the kernel covers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from seepage.nn.gradients.per_record_gradients import GradientTerm, OuterProducts
from seepage.nn.gradients.second_order import KernelMovement, convolution
from seepage.nn.gradients.watching import Arguments, LayerCall, Layout, Rule


class ConvolutionRule(Rule):
    """``conv1d``, ``conv2d`` and ``conv3d`` with any stride, padding, dilation and groups."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Arguments:
        """Return input, weight, bias and geometry."""

        def of_each_axis(value: Any) -> tuple[int, ...]:
            values = (value,) if isinstance(value, int) else tuple(value)
            return values * self.dimensions if len(values) == 1 else values

        kernel = tuple(weight.shape[2:])
        strides, gaps = of_each_axis(stride), of_each_axis(dilation)
        if padding == "same":
            sides = tuple(d * (k - 1) for d, k in zip(gaps, kernel, strict=True))
        elif padding == "valid":
            sides = (0,) * self.dimensions
        else:
            sides = tuple(2 * p for p in of_each_axis(padding))
        options = {"kernel": kernel, "stride": strides, "padding": sides, "dilation": gaps}
        return Arguments(input, {"weight": weight, "bias": bias}, {**options, "groups": groups})

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the records are on the first axis."""
        return layout.axis == 0 and len(shape) == self.dimensions + 2

    def run_twice_differentiable(
        self, arguments: Arguments, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Arguments]:
        """Run the call with a custom backward pass, unless the padding on the two sides differs."""
        x, weight = arguments.input, arguments.parameters["weight"]
        movement = _movement(arguments)
        if not x.requires_grad or weight is None or movement is None:
            return run(), arguments
        return convolution(x, weight, arguments.parameters["bias"], movement), arguments

    def narrow_axis(self, arguments: Arguments) -> int | None:
        """Return the weight's input-channel axis, or ``None`` with groups or uneven padding.

        The kernel's axes are narrowed together with this axis.
        """
        alone = arguments.options["groups"] == 1 and _movement(arguments) is not None
        return 1 if alone else None

    def positions(self, shape: tuple[int, ...]) -> int:
        """Return the number of places in an output of this shape, summed over all images."""
        return math.prod(shape) // shape[1]

    def narrowed(self, arguments: Arguments, thin: Tensor) -> Arguments:
        """Return the arguments of a 1×1 convolution whose inputs are convolved with ``Q``.

        Multiplying patches by ``Q`` is a convolution with ``Q``, so no patches are extracted.
        """
        x, movement = arguments.input, _movement(arguments)
        assert movement is not None  # noqa: S101 - otherwise there is no axis to narrow
        kernel = thin.T.to(x.dtype).reshape(-1, x.shape[1], *arguments.options["kernel"])
        ones, zeros = (1,) * self.dimensions, (0,) * self.dimensions
        options = {"kernel": ones, "stride": ones, "padding": zeros, "dilation": ones, "groups": 1}
        return Arguments(movement.forward(x, kernel, None), arguments.parameters, options)

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return the outer products of ``δ`` and the patches, which are extracted when needed."""
        multiple = call.layout.multiple
        out = []
        if "weight" in call.names:
            places = tuple(delta.shape[2:])
            geometry = Geometry(**call.arguments.options, places=places, multiple=multiple)
            expand = (geometry.output_positions, geometry.patches)
            square = partial(squared_norms_of_convolution, geometry=geometry)
            tensors = (delta, call.arguments.input)
            out.append(GradientTerm(call.names["weight"], tensors, OuterProducts, expand, square))
        if "bias" in call.names:
            summed = delta.flatten(2).sum(2).unflatten(0, (-1, multiple)).sum(1)
            out.append(GradientTerm(call.names["bias"], (summed,)))
        return out


def _movement(arguments: Arguments) -> KernelMovement | None:
    """Return the kernel's movement, or ``None`` if the padding on the two sides differs."""
    options = arguments.options
    if any(pad % 2 for pad in options["padding"]):
        return None
    sides = [pad // 2 for pad in options["padding"]]
    return KernelMovement(
        list(options["stride"]), sides, list(options["dilation"]), options["groups"]
    )


@dataclass(frozen=True)
class Geometry:
    """The movement of a kernel over its inputs, with one number per axis of an image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # of both sides together
    dilation: tuple[int, ...]
    groups: int  # separate blocks of channels
    places: tuple[int, ...]  # the shape of the output
    multiple: int  # how many consecutive images belong to one record

    def output_positions(self, delta: Tensor) -> Tensor:
        """Return output gradients as ``(B, groups, positions, size)``."""
        return self._by_record(delta.flatten(2).unflatten(1, (self.groups, -1))).mT

    def patches(self, inputs: Tensor) -> Tensor:
        """Return the patch at every place, ``(B, groups, positions, size)``.

        The entries of a patch have the same order as the weight's entries.
        """
        if not torch.is_grad_enabled() and not self.keeps_channels_last(inputs):
            return self.cut(inputs).mT  # one copy instead of two, but not differentiable
        padded = self._padded(inputs)
        cuts = [padded[(..., *where)].flatten(2) for where in self._windows()]
        blocks = torch.stack(cuts, 2)  # (N, in, offsets, places)
        return self._by_record(blocks.unflatten(1, (self.groups, -1)).flatten(2, 3)).mT

    def cut(self, inputs: Tensor) -> Tensor:
        """Return the patches, ``(B, groups, size, positions)``, in one copy.

        The order of entries within a patch is an implementation detail of this class.
        """
        padded = self._padded(inputs)
        first, channel, *others = padded.stride()
        over_kernel = [o * d for o, d in zip(others, self.dilation, strict=True)]
        over_places = [o * s for o, s in zip(others, self.stride, strict=True)]
        count, channels = padded.shape[:2]
        start = padded.storage_offset()
        if self.keeps_channels_last(inputs):
            shape = (count, *self.places, *self.kernel, channels)
            view = padded.as_strided(shape, (first, *over_places, *over_kernel, channel), start)
            return view.reshape(count, 1, math.prod(self.places), -1).mT
        shape = (count, channels, *self.kernel, *self.places)
        view = padded.as_strided(shape, (first, channel, *over_kernel, *over_places), start)
        return self._by_record(view.reshape(count, self.groups, -1, math.prod(self.places)))

    def paste(self, patches: Tensor, like: Tensor) -> Tensor:
        """Add patches at their places, and return images of the shape of ``like``."""
        count, channels = like.shape[:2]
        size = [n + pad for n, pad in zip(like.shape[2:], self.padding, strict=True)]
        if self.keeps_channels_last(like):
            cuts = patches.mT.reshape(count, *self.places, -1, channels).movedim(-1, 1)
            out = patches.new_zeros(count, *size, channels).movedim(-1, 1)
            self._add(out, cuts)
        elif len(size) <= 2:  # torch's own fold, for images and single rows
            front = (1,) * (2 - len(size))
            shapes = ((*front, *n) for n in (size, self.kernel, self.dilation, self.stride))
            whole, kernel, dilation, stride = shapes
            flat = self._by_image(patches).flatten(1, 2)
            out = functional.fold(flat, whole, kernel, dilation, 0, stride)
            out = out.reshape(count, channels, *size)
        else:
            cuts = self._by_image(patches).reshape(count, channels, -1, *self.places)
            out = patches.new_zeros(count, channels, *size)
            self._add(out, cuts.movedim(2, -1))
        inside = (
            slice(pad // 2, pad // 2 + n)
            for pad, n in zip(self.padding, like.shape[2:], strict=True)
        )
        return out[(..., *inside)]

    def outputs(self, delta: Tensor) -> Tensor:
        """Return output gradients as ``(B, groups, size, positions)``."""
        if self.keeps_channels_last(delta):
            return delta.movedim(1, -1).flatten(1, -2)[:, None].mT
        return self._by_record(delta.flatten(2).unflatten(1, (self.groups, -1)))

    def whole(self, left: Tensor, like: Tensor) -> Tensor:
        """Convert output gradients from the layout of :meth:`outputs` back to their own shape."""
        if self.keeps_channels_last(like):
            return left[:, 0].mT.unflatten(1, self.places).movedim(-1, 1)
        return self._by_image(left).reshape(like.shape)

    def keeps_channels_last(self, images: Tensor) -> bool:
        """Return whether images, and so their patches, are laid out channels-last."""
        if not self.groups == self.multiple == 1 or images.dim() != 4 or images.is_contiguous():
            return False
        return bool(images.is_contiguous(memory_format=torch.channels_last))

    def _padded(self, inputs: Tensor) -> Tensor:
        sides = [side for pad in reversed(self.padding) for side in (pad // 2, pad - pad // 2)]
        return functional.pad(inputs, sides) if any(sides) else inputs

    def _windows(self) -> Iterator[tuple[slice, ...]]:
        """Yield, for each kernel entry, slices that select the inputs that it multiplies."""
        for offset in product(*map(range, self.kernel)):
            yield tuple(
                slice(o * d, o * d + s * (n - 1) + 1, s)
                for o, d, s, n in zip(offset, self.dilation, self.stride, self.places, strict=True)
            )

    def _by_record(self, blocks: Tensor) -> Tensor:
        """Regroup ``(N, groups, size, places)`` of N images as ``(B, groups, size, positions)``."""
        if self.multiple == 1:
            return blocks
        return blocks.unflatten(0, (-1, self.multiple)).permute(0, 2, 3, 1, 4).flatten(3)

    def _by_image(self, blocks: Tensor) -> Tensor:
        if self.multiple == 1:
            return blocks
        apart = blocks.unflatten(3, (self.multiple, -1)).permute(0, 3, 1, 2, 4)
        return apart.flatten(0, 1)

    def _add(self, out: Tensor, cuts: Tensor) -> None:
        """Add patches ``(N, channels, *places, offsets)`` to images, at their places."""
        for k, where in enumerate(self._windows()):
            out[(..., *where)] += cuts[..., k]


def squared_norms_of_convolution(delta: Tensor, inputs: Tensor, *, geometry: Geometry) -> Tensor:
    """Return ``‖g_i‖²`` of every record, given the layer's output gradients and inputs.

    ``g = Σ_s δ_s p_sᵀ`` over the places ``s``, where ``p_s``, a column of ``P``, is the patch at
    ``s``. Both forms of ``‖g‖²`` are differentiated by hand, so that patches (nine times the size
    of their image, for a 3×3 kernel) are extracted once in each direction and not stored:

        written out   ‖g‖² = Σ g∘g      ∂δ = 2gP       ∂P = 2gᵀδ
        Gram form     ‖g‖² = Σ K∘Q      ∂δ = 2δK       ∂P = 2PQ       K = PᵀP, Q = δᵀδ
    """
    return _SquaredNorms.apply(delta, inputs, geometry)


class _SquaredNorms(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, delta: Tensor, inputs: Tensor, geometry: Geometry) -> Tensor:
        left, right = geometry.outputs(delta), geometry.cut(inputs)
        m, (r, positions) = left.shape[2], right.shape[2:]
        ctx.geometry, ctx.written = geometry, positions * (m + r) > m * r
        with _precision_of_convolutions(delta):
            if ctx.written:
                g = left @ right.mT
                ctx.save_for_backward(delta, inputs, g)
                return torch.linalg.vector_norm(g.flatten(1), dim=1).square_()
            K, Q = right.mT @ right, left.mT @ left
        ctx.save_for_backward(delta, inputs, K, Q)
        return torch.linalg.vecdot(K.flatten(1), Q.flatten(1))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, c: Tensor) -> Any:
        delta, inputs, *kept = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        twice = (2 * c)[:, None, None, None]
        left, right = geometry.outputs(delta) * twice, geometry.cut(inputs)
        to_inputs = None
        with _precision_of_convolutions(delta):
            if ctx.needs_input_grad[1]:
                turned = geometry.keeps_channels_last(inputs)
                if ctx.written:
                    back = _product(kept[0].mT, left, turned)
                else:
                    back = _product(right, kept[1] * twice, turned)
                to_inputs = geometry.paste(back, inputs)
                del back
            turned = geometry.keeps_channels_last(delta)
            if ctx.written:
                to_left = _product(kept[0] * twice, right, turned)
            else:
                to_left = _product(left, kept[0], turned)
        return geometry.whole(to_left, delta), to_inputs, None


def _product(a: Tensor, b: Tensor, turned: bool) -> Tensor:
    """Return ``ab``, stored by columns if ``turned``, because its transpose is then used next."""
    return (b.mT @ a.mT).mT if turned else a @ b


@contextmanager
def _precision_of_convolutions(like: Tensor) -> Iterator[None]:
    """Open a context in which matrix products use the precision of torch's convolutions.

    On a GPU, torch by default rounds the factors of convolutions to TF32, but not the factors of
    matrix products, which are then several times slower.
    """
    if not like.is_cuda:
        yield
        return
    try:
        before = torch.get_float32_matmul_precision()
        rounded = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the caller has set the precision of each kind of product
        yield
        return
    torch.set_float32_matmul_precision("high" if rounded else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
