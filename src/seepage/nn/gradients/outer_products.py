"""Per-example gradients as sums of outer products, and inner products between them.

The gradient of a weight that multiplies inputs is ``g = Σ_s l_s r_sᵀ`` over positions ``s``, with
``l`` the gradients at the outputs and ``r`` the inputs of the layer (the elements of a sequence and
the places of a convolution are positions). Inner products of two such gradients follow from Gram
matrices, ``Σ_{s,s'} (l_s·l'_s')(r_s·r'_s')``, or from the gradients themselves written out,
whichever is cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class OneHot:
    """Rows ``e_k`` of an identity matrix, known by their positions ``k``, ``(B, 1, S)``.

    Parameters
    ----------
    index
        The positions.
    size
        The number of rows of the identity.
    keep
        False where a row is left out (the padding of an embedding).
    """

    index: Tensor
    size: int
    keep: Tensor | None = None


Factor = Any  # a OneHot, or a tensor (B, blocks, positions, size)


@dataclass(frozen=True, eq=False)
class Outer:
    """``Σ_s left_s right_sᵀ`` for every example, and for every block of a grouped layer."""

    left: Factor
    right: Tensor

    def cheaper_written_out(self) -> bool:
        """Compare ``S·m·r`` with the ``S²(m + r)`` of Gram matrices; one-hot rows want these."""
        if isinstance(self.left, OneHot):
            return False
        m, (positions, r) = self.left.shape[3], self.right.shape[2:]
        return bool(positions * (m + r) > m * r)

    def written_out(self) -> Tensor:
        """Return the gradients of the examples themselves, ``(B, size of the weight)``."""
        if not isinstance(self.left, OneHot):
            return (self.left.transpose(2, 3) @ self.right).flatten(1)
        rows, index = self.right[:, 0], self.left.index[:, 0]
        if self.left.keep is not None:
            rows = rows * self.left.keep[:, 0, :, None]
        out = torch.zeros(
            len(rows), self.left.size, rows.shape[2], dtype=rows.dtype, device=rows.device
        )
        return out.scatter_add(1, index[:, :, None].expand_as(rows), rows).flatten(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``Σ_i c_i g_i`` over the examples, ``(size of the weight,)``."""
        right = self.right * weights[:, None, None, None]
        if isinstance(self.left, OneHot):
            if self.left.keep is not None:
                right = right * self.left.keep[..., None]
            rows = right.flatten(0, 2)
            out = torch.zeros(self.left.size, rows.shape[1], dtype=rows.dtype, device=rows.device)
            return out.index_add_(0, self.left.index.flatten(), rows).flatten()
        left = self.left.permute(1, 3, 0, 2).flatten(2)  # (blocks, m, examples and positions)
        return (left @ right.transpose(0, 1).flatten(1, 2)).flatten()


class Grams:
    """Gram matrices between the positions of factors, each computed once.

    The cache knows factors by their identity, so it must not outlive them.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Tensor] = {}

    def inner(self, a: Outer, b: Outer) -> Tensor:
        """Return the inner product of two sums of outer products, for every example."""
        return (self._gram(a.left, b.left) * self._gram(a.right, b.right)).flatten(1).sum(1)

    def _gram(self, a: Factor, b: Factor) -> Tensor:
        if (id(b), id(a)) in self._known:
            return self._known[id(b), id(a)].transpose(2, 3)
        key = (id(a), id(b))
        if key not in self._known:
            self._known[key] = _gram(a, b)
        return self._known[key]


def _gram(a: Factor, b: Factor) -> Tensor:
    """Return the inner products of all positions of one factor with all of another."""
    if isinstance(a, OneHot) and isinstance(b, OneHot):
        same = a.index[..., :, None] == b.index[..., None, :]
        return _kept(_kept(same, a.keep, -1), b.keep, -2)
    if isinstance(a, OneHot):
        return _gram(b, a).transpose(2, 3)
    if isinstance(b, OneHot):
        columns = b.index[:, :, None, :].expand(*a.shape[:3], b.index.shape[2])
        return _kept(torch.gather(a, 3, columns), b.keep, -2)
    if a.shape[2] == 1 and b.shape[2] == 1:
        return (a * b).sum(3, keepdim=True)
    return a @ b.transpose(2, 3)


def _kept(gram: Tensor, keep: Tensor | None, axis: int) -> Tensor:
    return gram if keep is None else gram * keep.unsqueeze(axis)
