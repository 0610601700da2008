"""PLIS added up over a run, and going on from a saved state."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp

torch.set_num_threads(1)


@pytest.fixture
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    return net, torch.randn(9, 4, dtype=torch.float64), torch.randint(0, 2, (9,))


def watching(net: nn.Module, **options: object) -> sp.nn.PlisOverTraining:
    given = {"n": 9, "noise_multiplier": 3.0, "max_grad_norm": 0.5, "clip": "smooth"} | options
    return sp.nn.PlisOverTraining(net, "cross_entropy", **given)


def move(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.add_(0.05 * torch.randn_like(p))


def test_a_run_is_the_sum_of_its_steps(problem: tuple) -> None:
    net, x, y = problem
    watch = watching(net)
    values, losses = torch.zeros_like(x), torch.zeros(9, dtype=torch.float64)
    for step in range(4):
        watch.noise_multiplier = 3.0 + step
        alone = sp.nn.plis(
            net,
            "cross_entropy",
            x,
            y,
            noise_multiplier=3.0 + step,
            max_grad_norm=0.5,
            clip="smooth",
        )
        values, losses = values + alone.values, losses + alone.privacy_loss
        order = torch.randperm(9)
        watch.observe(order[:4], x[order[:4]], y[order[:4]], more=True)
        watch.observe(order[4:], x[order[4:]], y[order[4:]])
        move(net)
    run = watch.result()
    torch.testing.assert_close(run.values, values)
    torch.testing.assert_close(run.privacy_loss, losses)
    np.testing.assert_allclose(run.individual().mu(), losses.sqrt())
    assert run.steps == 4
    assert (run.uses == 4).all()
    assert any("No amplification" in text for text in run.conditions)
    assert "no amplification" in repr(run)
    columns = run.table(delta=1e-5).column_names
    assert columns == ["row", "privacy_loss", "plis", "steps", "mu", "rdp_2", "epsilon"]
    np.testing.assert_allclose(run.records().values, values.norm(dim=1))


def test_sampled_batches_are_warned_about_once(problem: tuple) -> None:
    net, x, y = problem
    watch = watching(net)
    with pytest.warns(sp.nn.SampledBatchWarning, match="left out 6 of 9 records"):
        watch.observe([1, 2, 3], x[1:4], y[1:4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.observe([0, 1], x[:2], y[:2])
    run = watch.result()
    assert run.uses.tolist() == [1, 2, 1, 1, 0, 0, 0, 0, 0]
    assert run.privacy_loss[4] == 0
    assert "Some steps left out records" in run.conditions[-1]


def test_going_on_from_a_state(problem: tuple) -> None:
    net, x, y = problem
    whole, first = watching(net), watching(net)
    for watch in (whole, first):
        watch.observe(range(9), x, y)
    second = watching(net)
    second.load_state_dict(first.state_dict())
    move(net)
    for watch in (whole, second):
        watch.observe(range(9), x, y)
    torch.testing.assert_close(second.result().values, whole.result().values)
    torch.testing.assert_close(second.result().privacy_loss, whole.result().privacy_loss)
    assert second.result().steps == 2
    assert first.result().steps == 1
    other = sp.nn.PlisOverTraining(
        net, "cross_entropy", n=5, noise_multiplier=1.0, max_grad_norm=1.0
    )
    with pytest.raises(sp.InputError, match="9 records, but n is 5"):
        other.load_state_dict(first.state_dict())


def test_bad_input_is_refused(problem: tuple) -> None:
    net, x, y = problem
    watch = watching(net)
    with pytest.raises(sp.InputError, match="No step has been observed"):
        watch.result()
    with pytest.raises(sp.InputError, match="names 2 records"):
        watch.observe([0, 1], x, y)
    with pytest.raises(sp.InputError, match="no record 9"):
        watch.observe([9], x[:1], y[:1])
    with pytest.raises(sp.InputError, match="in the batch 2 times"):
        watch.observe([1, 1], x[:2], y[:2])
    watch.observe([0], x[:1], y[:1], more=True)
    with pytest.raises(sp.InputError, match="already observed in this step"):
        watch.observe([0], x[:1], y[:1], more=True)
    watch.noise_multiplier = 0.0
    with pytest.raises(sp.InputError, match="above zero"):
        watch.observe([1], x[:1], y[:1])
    with pytest.raises(sp.InputError, match="number of training records"):
        sp.nn.PlisOverTraining(net, "mse", n=0, noise_multiplier=1.0, max_grad_norm=1.0)
