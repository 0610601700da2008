"""What torch hides from a derivative: measured all the same, or refused by name.

The truth is taken by finite differences of the gradients of single records in float64, and shares
no code with the package.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from elusive_networks import (
    CLIP,
    KINKS,
    Bent,
    DropPath,
    Gate,
    OpacusRecurrent,
    Probe,
    Squash,
    Tracking,
    Turning,
    WithOutput,
    dfil,
    entropy,
    finite_dfil,
    jacobians,
    records,
    smooth,
)
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import seepage as sp

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def leakage(net: nn.Module, loss: Any, x: Tensor, y: Tensor, clip: float | None = CLIP, **how: Any):
    return sp.nn.leakage(
        net, loss, x, y, noise_multiplier=1.0, max_grad_norm=clip, clip="hard", **how
    )


@pytest.mark.parametrize("clip", [CLIP, None])
def test_a_frozen_backbone_without_gradients_is_measured_through(clip: float | None) -> None:
    net, (x, y) = Probe(), records()
    truth = jacobians(net, entropy, x, y, clip=clip)
    leak = leakage(net, "cross_entropy", x, y, clip)
    singular = np.linalg.svd(truth, compute_uv=False)[:, 0]
    np.testing.assert_allclose(np.asarray(leak.rows("fil")), singular, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(leak.rows("dfil", method="exact")), dfil(truth), 1e-6)
    entries = np.sqrt((truth**2).sum(1))
    np.testing.assert_allclose(np.asarray(leak.cells(method="exact")), entries, rtol=1e-6)
    estimated = leak.cells(probes=400)
    np.testing.assert_allclose(np.asarray(estimated), entries, rtol=0.35)


def test_probes_and_plis_go_through_a_frozen_backbone() -> None:
    net, (x, y) = Probe(256), records()
    truth = jacobians(net, entropy, x, y)
    for how in ({}, {"clip_derivative": "conservative"}):
        found = np.asarray(leakage(net, "cross_entropy", x, y, **how).rows("dfil", probes=64))
        assert (found > 0.7 * dfil(truth)).all()
    assert (np.asarray(sp.nn.plis(net, "cross_entropy", x, y, noise_multiplier=1.0)) > 0).any()


@pytest.mark.filterwarnings("ignore::seepage.nn.FallbackWarning")
def test_a_backbone_that_is_silent_but_not_frozen_is_refused_or_right() -> None:
    net, (x, y) = Probe(frozen=False), records()
    truth = finite_dfil(net, entropy, x, y, 0.01)
    leak = leakage(net, "cross_entropy", x, y)
    with pytest.raises(sp.InputError, match=r"body.*torch\.no_grad\(\).*method='finite'"):
        leak.rows("fil")
    found = leakage(net, "cross_entropy", x, y, method="finite", scale=0.01)
    np.testing.assert_allclose(np.asarray(found.rows("dfil", method="exact")), truth, rtol=1e-9)


def gated() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Gate(), nn.Linear(6, 3)).double()


def focal(output: Tensor, target: Tensor) -> Tensor:
    each = entropy(output, target)
    return (1 - torch.exp(-each)).detach() ** 2 * each


HIDDEN = {
    "a gate": (gated, entropy, r"\.detach\(\) in Gate '2'"),
    "focal weights": (smooth, focal, r"\.detach\(\) in the loss"),
}


@pytest.mark.parametrize("clip", [CLIP, None])
@pytest.mark.parametrize("case", HIDDEN)
def test_what_is_detached_is_measured_over_finite_steps_with_its_place(
    case: str, clip: float | None
) -> None:
    make, loss, place = HIDDEN[case]
    net, (x, y) = make(), records()
    leak = leakage(net, loss, x, y, clip, scale=0.003)
    with pytest.warns(sp.nn.FallbackWarning, match=f"derivatives cannot be used: .*{place}"):
        finite = leak.rows("dfil", method="exact")
    truth = finite_dfil(net, loss, x, y, 0.003, clip=clip)
    np.testing.assert_allclose(np.asarray(finite), truth, rtol=1e-9)
    assert "over steps of 0.003" in repr(finite)
    assert any("0.003" in condition for condition in finite.conditions)
    assert "over steps of 0.003" in leak.rows("dfil", probes=4).about
    for alone in ("fil", "dfil"):  # a derivative that was asked for is refused
        with pytest.raises(sp.InputError, match=f"{place}.*method='finite'"):
            leakage(net, loss, x, y, clip, method="derivative").rows(alone)


@pytest.mark.parametrize("clip", [CLIP, None])
def test_what_hides_in_the_last_record_alone_is_measured_over_finite_steps(
    clip: float | None,
) -> None:
    def weighted(output: Tensor, target: Tensor) -> Tensor:
        each = entropy(output, target)
        return each * torch.where(target == 2, (1 + each).detach(), torch.ones_like(each))

    net, (x, y) = smooth(), records()
    y = torch.tensor([0, 1, 0, 2])
    leak = leakage(net, weighted, x, y, clip, scale=0.003)
    with pytest.warns(sp.nn.FallbackWarning, match="in the loss"):
        found = leak.rows("dfil", method="exact")
    truth = finite_dfil(net, weighted, x, y, 0.003, clip=clip)
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-9)


def stacked(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3)).double()


MEASURED: dict[str, Callable[[], nn.Module]] = {
    "a running mean": lambda: stacked(nn.Tanh(), Tracking(in_place=True)),
    "a count": lambda: stacked(nn.Tanh(), Tracking(in_place=False)),
    "weight normalisation": lambda: stacked(nn.Tanh(), weight_norm(nn.Linear(6, 6)), nn.Tanh()),
    "an output with logits": WithOutput,
    "DPLSTM": lambda: OpacusRecurrent("DPLSTM").double(),
    "DPGRU": lambda: OpacusRecurrent("DPGRU").double(),
}


@pytest.mark.filterwarnings("ignore::seepage.nn.FallbackWarning")
@pytest.mark.parametrize("clip", [CLIP, None])
@pytest.mark.parametrize("case", MEASURED)
def test_ordinary_networks_are_measured(case: str, clip: float | None) -> None:
    net, (x, y) = MEASURED[case](), records()
    before = copy.deepcopy(net.state_dict())
    truth = dfil(jacobians(net, entropy, x, y, clip=clip))
    leak = leakage(net, "cross_entropy", x, y, clip)
    np.testing.assert_allclose(np.asarray(leak.rows("dfil", method="exact")), truth, rtol=1e-6)
    assert np.isfinite(np.asarray(leak.rows("dfil", probes=2))).all()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


ON_ITS_OWN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a function of its own": (lambda: stacked(Bent(Squash.apply)), "the function Squash"),
    "spectral normalisation": (
        lambda: stacked(nn.Tanh(), spectral_norm(nn.Linear(6, 6)), nn.Tanh()),
        "(ParametrizedLinear|_SpectralNorm)",
    ),
}


@pytest.mark.filterwarnings("ignore::seepage.nn.FallbackWarning")
@pytest.mark.parametrize("clip", [CLIP, None])
@pytest.mark.parametrize("case", ON_ITS_OWN)
def test_what_cannot_be_differentiated_twice_is_measured_otherwise(
    case: str, clip: float | None
) -> None:
    make, name = ON_ITS_OWN[case]
    net, (x, y) = make(), records()
    leak = leakage(net, "cross_entropy", x, y, clip, scale=0.01)
    with pytest.warns(sp.nn.FallbackWarning, match=f"derivatives cannot be used: .*{name}"):
        found = leak.rows("dfil", method="exact")
    truth = finite_dfil(net, entropy, x, y, 0.01, clip=clip)
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-9)
    with pytest.raises(sp.InputError, match=name):
        leak.rows("fil")
    step = leak.engine.step(x, y, probes=1, update=True)
    assert step.traces.shape == (4, 1)
    assert bool((step.traces > 0).all())
    assert step.gradient


def test_complex_parameters_are_refused_by_name() -> None:
    with pytest.raises(sp.InputError, match="'turn' contains complex numbers"):
        leakage(Turning(), "cross_entropy", *records()).rows("dfil", method="exact")


@pytest.mark.parametrize("kink", KINKS)
def test_kinks_in_plain_functions_are_named_and_measured_at_a_scale(kink: str) -> None:
    net, (x, y) = stacked(Bent(KINKS[kink])), records()
    leak = leakage(net, "cross_entropy", x, y)
    with pytest.warns(sp.nn.KinkWarning, match=kink):
        found = leak.rows("dfil", method="exact")
    scale = leak.engine.step_size(x, y)
    truth = finite_dfil(net, entropy, x, y, scale)
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-9)
    assert f"over steps of {scale:g}" in found.about


def test_a_condition_that_does_not_depend_on_the_record_is_no_kink() -> None:
    picked = torch.tensor([True, False, True, True, False, True])
    net, (x, y) = stacked(nn.Tanh(), Bent(lambda h: torch.where(picked, h, 0.0 * h))), records()
    found = leakage(net, "cross_entropy", x, y).rows("dfil", method="exact")
    assert found.about == "the input"


def test_the_derivative_can_be_had_where_there_are_kinks() -> None:
    net, (x, y) = stacked(nn.ReLU()), records()
    leak = leakage(net, "cross_entropy", x, y, method="derivative")
    with pytest.warns(sp.nn.KinkWarning):
        found = leak.rows("dfil", method="exact")
    truth = dfil(jacobians(net, entropy, x, y, step=1e-7))
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-5)


def test_rare_random_numbers_are_found_every_time() -> None:
    for seed in range(10):
        net, (x, y) = stacked(nn.Tanh(), DropPath()), records()
        torch.manual_seed(seed)
        with pytest.raises(sp.InputError, match="random numbers"):
            leakage(net, "cross_entropy", x, y).rows("dfil", method="exact")


def test_random_numbers_without_effect_are_no_matter() -> None:
    def idle(h: Tensor) -> Tensor:
        torch.rand(1)
        return h

    net, (x, y) = stacked(nn.Tanh(), Bent(idle)), records()
    truth = dfil(jacobians(net, entropy, x, y))
    found = leakage(net, "cross_entropy", x, y).rows("dfil", method="exact")
    np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::seepage.nn.FallbackWarning")
def test_a_hint_can_be_followed() -> None:
    net, (x, y) = stacked(nn.Tanh(), spectral_norm(nn.Linear(6, 6)), nn.Tanh()), records()
    with pytest.raises(sp.InputError, match="method='finite'") as refused:
        leakage(net, "cross_entropy", x, y, 2.0).rows("fil")
    assert "NoClip" not in str(refused.value)
    leakage(net, "cross_entropy", x, y, 2.0, method="finite").rows("dfil", method="exact")


def test_float32_agrees_with_differences_and_is_not_refused() -> None:
    torch.manual_seed(6)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GELU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3)
    )
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))
    for clip in (CLIP, None):
        leakage(net, "cross_entropy", x, y, clip).rows("dfil", probes=2)
    gate = nn.Sequential(*list(net)[:2], Gate(), *list(net)[2:])
    with pytest.warns(sp.nn.FallbackWarning, match="Gate '2'"):
        leakage(gate, "cross_entropy", x, y).rows("dfil", probes=2)


def test_finite_steps_have_no_pull_back() -> None:
    leak = leakage(smooth(), "cross_entropy", *records(), method="finite")
    with pytest.raises(sp.InputError, match="need derivatives"):
        leak.rows("fil")
    with pytest.raises(sp.InputError, match=r"hutch\+\+"):
        leak.rows("dfil", method="hutch++")
    with pytest.raises(sp.InputError, match=r"method must be 'auto', .*'parameters', not 'finit'"):
        leakage(smooth(), "cross_entropy", *records(), method="finit")


def test_a_module_that_stands_twice_is_left_as_it_was() -> None:
    torch.manual_seed(7)
    layer = nn.Linear(4, 4)
    net, (x, y) = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 3)), records()
    leakage(net, "cross_entropy", x.float(), y).rows("dfil", method="exact")
    assert layer.weight.requires_grad
    assert isinstance(layer.weight, nn.Parameter)
    assert layer.weight.dtype == torch.float32
