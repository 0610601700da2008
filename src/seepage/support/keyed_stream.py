"""Generates unpredictable random numbers by ChaCha20 from a 256-bit key and the stream's name.

Noise protects a release only if nobody can reproduce it, which general-purpose generators do not
ensure. The CPU generator of torch uses only 32 bits of any seed, so brute force can find the noise
of a training step. The state of PCG64 or the Mersenne Twister can be computed from its output. The
streams in this module use ChaCha20 (RFC 8439), for which no practical prediction without the key is
known. An interrupted run can resume with the same numbers, since they depend only on the key and
the name.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets

import numpy as np

KEY_BYTES = 32  # ChaCha20's 256 bits


def grid_of(deviation: float) -> float:
    """Return the step of the grid to which a noisy number is rounded.

    The step is the largest power of two up to 2⁻¹² of the noise's ``deviation``. Without rounding,
    the last digits of a noisy floating-point number depend on the number without noise and would
    leak it (Mironov 2012). The variance of the rounding error is at most 5e-9 times that of the
    noise.

    Examples
    --------
    >>> from seepage.support.keyed_stream import grid_of
    >>> grid_of(1.0) * 4096, grid_of(0.75) * 4096
    (1.0, 0.5)
    """
    return math.ldexp(1.0, math.floor(math.log2(deviation)) - 12)


class KeyedStream:
    """Random numbers that are determined by a secret key of 32 bytes.

    Examples
    --------
    >>> from seepage.support.keyed_stream import KeyedStream
    >>> run = KeyedStream.fresh()
    >>> first, again = (run.child("noise", 7).standard_normal(5) for _ in range(2))
    >>> bool((first == again).all()), bool((first == run.standard_normal(5)).all())
    (True, False)
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key must have {KEY_BYTES} bytes, not {len(key)}")
        self.key = key

    @classmethod
    def fresh(cls) -> KeyedStream:
        """Return a stream with a new key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of_seed(cls, seed: int) -> KeyedStream:
        """Return the stream of a seed of any length; do not use it for releases."""
        return cls(hashlib.blake2b(str(int(seed)).encode(), digest_size=KEY_BYTES).digest())

    def child(self, *name: str | int) -> KeyedStream:
        """Return the stream with this name; its key is a keyed hash (BLAKE2b) of the name.

        Streams with different names are computationally independent, and no stream reveals the key.
        """
        named = json.dumps(name).encode()
        return KeyedStream(hashlib.blake2b(named, key=self.key, digest_size=KEY_BYTES).digest())

    def number(self) -> int:
        """Return 63 bits of the stream, as a seed for generators with seeds of limited size."""
        return int(self.words(1)[0] >> np.uint64(1))

    def fingerprint(self) -> str:
        """Return an identifier of this stream that reveals none of its numbers."""
        return self.child("fingerprint").key.hex()[:16]

    def words(self, count: int) -> np.ndarray:
        """Return the first ``count`` 64-bit words of the stream, as unsigned integers."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        # Block counter and nonce are zero: every stream has a key of its own.
        cipher = Cipher(algorithms.ChaCha20(self.key, bytes(16)), mode=None).encryptor()
        return np.frombuffer(cipher.update(bytes(8 * count)), dtype="<u8")

    def uniform(self, count: int) -> np.ndarray:
        """Return the first ``count`` numbers as fractions in (0, 1], multiples of 2⁻⁵³."""
        return ((self.words(count) >> np.uint64(11)) + 1.0) * 2.0**-53

    # The next two have the names that NumPy's generators give them, so that either can be used.

    def standard_normal(self, size: int | tuple[int, ...]) -> np.ndarray:
        """Return standard normal numbers, computed by the Box–Muller method."""
        count = int(np.prod(size))
        pairs = self.uniform(count + count % 2).reshape(-1, 2)
        radius, angle = np.sqrt(-2 * np.log(pairs[:, 0])), 2 * math.pi * pairs[:, 1]
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return both.reshape(-1)[:count].reshape(size)

    def laplace(self, *, size: int | tuple[int, ...]) -> np.ndarray:
        """Return Laplace numbers of scale one: exponential numbers with a random sign."""
        count = int(np.prod(size))
        sizes, signs = self.words(2 * count).reshape(2, count)
        exponential = -np.log(((sizes >> np.uint64(11)) + 1.0) * 2.0**-53)
        signed = np.where(signs >> np.uint64(63), exponential, -exponential)
        return np.asarray(signed).reshape(size)
