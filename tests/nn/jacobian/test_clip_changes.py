"""A clip that changes between steps (a schedule, an adaptive threshold) changes the leakage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import seepage.nn as snn
from seepage.nn.measures.information_matrices import exact_diagonal

torch.set_num_threads(1)


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3)).double()


X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()
Y = torch.arange(6) % 3
CLIPS = {
    "a lower threshold": snn.HardClip(0.05),
    "a smooth clip": snn.SmoothClip(0.1),
    "no clip": snn.NoClip(),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("derivative", ["exact", "conservative"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("pulls", [False, True])
def test_every_number_of_a_step_is_of_the_present_clip(
    clip: str, derivative: str, wide: bool, pulls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wide:  # the way for wide layers
        monkeypatch.setattr("seepage.nn.jacobian.random_directions.WIDE", 3)
    net = network(8)

    def engine(of: snn.HardClip) -> snn.Engine:
        return snn.Engine(net, "cross_entropy", clip=of, clip_derivative=derivative)

    changed, fresh = engine(snn.HardClip(3.0)), engine(CLIPS[clip])
    before = changed.step(X, Y, probes=2, update=True, pulls=pulls)
    changed.clip = CLIPS[clip]
    found = changed.step(X, Y, probes=2, update=True, pulls=pulls)
    wanted = fresh.step(X, Y, probes=2, update=True, pulls=pulls)
    torch.testing.assert_close(found.traces, wanted.traces)
    torch.testing.assert_close(found.gradient, wanted.gradient)
    if pulls:
        torch.testing.assert_close(found.pulls, wanted.pulls)
    if clip != "no clip":  # under 3 nothing was clipped
        assert not torch.allclose(before.traces, found.traces, rtol=0.01)


@pytest.mark.parametrize("clip", CLIPS)
def test_leakage_after_a_change_is_that_of_the_new_clip(clip: str) -> None:
    net = network(4)
    changed = snn.Engine(net, "cross_entropy", clip=snn.HardClip(3.0))
    changed.step(X, Y, probes=1)
    changed.clip = CLIPS[clip]
    fresh = snn.Engine(net, "cross_entropy", clip=CLIPS[clip])
    torch.testing.assert_close(exact_diagonal(changed, X, Y), exact_diagonal(fresh, X, Y))
    v = torch.randn(6, 5, generator=torch.Generator().manual_seed(2)).double()
    torch.testing.assert_close(
        changed.information_product(X, Y, v), fresh.information_product(X, Y, v)
    )


def test_without_a_clip_named_it_is_the_usual_one() -> None:
    assert snn.Engine(network(4), "cross_entropy").clip == snn.HardClip(1.0)
