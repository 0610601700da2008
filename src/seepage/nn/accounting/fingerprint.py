"""Short marks of data and settings, by which a run that goes on knows them again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ROWS = 256


def data_fingerprint(X: Tensor, y: Tensor) -> str:
    """Return a hash of the shapes, the types and some hundred records spread over the data."""
    mark = hashlib.blake2b(digest_size=16)
    for tensor in (X, y):
        mark.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        rows = torch.linspace(0, len(tensor) - 1, min(_ROWS, len(tensor))).long()
        some = tensor[rows.to(tensor.device)].detach().cpu().contiguous()
        mark.update(some.flatten().view(torch.uint8).numpy().tobytes())
    return mark.hexdigest()


def plain_setting(value: Any) -> Any:
    """Return a setting as something a file can hold and compare.

    Numbers of numpy and torch become plain ones, arrays lists, views their words with a digest of
    the mask, and clips their name with their numbers.
    """
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.dim() == 0):
        value = value.item()
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, range | list | tuple | np.ndarray | Tensor):
        return [float(v) for v in torch.as_tensor(value).flatten()]
    if hasattr(value, "describe"):
        mask = getattr(value, "mask", None)
        words = value.describe()
        return words if mask is None else f"{words}, mask {_digest(torch.as_tensor(mask))}"
    if dataclasses.is_dataclass(value):
        numbers = [
            f"{field.name}={plain_setting(getattr(value, field.name))}"
            for field in dataclasses.fields(value)
        ]
        return f"{type(value).__name__}({', '.join(numbers)})"
    return type(value).__name__  # not its repr, which may hold an address


def loss_name(loss: str | nn.Module | Callable[..., Any]) -> str:
    """Return the name of a loss; of a module with its options and weights."""
    if isinstance(loss, str):
        return loss
    if not isinstance(loss, nn.Module):
        return str(getattr(loss, "__qualname__", type(loss).__name__))
    options = {
        name: value
        for name, value in sorted(vars(loss).items())
        if isinstance(value, str | int | float) and name != "training" and name[0] != "_"
    }
    options |= {name: _digest(tensor) for name, tensor in loss.state_dict().items()}
    return f"{type(loss).__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"


def _digest(tensor: Tensor) -> str:
    """Return a hash of a whole tensor; two masks may differ in a single entry."""
    whole = tensor.detach().cpu().contiguous()
    mark = hashlib.blake2b(f"{tuple(whole.shape)} {whole.dtype}".encode(), digest_size=8)
    mark.update(whole.flatten().view(torch.uint8).numpy().tobytes())
    return mark.hexdigest()
