"""Converts inputs and targets to tensors for the network and its loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.layers.federated.buffers import kept_buffers
from seepage.nn.problem.problem import Loss, class_axis, per_record, without_output
from seepage.nn.problem.views import Inputs, batch_size, call, rows_of
from seepage.tables.names import counted
from seepage.tables.source import as_numpy


def read_inputs(x: Any, net: nn.Module) -> Inputs:
    """Return inputs with NumPy arrays (nested too) converted to tensors on the network's device.

    Floating-point arrays get the type of the network's parameters. Other values (tensors, graphs,
    masks that are ``None``) are returned unchanged.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from seepage.layers.inputs_and_targets import read_inputs
    >>> read_inputs(np.ones((2, 3)), torch.nn.Linear(3, 1)).dtype
    torch.float32
    """
    if isinstance(x, np.ndarray):
        return _tensor(x, net, "inputs")
    if isinstance(x, Mapping):
        return {name: read_inputs(value, net) for name, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(read_inputs(value, net) for value in x)
    return x


def read_targets(y: Any, net: nn.Module, loss: str | nn.Module | Loss) -> Tensor:
    """Return targets as a tensor; class numbers become the 64-bit integers that torch expects."""
    target = y if isinstance(y, Tensor) else _tensor(as_numpy(y), net, "targets")
    if target.dim() == 0:
        raise InputError("The targets are a single number; give one entry per record.")
    if target.is_floating_point() or target.is_complex():
        return target
    by_class = class_axis(per_record(loss)) is not None
    return target.long() if target.dtype != torch.bool or by_class else target


def read_pair(
    pair: Any, net: nn.Module, loss: str | nn.Module | Loss, where: str
) -> tuple[Inputs, Tensor]:
    """Return a pair of inputs and targets as tensors; raise an error if they are invalid.

    The pair must have at least one record and one target per record, without NaN or infinity.
    ``where`` names the pair in errors, as in "Batch 3".
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(
            f"{where} must be a pair (inputs, targets), a tuple or list of length 2; its type is "
            f"{type(pair).__name__}."
        )
    x, y = read_inputs(pair[0], net), read_targets(pair[1], net, loss)
    if len(y) == 0 or batch_size(x) != len(y):
        raise InputError(
            f"{where} has {counted(batch_size(x), 'record')} but {counted(len(y), 'label')}; give "
            "one label for each record, and at least one record."
        )
    if not is_finite((x, y)):
        raise InputError(f"{where} contains NaN or infinity; drop the affected records.")
    return x, y


def is_finite(x: Any) -> bool:
    """Return whether tensors, including nested tensors, contain neither NaN nor infinity."""
    # The answers are gathered before they are fetched, since fetching waits for the device.
    finite = [part.isfinite().all() for part in _tensors_of(x) if part.is_floating_point()]
    return not finite or bool(torch.stack([each.to(finite[0].device) for each in finite]).all())


def check_labels(net: nn.Module, loss: str | nn.Module | Loss, x: Any, y: Any, where: str) -> None:
    """Raise an error if a class number is not among the network's classes."""
    with torch.no_grad(), kept_buffers(net):
        output = call(net, rows_of(x, slice(0, 2)))  # BatchNorm has no variance for a single one
    check_classes(loss, output, y, where)


def check_classes(loss: str | nn.Module | Loss, output: Any, target: Tensor, where: str) -> None:
    """Raise an error if a class number is not one of the classes in the network's output.

    Only classification losses are checked. ``where`` names the origin of the targets in errors, as
    in "Batch 3".
    """
    each = per_record(loss)
    axis = class_axis(each)
    if axis is None or target.is_floating_point() or not isinstance(output, Tensor):
        return
    classes = output.shape[-1 if output.dim() == 1 else axis]
    wrong = without_output(each, target, classes)
    if bool(wrong.any()):
        raise InputError(
            f"{where} has the label {int(target[wrong][0])}, but the network has "
            f"{counted(classes, 'class', 'classes')}, numbered from 0 to {classes - 1}; renumber "
            "the labels."
        )


def _tensors_of(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping | tuple | list):
        for value in x.values() if isinstance(x, Mapping) else x:
            yield from _tensors_of(value)


def _tensor(values: np.ndarray, net: nn.Module, what: str) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise InputError(f"The {what} contain {values.dtype} values; give numbers or tensors.")
    like = next(net.parameters(), torch.zeros(0))
    # Torch refuses reversed arrays, and warns about read-only ones.
    tensor = torch.as_tensor(np.require(values, None, ["C", "W"]), device=like.device)
    # NumPy defaults to double precision; networks seldom use it.
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor
