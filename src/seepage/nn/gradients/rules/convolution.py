"""Per-example gradients of convolutions: a product with the patches that the kernel sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.contributions import Contribution
from seepage.nn.gradients.outer_products import Outer
from seepage.nn.gradients.rules.convolution_norms import squared_norms_of_convolution
from seepage.nn.gradients.rules.patches import Geometry
from seepage.nn.gradients.second_order_convolution import Steps, convolution
from seepage.nn.gradients.taps import Bound, Call, Layout, Rule


class Convolution(Rule):
    """``conv1d``, ``conv2d`` and ``conv3d`` with any stride, padding, dilation and groups."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, weight, bias and geometry."""
        return _bind(self.dimensions, *args, **kwargs)

    def covers(self, bound: Bound, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the first axis holds the examples."""
        return layout.axis == 0 and len(shape) == self.dimensions + 2

    def run_twice_differentiable(
        self, bound: Bound, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Bound]:
        """Run it with a way back of its own, unless the zeros on the two sides differ."""
        x, weight, options = bound.input, bound.parameters["weight"], bound.options
        if not x.requires_grad or weight is None or any(pad % 2 for pad in options["padding"]):
            return run(), bound
        sides = [pad // 2 for pad in options["padding"]]
        steps = Steps(list(options["stride"]), sides, list(options["dilation"]), options["groups"])
        return convolution(x, weight, bound.parameters["bias"], steps), bound

    def contributions(self, call: Call, delta: Tensor) -> list[Contribution]:
        """Return the outer products of ``δ`` with the patches; patches are cut when needed."""
        multiple = call.layout.multiple
        out = []
        if "weight" in call.names:
            groups = call.bound.options["groups"]
            places = tuple(delta.shape[2:])
            expand = (
                partial(_outputs, groups=groups, multiple=multiple),
                partial(_patches, places=places, multiple=multiple, **call.bound.options),
            )
            tensors = (delta, call.bound.input)
            geometry = Geometry(**call.bound.options, places=places, multiple=multiple)
            square = partial(squared_norms_of_convolution, geometry=geometry)
            out.append(Contribution(call.names["weight"], tensors, Outer, expand, square))
        if "bias" in call.names:
            summed = delta.flatten(2).sum(2).unflatten(0, (-1, multiple)).sum(1)
            out.append(Contribution(call.names["bias"], (summed,)))
        return out


def _outputs(delta: Tensor, *, groups: int, multiple: int) -> Tensor:
    """Return the output gradients by group and place."""
    return _examples(delta.flatten(2).unflatten(1, (groups, -1)), multiple)


def _patches(
    inputs: Tensor,
    *,
    places: tuple[int, ...],
    multiple: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Return what the kernel sees at every place, by group."""
    sides = [side for pad in reversed(padding) for side in (pad // 2, pad - pad // 2)]
    padded = functional.pad(inputs, sides) if any(sides) else inputs
    cuts = []
    for offset in product(*map(range, kernel)):
        where = tuple(
            slice(o * d, o * d + s * (n - 1) + 1, s)
            for o, d, s, n in zip(offset, dilation, stride, places, strict=True)
        )
        cuts.append(padded[(..., *where)].flatten(2))
    patches = torch.stack(cuts, 2)  # (N, in, taps, places)
    return _examples(patches.unflatten(1, (groups, -1)).flatten(2, 3), multiple)


def _examples(factor: Tensor, multiple: int) -> Tensor:
    """Return ``(N, groups, size, places)`` as ``(B, groups, positions, size)``."""
    if multiple == 1:
        return factor.transpose(2, 3)
    by_example = factor.unflatten(0, (-1, multiple))  # (B, multiple, groups, size, places)
    return by_example.permute(0, 2, 1, 4, 3).flatten(2, 3)


def _bind(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Bound:
    kernel = tuple(weight.shape[2:])
    steps, gaps = _each(stride, dimensions), _each(dilation, dimensions)
    if padding == "same":
        sides = tuple(d * (k - 1) for d, k in zip(gaps, kernel, strict=True))
    elif padding == "valid":
        sides = (0,) * dimensions
    else:
        sides = tuple(2 * p for p in _each(padding, dimensions))
    options = {"kernel": kernel, "stride": steps, "padding": sides, "dilation": gaps}
    return Bound(input, {"weight": weight, "bias": bias}, {**options, "groups": groups})


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dimensions if len(values) == 1 else values
