"""Data-parallel runs: every process accounts for its part of the batches, and all learn the whole.

Nothing is exchanged during training. At the end the sums of all processes are added up (no object
is pickled on the way: only tensors travel).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from seepage.errors import InputError
from seepage.nn.run_record import RunRecord, join_shares
from seepage.nn.spectrum_sketch import SpectrumSketch


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_shares(mine: RunRecord, group: dist.ProcessGroup | None = None) -> RunRecord:
    """Return the record of the whole run, the same in every process.

    Every process of the group must call it. The shares themselves stay as they are, so a run can go
    on afterwards and gather again.
    """
    if world_size() == 1:
        return join_shares([mine])
    whole = join_shares([mine])
    _check_steps(whole, group)
    whole.unknowns = int(_reduced(torch.tensor(whole.unknowns), group, dist.ReduceOp.MAX))
    for part in (whole.tally, whole.individual):
        for name, tensor in (part.tensors() if part is not None else {}).items():
            setattr(part, name, _reduced(tensor, group, dist.ReduceOp.SUM))
    if mine.sketch is not None:
        whole.sketch = _gathered(mine.sketch, whole, group)
    return whole


def _check_steps(record: RunRecord, group: dist.ProcessGroup | None) -> None:
    steps = torch.tensor([record.steps, -record.steps])
    most = _reduced(steps, group, dist.ReduceOp.MAX)
    if int(most[0]) != -int(most[1]):
        raise InputError(
            f"The processes took between {-int(most[1])} and {int(most[0])} steps: every process "
            "must observe its part of every batch, also an empty one."
        )


def _reduced(
    tensor: torch.Tensor, group: dist.ProcessGroup | None, how: dist.ReduceOp.RedOpType
) -> torch.Tensor:
    # NCCL moves what is on an accelerator, gloo what is not.
    accelerator = dist.get_backend(group) == "nccl"
    moved = tensor.to("cuda", copy=True) if accelerator else tensor.to("cpu", copy=True)
    dist.all_reduce(moved, how, group)
    return moved.to(tensor.device)


def _gathered(
    sketch: SpectrumSketch, whole: RunRecord, group: dist.ProcessGroup | None
) -> SpectrumSketch:
    """Add up the sketches: those of other processes arrive as zeros plus the one that has them."""
    width = int(_reduced(torch.tensor(sketch.rows.shape[3]), group, dist.ReduceOp.MAX))
    total = SpectrumSketch(sketch.chosen.tolist(), sketch.rank, whole.records)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for sender in range(ranks):
        share = SpectrumSketch(sketch.chosen.tolist(), sketch.rank, whole.records)
        # In float64 throughout: a process that saw none of the records does not know their type.
        share.rows = torch.zeros(*sketch.rows.shape[:3], width, dtype=torch.float64)
        if sender == rank and sketch.rows.shape[3]:
            share.rows, share.lost = sketch.rows.double().cpu(), sketch.lost.cpu().clone()
        share.rows = _reduced(share.rows, group, dist.ReduceOp.SUM)
        share.lost = _reduced(share.lost, group, dist.ReduceOp.SUM)
        total.absorb(share)
    return total
