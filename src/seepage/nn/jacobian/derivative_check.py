"""Checks the derivative of every record's gradient against a finite difference.

``torch.no_grad()``, a ``.detach()`` in a network or loss, or a function with a custom backward pass
can hide a gradient's dependence on its record from torch. The derivative is then silently too
small. A central difference of plain gradients detects all these cases.

Over a finite step ``h``, a change also differs from the derivative because of curvature, in
proportion to ``h²``, and because of kinks (:func:`uneven_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seepage.errors import InputError
from seepage.nn.gradients.first_look import ModuleRun, module_runs
from seepage.nn.gradients.network_checks import module_label
from seepage.nn.gradients.norms import record_gradients
from seepage.nn.gradients.per_record_gradients import record_lengths
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.finite_changes import longer_types, squared_distances
from seepage.nn.jacobian.probes import dense_probe
from seepage.nn.jacobian.random_directions import Direction, key_of, row_signs
from seepage.nn.jacobian.tangents import inner_products, radial_pull
from seepage.nn.problem.clipping import NoClip
from seepage.nn.problem.problem import Batch, NetworkProblem

REMEDY = (
    "Remove the cause, or measure with method='finite', which runs plain training passes and needs "
    "no derivative."
)
# Of a step's size: every record's change by derivative and by difference, (B,)
_Changes = Callable[[float], tuple[Tensor, Tensor]]
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
    """Raise an error if the derivative of any record's gradient disagrees with a finite difference.

    ``scale`` is the size of the unknowns; the steps are a small fraction of it. ``way`` states how
    derivatives will be computed: ``"tangents"`` along record directions, ``"pulls"`` by a
    double-backward pass, or ``"probes"`` along parameter directions, which need no per-layer rules.
    In a network with kinks, differences may not match the derivative at any step size. The check
    then fails only if the derivative is nearly zero and the difference clearly is not.
    """
    for dtype in longer_types(network.problem, batch):
        try:
            _check(network.of_type(dtype), batch.of_type(dtype), scale, way, kinked)
            return
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UndifferentiableError):
            continue  # a loss or module that holds numbers of another type accepts no others
    _check(network, batch, scale, way, kinked)


def uneven_changes(network: WatchedNetwork, batch: Batch, v: Tensor, h: float) -> Tensor:
    """Return by how much changes over ``h`` differ from derivatives, apart from curvature.

    The result, ``(K, B)`` for directions ``v (K, B, …)``, is the difference between
    ``‖(g₊ − g₋)/2h‖²`` and ``‖Jv‖²``, divided by the larger of the two. It is set to zero if it is
    below a hundredth, if rounding could cause it, or if it falls to about a quarter when ``h`` is
    halved, as the effect of curvature does. The difference vanishes at ``h/2`` if a kink lies
    between ``h/2`` and ``h``, and it stays or grows if a kink is nearer.
    """
    products = inner_products(network, batch, v)
    derivative = products.dd
    whole, half = (
        torch.stack([_central_change(network, batch, each, step)[0] for each in v])
        for step in (h, h / 2)
    )
    size = torch.maximum(whole, derivative)
    apart, then = whole - derivative, half - derivative
    left = then / torch.where(apart == 0, 1.0, apart)
    curved = (left > 0.1) & (left < 0.5)
    rounding = (1e4 * torch.finfo(size.dtype).eps * products.norms / h).square()
    uneven = ~curved & (apart.abs() > 0.01 * size) & (size > rounding)
    return torch.where(uneven, apart.abs() / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)


def spread_over_classes(y: Tensor, count: int, seed: int) -> Tensor:
    """Return the positions of ``count`` random records, stratified by target class.

    Records are sorted by target if every target is a single integer. Then one record is drawn from
    each of ``count`` equal blocks.
    """
    if len(y) <= count:
        return torch.arange(len(y))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    if y.dim() == 1 and not y.is_floating_point():
        order = order[y.cpu()[order].argsort(stable=True)]
    places = (torch.arange(count) + torch.rand(count, generator=generator)) * (len(y) / count)
    return order[places.long().clamp(max=len(y) - 1)].sort().values


class UndifferentiableError(InputError):
    """Raised if torch cannot differentiate the gradients of a network."""


def _check(network: WatchedNetwork, batch: Batch, scale: float, way: str, kinked: bool) -> None:
    problem, z = network.problem, batch.z
    mask = problem.view.mask_for(z)
    v = row_signs(key_of("check"), torch.arange(len(batch)), tuple(z.shape[1:]), z)
    v = v if mask is None else v * mask
    # Rounding and curvature balance at larger steps in shorter numbers.
    h = scale * (5e-5 if z.dtype == torch.float64 else 1.5e-3)
    changes = {"tangents": _by_tangents, "pulls": _by_pulls, "probes": _by_probes}[way]
    with full_precision(z.device):
        try:
            wrong, derived, difference = _apart(*changes(network, batch, v), h, kinked)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
            raise UndifferentiableError(
                f"torch cannot differentiate the gradients of this network ({line})"
                f"{_where(problem, batch, h * v)}. {REMEDY}"
            ) from error
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        raise InputError(
            f"Along a random direction, a record's gradient changes by {float(difference[k]):.3g} "
            f"per unit, but torch's derivative is {float(derived[k]):.3g}: the code hides the "
            f"gradient's dependence on the record from torch{_where(problem, batch, h * v)}. "
            f"{REMEDY}"
        )


def _apart(at: _Changes, norms: Tensor, step: float, kinked: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return which records' derivatives and differences disagree, with both values.

    If any record disagrees, a second step size is tried. In float64, the second step is much
    smaller, which avoids a bend near the record (from ELU or a Huber loss). At lower precision,
    rounding rules out smaller steps, so the second step is twice as large as the first and shows
    the error of the first.

    Rounding follows the batch's largest gradient: a confident record's gradient is tiny, but it is
    a difference of numbers near one. Where rounding is larger still, the two steps disagree.
    """
    largest = norms.max()

    def far(derived: Tensor, difference: Tensor, h: float, error: Tensor | float = 0.0) -> Tensor:
        rounding = 64 * torch.finfo(difference.dtype).eps * largest / h
        share = 1e-4 if double else 2e-2
        slack = share * (difference + 0.05 * difference.max()) + rounding
        return (derived - difference).abs() > slack + 2 * error

    derived, difference = at(step)
    double = difference.dtype == torch.float64
    wrong = far(derived, difference, step)
    if kinked:
        wrong &= derived.abs() < 1e-3 * difference
    if not bool(wrong.any()):
        return wrong, derived, difference
    second = step * (1 / 64 if double else 2)
    derived_then, difference_then = at(second)
    error = (difference_then - difference).abs()
    if double:
        wrong &= far(derived_then, difference_then, second, error)
    else:
        wrong &= far(derived, difference, step, error)
    if kinked:
        wrong &= error < difference / 2
    return wrong, derived, difference


