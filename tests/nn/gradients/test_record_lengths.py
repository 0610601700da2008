"""Norms of long gradients: torch's own loses digits on a CPU, and clipping with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import seepage as sp
import seepage.nn as snn
from seepage.nn.gradients.network_checks import Validator
from seepage.nn.gradients.per_record_gradients import record_lengths


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, (1 << 18) + 1, 20_000_000])
def test_norms_are_those_of_float64(size: int) -> None:
    torch.manual_seed(0)
    rows = 1e-3 * torch.rand(2, size)
    wanted = [math.sqrt(float(row.square().sum(dtype=torch.float64))) for row in rows]
    assert record_lengths(rows).tolist() == pytest.approx(wanted, rel=2e-6)
    assert record_lengths(rows).dtype == torch.float32
    assert record_lengths(rows.half()).dtype == torch.float32


class Mean(nn.Module):
    """A layer with one long parameter."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(self.weight).mean() * torch.tensor([1.0, -1.0])


def test_a_long_gradient_is_clipped_to_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a record that must run alone; torch's norm of it is 0.07 % too small."""

    def refused(*_: object) -> None:
        raise sp.InputError("This network cannot be traced.")

    monkeypatch.setattr(Validator, "watched", refused)
    net = Mean(20_000_000)
    engine = snn.Engine(net, "cross_entropy", clip=snn.HardClip(1.0), method="finite")
    with pytest.warns(snn.FallbackWarning, match="one by one"):
        step = engine.step(torch.full((1, 1), 1e6), torch.tensor([1]), probes=1, update=True)
    released = step.gradient["weight"]
    assert float(step.norms[0]) > 1.0
    length = math.sqrt(float(released.square().sum(dtype=torch.float64)))
    assert length == pytest.approx(1.0, rel=1e-5)
