"""Estimates the trace, largest eigenvalue and a low-rank sketch of each information matrix.

Let ``A = J̃ᵀJ̃`` for d unknowns. For the *trace*, a probe of random signs has the variance
``2(‖A‖_F² − ΣA_ii²)``. The sampled coordinates of Guo et al. (2022) have the variance
``dΣA_ii² − (tr A)²``, which is far larger if a few entries dominate the diagonal. Hutch++ (Meyer,
Musco, Musco and Woodruff 2021) computes the trace exactly on a subspace that accounts for most of
it, and estimates only the remainder. With d unit vectors, the trace is exact. Finite steps define
no matrix; the exact value is then ``D(h)``, a mean over all ``2^d`` sign vectors (see
``finite_changes``).

The *largest eigenvalue*, with a certified upper bound, is computed by the Lanczos method with a
random start. The computed value ``θ`` never exceeds the eigenvalue ``λ``, and ``λ ≤ θ/(1 − ε)``
with ``ε = (ln(1.648√d/δ)/(2k − 1))²`` after k steps. The second bound fails with a probability of
at most ``δ`` over the random start (Kuczyński and Woźniakowski 1992, theorem 4.2).

A low-rank *sketch* is computed by the Nyström method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from seepage.core.jacobian import leading_ritz_values
from seepage.errors import InputError
from seepage.nn.jacobian.engine import Engine
from seepage.nn.jacobian.random_directions import key_of, row_signs
from seepage.nn.problem.views import Inputs, batch_size
from seepage.support.chunks import progress
from seepage.support.number_check import check_count

_AT_A_TIME = 4  # directions per pass
FAILURE = 1e-6  # the probability δ that the upper bound on an eigenvalue is wrong


# The trace of every record's ``J̃ᵀJ̃``, its standard error, zero if it is exact, and the degrees of
# freedom of the standard error
Trace = tuple[Tensor, Tensor, float]


@dataclass(frozen=True)
class Directions:
    """Directions that all records share, each formed only when it is used."""

    of: Callable[[int], Tensor]
    count: int


def check_probes(probes: int) -> None:
    """Raise an error unless there are enough probes for a standard error."""
    if isinstance(probes, bool) or not isinstance(probes, Integral) or probes < 2:
        raise InputError(
            f"probes must be a whole number of at least 2, not {probes!r}; a single "
            "probe has no standard error."
        )


def rademacher(engine: Engine, x: Inputs, y: Tensor, probes: int) -> Trace:
    """Return the mean of independent probes, with its standard error."""
    check_probes(probes)
    estimates = engine.step(x, y, probes=probes, key="trace").traces
    spread = estimates.std(1, correction=1) / probes**0.5
    return estimates.mean(1), spread, probes - 1


def exact(engine: Engine, x: Inputs, y: Tensor) -> Trace:
    """Return the exact trace, as the sum of the diagonal or, with finite steps, as ``D(h)``."""
    values = exact_trace(engine, x, y, _units(engine, x, y))
    return values, torch.zeros_like(values), math.inf


def exact_diagonal(engine: Engine, x: Inputs, y: Tensor) -> Tensor:
    """Return ``(J̃ᵀJ̃)_jj`` of every record from one tangent per unknown; zero for known entries.

    With finite steps, an entry is ``D(h)`` of one unknown while all other unknowns are fixed.
    """
    z = engine.variable(x, y)
    squares = exact_squares(engine, x, y, _units(engine, x, y))
    out = torch.zeros(batch_size(x), z[0].numel(), dtype=squares.dtype, device=z.device)
    out[:, engine.view.entries(z)] = squares
    return out.reshape(-1, *z.shape[1:])


def _units(engine: Engine, x: Inputs, y: Tensor) -> Directions:
    """Return the unit vectors of the unknowns of a record."""
    z = engine.variable(x, y)
    which, size = engine.view.entries(z), z[0].numel()

    def unit(k: int) -> Tensor:
        one = torch.zeros(size, dtype=z.dtype, device=z.device)
        one[which[k]] = 1.0
        return one.reshape(z.shape[1:])

    return Directions(unit, len(which))


def exact_squares(
    engine: Engine, x: Inputs, y: Tensor, units: Directions, derivative: bool = False
) -> Tensor:
    """Return ``‖J̃u‖²`` of every record for each unit vector, ``(B, count)``.

    With finite steps, each value is ``D(h)`` along one vector, the mean over both signs. With
    ``derivative=True``, finite steps are never used.
    """
    ahead = squared_changes_along(engine, x, y, units, derivative)
    if derivative or not engine.takes_finite_steps(x, y):
        return ahead
    behind = Directions(lambda k: -units.of(k), units.count)
    return (ahead + squared_changes_along(engine, x, y, behind)) / 2


def exact_trace(
    engine: Engine, x: Inputs, y: Tensor, units: Directions, derivative: bool = False
) -> Tensor:
    """Return the sum of ``‖J̃u‖²`` over all unit vectors; with finite steps, ``D(h)``."""
    # Thin steps estimate the derivatives of smooth networks.
    if derivative or engine.way(x, y) != "finite":
        return exact_squares(engine, x, y, units, derivative).sum(1)
    most, count = 10, units.count
    if count > most:
        raise InputError(
            f"Over finite steps, an exact result is a mean over all 2^{count} sign vectors for the "
            f"{count:,} unknowns, but at most 2^{most} are supported. Estimate the dFIL with "
            "records('dfil', probes=400), or give method='derivative' to sp.nn.leakage."
        )
    every = torch.stack([units.of(k) for k in range(count)])
    numbers = torch.arange(2**count, device=every.device)[:, None]
    signs = 1 - 2 * ((numbers >> torch.arange(count, device=every.device)) & 1).to(every.dtype)
    sums = Directions(lambda k: torch.tensordot(signs[k], every, 1), len(signs))
    return squared_changes_along(engine, x, y, sums).mean(1)


def squared_changes_along(
    engine: Engine, x: Inputs, y: Tensor, directions: Directions, derivative: bool = False
) -> Tensor:
    """Return ``‖J̃v‖²`` of every record for each direction, ``(B, count)``.

    With ``derivative=True``, finite steps are never used.
    """
    parts = []
    count = directions.count
    for start in progress(range(0, count, _AT_A_TIME), "unknowns"):
        some = [directions.of(k) for k in range(start, min(start + _AT_A_TIME, count))]
        v = torch.stack(some)[:, None].expand(-1, batch_size(x), *some[0].shape)
        parts.append(engine.squared_changes(x, y, v, derivative=derivative))
    return torch.cat(parts, 1)


def hutchpp(engine: Engine, x: Inputs, y: Tensor, probes: int) -> Trace:
    """Return the Hutch++ estimate of the trace; each of its three parts uses a third of the probes.

    The trace on the subspace is exact, so only the remainder contributes to the standard error.
    Each part uses at least two probes.
    """
    check_probes(probes)
    rank = max(2, probes // 3)
    z = engine.variable(x, y)
    shape, size = tuple(z.shape[1:]), z[0].numel()
    if rank >= engine.unknowns(x, y):
        return exact(engine, x, y)
    count = batch_size(x)
    basis = subspace(engine, x, y, rank, "hutch++")
    flat = basis.permute(2, 0, 1).reshape(rank, count, *shape)
    inside = _changes(engine, x, y, flat).sum(1)
    rows = torch.arange(count)
    estimates = []
    for k in range(rank):
        v = row_signs(key_of(engine.seed, "hutch++", "rest", k), rows, (size,), z)
        v = engine.masked(v.reshape(count, *shape)).reshape(count, size, 1)
        rest = (v - basis @ (basis.transpose(1, 2) @ v)).reshape(1, count, *shape)
        estimates.append(_changes(engine, x, y, rest)[:, 0])
    outside = torch.stack(estimates, 1)
    spread = outside.std(1, correction=1) / rank**0.5
    return inside + outside.mean(1), spread, rank - 1


def subspace(engine: Engine, x: Inputs, y: Tensor, rank: int, key: object) -> Tensor:
    """Return an orthonormal basis ``(B, d, rank)`` of the range of ``A`` times random signs."""
    z = engine.variable(x, y)
    rows, shape = torch.arange(batch_size(x)), tuple(z.shape[1:])

    def drawn(k: int) -> Tensor:
        return engine.masked(row_signs(key_of(engine.seed, key, k), rows, shape, z))

    return torch.linalg.qr(products(engine, x, y, Directions(drawn, rank)))[0]


def products(engine: Engine, x: Inputs, y: Tensor, directions: Directions) -> Tensor:
    """Return the products of ``A`` with ``count`` directions per record, ``(B, d, count)``."""
    each = map(directions.of, progress(range(directions.count), "products"))
    return torch.stack([engine.information_product(x, y, v).flatten(1) for v in each], 2)


def _changes(engine: Engine, x: Inputs, y: Tensor, v: Tensor) -> Tensor:
    parts = [
        engine.squared_changes(x, y, v[k : k + _AT_A_TIME]) for k in range(0, len(v), _AT_A_TIME)
    ]
    return torch.cat(parts, 1)


@dataclass(frozen=True)
class LargestEigenvalues:
    """The largest eigenvalue of every matrix in a batch.

    Parameters
    ----------
    lower
        The computed values, ``(B,)``, which never exceed the eigenvalues.
    upper
        Upper bounds, ``(B,)``, each of which fails with a probability of at most ``failure``.
    steps
        The number of matrix–vector products.
    settled
        Whether each computed value has converged, ``(B,)``. If it has not, the iteration was
        stopped early, and the eigenvalue may be anywhere between ``lower`` and ``upper``.
    """

    lower: Tensor
    upper: Tensor
    steps: int
    settled: Tensor
    failure: float = FAILURE

    def remark(self) -> str:
        """Return sentences about the values that have not converged."""
        return (
            f"The iteration was stopped after {self.steps} matrix–vector products, when "
            f"{int((~self.settled).sum())} of {len(self.settled)} records had not converged. "
            "Values that have not converged are lower bounds. The stated errors extend to upper "
            f"bounds, each of which fails with a probability of at most {self.failure:g}."
        )


def lanczos(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    tolerance: float = 1e-4,
    max_steps: int = 100,
) -> LargestEigenvalues:
    """Return the largest eigenvalue of every matrix, given a function that multiplies by vectors.

    ``start`` contains random vectors ``(B, d)``; entries that are zero in all vectors are excluded.
    The iteration stops when every residual is below ``tolerance`` times the value, or after
    ``max_steps``; the bounds are valid in both cases. The error of the value is of second order:
    the squared residual divided by the gap to the next eigenvalue.
    """
    size = int((start != 0).any(0).sum())
    leading, residual, length, steps = leading_ritz_values(
        apply, start, tolerance, min(max_steps, size)
    )
    upper = _upper(leading, residual, length, steps, size)
    settled = (residual <= tolerance * leading) | (upper == leading)
    return LargestEigenvalues(leading, upper, steps, settled)


def _upper(leading: Tensor, residual: Tensor, length: Tensor, steps: int, size: int) -> Tensor:
    """Return the upper bound, which is exact once the steps span an invariant subspace."""
    if steps >= size:
        return leading
    slack = (math.log(1.648 * math.sqrt(size) / FAILURE) / (2 * steps - 1)) ** 2
    bound = leading / (1 - slack) if slack < 1 else torch.full_like(leading, math.inf)
    # A random start reaches every eigenvector, so if nothing is left, nothing was missed.
    return torch.where(
        (length == 0) | (leading == 0), leading, torch.maximum(bound, leading + residual)
    )


@dataclass(frozen=True)
class InformationSketch:
    """The sketch ``I ≈ FᵀF``, where ``F`` has a few rows per record.

    Up to rounding, the sketch never exceeds the matrix (``FᵀF ⪯ I``). Sketch and matrix are equal
    if the sketch has sufficient rank.

    Parameters
    ----------
    factor
        ``F``, ``(B, rank, d)``, over all d entries of a record's flattened variable (zero at known
        entries); the strongest direction comes first.
    shape
        The shape of one record's variable.
    """

    factor: Tensor
    shape: tuple[int, ...]

    def matrix(self, record: int) -> Tensor:
        """Return the sketch of one record's information as a matrix, ``(d, d)``."""
        return self.factor[record].T @ self.factor[record]

    def diagonal(self) -> Tensor:
        """Return the diagonals of the sketches, each in the shape of a record's variable."""
        return self.factor.square().sum(1).reshape(-1, *self.shape)

    def traces(self) -> Tensor:
        """Return the traces of the sketches."""
        return self.factor.square().sum((1, 2))

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of the sketches, ``(B, rank)``, largest first."""
        return self.factor.square().sum(2)


def nystrom(engine: Engine, x: Inputs, y: Tensor, rank: int) -> InformationSketch:
    """Return the sketch ``AQ (QᵀAQ)⁺ QᵀA`` of ``A = J̃ᵀJ̃`` from ``rank`` products.

    ``Q`` is an orthonormal basis of a random subspace of the unknowns and is the same for every
    record. With all d directions, ``Q`` is the identity, and the sketch equals the matrix.
    """
    check_count(rank, "rank")
    z = engine.variable(x, y)
    unknown = engine.view.entries(z)
    basis = _directions(len(unknown), min(int(rank), len(unknown)), key_of(engine.seed, "sketch"))
    basis = basis.to(z.device)
    count, size = batch_size(x), z[0].numel()

    def placed(k: int) -> Tensor:
        v = torch.zeros(size, dtype=z.dtype, device=z.device)
        v[unknown] = basis[:, k].to(z.dtype)
        return v.reshape(1, *z.shape[1:]).expand(count, *z.shape[1:])

    image = products(engine, x, y, Directions(placed, basis.shape[1]))
    few = _factor(basis, image[:, unknown].double(), torch.finfo(image.dtype).eps)
    factor = torch.zeros(*few.shape[:2], size, dtype=z.dtype, device=z.device)
    factor[:, :, unknown] = few.to(z.dtype)
    return InformationSketch(factor, tuple(z.shape[1:]))


def _directions(size: int, rank: int, key: int) -> Tensor:
    """Return an orthonormal basis ``(size, rank)`` of a uniformly random subspace, in float64.

    The basis is drawn on the CPU and orthonormalised before any product, so it does not depend on
    the device or chunk size.
    """
    if rank == size:
        return torch.eye(size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(key)
    normal = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(normal)[0]


def _factor(basis: Tensor, image: Tensor, eps: float) -> Tensor:
    """Return ``F (B, rank, n)`` with ``FᵀF = Y (QᵀY)⁺ Yᵀ`` for the images ``Y = AQ (B, n, rank)``.

    Directions of ``QᵀAQ`` with an eigenvalue below ``τ`` times the largest are left out, which can
    only make the sketch smaller. ``Y`` is accurate to ``eps·‖A‖``, and division by ``√τ`` increases
    this error to ``eps/√τ·‖A‖``. ``τ = eps^(2/3)`` makes ``τ`` and the relative error ``eps/√τ``
    equal.
    """
    middle = basis.T @ image
    values, vectors = torch.linalg.eigh((middle + middle.transpose(1, 2)) / 2)
    kept = values > eps ** (2 / 3) * values[:, -1:].clamp(min=0.0)
    root = torch.where(kept, 1 / torch.where(kept, values, 1.0).sqrt(), 0.0)
    left, singular, _ = torch.linalg.svd(image @ (vectors * root[:, None, :]), full_matrices=False)
    return (left * singular[:, None, :]).transpose(1, 2)
