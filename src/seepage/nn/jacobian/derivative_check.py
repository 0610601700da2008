"""Compares the derivative of every record's gradient with a finite difference, and refuses a lie.

A region under ``torch.no_grad()``, a ``.detach()`` in a network or a loss, a function with a way
back of its own: whatever hides from torch how a gradient depends on its record makes the derivative
too small, and nothing else tells. A central difference of plain gradients sees through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seepage.errors import InputError
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.finite_changes import (
    FiniteChange,
    finite_change,
    record_gradients,
    worth_doubling,
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
    if worth_doubling(network.problem, batch):
        try:  # what holds numbers of another type, in a loss or a module, does not take this
            return _check(network.double(), batch.double(), scale, way, kinked)
        except (RuntimeError, _UndifferentiableError):
            pass
    try:
        _check(network, batch, scale, way, kinked)
    except _UndifferentiableError as refusal:
        raise InputError(str(refusal)) from refusal.__cause__


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
            told, seen, size, spread = compare(network, batch, v, h)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
            raise _UndifferentiableError(
                f"torch cannot differentiate the gradients of this network ({line})"
                f"{_where(problem, batch, h * v)}. {REMEDY}"
            ) from error
    rounding = 64 * torch.finfo(z.dtype).eps * size / h
    slack = _SLACK.get(z.dtype, 2e-2) * (seen + 0.05 * seen.max()) + 2 * spread + rounding
    wrong = (told - seen).abs() > slack
    if kinked:
        wrong &= (told.abs() < 1e-3 * seen) & (spread < seen / 2)
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        raise InputError(
            f"The gradient of record {k} changes by {float(seen[k]):.3g} per unit along a random "
            f"direction, where its derivative says {float(told[k]):.3g}: something hides from "
            f"torch how the gradient depends on the record{_where(problem, batch, h * v)}. {REMEDY}"
        )


Comparison4 = tuple[Tensor, Tensor, Tensor, Tensor]  # derivative, difference, size, its error


def _by_tangents(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> Comparison4:
    """Compare ``‖Jv‖``."""
    told = inner_products(network, batch, v[None])
    coarse, fine = _differences(network, batch, v, h)
    seen, other = fine.squared.sqrt(), coarse.squared.sqrt()
    return told.dd[0].sqrt(), seen, told.norms, (seen - other).abs()


def _by_pulls(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> Comparison4:
    """Compare ``ĝ·Jv = v·Jᵀĝ``, relative to ``‖Jv‖``."""
    pull, norms, _ = radial_pull(network, batch)
    unit = torch.where(norms > 0, norms, 1.0)
    along = (pull * v).flatten(1).sum(1) / unit
    coarse, fine = _differences(network, batch, v, h)
    slopes = [
        (c.ahead**2 - c.behind**2) / (4 * step * unit) for c, step in ((coarse, h), (fine, h / 2))
    ]
    across = (fine.squared - slopes[1] ** 2).clamp(min=0.0)
    told, seen = ((across + part**2).sqrt() for part in (along, slopes[1]))
    return told, seen, norms, (slopes[0] - slopes[1]).abs()


def _differences(
    network: WatchedNetwork, batch: Batch, v: Tensor, h: float
) -> tuple[FiniteChange, FiniteChange]:
    coarse, fine = (
        finite_change(network.problem, network, batch, v, step, NoClip()) for step in (h, h / 2)
    )
    return coarse, fine


def _by_probes(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> Comparison4:
    """Compare ``u·Jv`` for the direction ``u`` of each record's own change, one by one."""
    problem = network.problem
    quotients = []
    for step in (h, h / 2):
        sides = (replace(batch, z=batch.z + sign * step * v) for sign in (1, -1))
        ahead, behind = (record_gradients(problem, side) for side in sides)
        quotients.append((ahead - behind) / (2 * step))
    seen = quotients[1].norm(dim=1)
    sizes = [p.numel() for p in problem.released().values()]
    told = []
    for k in range(len(batch)):
        one = batch.records(torch.tensor([k], device=v.device))
        u = quotients[1][k] / seen[k].clamp(min=torch.finfo(v.dtype).tiny)
        pieces = zip(problem.released().items(), u.split(sizes), strict=True)
        along = {name: Direction(piece.reshape(p.shape)) for (name, p), piece in pieces}
        pull = dense_probe(network, one, lambda along=along: [along], NoClip()).pulls  # type: ignore[misc]
        told.append((pull[0, 0] * v[k]).sum())
    size = record_gradients(problem, batch).norm(dim=1)
    return torch.stack(told), seen, size, (quotients[0] - quotients[1]).norm(dim=1)


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
