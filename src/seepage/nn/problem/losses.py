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
    if target.numel() != output.numel() or target.shape[:1] != output.shape[:1]:
        raise InputError(
            f"Targets for outputs of shape {tuple(output.shape)} must have as many numbers for "
            f"each example, but their shape is {tuple(target.shape)}."
        )
    wanted = target.to(output.dtype).reshape(output.shape)
    return (output - wanted).square().reshape(len(output), -1).sum(1) / 2


_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_NAMED: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse}


def per_example(loss: str | nn.Module | Loss) -> Loss:
    """Return a function ``(output, target) → (batch,)`` for any way to name a loss.

    A loss module of torch keeps its options; only the average over the batch is undone.
    """
    if isinstance(loss, str):
        if loss not in _NAMED:
            raise InputError(
                f"There is no loss {loss!r}{nearest(loss, _NAMED)}; or give a function."
            )
        return _NAMED[loss]
    if isinstance(loss, _Loss):
        return Unreduced(loss)
    if not callable(loss):
        raise InputError(
            "loss must be 'cross_entropy', 'mse', a loss module of torch, or a function of output "
            "and target that returns one loss per example."
        )
    return loss


class Unreduced:
    """A loss module of torch with its options, but one number per example.

    Parameters
    ----------
    module
        The module. Of several entries per example, it is their sum under ``reduction="sum"`` and
        ``"batchmean"``; otherwise the mean that the module takes of that example alone, in which
        positions with ``ignore_index`` do not count, and others by the weights of their classes.
    """

    def __init__(self, module: _Loss) -> None:
        self.module = module
        self._add_up = module.reduction in ("sum", "batchmean")

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example."""
        before = self.module.reduction
        self.module.reduction = "none"
        try:
            entries = self.module(output, target)
        finally:
            self.module.reduction = before
        if entries.dim() <= 1:
            return entries
        total = entries.flatten(1).sum(1)
        return total if self._add_up else total / self._counted(entries, target)

    def _counted(self, entries: Tensor, target: Tensor) -> Tensor | int:
        if not isinstance(self.module, _CLASSES) or target.is_floating_point():
            return entries[0].numel()
        kept = target != self.module.ignore_index
        shares = kept.to(entries.dtype)
        if self.module.weight is not None:
            shares = shares * self.module.weight[torch.where(kept, target, 0)]
        tiny = torch.finfo(entries.dtype).tiny  # an example of nothing but ignored positions is 0
        return shares.flatten(1).sum(1).clamp(min=tiny)


def class_axis(loss: Loss) -> int | None:
    """Return along which axis of the output the loss has its classes, or ``None`` without any."""
    inner = _innermost(loss)
    if inner is cross_entropy:
        return -1
    classes = isinstance(inner, Unreduced) and isinstance(inner.module, _CLASSES)
    return 1 if classes else None


def without_output(loss: Loss, target: Tensor, classes: int) -> Tensor:
    """Return which class numbers have no output, but for those that the loss is told to ignore."""
    inner = _innermost(loss)
    outside = (target < 0) | (target >= classes)
    if isinstance(inner, Unreduced) and isinstance(inner.module, _CLASSES):
        outside &= target != inner.module.ignore_index
    return outside


def _innermost(loss: Loss) -> Loss:
    """Return the loss inside one that only watches it and has it as its ``loss``."""
    inner: Loss = getattr(loss, "loss", loss)
    return inner
