"""The largest eigenvalue of every record's information, with a certified upper bound.

Lanczos' method on ``A = J̃ᵀJ̃`` from a random start. Its value ``θ`` never exceeds the eigenvalue
``λ``, which has two upper bounds: ``λ ≤ θ/(1 − ε)`` with ``ε = (ln(1.648√d/δ)/(2k − 1))²`` after k
steps, wrong with a probability of at most ``δ`` over the start (Kuczyński and Woźniakowski 1992,
theorem 4.2); and, if the trace is known, ``λ ≤ max(θ + r, tr A − Σθ_j + r)`` with ``r`` the
residual.
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
        The value found, ``(B,)``, never above the eigenvalue.
    upper
        A bound that fails with a probability of at most ``failure`` each.
    steps
        The number of products taken.
    settled
        Whether each residual came within the tolerance, ``(B,)``; otherwise the iteration was
        stopped early, and the eigenvalue may be anywhere between ``lower`` and ``upper``.
    """

    lower: Tensor
    upper: Tensor
    steps: int
    settled: Tensor
    failure: float = FAILURE

    def remark(self) -> str:
        """Return a caveat about the values that did not converge, in words."""
        return (
            f"The iteration was stopped after {self.steps} products, before "
            f"{int((~self.settled).sum())} of the {len(self.settled)} records had converged: "
            "their values are lower bounds, and their errors reach to upper bounds that each "
            f"fail with a probability of at most {self.failure:g}."
        )


def lanczos(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    tolerance: float = 1e-4,
    max_steps: int = 100,
) -> LargestEigenvalues:
    """Return the largest eigenvalue of every matrix, given products with one vector each.

    ``start`` holds random vectors ``(B, d)``; entries that are zero in all of them are excluded. It
    stops when every residual is below ``tolerance`` times the value (the value's own error is then
    of second order: the squared residual over the gap to the next eigenvalue), or after
    ``max_steps``; the bounds hold either way.
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
        for _ in range(2):  # twice, to keep the basis orthogonal to machine precision
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
    """Return the upper bound; exact once the whole space, or an invariant part, is spanned."""
    if steps >= size:
        return leading
    slack = (math.log(1.648 * math.sqrt(size) / FAILURE) / (2 * steps - 1)) ** 2
    bound = leading / (1 - slack) if slack < 1 else torch.full_like(leading, math.inf)
    # A random start reaches every eigenvector, so if nothing is left, nothing was missed.
    return torch.where(
        (length == 0) | (leading == 0), leading, torch.maximum(bound, leading + residual)
    )


def _tridiagonal(diagonal: list[Tensor], beside: list[Tensor]) -> Tensor:
    matrix = torch.diag_embed(torch.stack(diagonal, 1))
    if len(diagonal) > 1:
        off = torch.stack(beside[:-1], 1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return matrix
