"""The largest eigenvalue of every record's information, with a certificate of how far it can be.

Lanczos' method on ``A = J̃ᵀJ̃`` from a random start. Its value ``θ`` never exceeds the eigenvalue
``λ``. Above, two bounds: ``λ ≤ θ/(1 − ε)`` with ``ε = (ln(1.648√d/δ)/(2k − 1))²`` after k steps,
wrong with a probability of at most ``δ`` over the start (Kuczyński and Woźniakowski 1992, theorem
4.2); and, from the trace, ``λ ≤ max(θ + r, tr A − Σθ_j + r)``, ``r`` the residual, where the trace
is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FAILURE = 1e-6


@dataclass(frozen=True)
class LargestEigenvalues:
    """The largest eigenvalue of every matrix of a batch.

    Parameters
    ----------
    lower
        The value found, ``(B,)``, which is never above the eigenvalue.
    upper
        A bound that fails with a probability of at most ``failure`` each.
    steps
        How many products it took.
    settled
        Whether the residual of each came within the tolerance, ``(B,)``; where it did not, the
        iteration was cut off, and ``lower`` may be too small by anything up to ``upper``.
    """

    lower: Tensor
    upper: Tensor
    steps: int
    settled: Tensor
    failure: float = FAILURE

    def remark(self) -> str:
        """Return what to know of the values that did not settle, in words."""
        return (
            f"The iteration was cut off after {self.steps} products before "
            f"{int((~self.settled).sum())} of the {len(self.settled)} records had settled: their "
            "values are from below, and their errors reach to a bound above that fails with a "
            f"probability of at most {self.failure:g} each."
        )


def lanczos(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    tolerance: float = 1e-4,
    max_steps: int = 100,
) -> LargestEigenvalues:
    """Return the largest eigenvalue of every matrix, given products with one vector each.

    ``start`` are random vectors ``(B, d)``; entries that are zero in all of them stay out. It stops
    when every residual is below the ``tolerance``, a part of its value (the value itself is then
    wrong by the square of it, times the value, over the gap to the next eigenvalue), and after
    ``max_steps`` in any case; the bounds say what is known.
    """
    size = int((start != 0).any(0).sum())
    vector = start / start.norm(dim=1, keepdim=True)
    basis = [vector]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    eps = torch.finfo(start.dtype).eps
    while True:
        image = apply(vector)
        diagonal.append((image * vector).sum(1))
        known = torch.stack(basis, 1)
        for _ in range(2):  # twice keeps the basis orthogonal to machine precision
            overlaps = known @ image[:, :, None]
            image = image - (known.transpose(1, 2) @ overlaps)[:, :, 0]
        length = image.norm(dim=1)
        scale = torch.stack(diagonal).amax(0)
        length = torch.where(length > 16 * eps * scale, length, torch.zeros_like(length))
        beside.append(length)
        steps = len(diagonal)
        values, vectors = torch.linalg.eigh(_tridiagonal(diagonal, beside))
        residual = length * vectors[:, -1, -1].abs()
        leading = values[:, -1].clamp(min=0.0)
        settled = residual <= tolerance * leading
        if bool(settled.all()) or steps >= min(max_steps, size):
            upper = _upper(leading, residual, length, steps, size)
            return LargestEigenvalues(leading, upper, steps, settled | (upper == leading))
        vector = (
            torch.where(length > 0, 1 / torch.where(length > 0, length, 1.0), 0.0)[:, None] * image
        )
        basis.append(vector)


def _upper(leading: Tensor, residual: Tensor, length: Tensor, steps: int, size: int) -> Tensor:
    """Return the bound above; exact once all of the space, or an invariant part, is spanned."""
    if steps >= size:
        return leading
    slack = (math.log(1.648 * math.sqrt(size) / FAILURE) / (2 * steps - 1)) ** 2
    bound = leading / (1 - slack) if slack < 1 else torch.full_like(leading, math.inf)
    # A random start reaches every eigenvector, so where nothing is left, nothing was missed.
    return torch.where(
        (length == 0) | (leading == 0), leading, torch.maximum(bound, leading + residual)
    )


def _tridiagonal(diagonal: list[Tensor], beside: list[Tensor]) -> Tensor:
    matrix = torch.diag_embed(torch.stack(diagonal, 1))
    if len(diagonal) > 1:
        off = torch.stack(beside[:-1], 1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return matrix
