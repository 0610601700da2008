"""Finite tangents at training precision: one plain pass, with gradients randomly narrowed.

One forward and one backward pass over every record twice, at ``z + hv`` and at ``z − hv``, gives
the layers' inputs ``t`` and output gradients ``δ`` on both sides, and with them the change of every
record's gradient without cancellation,

    Δg = Σ_s δ₊t₊ᵀ − δ₋t₋ᵀ = Σ_s Δδ t̄ᵀ + δ̄ Δtᵀ.

There is no second derivative, so anything that trains will do: fused attention, gradient
checkpointing, compiled or quantised parts, TF32 and 16-bit numbers. The change of a wide weight is
not formed but narrowed, ``ΔgQ`` with ``Q`` of :data:`THIN` columns of random signs:
``E‖ΔgQ‖² = THIN·‖Δg‖²``, at a small part of a training step's products. Inputs are narrowed in the
forward pass, ``tQ``, and layers are freed one by one in the backward pass, so that little is kept.
The price is a little variance, which goes into the standard errors like that of the directions
``v``.

The size of the step balances two errors, that of the difference, which grows with ``h²``, and that
of rounding, which grows with ``1/h²`` (:func:`balanced_step`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.nn.gradients.layerwise import layer_by_layer
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    GramMatrices,
    Key,
    ParameterGradient,
    RecordGradients,
    between,
)
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.random_directions import signs
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch

THIN = 32  # columns that gradients of wide weights are narrowed to
_LADDER = 9  # step sizes tried, each half the one before


@dataclass(frozen=True)
class ThinChange:
    """How every record's gradient changes over a step, per unit of the step; all ``(B,)``."""

    squared: Tensor  # estimates ``‖Δg‖²/4h²``
    along: Tensor  # estimates ``g·Δg/2h``
    again: Tensor  # the same from other random numbers
    losses: Tensor  # the means of both sides

    def clipped(self, clip: Clip, norms: Tensor) -> Tensor:
        """Return an estimate of the squared change of the clipped gradient, given its norm."""
        along, again = self.along.to(norms.dtype), self.again.to(norms.dtype)
        return clip.squared(norms, norms**2, along, self.squared.to(norms.dtype), again)


def thin_change(
    network: WatchedNetwork, batch: Batch, v: Tensor, h: float, drawn: Tensor, along: bool = True
) -> ThinChange:
    """Return the change of every record's gradient along its direction ``v (B, …)``.

    ``drawn`` are the :func:`random_rows` of the matrices; ``along`` says whether to compute the
    component along the gradient, which clipping needs.
    """
    total = _Totals(network, batch, drawn, along)
    losses = layer_by_layer(network, batch.on_both_sides(h * v), total.take, total.thin)
    squared, first, second = total.sums
    parts = (squared / (2 * h) ** 2, first / (2 * h), second / (2 * h))
    return ThinChange(*parts, losses.reshape(2, -1).mean(0))


class _Totals:
    """Sums over the parameters of ``‖Δg‖²``, and of ``g·Δg`` by two halves of the columns."""

    def __init__(self, network: WatchedNetwork, batch: Batch, drawn: Tensor, along: bool) -> None:
        self.network, self.along = network, along
        rows = _rows(network)
        self.thin = dict(zip(rows, drawn.split(list(rows.values())), strict=True))
        self.sums = torch.zeros(3, len(batch), dtype=batch.at_least_single(), device=batch.z.device)

    def take(self, key: Key, terms: list[GradientTerm]) -> None:
        """Add the contribution of one parameter's terms, which hold every record twice."""
        means: list[RecordGradients] = []
        parts: list[RecordGradients] = []
        for term in terms:
            mean, changes = between(*term.sides())
            parts += changes
            if self.along:
                means.append(mean.value())
        change = ParameterGradient.of(parts)
        value = ParameterGradient.of(means)
        if key[0] in self.thin:
            self._narrow(key[0], change, value)
            return
        grams = GramMatrices()
        self.sums[0] += change.dot(change, grams)
        if self.along:
            self.sums[1:] += value.dot(change, grams)

    def _narrow(self, name: str, change: ParameterGradient, value: ParameterGradient) -> None:
        moved = change.dense()
        lengths = torch.linalg.vector_norm(moved, dim=1, dtype=self.sums.dtype)
        self.sums[0] += lengths.square() / THIN
        if not self.along:
            return
        products = (value.dense() * moved).to(self.sums.dtype)
        if self.network.plan.narrow[name].axis == 0:
            columns = products.unflatten(1, (THIN, -1)).sum(2)
        else:
            columns = products.unflatten(1, (-1, THIN)).sum(1)
        self.sums[1:] += columns.unflatten(1, (2, -1)).mean(2).T


def random_rows(network: WatchedNetwork, key: int) -> Tensor:
    """Return the rows of the matrices of random signs, one after another, ``(…, THIN)``."""
    like = next(iter(network.problem.detached().values()))
    return signs(key, (sum(_rows(network).values()), THIN), like)


def narrowed(network: WatchedNetwork) -> list[str]:
    """Return the weights whose gradients are worth narrowing: wide, and used at many positions."""
    return list(_rows(network))


def _rows(network: WatchedNetwork) -> dict[str, int]:
    """Return the number of rows of each narrowed weight's matrix."""
    released, rows = network.problem.released(), {}
    for name, narrow in network.plan.narrow.items():
        size = released[name].flatten(1).shape[narrow.axis]
        if narrow.positions > THIN and size > 2 * THIN:
            rows[name] = size
    return rows


def rounding_of_products() -> str:
    """Return how float32 products may be rounded, in torch's words."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the caller has set the precision of each kind of product
        return str(torch.backends.cuda.matmul.fp32_precision)


def balanced_step(squared_over: Callable[[float], Tensor], scale: float) -> tuple[float, float]:
    """Return the step size at which the errors balance, and the uncertainty that remains.

    Steps of half the unknowns' ``scale``, a quarter and so on are tried. Where halving and doubling
    a step alter the squared changes least, neither the network's curvature nor rounding matters
    much; that relative change is returned with the size.
    """
    sizes = [float(f"{scale * 2.0**-k:.0e}") for k in range(1, _LADDER + 1)]
    found = torch.stack([squared_over(h) for h in sizes]).double()
    lengths = found.square().sum(1).sqrt()
    moved = (found[1:] - found[:-1]).square().sum(1).sqrt() / lengths[1:].clamp(min=1e-300)
    doubts = torch.maximum(moved[1:], moved[:-1])  # for all sizes but the first and the last
    best = int(doubts.argmin())
    return sizes[best + 1], float(doubts[best])
