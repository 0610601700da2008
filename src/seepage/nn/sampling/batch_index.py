"""Which records a batch has: their numbers, checked before anything is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError


def checked_index(index: Any, size: int, records: int) -> Tensor:
    """Return the numbers of a batch's records, ``(B,)``, or raise if they cannot be that.

    Parameters
    ----------
    index
        What was handed in.
    size
        How many records the batch has.
    records
        How many the training data has.
    """
    try:
        given = torch.as_tensor(index).flatten().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "index must hold the numbers of the batch's records, as whole numbers."
        ) from None
    if given.dtype == torch.bool:
        raise InputError(
            "index must hold the numbers of the batch's records, not a mask of true and false; "
            "give torch.nonzero(mask).flatten()."
        )
    if len(given) and (given.is_floating_point() or given.is_complex()):
        raise InputError(
            "index must hold the numbers of the batch's records as whole numbers, not as "
            f"{str(given.dtype).removeprefix('torch.')}."
        )
    chosen = given.to(torch.int64)
    if len(chosen) != size:
        raise InputError(f"index names {len(chosen)} records, but the batch has {size}.")
    if len(chosen) and (int(chosen.min()) < 0 or int(chosen.max()) >= records):
        odd = int(chosen.min()) if int(chosen.min()) < 0 else int(chosen.max())
        raise InputError(f"There is no record {odd}: n is {records}.")
    values, counts = torch.unique(chosen, return_counts=True)
    if len(values) < len(chosen):
        twice = int(values[counts > 1][0])
        raise InputError(
            f"Record {twice} is in the batch {int(counts.max())} times; batches must be drawn "
            "without replacement."
        )
    return chosen


def check_apart(chosen: Tensor, before: Tensor) -> None:
    """Raise if a record of one part of a batch was in an earlier part of the same step."""
    again = chosen[torch.isin(chosen, before)]
    if len(again):
        raise InputError(
            f"Record {int(again[0])} was already observed in this step; a batch in several parts "
            "has every record in one of them. End the step (more=False, or the optimiser's step) "
            "before the next one begins."
        )
