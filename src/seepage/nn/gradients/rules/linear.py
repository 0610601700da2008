"""Per-record gradients of matrix products: ``g = Σ_s δ_s t_sᵀ`` over the positions of a record.

``t`` are the layer's inputs and ``δ`` the gradients at its outputs. For a single position,
``‖g‖ = ‖δ‖‖t‖`` (Goodfellow 2015).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.per_record_gradients import GradientTerm, OuterProducts
from seepage.nn.gradients.watching import Arguments, LayerCall, Layout, Rule, Watcher


class LinearRule(Rule):
    """The product ``out = t Wᵀ + b``, where ``W`` has the shape (outputs, inputs)."""

    inputs_first = False  # whether the inputs are the first axis of the weight

    def bind(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Arguments | None:
        """Return input, weight and bias."""
        return Arguments(input, {"weight": weight, "bias": bias}) if weight.dim() == 2 else None

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the records have an axis that is not the features' axis."""
        return layout.axis is not None and layout.axis < len(shape) - 1

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return the outer products for the weight, and the sum of ``δ`` for the bias."""
        tensors = (call.arguments.input, delta)
        # ``(…, features)`` as ``(B, 1, positions, features)``
        inputs, delta = (call.layout.by_record(t).flatten(1, -2)[:, None] for t in tensors)
        out = []
        if "weight" in call.names:
            factors = (inputs, delta) if self.inputs_first else (delta, inputs)
            out.append(GradientTerm(call.names["weight"], factors, OuterProducts))
        if "bias" in call.names:
            out.append(GradientTerm(call.names["bias"], (delta,), expand=(summed,)))
        return out

    def narrow_axis(self, arguments: Arguments) -> int | None:
        """Return the axis of the inputs."""
        return 0 if self.inputs_first else 1

    def narrowed(self, arguments: Arguments, thin: Tensor) -> Arguments:
        """Return the arguments with inputs ``tQ``."""
        return replace(arguments, input=arguments.input @ thin.to(arguments.input.dtype))


class ProductRule(LinearRule):
    """The product ``out = t W``, where ``W`` has the shape (inputs, outputs)."""

    inputs_first = True

    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return the input and the weight of a product whose second factor is a matrix."""
        if kwargs or len(args) != 2 or args[1].dim() != 2:
            return None
        return Arguments(args[0], {"weight": args[1]})


class AddedProductRule(ProductRule):
    """The product ``out = b + t W`` in one call, as in GPT-2's layers."""

    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return input, weight and bias, or ``None`` if the call scales a factor."""
        if kwargs or len(args) != 3 or args[0].dim() != 1:
            return None
        return Arguments(args[1], {"weight": args[2], "bias": args[0]})


LINEAR = LinearRule()


def watched_linear(
    watcher: Watcher, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Run ``functional.linear`` as a step of a larger function, so that the watcher records it."""
    arguments = Arguments(x, {"weight": weight, "bias": bias})
    return watcher.call(LINEAR, arguments, lambda: functional.linear(x, weight, bias))


def summed(delta: Tensor) -> Tensor:
    """Return the gradient of a bias: ``δ`` summed over the positions of every record."""
    return delta.sum((1, 2))
