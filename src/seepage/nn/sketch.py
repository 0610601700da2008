"""A low-rank sketch of every record's whole information matrix, by Nyström's method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.nn.engine import Engine
from seepage.nn.traces import products
from seepage.nn.views import Inputs


@dataclass(frozen=True)
class Sketch:
    """``I ≈ FᵀF`` with a few rows ``F`` per record.

    The sketch never exceeds the matrix (``FᵀF ⪯ I``), and equals it where its rank suffices.

    Parameters
    ----------
    factor
        ``F``, ``(B, rank, d)``, the unknowns of a record in one row, the strongest direction first.
    shape
        The shape of one record's variable.
    """

    factor: Tensor
    shape: tuple[int, ...]

    def matrix(self, record: int) -> Tensor:
        """Return the sketch of one record's information written out, ``(d, d)``."""
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


def nystrom(engine: Engine, x: Inputs, y: Tensor, rank: int, key: object = "sketch") -> Sketch:
    """Return the sketch ``AΩ (ΩᵀAΩ)⁺ ΩᵀA`` of ``A = J̃ᵀJ̃`` from ``rank`` products.

    A small multiple of the identity is added and taken off again, for the sake of the inverse
    (Tropp, Yurtsever, Udell and Cevher 2017, algorithm 3).
    """
    omega, image = products(engine, x, y, rank, key)
    eps = torch.finfo(image.dtype).eps
    shift = eps * torch.linalg.matrix_norm(image)[:, None, None]
    basis, _ = torch.linalg.qr(omega)
    shifted = (image @ _solution(omega, basis)) + shift * basis
    middle = basis.transpose(1, 2) @ shifted
    values, vectors = torch.linalg.eigh((middle + middle.transpose(1, 2)) / 2)
    floor = 8 * rank * eps * values[:, -1:].clamp(min=0)
    root = torch.where(values > floor, 1 / torch.where(values > floor, values, 1.0).sqrt(), 0.0)
    half = shifted @ (vectors * root[:, None, :])
    left, singular, _ = torch.linalg.svd(half, full_matrices=False)
    strength = (singular.square() - shift[:, :, 0]).clamp(min=0).sqrt()
    factor = (left * strength[:, None, :]).transpose(1, 2)
    return Sketch(factor, tuple(engine.variable(x, y).shape[1:]))


def _solution(omega: Tensor, basis: Tensor) -> Tensor:
    """Return ``R⁻¹`` of ``Ω = QR``: products with Ω become products with its orthonormal basis."""
    upper = basis.transpose(1, 2) @ omega
    eye = torch.eye(upper.shape[-1], dtype=upper.dtype, device=upper.device)
    return torch.linalg.solve_triangular(upper, eye.expand_as(upper), upper=True)
