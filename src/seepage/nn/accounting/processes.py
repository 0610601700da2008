"""Training in several processes: what all of them must share, and how the work is dealt out.

The processes are those of :mod:`torch.distributed`; whoever starts them (``torchrun``) also joins
them, with ``init_process_group``. Alone, every function here leaves things as they are. Only
tensors travel: no object is pickled on the way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.jacobian.random_directions import key_of
from seepage.nn.problem.views import is_part
from seepage.support.keyed_stream import KeyedStream


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Return the number of this process among those that train together."""
    return dist.get_rank() if world_size() > 1 else 0


def reduced(
    tensor: Tensor, how: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Return the sum, or the like, of all processes' tensors; one process has its own."""
    if world_size() == 1:
        return tensor
    moved = _movable(tensor, group)
    dist.all_reduce(moved, how, group)
    return moved.to(tensor.device)


def largest_of_all(number: int) -> int:
    """Return the largest of all processes' numbers."""
    return number if world_size() == 1 else int(reduced(torch.tensor(number), dist.ReduceOp.MAX))


def of_the_first(tensor: Tensor) -> Tensor:
    """Return the first process's tensor; one process has its own."""
    if world_size() == 1:
        return tensor
    moved = _movable(tensor, None)
    dist.broadcast(moved, 0)
    return moved.to(tensor.device)


def _movable(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return a copy where the backend can reach it: NCCL on an accelerator, gloo elsewhere."""
    where = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    return tensor.detach().to(where, copy=True).contiguous()


def shared_stream() -> KeyedStream:
    """Return a stream with a new key from the operating system, the same in every process."""
    key = torch.tensor(list(KeyedStream.fresh().key), dtype=torch.uint8)
    return KeyedStream(bytes(of_the_first(key).tolist()))


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
            if not is_part(tensor):  # of which each process has its own
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
