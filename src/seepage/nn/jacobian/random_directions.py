"""Random directions of records and parameters, ``E[uuᵀ] = I``, that depend only on a key.

A sequential generator would give different probes for different chunks. Instead, the sign at
position ``j`` is a bit of a hash of ``(key, j)``, so the signs do not depend on chunks, devices,
ranks or the order of work. The hash is the mixing function of Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014.

For a wide weight ``(m, k)``, the direction is ``U = A Bᵀ/√r``, where ``A`` and ``B`` have r columns
of random signs. The entries of ``U`` are uncorrelated (``E[U_ij U_kl]`` is one if both indices
agree and zero otherwise). A product with ``U`` costs ``r(m + k)`` operations instead of ``mk`` and
needs almost no memory. Thin factors add a variance of the order of ``1/r`` for every wide weight.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seepage.nn.problem.problem import NetworkProblem

WIDE = 256  # with this many rows and columns, a weight's direction has thin factors
RANK = 31  # of a pair of thin factors; with the room for a bias each has 32 columns


def key_of(*parts: object) -> int:
    """Return a 64-bit key from printable parts, such as a seed, a step or a parameter's name."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def signs(key: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return independent signs (−1 or +1) of this shape, with the device and type of ``like``."""
    count = math.prod(shape)
    return _unpack(packed_signs(key, count, like))[:count].reshape(shape).to(like.dtype) * 2 - 1


def packed_signs(key: int, count: int, like: Tensor) -> Tensor:
    """Return the words whose bits are ``count`` signs, on the device of ``like``."""
    return _mixed(torch.arange((count + 63) // 64, device=like.device), key)


def unpacked_signs(words: Tensor, count: int) -> Tensor:
    """Return the signs in packed words as small integers, ``(count,)``."""
    return _unpack(words)[:count].to(torch.int8).mul_(2).sub_(1)


def row_signs(key: int, rows: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return signs of shape ``(len(rows), *shape)`` in which each row depends only on its number.

    ``rows`` contains the records' numbers, so that a record has the same signs in any batch.
    """
    count = math.prod(shape)
    words = torch.arange((count + 63) // 64, device=like.device)
    row_keys = _mixed(rows.to(device=like.device, dtype=torch.int64), key)
    mixed = _mixed(words[None, :] + row_keys[:, None], key_of(key, "row"))
    bits = _unpack(mixed.reshape(-1)).reshape(len(rows), -1)[:, :count]
    return bits.reshape(len(rows), *shape).to(like.dtype) * 2 - 1


def random_numbers(key: int, rows: Tensor) -> Tensor:
    """Return a random 63-bit integer for each record, given the records' numbers."""
    return _mixed(rows.to(torch.int64), key) & (2**63 - 1)


def row_coordinates(key: int, rows: Tensor, unknown: Tensor) -> Tensor:
    """Return ``√d e_j`` with ``j`` drawn uniformly among each record's ``d`` unknowns.

    ``unknown``, ``(len(rows), …)``, is true at the unknowns, and ``rows`` contains the records'
    numbers. ``E[vvᵀ] = I`` over the unknowns (Guo et al. 2022, equation 5).
    """
    flat = unknown.flatten(1)
    counts = flat.sum(1)
    words = _mixed(rows.to(device=flat.device, dtype=torch.int64), key) & (2**63 - 1)
    places = words % counts.clamp(min=1) + 1
    drawn = flat & (flat.cumsum(1) == places[:, None])
    return (drawn * counts.double().sqrt()[:, None]).reshape(unknown.shape)


def _mixed(counter: Tensor, key: int) -> Tensor:
    """Return a well-mixed 64-bit word for each counter; products wrap around by design.

    The multipliers are those of SplitMix64. Because torch's integers are signed, the multipliers
    are written as signed numbers, and right shifts are masked.
    """
    signed = key - 2**64 if key >= 2**63 else key
    z = counter * -0x61C8864680B583EB + signed
    for shift, multiplier in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        z = (z ^ ((z >> shift) & (2 ** (64 - shift) - 1))) * multiplier
    return z


def _unpack(words: Tensor) -> Tensor:
    """Return the bits of all words in one row, unpacked byte by byte to save memory."""
    octets = words.contiguous().view(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=words.device)
    return ((octets[:, None] >> places) & 1).reshape(-1)


@dataclass(frozen=True)
class Direction:
    """A direction of one parameter, viewed as a matrix."""

    # The full direction in the parameter's shape, or ``None`` if it is ``left @ rightᵀ``
    full: Tensor | None
    # The thin factors, ``(m, r + 1)`` and ``(k, r + 1)``, their last columns zero
    left: Any = None
    right: Any = None
    last: Any = None  # the last unit vector of ``r + 1``

    def dense(self, shape: torch.Size) -> Tensor:
        """Return the full direction."""
        return self.full if self.full is not None else (self.left @ self.right.T).reshape(shape)


Directions = dict[str, Direction]
Draw = Callable[[], Sequence[Directions]]


def is_wide(shape: torch.Size) -> bool:
    """Return whether a parameter is a matrix with many rows and columns."""
    return len(shape) == 2 and min(shape) >= WIDE


def random_direction(problem: NetworkProblem, *key: object, thin: bool = False) -> Directions:
    """Return a random direction of the released parameters, determined by the key.

    With ``thin``, the directions of wide weights are products of thin factors.
    """
    released = problem.released()
    wide = {name: p for name, p in released.items() if thin and is_wide(p.shape)}
    rest = {name: p for name, p in released.items() if name not in wide}
    rows = [size for p in wide.values() for size in p.shape]
    like = next(iter(released.values())).detach().new_empty(0, dtype=problem.wider)
    held = (RANK + 1) * sum(rows)
    every = signs(key_of(*key), (held + sum(p.numel() for p in rest.values()),), like)
    out: Directions = {}
    if wide:
        # Made on the device: a copy from the host would wait for all queued work.
        last = (torch.arange(RANK + 1, device=like.device) == RANK).to(like.dtype)
        # Both factors take a part of 1/√r, and end in a column of zeros as room for a bias.
        factors = (every[:held].reshape(-1, RANK + 1) * ((1 - last) * RANK**-0.25)).split(rows)
        for name, left, right in zip(wide, factors[::2], factors[1::2], strict=True):
            out[name] = Direction(None, left, right, last)
    pieces = every[held:].split([p.numel() for p in rest.values()])
    for (name, p), piece in zip(rest.items(), pieces, strict=True):
        out[name] = Direction(piece.reshape(p.shape).to(p.device, problem.wider or p.dtype))
    return out
