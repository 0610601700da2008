"""Per-example gradients of matrix products: ``g = Σ_s δ_s t_sᵀ`` over the positions of an example.

With ``t`` the inputs of the layer and ``δ`` the gradients at its outputs (for a
single position ``‖g‖ = ‖δ‖‖t‖``, Goodfellow 2015).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from seepage.nn.gradients.contributions import Contribution
from seepage.nn.gradients.outer_products import Outer
from seepage.nn.gradients.taps import Bound, Call, Layout, Rule


class Linear(Rule):
    """``out = t Wᵀ + b``, ``W`` of shape (outputs, inputs)."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, weight and bias."""
        return _bind(*args, **kwargs)

    def covers(self, bound: Bound, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the examples are not along the features."""
        return layout.axis is not None and layout.axis < len(shape) - 1

    def contributions(self, call: Call, delta: Tensor) -> list[Contribution]:
        """Return the outer products for the weight, and the sum of ``δ`` for the bias."""
        inputs = positions(call.layout, call.bound.input)
        delta = positions(call.layout, delta)
        out = []
        if "weight" in call.names:
            out.append(Contribution(call.names["weight"], self.factors(delta, inputs), Outer))
        if "bias" in call.names:
            out.append(Contribution(call.names["bias"], (delta,), expand=(summed,)))
        return out

    def factors(self, delta: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the outer products in the order of the weight's axes."""
        return delta, inputs


class Product(Linear):
    """``out = t W``, ``W`` of shape (inputs, outputs)."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input and weight of a product whose second factor is a matrix."""
        if kwargs or len(args) != 2 or args[1].dim() != 2:
            return None
        return Bound(args[0], {"weight": args[1]})

    def factors(self, delta: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors with the inputs on the left."""
        return inputs, delta


class AddedProduct(Product):
    """``out = b + t W`` in one call, as in the layers of GPT-2."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, weight and bias where nothing is scaled."""
        if kwargs or len(args) != 3 or args[0].dim() != 1:
            return None
        return Bound(args[1], {"weight": args[2], "bias": args[0]})


def positions(layout: Layout, tensor: Tensor) -> Tensor:
    """Return ``(…, features)`` as ``(B, 1, positions, features)``."""
    return layout.by_example(tensor).flatten(1, -2)[:, None]


def summed(delta: Tensor) -> Tensor:
    """Return the gradient of a bias: ``δ`` summed over the positions of every example."""
    return delta.sum((1, 2))


def _bind(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Bound | None:
    return Bound(input, {"weight": weight, "bias": bias}) if weight.dim() == 2 else None
