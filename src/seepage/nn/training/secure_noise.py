"""Cryptographically secure Gaussian noise for a network's parameters, drawn on their device.

The noise is the same as that of :class:`~seepage.support.keyed_stream.KeyedStream`: ChaCha20 (RFC
8439) with a key for each step and parameter, converted to normal numbers by the Box–Muller method.
On the CPU, OpenSSL computes the cipher. On a GPU, a Triton kernel computes it (torch for CUDA
includes Triton), because the CPU cannot generate noise fast enough for a GPU. Every sum is rounded
to a grid after the noise is added (for the reason given in
:func:`~seepage.support.keyed_stream.grid_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seepage.support.keyed_stream import KeyedStream, grid_of

AddNoise = Callable[
    [str, Tensor, float], Tensor
]  # of a parameter's name, its sum and a standard deviation


def noisy(total: Tensor, deviation: float, stream: KeyedStream) -> Tensor:
    """Return a sum with Gaussian noise, rounded to the noise's grid, in the dtype of the sum."""
    if deviation == 0:
        return total.clone()
    step = grid_of(deviation)
    noise = secure_normal(tuple(total.shape), stream, total.device)
    return noise.mul_(deviation).add_(total).div_(step).round_().mul_(step).to(total.dtype)


def secure_noise(run: KeyedStream, step: int) -> AddNoise:
    """Return a function that adds noise to a step's sums, with a separate stream for each sum."""

    def add(name: str, total: Tensor, deviation: float) -> Tensor:
        return noisy(total, deviation, run.child("noise", step, name))

    return add


def quick_noise(run: KeyedStream, step: int) -> AddNoise:
    """Return a function that adds predictable noise from torch's generator, for experiments.

    Each step has one generator per device.
    """
    sources: dict[torch.device, torch.Generator] = {}

    def add(name: str, total: Tensor, deviation: float) -> Tensor:
        device = total.device
        if device not in sources:
            seed = run.child("noise", step, str(device)).number()
            sources[device] = torch.Generator(device).manual_seed(seed)
        source = sources[device]
        noise = torch.randn(total.shape, generator=source, device=device, dtype=total.dtype)
        return total + deviation * noise

    return add


def secure_normal(shape: tuple[int, ...], stream: KeyedStream, device: torch.device) -> Tensor:
    """Return standard normal numbers in float64, determined only by the stream's key."""
    kernel = _triton_kernel() if device.type == "cuda" else None
    if kernel is None:
        return torch.from_numpy(stream.standard_normal(shape)).to(device)
    count, words = math.prod(shape), 8  # normals from the 512 bits of a block of the cipher
    blocks = -(-count // words)
    out = torch.empty(blocks * words, dtype=torch.float64, device=device)
    # As numbers, not as a tensor: a copy to the device in the middle of a step would stall it.
    key = [int.from_bytes(stream.key[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
    size = 256  # blocks of the cipher for each program of the kernel
    with torch.cuda.device(device):
        kernel[(-(-blocks // size),)](out, blocks, *key, BLOCKS=size)
    return out[:count].reshape(shape)


@cache
def _triton_kernel() -> Any:
    """Return the compiled Triton kernel, or ``None`` if Triton is not installed."""
    try:
        from seepage.nn.training.chacha_kernel import chacha_normals
    except ImportError:
        return None
    return chacha_normals
