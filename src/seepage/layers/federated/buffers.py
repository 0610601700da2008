"""Buffers of a network: BatchNorm's running statistics, counters and masks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def sent_buffers(net: nn.Module) -> dict[str, Tensor]:
    """Return the buffers in the network's state, by name; FedAvg sends them with the parameters.

    Examples
    --------
    >>> from torch import nn
    >>> from seepage.layers.federated.buffers import sent_buffers
    >>> list(sent_buffers(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))))
    ['1.running_mean', '1.running_var', '1.num_batches_tracked']
    """
    state = net.state_dict()
    return {name: buffer for name, buffer in net.named_buffers() if name in state}


def moved_by(sent: Tensor, returned: Tensor) -> Tensor:
    """Return ``sent − returned`` as floating-point numbers, even for integers and masks.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.buffers import moved_by
    >>> moved_by(torch.tensor([True, False]), torch.tensor([True, True]))
    tensor([ 0., -1.])
    """
    before, after = (part if part.is_floating_point() else part.long() for part in (sent, returned))
    difference = before - after
    return difference if difference.is_floating_point() else difference.float()


@contextmanager
def kept_buffers(net: nn.Module) -> Iterator[None]:
    """Restore the network's buffers at the end of the ``with`` block."""
    owned = [(module, name) for module in net.modules() for name in module._buffers]
    before = [(module, name, module._buffers[name]) for module, name in owned]
    values = [None if buffer is None else buffer.clone() for _, _, buffer in before]
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, name, buffer), value in zip(before, values, strict=True):
                if buffer is not None and value is not None:
                    buffer.copy_(value)
                module._buffers[name] = buffer
