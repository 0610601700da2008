"""Checks the derivative of every record's gradient against a finite difference.

A region under ``torch.no_grad()``, a ``.detach()`` in a network or a loss, a function with a custom
backward pass: whatever hides a gradient's dependence on its record from torch makes the derivative
too small, without any other sign. A central difference of plain gradients sees through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seepage.errors import InputError
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.finite_changes import (
    FiniteChange,
    FiniteStep,
    longer_types,
    record_gradients,
)
from seepage.nn.jacobian.probes import dense_probe
from seepage.nn.jacobian.random_directions import Direction, key_of, row_signs
from seepage.nn.jacobian.tangents import inner_products, radial_pull
from seepage.nn.problem.clipping import NoClip
from seepage.nn.problem.problem import Batch, NetworkProblem

REMEDY = (
    "Take it out, or measure with method='finite', which runs plain training passes and needs no "
    "derivative."
)
_STEPS = {torch.float64: 5e-5}  # relative to the variable's scale; 1.5e-3 in float32
_SLACK = {torch.float64: 1e-4}
_HIDING: dict[Any, str] = {
    Tensor.detach: ".detach()",
    Tensor.detach_: ".detach_()",
    torch.detach: "torch.detach()",
    Tensor.data.__get__: ".data",
    Tensor.item: ".item()",
    Tensor.tolist: ".tolist()",
    Tensor.numpy: ".numpy()",
    torch._C._set_grad_enabled: "torch.no_grad()",
}


def check_derivative(
    network: WatchedNetwork, batch: Batch, *, scale: float, way: str, kinked: bool
) -> None:
    """Raise where the derivative of a record's gradient disagrees with a small change.

    ``scale`` is the size of the unknowns; the steps are a small part of it. ``way`` is how
    derivatives will be taken: ``"tangents"`` of the records, ``"pulls"`` by a double-backward pass,
    or ``"probes"`` of the release, which need no rules. With kinks, differences agree with a
    derivative at no step size, and only a derivative that vanishes where the difference clearly
    does not is refused.
    """
    for dtype in longer_types(network.problem, batch):
        try:
            return _check(network.of_type(dtype), batch.of_type(dtype), scale, way, kinked)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, _UndifferentiableError):
            continue  # a loss or module that holds numbers of another type accepts no others
    try:
        _check(network, batch, scale, way, kinked)
    except _UndifferentiableError as refusal:
        raise InputError(str(refusal)) from refusal.__cause__


def spread_over_classes(y: Tensor, count: int, seed: int) -> Tensor:
    """Return the positions of some random records, with every class of targets in proportion.

    Records are sorted by target, if each is one integer, and one is taken from every ``1/count`` of
    them.
    """
    if len(y) <= count:
        return torch.arange(len(y))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    if y.dim() == 1 and not y.is_floating_point():
        order = order[y.cpu()[order].argsort(stable=True)]
    places = (torch.arange(count) + torch.rand(count, generator=generator)) * (len(y) / count)
    return order[places.long().clamp(max=len(y) - 1)].sort().values


class _UndifferentiableError(Exception):
    """torch cannot differentiate the gradients of a network."""


def _check(network: WatchedNetwork, batch: Batch, scale: float, way: str, kinked: bool) -> None:
    problem, z = network.problem, batch.z
    mask = problem.view.mask_for(z)
    v = row_signs(key_of("check"), torch.arange(len(batch)), tuple(z.shape[1:]), z)
    v = v if mask is None else v * mask
    h = scale * _STEPS.get(z.dtype, 1.5e-3)
    with _full_precision(z.device):
        compare = {"tangents": _by_tangents, "pulls": _by_pulls, "probes": _by_probes}[way]
        try:
            wrong, told, seen = compare(network, batch, v, h).apart(kinked)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
            raise _UndifferentiableError(
                f"torch cannot differentiate the gradients of this network ({line})"
                f"{_where(problem, batch, h * v)}. {REMEDY}"
            ) from error
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        raise InputError(
            f"The gradient of a record changes by {float(seen[k]):.3g} per unit along a random "
            f"direction, where its derivative says {float(told[k]):.3g}: something hides from "
            f"torch how the gradient depends on the record{_where(problem, batch, h * v)}. "
            f"{REMEDY}"
        )


@dataclass(frozen=True)
class _ToldAndSeen:
    """The change of every record's gradient by derivatives and by differences."""

    at: Callable[
        [float], tuple[Tensor, Tensor]
    ]  # over a step of this size: by derivative and by difference, (B,)
    norms: Tensor  # of the gradients
    step: float  # the initial size

    def apart(self, kinked: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the records for which the two differ, and both values.

        In doubtful cases a second step decides: in float64 a much smaller one, so that a bend near
        the record (of ELU, or a Huber loss) is no longer crossed; in shorter types, whose rounding
        rules that out, one twice as large, which shows the first one's error.
        """
        told, seen = self.at(self.step)
        wrong = self._far(told, seen, self.step, 0.0)
        if kinked:
            wrong &= told.abs() < 1e-3 * seen
        if not bool(wrong.any()):
            return wrong, told, seen
        double = seen.dtype == torch.float64
        second = self.step * (1 / 64 if double else 2)
        told_then, seen_then = self.at(second)
        error = (seen_then - seen).abs()
        if double:
            wrong &= self._far(told_then, seen_then, second, 0.0)
        else:
            wrong &= self._far(told, seen, self.step, error)
        if kinked:
            wrong &= error < seen / 2
        return wrong, told, seen

    def _far(self, told: Tensor, seen: Tensor, step: float, error: Tensor | float) -> Tensor:
        kind = seen.dtype
        rounding = 64 * torch.finfo(kind).eps * self.norms / step
        slack = _SLACK.get(kind, 2e-2) * (seen + 0.05 * seen.max()) + rounding
        return (told - seen).abs() > slack + 2 * error


def _by_tangents(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> _ToldAndSeen:
    """Compare ``‖Jv‖``."""
    found = inner_products(network, batch, v[None])
    told = found.dd[0].sqrt()

    def at(step: float) -> tuple[Tensor, Tensor]:
        return told, _change(network, batch, v, step).squared.sqrt()

    return _ToldAndSeen(at, found.norms, h)


def _by_pulls(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> _ToldAndSeen:
    """Compare ``ĝ·Jv = v·Jᵀĝ``, with the component across it taken from the difference."""
    pull, norms, _ = radial_pull(network, batch)
    unit = torch.where(norms > 0, norms, 1.0)
    along = (pull * v).flatten(1).sum(1) / unit

    def at(step: float) -> tuple[Tensor, Tensor]:
        change = _change(network, batch, v, step)
        slope = (change.ahead**2 - change.behind**2) / (4 * step * unit)
        across = (change.squared - slope**2).clamp(min=0.0)
        return (across + along**2).sqrt(), (across + slope**2).sqrt()

    return _ToldAndSeen(at, norms, h)


def _change(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> FiniteChange:
    return FiniteStep(network.problem, network, batch, v, h, NoClip()).change()


def _by_probes(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> _ToldAndSeen:
    """Compare ``u·Jv`` for the direction ``u`` of each record's own change, one by one."""
    problem = network.problem

    def gradients(sign: int, step: float) -> Tensor:
        return record_gradients(problem, replace(batch, z=batch.z + sign * step * v))

    def at(step: float) -> tuple[Tensor, Tensor]:
        change = (gradients(1, step) - gradients(-1, step)) / (2 * step)
        seen = change.norm(dim=1)
        told = [_told_along(network, batch, v, k, change[k], seen[k]) for k in range(len(batch))]
        return torch.stack(told), seen

    return _ToldAndSeen(at, gradients(1, 0.0).norm(dim=1), h)


def _told_along(
    network: WatchedNetwork, batch: Batch, v: Tensor, k: int, change: Tensor, size: Tensor
) -> Tensor:
    """Return the derivative of a record's gradient along ``v``, in the direction of its change."""
    released = network.problem.released()
    u = change / size.clamp(min=torch.finfo(v.dtype).tiny)
    pieces = zip(released.items(), u.split([p.numel() for p in released.values()]), strict=True)
    along = {name: Direction(piece.reshape(p.shape)) for (name, p), piece in pieces}
    one = batch.records(torch.tensor([k], device=v.device))
    pull = dense_probe(network, one, NoClip(), lambda: [along]).pulls
    return (pull[0, 0] * v[k]).sum()


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Switch off reduced precision, whose rounding would drown the differences."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _where(problem: NetworkProblem, batch: Batch, move: Tensor) -> str:
    """Return, in words, where the dependence on the record is hidden; empty if not found."""
    looks = []
    for sign in (1, -1):
        with torch.no_grad(), _HidingPlaces(problem.net) as places:
            problem.losses(problem.detached(), batch, batch.z + sign * move)
        looks.append(places.found)
    named: list[str] = []
    for (what, place, value), other in zip(*looks, strict=False):
        moved = value is None or other[2] is None or not torch.equal(value, other[2])
        if moved and f"{what} in {place}" not in named:
            named.append(f"{what} in {place}")
    if not named:
        named = _custom_functions(problem, batch)
    return f" ({', '.join(named[:3])})" if named else ""


class _HidingPlaces(TorchFunctionMode):  # type: ignore[misc]
    """Notes every function that hides its input from torch, and the module that called it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.found: list[tuple[str, str, Tensor | None]] = []
        self.running: list[str] = []
        self._hooks = ExitStack()

    def __enter__(self) -> _HidingPlaces:
        for name, module in self.net.named_modules():
            label = f"{type(module).__name__} {name!r}" if name else type(module).__name__
            handles = (
                module.register_forward_pre_hook(self._entering(label)),
                module.register_forward_hook(lambda *_: self.running.pop() and None),
            )
            for handle in handles:
                self._hooks.callback(handle.remove)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _entering(self, label: str) -> Callable[..., None]:
        return lambda *_: self.running.append(label)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        opens = function is torch._C._set_grad_enabled and args[0]
        if function in _HIDING and not opens:
            place = self.running[-1] if self.running else "the loss"
            value = args[0].detach().clone() if isinstance(args[0], Tensor) else None
            self.found.append((_HIDING[function], place, value))
        return function(*args, **(kwargs or {}))


def _custom_functions(problem: NetworkProblem, batch: Batch) -> list[str]:
    """Return the functions with a custom backward pass between record and loss."""
    with torch.enable_grad():
        z = batch.z.detach().requires_grad_()
        parameters = {n: p.requires_grad_() for n, p in problem.detached().items()}
        losses = problem.losses(parameters, batch, z * 1)
    seen: set[Any] = set()
    open_nodes, named = [losses.grad_fn], []
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            named.append(f"the function {type(node).__name__.removesuffix('Backward')}")
        open_nodes += [parent for parent, _ in node.next_functions]
    return sorted(set(named))
