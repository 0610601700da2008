"""Short marks of data and settings, by which a run that goes on knows them again."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    """Return an argument of the accountant as something a file can hold and compare."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, range | list | tuple | np.ndarray | Tensor):
        return [float(v) for v in torch.as_tensor(value).flatten()]
    mask = getattr(value, "mask", None)
    words = value.describe() if hasattr(value, "describe") else repr(value)
    return words if mask is None else f"{words}, {data_fingerprint(*[torch.as_tensor(mask)] * 2)}"
