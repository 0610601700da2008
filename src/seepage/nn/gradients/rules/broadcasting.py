"""Per-record gradients of parameters that are added to records, multiply them or are repeated.

Examples are position embeddings, class tokens, layer scales and hand-written normalising layers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from seepage.nn.gradients.per_record_gradients import GradientTerm
from seepage.nn.gradients.watching import Arguments, LayerCall, Layout, Rule


class _ElementwiseRule(Rule):
    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return the two operands; the parameter among them is identified by name."""
        if kwargs or len(args) != 2 or not all(isinstance(a, Tensor) for a in args):
            return None
        return Arguments(None, {"first": args[0], "second": args[1]})

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether exactly one of the operands is constant along the records' axis."""
        if layout.axis is None or layout.multiple != 1:
            return False
        place = layout.axis - len(shape)
        small = [t for t in arguments.parameters.values() if t is not None and _flat(t, place)]
        return len(small) == 1


class AdditionRule(_ElementwiseRule):
    """``x + p``: the gradient is ``δ``, summed to the shape of ``p``."""

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return ``δ`` of each record, summed to the parameter's shape."""
        return [_summed(call, role, delta) for role in call.names]


class MultiplicationRule(_ElementwiseRule):
    """``x · p``: the gradient is ``δ·x``, summed to the shape of ``p``."""

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return ``δ·x`` of each record, summed to the parameter's shape."""
        other = {"first": "second", "second": "first"}
        operands = call.arguments.parameters
        return [_summed(call, role, delta * operands[other[role]]) for role in call.names]


class RepetitionRule(AdditionRule):
    """``p.expand(batch, …)``: the gradient is ``δ``, summed to the shape of ``p``."""

    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return the parameter."""
        return None if kwargs else Arguments(None, {"first": args[0]})


def _flat(tensor: Tensor, axis: int) -> bool:
    """Return whether a tensor is constant along an axis counted from the end."""
    return bool(-axis > tensor.dim() or tensor.shape[axis] == 1)


def _summed(call: LayerCall, role: str, value: Tensor) -> GradientTerm:
    parameter = call.arguments.parameters[role]
    assert parameter is not None  # noqa: S101 - it has a name
    records = value.movedim(
        call.layout.axis or 0, 0
    )  # the parameter has length one along that axis
    place = (call.layout.axis or 0) - value.dim()
    shape = list(parameter.shape)
    if -place <= len(shape):
        del shape[place]
    lead = records.dim() - 1 - len(shape)
    rest = records.flatten(1, lead).sum(1) if lead > 0 else records
    axes = [1 + k for k, size in enumerate(shape) if size == 1 and rest.shape[1 + k] != 1]
    reduced = rest.sum(axes, keepdim=True) if axes else rest
    return GradientTerm(call.names[role], (reduced,))
