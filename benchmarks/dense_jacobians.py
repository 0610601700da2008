"""Full Jacobians of a network's gradients, formed in the usual ways.

The gradient of one sample's loss has as many entries as the network has parameters; its Jacobian
over the soft target has one column per class, over the input one per pixel. Reverse mode computes
it row by row (``torch.autograd.functional.jacobian``, ``torch.func.jacrev``), forward mode column
by column (``torch.func.jacfwd``). What would take hours is timed on a few rows or columns of one
sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jvp, vmap

from measuring import seconds
from seepage.layers.layer_parameters import layer_parameters

ROWS = 4  # of each parameter's part of a Jacobian, taken one by one
TOGETHER = 16  # rows or columns at once


def gradient_of(net: nn.Module, parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> dict:
    """Return the gradient of one sample's loss, as a function that can be differentiated."""

    def loss(weights: dict[str, Tensor]) -> Tensor:
        output = functional_call(net, weights, (x[None],))
        return -(target * torch.log_softmax(output[0], -1)).sum()

    return grad(loss)(parameters)


def forward_mode(
    net: nn.Module, x: Tensor, targets: Tensor, norm: object, together: bool = False
) -> Tensor:
    """Return every layer's sensitivity to the target from whole Jacobians, ``(n, layers)``.

    ``together`` takes eight samples at once with ``vmap``; otherwise they are taken one by one.
    """
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    layout = layer_parameters(net)

    def one(sample: Tensor, target: Tensor) -> Tensor:
        def gradient(soft: Tensor) -> dict:
            return gradient_of(net, parameters, sample, soft)

        J, g = jacfwd(gradient)(target), gradient(target)
        out = []
        for names in layout.values():
            flat = torch.cat([g[name].flatten() for name in names])
            jacobian = torch.cat([J[name].flatten(0, -2) for name in names])
            out.append(_norm(jacobian, norm) / (flat.max() - flat.min()))
        return torch.stack(out)

    if together:
        return vmap(one, chunk_size=8)(x, targets)
    return torch.stack([one(a, b) for a, b in zip(x, targets, strict=True)])


def _norm(jacobian: Tensor, norm: object) -> Tensor:
    if norm == "fro":
        return jacobian.square().sum().sqrt() / math.sqrt(len(jacobian))
    return jacobian.abs().sum() / len(jacobian) if norm == 1 else jacobian.abs().amax()


def reverse_mode(net: nn.Module, x: Tensor, target: Tensor, together: bool) -> float:
    """Return the seconds that all rows of one sample's Jacobian over the target would take.

    Rows are taken one by one, as ``torch.autograd.functional.jacobian`` does, or a few at once, as
    ``torch.func.jacrev`` does with a ``chunk_size`` (all at once, the unit vectors alone would fill
    terabytes).
    """
    soft = target.clone().requires_grad_()
    loss = -(soft * torch.log_softmax(net(x[None])[0], -1)).sum()
    gradient = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    total = 0.0
    for part in gradient:
        count = min(TOGETHER if together else ROWS, part.numel())
        rows = torch.linspace(0, part.numel() - 1, count).long()
        spent = seconds(lambda p=part, r=rows: _rows(p.flatten(), soft, r, together), repeats=2)
        total += spent / count * part.numel()
    return total


def _rows(entries: Tensor, soft: Tensor, rows: Tensor, together: bool) -> None:
    if together:
        basis = torch.zeros(len(rows), len(entries)).scatter_(1, rows[:, None], 1.0)
        torch.autograd.grad(entries, soft, basis, retain_graph=True, is_grads_batched=True)
        return
    for k in rows.tolist():
        torch.autograd.grad(entries[k], soft, retain_graph=True)


def columns_over_the_input(net: nn.Module, x: Tensor, target: Tensor) -> float:
    """Return the least seconds of one column of one sample's Jacobian over the input."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    basis = torch.eye(TOGETHER, x.numel()).reshape(TOGETHER, *x.shape)

    def column(direction: Tensor) -> dict:
        return jvp(lambda z: gradient_of(net, parameters, z, target), (x,), (direction,))[1]

    loop = seconds(lambda: [column(v) for v in basis[:ROWS]], repeats=2) / ROWS
    at_once = seconds(lambda: vmap(column)(basis), repeats=2) / TOGETHER
    return min(loop, at_once)
