"""Runs that are measured over finite steps: the number at that scale, and the scale beside it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import seepage as sp
from seepage.nn.accounting import accountant as accounting

torch.set_num_threads(1)

N, CLIP, STEP = 12, 0.5, 0.05
ONE = torch.tensor([False, True, False, False])  # one unknown, whose probe is one of two signs
pytestmark = pytest.mark.filterwarnings(
    "ignore::seepage.nn.KinkWarning",
    "ignore::seepage.nn.SamplerWarning",
    "ignore:Opacus is not in secure mode",
)


def kinked() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    return net, torch.randn(N, 4, dtype=torch.float64), torch.arange(N) % 3


def truth(net: nn.Module, x: Tensor, y: Tensor, h: float) -> np.ndarray:
    """Return the leakage of a step about one unknown along both signs, ``(2, N)``.

    By gradients of single records.
    """
    net = copy.deepcopy(net)

    def clipped(record: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(net(record[None]), target[None])
        parts = torch.autograd.grad(loss, list(net.parameters()))
        g = torch.cat([part.flatten() for part in parts])
        return g / max(1.0, float(g.norm()) / CLIP)

    def apart(record: Tensor, target: Tensor, move: Tensor) -> float:
        return float((clipped(record + move, target) - clipped(record, target)).square().sum())

    move = h * ONE.double()
    both = [[apart(r, t, sign * move) for r, t in zip(x, y, strict=True)] for sign in (1, -1)]
    return np.sqrt(both) / h / CLIP


def assert_probed(found: Any, both: np.ndarray) -> None:
    """Raise unless each record's leakage is that of one sign, or the mean of both (two probes)."""
    found = np.asarray(found)
    possible = np.stack([*both, np.sqrt((both**2).mean(0))])
    nearest = np.abs(possible - found).argmin(0)
    np.testing.assert_allclose(found, possible[nearest, np.arange(N)], rtol=1e-9)


def accountant(net: nn.Module, **options: Any) -> sp.nn.FisherAccountant:
    given: dict[str, Any] = {"sample_rate": 1.0, "noise_multiplier": 1.0, "max_grad_norm": CLIP}
    return sp.nn.FisherAccountant(
        net, "cross_entropy", n=N, view=sp.nn.Input(ONE), amplification="none", **given | options
    )


def test_an_accountant_measures_kinks_at_a_scale_and_says_so() -> None:
    net, x, y = kinked()
    run = accountant(net, scale=STEP)
    run.observe(range(N), x, y)
    found = run.records("dfil")
    assert_probed(found, truth(net, x, y, STEP))
    assert found.about == f"a part of the input, over steps of {STEP:g}"
    assert any(f"over steps of {STEP:g}" in condition for condition in found.conditions)


def test_the_method_is_the_accountants_to_choose() -> None:
    net, x, y = kinked()
    smooth = accountant(net, method="derivative")
    smooth.observe(range(N), x, y)
    assert smooth.records("dfil").about == "a part of the input"
    np.testing.assert_allclose(smooth.records("dfil"), truth(net, x, y, 1e-7)[0], rtol=1e-5)
    net[1] = nn.Tanh()
    coarse = accountant(net, method="finite", scale=0.3)
    coarse.observe(range(N), x, y)
    assert_probed(coarse.records("dfil"), truth(net, x, y, 0.3))


def test_a_trainer_says_the_scale_that_its_first_records_gave() -> None:
    net, x, y = kinked()
    before = copy.deepcopy(net)
    trainer = sp.nn.PrivateSGD(
        net,
        "cross_entropy",
        steps=1,
        batch_size=N,
        sampling="fixed",
        max_grad_norm=CLIP,
        seed=0,
        view=sp.nn.Input(ONE),
        amplification="none",
    ).fit(x, y)
    scale = float(f"{0.01 * float(x[:, 1].square().mean().sqrt()):.0e}")
    found = trainer.accountant_.records("dfil")
    assert found.about == f"a part of the input, over steps of {scale:g}"
    assert_probed(found, truth(before, x, y, scale))


def test_attached_to_opacus_it_says_so_too() -> None:
    opacus = pytest.importorskip("opacus")
    net, x, y = kinked()
    before = copy.deepcopy(net)
    data = torch.utils.data.TensorDataset(torch.arange(N), x, y)
    private, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=N),
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        poisson_sampling=False,
    )
    criterion = nn.CrossEntropyLoss()
    run = sp.nn.attach(
        optimizer,
        private,
        criterion,
        loader,
        view=sp.nn.Input(ONE),
        amplification="none",
        method="finite",
        scale=STEP,
    )
    for index, inputs, targets in loader:
        optimizer.zero_grad()
        run.observe(index, inputs, targets)
        criterion(private(inputs), targets).backward()
        optimizer.step()
    found = run.records("dfil")
    assert_probed(found, truth(before, x, y, STEP))
    assert "over steps of 0.05" in found.about


def test_a_state_brings_its_scale_along() -> None:
    net, x, y = kinked()
    first = accountant(net)
    first.observe(range(N), x, y)
    again = accountant(net)
    again.load_state_dict(first.state_dict())
    again.observe(range(N), 10 * x, y)
    assert again.engine.scale == first.step_size > 0
    assert again.records("dfil").about == first.records("dfil").about


def test_runs_over_different_steps_are_not_averaged() -> None:
    net, x, y = kinked()
    runs = [accountant(net), accountant(net)]
    for run, size in zip(runs, (1.0, 3.0), strict=True):
        run.observe(range(N), size * x, y)
    with pytest.raises(sp.InputError, match=r"finite steps of .* and .*scale="):
        sp.nn.merge_runs(runs)


def test_processes_must_agree_on_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = kinked()
    monkeypatch.setattr(accounting, "world_size", lambda: 2)
    with pytest.raises(sp.InputError, match="the same scale, for instance scale=0"):
        accountant(net).observe(range(N), x, y)


def test_sketches_of_a_kinked_network_go_along_with_finite_traces() -> None:
    net, x, y = kinked()
    run = accountant(net, scale=STEP, sketch=2, probes=64)
    run.observe(range(N), x, y)
    low, high = np.sort(truth(net, x, y, STEP), axis=0)
    found = np.asarray(run.records("dfil"))
    middle, reach = (low**2 + high**2) / 2, (high**2 - low**2) / 2
    # The share of one sign among 64 has the standard deviation 1/16.
    assert (np.abs(found**2 - middle) <= 2 * 4 / 16 * reach + 1e-12).all()
    np.testing.assert_allclose(run.fil().lower, truth(net, x, y, 1e-7)[0], rtol=0.5)