def _by_tangents(network: WatchedNetwork, batch: Batch, v: Tensor) -> tuple[_Changes, Tensor]:
    """Compare ``‖Jv‖`` from tangents with a finite difference."""
    products = inner_products(network, batch, v[None])
    derived = products.dd[0].sqrt()
    return lambda h: (derived, _central_change(network, batch, v, h)[0].sqrt()), products.norms


def _by_pulls(network: WatchedNetwork, batch: Batch, v: Tensor) -> tuple[_Changes, Tensor]:
    """Compare two values of ``‖Jv‖``, each with another value of the component along ``g``.

    In the first, this component is from a pullback; in the second, from a finite difference.
    """
    pull, norms, _ = radial_pull(network, batch)
    unit = torch.where(norms > 0, norms, 1.0)
    along = (pull * v).flatten(1).sum(1) / unit

    def at(h: float) -> tuple[Tensor, Tensor]:
        squared, norms = _central_change(network, batch, v, h)
        ahead, behind = norms.chunk(2)
        slope = (ahead**2 - behind**2) / (4 * h * unit)
        across = (squared - slope**2).clamp(min=0.0)
        return (across + along**2).sqrt(), (across + slope**2).sqrt()

    return at, norms


def _central_change(
    network: WatchedNetwork, batch: Batch, v: Tensor, h: float
) -> tuple[Tensor, Tensor]:
    """Return ``‖(g₊ − g₋)/2h‖²``, and the norms at both points."""
    squared, norms = squared_distances(network, batch.on_both_sides(h * v, -h * v), NoClip())
    return squared / (2 * h) ** 2, norms


def _by_probes(network: WatchedNetwork, batch: Batch, v: Tensor) -> tuple[_Changes, Tensor]:
    """Compare ``u·Jv`` record by record, with ``u`` the direction of the gradient's change."""
    problem, released = network.problem, network.problem.released()
    sizes = [p.numel() for p in released.values()]

    def gradients(h: float) -> Tensor:
        return record_gradients(problem, replace(batch, z=batch.z + h * v))

    def derivative(k: int, u: Tensor) -> Tensor:
        pieces = zip(released.items(), u.split(sizes), strict=True)
        along = {name: Direction(piece.reshape(p.shape)) for (name, p), piece in pieces}
        one = batch.records(torch.tensor([k], device=v.device))
        return (dense_probe(network, one, NoClip(), lambda: [along]).pulls[0, 0] * v[k]).sum()

    def at(h: float) -> tuple[Tensor, Tensor]:
        change = (gradients(h) - gradients(-h)) / (2 * h)
        difference = record_lengths(change)
        units = change / difference[:, None].clamp(min=torch.finfo(v.dtype).tiny)
        return torch.stack([derivative(k, u) for k, u in enumerate(units)]), difference

    return at, record_lengths(gradients(0.0))


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off reduced precision, whose rounding would dominate the differences."""
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
    """Return the places where the dependence on the record is hidden, as text; empty if unknown."""
    looks = []
    for sign in (1, -1):
        with (
            torch.no_grad(),
            module_runs(problem.net) as (stack, _),
            _HidingPlaces(stack) as places,
        ):
            problem.losses(problem.detached(), batch, batch.z + sign * move)
        looks.append(places.seen)
    labels = {module: module_label(name, module) for name, module in problem.net.named_modules()}
    named: list[str] = []
    for (what, module, value), other in zip(*looks, strict=False):
        moved = value is None or other[2] is None or not torch.equal(value, other[2])
        place = f"{what} in {labels[module] if module else 'the loss'}"
        if moved and place not in named:
            named.append(place)
    if not named:
        named = _custom_functions(problem, batch)
    return f" ({', '.join(named[:3])})" if named else ""


class _HidingPlaces(TorchFunctionMode):  # type: ignore[misc]
    """Records every call that hides its input from torch, with the module that made the call."""

    def __init__(self, stack: list[ModuleRun]) -> None:
        super().__init__()
        self.stack = stack
        self.seen: list[tuple[str, nn.Module | None, Tensor | None]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        opens = function is torch._C._set_grad_enabled and args[0]
        if function in _HIDING and not opens:
            module = self.stack[-1].module if self.stack else None
            value = args[0].detach().clone() if isinstance(args[0], Tensor) else None
            self.seen.append((_HIDING[function], module, value))
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
