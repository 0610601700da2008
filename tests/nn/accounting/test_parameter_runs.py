"""Runs measured by steps of the parameters, beside runs measured by derivatives."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import seepage as sp

torch.set_num_threads(1)
N, WIDTH = 60, 5


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, WIDTH), torch.randint(3, (N,))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))


def accountant(method: str, **options: object) -> sp.nn.FisherAccountant:
    return sp.nn.FisherAccountant(
        network(),
        "cross_entropy",
        n=N,
        batch_size=30,
        noise_multiplier=2.0,
        clip_derivative="conservative",
        method=method,
        **options,
    )


def observe(accountant: sp.nn.FisherAccountant, steps: range) -> None:
    x, y = data()
    for k in steps:
        index = torch.nonzero(torch.rand(N, generator=torch.Generator().manual_seed(k)) < 0.5)
        accountant.observe(index.flatten(), x[index.flatten()], y[index.flatten()])


def test_a_run_agrees_with_derivatives_within_its_intervals() -> None:
    runs = {}
    for method in ("parameters", "derivative"):
        runs[method] = accountant(method, probes=4, seed=len(method))
        observe(runs[method], range(12))
    seen, wanted = (runs[name].records("dfil") for name in ("parameters", "derivative"))
    error = np.hypot(seen.standard_errors, wanted.standard_errors)
    apart = (np.asarray(seen.values) - np.asarray(wanted.values)) / error
    assert np.mean(np.abs(apart) < 2) > 0.85
    assert any("step of the parameters" in condition for condition in seen.conditions)
    assert "over steps" not in seen.about
    np.testing.assert_allclose(
        runs["parameters"].individual_loss().mu(), runs["derivative"].individual_loss().mu()
    )


def test_a_resumed_run_takes_the_same_steps() -> None:
    whole, first = accountant("parameters"), accountant("parameters")
    observe(whole, range(6))
    observe(first, range(3))
    second = accountant("parameters")
    second.load_state_dict(first.state_dict())
    observe(second, range(3, 6))
    assert second.engine.parameter_step == whole.engine.parameter_step
    np.testing.assert_array_equal(second.records("dfil").values, whole.records("dfil").values)


def test_a_trainer_measures_and_updates_in_one_pass() -> None:
    x, y = data()
    results = []
    for method in ("parameters", "derivative"):
        trainer = sp.nn.PrivateSGD(
            network(),
            "cross_entropy",
            batch_size=20,
            noise_multiplier=1.0,
            learning_rate=0.1,
            steps=6,
            seed=3,
            clip_derivative="conservative",
            method=method,
            probes=8,
        )
        trainer.fit(x, y)
        results.append(trainer.accountant_.records("dfil").values)
    ratio = np.nanmean(results[0]) / np.nanmean(results[1])
    assert abs(ratio - 1) < 0.1
