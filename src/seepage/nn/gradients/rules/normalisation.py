"""Per-record gradients of normalising layers: sums of ``δ·x̂`` (scale) and of ``δ`` (shift).

``x̂`` is the output of the layer's function without scale and shift. Recomputing it is cheap.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.per_record_gradients import GradientTerm
from seepage.nn.gradients.second_order import layer_norm
from seepage.nn.gradients.watching import Arguments, LayerCall, Layout, Rule


class NormRule(Rule):
    """The rule for a torch function that normalises its input, then scales and shifts it.

    Scale and shift have the shape of the last axes (LayerNorm, RMSNorm). With ``channels``, they
    have one entry per entry of the second axis (GroupNorm, InstanceNorm, BatchNorm in eval mode).
    """

    def __init__(self, function: Callable[..., Tensor], *, channels: bool) -> None:
        self.function, self.channels = function, channels
        self.signature = inspect.signature(function)

    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return input, scale and shift, with all other arguments as options."""
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        updates = options.get("use_input_stats") and options["running_mean"] is not None
        if options.get("training") or updates:  # statistics that other records change
            return None
        parameters = {"weight": options.pop("weight"), "bias": options.pop("bias", None)}
        return Arguments(options.pop("input"), parameters, options)

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the records' axis is outside the normalised axes."""
        if self.channels:
            return layout.axis == 0 and len(shape) > 1
        kept = len(shape) - len(arguments.options["normalized_shape"])
        return layout.axis is not None and layout.axis < kept

    def run_twice_differentiable(
        self, arguments: Arguments, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Arguments]:
        """Normalise, with a closed-form second derivative if available, and store ``x̂``.

        A group of channels is normalised like one row of a LayerNorm.
        """
        x, options, weight = arguments.input, arguments.options, arguments.parameters["weight"]
        bias = arguments.parameters["bias"]
        if self.function is functional.layer_norm:
            rows, shape = x, list(options["normalized_shape"])
        elif self.function is functional.group_norm:
            rows = x.reshape(len(x), options["num_groups"], -1)
            shape = [rows.shape[2]]
            channels = (-1, *[1] * (x.dim() - 2))
            weight, bias = (p if p is None else p.reshape(channels) for p in (weight, bias))
        else:
            return run(), arguments
        standard = layer_norm(rows, shape, None, None, options["eps"])
        if standard is NotImplemented:
            return run(), arguments
        standard = standard.reshape(x.shape)
        kept = replace(arguments, options={**options, "standard": standard})
        if weight is not None and bias is not None:
            return torch.addcmul(bias, standard, weight), kept
        scaled = standard if weight is None else standard * weight
        return scaled if bias is None else scaled + bias, kept

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return the sums of ``δ·x̂`` and ``δ`` over each record."""
        out = []
        if "weight" in call.names:
            options = call.arguments.options
            standard = options.get("standard")
            if standard is None:
                standard = self.function(call.arguments.input, **options)
            out.append(GradientTerm(call.names["weight"], (self._summed(call, delta * standard),)))
        if "bias" in call.names:
            out.append(GradientTerm(call.names["bias"], (self._summed(call, delta),)))
        return out

    def _summed(self, call: LayerCall, value: Tensor) -> Tensor:
        """Return a value summed, for each record, over the axes that share scale and shift."""
        if self.channels:
            by_place = value.flatten(2).sum(2) if value.dim() > 2 else value
            return by_place.unflatten(0, (-1, call.layout.multiple)).sum(1)
        own = len(call.arguments.options["normalized_shape"])
        return call.layout.by_record(value).flatten(1, -own - 1).sum(1)
