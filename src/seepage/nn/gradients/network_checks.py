"""Looks network and records over before gradients are measured, and refuses what is wrong silently.

A network's records must not influence one another, its run must not be random, and its
per-record gradients, taken by rules, must equal those taken one record at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.errors import InputError
from seepage.nn.gradients.first_look import look_over, small_batch
from seepage.nn.gradients.norms import norms, weighted_gradient
from seepage.nn.gradients.watching import WatchedNetwork, differentiable_backends
from seepage.nn.problem.problem import Batch, NetworkProblem, class_axis, without_output
from seepage.nn.problem.views import Inputs, Label, call, leaves, rows_of

_NORMS = nn.modules.batchnorm._BatchNorm
_KINKED: dict[str, set[Any]] = {
    "AdaptiveMaxPool": {
        functional.adaptive_max_pool1d,
        functional.adaptive_max_pool2d,
        functional.adaptive_max_pool3d,
    },
    "Hardsigmoid": {functional.hardsigmoid},
    "Hardswish": {functional.hardswish},
    "Hardtanh": {functional.hardtanh},
    "LeakyReLU": {functional.leaky_relu},
    "MaxPool": {
        *(functional.max_pool1d, functional.max_pool2d, functional.max_pool3d),
        *(torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    },
    "PReLU": {functional.prelu},
    "ReLU": {
        *(functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
        *(torch.rnn_relu, torch.rnn_relu_cell),
    },
    "ReLU6": {functional.relu6},
    "RReLU": {functional.rrelu},
    "Threshold": {functional.threshold},
}
_SMOOTH = "tanh, SiLU or GELU for the activations, average pooling for max pooling"
_LAYOUT_FREE = {
    *(nn.Sequential, nn.Conv2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d, nn.Flatten),
    *(nn.Linear, nn.Identity, nn.Dropout),
    *(nn.Tanh, nn.Sigmoid, nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus),
}


class KinkWarning(UserWarning):
    """A network has kinks, where the second derivatives behind leakage vanish or jump."""


class FallbackWarning(UserWarning):
    """A module has no closed form for its per-record gradients and is slower for it."""


def unwrapped(net: nn.Module) -> nn.Module:
    """Return the network inside one that ``torch.compile`` returned, or a data-parallel wrapper."""
    if not isinstance(net, nn.Module):
        raise InputError(f"net must be a torch.nn.Module, not {type(net).__name__}.")
    inner = getattr(net, "_orig_mod", net)
    if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
        inner = inner.module
    return getattr(inner, "_orig_mod", inner)


class Validator:
    """Checks a problem when it is first met and whenever its shapes or modes change."""

    def __init__(self, problem: NetworkProblem) -> None:
        self.problem = problem
        self._plans: dict[Any, WatchedNetwork] = {}
        self._compared: set[Any] = set()
        self._classes: dict[Any, int | None] = {}
        self._told: set[str] = set()

    def watched(self, x: Inputs, y: Tensor, rules: bool = True) -> WatchedNetwork:
        """Return the plan of the network for batches like this one, made and checked once.

        Without ``rules``, per-record gradients by rules are not going to be used, and it does not
        matter whether they are right.
        """
        _refuse_values(x, y)
        modes = tuple(module.training for module in self.problem.net.modules())
        key = (_kind(x), _kind(y), modes, tuple(self.problem.released()))
        if key in self._plans:
            _refuse_classes(self.problem, y, self._classes[key])
            if key in self._compared or not rules:
                return self._plans[key]
        if not self.problem.released():
            raise InputError(
                "The network has no parameter with requires_grad, so nothing of it is released."
            )
        refuse_modes(self.problem.net)
        self._classes[key] = _count_classes(self.problem, x)
        _refuse_classes(self.problem, y, self._classes[key])
        self.problem.channels_last = False
        batch = small_batch(self.problem.batch(rows_of(x, slice(0, 3)), y[:3]), 3)
        _refuse_randomness(self.problem, batch)
        if _likes_channels_last(self.problem.net):
            self.problem.channels_last = True
            batch = self.problem.batch(batch.x, batch.y)
        network = self._plans[key] = look_over(self.problem, batch)
        self._tell(network, rules)
        if rules:
            self._compare(network, batch)
            self._compared.add(key)
        return network

    def _tell(self, network: WatchedNetwork, rules: bool) -> None:
        kinks = sorted(name for name, uses in _KINKED.items() if uses & network.plan.functions)
        if kinks:
            self._once(
                f"The network uses {' and '.join(kinks)}, whose second derivatives vanish or jump, "
                f"so its leakage is understated between the kinks and undefined on them; use "
                f"{_SMOOTH}.",
                KinkWarning,
            )
        for unruled in network.plan.unruled if rules else ():
            self._once(
                f"{type(unruled.module).__name__} has no closed form for the per-record gradients "
                f"of {', '.join(unruled.names)} (used by {', '.join(unruled.functions)}); torch's "
                "vmap takes them for that module alone, which is slower.",
                FallbackWarning,
            )

    def _once(self, text: str, category: type[Warning]) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, category, stacklevel=6)

    def _compare(self, network: WatchedNetwork, batch: Batch) -> None:
        """Compare the norms by rules with those of one record at a time."""
        by_rules, _ = norms(network, batch)
        alone = torch.stack([_norm_alone(self.problem, batch, k) for k in range(2)])
        # Products on a graphics card may be rounded to ten bits.
        loose = 1e-9 if batch.z.dtype == torch.float64 else 3e-2 if alone.is_cuda else 1e-3
        if not torch.allclose(by_rules[:2], alone, rtol=loose, atol=loose * float(alone.max())):
            raise InputError(
                "The per-record gradients of this network by rules differ from those of single "
                f"records (norm {float(by_rules[0]):.6g} against {float(alone[0]):.6g}): it uses "
                "a parameter, or overwrites a tensor, in a way that cannot be followed. Leave "
                "clipping out (clip=sp.nn.NoClip()), or rewrite in-place operations."
            )


def _refuse_values(x: Inputs, y: Any) -> None:
    """Raise where inputs or targets are no tensors, differ in number, or are not finite."""
    tensors = leaves(x)
    if not isinstance(y, Tensor):
        raise InputError(
            f"y must be a torch tensor, not a {type(y).__name__}; use torch.as_tensor(y)."
        )
    counts = {len(value) for value in tensors}
    if y.dim() == 0 or counts != {len(y)}:
        raise InputError(
            f"There are {' and '.join(str(n) for n in sorted(counts))} records but "
            f"{len(y) if y.dim() else 'no'} labels; give one label for each record."
        )
    for name, value in (*(("x", value) for value in tensors), ("y", y)):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            bad = torch.isfinite(value).reshape(len(value), -1).all(1).logical_not().nonzero()
            raise InputError(
                f"Record {int(bad[0])} of this batch has a number in {name} that is not finite; "
                "fill gaps, or leave such records out."
            )


def _count_classes(problem: NetworkProblem, x: Inputs) -> int | None:
    """Return how many classes the loss tells apart, or ``None``; also try the network once."""
    try:
        with torch.no_grad():
            output = call(problem.net, rows_of(x, slice(0, 1)))
    except InputError:
        raise
    except Exception as error:
        shapes = ", ".join(
            f"{tuple(value.shape[1:])} of {str(value.dtype).removeprefix('torch.')}"
            for value in leaves(x)
        )
        raise InputError(
            f"The network does not run on these inputs (each {shapes}): {_first_line(error)}"
        ) from error
    axis = class_axis(problem.loss)
    if axis is None or not isinstance(output, Tensor) or output.dim() < 2:
        return None
    if axis == 1 and output.dim() > 2 and isinstance(problem.view, Label):
        raise InputError(
            "The label of a sequence can be asked about with loss='cross_entropy' only, which has "
            "the classes along the last axis of the output."
        )
    return int(output.shape[axis])


def _refuse_classes(problem: NetworkProblem, y: Tensor, classes: int | None) -> None:
    """Raise where a class number has no output."""
    if classes is None or y.is_floating_point() or not y.numel():
        return
    if bool(without_output(problem.loss, y, classes).any()):
        raise InputError(
            f"The network has {classes} outputs, so classes must lie from 0 to {classes - 1}, but "
            f"y goes from {int(y.min())} to {int(y.max())}."
        )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _likes_channels_last(net: nn.Module) -> bool:
    """Return whether a network is a plain stack of convolutions, which run faster in that layout.

    Anything else may take views of its images, or use layers (GroupNorm) whose second derivatives
    torch has for the usual layout only.
    """
    modules = list(net.modules())
    images = any(isinstance(module, nn.Conv2d) for module in modules)
    return images and all(type(module) in _LAYOUT_FREE for module in modules)


def refuse_modes(net: nn.Module) -> None:
    """Raise where a module mixes records, or is random, in its present mode."""
    for name, module in net.named_modules():
        label = f"{type(module).__name__} {name!r}" if name else type(module).__name__
        if isinstance(module, _NORMS) and (module.training or module.running_mean is None):
            if isinstance(module, nn.modules.instancenorm._InstanceNorm):
                if not module.training or not module.track_running_stats:
                    continue
                raise InputError(
                    f"{label} changes its running statistics in training mode; call .eval() on it "
                    "or set track_running_stats=False."
                )
            raise InputError(
                f"{label} mixes the records of a batch in training mode, so there is no gradient "
                "of one record; use GroupNorm or LayerNorm, or call .eval() on it."
            )
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        within = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
        if module.training and (random or within):
            raise InputError(
                f"{label} drops values at random in training mode; call .eval() on it or set its "
                "probability to 0."
            )


def _refuse_randomness(problem: NetworkProblem, batch: Batch) -> None:
    """Raise where two runs differ, records influence one another, or losses are not finite."""
    parameters = problem.detached()
    with torch.no_grad(), differentiable_backends(problem.net):
        try:
            first = problem.losses(parameters, batch, batch.z)
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            kind = str(batch.y.dtype).removeprefix("torch.")
            raise InputError(
                f"The loss cannot be taken with targets of shape {tuple(batch.y.shape)} ({kind}): "
                f"{_first_line(error)}"
            ) from error
        again = problem.losses(parameters, batch, batch.z)
        ones = [_single(batch, k) for k in range(len(batch))]
        alone = torch.cat([problem.losses(parameters, one, one.z) for one in ones])
    if not bool(torch.isfinite(first).all()):
        raise InputError("The losses are not finite; check the data and the parameters for NaN.")
    # Products on a graphics card may be rounded to ten bits, differently for other batch sizes.
    loose = 1e-8 if first.dtype == torch.float64 else 1e-2 if first.is_cuda else 1e-4
    if not torch.allclose(first, again, rtol=loose, atol=loose):
        raise InputError(
            "Two runs of the network on the same data differ: it draws random numbers; switch that "
            "off (net.eval(), or a fixed generator) while leakage is measured."
        )
    if not torch.allclose(first, alone, rtol=loose, atol=loose):
        raise InputError(
            "The loss of a record depends on the other records of its batch, so there is no "
            "gradient of one record; take such layers or losses (batch statistics) out."
        )


def _single(batch: Batch, k: int) -> Batch:
    return batch.records(torch.tensor([k], device=batch.z.device))


def _norm_alone(problem: NetworkProblem, batch: Batch, k: int) -> Tensor:
    one = _single(batch, k)
    _, found = weighted_gradient(problem, one, torch.ones((), device=one.z.device))
    return torch.stack([g.square().sum() for g in found.values()]).sum().sqrt()


def _kind(x: Any) -> Any:
    """Return what must stay the same for a plan to hold: structure, shapes but the first, types."""
    if isinstance(x, Tensor):
        return (tuple(x.shape[1:]), x.dtype, x.device)
    if isinstance(x, Mapping):
        return tuple((name, _kind(value)) for name, value in x.items())
    return tuple(_kind(value) for value in x)
