"""Checks of the examples themselves, before anything is computed from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.problem.losses import class_axis, without_output
from seepage.nn.problem.problem import Problem
from seepage.nn.problem.views import Inputs, Label, call, leaves, rows_of


def refuse_values(x: Inputs, y: Any) -> None:
    """Raise where inputs or targets are no tensors, differ in number, or are not finite."""
    tensors = leaves(x)
    if not isinstance(y, Tensor):
        raise InputError(
            f"y must be a torch tensor, not a {type(y).__name__}; use torch.as_tensor(y)."
        )
    counts = {len(value) for value in tensors}
    if y.dim() == 0 or counts != {len(y)}:
        raise InputError(
            f"There are {' and '.join(str(n) for n in sorted(counts))} records but "
            f"{len(y) if y.dim() else 'no'} labels; give one label for each record."
        )
    for name, value in (*(("x", value) for value in tensors), ("y", y)):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            bad = torch.isfinite(value).reshape(len(value), -1).all(1).logical_not().nonzero()
            raise InputError(
                f"Record {int(bad[0])} of this batch has a number in {name} that is not finite; "
                "fill gaps, or leave such records out."
            )


def count_classes(problem: Problem, x: Inputs) -> int | None:
    """Return how many classes the loss tells apart, or ``None``; also try the network once."""
    try:
        with torch.no_grad():
            output = call(problem.net, rows_of(x, slice(0, 1)))
    except InputError:
        raise
    except Exception as error:
        shapes = ", ".join(
            f"{tuple(value.shape[1:])} of {str(value.dtype).removeprefix('torch.')}"
            for value in leaves(x)
        )
        raise InputError(
            f"The network does not run on these inputs (each {shapes}): {_first_line(error)}"
        ) from error
    axis = class_axis(problem.loss)
    if axis is None or not isinstance(output, Tensor) or output.dim() < 2:
        return None
    if axis == 1 and output.dim() > 2 and isinstance(problem.view, Label):
        raise InputError(
            "The label of a sequence can be asked about with loss='cross_entropy' only, which has "
            "the classes along the last axis of the output."
        )
    return int(output.shape[axis])


def refuse_classes(problem: Problem, y: Tensor, classes: int | None) -> None:
    """Raise where a class number has no output."""
    if classes is None or y.is_floating_point() or not y.numel():
        return
    if bool(without_output(problem.loss, y, classes).any()):
        raise InputError(
            f"The network has {classes} outputs, so classes must lie from 0 to {classes - 1}, but "
            f"y goes from {int(y.min())} to {int(y.max())}."
        )


def refuse_failure(error: Exception, y: Tensor) -> InputError:
    """Return what to raise where the loss cannot be taken of the network's output."""
    kind = str(y.dtype).removeprefix("torch.")
    return InputError(
        f"The loss cannot be taken with targets of shape {tuple(y.shape)} ({kind}): "
        f"{_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
