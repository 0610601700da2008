"""Kinks that no list of names used to have: the first batch shows them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from elusive_networks import KINKED, SMOOTH, Bent, dfil, entropy, jacobians, made
from torch import Tensor, nn

import seepage as sp

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def leakage(net: nn.Module, x: Tensor, y: Tensor, **how: Any):
    return sp.nn.leakage(net, "cross_entropy", x, y, noise_multiplier=1.0, **how)


@pytest.mark.parametrize("name", KINKED)
def test_a_network_with_kinks_is_measured_over_finite_steps_and_says_so(name: str) -> None:
    function, said = KINKED[name]
    net, x, y = made(function, 5, 8, 3, records=12)
    net, x = net.double(), x.double()
    leak = leakage(net, x, y)
    with pytest.warns(sp.nn.KinkWarning, match=said):
        found = leak.rows("dfil", method="exact")
    step = leak.engine.step_size(x, y)
    truth = dfil(jacobians(net, entropy, x, y, clip=None, step=step))
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-9)
    assert f"over steps of {step:g}" in found.about


def test_selu_leaks_several_times_what_its_derivative_says() -> None:
    """Forty records of 5-32-32-3: the derivative is right in the median, and far off for some."""
    net, x, y = made(nn.SELU(), 5, 32, 32, 3)
    net, x = net.double(), x.double()
    with pytest.warns(sp.nn.KinkWarning, match="SELU"):
        derivative = np.asarray(
            leakage(net, x, y, method="derivative").rows("dfil", method="exact")
        )
    leak = leakage(net, x, y, scale=0.01)
    with pytest.warns(sp.nn.KinkWarning, match="SELU"):
        found = np.asarray(leak.rows("dfil", method="exact"))
    truth = dfil(jacobians(net, entropy, x, y, clip=None, step=0.01))
    assert np.max(truth / derivative) > 5
    assert np.median(truth / derivative) < 1.5
    np.testing.assert_allclose(found, truth, rtol=1e-9)


def test_the_derivative_can_be_had_with_a_warning() -> None:
    net, x, y = made(lambda h: h * (h > 0), 5, 8, 3, records=12)
    net, x = net.double(), x.double()
    with pytest.warns(sp.nn.KinkWarning, match="slope of the loss jumps"):
        found = leakage(net, x, y, method="derivative").rows("dfil", method="exact")
    truth = dfil(jacobians(net, entropy, x, y, clip=None, step=1e-7))
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-5)


def test_the_first_batch_decides_for_the_whole_run() -> None:
    """A run does not change its method on the way, nor after being stored."""

    def gated(h: Tensor) -> Tensor:  # a kink far from the first records
        return h + 50 * (h - 9) * (h > 9)

    options = {"n": 20, "sample_rate": 0.5, "noise_multiplier": 1.0, "sampler": "other"}
    net, x, y = made(torch.tanh, 5, 8, 3, records=20)
    net = nn.Sequential(Bent(gated), net)
    x[10:] = 4 * x[10:] + 9
    accountant = sp.nn.FisherAccountant(net, "cross_entropy", **options)
    accountant.observe(range(10), x[:10], y[:10])
    accountant.observe(range(10, 20), x[10:], y[10:])
    assert accountant.records("dfil").about == "the input"
    again = sp.nn.FisherAccountant(net, "cross_entropy", **options)
    again.load_state_dict(accountant.state_dict())
    again.observe(range(10, 20), x[10:], y[10:])
    assert again.records("dfil").about == "the input"
    other = sp.nn.FisherAccountant(net, "cross_entropy", **options)
    with pytest.warns(sp.nn.KinkWarning, match="slope of the loss jumps"):
        other.observe(range(10, 20), x[10:], y[10:])
    assert "over steps of" in other.records("dfil").about


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_networks_keep_their_derivatives_and_get_no_warning(name: str) -> None:
    net, x, y = made(SMOOTH[name], 5, 8, 3, records=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sp.nn.KinkWarning)
        found = leakage(net, x, y).rows("dfil", method="exact")
    assert found.about == "the input"
