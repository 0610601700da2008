"""Plans how to trace a network: finds its record axes and the parameter uses without a rule.

The network is run on two and on three records. An axis whose length grows from 2m to 3m is the
records' axis, with m entries per record; a single run would be ambiguous (a batch may be as long as
a sequence). If no rule covers the use of a parameter, the innermost enclosing module whose
arguments contain the records is run with ``vmap``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seepage.errors import InputError
from seepage.nn.gradients.per_record_gradients import Key
from seepage.nn.gradients.rules import RULES
from seepage.nn.gradients.watching import (
    SMALL,
    Arguments,
    Fallback,
    Layout,
    OutputShape,
    Rule,
    WatchedNetwork,
    Watcher,
)
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.tables.names import listed

# Functions with kinks, under the names that people know: by the names that ``torch``, its tensors
# and ``torch.nn.functional`` share, without the underscores of in-place and special methods.
_KINKED = {
    name: kind
    for kind, names in {
        "abs": "abs l1_loss",
        "AdaptiveMaxPool": "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        "amax": "amax amin",
        "clamp": "clamp clamp_min clamp_max clip",
        "cummax": "cummax cummin",
        "ELU": "elu",
        "Hardshrink": "hardshrink",
        "Hardsigmoid": "hardsigmoid",
        "Hardswish": "hardswish",
        "Hardtanh": "hardtanh",
        "LeakyReLU": "leaky_relu",
        "maximum": "maximum minimum max min fmax fmin",
        "MaxPool": "max_pool1d max_pool2d max_pool3d",
        "median": "median kthvalue",
        "PReLU": "prelu",
        "remainder": "remainder fmod frac mod",
        "ReLU": "relu rnn_relu rnn_relu_cell",
        "ReLU6": "relu6",
        "round": "round floor ceil sign trunc",
        "RReLU": "rrelu",
        "SELU": "selu",
        "Softshrink": "softshrink",
        "sort": "sort topk",
        "Threshold": "threshold",
    }.items()
    for name in names.split()
}
_CHOOSING = ("where", "masked_fill")  # by a condition, which may depend on the unknowns


@dataclass
class ModuleRun:
    """One run of a module's ``forward``, with the shapes of its inputs and outputs."""

    module: nn.Module
    inputs: list[tuple[int, ...] | None]
    outputs: list[tuple[int, ...] | None] = field(default_factory=list)


_Runs = dict[nn.Module, list[ModuleRun]]
_Axes = list[int | None]  # the records' axis of every leaf
_RunAxes = tuple[list[_Axes], list[_Axes]]  # of all runs of a module: inputs, outputs


@dataclass(frozen=True)
class _Use:
    """One use of parameters, with the enclosing modules, innermost last."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    function: str
    around: tuple[ModuleRun, ...]
    silent: bool  # under torch.no_grad()
    rule: Rule | None = None
    arguments: Arguments | None = None
    weight: str | None = None  # the weight whose gradients its rule can narrow


class _UseFinder(Watcher):
    """Records every use of a parameter, without changing the run."""

    def __init__(self, names: Mapping[int, str], stack: list[ModuleRun]) -> None:
        super().__init__(RULES, names)
        self.stack = stack
        self.uses: list[_Use] = []
        self.kinks: set[str] = set()
        # Inside a region under torch.no_grad(); whether there is one
        self.closed = self.closes = False
        self.reopens = True  # whether no parameter is used in it, or before it
        self._decided: dict[int, Tensor] = {}  # truth values that depend on the unknowns

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._notice(function, args, kwargs or {})
        output = super().__torch_function__(function, types, args, kwargs)
        if isinstance(output, Tensor) and output.dtype == torch.bool:
            given = [a for a in args if isinstance(a, Tensor)]
            if any(a.requires_grad or id(a) in self._decided for a in given):
                self._decided[id(output)] = output
        return output

    def _notice(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record kinked functions of the unknowns, and regions under ``torch.no_grad()``."""
        name = getattr(function, "__name__", "").strip("_").removesuffix("_with_indices")
        if function is torch._C._set_grad_enabled:
            self.closed = not args[0]
            self.closes |= self.closed
            self.reopens &= not (self.closed and self.uses)
        elif name in _CHOOSING:
            if any(id(a) in self._decided for a in (*args, *kwargs.values())):
                self.kinks.add(name)
        elif name in _KINKED:
            # ELU has the same slope on both sides of zero if its alpha is one.
            alpha = kwargs.get("alpha", args[1] if name == "elu" and len(args) > 1 else 1.0)
            if name == "elu" and alpha == 1.0:
                return
            given = (
                b
                for a in (*args, *kwargs.values())
                for b in (a if isinstance(a, list | tuple) else (a,))
            )
            if any(isinstance(a, Tensor) and a.requires_grad for a in given):
                self.kinks.add(_KINKED[name])

    def known(
        self, rule: Rule, arguments: Arguments, keys: dict[str, Key], run: Callable[[], Tensor]
    ) -> Tensor:
        """Record a use that a rule covers."""
        output = run()
        names = tuple(name for name, _ in keys.values())
        weight = keys["weight"][0] if "weight" in keys else None
        # A torch.autograd.Function has a backward pass of its own: no rule sees into it.
        inside = not self.closed and not torch.is_grad_enabled()
        what = getattr(rule, "function", type(rule)).__name__.removesuffix("Rule")
        self._add(names, output, what, rule, None if inside else arguments, weight)
        return output

    def unknown(self, function: Any, used: set[str], output: Any) -> Any:
        """Record a use without a rule; reading a parameter's shape does not count."""
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        if tensors:
            name = getattr(function, "__name__", str(function))
            self._add(tuple(sorted(used)), tensors[0], name)
        return output

    def _add(self, names: tuple[str, ...], out: Tensor, what: str, *ruled: Any) -> None:
        self.reopens &= not self.closed
        around = tuple(self.stack)
        self.uses.append(_Use(names, tuple(out.shape), what, around, self.closed, *ruled))


