"""Per-example gradients of normalising layers: ``δ·x̂`` summed for the scale, ``δ`` for the shift.

Each rule normalises the input again without scale and shift, which costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.gradients.contributions import Contribution
from seepage.nn.gradients.second_order import layer_norm
from seepage.nn.gradients.taps import Bound, Call, Layout, Rule

Normalise = Callable[[Tensor], Tensor]


class _LastAxes(Rule):
    """Scale and shift have the shape of the last axes."""

    def covers(self, bound: Bound, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the examples are not among the normalised axes."""
        kept = len(shape) - len(bound.options["shape"])
        return layout.axis is not None and layout.axis < kept

    def contributions(self, call: Call, delta: Tensor) -> list[Contribution]:
        """Sum over the other axes of each example."""
        own = len(call.bound.options["shape"])
        standard = call.bound.options.get("standard")
        if standard is None:
            standard = call.bound.options["normalise"](call.bound.input)

        def summed(value: Tensor) -> Tensor:
            by_example = call.layout.by_example(value)
            return by_example.flatten(1, -own - 1).sum(1)

        return _scale_and_shift(call, summed, delta, standard)


class LayerNorm(_LastAxes):
    """``functional.layer_norm``."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, scale and shift."""
        return _layer_norm(*args, **kwargs)

    def run_twice_differentiable(
        self, bound: Bound, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Bound]:
        """Normalise with a formula for the second derivative, and keep what was normalised."""
        shape, eps = bound.options["shape"], bound.options["eps"]
        standard = layer_norm(bound.input, shape, None, None, eps)
        if standard is NotImplemented:
            return run(), bound
        weight, bias = bound.parameters["weight"], bound.parameters["bias"]
        if weight is not None and bias is not None:
            output = torch.addcmul(bias, standard, weight)
        else:
            output = standard if weight is None else standard * weight
        return output, replace(bound, options={**bound.options, "standard": standard})


class RMSNorm(_LastAxes):
    """``functional.rms_norm``."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input and scale."""
        return _rms_norm(*args, **kwargs)


class _Channels(Rule):
    """Scale and shift have one entry per channel, the second axis."""

    def covers(self, bound: Bound, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the first axis holds the examples."""
        return layout.axis == 0 and len(shape) > 1

    def contributions(self, call: Call, delta: Tensor) -> list[Contribution]:
        """Sum over the places of each example."""
        standard = call.bound.options.get("standard")
        if standard is None:
            standard = call.bound.options["normalise"](call.bound.input)

        def summed(value: Tensor) -> Tensor:
            by_place = value.flatten(2).sum(2) if value.dim() > 2 else value
            return by_place.unflatten(0, (-1, call.layout.multiple)).sum(1)

        return _scale_and_shift(call, summed, delta, standard)


class GroupNorm(_Channels):
    """``functional.group_norm``."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, scale and shift."""
        return _group_norm(*args, **kwargs)

    def run_twice_differentiable(
        self, bound: Bound, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Bound]:
        """Normalise each group as one row of a LayerNorm, which has a formula for it."""
        x, groups = bound.input, bound.options["groups"]
        rows = x.reshape(len(x), groups, -1)
        found = layer_norm(rows, [rows.shape[2]], None, None, bound.options["eps"])
        if found is NotImplemented:
            return run(), bound
        standard = found.reshape(x.shape)
        shape = (-1, *[1] * (x.dim() - 2))
        weight, bias = (
            p if p is None else p.reshape(shape)
            for p in (bound.parameters["weight"], bound.parameters["bias"])
        )
        output = standard if weight is None else standard * weight
        if weight is not None and bias is not None:
            output = torch.addcmul(bias, standard, weight)
        return output, replace(bound, options={**bound.options, "standard": standard})


class InstanceNorm(_Channels):
    """``functional.instance_norm``."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, scale and shift."""
        return _instance_norm(*args, **kwargs)


class BatchNorm(_Channels):
    """``functional.batch_norm`` with fixed statistics, which mixes no examples."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return input, scale and shift."""
        return _batch_norm(*args, **kwargs)


def _scale_and_shift(
    call: Call, summed: Callable[[Tensor], Tensor], delta: Tensor, standard: Tensor
) -> list[Contribution]:
    out = []
    if "weight" in call.names:
        out.append(Contribution(call.names["weight"], (summed(delta * standard),)))
    if "bias" in call.names:
        out.append(Contribution(call.names["bias"], (summed(delta),)))
    return out


def _layer_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Bound:
    shape = list(normalized_shape)
    normalise = lambda x: functional.layer_norm(x, shape, None, None, eps)  # noqa: E731
    options = {"shape": shape, "normalise": normalise, "eps": eps}
    return Bound(input, {"weight": weight, "bias": bias}, options)


def _rms_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Bound:
    shape = list(normalized_shape)
    normalise = lambda x: functional.rms_norm(x, shape, None, eps)  # noqa: E731
    return Bound(input, {"weight": weight}, {"shape": shape, "normalise": normalise})


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Bound:
    normalise = lambda x: functional.group_norm(x, num_groups, None, None, eps)  # noqa: E731
    options = {"normalise": normalise, "groups": num_groups, "eps": eps}
    return Bound(input, {"weight": weight, "bias": bias}, options)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Bound | None:
    if not use_input_stats:
        return _batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None:
        return None
    normalise = lambda x: functional.instance_norm(x, eps=eps)  # noqa: E731
    return Bound(input, {"weight": weight, "bias": bias}, {"normalise": normalise})


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Bound | None:
    if training:
        return None
    normalise = lambda x: functional.batch_norm(x, running_mean, running_var, eps=eps)  # noqa: E731
    return Bound(input, {"weight": weight, "bias": bias}, {"normalise": normalise})
