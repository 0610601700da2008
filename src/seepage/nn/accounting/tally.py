"""Sums over steps of every record's information, with what is needed for their standard errors."""

from __future__ import annotations

import torch
from torch import Tensor


class Tally:
    """What a run has given away about each record so far.

    For the steps in which record i took part, with ``t̂`` the mean of a step's trace estimates::

        uses      how many steps
        total     Σ κ t̂/s², an estimate of (an upper bound on) Tr I
        within    Σ of the variance of κ t̂/s² as seen between the probes of the step
        squares   Σ (κ t̂/s²)²

    and the same sums with κ = 1, as ``plain_total``, ``plain_within`` and ``plain_squares``.

    Parameters
    ----------
    records
        How many records there are.
    """

    def __init__(self, records: int) -> None:
        self.uses = torch.zeros(records, dtype=torch.int64)
        for prefix in ("", "plain_"):
            for name in ("total", "within", "squares"):
                setattr(self, prefix + name, torch.zeros(records, dtype=torch.float64))

    def add(self, index: Tensor, traces: Tensor, factors: Tensor, noise: float) -> None:
        """Add a step for the records of a batch.

        Parameters
        ----------
        index
            Which records, ``(B,)``, none of them twice.
        traces
            Independent estimates of ``‖∂g̃/∂z‖_F²``, ``(B, probes)``.
        factors
            κ of each record, ``(B,)``.
        noise
            The standard deviation of the noise on the sum.
        """
        traces = traces.to(torch.float64) / noise**2
        probes = traces.shape[1]
        mean = traces.mean(1)
        spread = traces.var(1) / probes if probes > 1 else torch.zeros_like(mean)
        self.uses.index_add_(0, index, torch.ones_like(index))
        for prefix, factor in (("", factors), ("plain_", torch.ones_like(mean))):
            getattr(self, prefix + "total").index_add_(0, index, factor * mean)
            getattr(self, prefix + "within").index_add_(0, index, factor**2 * spread)
            getattr(self, prefix + "squares").index_add_(0, index, (factor * mean) ** 2)

    def moments(self, probes: int, amplified: bool) -> tuple[Tensor, Tensor]:
        """Return the totals and their variances.

        With several probes a step, the variance is what they vary between themselves. With a single
        one it is what the record's steps vary: that also counts what truly changed between them, so
        it errs on the large side; it is nan for a record seen once.
        """
        prefix = "" if amplified else "plain_"
        total, within, squares = (
            getattr(self, prefix + name) for name in ("total", "within", "squares")
        )
        if probes > 1:
            return total, within
        count = self.uses.double()
        between = (squares - total**2 / count.clamp(min=1.0)).clamp(min=0.0)
        scaled = between * count / (count - 1).clamp(min=1.0)
        return total, torch.where(count == 1, float("nan"), scaled)

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums by name."""
        return dict(vars(self))
