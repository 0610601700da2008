"""Random directions of the parameters, ``E[uuᵀ] = I``: signs, or products of thin sign matrices.

For a wide weight the direction ``U = A Bᵀ/√r``, with ``A`` and ``B`` of r columns of random signs,
has independent entries in the sense that matters here (``E[U_ij U_kl]`` is one where both indices
agree and zero elsewhere), but a product with it costs ``r(m + k)`` instead of ``mk`` operations and
it takes no room. The price is a little variance, of the order of ``1/r`` for every wide weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seepage.nn.jacobian.random_signs import key_of, signs
from seepage.nn.problem.problem import Problem

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
Draw = Callable[[], Sequence[Directions]]


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
    wide = {name: p for name, p in released.items() if thin and is_wide(p.shape)}
    rest = {name: p for name, p in released.items() if name not in wide}
    rows = [size for p in wide.values() for size in p.shape]
    like = next(iter(released.values())).detach()
    held = (RANK + 1) * sum(rows)
    every = signs(key_of(*key), (held + sum(p.numel() for p in rest.values()),), like)
    out: Directions = {}
    if wide:
        # Made on the device: a copy from here would wait for all that it has still to do.
        last = (torch.arange(RANK + 1, device=like.device) == RANK).to(like.dtype)
        # Both factors take a part of 1/√r, and end in a column of zeros: room for a bias.
        factors = (every[:held].reshape(-1, RANK + 1) * ((1 - last) * RANK**-0.25)).split(rows)
        for name, left, right in zip(wide, factors[::2], factors[1::2], strict=True):
            out[name] = Direction(None, left, right, last)
    pieces = every[held:].split([p.numel() for p in rest.values()])
    for (name, p), piece in zip(rest.items(), pieces, strict=True):
        out[name] = Direction(piece.reshape(p.shape).to(p))
    return out
