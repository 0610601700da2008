"""How far traces in short numbers are from float32: every record, along the same directions.

The truth shares no code with the engine but the directions. For steps of the records, it is one
training pass for every record by itself at either end of a small step, in float32, its gradients
whole. For steps of the parameters, it is the slopes of the losses at both ends of a small step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import seepage.nn as snn
from seepage.nn.jacobian.finite_changes import StepErrors
from seepage.nn.jacobian.random_directions import key_of, row_signs, signs

PROBES = 8
MOST = 0.10  # how far a record may be from float32


def against_float32(
    engine: snn.Engine,
    whole: nn.Module,
    module: str | None,
    x: Tensor,
    y: Tensor,
    training: bool = False,
) -> dict[str, Any]:
    """Return figures and claims about an engine without clipping.

    ``whole`` is the same network in float32, and ``module`` its embedding if that is the view.
    ``training`` states whether the traces are those of a training step.
    """
    moves = engine.moves_parameters(x, y, training)
    seen = engine.step(x, y, probes=PROBES, update=training).traces.double()
    size, doubt, errors = engine.scale, engine.doubt, engine.errors or StepErrors()
    if moves:
        step = engine.step_of_parameters(x, y)
        size, doubt, errors = step.size, step.doubt, step.errors
    before = torch.get_float32_matmul_precision()
    convolutions, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    torch.set_float32_matmul_precision("highest")
    keys = [key_of(engine.seed, 0, k) for k in range(PROBES)]
    with torch.autocast(x.device.type, enabled=False):
        if moves:
            true = torch.stack([squared_pulls(whole, module, x, y, key) for key in keys], 1)
        else:
            each = [
                [squared_change(whole, module, x, y, i, key) for key in keys] for i in range(len(y))
            ]
            true = torch.tensor(each, dtype=torch.float64, device=seen.device)
    torch.set_float32_matmul_precision(before)
    torch.backends.cudnn.allow_tf32 = convolutions
    apart = (seen.mean(1) / true.mean(1) - 1).cpu()
    worst = float(apart.abs().max())
    # Narrowed gradients and one-sided steps scatter from probe to probe.
    scatter = float(((seen - true).std(1) / true.mean(1)).max()) / PROBES**0.5
    stated = doubt + 3 * scatter
    of = "the parameters" if moves else "the records"
    print(f"over steps of {of} by {size:g}, doubt {doubt:.1%}, {errors}")
    print("records against float32: " + ", ".join(f"{float(a):+.1%}" for a in apart))
    return {
        "moved": of,
        "finite step": size,
        "doubt": doubt,
        "share of rounding": errors.rounding,
        "curvature": errors.curvature,
        "records against float32": apart.tolist(),
        "standard error of a record's probes": scatter,
        "claims": {
            "worst record against float32": [worst, MOST, worst <= MOST],
            "worst record within doubt and three errors": [worst, stated, worst <= stated],
        },
    }


def squared_change(
    net: nn.Module, module: str, x: Tensor, y: Tensor, i: int, key: int, h: float | None = None
) -> float:
    """Return ``‖g(z + hv) − g(z − hv)‖²/4h²`` of one record, by default over a small step."""
    table = net.get_submodule(module)
    z = table(x[i : i + 1]).detach()
    v = row_signs(key, torch.tensor([i]), tuple(z.shape[1:]), z)
    h = 5e-4 * float(z.square().mean().sqrt()) if h is None else h
    released = [p for p in net.parameters() if p.requires_grad]

    def gradient(move: Tensor) -> tuple[Tensor, ...]:
        handle = table.register_forward_hook(lambda m, given, out: out + move)
        loss = functional.cross_entropy(net(x[i : i + 1]).flatten(0, 1), y[i])
        found = torch.autograd.grad(loss, released)
        handle.remove()
        return found

    ahead, behind = gradient(h * v), gradient(-h * v)
    parts = [(a - b).double().square().sum() for a, b in zip(ahead, behind, strict=True)]
    return float(torch.stack(parts).sum()) / (2 * h) ** 2


def squared_pulls(
    net: nn.Module, module: str | None, x: Tensor, y: Tensor, key: int, share: float = 3e-3
) -> Tensor:
    """Return ``‖∇_z ℓ_i(θ + ηu) − ∇_z ℓ_i(θ − ηu)‖²/4η²`` of every record, over a small step.

    ``η`` is a ``share`` of the size of the released parameters.
    """
    released = [p for p in net.parameters() if p.requires_grad]
    sizes = [p.numel() for p in released]
    u = signs(key, (sum(sizes),), released[0]).split(sizes)
    copies = [p.detach().clone() for p in released]
    squares = sum(float(p.detach().double().square().sum()) for p in released)
    eta = share * (squares / sum(sizes)) ** 0.5

    def slopes(step: float) -> Tensor:
        with torch.no_grad():
            for p, own, along in zip(released, copies, u, strict=True):
                p.copy_(own + step * along.reshape(p.shape))
        if module is None:
            z = x.detach().clone().requires_grad_()
            total = functional.cross_entropy(net(z), y, reduction="sum")
            return torch.autograd.grad(total, z)[0].double()
        shifts: list[Tensor] = []

        def shifted(_: nn.Module, given: Any, out: Tensor) -> Tensor:
            shifts.append(torch.zeros_like(out).requires_grad_())
            return out + shifts[0]

        handle = net.get_submodule(module).register_forward_hook(shifted)
        total = functional.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum")
        handle.remove()
        return torch.autograd.grad(total / y[0].numel(), shifts[0])[0].double()

    change = (slopes(eta) - slopes(-eta)) / (2 * eta)
    with torch.no_grad():
        for p, own in zip(released, copies, strict=True):
            p.copy_(own)
    return change.flatten(1).square().sum(1)
