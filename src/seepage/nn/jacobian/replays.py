"""Passes recorded as one graph of kernels, where launching these takes longer than they do.

On a fast accelerator in short numbers, a pass over a network of some hundred million parameters is
made of thousands of kernels of a few microseconds each, and Python cannot launch them so fast. A
pass of the same shapes over the same parameters launches the same kernels every time: once that has
been seen, it is recorded (a CUDA graph) and replayed, to the same numbers. What cannot be recorded
goes on as before.
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

Function = Callable[..., Any]  # of tensors; what it returns may have tensors in it

_RECORDINGS = 4  # at most, as each keeps its memory
_BOUND = 0.7  # the part of a pass's time from which on launching it is what takes time
_ROOM = 4  # a recording may keep one part in so many of the memory


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
    """Runs functions of tensors, and replays a recording of those that are bound by launches."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, int] = {}
        self._plain: set[Hashable] = set()  # what is not to be recorded
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool: Any = None  # of memory, which all share: only one is replayed at a time

    def run(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> Any:
        """Return what the function gives for these inputs.

        The key must tell apart whatever else decides which kernels are launched, and on which
        memory. The first run with a key warms up, the second is timed, the third recorded.
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
            found, bound = _timed(function, inputs)
            if not bound or len(self._recordings) >= _RECORDINGS:
                self._plain.add(key)
            return found
        try:
            recording = self._record(function, inputs)
        except RuntimeError:  # something in it cannot be recorded, or there is no room
            recording = None
            torch.cuda.synchronize()
        if recording is None:
            self._plain.add(key)
            return function(*inputs)
        self._recordings[key] = recording
        return recording.replay(inputs)

    def _record(self, function: Function, inputs: Sequence[Tensor]) -> _Recording | None:
        """Return a recording, or ``None`` where it would keep too much memory."""
        held = [tensor.clone() for tensor in inputs]
        before = torch.cuda.memory_reserved()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            function(*held)  # what is set up once in a stream is not to be recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        mode = {"stream": aside, "capture_error_mode": "thread_local"}
        with _uncached(), torch.cuda.graph(graph, pool=self._pool, **mode):
            outputs = function(*held)
        total = torch.cuda.get_device_properties(held[0].device).total_memory
        if _ROOM * (torch.cuda.memory_reserved() - before) > total:
            return None
        self._pool = graph.pool()
        return _Recording(graph, held, outputs)


@contextmanager
def _uncached() -> Iterator[None]:
    """Have autocast round weights anew: a replay must not find those of another step."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _timed(function: Function, inputs: Sequence[Tensor]) -> tuple[Any, bool]:
    """Return what a function gives, and whether launching it takes most of its time."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = function(*inputs)
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    return found, launched > _BOUND * (time.perf_counter() - start)
