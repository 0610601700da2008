"""How many examples to work on at a time: as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from seepage.errors import InputError

Value = TypeVar("Value")

# What a pass may hold; beyond that, larger chunks win nothing.
_PROCESSOR_BYTES = 1 << 30
_ACCELERATOR_BYTES = 20 << 30


class Chunks:
    """Cuts batches into chunks, and into smaller ones when memory runs out.

    Parameters
    ----------
    size
        Examples in a chunk, or ``"auto"``.
    """

    def __init__(self, size: int | str = "auto") -> None:
        if size != "auto" and (not isinstance(size, int) or size < 1):
            raise InputError(f"chunk_size must be 'auto' or a number above zero, not {size!r}.")
        self.size = size if isinstance(size, int) else None
        self.found: int | None = None  # what fits, where more was found not to

    def step(self, count: int, held: int, device: torch.device) -> int:
        """Return how many of ``count`` examples to take at a time, if each holds so many bytes."""
        if self.size is not None:
            return self.size
        fits = max(1, _room(device) // max(1, held))
        largest = min(count, fits if self.found is None else min(fits, self.found))
        return -(-count // -(-count // largest))  # chunks of about the same size

    def run(
        self, work: Callable[[slice], Value], count: int, held: int, device: torch.device
    ) -> list[Value]:
        """Apply ``work`` to all chunks; where memory runs out, begin again with smaller ones."""
        while True:
            step = self.step(count, held, device)
            try:
                return [
                    work(slice(start, min(start + step, count))) for start in range(0, count, step)
                ]
            except torch.OutOfMemoryError:
                if self.size is not None or step == 1:
                    raise
                self.found = (step + 1) // 2
            torch.cuda.empty_cache()


def _room(device: torch.device) -> int:
    """Return what a pass may hold; not what is free just now, so that runs can be repeated."""
    if device.type != "cuda":
        return _PROCESSOR_BYTES
    half = int(torch.cuda.get_device_properties(device).total_memory) // 2
    return min(_ACCELERATOR_BYTES, half)
