"""A low-rank sketch of every record's whole information matrix, by Nyström's method."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.jacobian.engine import Engine
from seepage.nn.jacobian.random_directions import key_of
from seepage.nn.measures.traces import products
from seepage.nn.problem.views import Inputs, batch_size


@dataclass(frozen=True)
class InformationSketch:
    """``I ≈ FᵀF`` with a few rows ``F`` per record.

    Up to rounding, the sketch never exceeds the matrix (``FᵀF ⪯ I``), and equals it if its rank
    suffices.

    Parameters
    ----------
    factor
        ``F``, ``(B, rank, d)``, with a record's unknowns flattened, the strongest direction first.
    shape
        The shape of one record's variable.
    """

    factor: Tensor
    shape: tuple[int, ...]

    def matrix(self, record: int) -> Tensor:
        """Return the sketch of one record's information as a matrix, ``(d, d)``."""
        return self.factor[record].T @ self.factor[record]

    def diagonal(self) -> Tensor:
        """Return the diagonals, in the shape of the records."""
        return self.factor.square().sum(1).reshape(-1, *self.shape)

    def traces(self) -> Tensor:
        """Return the traces."""
        return self.factor.square().sum((1, 2))

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues, ``(B, rank)``, the largest first."""
        return self.factor.square().sum(2)


def nystrom(
    engine: Engine, x: Inputs, y: Tensor, rank: int, key: object = "sketch"
) -> InformationSketch:
    """Return the sketch ``AQ (QᵀAQ)⁺ QᵀA`` of ``A = J̃ᵀJ̃`` from ``rank`` products.

    ``Q`` is an orthonormal basis of a random subspace of the unknowns, the same for every record;
    ``key`` makes it different from those of other sketches. With all d directions, ``Q`` is the
    identity and the sketch is the matrix itself.
    """
    if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1:
        raise InputError(f"rank must be a whole number of at least 1, not {rank!r}.")
    z = engine.variable(x, y)
    mask = engine.view.mask_for(z)
    everything = torch.ones_like(z[0], dtype=torch.bool) if mask is None else mask
    unknown = torch.nonzero(everything.flatten()).flatten()
    basis = _directions(len(unknown), min(int(rank), len(unknown)), key_of(engine.seed, key))
    basis = basis.to(z.device)
    count, size = batch_size(x), z[0].numel()

    def placed(k: int) -> Tensor:
        v = torch.zeros(size, dtype=z.dtype, device=z.device)
        v[unknown] = basis[:, k].to(z.dtype)
        return v.reshape(1, *z.shape[1:]).expand(count, *z.shape[1:])

    image = products(engine, x, y, placed, basis.shape[1])
    few = _factor(basis, image[:, unknown].double(), torch.finfo(image.dtype).eps)
    factor = torch.zeros(*few.shape[:2], size, dtype=z.dtype, device=z.device)
    factor[:, :, unknown] = few.to(z.dtype)
    return InformationSketch(factor, tuple(z.shape[1:]))


def _directions(size: int, rank: int, key: int) -> Tensor:
    """Return an orthonormal basis ``(size, rank)`` of a uniformly random subspace, in float64.

    It is drawn on the CPU and orthonormalised before any product: the same on every device,
    whatever the chunks, and no inverse of the draw is needed.
    """
    if rank == size:
        return torch.eye(size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(key)
    normal = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(normal)[0]


def _factor(basis: Tensor, image: Tensor, eps: float) -> Tensor:
    """Return ``F (B, rank, n)`` with ``FᵀF = Y (QᵀY)⁺ Yᵀ`` for the images ``Y = AQ (B, n, rank)``.

    Directions of ``QᵀAQ`` with less than ``τ`` of its largest eigenvalue are left out, which only
    makes the sketch smaller. ``Y`` is accurate to ``eps·‖A‖``, and dividing by ``√τ`` makes that
    ``eps/√τ·‖A‖``: both losses are of the same size at ``τ = eps^(2/3)``.
    """
    middle = basis.T @ image
    values, vectors = torch.linalg.eigh((middle + middle.transpose(1, 2)) / 2)
    kept = values > eps ** (2 / 3) * values[:, -1:].clamp(min=0.0)
    root = torch.where(kept, 1 / torch.where(kept, values, 1.0).sqrt(), 0.0)
    left, singular, _ = torch.linalg.svd(image @ (vectors * root[:, None, :]), full_matrices=False)
    return (left * singular[:, None, :]).transpose(1, 2)
