"""Watches a running network, and yields the terms of every per-record gradient.

Per-record gradients follow from the inputs of the operations that use parameters and from the
gradients at their outputs. A :class:`Watcher` sees every torch function that the network calls
(also inside ``nn.MultiheadAttention``, and for weights used twice), and a :class:`Rule` says what
its arguments are and which terms it adds to the gradients. A module with a use that no rule covers
answers for it itself (:class:`UnruledModule`).

The gradients at the outputs are obtained in three ways, for three purposes: hooks that free each
layer as soon as it is processed (norms); edges of the graph (for a second differentiation); zero
shifts added to the outputs (inside torch's transformations, for tangents).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from seepage.errors import InputError
from seepage.nn.gradients.per_record_gradients import GradientTerm, Key
from seepage.nn.gradients.plain_kernels import PlainRecurrence
from seepage.nn.gradients.second_order import SUBSTITUTES
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.nn.problem.views import twice_differentiable_run

SMALL = 2  # records in the batch that the shapes of outputs are taken from

OnOutput = Callable[[Tensor], Tensor]  # sees an output; its result continues through the network


@dataclass(frozen=True)
class Layout:
    """The layout of records in an operation's output."""

    # The axis that runs over the records, or ``None`` if all records share the output
    axis: int | None
    # How many consecutive entries of that axis belong to one record (1 unless a sequence was folded
    # into the batch)
    multiple: int = 1

    def by_record(self, tensor: Tensor) -> Tensor:
        """Return the tensor with the records first: ``(B, multiple, …)``."""
        moved = tensor.movedim(self.axis, 0) if self.axis else tensor
        return moved.unflatten(0, (-1, self.multiple))


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, under its rule's names."""

    input: Any
    parameters: Mapping[str, Tensor | None]
    options: Mapping[str, Any] = field(default_factory=dict)

    def version(self) -> int:
        """Return a count that grows whenever a tensor is written into."""
        tensors = (self.input, *self.parameters.values())
        return sum(t._version for t in tensors if t is not None)


class Rule:
    """How one family of operations turns inputs and output gradients into terms."""

    def bind(self, *args: Any, **kwargs: Any) -> Arguments | None:
        """Return the arguments of a call by name, or ``None`` for a use that is not covered."""
        raise NotImplementedError

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the rule holds for an output of this shape and layout."""
        return layout.axis is not None

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return the terms of a call, given the gradient at its output."""
        raise NotImplementedError

    def run_twice_differentiable(
        self, arguments: Arguments, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Arguments]:
        """Run a call so that a second backward pass is cheap; return its output and arguments."""
        return run(), arguments

    def narrow_axis(self, arguments: Arguments) -> int | None:
        """Return the axis of its weight along which gradients can be narrowed, or ``None``."""
        return None

    def positions(self, shape: tuple[int, ...]) -> int:
        """Return the number of positions in an output of this shape, over all records."""
        return math.prod(shape[:-1])

    def narrowed(self, arguments: Arguments, thin: Tensor) -> Arguments:
        """Return the arguments whose terms give ``gQ`` for the gradient ``g`` of the weight.

        ``Q`` is ``thin``, with as many rows as the axis named by :meth:`narrow_axis` is long.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Narrowing:
    """The axis along which a weight's gradients can be narrowed, and the number of positions."""

    axis: int
    positions: int  # of one record


@dataclass(frozen=True)
class RuleBook:
    """The operations whose per-record gradients have a closed form."""

    rules: Mapping[Any, Rule]  # by torch function
    # Functions with several uses of parameters, by name: each is run step by step, with the watcher
    # as its first argument, so that every use is seen
    composites: Mapping[str, Callable[..., Any]]


