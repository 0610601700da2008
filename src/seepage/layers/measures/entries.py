"""Norms and extremes of per-example layer gradients, from their outer products where they can be.

A full layer's gradient is ``δ tᵀ``: the norms of its entries are products of norms, and its largest
and smallest entries are products of largest and smallest ones, so it is never written out. What has
to be written out (convolutions, sequences) is taken a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from seepage.nn.gradients.per_record_gradients import (
    GramMatrices,
    OneHot,
    OuterProducts,
    ParameterGradient,
)

_WRITTEN = 1 << 24  # numbers of a gradient written out at a time

NORMS: tuple[object, ...] = ("fro", 1, "inf")


def measure_norm(gradient: ParameterGradient, norm: object) -> Tensor:
    """Return, of every example, ``Σ|g_j|²`` for "fro", ``Σ|g_j|`` for 1, ``max|g_j|`` for "inf"."""
    if norm == "fro":
        return gradient.dot(gradient, GramMatrices())
    single = _single(gradient)
    if single is not None:
        left, right = (side.abs().flatten(2) for side in single)
        if norm == 1:
            return (left.sum(2) * right.sum(2)).sum(1)
        return (left.amax(2) * right.amax(2)).amax(1)
    if norm == 1:
        return _in_pieces(gradient, lambda dense: dense.abs().sum(1))
    return _in_pieces(gradient, lambda dense: dense.abs().amax(1))


def extremes(gradient: ParameterGradient) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest entry of every example's gradient."""
    single = _single(gradient)
    if single is not None:
        left, right = (side.flatten(2) for side in single)
        corners = torch.stack(
            [a * b for a in (left.amin(2), left.amax(2)) for b in (right.amin(2), right.amax(2))]
        )
        return corners.amin(dim=(0, 2)), corners.amax(dim=(0, 2))
    low = _in_pieces(gradient, lambda dense: dense.amin(1))
    return low, _in_pieces(gradient, lambda dense: dense.amax(1))


def _single(gradient: ParameterGradient) -> tuple[Tensor, Tensor] | None:
    """Return both sides of a gradient that is one outer product with one position."""
    if gradient.plain is not None or len(gradient.outers) != 1:
        return None
    outer = gradient.outers[0]
    if isinstance(outer.left, OneHot) or outer.right.shape[2] != 1:
        return None
    return outer.left, outer.right


def _in_pieces(gradient: ParameterGradient, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([reduce(dense) for dense in _written_out(gradient)])


def _written_out(gradient: ParameterGradient) -> Iterator[Tensor]:
    """Yield the gradients of a few examples at a time, ``(b, size)``."""
    if not gradient.outers:
        if gradient.plain is not None:
            yield gradient.plain
        return
    examples = len(gradient.outers[0].right)
    width = max(1, _outer_size(gradient.outers[0]))
    step = max(1, _WRITTEN // width)
    for start in range(0, examples, step):
        rows = slice(start, start + step)
        dense = sum(_rows(outer, rows).written_out() for outer in gradient.outers)
        yield dense if gradient.plain is None else dense + gradient.plain[rows]


def _outer_size(outer: OuterProducts) -> int:
    left = outer.left.size if isinstance(outer.left, OneHot) else outer.left.shape[3]
    return int(outer.right.shape[1] * left * outer.right.shape[3])


def _rows(outer: OuterProducts, rows: slice) -> OuterProducts:
    left = outer.left
    if isinstance(left, OneHot):
        keep = None if left.keep is None else left.keep[rows]
        return OuterProducts(OneHot(left.index[rows], left.size, keep), outer.right[rows])
    return OuterProducts(left[rows], outer.right[rows])
