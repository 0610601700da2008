"""Reads batches given as data frames or NumPy arrays into tensors for a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.tables.source import Table, as_numpy, read_table


def as_tensors(net: nn.Module, x: Any, y: Any) -> tuple[Any, Tensor, Table | None]:
    """Return inputs and targets as tensors, and the table if the inputs are a data frame."""
    like = next(net.parameters(), None)
    if like is None:
        raise InputError(
            "The network has no parameters, so no gradient is released; pass a network with "
            "trainable parameters."
        )
    table = None
    if hasattr(x, "columns") or hasattr(x, "column_names"):
        table = read_table(x)
        x = table.values
    if isinstance(x, np.ndarray):
        x = _tensor(x, like.dtype if x.dtype.kind == "f" else None)
        x = x.to(like.device)
    if not isinstance(y, Tensor):
        labels = as_numpy(y)
        if labels.dtype.kind not in "biuf":
            raise InputError(
                f"y contains values of type {labels.dtype} instead of numbers; encode each class "
                "as an integer."
            )
        y = _tensor(labels).to(like.device)
    return x, y, table


def _tensor(values: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
    # Copies, since frames may be read-only and torch refuses reversed arrays.
    return torch.tensor(np.ascontiguousarray(values), dtype=dtype)
