"""What one step of private training gives, chunk by chunk and as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """What one step of private training gives, before noise.

    Parameters
    ----------
    losses
        The loss of every example, ``(B,)``.
    norms
        ``‖g‖`` before clipping, ``(B,)``; nan without clipping, which does not need them.
    traces
        ``(B, probes)``: each column estimates ``‖∂g̃/∂z‖_F²`` without bias (or, with conservative
        clipping, a bound above it). Not yet divided by the noise or the number of unknowns.
    gradient
        ``Σ_i g̃_i`` by parameter name, or ``None``.
    pulls
        ``J̃ᵀu``, ``(B, probes, …)``, or ``None``.
    """

    losses: Tensor
    norms: Tensor
    traces: Tensor
    gradient: dict[str, Tensor] | None = None
    pulls: Tensor | None = None


def joined(steps: list[Step]) -> Step:
    """Return the chunks of a batch as one step."""
    if len(steps) == 1:
        return steps[0]

    def together(values: list[Any]) -> Any:
        return None if values[0] is None else torch.cat(values)

    gradient = steps[0].gradient
    if gradient is not None:
        gradient = {
            name: torch.stack([s.gradient[name] for s in steps if s.gradient]).sum(0)
            for name in gradient
        }
    return Step(
        torch.cat([s.losses for s in steps]),
        torch.cat([s.norms for s in steps]),
        torch.cat([s.traces for s in steps]),
        gradient,
        together([s.pulls for s in steps]),
    )
