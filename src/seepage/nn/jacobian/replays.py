"""Records a pass as a CUDA graph if launching its kernels takes a good part of its time.

On a fast accelerator at reduced precision, a pass over a network of a few hundred million
parameters consists of thousands of kernels. Each kernel runs for a few microseconds, less time than
Python needs to launch it. Passes with the same shapes and parameters launch the same kernels every
time, so one pass is recorded and replayed, with identical results. Passes that cannot be recorded
run as usual.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

Function = Callable[..., Any]  # of tensors; its result may contain tensors

# Share of a pass's time above which it counts as launch-bound. Where launching takes a third of the
# time, short kernels leave the device idle in between, and Python falls behind in the next pass.
_BOUND = 0.3


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: Sequence[Tensor]
    outputs: Any

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given)
        self.graph.replay()
        return tree_map_only(Tensor, torch.clone, self.outputs)


class Replays:
    """Runs functions of tensors, and replays recordings of launch-bound functions."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, int] = {}
        self._plain: set[Hashable] = set()  # keys that are not to be recorded
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool: Any = None  # memory that all share, since only one is replayed at a time

    def run(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> Any:
        """Return the function's result for these inputs.

        The key must identify everything, other than the inputs, that determines which kernels are
        launched and which memory they use. The first run with a key is a warm-up, the second is
        timed, and the third is recorded.
        """
        if not all(tensor.is_cuda for tensor in inputs) or torch.cuda.is_current_stream_capturing():
            return function(*inputs)
        key = (key, tuple((t.shape, t.stride(), t.dtype, t.device) for t in inputs))
        if key in self._recordings:
            return self._recordings[key].replay(inputs)
        if key in self._plain:
            return function(*inputs)
        self._runs[key] = self._runs.get(key, 0) + 1
        if self._runs[key] == 1:
            return function(*inputs)
        if self._runs[key] == 2:
            result, bound = _timed(function, inputs)
            if not bound or len(self._recordings) >= 8:  # each keeps its memory
                self._plain.add(key)
            return result
        try:
            recording = self._record(function, inputs)
        except RuntimeError:  # part of it cannot be recorded, or memory is short
            recording = None
            torch.cuda.synchronize()
        if recording is None:
            self._plain.add(key)
            return function(*inputs)
        self._recordings[key] = recording
        return recording.replay(inputs)

    def _record(self, function: Function, inputs: Sequence[Tensor]) -> _Recording | None:
        """Return a recording, or ``None`` if it would occupy more than a quarter of the memory."""
        held = [tensor.clone() for tensor in inputs]
        before = torch.cuda.memory_reserved()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            function(*held)  # one-time set-up of the stream must not be recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        mode = {"stream": aside, "capture_error_mode": "thread_local"}
        with _uncached(), torch.cuda.graph(graph, pool=self._pool, **mode):
            outputs = function(*held)
        total = torch.cuda.get_device_properties(held[0].device).total_memory
        if 4 * (torch.cuda.memory_reserved() - before) > total:
            return None
        self._pool = graph.pool()
        return _Recording(graph, held, outputs)


@contextmanager
def _uncached() -> Iterator[None]:
    """Disable autocast's cache, so that a replay does not use another step's rounded weights."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _timed(function: Function, inputs: Sequence[Tensor]) -> tuple[Any, bool]:
    """Return a function's result, and whether launching takes most of its time."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function(*inputs)
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    return result, launched > _BOUND * (time.perf_counter() - start)
