"""Probes ``Jᵀu`` of smooth networks by a finite step of the parameters.

``g_i·u`` is the derivative of record i's loss along a direction ``u`` of the parameters, so

    J_iᵀu = ∇_z (g_i·u) ≈ (∇_z ℓ_i(θ + ηu) − ∇_z ℓ_i(θ))/η

for all records at once. ``∇_z ℓ_i(θ)`` is a by-product of the update's own backward pass, so a
probe costs one forward pass and one backward pass to the record. A probe needs no second
derivative, no rule for any layer and no gradient of any parameter. For random signs ``u``,
``E‖J_iᵀu‖² = ‖J_i‖_F²``, and each squared entry estimates ``(J_iᵀJ_i)_jj`` of that unknown.

The part of a one-sided step's error that is odd in ``u`` vanishes in the mean. The even part grows
like ``η²``, and the rounding errors of the two passes, which are proportional to ``‖∇_z ℓ_i‖``, add
to the squared quotient. Both errors have the form of those in ``finite_changes.py`` and are removed
in the same way. The effect of the clip is bounded from above by ``max(1, ρ²)/φ²``, or exact with
the radial pull ``Jᵀĝ``:

    ‖J̃‖_F² = (‖J‖_F² − (1 − ρ²)‖Jᵀĝ‖²)/φ²

A network with kinks is not measured in this way: a step of the parameters crosses other kinks than
a change of the record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.gradients.norms import weighted_gradient
from seepage.nn.gradients.per_record_gradients import at_least_single
from seepage.nn.gradients.watching import WatchedNetwork, connected
from seepage.nn.jacobian.derivative_check import REMEDY, full_precision
from seepage.nn.jacobian.finite_changes import StepErrors, in_short_numbers
from seepage.nn.jacobian.probes import ForwardOverParameters
from seepage.nn.jacobian.random_directions import (
    key_of,
    packed_signs,
    row_signs,
    unpacked_signs,
)
from seepage.nn.problem.problem import Batch, NetworkProblem


@dataclass(frozen=True)
class ParameterStep:
    """The size ``η`` of a step of the parameters, its relative uncertainty, and its errors."""

    size: float
    doubt: float
    errors: StepErrors

    def facts(self) -> list[float]:
        """Return the step as a list of numbers, from which :meth:`of` makes it again."""
        return [self.size, self.doubt, self.errors.rounding, self.errors.curvature]

    @classmethod
    def of(cls, facts: Sequence[float]) -> ParameterStep:
        """Return the step with these facts."""
        size, doubt, *errors = facts
        return cls(size, doubt, StepErrors(*errors))


def packed_direction(problem: NetworkProblem, key: int) -> Tensor:
    """Return the signs of a direction of all released parameters, packed into words."""
    released = problem.released().values()
    return packed_signs(key, sum(p.numel() for p in released), next(iter(released)))


def direction(like: Mapping[str, Tensor], words: Tensor) -> dict[str, Tensor]:
    """Return a packed direction of these parameters, as small integers."""
    sizes = [p.numel() for p in like.values()]
    pieces = unpacked_signs(words, sum(sizes)).split(sizes)
    return {
        name: piece.reshape(p.shape).to(p.device)
        for (name, p), piece in zip(like.items(), pieces, strict=True)
    }


def stepped(own: Mapping[str, Tensor], words: Tensor, eta: float) -> dict[str, Tensor]:
    """Return ``θ + ηu`` by parameter, for a packed direction ``u`` of all of them."""
    out: dict[str, Tensor] = {}
    start, kernel, size = 0, _add_signs() if words.is_cuda else None, 1024
    u: dict[str, Tensor] = {}  # unpacked if the kernel does not apply to a parameter
    for name, p in own.items():
        count = p.numel()
        plain = p.dtype == torch.float32 and p.is_contiguous() and p.device == words.device
        if kernel is not None and plain:
            out[name] = torch.empty_like(p)
            launch = kernel[(-(-count // size),)]
            with torch.cuda.device(p.device):
                launch(out[name], p, words, start, count, eta, SIZE=size, num_warps=8)
        else:
            u = u or direction(own, words)
            out[name] = torch.add(p, u[name], alpha=eta)
        start += count
    return out


@cache
def _add_signs() -> Any:
    """Return the Triton kernel, or ``None`` if Triton is not installed."""
    try:
        from seepage.nn.jacobian.sign_kernel import add_signs
    except ImportError:
        return None
    return add_signs


def slopes_at(
    problem: NetworkProblem, batch: Batch, words: Tensor | None = None, eta: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return ``∇_z Σ_i ℓ_i`` and the losses at ``θ + ηu``, for a packed direction ``u``."""
    own = problem.detached()
    parameters, fixed = own, nullcontext()
    if words is not None:
        # Computed anew from θ each time: adding and then subtracting a step would round.
        parameters = stepped(own, words, eta)
        # The padding row of an embedding has no gradient, so it does not move.
        fixed = ForwardOverParameters({id(parameters[name]): p for name, p in own.items()})
    z = batch.z.detach().requires_grad_()
    with torch.enable_grad(), problem.in_place(parameters, batch, connected(z)) as losses_of_run:
        with fixed:
            losses = losses_of_run()
        (slopes,) = torch.autograd.grad(losses.sum(), z, materialize_grads=True)
    return slopes, losses.detach()