_Look = tuple[_UseFinder, _Runs]


@contextmanager
def module_runs(net: nn.Module) -> Iterator[tuple[list[ModuleRun], _Runs]]:
    """Yield the stack of running modules, innermost last, and the finished runs of each module."""
    stack: list[ModuleRun] = []
    runs: _Runs = {}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        stack.append(ModuleRun(module, _shapes((args, kwargs))))

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        run = stack.pop()
        run.outputs = _shapes(output)
        runs.setdefault(module, []).append(run)

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


def look_over(problem: NetworkProblem, batch: Batch) -> WatchedNetwork:
    """Run the network on two and on three of these records, and return a plan to trace it.

    An output shared by all records (position embeddings) is repeated for each record if the network
    allows it.
    """
    try:
        return _planned(problem, batch, repeat=True)
    except _NotRepeatableError:
        return _planned(problem, batch, repeat=False)


def small_batch(batch: Batch, size: int) -> Batch:
    """Return a batch of the first ``size`` records, which are repeated if there are too few."""
    return batch.records(torch.arange(size, device=batch.z.device) % len(batch))


def _planned(problem: NetworkProblem, batch: Batch, repeat: bool) -> WatchedNetwork:
    batches = [small_batch(batch, size) for size in (SMALL, SMALL + 1)]
    problem.reopened = False
    small, large = (_uses(problem, b) for b in batches)
    pairs = zip(small[0].uses, large[0].uses, strict=False)
    silent = {name for a, b in pairs if a.silent and a.shape != b.shape for name in a.names}
    if silent:
        raise InputError(
            f"Trainable parameters ({listed(sorted(silent), 3)}) are used under torch.no_grad(). "
            "They have no gradient there, and part of the dependence on the record is hidden. "
            "Freeze these parameters (requires_grad_(False)), or measure with method='finite'."
        )
    if small[0].closes and small[0].reopens:  # the rest is run as derivatives will see it
        problem.reopened = True
        small, large = (_uses(problem, b) for b in batches)
    network = _plan(problem, small, large, repeat)
    outputs = []
    for a, b in zip(*(_outputs(network, b) for b in batches), strict=True):
        grown = next(k for k, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n)
        outputs.append(OutputShape(tuple(a.shape), grown, a.dtype, not a.requires_grad))
    return replace(network, outputs=outputs)


def _uses(problem: NetworkProblem, batch: Batch) -> _Look:
    parameters = problem.detached()
    names = {id(tensor): name for name, tensor in parameters.items()}
    z = batch.z.detach().requires_grad_()
    with torch.enable_grad(), module_runs(problem.net) as (stack, runs):
        finder = _UseFinder(names, stack)
        unknown = z.clone()  # a copy, which may be written into
        with problem.in_place(parameters, batch, unknown) as losses, finder:
            losses()
    return finder, runs


class _NotRepeatableError(Exception):
    """Raised if repeating a shared output for each record would change the losses."""


def _outputs(network: WatchedNetwork, batch: Batch) -> list[Tensor]:
    """Return the network's traced outputs; if repeating one changes the losses, raise an error."""
    seen: list[Tensor] = []

    def keep(output: Tensor) -> Tensor:
        seen.append(output)
        return output if output.requires_grad else output.detach().requires_grad_().clone()

    problem = network.problem
    repeats = any(layout is not None and layout.axis is None for layout in network.layouts)
    parameters = problem.detached()
    with torch.enable_grad():
        try:
            with network.running(parameters, batch, batch.z, keep) as run:
                losses = run.losses
        except (RuntimeError, InputError):
            if repeats:
                raise _NotRepeatableError from None
            raise
    if repeats:
        with torch.no_grad():
            plain_losses = problem.losses(parameters, batch, batch.z)
        if not torch.allclose(losses, plain_losses, rtol=1e-3, atol=1e-3):
            raise _NotRepeatableError
    return seen


