"""What leaves a client in one round: an update, clipped, noised, or summed with those of others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Update:
    """What the server sees of some clients in a round.

    Parameters
    ----------
    round
        The round, from 0.
    clients
        The clients whose updates are summed in it: one, or k with secure aggregation.
    values
        By parameter name, the mean of these clients' updates.
    """

    round: int
    clients: tuple[int, ...]
    values: Mapping[str, Tensor]


def clip_update(values: Mapping[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """Return the update scaled down to ``max_norm`` over all parameters if it exceeds it."""
    norm = torch.stack([v.norm() for v in values.values()]).norm()
    factor = torch.clamp(max_norm / (norm + 1e-12), max=1.0)
    return {name: v * factor for name, v in values.items()}


def noise_update(
    values: Mapping[str, Tensor], deviation: float, draw: torch.Generator
) -> dict[str, Tensor]:
    """Return the update with Gaussian noise of that deviation on every entry."""
    return {
        name: v
        + deviation
        * torch.randn(v.shape, generator=draw, dtype=v.dtype, device=draw.device).to(v.device)
        for name, v in values.items()
    }


def aggregate(
    round_number: int, sent: Sequence[tuple[int, Mapping[str, Tensor]]], together: int
) -> list[Update]:
    """Return what the server sees when the updates of ``together`` clients are summed in secret.

    The masks of a real protocol cancel in the sum, so the sum is all there is to simulate. Clients
    are grouped in the order given; the last group takes what is left over.
    """
    groups = max(1, len(sent) // together)
    out = []
    for g in range(groups):
        end = (g + 1) * together if g < groups - 1 else len(sent)
        members = sent[g * together : end]
        names = members[0][1]
        mean = {name: sum(v[name] for _, v in members) / len(members) for name in names}
        out.append(Update(round_number, tuple(c for c, _ in members), mean))
    return out


def share_of_noise(multiplier: float, max_norm: float, together: int) -> float:
    """Return the deviation each of k clients adds so that their sum carries ``multiplier·C``."""
    return multiplier * max_norm / math.sqrt(together)
