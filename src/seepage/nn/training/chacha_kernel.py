"""ChaCha20 and Box–Muller in one Triton kernel: eight normal numbers per cipher block.

The kernel yields the same numbers as :func:`~seepage.nn.training.secure_noise.secure_normal` on the
CPU, up to the rounding of the device's logarithm, sine and cosine.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _pair(out, place, low1, high1, low2, high2, inside):
    """Compute two normal numbers from two 64-bit words, and write them to ``out``."""
    one = ((low1.to(tl.uint64) | (high1.to(tl.uint64) << 32)) >> 11).to(tl.float64)
    two = ((low2.to(tl.uint64) | (high2.to(tl.uint64) << 32)) >> 11).to(tl.float64)
    scale = 1.1102230246251565e-16  # 2⁻⁵³
    radius = tl.sqrt(-2.0 * tl.log((one + 1.0) * scale))
    angle = 6.283185307179586 * ((two + 1.0) * scale)
    tl.store(out + place, radius * tl.cos(angle), mask=inside)
    tl.store(out + place + 1, radius * tl.sin(angle), mask=inside)


# Compiled once for all keys: by default Triton recompiles for certain values of integers.
@triton.jit(do_not_specialize=["blocks", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])
def chacha_normals(out, blocks, k0, k1, k2, k3, k4, k5, k6, k7, BLOCKS: tl.constexpr):
    """Fill ``out`` with normal numbers; each program processes ``BLOCKS`` cipher blocks."""
    index = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    inside = index < blocks
    zero = (index * 0).to(tl.uint32)
    counter, above = index.to(tl.uint32), (index >> 32).to(tl.uint32)
    s0, s1 = zero + 0x61707865, zero + 0x3320646E
    s2, s3 = zero + 0x79622D32, zero + 0x6B206574
    s4, s5 = zero + k0.to(tl.uint32), zero + k1.to(tl.uint32)
    s6, s7 = zero + k2.to(tl.uint32), zero + k3.to(tl.uint32)
    s8, s9 = zero + k4.to(tl.uint32), zero + k5.to(tl.uint32)
    s10, s11 = zero + k6.to(tl.uint32), zero + k7.to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, counter, above, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    place = index * 8
    _pair(out, place, x0 + s0, x1 + s1, x2 + s2, x3 + s3, inside)
    _pair(out, place + 2, x4 + s4, x5 + s5, x6 + s6, x7 + s7, inside)
    _pair(out, place + 4, x8 + s8, x9 + s9, x10 + s10, x11 + s11, inside)
    _pair(out, place + 6, x12 + counter, x13 + above, x14, x15, inside)
