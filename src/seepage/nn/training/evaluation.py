"""How far a training run has come: its accuracy, and the worst leakage so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ROWS = 1000


@dataclass(frozen=True)
class Progress:
    """How a run stood after a step.

    Parameters
    ----------
    step
        How many steps had been taken.
    accuracy
        The share of right answers on the test data; ``None`` without test data or classes.
    worst_dfil
        The largest dFIL of any record.
    """

    step: int
    accuracy: float | None
    worst_dfil: float


def measure_accuracy(net: nn.Module, X: Tensor, y: Tensor) -> float:
    """Return the share of records whose class a network names, classes on its output's last axis.

    Examples
    --------
    >>> import torch
    >>> from seepage.nn.training.evaluation import measure_accuracy
    >>> measure_accuracy(torch.nn.Identity(), torch.eye(4), torch.tensor([0, 1, 2, 0]))
    0.75
    """
    device = next((p.device for p in net.parameters()), X.device)
    modes = {module: module.training for module in net.modules()}
    net.eval()
    right = 0
    with torch.no_grad():
        for rows, wanted in zip(X.split(_ROWS), y.split(_ROWS), strict=True):
            found = net(rows.to(device)).argmax(-1)
            right += int((found == wanted.to(device)).sum())
    for module, mode in modes.items():
        module.training = mode
    return right / len(y)
