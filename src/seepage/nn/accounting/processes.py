"""Shares state and divides work between the processes of a training run.

The processes of :mod:`torch.distributed` are started by a launcher (``torchrun``) and joined by
``init_process_group``. Only tensors are exchanged, so no object is pickled; a single process
exchanges nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.jacobian.random_directions import key_of
from seepage.nn.problem.sharding import is_part
from seepage.support.keyed_stream import KeyedStream


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if world_size() > 1 else 0


def reduced(
    tensor: Tensor, how: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Return the sum, or another reduction, of the tensors of all processes."""
    if world_size() == 1:
        return tensor
    moved = _movable(tensor, group)
    dist.all_reduce(moved, how, group)
    return moved.to(tensor.device)


def largest_of_all(number: int) -> int:
    """Return the largest of all processes' numbers."""
    return number if world_size() == 1 else int(reduced(torch.tensor(number), dist.ReduceOp.MAX))


def of_the_first(tensor: Tensor) -> Tensor:
    """Return the first process's tensor."""
    if world_size() == 1:
        return tensor
    moved = _movable(tensor, None)
    dist.broadcast(moved, 0)
    return moved.to(tensor.device)


def _movable(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return a copy on a device that the backend supports (a GPU for NCCL)."""
    where = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    return tensor.detach().to(where, copy=True).contiguous()


def shared_stream() -> KeyedStream:
    """Return a stream with a new key from the operating system, shared by all processes."""
    key = torch.tensor(list(KeyedStream.fresh().key), dtype=torch.uint8)
    return KeyedStream(bytes(of_the_first(key).tolist()))


def check_agreement(facts: Any) -> None:
    """Raise an error in every process unless ``facts`` is the same in all processes."""
    mark = torch.tensor(key_of(facts) >> 2)  # an int64 that can be negated
    most, least = reduced(torch.stack((mark, -mark)), dist.ReduceOp.MAX)
    if most != -least:
        raise InputError(
            "The processes do not run the same training; give all processes the same settings, the "
            "whole data and, for a checkpoint, a folder that all of them can access."
        )


def start_alike(net: nn.Module) -> None:
    """Copy the first process's parameters and buffers to all other processes."""
    if world_size() == 1:
        return
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if not is_part(tensor):  # each process has its own
                tensor.copy_(of_the_first(tensor))


def own_part(index: Tensor) -> Tensor:
    """Return the records of a batch that this process observes.

    Records are assigned by their number, so that a process always observes the same records.
    """
    return index[index % world_size() == process_rank()]


def summed(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of all processes' gradients, which is bitwise identical in every process."""
    if world_size() == 1:
        return gradient
    return {name: reduced(tensor, dist.ReduceOp.SUM) for name, tensor in gradient.items()}