def pull(
    problem: NetworkProblem, batch: Batch, words: Tensor, eta: float, slopes: Tensor
) -> Tensor:
    """Return ``(∇_z ℓ_i(θ + ηu) − ∇_z ℓ_i(θ))/η ≈ J_iᵀu``, given the slopes at ``θ``."""
    moved, _ = slopes_at(problem, batch, words, eta)
    kind = torch.promote_types(moved.dtype, torch.float32)
    return (moved.to(kind) - slopes.to(kind)) / eta


def octaves_for(dtype: torch.dtype, short: bool) -> list[float]:
    """Return the octaves ``o`` of the steps to try, ``2⁻ᵒ`` times the size of the parameters.

    The errors of curvature and rounding balance at about the square root of the rounding error of
    the network's products, which ``short`` numbers (TF32, 16 bits) round to at most ten bits.
    """
    eps = 2.0**-10 if short else torch.finfo(dtype).eps
    first = round(-math.log2(eps) / 2) - 6.0
    return [first + k / 2 for k in range(20)]


def size_of_parameters(problem: NetworkProblem) -> float:
    """Return the root mean square of the released parameters, or one if it is zero."""
    released = problem.released().values()
    squares = sum(float(p.detach().double().square().sum()) for p in released)
    return math.sqrt(squares / sum(p.numel() for p in released)) or 1.0


def check_parameter_steps(network: WatchedNetwork, batch: Batch, scale: float) -> None:
    """Raise an error if steps of the parameters miss a part of the released gradients' change.

    ``v·Jᵀu`` from steps of the parameters is compared with ``u·Jv`` from the released gradients
    at ``z ± hv``, for every record on its own. The two differ if the code hides the record from
    torch (``.detach()``), or if the release is not the gradient of the loss
    (``scale_grad_by_freq``).
    ``scale`` is the size of the unknowns. Full precision is used if the network accepts it.
    """
    compared = None
    try:
        with full_precision(batch.z.device):
            compared = _compared(network, batch, scale)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # the network holds numbers that only autocast accepts together
        pass
    # Outside the handler: until the error is gone, its checkpoints would keep tensors of this run.
    if compared is not None:
        apart, size, errors = compared
        share = 1e-4 if batch.z.dtype == torch.float64 else 2e-2
        wrong = bool((apart > share * (size + 0.05 * size.max()) + 2 * errors).any())
    else:
        longer = replace(batch, z=batch.z.to(at_least_single(batch.z)))
        with in_short_numbers(batch.z.device.type, batch.z.dtype):
            each = _compared(network, longer, scale)
        # Rounding is about as large for all records, so their means are compared.
        apart, size, errors = (values.square().mean().sqrt() for values in each)
        wrong = bool(apart > 0.3 * size + 4 * errors)
    if wrong:
        raise InputError(
            "Steps of the parameters and steps of the records give different derivatives of the "
            f"gradients: the code hides a dependence on the record from torch. {REMEDY}"
        )


def _compared(network: WatchedNetwork, batch: Batch, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``|v·Jᵀu − u·Jv|`` and ``‖Jᵀu‖`` of every record, and the errors of the steps."""
    problem, double = network.problem, batch.z.dtype == torch.float64
    words = packed_direction(problem, key_of("check"))
    v = row_signs(key_of("check"), torch.arange(len(batch)), tuple(batch.z.shape[1:]), batch.z)
    mask = problem.view.mask_for(batch.z)
    v = v if mask is None else v * mask
    eta = (1e-5 if double else 1e-3) * size_of_parameters(problem)
    h = (5e-5 if double else 1.5e-3) * scale

    def from_parameters(eta: float) -> Tensor:
        ahead, behind = (slopes_at(problem, batch, words, e)[0] for e in (eta, -eta))
        return (ahead.double() - behind.double()) / (2 * eta)

    def from_records(h: float) -> Tensor:
        ends = [_released_along(problem, replace(batch, z=batch.z + e * v), words) for e in (h, -h)]
        return (ends[0] - ends[1]) / (2 * h)

    pulls, along = from_parameters(eta), from_records(h)
    first, second = ((p * v).flatten(1).sum(1) for p in (pulls, from_parameters(2 * eta)))
    # The difference between two step sizes shows what curvature and rounding do.
    errors = (first - second).abs() + (along - from_records(2 * h)).abs()
    return (first - along).abs(), pulls.flatten(1).norm(dim=1), errors


def _released_along(problem: NetworkProblem, batch: Batch, words: Tensor) -> Tensor:
    """Return ``g_i·u`` of the released gradients, in one training pass per record."""
    u, along = direction(problem.released(), words), []
    for k in range(len(batch)):
        one = batch.records(torch.tensor([k], device=batch.z.device))
        _, gradient = weighted_gradient(problem, one, torch.ones((), device=one.z.device))
        along.append(sum((g.double() * u[name]).sum() for name, g in gradient.items()))
    return torch.stack(along)
