"""Sums and matrix products in twice the working precision, at the speed of ordinary products.

A number in twice the precision is the unevaluated sum ``high + low`` of two floats. A product of
two matrices is taken by Ozaki's scheme (Ozaki, Ogita, Oishi and Rump, 2012): each matrix is cut
into slices of so few bits that ordinary products of slices are free of rounding, wherever the
arrays live; the products are then added up, carrying along what each addition loses.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from array_api_compat import array_namespace

Array = Any

_BITS = 53
_SPLITTER = 2.0**27 + 1
_SLICES = 4  # about 84 bits below the largest entry of a row or column
_ROWS = 4096  # terms summed at a time: the more, the fewer bits a slice may have


class Double(NamedTuple):
    """An array of numbers ``high + low``, with ``low`` below the rounding of ``high``."""

    high: Array
    low: Array

    @classmethod
    def of(cls, values: Array) -> Double:
        """Return ordinary numbers in this form."""
        return cls(values, array_namespace(values).zeros_like(values))

    def transposed(self) -> Double:
        """Return the transpose of a matrix."""
        return Double(self.high.T, self.low.T)

    def __getitem__(self, which: Any) -> Double:
        return Double(self.high[which], self.low[which])

    def plus(self, other: Array | Double) -> Double:
        """Return the sum, elementwise."""
        high, low = other if isinstance(other, Double) else (other, 0.0)
        total, lost = two_sum(self.high, high)
        return _renormalised(total, lost + (self.low + low))

    def times(self, factor: Array | Double) -> Double:
        """Return the product, elementwise."""
        high, low = factor if isinstance(factor, Double) else (factor, 0.0)
        total, lost = two_product(self.high, high)
        return _renormalised(total, lost + (self.high * low + self.low * high))

    def over(self, divisor: float) -> Double:
        """Return the quotient by an ordinary number."""
        total = self.high / divisor
        back, lost = two_product(total, divisor)
        return _renormalised(total, ((self.high - back) - lost + self.low) / divisor)


_LOG2 = Double(0.6931471805599453, 2.3190468138462996e-17)
_HALVINGS, _TERMS = 9, 10  # of an exponential


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a + b`` rounded, and what the rounding lost (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return ``a · b`` rounded, and what the rounding lost (Dekker and Veltkamp)."""
    total = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return total, ((a1 * b1 - total) + a1 * b2 + a2 * b1) + a2 * b2


def exponential(x: Double) -> Double:
    """Return ``eˣ``, elementwise, to some 30 digits.

    ``x = k log 2 + 2⁹ t`` leaves a small ``t``, for which Taylor's series gives ``eᵗ − 1``;
    ``(1 + p)² − 1 = 2p + p²``, nine times, and a power of two undo the reduction.
    """
    xp = array_namespace(x.high)
    k = xp.round(x.high / _LOG2.high)
    shift = Double.of(k).times(_LOG2)
    t = x.plus(Double(-shift.high, -shift.low))
    t = Double(t.high / 2**_HALVINGS, t.low / 2**_HALVINGS)
    one = xp.ones_like(k)
    series = Double.of(one)
    for order in range(_TERMS, 1, -1):  # 1 + t/2 (1 + t/3 (…))
        series = series.times(t).over(float(order)).plus(one)
    p = series.times(t)
    for _ in range(_HALVINGS):
        p = Double(2 * p.high, 2 * p.low).plus(p.times(p))
    found, power = p.plus(one), 2.0**k
    return Double(found.high * power, found.low * power)


def product(A: Double, B: Double) -> Double:
    """Return ``A B`` for matrices ``(m, k)`` and ``(k, p)``.

    The error of an entry is about ``2⁻⁸⁰ k`` times the largest of the products it sums.
    """
    xp = array_namespace(A.high)
    A, B = (Double(*(xp.astype(part, xp.float64, copy=False) for part in M)) for M in (A, B))
    # First scale the columns of A to about one, by powers of two, and the rows of B inversely.
    sizes = xp.max(xp.abs(A.high), axis=0)
    scale = 2.0 ** xp.round(xp.log2(xp.where(sizes > 0, sizes, xp.ones_like(sizes))))
    A = Double(A.high / scale[None, :], A.low / scale[None, :])
    B = Double(B.high * scale[:, None], B.low * scale[:, None])
    total = None
    for start in range(0, A.high.shape[1], _ROWS):
        piece = slice(start, start + _ROWS)
        part = _product(A[:, piece], B[piece, :])
        total = part if total is None else total.plus(part)
    if total is None:
        raise ValueError("an empty product")
    return total


def _product(A: Double, B: Double) -> Double:
    k = A.high.shape[1]
    bits = (_BITS - math.ceil(math.log2(max(k, 2)))) // 2
    left, right = _slices(A, 1, bits), _slices(B, 0, bits)
    total = None
    for order in range(_SLICES - 1, -1, -1):  # the smallest first
        for i in range(order + 1):
            term = left[i] @ right[order - i]
            total = Double.of(term) if total is None else total.plus(term)
    return total  # type: ignore[return-value]


def _slices(A: Double, axis: int, bits: int) -> list[Array]:
    """Cut a matrix into slices of ``bits`` bits, below the largest entry along an axis."""
    xp = array_namespace(A.high)
    high, low = A
    largest = xp.max(xp.abs(high), axis=axis, keepdims=True)
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    top = xp.ceil(xp.log2(largest)) + (_BITS - bits)
    out = []
    for k in range(_SLICES):
        anchor = 2.0 ** (top - k * bits)
        cut = (high + anchor) - anchor
        out.append(cut)
        high, low = two_sum(high - cut, low)
    return out


def _halves(a: Array) -> tuple[Array, Array]:
    wide = _SPLITTER * a
    high = wide - (wide - a)
    return high, a - high


def _renormalised(high: Array, low: Array) -> Double:
    total = high + low
    return Double(total, low - (total - high))
