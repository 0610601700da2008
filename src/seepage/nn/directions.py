"""Random directions of the parameters, ``E[uuᵀ] = I``: signs, or products of thin sign matrices.

For a wide weight the direction ``U = A Bᵀ/√r``, with ``A`` and ``B`` of r columns of random signs,
has independent entries in the sense that matters here (``E[U_ij U_kl]`` is one where both indices
agree and zero elsewhere), but a product with it costs ``r(m + k)`` instead of ``mk`` operations and
it takes no room. The price is a little variance, of the order of ``1/r`` for every wide weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from seepage.nn.problem import Problem
from seepage.nn.signs import key_of, signs

WIDE = 256  # rows and columns from which a weight's direction is made of thin factors
RANK = 31


@dataclass(frozen=True)
class Direction:
    """A direction of one parameter, seen as a matrix of its rows.

    Parameters
    ----------
    full
        The direction itself, in the parameter's shape, or ``None`` where it is ``left @ rightᵀ``.
    left, right
        The thin factors, ``(m, r + 1)`` and ``(k, r + 1)``, their last columns zero.
    last
        The last unit vector of ``r + 1``.
    """

    full: Tensor | None
    left: Any = None
    right: Any = None
    last: Any = None

    def dense(self, shape: torch.Size) -> Tensor:
        """Return the direction written out."""
        return self.full if self.full is not None else (self.left @ self.right.T).reshape(shape)


Directions = dict[str, Direction]


def is_wide(shape: torch.Size) -> bool:
    """Return whether a parameter is a matrix with many rows and columns."""
    return len(shape) == 2 and min(shape) >= WIDE


def directions(problem: Problem, *key: object, thin: bool = False) -> Directions:
    """Return one random direction of the released parameters.

    It depends on the key and the parameters' sizes only: it is the same for all chunks and ranks.

    Parameters
    ----------
    problem
        Whose parameters.
    key
        What tells this direction from others: a seed, a step, a number.
    thin
        Whether wide weights get products of thin factors.
    """
    released = problem.released()
    sizes = [
        RANK * (p.shape[0] + p.shape[1]) if thin and is_wide(p.shape) else p.numel()
        for p in released.values()
    ]
    like = next(iter(released.values())).detach()
    every = signs(key_of(*key), (sum(sizes),), like)
    last = functional.one_hot(torch.tensor(RANK, device=like.device), RANK + 1).to(like.dtype)
    out: Directions = {}
    for (name, p), piece in zip(released.items(), every.split(sizes), strict=True):
        if thin and is_wide(p.shape):
            m, k = p.shape
            left = piece[: m * RANK].reshape(m, RANK) / math.sqrt(RANK)
            # A last column of zeros each: room for the direction of a bias.
            left = functional.pad(left, (0, 1))
            right = functional.pad(piece[m * RANK :].reshape(k, RANK), (0, 1))
            out[name] = Direction(None, left, right, last)
        else:
            out[name] = Direction(piece.reshape(p.shape).to(p))
    return out
