"""Work that is captured once for each shape of its inputs and then replayed on a graphics card.

A step of a small network is some hundred kernels, each done sooner than Python starts the next.
Captured as a graph they follow one another without Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")

_WARM_UP = 3  # calls before a capture, in which libraries choose their algorithms


class Captured(Generic[Found]):
    """A function of tensors, replayed for shapes that it has seen; as it is on a processor.

    What it returns is overwritten by the next call with the same shapes.

    Parameters
    ----------
    function
        Takes tensors; all else that it reads must stay where it is in memory.
    """

    def __init__(self, function: Callable[..., Found]) -> None:
        self._function = function
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Found]] = {}

    def __call__(self, *given: Tensor) -> Found:
        """Return what the function returns."""
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
