"""Represents a parameter's per-record gradients as sums of terms, one term per use.

The gradient of a weight that multiplies inputs is ``g = Σ_s l_s r_sᵀ`` over positions ``s``, where
``l`` are the gradients at the layer's outputs and ``r`` its inputs. Positions are the elements of a
sequence or the places of a convolution. Inner products of two gradients follow from Gram matrices,
``Σ_{s,s'} (l_s·l'_s')(r_s·r'_s')``, or from the full gradients, whichever is cheaper.

A term is multilinear in a few tensors (the inputs of a layer, the gradients at its outputs). The
tangent of a term is therefore the sum of the terms in which one tensor is replaced by its tangent,
so no layer needs a separate rule for tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor

Key = tuple[str, int]  # a parameter, and its first row if a layer uses only some


@dataclass(frozen=True, eq=False)
class OneHot:
    """Rows ``e_k`` of an identity matrix, stored as their positions ``k``, ``(B, 1, S)``."""

    index: Tensor  # the positions
    size: int  # the number of rows of the identity
    keep: Tensor | None = None  # false where a row is left out (the padding of an embedding)

    def first_half(self) -> OneHot:
        """Return the rows that belong to the first half of the records."""
        some = slice(len(self.index) // 2)
        return OneHot(self.index[some], self.size, None if self.keep is None else self.keep[some])


Factor = Any  # a OneHot, or a tensor (B, blocks, positions, size)


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """The sum ``Σ_s left_s right_sᵀ`` for every record and every block of a grouped layer."""

    left: Factor
    right: Tensor

    def written_out(self) -> Tensor:
        """Return the full gradient of every record, ``(B, size of the weight)``."""
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
        """Return ``Σ_i c_i g_i`` over the records, ``(size of the weight,)``."""
        right = self.right * weights.to(self.right.dtype)[:, None, None, None]
        if isinstance(self.left, OneHot):
            if self.left.keep is not None:
                right = right * self.left.keep[..., None]
            rows = right.flatten(0, 2)
            out = torch.zeros(self.left.size, rows.shape[1], dtype=rows.dtype, device=rows.device)
            return out.index_add_(0, self.left.index.flatten(), rows).flatten()
        left = self.left.permute(1, 3, 0, 2).flatten(2)  # (blocks, m, records and positions)
        return (left @ right.transpose(0, 1).flatten(1, 2)).flatten()


class GramMatrices(dict[tuple[int, int], Tensor]):
    """Gram matrices between the positions of two factors; each matrix is computed once.

    The cache is keyed by the factors' ``id``, so it must be discarded before the factors are.
    """

    def inner(self, a: OuterProducts, b: OuterProducts) -> Tensor:
        """Return the inner product of two sums of outer products, for every record."""
        return summed_products(self.between(a.left, b.left), self.between(a.right, b.right))

    def between(self, a: Factor, b: Factor) -> Tensor:
        """Return the inner products of all positions of one factor with those of another."""
        if (id(b), id(a)) in self:
            return self[id(b), id(a)].transpose(2, 3)
        key = (id(a), id(b))
        if key in self:
            return self[key]
        if isinstance(a, OneHot) and isinstance(b, OneHot):
            same = a.index[..., :, None] == b.index[..., None, :]
            self[key] = _kept(_kept(same, a.keep, -1), b.keep, -2)
        elif isinstance(a, OneHot):
            self[key] = self.between(b, a).transpose(2, 3)
        elif isinstance(b, OneHot):
            columns = b.index[:, :, None, :].expand(*a.shape[:3], b.index.shape[2])
            self[key] = _kept(torch.gather(a, 3, columns), b.keep, -2)
        elif a.shape[2] == 1 and b.shape[2] == 1:
            self[key] = (a * b).sum(3, keepdim=True)
        else:
            self[key] = a @ b.transpose(2, 3)
        return self[key]


def _kept(gram: Tensor, keep: Tensor | None, axis: int) -> Tensor:
    return gram if keep is None else gram * keep.unsqueeze(axis)


RecordGradients: TypeAlias = OuterProducts | Tensor  # of all records; plain ones are (B, …)


@dataclass(frozen=True)
class GradientTerm:
    """The contribution of one use of a parameter to its per-record gradient."""

    key: Key  # which parameter
    tensors: tuple[Tensor, ...]  # the tensors it is made of
    # Joins them to the gradient of every record, multilinearly; ``None`` for a single tensor that
    # is the gradient itself
    join: Callable[..., RecordGradients] | None = None
    # For each tensor, a linear map to apply first (the patches of a convolution, which should not
    # be kept), or ``None``
    expand: tuple[Callable[[Tensor], Tensor], ...] = ()
    # Computes the squared norms directly from the tensors, if that is cheaper
    square: Callable[..., Tensor] | None = None
    # Joined before the tensors; does not depend on the unknowns
    fixed: OneHot | None = None

    def value(self) -> RecordGradients:
        """Return the gradient of every record."""
        return self.joined(self.expanded())

    def joined(self, expanded: Sequence[Tensor]) -> RecordGradients:
        """Return the gradient of every record from expanded tensors."""
        if self.join is None:
            return expanded[0]
        return self.join(*expanded) if self.fixed is None else self.join(self.fixed, *expanded)

    def sides(self) -> tuple[GradientTerm, GradientTerm]:
        """Return the terms for the two halves of a batch that contains every record twice."""
        fixed = None if self.fixed is None else self.fixed.first_half()
        ahead, behind = zip(*(tensor.chunk(2) for tensor in self.tensors), strict=True)
        return replace(self, tensors=ahead, fixed=fixed), replace(self, tensors=behind, fixed=fixed)

    def expanded(self, tensors: Sequence[Tensor] | None = None) -> tuple[Tensor, ...]:
        """Return the tensors, or their changes, after the linear maps in ``expand``."""
        given = self.tensors if tensors is None else tensors
        if not self.expand:
            return tuple(given)
        return tuple(f(tensor) for f, tensor in zip(self.expand, given, strict=True))

    def change(
        self, expanded: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> list[RecordGradients]:
        """Return the gradient's change for a change of the tensors, as one part per tensor."""
        changed = []
        for k, tangent in enumerate(self.expanded(tangents)):
            inputs = list(expanded)
            inputs[k] = tangent
            changed.append(self.joined(inputs))
        return changed


