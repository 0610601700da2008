"""The cost of unpredictable noise: private steps with ChaCha20 and with torch's noise.

Claim: at most 1.3 times the step with torch's generator (one per step, for all parameters), for
paper 004's MNIST network on a CPU (batch 200) and for the update of a transformer with 124 M
parameters on an accelerator.
The step is that of :class:`PrivateSGD` with one probe: clipped gradients, their leakage, noise on
the sum, and a change of the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import seepage.nn as snn
from big_networks import gpt_batch
from network_runs import images, run, table
from private_steps import Stopwatch
from reproduction.private_sgd.networks import mnist_cnn
from seepage.nn.training.secure_noise import AddNoise, quick_noise, secure_noise
from seepage.support.keyed_stream import KeyedStream

LIMIT = 1.3
NoiseOfStep = Callable[[KeyedStream, int], AddNoise]


def private_step(
    engine: snn.Engine, x: Tensor, y: Tensor, noise: NoiseOfStep
) -> Callable[[], None]:
    """Return a step of private training with noise of one kind."""
    run_key = KeyedStream.fresh()
    step = 0

    def take() -> None:
        nonlocal step
        step += 1
        gradient = engine.step(x, y, probes=1, key=step, update=True).gradient
        assert gradient is not None
        add = noise(run_key, step)
        for name, p in engine.net.named_parameters():
            p.data.add_(add(name, gradient[name], 1.0), alpha=-1e-6 / len(y))

    return take


def compared(engine: snn.Engine, x: Tensor, y: Tensor, repeats: int) -> dict[str, Any]:
    """Time both kinds of step in turns, and both kinds of noise by themselves."""
    zeros = {name: torch.zeros_like(p) for name, p in engine.net.named_parameters()}

    def alone(noise: NoiseOfStep) -> Callable[[], None]:
        def draw() -> None:
            add = noise(KeyedStream.of_seed(0), 0)
            for name, zero in zeros.items():
                add(name, zero, 1.0)

        return draw

    found = Stopwatch(x.device, repeats).compare(
        {
            "private step, torch's noise": private_step(engine, x, y, quick_noise),
            "private step, ChaCha20": private_step(engine, x, y, secure_noise),
            "torch's noise alone": alone(quick_noise),
            "ChaCha20 noise alone": alone(secure_noise),
        }
    )
    count = sum(zero.numel() for zero in zeros.values())
    print(f"\n{count:,} parameters")
    table(found, "private step, torch's noise")
    plain, secure = (
        found[f"private step, {kind}"]["seconds"] for kind in ("torch's noise", "ChaCha20")
    )
    ratio = secure / plain
    return {
        "times": found,
        "parameters": count,
        "claims": {"step with ChaCha20 over torch's": [ratio, LIMIT, ratio <= LIMIT]},
    }


def mnist(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure the network of paper 004, Table 1."""
    torch.manual_seed(0)
    x, y, _ = images(20 if small else 200)
    engine = snn.Engine(mnist_cnn().to(device), "cross_entropy", clip=snn.HardClip(1.0))
    return compared(engine, x.to(device), y.to(device), repeats)


def text(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure a transformer of GPT-2's shape, batch 16, sequence 256."""
    _, net, x, y = gpt_batch(device, small)
    engine = snn.Engine(net, "cross_entropy", clip=snn.HardClip(1.0), view=snn.Embedding("tokens"))
    return compared(engine, x, y, repeats)


if __name__ == "__main__":
    sys.exit(run("release-noise", __doc__.splitlines()[0], {"mnist": mnist, "124M": text}))
