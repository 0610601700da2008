"""What the uses of a parameter add to its per-example gradient, with tangents for free.

A contribution is multilinear in a few tensors (the inputs of a layer, the gradients at its
outputs). Its tangent is therefore the sum of the contributions in which one of the tensors is
replaced by its tangent, and no layer needs a rule of its own for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from seepage.nn.gradients.outer_products import Grams, Outer

Key = tuple[str, int]  # a parameter, and the first of its rows where a layer uses only some
_MANY = 4  # parts from which on outer products are put together

Part: TypeAlias = (
    "Outer | Tensor"  # gradients of all examples: outer products, or plain tensors (B, …)
)


def same(tensor: Tensor) -> Tensor:
    """Return the tensor as it is."""
    return tensor


@dataclass(frozen=True)
class Contribution:
    """One use of a parameter.

    Parameters
    ----------
    key
        Which parameter.
    tensors
        What the gradient is made of.
    join
        Makes the gradient of every example from them; multilinear.
    expand
        For each tensor a linear map to apply before (the patches of a convolution, which are not
        to be kept around); none for tensors that are joined as they are.
    square
        Gives the squared norms straight from the tensors, where there is a cheaper way to them.
    """

    key: Key
    tensors: tuple[Tensor, ...]
    join: Callable[..., Part] = same
    expand: tuple[Callable[[Tensor], Tensor], ...] = ()
    square: Callable[..., Tensor] | None = None

    def expanded(self) -> tuple[Tensor, ...]:
        """Return the tensors as they are joined."""
        return self._expanded(self.tensors)

    def change(self, expanded: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Part]:
        """Return the change of the gradient that goes with a change of the tensors."""
        changed = []
        for k, tangent in enumerate(self._expanded(tangents)):
            inputs = list(expanded)
            inputs[k] = tangent
            changed.append(self.join(*inputs))
        return changed

    def _expanded(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self.expand:
            return tuple(tensors)
        return tuple(f(tensor) for f, tensor in zip(self.expand, tensors, strict=True))


@dataclass(frozen=True, eq=False)
class ParameterGradient:
    """The gradient of one parameter for every example: outer products, plain numbers, or both."""

    outers: list[Outer]
    plain: Tensor | None  # (B, size of the parameter)

    @staticmethod
    def of(parts: Iterable[Part]) -> ParameterGradient:
        """Collect parts; outer products that are cheaper written out are written out."""
        every = list(parts)
        outers: list[Outer] = []
        plain: Tensor | None = None
        for part in side_by_side(every) if len(every) > _MANY else every:
            if isinstance(part, Outer) and not part.cheaper_written_out():
                outers.append(part)
                continue
            value = part.written_out() if isinstance(part, Outer) else part.reshape(len(part), -1)
            plain = value if plain is None else plain + value
        return ParameterGradient(outers, plain)

    def dot(self, other: ParameterGradient, grams: Grams) -> Tensor:
        """Return the inner product of two gradients of the same parameter, ``(B,)``."""
        if self.plain is None and other.plain is None:
            if other is self:
                return _square(self.outers, grams)
            return sum_of([grams.inner(a, b) for a in self.outers for b in other.outers])
        # A weight with uses of both kinds, which is rare, is written out as a whole.
        return (self._dense() * other._dense()).sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``Σ_i c_i g_i`` over the examples, ``(size of the parameter,)``."""
        parts = [outer.weighted_sum(weights) for outer in self.outers]
        return sum_of(parts if self.plain is None else [weights @ self.plain, *parts])

    def _dense(self) -> Tensor:
        written = [outer.written_out() for outer in self.outers]
        return sum_of(written if self.plain is None else [self.plain, *written])


def side_by_side(parts: list[Part]) -> list[Part]:
    """Return the same gradient with all dense outer products as one, their positions in a row.

    The steps of a recurrent layer use the same weight hundreds of times.
    """
    dense = [part for part in parts if isinstance(part, Outer) and isinstance(part.left, Tensor)]
    others = [part for part in parts if not isinstance(part, Outer) or part not in dense]
    if not dense:
        return parts
    left = torch.cat([part.left for part in dense], 2)
    return [Outer(left, torch.cat([part.right for part in dense], 2)), *others]


def _square(outers: list[Outer], grams: Grams) -> Tensor:
    """Return the squared norm, each pair of terms taken once."""
    terms = []
    for i, a in enumerate(outers):
        terms.append(grams.inner(a, a))
        terms.extend(2 * grams.inner(a, b) for b in outers[i + 1 :])
    return sum_of(terms)


def sum_of(terms: list[Tensor]) -> Tensor:
    """Return the sum of one or more tensors of the same shape."""
    if len(terms) > 3 and terms[0].dim() == 1:  # one kernel for many small sums
        return torch.stack(terms).sum(0)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def grouped(contributions: Sequence[Contribution]) -> dict[Key, list[int]]:
    """Return, for every parameter, which of the contributions are its own."""
    groups: dict[Key, list[int]] = {}
    for position, contribution in enumerate(contributions):
        groups.setdefault(contribution.key, []).append(position)
    return groups


def value_of(contributions: Sequence[Contribution]) -> ParameterGradient:
    """Return the gradient of one parameter from its contributions."""
    return ParameterGradient.of([c.join(*c.expanded()) for c in contributions])


def weighted_sums(
    gradients: Mapping[Key, ParameterGradient], weights: Tensor, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return ``Σ_i c_i g_i`` over the examples for every parameter, in its shape."""
    out = {name: torch.zeros(p.numel(), dtype=p.dtype, device=p.device) for name, p in like.items()}
    for (name, row), gradient in gradients.items():
        total = gradient.weighted_sum(weights)
        start = row * (like[name].numel() // max(1, len(like[name]))) if row else 0
        out[name][start : start + len(total)] += total
    return {name: total.reshape(like[name].shape) for name, total in out.items()}
