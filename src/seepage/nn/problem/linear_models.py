"""Fitted linear models as networks of one layer, so that their gradients are measured alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.errors import InputError
from seepage.nn.problem.problem import Loss, cross_entropy
from seepage.tables.source import Table, as_numpy, check_length, read_table


def as_network(model: Any, X: Any, y: Any) -> tuple[nn.Module, Loss, Table, Tensor, Tensor]:
    """Return network, loss, table, inputs and targets of a fitted linear model, in float64.

    The released gradient of a record is that of its own loss, ``∂ℓ(wᵀx + w₀, y)/∂(w, w₀)``; the
    penalty of the model is no record's and stays out.
    """
    from seepage.glm.adapters.describe import describe
    from seepage.glm.losses.families import Categorical

    table = read_table(X)
    check_length(y, table, "y")
    found = describe(model, table, y)
    if found.sample_weight is not None:
        raise InputError(
            "The model was fitted with sample or class weights, which scale the gradients of its "
            "records; PLIS of weighted gradients needs a torch module and a loss that weighs them."
        )
    coef = np.atleast_2d(as_numpy(found.coef).T)
    net = nn.Linear(coef.shape[1], coef.shape[0], bias=found.intercept is not None).double()
    with torch.no_grad():
        net.weight.copy_(torch.as_tensor(coef))
        if found.intercept is not None:
            net.bias.copy_(torch.as_tensor(np.atleast_1d(as_numpy(found.intercept))))
    loss = cross_entropy if isinstance(found.family, Categorical) else _of_margin(found.family)
    # Copies, since arrays of data frames may not be written to.
    x = torch.tensor(as_numpy(table.values), dtype=torch.float64)
    target = torch.tensor(as_numpy(found.target), dtype=torch.float64)
    return net, loss, table, x, target


def _of_margin(family: Any) -> Loss:
    """Return the loss of a family of one margin."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if family.name == "bernoulli":  # smooth at zero too, where the family's formula has a kink
            return functional.binary_cross_entropy_with_logits(
                output[:, 0], target, reduction="none"
            )
        found: Tensor = family.loss(output[:, 0], target)
        return found

    return loss
