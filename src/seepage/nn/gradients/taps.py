"""Watches a network at work: which operations use a released parameter, and with what inputs.

Per-example gradients follow from the inputs of the operations that use parameters and from the
gradients at their outputs. A :class:`Recorder` sees every torch function that the network calls
(also inside ``nn.MultiheadAttention``, and for weights used twice), keeps the inputs, and hands the
outputs to a ``tap`` that arranges for their gradients to be known later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from seepage.errors import InputError
from seepage.nn.gradients.contributions import Contribution, Key
from seepage.nn.gradients.second_order import SUBSTITUTES

Tap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """Where the examples are in an operation's output.

    Parameters
    ----------
    axis
        The axis that runs over the examples, or ``None`` where the output is the same for all.
    multiple
        How many consecutive entries of that axis belong to one example (1 unless a sequence was
        folded into the batch).
    """

    axis: int | None
    multiple: int = 1

    def by_example(self, tensor: Tensor) -> Tensor:
        """Return the tensor with the examples first: ``(B, multiple, …)``."""
        moved = tensor.movedim(self.axis, 0) if self.axis else tensor
        return moved.unflatten(0, (-1, self.multiple))


@dataclass(frozen=True)
class Bound:
    """The arguments of a call under the names that its rule gives them."""

    input: Any
    parameters: Mapping[str, Tensor | None]
    options: Mapping[str, Any] = field(default_factory=dict)

    def version(self) -> int:
        """Return a count that grows when anything is written into the tensors."""
        tensors = (self.input, *self.parameters.values())
        return sum(t._version for t in tensors if t is not None)


class Rule:
    """How one family of operations turns inputs and output gradients into contributions."""

    def bind(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound | None:
        """Return the arguments by name, or ``None`` for a use the rule does not cover."""
        raise NotImplementedError

    def covers(self, bound: Bound, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the rule holds for an output of this shape and layout."""
        return layout.axis is not None

    def contributions(self, call: Call, delta: Tensor) -> list[Contribution]:
        """Return the contributions of a call, given the gradient at its output."""
        raise NotImplementedError

    def run_twice_differentiable(
        self, bound: Bound, run: Callable[[], Tensor]
    ) -> tuple[Tensor, Bound]:
        """Run a call so that a second backward pass is cheap; return its output and arguments."""
        return run(), bound


@dataclass(frozen=True)
class Call:
    """One recorded use of released parameters."""

    rule: Rule
    bound: Bound
    names: Mapping[str, Key]
    layout: Layout
    version: int

    def keys(self) -> list[Key]:
        """Return the parameter of each contribution to come."""
        return list(self.names.values())

    def contributions(self, deltas: list[Tensor]) -> list[Contribution]:
        """Return what this call adds to the gradients, given the gradient at its one output."""
        if self.version >= 0 and self.bound.version() != self.version:
            names = ", ".join(sorted(key[0] for key in self.names.values()))
            raise InputError(
                f"The input of the layer with {names} is overwritten later in the network; replace "
                "the in-place operation (x += …, inplace=True) by one that makes a new tensor."
            )
        return self.rule.contributions(self, deltas[0])


@cache
def _known_operations() -> tuple[Mapping[Any, Rule], Callable[[Any], Any]]:
    """Return the rules, which are made of what this module defines."""
    from seepage.nn.gradients.rules import RULES, composite

    return RULES, composite


class Watcher(TorchFunctionMode):  # type: ignore[misc]
    """Sees every torch function with a released parameter among its arguments.

    Parameters
    ----------
    names
        The released parameters as the network will see them: ``id(tensor) → name``.
    substitutes
        Functions to call in the place of others (where no released parameter is involved).
    """

    def __init__(
        self, names: Mapping[int, str], substitutes: Mapping[Any, Any] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self.names, self.substitutes = names, substitutes

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        rules, composite = _known_operations()
        kwargs = kwargs or {}
        self.notice(function)
        used = self.released(args, kwargs)
        if not used:
            substitute = self.substitutes.get(function)
            output = NotImplemented if substitute is None else substitute(*args, **kwargs)
            return function(*args, **kwargs) if output is NotImplemented else output
        steps = composite(function)
        if steps is not None:
            output = steps(self, *args, **kwargs)
            if output is not NotImplemented:
                return output
        rule = rules.get(function)
        bound = None if rule is None else rule.bind(function, args, kwargs)
        if rule is None or bound is None:
            return self.unknown(function, used, function(*args, **kwargs))
        return self.call(rule, bound, lambda: function(*args, **kwargs))

    def call(
        self,
        rule: Rule,
        bound: Bound,
        run: Callable[[], Tensor],
        rows: Mapping[str, int] = MappingProxyType({}),
    ) -> Tensor:
        """Run one call that a rule covers; ``rows`` is where it starts inside its parameters."""
        keys = {
            role: (self.names[id(tensor)], rows.get(role, 0))
            for role, tensor in bound.parameters.items()
            if tensor is not None and id(tensor) in self.names
        }
        return self.known(rule, bound, keys, run) if keys else run()

    def released(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
        """Return the names of the released parameters among a call's arguments."""
        names, used = self.names, set()
        for value in (*args, *kwargs.values()):
            if id(value) in names:
                used.add(names[id(value)])
            elif isinstance(value, list | tuple):
                used.update(names[id(item)] for item in value if id(item) in names)
        return used

    def notice(self, function: Any) -> None:
        """Take note of a function, whatever its arguments."""

    def known(
        self, rule: Rule, bound: Bound, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Deal with a use that a rule covers."""
        raise NotImplementedError

    def unknown(self, function: Any, used: set[str], output: Any) -> Any:
        """Deal with a use that no rule covers."""
        return output


class Recorder(Watcher):
    """Records the calls that use released parameters, under a plan made beforehand.

    Parameters
    ----------
    names
        As for :class:`Watcher`.
    layouts
        The layout of each call's output, in order; a call whose entry is ``None`` is left to a
        fallback.
    tap
        Called with each recorded output; what it returns goes on through the network.
    batch
        The number of examples.
    versions
        Whether to watch for inputs that are overwritten (not possible inside a transformation).
    twice
        Whether a second backward pass will follow, for which some layers have their own formulas.
    records
        Where each call goes, with the number of outputs it taps.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        layouts: list[Layout | None],
        tap: Tap,
        batch: int,
        versions: bool,
        twice: bool,
        records: list[Any],
    ) -> None:
        super().__init__(names, SUBSTITUTES if twice else MappingProxyType({}))
        self.twice = twice
        self.layouts, self.tap, self.batch, self.versions = layouts, tap, batch, versions
        self.records = records
        self.seen = 0

    def known(
        self, rule: Rule, bound: Bound, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Run the call, keep what its contributions will need, and tap its output."""
        if self.seen == len(self.layouts):
            raise InputError(
                "The network uses its parameters more often than when it was first looked at; its "
                "course must not depend on the data."
            )
        layout = self.layouts[self.seen]
        self.seen += 1
        if layout is None:
            return run()
        if self.twice:
            output, bound = rule.run_twice_differentiable(bound, run)
        else:
            output = run()
        version = bound.version() if self.versions else -1
        if layout.axis is None:
            output, layout = repeated(output, self.batch), Layout(0)
        self.records.append((Call(rule, bound, keys, layout, version), 1))
        return self.tap(output)


def repeated(output: Tensor, batch: int) -> Tensor:
    """Return an output that all examples share as if each had its own, without copying it."""
    alone = output[0] if output.shape[0] == 1 else output
    return alone.expand(batch, *alone.shape)
