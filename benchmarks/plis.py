"""PLIS of a batch, pixel by pixel, against a plain training step of the same run.

Claims, ratios measured in one run: privacy loss and PLIS of every record of a batch, smoothly
clipped, cost

- for the MNIST network of paper 004 at batch 200, on two cores, at most 4 plain training steps;
- on an accelerator (``--device cuda``) in float32, at most 4 for WideResNet-16-4 at batch 1,024 and
  for GPT-2's shape, about the token embeddings;
- in TF32 (``--precision high``), at most 3.5 for GPT-2's shape at 124 million parameters (batch 16)
  and 3.7 at 1.3 billion (batch 8). For the WideResNet, whose convolutions gain less in the double
  backward pass than in a plain step, at most 6.

A breakdown shows where the time goes: the passes to the gradients at all outputs, the norms of the
per-record gradients, and the double-backward pass to the records. ``--small`` runs everything at
toy sizes, on any device, as a smoke test. Figures are written to ``benchmarks/results/``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import seepage.nn as snn
from big_networks import GPT_SIZES, gpt_batch, wide_batch
from network_runs import images, run, table
from private_steps import Stopwatch, training_step
from reproduction.private_sgd.networks import mnist_cnn
from seepage.nn.gradients.norms import squared_norms
from seepage.nn.problem.views import View, rows_of
from seepage.nn.susceptibility.plis import susceptibility

LIMIT = 4.0
TF32_LIMITS = {"wide": 6.0, "124M": 3.5, "1.3B": 3.7}
THRESHOLD, NOISE = 1.0, 1.0


class Parts:
    """The parts of one radial pullback, timed one by one."""

    def __init__(self, engine: snn.Engine, x: Tensor, y: Tensor, device: torch.device) -> None:
        self.engine, self.x, self.y, self.device = engine, x, y, device
        self.network = engine._validator.watched(x, y)
        self.spent: dict[str, float] = {}

    def run(self, size: int) -> None:
        """Process the batch once, ``size`` records at a time."""
        self.spent = dict.fromkeys(("to all outputs", "norms", "back to the records"), 0.0)
        for start in range(0, len(self.y), size):
            self._chunk(slice(start, start + size))

    def _chunk(self, rows: slice) -> None:
        batch = self.engine.problem.batch(rows_of(self.x, rows), self.y[rows])
        z = batch.z.detach().requires_grad_()
        with torch.enable_grad():
            kept = [
                self._timed(
                    "to all outputs", lambda: self.network.differentiable_terms(batch, z)[1]
                )
            ]
            squared = self._timed("norms", lambda: squared_norms(kept.pop()))
            self._timed("back to the records", lambda: torch.autograd.grad(squared.sum() / 2, z))

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        self._wait()
        start = time.perf_counter()
        found = work()
        self._wait()
        self.spent[name] += time.perf_counter() - start
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(
    title: str,
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    view: View,
    device: torch.device,
    repeats: int,
    size: str = "",
) -> dict[str, Any]:
    """Compare PLIS with a plain step for one network, and print where its time goes."""
    short = device.type == "cuda" and torch.get_float32_matmul_precision() == "high"
    limit = TF32_LIMITS.get(size, LIMIT) if short else LIMIT
    clip = snn.SmoothClip(THRESHOLD)
    engine = snn.Engine(net, "cross_entropy", clip=clip, view=view)

    def pull() -> Tensor:
        found = susceptibility(engine, x, y, NOISE * THRESHOLD)
        return found.values

    def whole() -> Tensor:
        found = snn.plis(
            net,
            "cross_entropy",
            x,
            y,
            noise_multiplier=NOISE,
            max_grad_norm=THRESHOLD,
            clip="smooth",
            view=view,
        )
        return found.values

    found = Stopwatch(device, repeats).compare(
        {
            "plain training step": training_step(net, x, y),
            "norms of the gradients alone": lambda: engine.norms(x, y),
            "privacy loss and PLIS": pull,
            "the same, with a first look at the network": whole,
        }
    )
    count = sum(p.numel() for p in net.parameters())
    print(f"\n{title}, {count / 1e6:.2f} M parameters, batch {len(y)}")
    table(found, "plain training step")
    base = found["plain training step"]["seconds"]
    parts = Parts(engine, x, y, device)
    size = engine.chunks.step(len(y), 6 * parts.network.bytes_per_record, device)
    for _ in range(3):  # the last of them counts
        parts.run(size)
    for name, seconds in parts.spent.items():
        print(f"  {name}: {seconds:.4f} s, {seconds / base:.2f} plain steps")
    print(f"  ({size} records at a time)")
    ratio = found["privacy loss and PLIS"]["seconds"] / base
    return {
        "times": found,
        "parts": parts.spent,
        "records at a time": size,
        "parameters": count,
        "float32 products": torch.get_float32_matmul_precision(),
        "claims": {"PLIS over a plain step": [ratio, limit, ratio <= limit]},
    }


def mnist(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure the network of paper 004, Table 1."""
    torch.manual_seed(0)
    x, y, source = images(20 if small else 200)
    net = mnist_cnn().to(device)
    title = f"MNIST network of paper 004, {source}"
    return measure(title, net, x.to(device), y.to(device), snn.Input(), device, repeats)


def wide(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure WideResNet-16-4 with GroupNorm."""
    return measure(*wide_batch(device, small), snn.Input(), device, repeats, "wide")


def text(device: torch.device, small: bool, repeats: int, size: str) -> dict[str, Any]:
    """Measure a transformer of GPT-2's shape with respect to its token embeddings."""
    view = snn.Embedding("tokens")
    return measure(*gpt_batch(device, small, size), view, device, repeats, size)


if __name__ == "__main__":
    parts = {"mnist": mnist, "wide": wide} | {name: partial(text, size=name) for name in GPT_SIZES}
    sys.exit(run("plis", __doc__.splitlines()[0], parts))
