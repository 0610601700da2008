"""A first look at a network: where its examples are, and which uses of parameters have no rule.

The network is run on two and on three examples. An axis that grows from 2m to 3m holds the
examples; a shape alone cannot tell (a batch may be as long as a sequence). Parameters with a use
that no rule covers are left to the innermost module around that use which sees the examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seepage.errors import InputError
from seepage.nn.gradients.contributions import Key
from seepage.nn.gradients.taps import Bound, Layout, Rule, Watcher

SMALL, LARGE = 2, 3


@dataclass
class Frame:
    """One run of a module's ``forward``: what it was given and what it returned."""

    module: nn.Module
    inputs: list[tuple[int, ...] | None]
    outputs: list[tuple[int, ...] | None] = field(default_factory=list)


@dataclass(frozen=True)
class Sighting:
    """One use of parameters, with the modules around it, the innermost last."""

    rule: Rule | None
    bound: Bound | None
    names: tuple[str, ...]
    shape: tuple[int, ...]
    frames: tuple[Frame, ...]
    function: str


@dataclass(frozen=True)
class Fallback:
    """A module whose parameters ``names`` get their gradients from ``vmap`` over the module."""

    module: nn.Module
    names: tuple[str, ...]
    inputs: list[list[int | None]]  # per run of the module, per leaf: the axis of the examples
    outputs: list[list[int | None]]
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """How to record a network: the layout of every call, and the modules without a rule."""

    layouts: list[Layout | None]
    fallbacks: list[Fallback]
    functions: frozenset[Any]


