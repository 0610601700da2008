"""Per-example gradients of a convolution's weight, by one convolution with a group per example.

With the examples of a batch laid out as groups of channels of one image, the gradient of the weight
of that one grouped convolution holds the gradient of every example, side by side. On a processor
this costs hardly more than the gradient of their sum, where patches written out cost five times it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.per_record_gradients import GradientTerm
from seepage.nn.gradients.rules.convolution import Geometry


def quick_geometry(uses: Sequence[GradientTerm]) -> Geometry | None:
    """Return the geometry of the one convolution that uses a weight, where this way is quick.

    ``None`` for anything else, on an accelerator, and with several images to an example.
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
    """Return the gradients of every example, ``(B, size of the weight)``.

    Parameters
    ----------
    delta
        The gradients at the outputs of the layer, ``(B, channels, …)``.
    inputs
        Its inputs, ``(B, channels, …)``.
    geometry
        How the kernel moves.
    """
    padding = [pad // 2 for pad in geometry.padding]
    if any(pad % 2 for pad in geometry.padding):  # torch pads both sides alike
        sides = [side for pad in reversed(geometry.padding) for side in (pad // 2, pad - pad // 2)]
        inputs, padding = functional.pad(inputs, sides), [0] * len(padding)
    channels = inputs.shape[1] // geometry.groups
    found: Tensor = torch.ops.aten.convolution_backward(
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
    return found.reshape(len(delta), -1)
