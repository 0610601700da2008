"""Identifies a run by its data, settings and measurement, in text and numbers.

Runs that were measured differently must not be combined. The noise is not part of the identity,
because it may change between steps; the ledger records it for every step.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.nn.jacobian.engine import Engine
from seepage.nn.privacy.run_privacy import Ledger
from seepage.nn.problem.views import Inputs, leaves
from seepage.nn.sampling.amplification import Amplification

Measurement = dict[str, Any]


def data_fingerprint(X: Inputs, y: Tensor) -> str:
    """Return a hash of the data's shapes, types and up to 256 evenly spaced records."""
    mark = hashlib.blake2b(digest_size=16)
    for tensor in (*leaves(X), y):
        mark.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        rows = torch.linspace(0, len(tensor) - 1, min(256, len(tensor))).long()
        some = tensor[rows.to(tensor.device)].detach().cpu().contiguous()
        mark.update(some.flatten().view(torch.uint8).numpy().tobytes())
    return mark.hexdigest()


def plain_setting(value: Any) -> Any:
    """Return a setting in a form that can be stored in a file and compared.

    NumPy and torch numbers become plain numbers, and arrays become lists. A view becomes its
    description with a digest of the mask. A clip becomes its name with its parameters.
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
    """Return the name of a loss; a module's name includes its options and weights."""
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


def describe_measurement(
    engine: Engine, method: str, scale: float | None, amplification: Amplification
) -> Measurement:
    """Return the settings that identify a measurement, as text and numbers.

    ``method`` and ``scale`` are the requested values; the measured run records the step size used.
    """
    budget = amplification.budget
    return {
        "view": plain_setting(engine.view),
        "clip": plain_setting(engine.clip),
        "clip_derivative": engine.clip_derivative,
        "method": method,
        "scale": plain_setting(scale),
        "directions": engine.directions,
        "sampler": amplification.sampler,
        "sample_rate": amplification.sample_rate,
        "amplification": amplification.method,
        "delta": None if budget is None else budget.total,
        "announced steps": None if budget is None else budget.steps,
    }


def identity(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the named facts about a run, with the facts about its measurement, if any."""
    return {name: facts[name] for name in names} | (facts["measurement"] or {})


def first_difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return the name of the first fact in which two measurements differ, or ``None``."""
    names = (*first, *(name for name in other if name not in first))
    return next((name for name in names if first.get(name) != other.get(name)), None)


def ledger_difference(first: Ledger, other: Ledger) -> str | None:
    """Return the difference between two runs' steps as the end of a sentence, or ``None``."""
    if first == other:
        return None
    for mine, theirs in zip(first, other, strict=False):
        name = first_difference(vars(mine), vars(theirs))
        if name is not None and name != "steps":
            return f"{name} is {vars(mine)[name]!r} in one run, {vars(theirs)[name]!r} in the other"
    return f"{first} in one run; {other} in the other"


def _digest(tensor: Tensor) -> str:
    """Return a hash of all entries of a tensor, because masks may differ in a single entry."""
    whole = tensor.detach().cpu().contiguous()
    mark = hashlib.blake2b(f"{tuple(whole.shape)} {whole.dtype}".encode(), digest_size=8)
    mark.update(whole.flatten().view(torch.uint8).numpy().tobytes())
    return mark.hexdigest()
