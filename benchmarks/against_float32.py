"""How far traces in short numbers are from float32: every record, along the same directions.

The truth shares no code with the engine but the directions: one training pass for every record by
itself at either end of a small step, in float32, its gradients whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import seepage.nn as snn
from seepage.nn.jacobian.finite_changes import StepErrors
from seepage.nn.jacobian.random_directions import key_of, row_signs

PROBES = 8
MOST = 0.10  # how far a record may be from float32


def against_float32(
    engine: snn.Engine, whole: nn.Module, module: str, x: Tensor, y: Tensor
) -> dict[str, Any]:
    """Return figures and claims about an engine without clipping, whose view is an embedding.

    ``whole`` is the same network in float32, and ``module`` its embedding.
    """
    seen = engine.step(x, y, probes=PROBES).traces.double()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    keys = [key_of(engine.seed, 0, k) for k in range(PROBES)]
    with torch.autocast(x.device.type, enabled=False):
        each = [
            [squared_change(whole, module, x, y, i, key) for key in keys] for i in range(len(y))
        ]
    torch.set_float32_matmul_precision(before)
    true = torch.tensor(each, dtype=torch.float64, device=seen.device)
    apart = (seen.mean(1) / true.mean(1) - 1).cpu()
    worst = float(apart.abs().max())
    # Gradients of wide weights are narrowed at random, which scatters from probe to probe.
    scatter = float(((seen - true).std(1) / true.mean(1)).max()) / PROBES**0.5
    stated = engine.doubt + 3 * scatter
    errors = engine.errors or StepErrors()
    print(f"over steps of {engine.scale:g}, doubt {engine.doubt:.1%}, {errors}")
    print("records against float32: " + ", ".join(f"{float(a):+.1%}" for a in apart))
    return {
        "finite step": engine.scale,
        "doubt": engine.doubt,
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
