"""Per-record gradients of normalising layers: ``δ·x̂`` summed for the scale, ``δ`` for the shift.

Each rule renormalises the input without scale and shift, which costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.per_record_gradients import GradientTerm
from seepage.nn.gradients.second_order import layer_norm
from seepage.nn.gradients.watching import Arguments, LayerCall, Layout, Rule


class _NormRule(Rule):
    """``x̂`` scaled and shifted; ``x̂`` is ``standard`` or, without it, given by ``normalise``."""

    def summed(self, call: LayerCall, value: Tensor) -> Tensor:
        """Return a value summed over the axes of each record that share scale and shift."""
        raise NotImplementedError

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Sum ``δ·x̂`` and ``δ`` over each record."""
        out = []
        if "weight" in call.names:
            standard = call.arguments.options.get("standard")
            if standard is None:
                standard = call.arguments.options["normalise"](call.arguments.input)
            out.append(GradientTerm(call.names["weight"], (self.summed(call, delta * standard),)))
        if "bias" in call.names:
            out.append(GradientTerm(call.names["bias"], (self.summed(call, delta),)))
        return out


class _LastAxesRule(_NormRule):
    """Scale and shift have the shape of the last axes."""

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the records are not among the normalised axes."""
        kept = len(shape) - len(arguments.options["shape"])
        return layout.axis is not None and layout.axis < kept

    def summed(self, call: LayerCall, value: Tensor) -> Tensor:
        """Return a value summed over the other axes of each record."""
        own = len(call.arguments.options["shape"])
        return call.layout.by_record(value).flatten(1, -own - 1).sum(1)


class LayerNormRule(_LastAxesRule):
    """``functional.layer_norm``."""

    def bind(
        self,
        input: Tensor,
        normalized_shape: list[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Arguments:
        """Return input, scale and shift."""
        shape = list(normalized_shape)
        normalise = lambda x: functional.layer_norm(x, shape, None, None, eps)  # noqa: E731
        options = {"shape": shape, "normalise": normalise, "eps": eps}
        return Arguments(input, {"weight": weight, "bias": bias}, options)

    def run_twice_differentiable(
        self, arguments: Arguments, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Arguments]:
        """Normalise with a formula for the second derivative, and keep ``x̂``."""
        shape, eps = arguments.options["shape"], arguments.options["eps"]
        standard = layer_norm(arguments.input, shape, None, None, eps)
        if standard is NotImplemented:
            return run(), arguments
        weight, bias = arguments.parameters["weight"], arguments.parameters["bias"]
        kept = replace(arguments, options={**arguments.options, "standard": standard})
        return _scaled_and_shifted(standard, weight, bias), kept


class RMSNormRule(_LastAxesRule):
    """``functional.rms_norm``."""

    def bind(
        self,
        input: Tensor,
        normalized_shape: list[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Arguments:
        """Return input and scale."""
        shape = list(normalized_shape)
        normalise = lambda x: functional.rms_norm(x, shape, None, eps)  # noqa: E731
        return Arguments(input, {"weight": weight}, {"shape": shape, "normalise": normalise})


class _ChannelsRule(_NormRule):
    """Scale and shift have one entry per channel, the second axis."""

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the first axis holds the records."""
        return layout.axis == 0 and len(shape) > 1

    def summed(self, call: LayerCall, value: Tensor) -> Tensor:
        """Return a value summed over the places of each record."""
        by_place = value.flatten(2).sum(2) if value.dim() > 2 else value
        return by_place.unflatten(0, (-1, call.layout.multiple)).sum(1)


class GroupNormRule(_ChannelsRule):
    """``functional.group_norm``."""

    def bind(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Arguments:
        """Return input, scale and shift."""
        normalise = lambda x: functional.group_norm(x, num_groups, None, None, eps)  # noqa: E731
        options = {"normalise": normalise, "groups": num_groups, "eps": eps}
        return Arguments(input, {"weight": weight, "bias": bias}, options)

    def run_twice_differentiable(
        self, arguments: Arguments, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Arguments]:
        """Normalise each group as one row of a LayerNorm, which has such a formula."""
        x, groups = arguments.input, arguments.options["groups"]
        rows = x.reshape(len(x), groups, -1)
        found = layer_norm(rows, [rows.shape[2]], None, None, arguments.options["eps"])
        if found is NotImplemented:
            return run(), arguments
        standard = found.reshape(x.shape)
        shape = (-1, *[1] * (x.dim() - 2))
        weight, bias = (
            p if p is None else p.reshape(shape)
            for p in (arguments.parameters["weight"], arguments.parameters["bias"])
        )
        kept = replace(arguments, options={**arguments.options, "standard": standard})
        return _scaled_and_shifted(standard, weight, bias), kept


class BatchNormRule(_ChannelsRule):
    """``functional.batch_norm`` with fixed statistics, which mixes no records."""

    def bind(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Arguments | None:
        """Return input, scale and shift."""
        if training:
            return None
        normalise = lambda x: functional.batch_norm(x, running_mean, running_var, eps=eps)  # noqa: E731
        return Arguments(input, {"weight": weight, "bias": bias}, {"normalise": normalise})


class InstanceNormRule(_ChannelsRule):
    """``functional.instance_norm``, with fixed statistics the same as ``batch_norm``."""

    def bind(
        self,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Arguments | None:
        """Return input, scale and shift."""
        if not use_input_stats:
            return BatchNormRule().bind(input, running_mean, running_var, weight, bias, eps=eps)
        if running_mean is not None:
            return None
        normalise = lambda x: functional.instance_norm(x, eps=eps)  # noqa: E731
        return Arguments(input, {"weight": weight, "bias": bias}, {"normalise": normalise})


def _scaled_and_shifted(standard: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None and bias is not None:
        return torch.addcmul(bias, standard, weight)
    scaled = standard if weight is None else standard * weight
    return scaled if bias is None else scaled + bias
