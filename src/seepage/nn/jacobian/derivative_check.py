"""Compares the derivative of every record's gradient with a finite difference, and refuses a lie.

A region under ``torch.no_grad()``, a ``.detach()`` in a network or a loss, a function with a way
back of its own: whatever hides from torch how a gradient depends on its record makes the derivative
too small, and nothing else tells. A central difference of plain gradients sees through all of them.
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
    finite_change,
    longer_types,
    record_gradients,
)
from seepage.nn.jacobian.probes import dense_probe
from seepage.nn.jacobian.pullbacks import radial_pull
from seepage.nn.jacobian.random_directions import Direction, key_of, row_signs
from seepage.nn.jacobian.tangents import inner_products
from seepage.nn.problem.clipping import NoClip
from seepage.nn.problem.problem import Batch, NetworkProblem

REMEDY = (
    "Take it out, or measure with method='finite', which runs plain training passes and needs no "
    "derivative."
)
_STEPS = {torch.float64: 1e-4}  # of the variable's own scale; 3e-3 in float32
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
    """Raise where the derivative of a record's gradient is not what a small change shows.

    ``scale`` is the size of what the view leaves unknown; the steps are a small part of it. ``way``
    is how derivatives are going to be taken: ``"tangents"`` of the records, ``"pulls"`` by a second
    backward pass, or ``"probes"`` of the release, which need no rules. Where the network has kinks,
    differences agree with a derivative at no step, and only one that vanishes beside a clear
    difference is refused.
    """
    for dtype in longer_types(network.problem, batch):
        try:
            return _check(network.of_type(dtype), batch.of_type(dtype), scale, way, kinked)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, _UndifferentiableError):
            continue  # what holds numbers of another type, in a loss or a module, takes no others
    try:
        _check(network, batch, scale, way, kinked)
    except _UndifferentiableError as refusal:
        raise InputError(str(refusal)) from refusal.__cause__


def spread_over_classes(y: Tensor, count: int, seed: int) -> Tensor:
    """Return the places of some records drawn at random, with every class of targets in its part.

    The records are put in the order of their targets, where these are one whole number each, and
    one is taken from every ``1/count`` of them.
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
    h = scale * _STEPS.get(z.dtype, 3e-3)
    with _full_precision(z.device):
        compare = {"tangents": _by_tangents, "pulls": _by_pulls, "probes": _by_probes}[way]
        try:
            found = compare(network, batch, v, h)
            wrong = found.apart(kinked)
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
            f"The gradient of a record changes by {float(found.seen[k]):.3g} per unit along a "
            f"random direction, where its derivative says {float(found.told[k]):.3g}: something "
            "hides from torch how the gradient depends on the record"
            f"{_where(problem, batch, h * v)}. {REMEDY}"
        )


@dataclass(frozen=True)
class _Comparison:
    """What derivatives tell of the change of every record's gradient, and what differences see."""

    told: Tensor
    seen: Tensor
    norms: Tensor  # of the gradients
    step: float  # h
    halved: Callable[[], Tensor]  # how much less the difference sees over half the step

    def apart(self, kinked: bool) -> Tensor:
        """Return for which records the two differ by more than the error of the difference.

        That error is taken from a second step only where the first leaves a doubt.
        """
        told, seen, kind = self.told, self.seen, self.seen.dtype
        rounding = 64 * torch.finfo(kind).eps * self.norms / self.step
        slack = _SLACK.get(kind, 2e-2) * (seen + 0.05 * seen.max()) + rounding
        wrong = (told - seen).abs() > slack
        if kinked:
            wrong &= told.abs() < 1e-3 * seen
        if bool(wrong.any()):
            error = self.halved()
            wrong &= (told - seen).abs() > slack + 2 * error
            if kinked:
                wrong &= error < seen / 2
        return wrong


def _by_tangents(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> _Comparison:
    """Compare ``‖Jv‖``."""
    told = inner_products(network, batch, v[None])
    seen = _change(network, batch, v, h / 2).squared.sqrt()

    def halved() -> Tensor:
        return (_change(network, batch, v, h).squared.sqrt() - seen).abs()

    return _Comparison(told.dd[0].sqrt(), seen, told.norms, h, halved)


def _by_pulls(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> _Comparison:
    """Compare ``ĝ·Jv = v·Jᵀĝ``, relative to ``‖Jv‖``."""
    pull, norms, _ = radial_pull(network, batch)
    unit = torch.where(norms > 0, norms, 1.0)
    along = (pull * v).flatten(1).sum(1) / unit

    def slope(change: FiniteChange, step: float) -> Tensor:
        return (change.ahead**2 - change.behind**2) / (4 * step * unit)

    fine = _change(network, batch, v, h / 2)
    slanted = slope(fine, h / 2)
    across = (fine.squared - slanted**2).clamp(min=0.0)
    told, seen = ((across + part**2).sqrt() for part in (along, slanted))

    def halved() -> Tensor:
        return (slope(_change(network, batch, v, h), h) - slanted).abs()

    return _Comparison(told, seen, norms, h, halved)


def _change(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> FiniteChange:
    return finite_change(network.problem, network, batch, v, h, NoClip())


def _by_probes(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> _Comparison:
    """Compare ``u·Jv`` for the direction ``u`` of each record's own change, one by one."""
    problem = network.problem

    def quotient(step: float) -> tuple[Tensor, Tensor]:
        sides = (replace(batch, z=batch.z + sign * step * v) for sign in (1, -1))
        ahead, behind = (record_gradients(problem, side) for side in sides)
        return (ahead - behind) / (2 * step), (ahead + behind).norm(dim=1) / 2

    change, norms = quotient(h / 2)
    seen = change.norm(dim=1)
    sizes = [p.numel() for p in problem.released().values()]
    told = []
    for k in range(len(batch)):
        one = batch.records(torch.tensor([k], device=v.device))
        u = change[k] / seen[k].clamp(min=torch.finfo(v.dtype).tiny)
        pieces = zip(problem.released().items(), u.split(sizes), strict=True)
        along = {name: Direction(piece.reshape(p.shape)) for (name, p), piece in pieces}
        pull = dense_probe(network, one, lambda along=along: [along], NoClip()).pulls  # type: ignore[misc]
        told.append((pull[0, 0] * v[k]).sum())
    return _Comparison(
        torch.stack(told), seen, norms, h, lambda: (quotient(h)[0] - change).norm(dim=1)
    )


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Switch off the short numbers that people train with: differences drown in their rounding."""
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
    """Return where what depends on the record is hidden, in words; nothing where none was found."""
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
    """Return the functions with a way back of their own between the record and its loss."""
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
