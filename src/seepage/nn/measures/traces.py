"""Estimates of the trace of every record's information: by random signs, Hutch++, or exactly.

For ``A = J̃ᵀJ̃`` of d unknowns: a probe of random signs has the variance
``2(‖A‖_F² − ΣA_ii²)``, the sampled coordinates of paper 004 have ``dΣA_ii² − tr²``, which is far
larger. Hutch++ (Meyer, Musco, Musco and Woodruff 2021) first treats a subspace that holds most of
``A`` exactly, and estimates only the rest; d unit vectors give the trace itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.jacobian.engine import Engine
from seepage.nn.jacobian.random_directions import key_of, row_signs
from seepage.nn.problem.views import Inputs, batch_size
from seepage.support.chunks import progress

_AT_A_TIME = 4  # directions per pass


@dataclass(frozen=True)
class TraceEstimate:
    """The trace of every record's ``J̃ᵀJ̃`` and its standard error, zero if it is exact.

    ``degrees`` are the standard error's degrees of freedom.
    """

    values: Tensor
    standard_errors: Tensor
    degrees: float = math.inf


def check_probes(probes: int) -> None:
    """Raise unless there are enough probes for a standard error."""
    if isinstance(probes, bool) or not isinstance(probes, Integral) or probes < 2:
        raise InputError(
            "probes must be a whole number of at least 2, so that there is a standard error, not "
            f"{probes!r}."
        )


def rademacher(
    engine: Engine, x: Inputs, y: Tensor, probes: int, key: object = "trace"
) -> TraceEstimate:
    """Return the mean of independent probes, with the standard error of that mean."""
    check_probes(probes)
    estimates = engine.step(x, y, probes=probes, key=key).traces
    spread = estimates.std(1, correction=1) / probes**0.5
    return TraceEstimate(estimates.mean(1), spread, probes - 1)


def exact(engine: Engine, x: Inputs, y: Tensor) -> TraceEstimate:
    """Return the trace as the sum of the exact diagonal."""
    values = exact_diagonal(engine, x, y).flatten(1).sum(1)
    return TraceEstimate(values, torch.zeros_like(values))


def exact_diagonal(engine: Engine, x: Inputs, y: Tensor) -> Tensor:
    """Return ``(J̃ᵀJ̃)_jj`` of every record, one tangent for each unknown; zero where known."""
    z = engine.variable(x, y)
    mask = engine.view.mask_for(z)
    size = z[0].numel()
    which = torch.arange(size) if mask is None else torch.nonzero(mask.flatten()).flatten().cpu()

    def unit(k: int) -> Tensor:
        one = torch.zeros(size, dtype=z.dtype, device=z.device)
        one[which[k]] = 1.0
        return one.reshape(z.shape[1:])

    found = squared_changes_along(engine, x, y, unit, len(which))
    out = torch.zeros(batch_size(x), size, dtype=found.dtype, device=z.device)
    out[:, which.to(z.device)] = found
    return out.reshape(-1, *z.shape[1:])


def squared_changes_along(
    engine: Engine,
    x: Inputs,
    y: Tensor,
    direction: Callable[[int], Tensor],
    count: int,
    derivative: bool = False,
) -> Tensor:
    """Return ``‖J̃v‖²`` of every record for ``count`` shared directions, ``(B, count)``.

    With ``derivative``, finite steps are never used.
    """
    found = []
    for start in progress(range(0, count, _AT_A_TIME), "unknowns"):
        some = [direction(k) for k in range(start, min(start + _AT_A_TIME, count))]
        v = torch.stack(some)[:, None].expand(-1, batch_size(x), *some[0].shape)
        found.append(engine.squared_changes(x, y, v, derivative=derivative))
    return torch.cat(found, 1)


def hutchpp(
    engine: Engine, x: Inputs, y: Tensor, probes: int, key: object = "hutch++"
) -> TraceEstimate:
    """Return Hutch++ with a third of the probes for each of its three parts.

    The part inside the subspace is exact, so the standard error is that of the rest alone. Each
    part takes at least two probes.
    """
    check_probes(probes)
    rank = max(2, probes // 3)
    z = engine.variable(x, y)
    shape, size = tuple(z.shape[1:]), z[0].numel()
    if rank >= engine.unknowns(x, y):
        return exact(engine, x, y)
    count = batch_size(x)
    basis = subspace(engine, x, y, rank, key)
    flat = basis.permute(2, 0, 1).reshape(rank, count, *shape)
    inside = _changes(engine, x, y, flat).sum(1)
    rows = torch.arange(count)
    estimates = []
    for k in range(rank):
        v = row_signs(key_of(engine.seed, key, "rest", k), rows, (size,), z)
        v = engine.masked(v.reshape(count, *shape)).reshape(count, size, 1)
        rest = (v - basis @ (basis.transpose(1, 2) @ v)).reshape(1, count, *shape)
        estimates.append(_changes(engine, x, y, rest)[:, 0])
    outside = torch.stack(estimates, 1)
    spread = outside.std(1, correction=1) / rank**0.5
    return TraceEstimate(inside + outside.mean(1), spread, rank - 1)


def subspace(engine: Engine, x: Inputs, y: Tensor, rank: int, key: object) -> Tensor:
    """Return an orthonormal basis ``(B, d, rank)`` of the range of ``A`` times random signs."""
    z = engine.variable(x, y)
    rows, shape = torch.arange(batch_size(x)), tuple(z.shape[1:])

    def drawn(k: int) -> Tensor:
        return engine.masked(row_signs(key_of(engine.seed, key, k), rows, shape, z))

    return torch.linalg.qr(products(engine, x, y, drawn, rank))[0]


def products(
    engine: Engine, x: Inputs, y: Tensor, direction: Callable[[int], Tensor], count: int
) -> Tensor:
    """Return ``A`` times ``count`` directions ``(B, …)`` of the records, ``(B, d, count)``."""
    images = [
        engine.information_product(x, y, direction(k)).flatten(1)
        for k in progress(range(count), "products")
    ]
    return torch.stack(images, 2)


def _changes(engine: Engine, x: Inputs, y: Tensor, v: Tensor) -> Tensor:
    parts = [
        engine.squared_changes(x, y, v[k : k + _AT_A_TIME]) for k in range(0, len(v), _AT_A_TIME)
    ]
    return torch.cat(parts, 1)
