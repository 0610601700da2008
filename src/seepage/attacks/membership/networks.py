"""A network's confidence in a record: the log-odds of the true class or of the text.

For logits ``z`` and class ``y``, the log-odds are ``z_y − log Σ_{k≠y} exp z_k``, which avoids the
rounding error of probabilities near 1. For any other loss ``ℓ`` per record, ``p = exp(−ℓ)``
replaces the probability (for a language model, the geometric mean over the tokens), and the
log-odds are ``−log(exp(ℓ) − 1)``. The network runs in evaluation mode; its previous mode is
restored afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.problem.own_loss import OwnLoss, labels_of
from seepage.nn.problem.problem import cross_entropy, mse, per_record
from seepage.nn.problem.views import (
    batch_size,
    evaluating,
    numbers_of,
    on_device,
    plain_run,
    rows_of,
    run,
)


def as_inputs(X: Any) -> Any:
    """Return arrays, single or in a mapping or tuple, as tensors; real numbers become float32."""
    if isinstance(X, Mapping):
        return {str(name): as_inputs(value) for name, value in X.items()}
    if isinstance(X, tuple | list) and X and isinstance(X[0], Tensor | np.ndarray):
        return tuple(as_inputs(value) for value in X)
    if isinstance(X, Tensor):
        return X
    values = np.ascontiguousarray(X)
    return torch.tensor(values, dtype=torch.float32 if values.dtype.kind == "f" else None)


def network_log_odds(
    model: nn.Module, X: Any, y: Any, *, loss: Any = None, chunk: int = 256
) -> tuple[np.ndarray, bool]:
    """Return the log-odds or the negative squared error of every record, ``(n,)``.

    The second return value is True for squared errors (``loss="mse"``).
    """
    x = as_inputs(X)
    if y is None and not isinstance(x, Mapping):
        raise InputError(
            "A network's records need labels; pass y, or a mapping that includes labels."
        )
    target = (
        labels_of(x)
        if y is None
        else y
        if isinstance(y, Tensor)
        else torch.as_tensor(np.ascontiguousarray(y))
    )
    losses = per_record(("own" if y is None else "cross_entropy") if loss is None else loss)
    like = next(model.parameters(), None)
    device = torch.device("cpu") if like is None else like.device
    signals = []
    with torch.no_grad(), evaluating(model), plain_run(model):
        for start in range(0, batch_size(x), chunk):
            rows = slice(start, start + chunk)
            some, labels = on_device((rows_of(x, rows), target[rows]), device)
            signals.append(_signal(model, some, labels, losses).double().cpu().numpy())
    return np.concatenate(signals), losses is mse


def _signal(model: nn.Module, x: Any, y: Tensor, losses: Any) -> Tensor:
    if isinstance(losses, OwnLoss):
        with losses.by_record(x, y, y) as given:
            return _of_loss(losses(run(model, given), y))
    output = run(model, x)
    logits = numbers_of(output)
    if losses is cross_entropy and isinstance(logits, Tensor) and logits.dim() == 2:
        if y.is_floating_point() or y.shape != logits.shape[:1]:
            raise InputError(
                "y must contain one class number for each record, but has the shape "
                f"{tuple(y.shape)} and the type {y.dtype}."
            )
        logits, own = logits.double(), y.long()[:, None]
        return logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).logsumexp(1)
    found: Tensor = losses(output, y)
    return -2 * found if losses is mse else _of_loss(found)


def _of_loss(loss: Tensor) -> Tensor:
    wide = loss.double().clamp(min=torch.finfo(torch.float32).tiny)
    return -(wide + torch.log(-torch.expm1(-wide)))  # −log(exp ℓ − 1), for a large ℓ too


def load_reference(path: Path, like: Any) -> Any:
    """Load a checkpoint as a model of the attacked model's class.

    A ``.safetensors`` file contains the parameters; a folder is loaded with the class's
    ``from_pretrained``. Nothing is unpickled.
    """
    import copy

    if path.is_dir() and hasattr(type(like), "from_pretrained"):
        return type(like).from_pretrained(path)
    if path.suffix != ".safetensors" or not isinstance(like, nn.Module):
        raise InputError(
            f"{path} is neither a .safetensors file of a network nor a folder that "
            f"{type(like).__name__}.from_pretrained can load; give load=, a function that returns "
            "a model from a path."
        )
    from safetensors.torch import load_file

    model = copy.deepcopy(like)
    try:
        model.load_state_dict(load_file(path))
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"{path} does not contain the parameters of this network; give load=, a function that "
            "returns a model from a path."
        ) from error
    return model