@dataclass(frozen=True, eq=False)
class ParameterGradient:
    """The gradient of one parameter for every record, as outer products, a tensor, or both."""

    outers: list[OuterProducts]
    plain: Tensor | None  # (B, size of the parameter)

    @staticmethod
    def of(parts: Iterable[RecordGradients]) -> ParameterGradient:
        """Collect parts, and expand outer products that are cheaper as full gradients."""
        every = list(parts)
        outers: list[OuterProducts] = []
        plain: Tensor | None = None
        # A few products are cheaper than the copy that puts their terms side by side.
        for part in _side_by_side(every) if len(every) > 4 else every:
            if isinstance(part, OuterProducts):
                full = False
                if not isinstance(part.left, OneHot):
                    m, (positions, r) = part.left.shape[3], part.right.shape[2:]
                    full = positions * (m + r) > m * r  # products with Gram matrices, or without
                if not full:
                    outers.append(part)
                    continue
                value = part.written_out()
            else:
                value = part.reshape(len(part), -1)
            plain = value if plain is None else plain + value
        return ParameterGradient(outers, plain)

    def dot(self, other: ParameterGradient, grams: GramMatrices) -> Tensor:
        """Return the inner product of two gradients of the same parameter, ``(B,)``."""
        if self.plain is None and other.plain is None:
            if other is self:  # each pair of terms is computed once
                squares = [grams.inner(a, a) for a in self.outers]
                pairs = combinations(self.outers, 2)
                return sum_of(squares + [2 * grams.inner(a, b) for a, b in pairs])
            return sum_of([grams.inner(a, b) for a in self.outers for b in other.outers])
        # A weight with uses of both kinds, which is rare, is formed in full.
        return summed_products(self.dense(), other.dense())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``Σ_i c_i g_i`` over the records, ``(size of the parameter,)``."""
        parts = [outer.weighted_sum(weights) for outer in self.outers]
        if self.plain is None:
            return sum_of(parts)
        return sum_of([weights.to(self.plain.dtype) @ self.plain, *parts])

    def dense(self) -> Tensor:
        """Return the full gradient of every record, ``(B, size of the parameter)``."""
        written = [outer.written_out() for outer in self.outers]
        return sum_of(written if self.plain is None else [self.plain, *written])


def _side_by_side(parts: list[RecordGradients]) -> list[RecordGradients]:
    """Return the gradient with all its dense outer products concatenated along positions.

    Concatenation saves time for recurrent layers, which use the same weight hundreds of times.
    """
    dense = [
        part for part in parts if isinstance(part, OuterProducts) and isinstance(part.left, Tensor)
    ]
    others = [part for part in parts if not isinstance(part, OuterProducts) or part not in dense]
    if not dense:
        return parts
    left = torch.cat([part.left for part in dense], 2)
    return [OuterProducts(left, torch.cat([part.right for part in dense], 2)), *others]


def at_least_single(*tensors: Tensor) -> torch.dtype:
    """Return the type for per-record numbers, which is at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def summed_products(a: Tensor, b: Tensor) -> Tensor:
    """Return ``Σ ab`` of every record, ``(B,)``, with at least 32 bits."""
    if torch.float16 in (a.dtype, b.dtype):  # whose products soon overflow
        a, b = a.float(), b.float()
    return (a * b).flatten(1).sum(1, dtype=at_least_single(a, b))


