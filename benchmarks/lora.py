"""One probe of LoRA fine-tuning at 7 and 13 billion parameters, against a plain training step.

A decoder of Llama's shape with random weights in bf16, adapters of rank 16 in float32 on the query
and value projections, under autocast; leakage about the token embeddings. Claims, at a batch of
4 × 512 tokens and 7 billion parameters:

- one probe of every record within 2.8 plain training steps, both eager (2.2 before records were
  moved in float32, at a number 68 % too high);
- with the blocks checkpointed, within 20 GiB in all;
- every record within a tenth of float32, along the same directions, and within what is stated;
- an update with every record accounted for, the clip's derivative bounded from above, by a step of
  the parameters (``"7B, conservative"``): within 2.3 plain steps, checkpointed within 3.1 plain
  steps without checkpointing.

Growing batches with checkpointing show what fits on a card of 24 GB. ``--small`` runs everything at
toy sizes, on any device, as a smoke test.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import seepage.nn as snn
from against_float32 import against_float32
from big_networks import Llama, with_adapters
from network_runs import run, table
from private_steps import GIB, Stopwatch, accounted_step, most_gib, training_step

SHAPES = {"7B": (32, 4096, 32, 11008, 32000), "13B": (40, 5120, 40, 13824, 32000)}
CARD = 24e9 / GIB
PLAIN = "plain training step"


def network(size: str, small: bool, device: torch.device) -> nn.Module:
    """Return the network with its adapters."""
    shape = (2, 32, 2, 48, 60) if small else SHAPES[size]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        net = Llama(*shape, checkpointed=False)
    torch.set_default_dtype(before)
    return with_adapters(net, ("q", "v"), rank=16)


def steps(net: nn.Module, x: Tensor, y: Tensor, clip: snn.HardClip, how: str) -> dict[str, Any]:
    """Return the steps to compare."""
    view = snn.Embedding("tokens")
    free = snn.Engine(net, "cross_entropy", clip=snn.NoClip(), view=view, method=how)
    exact = snn.Engine(net, "cross_entropy", clip=clip, view=view, method=how)
    return {
        PLAIN: training_step(net, x, y),
        "1 probe": accounted_step(free, x, y, 1, train=False),
        "DP-SGD update alone": accounted_step(exact, x, y, 0),
        "update + 1 probe, exact clipping": accounted_step(exact, x, y, 1),
    }


def measured(device: torch.device, small: bool, repeats: int, size: str) -> dict[str, Any]:
    """Measure one size, without and with checkpointing."""
    torch.manual_seed(0)
    batch, length = (2, 8) if small else (4, 512)
    how = "thin" if small else "auto"
    clip, watch = snn.HardClip(1.0), Stopwatch(device, min(repeats, 5))
    with torch.autocast(device.type, torch.bfloat16):
        net = network(size, small, device)
        tokens = net.get_submodule("tokens").num_embeddings
        drawn = torch.randint(0, tokens, (2, 16 * batch, length), device=device)
        x, y = drawn[:, :batch]
        found = watch.compare(steps(net, x, y, clip, how))
        net.checkpointed = True
        again = watch.compare(steps(net, x, y, clip, how))
        found |= {f"{name}, checkpointed": value for name, value in again.items()}
        count = sum(p.numel() for p in net.parameters())
        weights = sum(p.numel() * p.element_size() for p in net.parameters()) / GIB
        tried = device.type == "cuda" and weights < CARD
        held = largest(net, drawn, clip, how, batch) if tried else {}
        net.checkpointed = False
        free = snn.Engine(
            net, "cross_entropy", clip=snn.NoClip(), view=snn.Embedding("tokens"), method=how
        )
        apart = against_float32(free, deepcopy(net).float(), "tokens", x, y) if size == "7B" else {}
    print(f"\nLlama's shape, {count / 1e9:.2f} billion parameters, {weights:.1f} GiB, LoRA of rank")
    print(f"16 on q and v, bf16, batch {batch} × {length} tokens")
    table(found, PLAIN)
    for records, gib in held.items():
        fits = "fits" if gib <= CARD else "does not fit"
        print(f"update + 1 probe, checkpointed, batch {records} × {length}: {gib:.1f} GiB: {fits}")
    ratio = found["1 probe"]["seconds"] / found[PLAIN]["seconds"]
    peak = most_gib(found["1 probe, checkpointed"])
    claims = {"1 probe, over plain step": [ratio, 2.8, ratio <= 2.8]}
    claims["1 probe, checkpointed, peak GiB"] = [peak, 20, peak <= 20]
    return {
        "times": found,
        "parameters": count,
        "weights in GiB": weights,
        "peak GiB of update and probe, checkpointed, by records of 512 tokens": held,
        "most records on a card of 24 GB": max(
            (r for r, g in held.items() if g <= CARD), default=0
        ),
        "claims": claims | apart.pop("claims") if size == "7B" else {},
        **apart,
    }


def bounded(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure an update with every record accounted for by steps of the parameters."""
    torch.manual_seed(0)
    batch, length = (2, 8) if small else (4, 512)
    how = {"view": snn.Embedding("tokens"), "method": "parameters" if small else "auto"}
    watch = Stopwatch(device, min(repeats, 5))
    probed = "update + 1 probe, conservative"
    with torch.autocast(device.type, torch.bfloat16):
        net = network("7B", small, device)
        tokens = net.get_submodule("tokens").num_embeddings
        x, y = torch.randint(0, tokens, (2, batch, length), device=device)

        def tasks() -> dict[str, Any]:
            safe = snn.Engine(
                net, "cross_entropy", clip=snn.HardClip(1.0), clip_derivative="conservative", **how
            )
            return {
                PLAIN: training_step(net, x, y),
                "DP-SGD update alone": accounted_step(safe, x, y, 0),
                probed: accounted_step(safe, x, y, 1),
            }

        found = watch.compare(tasks())
        net.checkpointed = True
        found |= {f"{name}, checkpointed": value for name, value in watch.compare(tasks()).items()}
        net.checkpointed = False
        free = snn.Engine(net, "cross_entropy", clip=snn.NoClip(), **how)
        apart = against_float32(free, deepcopy(net).float(), "tokens", x, y, training=True)
    table(found, PLAIN)
    claims = {}
    for name, most in ((probed, 2.3), (f"{probed}, checkpointed", 3.1)):
        ratio = found[name]["seconds"] / found[PLAIN]["seconds"]
        claims[f"{name}, over plain step"] = [ratio, most, ratio <= most]
    return {"times": found, **apart, "claims": claims | apart["claims"]}


def largest(
    net: nn.Module, drawn: Tensor, clip: snn.HardClip, how: str, batch: int
) -> dict[int, float]:
    """Return the peak memory of an accounted step for some numbers of records."""
    view, peaks = snn.Embedding("tokens"), {}
    for records in (batch, 2 * batch, 4 * batch, 8 * batch):
        x, y = drawn[:, :records]
        engine = snn.Engine(net, "cross_entropy", clip=clip, view=view, method=how)
        step = accounted_step(engine, x, y, 1)
        peaks[records] = most_gib(Stopwatch(x.device, 0).compare({"step": step})["step"])
    return peaks


if __name__ == "__main__":
    parts = {size: partial(measured, size=size) for size in SHAPES} | {"7B, conservative": bounded}
    sys.exit(run("lora", __doc__.splitlines()[0], parts))
