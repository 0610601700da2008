"""Traces a running network, and yields the terms of every per-record gradient.

Per-record gradients follow from the inputs of the operations that use parameters and from the
gradients at their outputs. A :class:`Watcher` intercepts every torch function that the network
calls, also inside ``nn.MultiheadAttention`` and at repeated uses of a weight. A :class:`Rule`
interprets the function's arguments and computes the terms that the call adds to the gradients. If
no rule covers a use, the gradients of the enclosing module are computed by ``vmap``
(:class:`Fallback`).

The gradients at the outputs are obtained in three ways. For norms, hooks receive them and free each
layer once it is processed. For a second differentiation, they are taken from edges of the graph.
For tangents, inside torch's transformations, zero shifts are added to the outputs, and the
gradients with respect to the shifts are taken.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpointing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from seepage.errors import InputError
from seepage.nn.gradients.per_record_gradients import GradientTerm, Key
from seepage.nn.gradients.plain_kernels import PlainNorms, PlainRecurrence
from seepage.nn.gradients.second_order import SUBSTITUTES
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.nn.problem.views import plain_run, switch_off
from seepage.tables.names import listed

SMALL = 2  # records in the batch that the shapes of outputs are taken from

OnOutput = Callable[[Tensor], Tensor]  # sees an output; its result continues through the network
OnRecord = Callable[[Tensor], None]  # receives the gradient of the summed losses, ``∇_z Σ_i ℓ_i``


@dataclass(frozen=True)
class Layout:
    """The layout of the records in an operation's output."""

    # The axis that runs over the records, or ``None`` if all records share the output
    axis: int | None
    # How many consecutive entries of that axis belong to one record (1 unless a sequence was folded
    # into the batch)
    multiple: int = 1

    def by_record(self, tensor: Tensor) -> Tensor:
        """Return the tensor with the records on the first axis, ``(B, multiple, …)``."""
        moved = tensor.movedim(self.axis, 0) if self.axis else tensor
        return moved.unflatten(0, (-1, self.multiple))


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, with the names that its rule uses."""

    input: Any
    parameters: Mapping[str, Tensor | None]
    options: Mapping[str, Any] = field(default_factory=dict)

    def version(self) -> int:
        """Return a count that increases whenever one of the tensors is modified in place."""
        tensors = (self.input, *self.parameters.values())
        return sum(t._version for t in tensors if t is not None)


class Rule:
    """Computes gradient terms from the inputs and output gradients of one family of operations."""

    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return a call's arguments by name, or ``None`` if the rule does not cover the call."""
        raise NotImplementedError

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the rule is valid for an output of this shape and layout."""
        return layout.axis is not None

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return the gradient terms of a call, given the gradient at its output."""
        raise NotImplementedError

    def run_twice_differentiable(
        self, arguments: Arguments, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Arguments]:
        """Run a call so that a second backward pass is cheap; return its output and arguments."""
        return run(), arguments

    def narrow_axis(self, arguments: Arguments) -> int | None:
        """Return the weight axis along which gradients can be narrowed, or ``None``."""
        return None

    def positions(self, shape: tuple[int, ...]) -> int:
        """Return the number of positions in an output of this shape, over all records."""
        return math.prod(shape[:-1])

    def narrowed(self, arguments: Arguments, thin: Tensor) -> Arguments:
        """Return arguments whose terms give ``gQ``, where ``g`` is the gradient of the weight.

        ``Q`` is ``thin``, with as many rows as the axis from :meth:`narrow_axis` has entries.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class RuleBook:
    """The rules for operations whose per-record gradients have a closed form."""

    rules: Mapping[Any, Rule]  # by torch function
    # Functions with several uses of parameters, by name: each is run step by step, with the watcher
    # as its first argument, so that every use is seen
    composites: Mapping[str, Callable[..., Any]]


class Call(ABC):
    """One use of released parameters; its terms follow from the gradients at its outputs."""

    outputs: int = 1  # the number of watched outputs

    @abstractmethod
    def keys(self) -> list[Key]:
        """Return the parameter of each term."""

    @abstractmethod
    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return this call's gradient terms, given the gradients at the call's outputs."""