class Call(ABC):
    """A use of released parameters, whose terms follow from the gradients at its outputs."""

    @property
    def outputs(self) -> int:
        """The number of watched outputs."""
        return 1

    @abstractmethod
    def keys(self) -> list[Key]:
        """Return the parameter of each term to come."""

    @abstractmethod
    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return what this call adds to the gradients, given those at its outputs."""


@dataclass(frozen=True)
class LayerCall(Call):
    """A call that a rule covers."""

    rule: Rule
    arguments: Arguments
    names: Mapping[str, Key]
    layout: Layout
    version: int

    def keys(self) -> list[Key]:
        """Return the parameter of each term to come."""
        return list(self.names.values())

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return what this call adds to the gradients, given the gradient at its one output."""
        if self.version >= 0 and self.arguments.version() != self.version:
            names = ", ".join(sorted(key[0] for key in self.names.values()))
            raise InputError(
                f"The input of the layer with {names} is overwritten later in the network; "
                "replace the in-place operation (x += …, inplace=True) by one that returns a new "
                "tensor."
            )
        return self.rule.terms(*self._of_one_type(deltas[0]))

    def _of_one_type(self, delta: Tensor) -> tuple[LayerCall, Tensor]:
        """Return call and gradient in one dtype, where autocast inside has mixed two."""
        given = self.arguments.input
        if given is None or not given.is_floating_point() or given.dtype == delta.dtype:
            return self, delta
        if torch.is_autocast_enabled(
            delta.device.type
        ):  # autocast then does the same where it matters
            return self, delta
        longer = torch.promote_types(given.dtype, delta.dtype)
        arguments = replace(self.arguments, input=given.to(longer))
        return replace(self, arguments=arguments), delta.to(longer)


