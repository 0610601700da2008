"""A record's share of a loss's mean over a whole batch, as Opacus counts it.

Opacus multiplies the gradient of a mean by the number of records N, which recovers each record's
own gradient if the mean divides by N. With class weights or ignored targets torch's mean is
``Σ_j w_j ℓ_j / Σ_j w_j`` (over all positions of all records), so that for record i Opacus clips and
releases the gradient of ``N/Σ_j w_j · w_i ℓ_i``. The factor belongs to the batch: leaving a record
out changes it for all others, which no clip bounds.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from seepage.nn.problem.problem import UnreducedLoss


class BatchMeanLoss:
    """The loss of each record times ``N/Σ_j w_j`` of the batch given to :meth:`take`.

    The module is a ``CrossEntropyLoss`` or ``NLLLoss`` with ``reduction="mean"``; ``loss`` gives
    the sums ``w_i ℓ_i``, one per record, and ``factor`` is ``N/Σ_j w_j``.
    """

    def __init__(self, module: nn.CrossEntropyLoss | nn.NLLLoss) -> None:
        summed = copy.copy(module)
        summed.reduction = "sum"
        self.module = summed
        self.loss = UnreducedLoss(summed)
        self.factor: Tensor | float = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return one number per record."""
        return self.factor * self.loss(output, target)

    def take(self, target: Tensor) -> bool:
        """Note a batch's targets; return whether its mean is weighted."""
        if target.is_floating_point():  # for probabilities torch takes the plain mean
            self.factor = target.shape[1] * len(target) / max(1, target.numel())
            return False
        kept = target != self.module.ignore_index
        weights = self.module.weight
        if weights is None and bool(kept.all()):
            self.factor = len(target) / max(1, target.numel())
            return False
        shares = kept.double()
        if weights is not None:
            shares = shares * weights.to(shares)[torch.where(kept, target.long(), 0)]
        self.factor = len(target) / float(shares.sum()) if len(target) else 1.0
        return True


def divides_by_the_batch(loss: object) -> bool:
    """Return whether a loss is a module whose mean is weighted over the batch."""
    classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    return classes and getattr(loss, "reduction", "") == "mean"
