"""Random signs that depend only on a key and a position: the same in every chunk, on every device.

A generator that counts calls would give other probes whenever the work is cut differently. Here
the sign at position ``j`` is a bit of a hash of ``(key, j)`` (the mixing function of Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", 2014), so no order of work matters.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def key_of(*parts: object) -> int:
    """Return a 64-bit key made of any printable parts: a seed, a step, a parameter's name."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def signs(key: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return independent signs, −1 or +1, of that shape, where ``like`` lives and of its type."""
    count = 1
    for size in shape:
        count *= size
    words = torch.arange((count + 63) // 64, device=like.device)
    return _unpack(_mixed(words, key))[:count].reshape(shape).to(like.dtype) * 2 - 1


def row_signs(key: int, rows: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return signs of shape ``(len(rows), *shape)`` in which each row depends on its number only.

    ``rows`` are the numbers of the records: the same record gets the same signs in any batch.
    """
    count = 1
    for size in shape:
        count *= size
    words = torch.arange((count + 63) // 64, device=like.device)
    row_keys = _mixed(rows.to(device=like.device, dtype=torch.int64), key)
    mixed = _mixed(words[None, :] + row_keys[:, None], key_of(key, "row"))
    bits = _unpack(mixed.reshape(-1)).reshape(len(rows), -1)[:, :count]
    return bits.reshape(len(rows), *shape).to(like.dtype) * 2 - 1


def _mixed(counter: Tensor, key: int) -> Tensor:
    """Return a well mixed 64-bit word for each counter; products wrap around as the hash wants."""
    z = counter * _signed(_GOLDEN) + _signed(key)
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shift right as if without sign, which torch's integers have."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word


def _unpack(words: Tensor) -> Tensor:
    """Return the 64 bits of each word in a row, through bytes so that little memory is used."""
    octets = words.contiguous().view(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=words.device)
    return ((octets[:, None] >> places) & 1).reshape(-1)
