"""The squared norm of a convolution's per-example gradients, with its own way back.

``g = Σ_s δ_s p_sᵀ`` over the places ``s``, ``p_s`` the patch that the kernel sees there. Both forms
of ``‖g‖²`` are differentiated by hand, so that patches (nine times their image, for a kernel of
three by three) are cut once in each direction and never kept:

    written out   ‖g‖² = Σ g∘g      ∂δ = 2gP       ∂P = 2gᵀδ
    Gram form     ‖g‖² = Σ K∘Q      ∂δ = 2δK       ∂P = 2PQ       K = PᵀP, Q = δᵀδ
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from seepage.nn.gradients.rules.patches import Geometry, has_channels_last


def squared_norms_of_convolution(delta: Tensor, inputs: Tensor, *, geometry: Geometry) -> Tensor:
    """Return ``‖g_i‖²`` of every example, given output gradients and inputs of the layer."""
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
            turned = has_channels_last(delta)
            if ctx.written:
                to_left = _product(kept[0] * twice, right, turned)
            else:
                to_left = _product(left, kept[0], turned)
        return geometry.whole(to_left, delta), to_inputs, None


def _product(a: Tensor, b: Tensor, turned: bool) -> Tensor:
    """Return ``ab``, laid out by columns where what follows wants it turned."""
    return (b.mT @ a.mT).mT if turned else a @ b


@contextmanager
def _precision_of_convolutions(like: Tensor) -> Iterator[None]:
    """Let products be as precise as torch lets convolutions be, which these are, while inside.

    On a graphics card torch rounds the factors of convolutions (TF32), unless told otherwise, but
    not those of matrix products, which are then several times slower.
    """
    if not like.is_cuda:
        yield
        return
    try:
        before = torch.get_float32_matmul_precision()
        rounded = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the caller has set each kind of product apart
        yield
        return
    torch.set_float32_matmul_precision("high" if rounded else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
