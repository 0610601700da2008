"""Adds a multiple of packed random signs to a parameter, in one Triton kernel.

In torch, signs are unpacked, widened and scaled before they are added, which reads and writes the
parameter's memory several times. The kernel reads the parameter and its bits once, and its numbers
are the same.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


# Compiled once for all parameters: by default Triton recompiles for certain values of integers.
@triton.jit(do_not_specialize=["start", "count"])
def add_signs(out, values, words, start, count, eta, SIZE: tl.constexpr):
    """Write ``values + eta·s`` to ``out``; the signs ``s`` are the bits from ``start`` onwards."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    at = start + place
    bit = (tl.load(words + (at >> 6), mask=inside, other=0) >> (at & 63)) & 1
    value = tl.load(values + place, mask=inside)
    tl.store(out + place, value + tl.where(bit == 1, eta, -eta), mask=inside)
