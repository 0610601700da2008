"""Per-record gradients of a module without a closed form, by ``vmap`` over that module alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from seepage.errors import InputError
from seepage.nn.gradients.per_record_gradients import GradientTerm, Key
from seepage.nn.gradients.plain_kernels import PlainNorms
from seepage.nn.gradients.watching import Call, OnOutput, UnruledModule, differentiable_backends
from seepage.nn.problem.views import plain_run


@dataclass(frozen=True)
class Fallback(UnruledModule):
    """A module whose parameters ``names`` get their gradients from ``vmap`` over the module."""

    module: nn.Module
    names: tuple[str, ...]
    inputs: list[list[int | None]]  # per run of the module, per leaf: the axis of the records
    outputs: list[list[int | None]]
    functions: tuple[str, ...]

    @contextmanager
    def watched(
        self,
        net: nn.Module,
        parameters: Mapping[str, Tensor],
        on_output: OnOutput,
        calls: list[Call],
    ) -> Iterator[None]:
        """While inside, show the module's outputs, and keep its inputs among the calls."""
        inside = dict(self.module.named_parameters())
        aliases = {id(p): name for name, p in net.named_parameters()}
        full = {name: aliases[id(p)] for name, p in inside.items()}
        values = {name: parameters.get(full[name], p.detach()) for name, p in inside.items()}
        own = {name: full[name] for name in inside if full[name] in self.names}
        if len(own) < len(self.names):
            raise InputError(
                f"A parameter among {', '.join(self.names)} is used inside "
                f"{type(self.module).__name__} but belongs to another module, and its use has no "
                "rule; register it in the module that uses it."
            )
        runs = iter(range(len(self.inputs)))

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            run = next(runs)
            leaves, structure = tree_flatten(output)
            # Copies: one output may have been computed from another, and its gradient must come
            # only from what follows the module.
            shown = [
                leaf if axis is None else on_output(leaf.clone())
                for leaf, axis in zip(leaves, self.outputs[run], strict=True)
            ]
            calls.append(ModuleCall(self, run, (args, kwargs), values, own))
            return tree_unflatten(shown, structure)

        handle = self.module.register_forward_hook(leave, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


@dataclass(frozen=True)
class ModuleCall(Call):
    """One run of a module that falls back, with its arguments."""

    fallback: Fallback
    run: int
    arguments: Any
    parameters: Mapping[str, Tensor]  # all of the module's, under its own names
    own: Mapping[str, str]  # name in the module → name in the network, of those released here

    @property
    def outputs(self) -> int:
        """The number of outputs that run over the records."""
        return sum(axis is not None for axis in self.fallback.outputs[self.run])

    def keys(self) -> list[Key]:
        """Return the parameter of each term to come."""
        return [(name, 0) for name in self.own.values()]

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return the per-record gradients, given the gradients at the outputs."""
        leaves, structure = tree_flatten(self.arguments)
        axes = self.fallback.inputs[self.run]
        out_axes = [a for a in self.fallback.outputs[self.run] if a is not None]
        module, others = self.fallback.module, dict(self.parameters)
        batch = deltas[0].shape[out_axes[0]]
        # One copy of the parameters per record (a view): torch's recurrent layers add in place,
        # which vmap allows only where everything has the batch axis.
        theta = {
            name: others.pop(name).expand(batch, *self.parameters[name].shape) for name in self.own
        }
        given = [leaf for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]
        in_axes = [axis for axis in axes if axis is not None]

        def one_record(
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
                pairs = zip(tree_leaves(out), self.fallback.outputs[self.run], strict=True)
                return [leaf for leaf, axis in pairs if axis is not None]

            pulled = vjp(outputs, weights)[1](
                [torch.unsqueeze(c, a) for c, a in zip(cotangents, out_axes, strict=True)]
            )
            gradients: dict[str, Tensor] = pulled[0]
            return gradients

        try:
            with differentiable_backends(module), PlainNorms(), plain_run(module):
                values = vmap(one_record, in_dims=(0, in_axes, out_axes))(theta, given, deltas)
        except RuntimeError as problem:
            raise InputError(
                f"{type(module).__name__} has no rule for per-record gradients, and torch's vmap "
                f"cannot run it ({str(problem).splitlines()[0]}); measure with method='finite', "
                "which can run every record on its own, or freeze it."
            ) from problem
        return [GradientTerm((full, 0), (values[name],)) for name, full in self.own.items()]
