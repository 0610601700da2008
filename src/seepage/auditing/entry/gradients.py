"""``sp.leakage`` for a network: the leakage of the noisy gradient of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError
from seepage.nn.measures.gradient_leakage import GradientLeakage
from seepage.nn.measures.gradient_leakage import leakage as gradient_leakage

_NOISE = "noise_multiplier=1.0, max_grad_norm=1.0"


def leakage_of_batch(
    net: torch.nn.Module,
    X: Any,
    y: Any,
    *,
    loss: Any,
    noise: Noise | None,
    noise_multiplier: float | None,
    max_grad_norm: float | None,
    **options: Any,
) -> GradientLeakage:
    """Return the leakage of a batch's gradient, with the given noise and clipping."""
    if noise is not None and noise_multiplier is not None:
        raise InputError("noise and noise_multiplier both set the noise; give only one of them.")
    if noise is not None:
        if not isinstance(noise, Gaussian) or np.ndim(noise.sigma):
            raise InputError(
                "The noise on a gradient is Gaussian with one standard deviation; pass "
                f"noise=sp.Gaussian(sigma), or {_NOISE}."
            )
        noise_multiplier = float(noise.sigma) / (max_grad_norm or 1.0)
    if noise_multiplier is None:
        raise InputError(
            "Without noise, the gradient of a batch reveals its records; state the noise and "
            f"clipping of a private step: sp.leakage(net, X, y, {_NOISE})."
        )
    options |= {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
    if isinstance(X, Mapping) and loss is None:
        batch = X if y is None else {**X, "labels": _targets(y)}
        return gradient_leakage(net, batch, **options)
    if y is None:
        raise InputError(
            "y, the targets of the batch, is missing; pass it after X. For a Hugging Face model, "
            f"pass only the batch of its data collator: sp.leakage(model, batch, {_NOISE})."
        )
    first = next(net.parameters(), torch.zeros(0))
    x, target = _inputs(X, first), _targets(y).to(first.device)
    if target.is_floating_point():
        target = target.to(first.dtype)
    if loss is None:
        loss = "mse" if target.is_floating_point() else "cross_entropy"
    return gradient_leakage(net, loss, x, target, **options)


def _inputs(X: Any, like: torch.Tensor) -> Any:
    """Return the inputs as tensors on the network's device.

    Mappings, tuples and data frames, whose names are needed, are returned unchanged. Arrays of
    floating-point numbers get the type of the network's parameters.
    """
    if isinstance(X, Mapping):
        return dict(X)
    several = isinstance(X, tuple | list) and all(isinstance(part, torch.Tensor) for part in X)
    if several or hasattr(X, "columns") or hasattr(X, "column_names"):
        return X
    if not isinstance(X, torch.Tensor):
        X = torch.tensor(np.asarray(X.to_numpy() if hasattr(X, "to_numpy") else X))
        X = X.to(like.dtype) if X.is_floating_point() else X
    return X.to(like.device)


def _targets(y: Any) -> torch.Tensor:
    """Return the targets as a tensor; Boolean values become the classes 0 and 1."""
    target = y if isinstance(y, torch.Tensor) else torch.tensor(np.asarray(y))
    return target.long() if target.dtype == torch.bool else target