@dataclass(frozen=True)
class SharedCall(Call):
    """A call whose output all records share and is later repeated for each of them.

    ``follow`` maps that output to what is repeated: a relative position bias, say, is looked up for
    pairs of positions and then laid out for the heads.
    """

    made: LayerCall
    output: Tensor
    follow: Callable[[Tensor], Tensor]

    def keys(self) -> list[Key]:
        """Return the parameter of each term to come."""
        return self.made.keys()

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return what this call adds to the gradients, given the gradient at what was repeated."""
        _, back = vjp(self.follow, self.output.detach())
        return self.made.terms([vmap(lambda delta: back(delta)[0])(deltas[0])])

    def followed_by(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> SharedCall:
        """Return the call with one more function between its output and the repetition."""
        place = next(k for k, value in enumerate(args) if isinstance(value, Tensor))
        before, rest = self.follow, args[place + 1 :]

        def follow(output: Tensor) -> Tensor:
            found: Tensor = function(*args[:place], before(output), *rest, **kwargs)
            return found

        return replace(self, follow=follow)


class Watcher(TorchFunctionMode):  # type: ignore[misc]
    """Sees every torch function with a released parameter among its arguments.

    ``names`` are the released parameters as the network will see them, ``id(tensor) → name``, and
    ``substitutes`` functions to call in place of others (where no released parameter is involved).
    """

    def __init__(
        self,
        book: RuleBook,
        names: Mapping[int, str],
        substitutes: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.book, self.names, self.substitutes = book, names, substitutes

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.notice(function, args, kwargs)
        used = self.released(args, kwargs)
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
        """Run one call that a rule covers; ``rows`` is its first row within its parameters."""
        keys = {
            role: (self.names[id(tensor)], rows.get(role, 0))
            for role, tensor in arguments.parameters.items()
            if tensor is not None and id(tensor) in self.names
        }
        return self.known(rule, arguments, keys, run) if keys else run()

    def released(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
        """Return the names of the released parameters among a call's arguments."""
        names, used = self.names, set()
        for value in (*args, *kwargs.values()):
            if id(value) in names:
                used.add(names[id(value)])
            elif isinstance(value, list | tuple):
                used.update(names[id(item)] for item in value if id(item) in names)
        return used

    def notice(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a function, whatever its arguments."""

    def known(
        self, rule: Rule, arguments: Arguments, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Handle a use that a rule covers."""
        raise NotImplementedError

    def unknown(self, function: Any, used: set[str], output: Any) -> Any:
        """Handle a use that no rule covers."""
        return output


class CallKeeper(Watcher):
    """Keeps the calls that use released parameters, under a plan made beforehand.

    The plan has the layout of each call's output, in order; a call whose entry is ``None`` is left
    to its module. ``on_output`` is called with the output of each call that is kept. ``versions``
    watches for inputs that are overwritten (not possible inside a transformation); ``twice`` says
    that a second backward pass will follow, for which some layers have their own formulas; ``thin``
    are random matrices that narrow the inputs of wide weights.
    """

    def __init__(
        self,
        book: RuleBook,
        names: Mapping[int, str],
        layouts: list[Layout | None],
        on_output: OnOutput,
        batch: int,
        versions: bool,
        twice: bool,
        thin: Mapping[str, Tensor],
    ) -> None:
        super().__init__(book, names, SUBSTITUTES if twice else MappingProxyType({}))
        self.thin = thin
        self.layouts, self.on_output, self.batch = layouts, on_output, batch
        self.versions, self.twice = versions, twice
        self.calls: list[Call] = []
        self.seen = 0
        self._shared: dict[int, tuple[Tensor, SharedCall]] = {}  # by the tensor's identity
        self._unrepeated: set[int] = set()  # those of these that are not repeated yet

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = super().__torch_function__(function, types, args, kwargs)
        if not self._shared or not isinstance(output, Tensor):
            return output
        given = [value for value in args if isinstance(value, Tensor)]
        _, call = self._shared.get(id(given[0]), (None, None)) if len(given) == 1 else (None, None)
        if call is None:
            return output
        call = call.followed_by(function, args, kwargs or {})
        if output.shape[:1] != (1,):
            self._shared[id(output)] = output, call
            return output
        self._unrepeated.discard(id(call.made))
        self.calls.append(replace(call, follow=_first_of(call.follow)))
        return self.on_output(output.expand(self.batch, *output.shape[1:]))

    def check_end(self) -> None:
        """Raise if the network ran differently from the first look."""
        if self.seen != len(self.layouts) or self._unrepeated:
            raise InputError(
                "The network uses its parameters less often than on its first run; its control "
                "flow must not depend on the data."
            )

    def known(
        self, rule: Rule, arguments: Arguments, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Run the call, and keep what its terms need."""
        if self.seen == len(self.layouts):
            raise InputError(
                "The network uses its parameters more often than on its first run; its control "
                "flow must not depend on the data."
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
            self._shared[id(output)] = output, SharedCall(call, output, lambda value: value)
            self._unrepeated.add(id(call))
            return output
        alone = output[0] if output.shape[0] == 1 else output
        self.calls.append(call)
        return self.on_output(alone.expand(self.batch, *alone.shape))


def _first_of(follow: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda output: follow(output)[0]


class UnruledModule(ABC):
    """A module responsible for a use of the parameters ``names`` that no rule covers."""

    module: nn.Module
    names: tuple[str, ...]
    functions: tuple[str, ...]  # the functions that use them

    @abstractmethod
    def watched(
        self,
        net: nn.Module,
        parameters: Mapping[str, Tensor],
        on_output: OnOutput,
        calls: list[Call],
    ) -> AbstractContextManager[None]:
        """Return a context in which the module's outputs are shown and its calls kept."""


@dataclass(frozen=True)
class Plan:
    """How to watch a network: the layout of every call, and the modules without a rule.

    ``kinks`` names the functions of the unknowns whose derivatives jump; ``narrow`` holds the
    weights whose gradients can be narrowed in all their uses.
    """

    layouts: list[Layout | None]
    unruled: Sequence[UnruledModule]
    kinks: frozenset[str]
    narrow: Mapping[str, Narrowing]


@dataclass(frozen=True)
class OutputShape:
    """The shape of one watched output: that for two records, and the axis that grows."""

    small: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    first: bool  # whether no watched output precedes it

    def zeros(self, batch: int, device: torch.device) -> Tensor:
        """Return zeros of that shape for a batch; they take no memory."""
        shape = list(self.small)
        shape[self.axis] = shape[self.axis] // SMALL * batch
        return torch.zeros((), dtype=self.dtype, device=device).expand(shape)


@dataclass(frozen=True)
class NetworkRun:
    """The losses of a batch, and the calls that were kept on the way, in their order."""

    losses: Tensor
    calls: list[Call]

    def terms(self, deltas: list[Tensor]) -> list[GradientTerm]:
        """Return the terms, given the gradients at all watched outputs."""
        out: list[GradientTerm] = []
        place = 0
        for call in self.calls:
            out.extend(call.terms(deltas[place : place + call.outputs]))
            place += call.outputs
        return out


@dataclass(frozen=True)
class WatchedNetwork:
    """A problem with its plan, whose network can be watched on any batch."""

    problem: NetworkProblem  # the network, its loss and the view
    book: RuleBook  # the rules for operations
    plan: Plan  # the layout of records, and the modules without a rule
    outputs: list[OutputShape]  # the shapes of the watched outputs

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
        """Run the network on a batch, show the outputs of all uses of parameters, yield the run.

        A backward pass is possible while inside; afterwards only its numbers are.
        ``thin`` holds random matrices, by the names of wide weights, that narrow their inputs
        (:meth:`Rule.narrowed`).
        """
        names = {id(tensor): name for name, tensor in parameters.items()}
        layouts, net = self.plan.layouts, self.problem.net
        keeper = CallKeeper(self.book, names, layouts, on_output, len(batch), versions, twice, thin)
        with self.problem.in_place(parameters, batch, z) as losses_of_run:
            with ExitStack() as stack:
                for module in self.plan.unruled:
                    stack.enter_context(module.watched(net, parameters, on_output, keeper.calls))
                stack.enter_context(keeper)
                losses = losses_of_run()
            keeper.check_end()
            yield NetworkRun(losses, keeper.calls)

    def terms(self, batch: Batch) -> tuple[Tensor, list[GradientTerm]]:
        """Return losses and terms as plain numbers."""
        with torch.enable_grad():
            losses, found = self._terms(batch, connected(batch.z), twice=False)
        return losses.detach(), found

    def differentiable_terms(self, batch: Batch, z: Tensor) -> tuple[Tensor, list[GradientTerm]]:
        """Return losses and terms whose dependence on ``z`` torch can differentiate."""
        with differentiable_backends(self.problem.net):
            return self._terms(batch, z, twice=True)

    def _terms(self, batch: Batch, z: Tensor, twice: bool) -> tuple[Tensor, list[GradientTerm]]:
        edges: list[Any] = []

        def keep_edge(output: Tensor) -> Tensor:
            if not output.requires_grad:  # a copy, since later code may write into it
                output = output.detach().requires_grad_().clone()
            edges.append(get_gradient_edge(output))
            return output

        parameters = self.problem.detached()
        with self.running(parameters, batch, z, keep_edge, twice=twice) as run:
            total = run.losses.sum()
            found = torch.autograd.grad(total, edges, create_graph=twice, allow_unused=True)
        deltas = [
            shape.zeros(len(batch), batch.z.device) if delta is None else delta
            for delta, shape in zip(found, self.outputs, strict=True)
        ]
        with torch.set_grad_enabled(twice):
            return run.losses, run.terms(deltas)

    def of_type(self, dtype: torch.dtype) -> WatchedNetwork:
        """Return the watched network in a longer floating-point type."""
        outputs = [replace(o, dtype=dtype) for o in self.outputs]
        return replace(self, problem=replace(self.problem, wider=dtype), outputs=outputs)

    def bytes_per_record(self) -> int:
        """Return the number of entries in the watched outputs of one record."""
        return sum(math.prod(s.small) // SMALL * s.dtype.itemsize for s in self.outputs)

    def zeros(self, batch: Batch) -> list[Tensor]:
        """Return a zero for every watched output, to be added to it."""
        return [shape.zeros(len(batch), batch.z.device) for shape in self.outputs]


def connected(z: Tensor) -> Tensor:
    """Return the variable as the root of a graph; it may be written into.

    A checkpointed part of the network runs again in the backward pass, where nothing is watched:
    the variable makes its outputs require gradients both times.
    """
    return z.detach().requires_grad_().clone()


@contextmanager
def differentiable_backends(net: nn.Module) -> Iterator[None]:
    """While inside, use plain attention and recurrent layers that can be differentiated twice.

    The fused attention kernels have no forward-mode rule, the fused encoder layer has no gradient
    at all, and fused recurrent layers cannot be differentiated twice. Gradients are switched on:
    without them, torch uses formulas for SiLU and GroupNorm that cannot be differentiated.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_without_fast_path())
        stack.enter_context(twice_differentiable_run(net))
        if any(isinstance(module, nn.RNNBase) for module in net.modules()):
            stack.enter_context(PlainRecurrence())
        yield


@contextmanager
def _without_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
