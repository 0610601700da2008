"""Per-example gradients of a module without a closed form, by ``vmap`` over that module alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from seepage.errors import InputError
from seepage.nn.gradients.backends import differentiable_backends
from seepage.nn.gradients.contributions import Contribution, Key
from seepage.nn.gradients.planning import Fallback

Tap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ModuleCall:
    """One run of a module that falls back: what it was given, and which outputs were tapped."""

    fallback: Fallback
    run: int
    arguments: Any
    parameters: Mapping[str, Tensor]  # all of the module's, under its own names
    own: Mapping[str, str]  # name in the module → name in the network, of those released here

    def keys(self) -> list[Key]:
        """Return the parameter of each contribution to come."""
        return [(name, 0) for name in self.own.values()]

    def contributions(self, deltas: list[Tensor]) -> list[Contribution]:
        """Return the per-example gradients, given the gradients at the outputs."""
        leaves, structure = tree_flatten(self.arguments)
        axes = self.fallback.inputs[self.run]
        out_axes = [a for a in self.fallback.outputs[self.run] if a is not None]
        module, others = self.fallback.module, dict(self.parameters)
        batch = deltas[0].shape[out_axes[0]]
        # One copy of the parameters per example (a view): torch's recurrent layers add in place,
        # which vmap allows only where everything has the batch axis.
        theta = {
            name: others.pop(name).expand(batch, *self.parameters[name].shape) for name in self.own
        }
        given = [leaf for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]
        in_axes = [axis for axis in axes if axis is not None]

        def one_example(
            weights: dict[str, Tensor], inputs: list[Tensor], cotangents: list[Tensor]
        ) -> dict[str, Tensor]:
            alone = iter(zip(inputs, in_axes, strict=True))
            full = [
                leaf if axis is None else torch.unsqueeze(*next(alone))
                for leaf, axis in zip(leaves, axes, strict=True)
            ]
            args, kwargs = tree_unflatten(full, structure)

            def outputs(values: dict[str, Tensor]) -> list[Tensor]:
                out = functional_call(module, {**others, **values}, args, kwargs)
                return batched_leaves(out, self.fallback.outputs[self.run])

            pulled = vjp(outputs, weights)[1](
                [torch.unsqueeze(c, a) for c, a in zip(cotangents, out_axes, strict=True)]
            )
            gradients: dict[str, Tensor] = pulled[0]
            return gradients

        try:
            with differentiable_backends(module), _PlainNorms():
                values = vmap(one_example, in_dims=(0, in_axes, out_axes))(theta, given, deltas)
        except RuntimeError as problem:
            raise InputError(
                f"{type(module).__name__} has no rule for per-example gradients, and torch's vmap "
                f"cannot run it ({str(problem).splitlines()[0]}); leave clipping out "
                "(clip=sp.nn.NoClip()), which needs no per-example gradients, or freeze it."
            ) from problem
        return [Contribution((full, 0), (values[name],)) for name, full in self.own.items()]


def batched_leaves(output: Any, axes: list[int | None]) -> list[Tensor]:
    """Return the tensors of an output that run over the examples."""
    leaves = tree_flatten(output)[0]
    return [leaf for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]


@contextmanager
def tapped_modules(
    fallbacks: list[Fallback],
    net: nn.Module,
    parameters: Mapping[str, Tensor],
    tap: Tap,
    records: list[Any],
) -> Iterator[None]:
    """Tap the outputs of the modules that fall back, and keep their inputs, while inside."""
    handles = []
    for fallback in fallbacks:
        prefix = next(name for name, module in net.named_modules() if module is fallback.module)
        prefix = f"{prefix}." if prefix else ""
        inside = dict(fallback.module.named_parameters())
        aliases = {id(p): name for name, p in net.named_parameters()}
        full = {name: aliases[id(p)] for name, p in inside.items()}
        values = {name: parameters.get(full[name], p.detach()) for name, p in inside.items()}
        own = {name: full[name] for name in inside if full[name] in fallback.names}
        if len(own) < len(fallback.names):
            raise InputError(
                f"A parameter among {', '.join(fallback.names)} is used inside "
                f"{type(fallback.module).__name__} but belongs to another module, and its use has "
                "no rule; register it in the module that uses it."
            )
        counter = iter(range(len(fallback.inputs)))

        def leave(
            module: nn.Module,
            args: Any,
            kwargs: Any,
            output: Any,
            fallback: Fallback = fallback,
            counter: Iterator[int] = counter,
            values: Mapping[str, Tensor] = values,
            own: Mapping[str, str] = own,
        ) -> Any:
            run = next(counter)
            leaves, structure = tree_flatten(output)
            axes = fallback.outputs[run]
            # Copies: one output may have been computed from another, and what comes back to the
            # tap must be what follows the module only.
            tapped = [
                leaf if axis is None else tap(leaf.clone())
                for leaf, axis in zip(leaves, axes, strict=True)
            ]
            taps = sum(axis is not None for axis in axes)
            records.append((ModuleCall(fallback, run, (args, kwargs), values, own), taps))
            return tree_unflatten(tapped, structure)

        handles.append(fallback.module.register_forward_hook(leave, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _PlainNorms(TorchFunctionMode):  # type: ignore[misc]
    """Writes normalising layers out in plain arithmetic.

    ``jvp(vmap(grad))`` of torch's own LayerNorm and InstanceNorm is silently wrong (torch 2.13).
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.layer_norm:
            return _layer_norm(*args, **kwargs)
        if function is functional.instance_norm and kwargs.get("use_input_stats", True):
            return _instance_norm(*args, **kwargs)
        return function(*args, **kwargs)


def _layer_norm(
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    out = _standard(x, list(range(-len(shape), 0)), eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    out = _standard(x, list(range(2, x.dim())), eps)
    channels = (1, -1, *[1] * (x.dim() - 2))
    out = out if weight is None else out * weight.reshape(channels)
    return out if bias is None else out + bias.reshape(channels)


def _standard(x: Tensor, axes: list[int], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(axes, keepdim=True) + eps)
