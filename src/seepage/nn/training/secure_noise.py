"""Unpredictable Gaussian noise for a network's parameters, drawn on their device.

The numbers are those of :class:`~seepage.support.keyed_stream.KeyedStream`: ChaCha20 (RFC 8439)
under the key of a step and a parameter, turned into normals by the method of Box and Muller. On
the CPU the cipher is OpenSSL's. On an accelerator it runs there, as one Triton kernel if Triton is
installed and otherwise as tensor operations: the CPU cannot draw noise fast enough for a GPU. Every
sum is rounded to a grid after the noise is added (:func:`~seepage.support.keyed_stream.grid_of`
says why).
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

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_WORDS = 8  # 64-bit words in a block of the cipher, and normals made from them


def noisy(total: Tensor, deviation: float, stream: KeyedStream) -> Tensor:
    """Return a sum with Gaussian noise, rounded to its grid, in the sum's own type."""
    if deviation == 0:
        return total.clone()
    step = grid_of(deviation)
    noise = secure_normal(tuple(total.shape), stream, total.device)
    return noise.mul_(deviation).add_(total).div_(step).round_().mul_(step).to(total.dtype)


def secure_noise(run: KeyedStream, step: int) -> AddNoise:
    """Return a function that adds noise to the sums of a step, each from its own stream."""

    def add(name: str, total: Tensor, deviation: float) -> Tensor:
        return noisy(total, deviation, run.child("noise", step, name))

    return add


def quick_noise(run: KeyedStream, step: int) -> AddNoise:
    """Return a function that adds predictable noise from torch's generator, for experiments.

    There is one generator per step and device.
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
    """Return standard normal numbers in float64, determined by the stream's key alone."""
    count = math.prod(shape)
    if device.type == "cuda" and _triton_kernel() is not None:
        return _by_triton(count, stream, device).reshape(shape)
    if device.type == "cpu":
        words = torch.from_numpy(stream.words(count + count % 2).view("<i8").copy())
    else:
        words = chacha_words(stream.key, count + count % 2, device)
    return _box_muller(words)[:count].reshape(shape)


def _box_muller(words: Tensor) -> Tensor:
    """Return the normals of an even number of 64-bit words (int64)."""
    # The upper 53 bits; shifting a signed number copies its sign, which the mask removes.
    fractions = ((words >> 11) & ((1 << 53) - 1)).to(torch.float64).add_(1.0).mul_(2.0**-53)
    first, second = fractions.reshape(-1, 2).unbind(1)
    radius, angle = first.log().mul_(-2).sqrt_(), second * (2 * math.pi)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1).reshape(-1)


def chacha_words(key: bytes, count: int, device: torch.device) -> Tensor:
    """Return the first 64-bit words of ChaCha20 with a zero nonce, by tensor operations, (count,).

    32-bit words are held in int64, so that additions and shifts need no sign bit.
    """
    mask = (1 << 32) - 1
    blocks = -(-count // _WORDS)
    counter = torch.arange(blocks, dtype=torch.int64, device=device)
    seeds = [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    start = [torch.full_like(counter, word) for word in (*_CONSTANTS, *seeds)]
    start += [counter & mask, counter >> 32, *(torch.zeros_like(counter) for _ in range(2))]
    state = [word.clone() for word in start]

    def rotated(value: Tensor, bits: int) -> Tensor:
        return ((value << bits) | (value >> (32 - bits))) & mask

    for _ in range(10):
        for a, b, c, d in _QUARTERS:
            state[a] = (state[a] + state[b]) & mask
            state[d] = rotated(state[d] ^ state[a], 16)
            state[c] = (state[c] + state[d]) & mask
            state[b] = rotated(state[b] ^ state[c], 12)
            state[a] = (state[a] + state[b]) & mask
            state[d] = rotated(state[d] ^ state[a], 8)
            state[c] = (state[c] + state[d]) & mask
            state[b] = rotated(state[b] ^ state[c], 7)
    out = [(word + begun) & mask for word, begun in zip(state, start, strict=True)]
    pairs = [low | (high << 32) for low, high in zip(out[::2], out[1::2], strict=True)]
    return torch.stack(pairs, dim=1).reshape(-1)[:count]


def _by_triton(count: int, stream: KeyedStream, device: torch.device) -> Tensor:
    """Return the normals of a stream, with the cipher in the same kernel."""
    triton, kernel = _triton_kernel()
    blocks = -(-count // _WORDS)
    out = torch.empty(blocks * _WORDS, dtype=torch.float64, device=device)
    # As numbers, not as a tensor: a copy to the device in the middle of a step would stall it.
    key = [int.from_bytes(stream.key[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
    size = 256
    with torch.cuda.device(device):
        kernel[(triton.cdiv(blocks, size),)](out, blocks, *key, BLOCKS=size)
    return out[:count]


@cache
def _triton_kernel() -> Any:
    """Return Triton and the compiled cipher, or ``None`` where Triton is not installed."""
    try:
        import triton

        from seepage.nn.training.chacha_kernel import chacha_normals
    except ImportError:
        return None
    return triton, chacha_normals
