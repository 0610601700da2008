"""Data-parallel runs: every process accounts for its part of the batches, and all learn the whole.

Nothing is exchanged during training. At the end the sums of all processes are added up (no object
is pickled on the way: only tensors travel).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from seepage.errors import InputError
from seepage.nn.accounting.run_record import RunRecord, join_shares
from seepage.nn.accounting.spectrum_sketch import SpectrumSketch


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Return the number of this process among those that train together."""
    return dist.get_rank() if world_size() > 1 else 0


def gather_shares(mine: RunRecord, group: dist.ProcessGroup | None = None) -> RunRecord:
    """Return the record of the whole run, the same in every process.

    Every process of the group must call it. The shares themselves stay as they are, so a run can go
    on afterwards and gather again.
    """
    if world_size() == 1:
        return join_shares([mine])
    whole = join_shares([mine])
    _check_steps(whole, group)
    whole.unknowns = int(reduced(torch.tensor(whole.unknowns), dist.ReduceOp.MAX, group))
    for part in (whole.tally, whole.individual):
        for name, tensor in (part.tensors() if part is not None else {}).items():
            setattr(part, name, reduced(tensor, dist.ReduceOp.SUM, group))
    if mine.sketch is not None:
        whole.sketch = _gathered(mine.sketch, whole, group)
    return whole


def whole_state(mine: RunRecord) -> dict[str, Any]:
    """Return the state of the whole run, to store or to load; every process must call it."""
    if world_size() == 1:
        return mine.state_dict()
    whole = gather_shares(mine)
    mine.unknowns = whole.unknowns  # a process that has seen no record yet does not know them
    sums = {name: tensor for name, tensor in whole.state_dict().items() if name != "facts"}
    return mine.state_dict() | sums


def keep_one_share(whole: RunRecord) -> None:
    """Leave the sums of a whole run to the first process, so that they are counted once."""
    if process_rank() > 0:
        whole.clear()


def _check_steps(record: RunRecord, group: dist.ProcessGroup | None) -> None:
    steps = torch.tensor([record.steps, -record.steps])
    most = reduced(steps, dist.ReduceOp.MAX, group)
    if int(most[0]) != -int(most[1]):
        raise InputError(
            f"The processes took between {-int(most[1])} and {int(most[0])} steps: every process "
            "must observe its part of every batch, also an empty one."
        )


def reduced(
    tensor: torch.Tensor, how: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the sum, or the like, of all processes' tensors; one process has its own."""
    if world_size() == 1:
        return tensor
    moved = _movable(tensor, group)
    dist.all_reduce(moved, how, group)
    return moved.to(tensor.device)


def of_the_first(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first process's tensor; one process has its own."""
    if world_size() == 1:
        return tensor
    moved = _movable(tensor, None)
    dist.broadcast(moved, 0)
    return moved.to(tensor.device)


def _movable(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return a copy where the backend can reach it: NCCL on an accelerator, gloo elsewhere."""
    where = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    return tensor.detach().to(where, copy=True).contiguous()


def _gathered(
    sketch: SpectrumSketch, whole: RunRecord, group: dist.ProcessGroup | None
) -> SpectrumSketch:
    """Add up the sketches: those of other processes arrive as zeros plus the one that has them."""
    width = int(reduced(torch.tensor(sketch.rows.shape[3]), dist.ReduceOp.MAX, group))
    total = SpectrumSketch(sketch.chosen.tolist(), sketch.rank, whole.records)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for sender in range(ranks):
        share = SpectrumSketch(sketch.chosen.tolist(), sketch.rank, whole.records)
        # In float64 throughout: a process that saw none of the records does not know their type.
        share.rows = torch.zeros(*sketch.rows.shape[:3], width, dtype=torch.float64)
        if sender == rank and sketch.rows.shape[3]:
            share.rows, share.lost = sketch.rows.double().cpu(), sketch.lost.cpu().clone()
        share.rows = reduced(share.rows, dist.ReduceOp.SUM, group)
        share.lost = reduced(share.lost, dist.ReduceOp.SUM, group)
        total.absorb(share)
    return total
