"""Functions captured once for each shape of their inputs and then replayed on a GPU.

A step of a small network consists of some hundred kernels, each of which finishes before Python
launches the next. Captured as a graph they run without Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")

_WARM_UP = 3  # calls before a capture, in which libraries choose their algorithms


class Captured(Generic[Found]):
    """A function of tensors, replayed for shapes it has seen; on a CPU it is called directly.

    Its result is overwritten by the next call with the same shapes.

    Parameters
    ----------
    function
        Takes tensors; everything else that it reads must stay at the same place in memory.
    """

    def __init__(self, function: Callable[..., Found]) -> None:
        self._function = function
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Found]] = {}

    def __call__(self, *given: Tensor) -> Found:
        """Return the function's result."""
        if not given[0].is_cuda:
            return self._function(*given)
        shapes = tuple(tensor.shape for tensor in given)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(given)
        graph, held, found = self._graphs[shapes]
        for mine, new in zip(held, given, strict=True):
            mine.copy_(new)
        graph.replay()
        return found

    def _capture(
        self, given: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Found]:
        held = tuple(tensor.clone() for tensor in given)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                self._function(*held)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self._function(*held)
        return graph, held, found