def _plan(problem: NetworkProblem, of_two: _Look, of_three: _Look, repeat: bool) -> WatchedNetwork:
    """Compare two runs of a network, and return a plan to trace it.

    With ``repeat``, the plan repeats an output that all records share, once for each record; the
    caller must check that the network allows this.
    """
    (small, small_runs), (large, large_runs) = of_two, of_three
    pairs = list(zip(small.uses, large.uses, strict=False))
    if len(small.uses) != len(large.uses) or any(
        a.names != b.names or a.function != b.function for a, b in pairs
    ):
        raise InputError(
            "The network uses its parameters differently for two and for three records; change its "
            "control flow so that it does not depend on the number of records."
        )
    layouts = [_layout(a.shape, b.shape) for a, b in pairs]
    helpless = [
        k
        for k, ((a, _), layout) in enumerate(zip(pairs, layouts, strict=True))
        if a.rule is None
        or layout is None
        or a.arguments is None
        or (layout.axis is None and not repeat)
        or not a.rule.covers(a.arguments, a.shape, layout)
    ]
    axes = {m: _run_axes(runs, large_runs.get(m, [])) for m, runs in small_runs.items()}
    owners = _owners([a for a, _ in pairs], helpless, axes)
    planned: list[Layout | None] = []
    for k, (a, _) in enumerate(pairs):
        if a.rule is not None:
            answered = set().union(*(owners.get(run.module, ()) for run in a.around))
            left = k in helpless or not answered.isdisjoint(a.names)
            planned.append(None if left else layouts[k])
    fallbacks = []
    for module, names in owners.items():
        run_axes = axes[module]
        assert run_axes is not None  # noqa: S101 - it was chosen for that
        functions = {pairs[k][0].function for k in helpless if names & set(pairs[k][0].names)}
        sorted_names, sorted_functions = tuple(sorted(names)), tuple(sorted(functions))
        fallbacks.append(Fallback(module, sorted_names, *run_axes, sorted_functions))
    ruled = iter(planned)
    kept = [a.rule is not None and next(ruled) is not None for a, _ in pairs]
    narrow = _narrow(small.uses, kept)
    return WatchedNetwork(problem, RULES, planned, fallbacks, frozenset(small.kinks), narrow)


def _narrow(uses: list[_Use], kept: list[bool]) -> dict[str, tuple[int, int]]:
    """Return each weight's axis that can be narrowed, and the number of positions that use it."""
    axes: dict[str, set[int | None]] = {}
    positions: Counter[str] = Counter()
    for use, own in zip(uses, kept, strict=True):
        axis = None
        if own and use.rule is not None and use.arguments is not None and use.weight is not None:
            axis = use.rule.narrow_axis(use.arguments)
            positions[use.weight] += use.rule.positions(use.shape) // SMALL
        for name in use.names:
            axes.setdefault(name, set()).add(axis if name == use.weight else None)
    return {
        name: (axis, positions[name])
        for name, (axis, *more) in axes.items()
        if not more and axis is not None
    }


def _layout(small: tuple[int, ...], large: tuple[int, ...]) -> Layout | None:
    """Return the records' layout in an output, from its shapes for two and for three records."""
    if small == large:
        return Layout(None)
    grown = [k for k, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if len(small) != len(large) or len(grown) != 1:
        return None
    axis = grown[0]
    if small[axis] * (SMALL + 1) != large[axis] * SMALL or small[axis] % SMALL:
        return None
    return Layout(axis, small[axis] // SMALL)


def _axes(small: list[tuple[int, ...] | None], large: list[tuple[int, ...] | None]) -> _Axes | None:
    """Return the records' axis in every leaf tensor, or ``None`` if any is ambiguous."""
    axes: _Axes = []
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


def _run_axes(small: list[ModuleRun], large: list[ModuleRun]) -> _RunAxes | None:
    """Return the records' axes in the inputs and outputs of all runs of a module, or ``None``."""
    if len(small) != len(large):
        return None
    inputs, outputs = [], []
    for a, b in zip(small, large, strict=True):
        given, returned = _axes(a.inputs, b.inputs), _axes(a.outputs, b.outputs)
        if given is None or returned is None:
            return None
        if all(axis is None for axis in given) or all(axis is None for axis in returned):
            return None
        inputs.append(given)
        outputs.append(returned)
    return inputs, outputs


def _owners(
    uses: list[_Use], helpless: list[int], axes: dict[nn.Module, _RunAxes | None]
) -> dict[nn.Module, set[str]]:
    """Return the modules that must use ``vmap``, each with the parameters that it handles."""
    owners: dict[nn.Module, set[str]] = {}
    for k in helpless:
        use = uses[k]
        for run in reversed(use.around):
            if axes[run.module] is not None:
                owners.setdefault(run.module, set()).update(use.names)
                break
        else:
            raise InputError(
                f"No rule for per-record gradients covers the use of {listed(use.names)} by "
                f"{use.function}, and the records' axis could not be identified in the tensors of "
                "any enclosing module. Write a module whose forward() accepts and returns tensors "
                "with the records along one axis."
            )
    grown = True
    while grown:  # a call that leaves one parameter to a module leaves its others there too
        grown = False
        for use in uses:
            for run in use.around:
                names = owners.get(run.module)
                if names and names & set(use.names) and not set(use.names) <= names:
                    names.update(use.names)
                    grown = True
    return owners
