"""Training in several processes: what all of them must share, and how the work is dealt out.

The processes are those of :mod:`torch.distributed`; whoever starts them (``torchrun``) also joins
them, with ``init_process_group``. Alone, every function here leaves things as they are.
"""

from __future__ import annotations

import secrets
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.accounting.sharing import of_the_first, process_rank, reduced, world_size
from seepage.nn.jacobian.random_directions import key_of


def shared_seed() -> int:
    """Draw a seed from the operating system, the same in every process."""
    return int(of_the_first(torch.tensor(secrets.randbits(63))))


def check_agreement(facts: Any) -> None:
    """Raise, in every process, unless all of them have the same facts."""
    mark = torch.tensor(key_of(facts) >> 2)  # an int64 that can be negated
    most, least = reduced(torch.stack((mark, -mark)), dist.ReduceOp.MAX)
    if most != -least:
        raise InputError(
            "The processes do not train the same: give all of them the same settings and the same "
            "(whole) data, and a checkpoint, if any, in a folder that all of them see."
        )


def start_alike(net: nn.Module) -> None:
    """Give every process the parameters and buffers of the first one."""
    if world_size() == 1:
        return
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.copy_(of_the_first(tensor))


def own_part(index: Tensor) -> Tensor:
    """Return the records of a batch that are this process's to observe.

    Records are dealt out by their number, so that a process sees the same ones again and again.
    """
    return index[index % world_size() == process_rank()]


def summed(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of the processes' gradients, the same to the last digit in every process."""
    if world_size() == 1:
        return gradient
    return {name: reduced(tensor, dist.ReduceOp.SUM) for name, tensor in gradient.items()}
