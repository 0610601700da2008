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


def groups_of(clients: Sequence[int], together: int) -> list[tuple[int, ...]]:
    """Return the clients whose updates are summed in secret, in groups of ``together``.

    Clients are grouped in the order given; the last group takes what is left over.

    Examples
    --------
    >>> from seepage.layers.federated.update import groups_of
    >>> groups_of([4, 5, 6, 7, 8], 2)
    [(4, 5), (6, 7, 8)]
    """
    starts = [g * together for g in range(max(1, len(clients) // together))]
    ends = [*starts[1:], len(clients)]
    return [tuple(clients[a:b]) for a, b in zip(starts, ends, strict=True)]


def aggregate(
    round_number: int, clients: tuple[int, ...], sent: Sequence[Mapping[str, Tensor]]
) -> Update:
    """Return what the server sees when the updates of these clients are summed in secret.

    The masks of a real protocol cancel in the sum, so the sum is all there is to simulate.
    """
    mean = {name: sum(v[name] for v in sent) / len(sent) for name in sent[0]}
    return Update(round_number, clients, mean)


def share_of_noise(multiplier: float, max_norm: float, clients: int) -> float:
    """Return the deviation each of k clients adds so that their sum carries ``multiplier·C``."""
    return multiplier * max_norm / math.sqrt(clients)
