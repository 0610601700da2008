"""Looks a network over before its gradients are measured, and refuses what would be wrong silently.

A network's examples must not influence one another, its run must not be random, and its
per-example gradients, taken by rules, must equal those taken one example at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.errors import InputError
from seepage.nn.gradients.backends import differentiable_backends
from seepage.nn.gradients.input_checks import (
    count_classes,
    refuse_classes,
    refuse_failure,
    refuse_values,
)
from seepage.nn.gradients.norms import norms
from seepage.nn.gradients.recording import Layers, small_batch
from seepage.nn.problem.problem import Batch, Problem
from seepage.nn.problem.views import Inputs, rows_of

_NORMS = nn.modules.batchnorm._BatchNorm
_KINKED = {
    functional.relu: "ReLU",
    torch.relu: "ReLU",
    torch.relu_: "ReLU",
    Tensor.relu: "ReLU",
    Tensor.relu_: "ReLU",
    torch.rnn_relu: "ReLU",
    torch.rnn_relu_cell: "ReLU",
    functional.rrelu: "RReLU",
    functional.hardswish: "Hardswish",
    functional.hardsigmoid: "Hardsigmoid",
    functional.leaky_relu: "LeakyReLU",
    functional.hardtanh: "Hardtanh",
    functional.relu6: "ReLU6",
    functional.prelu: "PReLU",
    functional.threshold: "Threshold",
    functional.max_pool1d: "MaxPool",
    functional.max_pool2d: "MaxPool",
    functional.max_pool3d: "MaxPool",
    torch.max_pool1d: "MaxPool",
    torch.max_pool2d: "MaxPool",
    torch.max_pool3d: "MaxPool",
    functional.adaptive_max_pool1d: "AdaptiveMaxPool",
    functional.adaptive_max_pool2d: "AdaptiveMaxPool",
    functional.adaptive_max_pool3d: "AdaptiveMaxPool",
}
_SMOOTH = "tanh, SiLU or GELU for the activations, average pooling for max pooling"


_LAYOUT_FREE = {
    nn.Sequential,
    nn.Conv2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.MaxPool2d,
    nn.Flatten,
    nn.Linear,
    nn.Identity,
    nn.Dropout,
    nn.Tanh,
    nn.Sigmoid,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Softplus,
}


class KinkWarning(UserWarning):
    """A network has kinks, where the second derivatives behind leakage vanish or jump."""


class FallbackWarning(UserWarning):
    """A module has no closed form for its per-example gradients and is slower for it."""


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

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._plans: dict[Any, Layers] = {}
        self._compared: set[Any] = set()
        self._classes: dict[Any, int | None] = {}
        self._told: set[str] = set()

    def layers(self, x: Inputs, y: Tensor, rules: bool = True) -> Layers:
        """Return the plan of the network for batches like this one, made and checked once.

        Without ``rules``, per-example gradients by rules are not going to be used, and it does not
        matter whether they are right.
        """
        refuse_values(x, y)
        modes = tuple(module.training for module in self.problem.net.modules())
        key = (_kind(x), _kind(y), modes, tuple(self.problem.released()))
        if key in self._plans:
            refuse_classes(self.problem, y, self._classes[key])
            if key in self._compared or not rules:
                return self._plans[key]
        if not self.problem.released():
            raise InputError(
                "The network has no parameter with requires_grad, so nothing of it is released."
            )
        refuse_modes(self.problem.net)
        self._classes[key] = count_classes(self.problem, x)
        refuse_classes(self.problem, y, self._classes[key])
        self.problem.channels_last = False
        batch = small_batch(self.problem.batch(rows_of(x, slice(0, 3)), y[:3]), 3)
        refuse_randomness(self.problem, batch)
        if likes_channels_last(self.problem.net):
            self.problem.channels_last = True
            batch = self.problem.batch(batch.x, batch.y)
        layers = self._plans[key] = Layers.of(self.problem, batch)
        self._tell(layers, rules)
        if rules:
            self._compare(layers, batch)
            self._compared.add(key)
        return layers

    def _tell(self, layers: Layers, rules: bool) -> None:
        kinks = sorted({_KINKED[f] for f in layers.plan.functions if f in _KINKED})
        if kinks:
            self._once(
                f"The network uses {' and '.join(kinks)}, whose second derivatives vanish or jump, "
                f"so its leakage is understated between the kinks and undefined on them; use "
                f"{_SMOOTH}.",
                KinkWarning,
            )
        for fallback in layers.plan.fallbacks if rules else ():
            self._once(
                f"{type(fallback.module).__name__} has no closed form for the per-example "
                f"gradients of {', '.join(fallback.names)} (used by "
                f"{', '.join(fallback.functions)}); torch's vmap takes them for that module alone, "
                "which is slower.",
                FallbackWarning,
            )

    def _once(self, text: str, category: type[Warning]) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, category, stacklevel=6)

    def _compare(self, layers: Layers, batch: Batch) -> None:
        """Compare the norms by rules with those of one example at a time."""
        by_rules, _ = norms(layers, batch)
        alone = torch.stack([_norm_alone(self.problem, batch, k) for k in range(2)])
        # Products on a graphics card may be rounded to ten bits.
        loose = 1e-9 if batch.z.dtype == torch.float64 else 3e-2 if alone.is_cuda else 1e-3
        if not torch.allclose(by_rules[:2], alone, rtol=loose, atol=loose * float(alone.max())):
            raise InputError(
                "The per-example gradients of this network by rules differ from those of single "
                f"examples (norm {float(by_rules[0]):.6g} against {float(alone[0]):.6g}): it uses "
                "a parameter, or overwrites a tensor, in a way that cannot be followed. Leave "
                "clipping out (clip=sp.nn.NoClip()), or rewrite in-place operations."
            )


def likes_channels_last(net: nn.Module) -> bool:
    """Return whether a network is a plain stack of convolutions, which run faster in that layout.

    Anything else may take views of its images, or use layers (GroupNorm) whose second derivatives
    torch has for the usual layout only.
    """
    modules = list(net.modules())
    images = any(isinstance(module, nn.Conv2d) for module in modules)
    return images and all(type(module) in _LAYOUT_FREE for module in modules)


def refuse_modes(net: nn.Module) -> None:
    """Raise where a module mixes examples, or is random, in its present mode."""
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
                f"{label} mixes the examples of a batch in training mode, so there is no gradient "
                "of one example; use GroupNorm or LayerNorm, or call .eval() on it."
            )
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        within = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
        if module.training and (random or within):
            raise InputError(
                f"{label} drops values at random in training mode; call .eval() on it or set its "
                "probability to 0."
            )


def refuse_randomness(problem: Problem, batch: Batch) -> None:
    """Raise where two runs differ, examples influence one another, or losses are not finite."""
    parameters = problem.detached()
    with torch.no_grad(), differentiable_backends(problem.net):
        try:
            first = problem.losses(parameters, batch, batch.z)
        except InputError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise refuse_failure(error, batch.y) from error
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
            "The loss of an example depends on the other examples of its batch, so there is no "
            "gradient of one example; take such layers or losses (batch statistics) out."
        )


def _single(batch: Batch, k: int) -> Batch:
    rows = torch.tensor([k], device=batch.z.device)
    return Batch(rows_of(batch.x, rows), batch.y[rows.to(batch.y.device)], batch.z[rows])


def _norm_alone(problem: Problem, batch: Batch, k: int) -> Tensor:
    one = _single(batch, k)
    parameters = {n: p.requires_grad_() for n, p in problem.detached().items()}
    with torch.enable_grad():
        loss = problem.losses(parameters, one, one.z).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return torch.stack([g.square().sum() for g in found]).sum().sqrt()


def _kind(x: Any) -> Any:
    """Return what must stay the same for a plan to hold: structure, shapes but the first, types."""
    if isinstance(x, Tensor):
        return (tuple(x.shape[1:]), x.dtype, x.device)
    if isinstance(x, Mapping):
        return tuple((name, _kind(value)) for name, value in x.items())
    return tuple(_kind(value) for value in x)
