"""Sums and matrix products in twice the working precision, built from ordinary products.

A number in twice the working precision is the unevaluated sum ``high + low`` of two floats. Matrix
products use Ozaki's scheme (Ozaki, Ogita, Oishi and Rump, 2012). Each matrix is divided into slices
with so few bits that products of slices are exact in ordinary arithmetic, on any device. The
products are then summed together with their rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

Array = Any

EPS = 2.0**-52  # the rounding of a float: the distance from 1 to the next
_BITS = 53  # of the significand of a double


@dataclass(frozen=True)
class Double:
    """An array of numbers ``high + low``, with ``low`` below the rounding error of ``high``."""

    high: Array
    low: Array

    def __iter__(self) -> Iterator[Array]:
        yield from (self.high, self.low)

    @classmethod
    def of(cls, values: Array) -> Double:
        """Return ordinary numbers in twice the working precision."""
        return cls(values, array_namespace(values).zeros_like(values))

    def each(self, change: Callable[[Array], Array]) -> Double:
        """Return a copy with the same exact operation applied to both parts."""
        return Double(change(self.high), change(self.low))

    def __getitem__(self, which: Any) -> Double:
        return self.each(lambda part: part[which])

    def __neg__(self) -> Double:
        return self.each(lambda part: -part)

    def __add__(self, other: Array | Double) -> Double:
        high, low = other if isinstance(other, Double) else (other, 0.0)
        total, lost = two_sum(self.high, high)
        return _renormalised(total, lost + (self.low + low))

    def __mul__(self, factor: Array | Double) -> Double:
        high, low = factor if isinstance(factor, Double) else (factor, 0.0)
        total, lost = two_product(self.high, high)
        return _renormalised(total, lost + (self.high * low + self.low * high))

    def __truediv__(self, divisor: float) -> Double:
        total = self.high / divisor
        back, lost = two_product(total, divisor)
        return _renormalised(total, ((self.high - back) - lost + self.low) / divisor)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a + b`` rounded, and its rounding error (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a · b`` rounded, and its rounding error (Dekker and Veltkamp)."""
    total = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return total, ((a1 * b1 - total) + a1 * b2 + a2 * b1) + a2 * b2


def exponential(x: Double) -> Double:
    """Return ``eˣ``, elementwise, to about 30 digits.

    ``x = k log 2 + 2⁹ t`` leaves a small ``t``, for which a Taylor series gives ``eᵗ − 1``. Nine
    applications of ``(1 + p)² − 1 = 2p + p²`` and a power of two reverse the reduction.
    """
    xp = array_namespace(x.high)
    log2, halvings = Double(0.6931471805599453, 2.3190468138462996e-17), 9
    k = xp.round(x.high / log2.high)
    t = (x + -(Double.of(k) * log2)).each(lambda part: part / 2**halvings)
    series = one = Double.of(xp.ones_like(k))
    for order in range(10, 1, -1):  # 1 + t/2 (1 + t/3 (…)), to t¹⁰/10!
        series = series * t / float(order) + one
    p = series * t
    for _ in range(halvings):
        p = p.each(lambda part: 2 * part) + p * p
    power = 2.0**k
    return (p + one).each(lambda part: part * power)


def product(A: Double, B: Double) -> Double:
    """Return ``A B`` for matrices ``(m, k)`` and ``(k, p)``.

    The error of an entry is about ``2⁻⁸⁰ k`` times the largest product in its sum.
    """
    xp = array_namespace(A.high)
    A, B = (M.each(lambda part: xp.astype(part, xp.float64, copy=False)) for M in (A, B))
    # First scale the columns of A to about one, by powers of two, and the rows of B inversely.
    sizes = xp.max(xp.abs(A.high), axis=0)
    scale = 2.0 ** xp.round(xp.log2(xp.where(sizes > 0, sizes, xp.ones_like(sizes))))
    A, B = A.each(lambda part: part / scale[None, :]), B.each(lambda part: part * scale[:, None])
    total = None
    step = 4096  # terms summed at a time: the more, the fewer bits a slice may have
    for start in range(0, A.high.shape[1], step):
        piece = slice(start, start + step)
        part = _product(A[:, piece], B[piece, :])
        total = part if total is None else total + part
    if total is None:
        raise ValueError("an empty product")
    return total


def _product(A: Double, B: Double) -> Double:
    k = A.high.shape[1]
    bits = (_BITS - math.ceil(math.log2(max(k, 2)))) // 2
    left, right = _slices(A, 1, bits), _slices(B, 0, bits)
    pairs = [(i, order - i) for order in range(len(left)) for i in range(order + 1)]
    terms = (left[i] @ right[j] for i, j in reversed(pairs))  # the smallest first
    return sum(terms, Double.of(next(terms)))


def _slices(A: Double, axis: int, bits: int) -> list[Array]:
    """Write a matrix as a sum of slices of ``bits`` bits each, the most significant bits first."""
    xp = array_namespace(A.high)
    high, low = A
    largest = xp.max(xp.abs(high), axis=axis, keepdims=True)
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    top = xp.ceil(xp.log2(largest)) + (_BITS - bits)
    out = []
    for k in range(4):  # about 84 bits below the largest entry of a row or column
        anchor = 2.0 ** (top - k * bits)
        cut = (high + anchor) - anchor
        out.append(cut)
        high, low = two_sum(high - cut, low)
    return out


def _halves(a: Array) -> tuple[Array, Array]:
    wide = (2.0**27 + 1) * a
    high = wide - (wide - a)
    return high, a - high


def _renormalised(high: Array, low: Array) -> Double:
    total = high + low
    return Double(total, low - (total - high))
