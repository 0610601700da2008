"""The loss of each example: the numbers whose gradients are released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.loss import _Loss

from seepage.errors import InputError, nearest

Loss = Callable[[Any, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of each example, classes along the last axis of ``output``.

    ``target`` holds class numbers, or probabilities of the shape of ``output`` (soft targets). Of a
    sequence, it is the mean over the positions.
    """
    if target.is_floating_point():
        if target.shape != output.shape:
            raise InputError(
                f"Soft targets must have the shape of the network's output, {tuple(output.shape)}, "
                f"not {tuple(target.shape)}."
            )
        entries = -(target * torch.log_softmax(output, -1)).sum(-1)
    else:
        if target.shape != output.shape[:-1]:
            raise InputError(
                f"Class numbers for outputs of shape {tuple(output.shape)} must have the shape "
                f"{tuple(output.shape[:-1])}, not {tuple(target.shape)}."
            )
        flat = functional.cross_entropy(
            output.reshape(-1, output.shape[-1]), target.reshape(-1), reduction="none"
        )
        entries = flat.reshape(target.shape)
    return entries.flatten(1).mean(1) if entries.dim() > 1 else entries


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return half the squared error of each example, summed over its outputs."""
    wanted = target.to(output.dtype).reshape(output.shape)
    return (output - wanted).square().flatten(1).sum(1) / 2


_NAMED: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse}


def per_example(loss: str | nn.Module | Loss) -> Loss:
    """Return a function ``(output, target) → (batch,)`` for any way to name a loss.

    A loss module of torch keeps its options; only the average over the batch is undone. Of a loss
    with several entries per example, the mean is taken, or their sum if it was ``reduction="sum"``.
    """
    if isinstance(loss, str):
        if loss not in _NAMED:
            raise InputError(
                f"There is no loss {loss!r}{nearest(loss, _NAMED)}; or give a function."
            )
        return _NAMED[loss]
    if isinstance(loss, _Loss):
        return _unreduced(loss)
    if not callable(loss):
        raise InputError(
            "loss must be 'cross_entropy', 'mse', a loss module of torch, or a function of output "
            "and target that returns one loss per example."
        )
    return loss


def _unreduced(loss: _Loss) -> Loss:
    add_up = loss.reduction == "sum"

    def losses(output: Tensor, target: Tensor) -> Tensor:
        before = loss.reduction
        loss.reduction = "none"
        try:
            entries = loss(output, target)
        finally:
            loss.reduction = before
        if entries.dim() <= 1:
            return entries
        flat = entries.flatten(1)
        return flat.sum(1) if add_up else flat.mean(1)

    return losses