class Scout(Watcher):
    """Notes every use of a parameter and changes nothing."""

    def __init__(self, names: Mapping[int, str], stack: list[Frame]) -> None:
        super().__init__(names)
        self.stack = stack
        self.sightings: list[Sighting] = []
        self.functions: set[Any] = set()

    def notice(self, function: Any) -> None:
        """Keep the function."""
        self.functions.add(function)

    def known(
        self, rule: Rule, bound: Bound, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Note a use that a rule covers."""
        output = run()
        names = tuple(name for name, _ in keys.values())
        self._add(rule, bound, names, output, type(rule).__name__)
        return output

    def unknown(self, function: Any, used: set[str], output: Any) -> Any:
        """Note a use without a rule; asking a parameter for its shape is none."""
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        if tensors:
            name = getattr(function, "__name__", str(function))
            self._add(None, None, tuple(sorted(used)), tensors[0], name)
        return output

    def _add(
        self, rule: Rule | None, bound: Bound | None, names: tuple[str, ...], out: Tensor, what: str
    ) -> None:
        shape = tuple(out.shape)
        self.sightings.append(Sighting(rule, bound, names, shape, tuple(self.stack), what))


@contextmanager
def framed(net: nn.Module) -> Iterator[tuple[list[Frame], dict[nn.Module, list[Frame]]]]:
    """Keep, while inside, the stack of running modules and every run of each module."""
    stack: list[Frame] = []
    runs: dict[nn.Module, list[Frame]] = {}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        stack.append(Frame(module, _shapes((args, kwargs))))

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        frame = stack.pop()
        frame.outputs = _shapes(output)
        runs.setdefault(module, []).append(frame)

    handles = []
    for module in net.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        yield stack, runs
    finally:
        for handle in handles:
            handle.remove()


def _shapes(values: Any) -> list[tuple[int, ...] | None]:
    return [tuple(v.shape) if isinstance(v, Tensor) else None for v in tree_leaves(values)]


Look = tuple[Scout, dict[nn.Module, list[Frame]]]


def make_plan(look: Callable[[int], Look], repeat: bool) -> Plan:
    """Compare two looks at a network, ``look(2)`` and ``look(3)``, and plan its recording.

    With ``repeat``, an output that all examples share (position embeddings) is to be repeated for
    each of them; whether the network takes that, the caller must try.
    """
    (small, small_runs), (large, large_runs) = look(SMALL), look(LARGE)
    pairs = list(zip(small.sightings, large.sightings, strict=False))
    if len(small.sightings) != len(large.sightings) or any(
        a.names != b.names or a.function != b.function for a, b in pairs
    ):
        raise InputError(
            "The network uses its parameters differently for two and for three examples; its "
            "course must not depend on the data."
        )
    layouts = [_layout(a.shape, b.shape) for a, b in pairs]
    helpless = [
        k
        for k, ((a, _), layout) in enumerate(zip(pairs, layouts, strict=True))
        if a.rule is None
        or layout is None
        or a.bound is None
        or (layout.axis is None and not repeat)
        or not a.rule.covers(a.bound, a.shape, layout)
    ]
    owners = _owners([a for a, _ in pairs], helpless, small_runs, large_runs)
    planned: list[Layout | None] = []
    for k, (a, _) in enumerate(pairs):
        if a.rule is not None:
            left = k in helpless or any(_inside(a, name, owners) for name in a.names)
            planned.append(None if left else layouts[k])
    fallbacks = [
        _fallback(module, names, pairs, helpless, small_runs, large_runs)
        for module, names in owners.items()
    ]
    return Plan(planned, fallbacks, frozenset(small.functions))


def _layout(small: tuple[int, ...], large: tuple[int, ...]) -> Layout | None:
    """Return where the examples are, given the same output for two and for three of them."""
    if small == large:
        return Layout(None)
    grown = [k for k, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if len(small) != len(large) or len(grown) != 1:
        return None
    axis = grown[0]
    if small[axis] * LARGE != large[axis] * SMALL or small[axis] % SMALL:
        return None
    return Layout(axis, small[axis] // SMALL)


Runs = dict[nn.Module, list[Frame]]


def _axes(
    small: list[tuple[int, ...] | None], large: list[tuple[int, ...] | None]
) -> list[int | None] | None:
    """Return the examples' axis of every leaf, or ``None`` where one cannot be told."""
    axes: list[int | None] = []
    if len(small) != len(large):
        return None
    for a, b in zip(small, large, strict=True):
        if a is None or b is None:
            axes.append(None)
            continue
        layout = _layout(a, b)
        if layout is None or (layout.axis is not None and layout.multiple != 1):
            return None
        axes.append(layout.axis)
    return axes


def _run_axes(
    module: nn.Module, small: Runs, large: Runs
) -> tuple[list[list[int | None]], list[list[int | None]]] | None:
    """Return the axes of inputs and outputs for all runs of a module that sees its examples."""
    if len(small[module]) != len(large[module]):
        return None
    inputs, outputs = [], []
    for a, b in zip(small[module], large[module], strict=True):
        given, returned = _axes(a.inputs, b.inputs), _axes(a.outputs, b.outputs)
        if given is None or returned is None:
            return None
        if all(axis is None for axis in given) or all(axis is None for axis in returned):
            return None
        inputs.append(given)
        outputs.append(returned)
    return inputs, outputs


def _owners(
    sightings: list[Sighting], helpless: list[int], small: Runs, large: Runs
) -> dict[nn.Module, set[str]]:
    """Return, for each module that must fall back, the parameters it answers for."""
    owners: dict[nn.Module, set[str]] = {}
    for k in helpless:
        sighting = sightings[k]
        for frame in reversed(sighting.frames):
            if _run_axes(frame.module, small, large) is not None:
                owners.setdefault(frame.module, set()).update(sighting.names)
                break
        else:
            raise InputError(
                f"The parameters {', '.join(sighting.names)} are used by {sighting.function}, for "
                "which there is no rule, in a network whose examples cannot be told apart by axis; "
                "have its forward take and return tensors with the examples along one axis."
            )
    grown = True
    while grown:  # a call with one parameter left to a module leaves its others there as well
        grown = False
        for sighting in sightings:
            for frame in sighting.frames:
                names = owners.get(frame.module)
                if names and names & set(sighting.names) and not set(sighting.names) <= names:
                    names.update(sighting.names)
                    grown = True
    return owners


def _inside(sighting: Sighting, name: str, owners: dict[nn.Module, set[str]]) -> bool:
    return any(name in owners.get(frame.module, ()) for frame in sighting.frames)


def _fallback(
    module: nn.Module,
    names: set[str],
    pairs: list[tuple[Sighting, Sighting]],
    helpless: list[int],
    small: Runs,
    large: Runs,
) -> Fallback:
    axes = _run_axes(module, small, large)
    assert axes is not None  # noqa: S101 - it was chosen for that
    functions = {pairs[k][0].function for k in helpless if names & set(pairs[k][0].names)}
    return Fallback(module, tuple(sorted(names)), axes[0], axes[1], tuple(sorted(functions)))