def record_lengths(gradients: Tensor) -> Tensor:
    """Return the norm of every record's gradient, ``(B,)``, with at least 32 bits.

    On a CPU, torch's norm adds the squares almost one by one, in their own precision. For 160
    million float32 numbers it is 1.3 % too small, so clipped gradients would be longer than the
    threshold. Its sums are pairwise; parts of the row are summed, so that no long copy is made.
    """
    kind, parts = at_least_single(gradients), gradients.flatten(1).split(1 << 20, dim=1)
    return torch.stack([part.to(kind).square().sum(1) for part in parts], 1).sum(1).sqrt()


def sum_of(terms: list[Tensor]) -> Tensor:
    """Return the sum of one or more tensors of the same shape."""
    if len(terms) > 3 and terms[0].dim() == 1:  # one kernel for many small sums
        return torch.stack(terms).sum(0)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def between(
    ahead: GradientTerm, behind: GradientTerm
) -> tuple[GradientTerm, list[RecordGradients]]:
    """Return the term at the mean of two sides, and the terms of their difference.

    ``δ₊t₊ᵀ − δ₋t₋ᵀ = Δδ t̄ᵀ + δ̄ Δtᵀ``, where ``Δ`` is the difference and a bar the mean. The
    formula is exact, without cancellation, for terms linear in each of at most two tensors.
    """
    pairs = list(zip(ahead.tensors, behind.tensors, strict=True))
    mean = replace(ahead, tensors=tuple(torch.lerp(a, b, 0.5) for a, b in pairs))
    return mean, mean.change(mean.expanded(), [a - b for a, b in pairs])


def grouped(terms: Sequence[GradientTerm]) -> dict[Key, list[int]]:
    """Return the indices of the terms of each parameter."""
    groups: dict[Key, list[int]] = {}
    for position, term in enumerate(terms):
        groups.setdefault(term.key, []).append(position)
    return groups


def value_of(terms: Sequence[GradientTerm]) -> ParameterGradient:
    """Return the gradient of one parameter from its terms."""
    return ParameterGradient.of([term.value() for term in terms])


def gradients_of(terms: list[GradientTerm]) -> dict[Key, ParameterGradient]:
    """Return the gradients of all parameters from all terms, and release the terms' tensors.

    Once a full gradient is formed, the layer's inputs and output gradients are no longer needed.
    """
    gradients = {}
    for key, members in grouped(terms).items():
        gradients[key] = value_of([terms[k] for k in members])
        for k in members:
            terms[k] = replace(terms[k], tensors=())
    return gradients


def weighted_sums(
    gradients: Mapping[Key, ParameterGradient], weights: Tensor, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return ``Σ_i c_i g_i`` over the records for every parameter, in its shape."""
    out = {name: torch.zeros(p.numel(), dtype=p.dtype, device=p.device) for name, p in like.items()}
    for (name, row), gradient in gradients.items():
        total = gradient.weighted_sum(weights)
        start = row * (like[name].numel() // max(1, len(like[name]))) if row else 0
        out[name][start : start + len(total)] += total
    return {name: total.reshape(like[name].shape) for name, total in out.items()}