@dataclass(frozen=True)
class LayerCall(Call):
    """A call that a rule covers."""

    rule: Rule
    arguments: Arguments
    names: Mapping[str, Key]
    layout: Layout
    version: int

    def keys(self) -> list[Key]:
        """Return the parameter of each term."""
        return list(self.names.values())

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return this call's contribution to the gradients, given the gradient at its output."""
        if self.version >= 0 and self.arguments.version() != self.version:
            names = ", ".join(sorted(key[0] for key in self.names.values()))
            raise InputError(
                f"The input of the layer with {names} is overwritten later in the network; replace "
                "the in-place operation (x += …, inplace=True) with one that returns a new tensor."
            )
        call, delta, given = self, deltas[0], self.arguments.input
        mixed = given is not None and given.is_floating_point() and given.dtype != delta.dtype
        # Autocast inside the network has mixed two types; around it, it does this where it matters.
        if mixed and not torch.is_autocast_enabled(delta.device.type):
            longer = torch.promote_types(given.dtype, delta.dtype)
            call = replace(self, arguments=replace(self.arguments, input=given.to(longer)))
            delta = delta.to(longer)
        return self.rule.terms(call, delta)


@dataclass(frozen=True)
class SharedCall(Call):
    """A call whose output is shared by all records and later repeated for each record.

    ``follow`` maps the shared output to the tensor that is repeated. A relative position bias, for
    example, is looked up for pairs of positions and then rearranged for the heads.
    """

    made: LayerCall
    output: Tensor
    follow: Callable[[Tensor], Tensor]

    def keys(self) -> list[Key]:
        """Return the parameter of each term."""
        return self.made.keys()

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return this call's contribution, given the gradient at the repeated output."""
        _, back = vjp(self.follow, self.output.detach())
        return self.made.terms([vmap(lambda delta: back(delta)[0])(deltas[0])])

    def followed_by(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> SharedCall:
        """Return the call with another function applied between its output and the repetition."""
        place = next(k for k, value in enumerate(args) if isinstance(value, Tensor))
        before, rest = self.follow, args[place + 1 :]

        def follow(output: Tensor) -> Tensor:
            value: Tensor = function(*args[:place], before(output), *rest, **kwargs)
            return value

        return replace(self, follow=follow)


@dataclass(eq=False)
class Watcher(TorchFunctionMode):  # type: ignore[misc]
    """Intercepts every torch function with a released parameter among its arguments."""

    book: RuleBook
    names: Mapping[int, str]  # released parameters as the network will see them: id(tensor) → name
    # Functions to call in place of others, where no released parameter is involved
    substitutes: Mapping[Any, Any] = field(default_factory=dict)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, names = kwargs or {}, self.names
        given = (*args, *kwargs.values())
        used = {names[id(value)] for value in given if id(value) in names}
        for several in given:
            if isinstance(several, list | tuple):
                used |= {names[id(value)] for value in several if id(value) in names}
        if not used:
            substitute = self.substitutes.get(function)
            output = NotImplemented if substitute is None else substitute(*args, **kwargs)
            return function(*args, **kwargs) if output is NotImplemented else output
        composite = self.book.composites.get(getattr(function, "__name__", ""))
        if composite is not None:
            output = composite(self, *args, **kwargs)
            if output is not NotImplemented:
                return output
        rule = self.book.rules.get(function)
        arguments = None if rule is None else rule.bind(*args, **kwargs)
        if rule is None or arguments is None:
            return self.unknown(function, used, function(*args, **kwargs))
        return self.call(rule, arguments, lambda: function(*args, **kwargs))

    def call(
        self,
        rule: Rule,
        arguments: Arguments,
        run: Callable[[], Tensor],
        rows: Mapping[str, int] = MappingProxyType({}),
    ) -> Tensor:
        """Run a call that a rule covers; ``rows`` gives each parameter's first used row."""
        keys = {
            role: (self.names[id(tensor)], rows.get(role, 0))
            for role, tensor in arguments.parameters.items()
            if tensor is not None and id(tensor) in self.names
        }
        return self.known(rule, arguments, keys, run) if keys else run()

    def known(
        self, rule: Rule, arguments: Arguments, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Handle a use that a rule covers."""
        raise NotImplementedError

    def unknown(self, function: Any, used: set[str], output: Any) -> Any:
        """Handle a use that no rule covers."""
        return output


@dataclass(eq=False, kw_only=True)
class CallKeeper(Watcher):
    """Records the calls that use released parameters, following a plan."""

    layouts: list[Layout | None]  # of each call's output, in order; ``None``: left to its module
    on_output: OnOutput  # called with the output of each call that is kept
    batch: int  # the number of records
    versions: bool  # watch for overwritten inputs, which is not possible inside a transformation
    twice: bool  # a second backward pass will follow, for which some layers have their own formulas
    thin: Mapping[str, Tensor]  # random matrices that narrow the inputs of wide weights
    calls: list[Call] = field(default_factory=list)
    seen: int = 0
    # Outputs that all records share, by identity, and those of them that are not repeated yet
    shared: dict[int, tuple[Tensor, SharedCall]] = field(default_factory=dict)
    unrepeated: set[int] = field(default_factory=set)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = super().__torch_function__(function, types, args, kwargs)
        if not self.shared or not isinstance(output, Tensor):
            return output
        given = [value for value in args if isinstance(value, Tensor)]
        _, call = self.shared.get(id(given[0]), (None, None)) if len(given) == 1 else (None, None)
        if call is None:
            return output
        call = call.followed_by(function, args, kwargs or {})
        if output.shape[:1] != (1,):
            self.shared[id(output)] = output, call
            return output
        self.unrepeated.discard(id(call.made))
        follow = call.follow
        self.calls.append(replace(call, follow=lambda made: follow(made)[0]))
        return self.on_output(output.expand(self.batch, *output.shape[1:]))

    def known(
        self, rule: Rule, arguments: Arguments, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Run the call, and store the tensors that its terms need."""
        if self.seen == len(self.layouts):
            raise InputError(
                "The network uses its parameters more often than in its first run; change its "
                "control flow so that it does not depend on the data."
            )
        layout = self.layouts[self.seen]
        self.seen += 1
        if layout is None:
            return run()
        if self.twice:
            output, arguments = rule.run_twice_differentiable(arguments, run)
        else:
            output = run()
        if "weight" in keys and keys["weight"][0] in self.thin:
            with torch.no_grad():
                arguments = rule.narrowed(arguments, self.thin[keys["weight"][0]])
        version = arguments.version() if self.versions else -1
        if layout.axis is not None:
            self.calls.append(LayerCall(rule, arguments, keys, layout, version))
            return self.on_output(output)
        # Shared by all records: as if each had its own, without a copy.
        call = LayerCall(rule, arguments, keys, Layout(0), version)
        if output.dim() > 2 and output.shape[0] != 1:
            self.shared[id(output)] = output, SharedCall(call, output, lambda value: value)
            self.unrepeated.add(id(call))
            return output
        alone = output[0] if output.shape[0] == 1 else output
        self.calls.append(call)
        return self.on_output(alone.expand(self.batch, *alone.shape))


@dataclass(frozen=True)
class Fallback:
    """A module that uses the parameters ``names`` in a way that no rule covers.

    The gradients of these parameters are computed by ``vmap`` over this module alone.
    """

    module: nn.Module
    names: tuple[str, ...]
    inputs: list[list[int | None]]  # per run of the module, per leaf: the axis of the records
    outputs: list[list[int | None]]
    functions: tuple[str, ...]  # the functions that use them

    @contextmanager
    def watched(
        self,
        net: nn.Module,
        parameters: Mapping[str, Tensor],
        on_output: OnOutput,
        calls: list[Call],
    ) -> Iterator[None]:
        """Open a context that adds the module's runs to the recorded calls."""
        inside = dict(self.module.named_parameters())
        aliases = {id(p): name for name, p in net.named_parameters()}
        full = {name: aliases[id(p)] for name, p in inside.items()}
        values = {name: parameters.get(full[name], p.detach()) for name, p in inside.items()}
        own = {name: full[name] for name in inside if full[name] in self.names}
        if len(own) < len(self.names):
            raise InputError(
                f"{type(self.module).__name__} uses a parameter of another module "
                f"({listed([name for name in self.names if name not in own.values()])}), and no "
                "rule covers this use; register the parameter in the module that uses it."
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
    """One run of a module that uses ``vmap``, with its arguments."""

    fallback: Fallback
    run: int
    arguments: Any
    parameters: Mapping[str, Tensor]  # all of the module's, under its own names
    own: Mapping[str, str]  # name in the module → name in the network, of those released here

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """The number of outputs that have a records' axis."""
        return sum(axis is not None for axis in self.fallback.outputs[self.run])

    def keys(self) -> list[Key]:
        """Return the parameter of each term."""
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
                f"cannot run it ({str(problem).splitlines()[0]}). Measure with method='finite', "
                "which can run records one by one, or freeze the module's parameters."
            ) from problem
        return [GradientTerm((full, 0), (values[name],)) for name, full in self.own.items()]


@dataclass(frozen=True)
class OutputShape:
    """The shape of one traced output for two records, and the axis that grows with the batch."""

    small: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    first: bool  # whether no watched output precedes it

    def zeros(self, batch: int, device: torch.device) -> Tensor:
        """Return zeros of this shape for a batch, without allocating their memory."""
        shape = list(self.small)
        shape[self.axis] = shape[self.axis] // SMALL * batch
        return torch.zeros((), dtype=self.dtype, device=device).expand(shape)


@dataclass(frozen=True)
class NetworkRun:
    """The losses of a batch, and the recorded calls in order."""

    losses: Tensor
    calls: list[Call]

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return the gradient terms, given the gradients at all watched outputs."""
        out: list[GradientTerm] = []
        place = 0
        for call in self.calls:
            out.extend(call.terms(deltas[place : place + call.outputs]))
            place += call.outputs
        return out


@dataclass(frozen=True)
class WatchedNetwork:
    """A network with its loss and view, and a plan for tracing it on any batch."""

    problem: NetworkProblem  # the network, its loss and the view
    book: RuleBook  # the rules for operations
    layouts: list[Layout | None]  # of every call; ``None`` for one that is left to its module
    unruled: Sequence[Fallback]  # the modules without a rule
    kinks: frozenset[str]  # functions of the unknowns whose derivatives jump
    # The weights whose gradients can be narrowed in all their uses: along which axis, and the
    # number of one record's positions
    narrow: Mapping[str, tuple[int, int]]
    outputs: Sequence[OutputShape] = ()  # the shapes of the watched outputs

    @contextmanager
    def running(
        self,
        parameters: Mapping[str, Tensor],
        batch: Batch,
        z: Tensor,
        on_output: OnOutput,
        versions: bool = True,
        twice: bool = False,
        thin: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> Iterator[NetworkRun]:
        """Run the network on a batch, record the outputs of all parameter uses, and yield the run.

        A backward pass is possible only inside the context; after it, the computed values remain.
        ``thin`` maps the names of wide weights to random matrices that narrow the weights' inputs
        (:meth:`Rule.narrowed`).
        """
        names = {id(tensor): name for name, tensor in parameters.items()}
        layouts, net = self.layouts, self.problem.net
        keeper = CallKeeper(
            self.book,
            names,
            SUBSTITUTES if twice else {},
            layouts=layouts,
            on_output=on_output,
            batch=len(batch),
            versions=versions,
            twice=twice,
            thin=thin,
        )
        with self.problem.in_place(parameters, batch, z) as losses_of_run:
            with ExitStack() as stack:
                for module in self.unruled:
                    stack.enter_context(module.watched(net, parameters, on_output, keeper.calls))
                stack.enter_context(keeper)
                losses = losses_of_run()
            if keeper.seen != len(layouts) or keeper.unrepeated:
                raise InputError(
                    "The network uses its parameters less often than in its first run; change its "
                    "control flow so that it does not depend on the data."
                )
            yield NetworkRun(losses, keeper.calls)

    def terms(
        self, batch: Batch, on_record: OnRecord | None = None
    ) -> tuple[Tensor, list[GradientTerm]]:
        """Return losses and gradient terms, detached from the autograd graph.

        ``on_record`` receives ``∇_z Σ_i ℓ_i`` from the same backward pass.
        """
        with torch.enable_grad():
            z = batch.z.detach().requires_grad_()
            losses, terms = self._terms(batch, z, twice=False, on_record=on_record)
        return losses.detach(), terms

    def differentiable_terms(self, batch: Batch, z: Tensor) -> tuple[Tensor, list[GradientTerm]]:
        """Return losses and gradient terms that torch can differentiate with respect to ``z``."""
        with differentiable_backends(self.problem.net):
            return self._terms(batch, z, twice=True)

    def _terms(
        self, batch: Batch, z: Tensor, twice: bool, on_record: OnRecord | None = None
    ) -> tuple[Tensor, list[GradientTerm]]:
        edges: list[Any] = []

        def keep_edge(output: Tensor) -> Tensor:
            if not output.requires_grad:  # a copy, since later code may write into it
                output = output.detach().requires_grad_().clone()
            edges.append(get_gradient_edge(output))
            return output

        parameters, given = self.problem.detached(), z if twice else connected(z)
        with self.running(parameters, batch, given, keep_edge, twice=twice) as run:
            total = run.losses.sum()
            wanted = edges if on_record is None else [*edges, z]
            gradients = torch.autograd.grad(total, wanted, create_graph=twice, allow_unused=True)
        if on_record is not None:
            *gradients, slopes = gradients
            on_record(torch.zeros_like(z) if slopes is None else slopes)
        deltas = [
            shape.zeros(len(batch), batch.z.device) if delta is None else delta
            for delta, shape in zip(gradients, self.outputs, strict=True)
        ]
        with torch.set_grad_enabled(twice):
            return run.losses, run.terms(deltas)

    def of_type(self, dtype: torch.dtype) -> WatchedNetwork:
        """Return the watched network in a floating-point type of higher precision."""
        outputs = [replace(o, dtype=dtype) for o in self.outputs]
        return replace(self, problem=replace(self.problem, wider=dtype), outputs=outputs)

    @cached_property
    def bytes_per_record(self) -> int:
        """The memory that one record's watched outputs occupy."""
        return sum(math.prod(s.small) // SMALL * s.dtype.itemsize for s in self.outputs)


def connected(z: Tensor) -> Tensor:
    """Return a copy of the variable that belongs to its graph and may be overwritten.

    A checkpointed part of the network runs again in the backward pass, without a watcher. Because
    the variable requires gradients, the part's outputs require gradients in both runs.
    """
    return (z if z.requires_grad else z.detach().requires_grad_()).clone()


@contextmanager
def differentiable_backends(net: nn.Module) -> Iterator[None]:
    """Open a context with plain attention and recurrent layers, which are twice differentiable.

    Fused attention kernels have no forward-mode rule, and the fused encoder layer has no gradient
    at all. Fused recurrent layers and checkpointed parts cannot be differentiated twice. Neither
    can a forward pass under the autocast of ``accelerate``, which does not cover the backward pass,
    so this autocast is removed. Gradients are enabled, because torch otherwise uses formulas for
    SiLU and GroupNorm that cannot be differentiated.
    """

    def run_once(*args: Any, **kwargs: Any) -> Iterator[None]:
        """Run a checkpointed part once, so that it keeps its tensors."""
        yield

    mha = torch.backends.mha
    with ExitStack() as stack:
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        switch_off(stack, checkpointing, "_checkpoint_without_reentrant_generator", run_once)
        for module in net.modules():
            switch_off(stack, module, "gradient_checkpointing", False)
            if "_original_forward" in module.__dict__:
                switch_off(stack, module, "forward", module.__dict__["_original_forward"])
        if any(isinstance(module, nn.RNNBase) for module in net.modules()):
            stack.enter_context(PlainRecurrence())
        yield
